"""Speed of this machine's products of bytes and of its memory, measured in a process of its own.

`products.py THREADS SIZES` takes a JSON list of byte counts. It prints the products per second of the instruction that the
kernels use, and for each size the bytes per second of reading that much memory again and again.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numba
import numpy as np
from numba import njit
from numba.extending import intrinsic

from dragoman.inference.backends.compiled.cpu_features import build_tile_config, can_use_amx, get_instruction_set
from dragoman.inference.backends.compiled.kernels.instruction_sets import AVX512_VNNI, TARGET_VARIABLE

INSTRUCTION_SET = get_instruction_set()
assert INSTRUCTION_SET is not None, "the compiled back end runs"
os.environ[TARGET_VARIABLE] = INSTRUCTION_SET.name
settings: Any = numba.config
settings.CPU_NAME, settings.CPU_FEATURES = INSTRUCTION_SET.cpu_name, INSTRUCTION_SET.added_features

from dragoman.inference.backends.compiled.kernels import amx, memory, simd  # noqa: E402

ROUNDS = 100
"""Rounds of each measurement, of which the fastest counts. A round takes some milliseconds."""
VECTOR_BYTES, TILE_PRODUCTS = 64, 16 * 16 * 64
REPEATS = 200_000
dot_accumulate_two = simd.dot_accumulate_two
splat_i32, reduce_sum_i32, load = simd.splat_i32, simd.reduce_sum_i32, memory.load_i32x16


@intrinsic
def dot_accumulate(typing, sums, inputs, weights):
    return simd.i32x16(*[simd.i32x16] * 3), lambda context, builder, signature, args: simd.emit_dot_product(builder, *args)


if INSTRUCTION_SET.max_lane_weights is None:
    PRODUCTS = VECTOR_BYTES

    @njit(inline="always")
    def multiply(sums, weights):
        """Add one vector of products to sums, which are the inputs too, so that no product can be computed once for all."""
        return dot_accumulate(sums, sums, weights)

else:
    PRODUCTS = 2 * VECTOR_BYTES

    @njit(inline="always")
    def multiply(sums, weights):
        """Add two vectors of products, as the kernels for AVX2 do."""
        return dot_accumulate_two(sums, sums, weights, weights, sums)


@njit(nogil=True)
def multiply_six(repeats):
    """Add products to six sums, which fill the registers of 256 bits."""
    a, b, c = splat_i32(1), splat_i32(2), splat_i32(3)
    d, e, f = splat_i32(4), splat_i32(5), splat_i32(6)
    weights = splat_i32(repeats)
    for _ in range(repeats):
        a, b, c = multiply(a, weights), multiply(b, weights), multiply(c, weights)
        d, e, f = multiply(d, weights), multiply(e, weights), multiply(f, weights)
    return reduce_sum_i32(a + b + c + d + e + f)


@njit(nogil=True)
def multiply_twelve(repeats):
    """Add products to twelve sums, which hide the latency of AVX-512."""
    a, b, c = splat_i32(1), splat_i32(2), splat_i32(3)
    d, e, f = splat_i32(4), splat_i32(5), splat_i32(6)
    g, h, i = splat_i32(7), splat_i32(8), splat_i32(9)
    j, k, m = splat_i32(10), splat_i32(11), splat_i32(12)
    weights = splat_i32(repeats)
    for _ in range(repeats):
        a, b, c = multiply(a, weights), multiply(b, weights), multiply(c, weights)
        d, e, f = multiply(d, weights), multiply(e, weights), multiply(f, weights)
        g, h, i = multiply(g, weights), multiply(h, weights), multiply(i, weights)
        j, k, m = multiply(j, weights), multiply(k, weights), multiply(m, weights)
    return reduce_sum_i32(a + b + c + d + e + f + g + h + i + j + k + m)


@njit(nogil=True)
def multiply_six_tiles(repeats, tile_config):
    """Add the product of two tiles to six other tiles."""
    amx.configure_tiles(tile_config)
    for _ in range(repeats):
        amx.multiply_tiles(0, 6, 7)
        amx.multiply_tiles(1, 6, 7)
        amx.multiply_tiles(2, 6, 7)
        amx.multiply_tiles(3, 6, 7)
        amx.multiply_tiles(4, 6, 7)
        amx.multiply_tiles(5, 6, 7)
    amx.release_tiles()
    return 0


@njit(nogil=True)
def read(address, num_vectors, repeats):
    """Read memory in vectors, four at once."""
    a, b, c, d = splat_i32(0), splat_i32(0), splat_i32(0), splat_i32(0)
    for _ in range(repeats):
        for first in range(0, num_vectors * 16, 64):
            a, b = a + load(address, first), b + load(address, first + 16)
            c, d = c + load(address, first + 32), d + load(address, first + 48)
    return reduce_sum_i32(a + b + c + d)


def measure_fastest(works: Sequence[Callable[[], object]]) -> float:
    """Return the seconds of the fastest round, in which a thread does each work."""
    seconds = []
    with ThreadPoolExecutor(len(works)) as executor:
        for _ in range(ROUNDS):
            start = time.perf_counter()
            for future in [executor.submit(work) for work in works]:
                future.result()
            seconds.append(time.perf_counter() - start)
    return min(seconds[1:])  # the first round compiles


def measure_products(num_threads: int) -> float:
    """Return the products of bytes per second."""
    sums = 12 if INSTRUCTION_SET is AVX512_VNNI else 6
    loop = multiply_twelve if sums == 12 else multiply_six
    rates = [num_threads * REPEATS * sums * PRODUCTS / measure_fastest([partial(loop, REPEATS)] * num_threads)]
    if can_use_amx():
        config = build_tile_config()
        work = [partial(multiply_six_tiles, REPEATS // 16, config.ctypes.data)] * num_threads
        rates.append(num_threads * REPEATS // 16 * 6 * TILE_PRODUCTS / measure_fastest(work))
    return max(rates)


def measure_read(num_bytes: int, num_threads: int) -> float:
    """Return the bytes per second of threads that each read their part of this much memory."""
    num_vectors = num_bytes // (4 * VECTOR_BYTES * num_threads) * 4
    parts = [np.ones(num_vectors * VECTOR_BYTES, np.uint8) for _ in range(num_threads)]
    repeats = max(1, 2**26 // num_bytes)
    works = [partial(read, part.ctypes.data, num_vectors, repeats) for part in parts]
    return num_threads * num_vectors * VECTOR_BYTES * repeats / measure_fastest(works)


if __name__ == "__main__":
    threads, sizes = int(sys.argv[1]), json.loads(sys.argv[2])
    reads = [measure_read(size, threads) for size in sizes]
    print(json.dumps({"multiply": measure_products(threads), "read": reads}))

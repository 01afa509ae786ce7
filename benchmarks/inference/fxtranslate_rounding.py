"""Cause of the lines in which fxtranslate and dragoman differ: greedy search with the rounding of fxtranslate, in NumPy.

    PYTHONPATH=benchmarks python -m inference.fxtranslate_rounding MODEL TEXT [--lines 60]

MODEL is the folder with Mozilla's files of a tiny student, and the package fxtranslate must be installed.

fxtranslate adds 127 to each input of a matrix product, so that it is unsigned. Then it subtracts 127 times the sum of the
weights. Two errors follow. On AVX2 the products of two neighbors are added in 16 bits, and large sums are cut. And the
subtraction in float32 rounds a result to the precision of a much larger number. The program has either error, both or none, and
counts the lines that are equal to those of fxtranslate. All other sums run in the order of fxtranslate.
"""

from __future__ import annotations

import argparse
import mmap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sentencepiece import SentencePieceProcessor

from dragoman.conversion.marian_binary import INPUT_SUFFIX, Int8Array, iter_items, read_lexical_table

from .students import open_fxtranslate

Floats = NDArray[np.float32]
LAYERS, DECODER_LAYERS, HEADS = 6, 2, 8
SHIFT, EPSILON = np.float32(127), np.float32(1e-6)
MAX_PAIR, MIN_PAIR = 2**15 - 1, -(2**15)
"""Limits of the sum of two products."""
MODES = {"both": (True, True), "cut sums": (True, False), "rounded shift": (False, True), "none": (False, False)}
"""Errors of fxtranslate that a run has: cut sums, and the rounding of the shift."""


def add_in_order(values: Floats) -> Floats:
    """Return the sum of the last dimension, one number after the other. (…, N) → (…, 1)"""
    return np.add.accumulate(values, axis=-1, dtype=np.float32)[..., -1:]


def exponential(values: Floats) -> Floats:
    return np.exp(values.astype(np.float64)).astype(np.float32)


class Matrix:
    """Matrix of integers (I, O) with the factors of its numbers and of its inputs, and its bias (O,).

    cuts, shifts: see `Student`
    """

    def __init__(self, integers: Any, factor: float, input_factor: float, bias: Floats | None, *, cuts: bool, shifts: bool):
        self.integers_IO = integers.astype(np.float64)
        self.sums_O = self.integers_IO.sum(0)
        self.input_factor = np.float32(input_factor)
        self.step = np.float32(1) / (self.input_factor * np.float32(factor))
        self.bias_O = np.zeros(len(self.sums_O), np.float32) if bias is None else bias
        self.shifts = shifts
        pairs = self.integers_IO[0::2], self.integers_IO[1::2]
        largest, least = (2 * SHIFT * sum(limit(part, 0) for part in pairs) for limit in (np.maximum, np.minimum))
        rows, columns = np.nonzero((largest > MAX_PAIR) | (least < MIN_PAIR))
        self.pair_rows, self.pair_columns = (rows, columns) if cuts else (rows[:0], columns[:0])
        self.pair_weights = [part[self.pair_rows, self.pair_columns] for part in pairs]

    def multiply(self, x_NI: Floats) -> Floats:
        """Return x · W + b in int8. (N, I) → (N, O)"""
        inputs_NI = np.clip(np.rint(x_NI * self.input_factor), -SHIFT, SHIFT).astype(np.float64) + SHIFT
        sums_NO = inputs_NI @ self.integers_IO
        first, second = self.pair_weights
        pairs = inputs_NI[:, 2 * self.pair_rows] * first + inputs_NI[:, 2 * self.pair_rows + 1] * second
        for row, change in zip(sums_NO, np.clip(pairs, MIN_PAIR, MAX_PAIR) - pairs, strict=True):
            row += np.bincount(self.pair_columns, change, len(row))
        if not self.shifts:
            exact_NO: Floats = (sums_NO - float(SHIFT) * self.sums_O).astype(np.float32) * self.step + self.bias_O
            return exact_NO
        correction_O = -(SHIFT * self.step) * self.sums_O.astype(np.float32)
        rounded_NO: Floats = sums_NO.astype(np.float32) * self.step + (correction_O + self.bias_O)
        return rounded_NO


class Student:
    """Tiny student with the integers of its file.

    cuts: sums of two products are cut to 16 bits
    shifts: float32 holds the sums with the shift
    """

    def __init__(self, folder: Path, *, cuts: bool, shifts: bool) -> None:
        path, lexicon = next(folder.glob("model*.bin")), next(folder.glob("lex*.bin"))
        with path.open("rb") as file, lexicon.open("rb") as table:
            items = dict(iter_items(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), path))
            self.table = read_lexical_table(mmap.mmap(table.fileno(), 0, access=mmap.ACCESS_READ), lexicon)
        self.vectors = {name: np.array(item.values).ravel() for name, item in items.items() if not isinstance(item, Int8Array)}
        self.options = {"cuts": cuts, "shifts": shifts}
        self.matrices: dict[str, Matrix] = {}
        for name, item in items.items():
            if not isinstance(item, Int8Array) or name == "Wemb" or name.endswith(INPUT_SUFFIX):
                continue
            stem, part = name.rsplit("_W", 1)
            input_factor, bias = self.vectors[name + INPUT_SUFFIX][0], self.vectors.get(f"{stem}_b{part}")
            self.matrices[name] = Matrix(item.values, 1 / item.step, input_factor, bias, **self.options)
        table_item = items["Wemb"]
        assert isinstance(table_item, Int8Array)
        self.integers_VD, self.factor = np.array(table_item.values), np.float32(1 / table_item.step)
        self.width = self.integers_VD.shape[1]
        half = self.width // 2
        index_D = np.arange(self.width)
        exponents_D = (index_D % half).astype(np.float32) / np.float32(half - 1)
        self.frequency_D = np.power(np.float64(np.float32(1e-4)), exponents_D.astype(np.float64)).astype(np.float32)
        self.phase_D = (index_D // half).astype(np.float32) * np.float32(np.pi / 2)

    def embed(self, ids: list[int], start: int, *, is_first: bool = False) -> Floats:
        """Return embeddings and positions; the first input of the decoder has no embedding. → (T, D)"""
        position_T1 = np.arange(start, start + len(ids)).astype(np.float32)[:, None]
        angle_TD = position_T1 * self.frequency_D + self.phase_D
        wave_TD: Floats = np.sin(angle_TD.astype(np.float64)).astype(np.float32)
        if is_first:
            return wave_TD
        x_TD: Floats = self.integers_VD[ids] * (np.float32(1) / self.factor) * np.sqrt(np.float32(self.width)) + wave_TD
        return x_TD

    def normalize(self, x_TD: Floats, name: str) -> Floats:
        count = np.float32(self.width)
        centered_TD = x_TD - add_in_order(x_TD) / count
        deviation_T1 = np.sqrt(add_in_order(centered_TD * centered_TD) / count + EPSILON)
        scale_D, bias_D = self.vectors[f"{name}_ln_scale"], self.vectors[f"{name}_ln_bias"]
        normal_TD: Floats = scale_D * (centered_TD / deviation_T1) + bias_D
        return normal_TD

    def attend(self, q_TD: Floats, k_SD: Floats, v_SD: Floats) -> Floats:
        width = self.width // HEADS
        output_TD = np.zeros_like(q_TD)
        for start in range(0, self.width, width):
            head = slice(start, start + width)
            score_TS = add_in_order(q_TD[:, None, head] * k_SD[None, :, head])[..., 0] * (1 / np.sqrt(np.float32(width)))
            weight_TS = exponential(score_TS - score_TS.max(-1, keepdims=True))
            weight_TS = weight_TS / add_in_order(weight_TS)
            for position in range(len(k_SD)):
                output_TD[:, head] += weight_TS[:, position, None] * v_SD[position, head]
        return output_TD

    def project(self, prefix: str, x_TD: Floats, parts: Iterable[str]) -> list[Floats]:
        return [self.matrices[f"{prefix}_W{part}"].multiply(x_TD) for part in parts]

    def feed_forward(self, prefix: str, x_TD: Floats) -> Floats:
        (inner_TF,) = self.project(prefix, x_TD, "1")
        (outer_TD,) = self.project(prefix, np.maximum(inner_TF, 0), "2")
        return self.normalize(outer_TD + x_TD, f"{prefix}_ffn")

    def encode(self, ids: list[int]) -> Floats:
        x_SD = self.embed(ids, 0)
        for layer in range(1, LAYERS + 1):
            prefix = f"encoder_l{layer}_self"
            (output_SD,) = self.project(prefix, self.attend(*self.project(prefix, x_SD, "qkv")), "o")
            x_SD = self.feed_forward(f"encoder_l{layer}_ffn", self.normalize(output_SD + x_SD, f"{prefix}_Wo"))
        return x_SD

    def build_output(self, ids: list[int]) -> tuple[NDArray[np.int64], Matrix]:
        """Return the candidates of a source, and the output matrix with their columns."""
        table = self.table
        candidates = {*range(table.num_frequent), *ids}
        for index in ids:
            candidates.update(table.candidates[table.offset_V[index] : table.offset_V[index + 1]].tolist())
        following = iter(range(table.num_frequent, len(self.integers_VD)))
        while len(candidates) % 8:
            candidates.add(next(following))
        chosen = np.array(sorted(candidates))
        factor, bias = self.vectors[f"none{INPUT_SUFFIX}"][0], self.vectors["decoder_ff_logit_out_b"][chosen]
        # fxtranslate multiplies these columns by another program, which cuts no sums.
        options = self.options | {"cuts": False}
        return chosen, Matrix(self.integers_VD[chosen].T, float(self.factor), factor, bias, **options)

    def translate(self, ids: list[int]) -> list[int]:
        """Return the output of greedy search with the shortlist."""
        memory_SD = self.encode(ids)
        stack = range(1, DECODER_LAYERS + 1)
        keys_values = {layer: self.project(f"decoder_l{layer}_context", memory_SD, "kv") for layer in stack}
        cells = {layer: np.zeros((1, self.width), np.float32) for layer in stack}
        candidates, output = self.build_output(ids)
        tokens: list[int] = []
        unit = np.float32(1)
        while len(tokens) < min(2 * len(ids) + 4, 256):
            y_1D = self.embed(tokens[-1:] or [0], len(tokens), is_first=not tokens)
            for layer in stack:
                prefix = f"decoder_l{layer}"
                new_1D, gate_1D = self.project(f"{prefix}_rnn", y_1D, ("", "f"))
                gate_1D = unit / (unit + exponential(-gate_1D))
                cells[layer] = gate_1D * cells[layer] + (unit - gate_1D) * new_1D
                y_1D = self.normalize(np.maximum(cells[layer], 0) + y_1D, f"{prefix}_rnn_ffn")
                (query_1D,) = self.project(f"{prefix}_context", y_1D, "q")
                (context_1D,) = self.project(f"{prefix}_context", self.attend(query_1D, *keys_values[layer]), "o")
                y_1D = self.feed_forward(f"{prefix}_ffn", self.normalize(context_1D + y_1D, f"{prefix}_context_Wo"))
            token = int(candidates[output.multiply(y_1D)[0].argmax()])
            if not token:
                break
            tokens.append(token)
        return tokens


def main() -> None:
    """Print how many lines are equal to those of fxtranslate, for each choice of errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--lines", type=int, default=60)
    args = parser.parse_args()
    lines = args.text.read_text(encoding="utf-8").splitlines()[: args.lines]
    vocabulary = next(args.model.glob("vocab*.spm"))
    splitter = SentencePieceProcessor(model_file=str(vocabulary))
    translate = open_fxtranslate(args.model, has_shortlist=True)
    expected = translate(lines)
    for name, (cuts, shifts) in MODES.items():
        student = Student(args.model, cuts=cuts, shifts=shifts)
        outputs = [splitter.decode(student.translate([*splitter.encode(line), splitter.eos_id()])) for line in lines]
        count = sum(output == line for output, line in zip(outputs, expected, strict=True))
        print(f"errors of fxtranslate: {name}; equal lines: {count} of {len(lines)}", flush=True)


if __name__ == "__main__":
    main()

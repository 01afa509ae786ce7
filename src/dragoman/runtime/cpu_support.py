"""The number formats that PyTorch's libraries multiply on this processor. A process detects each of them once.

oneDNN answers for the instructions that it really uses. An environment variable such as ONEDNN_MAX_CPU_ISA can forbid
instructions that the processor has, so the processor's own flags are not enough.
"""

from __future__ import annotations

from functools import lru_cache

import torch

# Rows and inputs, and outputs, of the product that shows whether sums saturate.
PROBE_SIZE, PROBE_OUTPUTS = 128, 16


@lru_cache(maxsize=1)
def has_onednn() -> bool:
    """Return whether this build of PyTorch has oneDNN."""
    return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


@lru_cache(maxsize=1)
def supports_bf16_matmul() -> bool:
    """Return whether PyTorch multiplies packed bfloat16 weights, by instructions of its own or by emulation.

    oneDNN needs AVX-512 or an equivalent for it. Without oneDNN, PyTorch's own product takes any processor.
    """
    return not has_onednn() or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


@lru_cache(maxsize=1)
def has_bf16_matmul() -> bool:
    """Return whether the processor has instructions for products of bfloat16, and PyTorch uses them."""
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    has_instructions = any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))
    return has_instructions and supports_bf16_matmul()


@lru_cache(maxsize=1)
def has_int8_matmul() -> bool:
    """Return whether this build of PyTorch has both int8 products: that of oneDNN and that of fbgemm."""
    return has_onednn() and "x86" in torch.backends.quantized.supported_engines


@lru_cache(maxsize=1)
def has_int32_accumulation() -> bool:
    """Return whether oneDNN's int8 product sums in 32 bits. Without VNNI, pairs of products saturate at 16 bits.

    The largest possible product gives the answer.
    """
    uint8_XI = torch.full((PROBE_SIZE, PROBE_SIZE), 255, dtype=torch.uint8)
    int8_OI = torch.full((PROBE_OUTPUTS, PROBE_SIZE), 127, dtype=torch.int8)
    packed = torch.ops.onednn.qlinear_prepack.default(int8_OI, [PROBE_SIZE, PROBE_SIZE])
    scale_O, zero_points_O = torch.ones(PROBE_OUTPUTS), torch.zeros(PROBE_OUTPUTS, dtype=torch.int32)
    multiply = torch.ops.onednn.qlinear_pointwise.default
    y_XO = multiply(uint8_XI, 1.0, 0, packed, scale_O, zero_points_O, None, 1.0, 0, torch.float32, "none", [], "")
    return bool((y_XO == 255.0 * 127.0 * PROBE_SIZE).all())

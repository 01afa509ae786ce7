"""Products of bfloat16 that PyTorch's libraries have on this processor. A process detects them once.

oneDNN answers for the instructions that it really uses. An environment variable such as ONEDNN_MAX_CPU_ISA can forbid
instructions that the processor has, so the processor's own flags are not enough.
"""

from __future__ import annotations

from functools import lru_cache

import torch


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

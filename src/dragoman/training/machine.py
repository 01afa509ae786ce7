"""What this machine is best asked to do: the device, the precision, the attention. The model never knows."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import torch
from torch import nn

from dragoman.config import TrainingConfig
from dragoman.model.attention import explicit_attention, fused_attention, use_attention


@dataclass(frozen=True)
class Machine:
    """Where and in which precision the products of a run are computed."""

    device: torch.device
    precision: torch.dtype

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.precision == torch.bfloat16)

    def settle(self, model: nn.Module) -> None:
        """Choose how attention is computed: PyTorch's kernel is slow on a processor in bfloat16, above all backwards."""
        by_hand = self.device.type == "cpu" and self.precision == torch.bfloat16
        use_attention(model, explicit_attention if by_hand else fused_attention)

    def describe(self) -> str:
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else f"{torch.get_num_threads()} threads"
        return f"{self.device.type} ({name}), {str(self.precision).removeprefix('torch.')}"


def choose_machine(config: TrainingConfig) -> Machine:
    """A GPU where there is one; bfloat16 where the recipe says so, or leaves it open and the hardware multiplies it fast."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    fast = torch.cuda.is_bf16_supported(including_emulation=False) if device.type == "cuda" else multiplies_bfloat16()
    bfloat16 = config.precision == "bfloat16" or (config.precision == "auto" and fast)
    return Machine(device, torch.bfloat16 if bfloat16 else torch.float32)


def multiplies_bfloat16() -> bool:
    """Whether the processor has instructions for products of bfloat16."""
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def bound_kernel_cache() -> None:
    """Have oneDNN keep few of the kernels that it makes for each shape of a batch: its usual thousand hold a gigabyte.

    It looks at this when it makes its first, and at what the user set before anything else.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")


def measure_ceiling(machine: Machine) -> float:
    """Floating-point operations a second of a large matrix product in the run's precision."""
    factor = torch.randn(1024, 1024, device=machine.device, dtype=machine.precision)
    started = time.monotonic()
    for _ in range(5):
        torch.mm(factor, factor)[0, 0].item()
    return 5 * 2 * 1024**3 / (time.monotonic() - started)


def compile_layers(model: nn.Module) -> None:
    """Have torch.compile make kernels of a model, in place."""
    model.compile(dynamic=True)

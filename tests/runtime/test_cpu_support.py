"""Tests of the number formats that are detected on this processor."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import torch
from dragoman.runtime.cpu_support import has_bf16_matmul, supports_bf16_matmul

if supports_bf16_matmul():
    torch.ops.mkldnn._reorder_linear_weight(torch.ones(16, 16, dtype=torch.bfloat16), 1)
print(supports_bf16_matmul(), has_bf16_matmul())
"""


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["AVX2", None])
def test_bf16_follows_the_instructions_of_onednn(isa: str | None) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "ONEDNN_MAX_CPU_ISA"}
    if isa:
        environment["ONEDNN_MAX_CPU_ISA"] = isa
    result = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    if isa:
        assert result.stdout.split() == ["False", "False"]

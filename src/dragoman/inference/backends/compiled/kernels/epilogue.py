"""Last operation of a product: an activation, the product with a gate, or the sum with the workspace's x."""

from __future__ import annotations

from dragoman.inference.backends.compiled.kernels.memory import load_f32x16, load_partial, store_f32x16, store_partial
from dragoman.inference.backends.compiled.kernels.simd import gelu, gelu_tanh, kernel, maximum, silu, splat
from dragoman.inference.backends.compiled.kernels.structs import (
    ADD_RESIDUAL,
    GELU,
    GELU_TANH,
    LANES,
    MULTIPLY,
    RELU,
    SILU,
)


@kernel
def store_outputs(result, linear, output, y, index, workspace):
    """Apply the epilogue to 16 outputs, from `output` on, and write those that exist into y at the index."""
    num_outputs = linear.num_outputs
    if linear.epilogue == RELU:
        result = maximum(result, splat(0.0))
    elif linear.epilogue == SILU:
        result = silu(result)
    elif linear.epilogue == GELU:
        result = gelu(result)
    elif linear.epilogue == GELU_TANH:
        result = gelu_tanh(result)
    elif linear.epilogue == MULTIPLY:  # its rows are whole vectors
        result = result * load_f32x16(y, index)
    if output + LANES > num_outputs:
        if linear.epilogue >= ADD_RESIDUAL:
            result = result + load_partial(num_outputs - output, workspace.x, index, splat(0.0))
        store_partial(num_outputs - output, y, index, result)
    elif linear.epilogue >= ADD_RESIDUAL:
        store_f32x16(y, index, result + load_f32x16(workspace.x, index))
    else:
        store_f32x16(y, index, result)

"""Last operation of a product: an activation, or the sum with the workspace's x."""

from __future__ import annotations

from dragoman.inference.backends.compiled.kernels.memory import load_f32x16, load_partial, store_f32x16, store_partial
from dragoman.inference.backends.compiled.kernels.simd import gelu, kernel, maximum, silu, splat
from dragoman.inference.backends.compiled.kernels.structs import ADD_RESIDUAL, GELU, LANES, RELU, SILU


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
    if output + LANES > num_outputs:
        if linear.epilogue >= ADD_RESIDUAL:
            result = result + load_partial(num_outputs - output, workspace.x, index, splat(0.0))
        store_partial(num_outputs - output, y, index, result)
    elif linear.epilogue >= ADD_RESIDUAL:
        store_f32x16(y, index, result + load_f32x16(workspace.x, index))
    else:
        store_f32x16(y, index, result)

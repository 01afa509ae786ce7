"""What one step of a model is made of: its parts in the order of the forward pass, with their weights and their products.

Only matrix products are counted, by the weights that a token goes through: 2 operations a weight forward and 4 backward. The
products of attention itself are left out, as in the published shares of peak that the rates come from; at 27 tokens a sentence
they are under 3 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.config import ModelConfig

FORWARD, BACKWARD = 2, 4
# Launches of a sub-layer's forward pass, compiled: projections, attention, and what is fused around them. An assumption.
ATTENTION_KERNELS, FEED_FORWARD_KERNELS, EMBEDDING_KERNELS, LOSS_KERNELS, MEMORY_KERNELS = 8, 6, 3, 8, 2


@dataclass(frozen=True)
class Block:
    """A part of the model that is computed at once.

    tensors: elements of each weight whose gradient is whole when this block's backward pass ends, the last in use first
    source, target: weights in matrices that each source token and each target token goes through
    group: the weights that FSDP2 puts together at once
    """

    name: str
    group: str
    tensors: tuple[int, ...]
    source: int
    target: int
    kernels: int

    def operations(self, source_tokens: float, target_tokens: float) -> float:
        """Of a multiplication and an addition for each weight and token, the pair counted as one."""
        return self.source * source_tokens + self.target * target_tokens


def blocks_of(model: ModelConfig, *, vocabulary: int) -> list[Block]:
    """The parts in the order of the forward pass. A decoder layer's view of the source is computed before all of them."""
    width, matrix = model.d_model, vocabulary * model.d_model
    keys, values = model.num_heads * model.key_width, model.num_heads * model.value_width
    bias = 1 if model.attention_bias else 0
    final = (width, width) if (model.final_norm if model.final_norm is not None else model.norm == "pre") else ()
    query = (width * keys, *[keys] * bias)
    key, value = query, (width * values, *[values] * bias)
    output = (values * width, *[width] * bias)
    norm = (width, width)
    feed_forward = (width * model.d_ff, model.d_ff, model.d_ff * width, width, *norm)
    positions = (model.max_positions * width,) if model.position_encoding == "learned" else ()
    space = (width,) if model.target_space_embedding else ()
    source_matrix, target_matrix, output_matrix = {
        "all": ((matrix,), (), ()),
        "decoder": ((matrix,), (matrix,), ()),
        "none": ((matrix,), (matrix,), (matrix,)),
    }[model.tie_embeddings]
    attention_matrices = 2 * width * keys + 2 * width * values

    blocks = [Block("source embedding", "root", (*source_matrix, *positions, *space), 0, 0, EMBEDDING_KERNELS)]
    for number in range(model.encoder_layers):
        group = f"encoder {number}"
        whole = (*query, *key, *value, *output, *norm)
        blocks.append(Block(f"{group} attention", group, whole, attention_matrices, 0, ATTENTION_KERNELS))
        blocks.append(Block(f"{group} feed-forward", group, feed_forward, 2 * width * model.d_ff, 0, FEED_FORWARD_KERNELS))
    blocks.append(Block("encoder norm", "root", final, 0, 0, 1 if final else 0))
    for number in range(model.decoder_layers):
        blocks.append(Block(f"memory {number} keys", f"keys {number}", key, width * keys, 0, MEMORY_KERNELS))
        blocks.append(Block(f"memory {number} values", f"values {number}", value, width * values, 0, MEMORY_KERNELS))
    blocks.append(Block("target embedding", "root", (*target_matrix, *positions), 0, 0, EMBEDDING_KERNELS))
    for number in range(model.decoder_layers):
        group = f"decoder {number}"
        whole = (*query, *key, *value, *output, *norm)
        across = width * keys + values * width
        blocks.append(Block(f"{group} attention", group, whole, 0, attention_matrices, ATTENTION_KERNELS))
        blocks.append(Block(f"{group} cross", group, (*query, *output, *norm), 0, across, ATTENTION_KERNELS))
        blocks.append(Block(f"{group} feed-forward", group, feed_forward, 0, 2 * width * model.d_ff, FEED_FORWARD_KERNELS))
    blocks.append(Block("output and loss", "root", (*final, *output_matrix), 0, matrix, LOSS_KERNELS))
    return blocks


def num_weights(blocks: Sequence[Block]) -> int:
    return sum(sum(block.tensors) for block in blocks)


def operations_a_token(blocks: Sequence[Block]) -> float:
    """Floating-point operations of a step for one target token and one source token."""
    return (FORWARD + BACKWARD) * sum(block.operations(1, 1) for block in blocks)

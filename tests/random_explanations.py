"""Random explanations for the tests of the attention page."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dragoman.viz.explanation import (
    AttentionHeads,
    AttentionKind,
    BeamNode,
    Explanation,
    HeadSelection,
    NodeStatus,
    TokenCandidate,
    TokenPrediction,
)

HOSTILE = [
    "<script>alert(1)</script>",
    "</script><script>document.title='broken'</script>",
    "\"'><img src=x onerror=alert(1)>",
    "</title></style></svg><b onclick=x>",
    "]]>--><!--",
    "\u202egnirts\u2066",
    "nul\0\x1b",
    "&lt;&amp;",
    "▁مرحبا",
]


def random_explanation(
    *,
    source_length: int,
    output_length: int,
    layers: int,
    heads: int,
    width: int = 8,
    beam: int = 2,
    tokens: Sequence[str] = (),
    sharpness: float = 2.0,
) -> Explanation:
    """Return an explanation with attention weights of random queries and keys by equation 1.

    tokens: tokens that repeat over both sides; default: numbered tokens
    """
    rng = np.random.default_rng(1)
    names = [(tokens[index % len(tokens)] if tokens else f"▁tok{index}") for index in range(max(source_length, output_length))]
    source_tokens, output_tokens = (*names[: source_length - 1], "</s>"), (*names[: output_length - 1], "</s>")

    def make_heads(rows: int, columns: int, is_causal: bool) -> AttentionHeads:
        query, key, value = (
            rng.normal(size=(layers, heads, length, width)).astype(np.float32) for length in (rows, columns, columns)
        )
        scores = sharpness * query @ key.swapaxes(-1, -2) / np.sqrt(width)
        if is_causal:
            scores = np.where(np.tril(np.ones((rows, columns), dtype=bool)), scores, -np.inf)
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights = (powers / powers.sum(axis=-1, keepdims=True)).astype(np.float32)
        return AttentionHeads(weights, sharpness * query, key, value)

    log_probs = np.log(0.5) * np.arange(1, 11)
    predictions = tuple(
        TokenPrediction(
            TokenCandidate(token, float(log_probs[0])),
            1,
            tuple(TokenCandidate(token, float(log_prob)) for log_prob in log_probs),
        )
        for token in output_tokens
    )
    nodes: list[BeamNode] = []
    for step, token in enumerate(output_tokens):
        first_parent = len(nodes) - 2 * beam
        for rank in range(2 * beam):
            status: NodeStatus = "kept" if rank < beam else "pruned"
            parent = None if step == 0 else first_parent + rank % beam
            nodes.append(BeamNode(parent, step, rank, token, -1.5 * step - rank, status, is_best=rank == 0))
    selections: dict[AttentionKind, HeadSelection] = {
        kind: HeadSelection(layers - 1, tuple(range(heads))) for kind in ("encoder", "decoder", "cross")
    }
    return Explanation(
        model="random",
        source=" ".join(source_tokens),
        target=" ".join(output_tokens),
        source_tokens=source_tokens,
        output_tokens=output_tokens,
        decoder_input=("<s>", *output_tokens[:-1]),
        source_word_ids=tuple(range(source_length)),
        output_word_ids=tuple(range(output_length)),
        encoder=make_heads(source_length, source_length, False),
        decoder=make_heads(output_length, output_length, True),
        cross=make_heads(output_length, source_length, False),
        selections=selections,
        predictions=predictions,
        beam=tuple(nodes),
    )

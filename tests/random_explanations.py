"""Explanations made of chance, for the tests of the attention page."""

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


def made(
    *,
    source: int,
    said: int,
    layers: int,
    heads: int,
    width: int = 8,
    beam: int = 2,
    tokens: Sequence[str] = (),
    sharpness: float = 2.0,
) -> Explanation:
    """Weights that follow from random queries and keys by equation 1; tokens in turn where they are given."""
    chance = np.random.default_rng(1)
    names = [(tokens[place % len(tokens)] if tokens else f"▁tok{place}") for place in range(max(source, said))]
    source_tokens, said_tokens = (*names[: source - 1], "</s>"), (*names[: said - 1], "</s>")

    def look(rows: int, columns: int, hidden: bool) -> AttentionHeads:
        query, key, value = (
            chance.normal(size=(layers, heads, length, width)).astype(np.float32) for length in (rows, columns, columns)
        )
        scores = sharpness * query @ key.swapaxes(-1, -2) / np.sqrt(width)
        if hidden:
            scores = np.where(np.tril(np.ones((rows, columns), dtype=bool)), scores, -np.inf)
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights = (powers / powers.sum(axis=-1, keepdims=True)).astype(np.float32)
        return AttentionHeads(weights, sharpness * query, key, value)

    log_probs = np.log(0.5) * np.arange(1, 11)
    choices = tuple(
        TokenPrediction(
            TokenCandidate(token, float(log_probs[0])), 1, tuple(TokenCandidate(token, float(one)) for one in log_probs)
        )
        for token in said_tokens
    )
    branches: list[BeamNode] = []
    for step, token in enumerate(said_tokens):
        above = len(branches) - 2 * beam
        for rank in range(2 * beam):
            fate: NodeStatus = "kept" if rank < beam else "pruned"
            parent = None if step == 0 else above + rank % beam
            branches.append(BeamNode(parent, step, rank, token, -1.5 * step - rank, fate, is_best=rank == 0))
    focus: dict[AttentionKind, HeadSelection] = {
        kind: HeadSelection(layers - 1, tuple(range(heads))) for kind in ("encoder", "decoder", "cross")
    }
    return Explanation(
        model="made of chance",
        source=" ".join(source_tokens),
        target=" ".join(said_tokens),
        source_tokens=source_tokens,
        output_tokens=said_tokens,
        decoder_input=("<s>", *said_tokens[:-1]),
        source_word_ids=tuple(range(source)),
        output_word_ids=tuple(range(said)),
        encoder=look(source, source, False),
        decoder=look(said, said, True),
        cross=look(said, source, False),
        selections=focus,
        predictions=choices,
        beam=tuple(branches),
    )

"""Sections 3.4, 3.5 and 3.2 in matrices that fit on a page: from the words "Thinking Machines" to z.

All matrices come from the functions of the model, with a width of 4, two heads, and weights of small whole numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dragoman.model.attention import Attention, explicit_attention, scaled_dot_scores
from dragoman.model.positional_encoding import SinusoidalPositionalEmbedding
from dragoman.model.transformer import Embedding
from dragoman.paper.demonstrations.demonstration import Demonstration, render_lesson
from dragoman.viz.svg import box_path, estimate_text_width, render_label

WORDS = ("Thinking", "Machines")
D_MODEL, NUM_HEADS, D_K = 4, 2, 4
# Row 0 is padding.
_EMBEDDINGS = ((0, 0, 0, 0), (1, 0, 1, 0), (0, 1, 0, 1))
_QUERY = ((1, 0, 1, 0), (0, 1, 0, 1), (1, 0, 0, 0), (0, 1, 0, 0), (1, 1, 0, 0), (0, 0, 1, 1), (1, 0, 0, 1), (0, 1, 1, 0))
_KEY = ((1, 0, 0, 1), (0, 1, 1, 0), (1, 0, 1, 0), (0, 0, 0, 1), (0, 1, 0, 1), (1, 0, 0, 0), (0, 0, 1, 0), (1, 0, 0, 1))
_VALUE = ((1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (0, 0, 0, 1), (0, 0, 1, 0), (0, 1, 0, 0), (1, 0, 0, 0))
_OUTPUT = ((1, 0, 0, 0, 0, 0, 0, 1), (0, 1, 0, 0, 0, 0, 1, 0), (0, 0, 1, 0, 0, 1, 0, 0), (0, 0, 0, 1, 1, 0, 0, 0))

_CELL_WIDTH, _CELL_HEIGHT, _MARGIN, _OPERATOR_WIDTH = 40.0, 22.0, 16.0, 30.0
_NUMBER_SIZE, _LABEL_SIZE = 12, 13


@dataclass(frozen=True)
class Equation:
    """Product, sum or function of matrices: text such as "·" and "=" between named matrices."""

    name: str
    parts: Sequence[str | tuple[str, Tensor]]

    @property
    def result(self) -> Tensor:
        last = self.parts[-1]
        assert not isinstance(last, str)
        return last[1]


def _build_embedding(weight_VD: Tensor) -> Embedding:
    return Embedding(
        weight=nn.Parameter(weight_VD),
        positions=SinusoidalPositionalEmbedding(d_model=D_MODEL, layout="interleaved"),
        scale_embeddings=True,
        dropout=0.0,
        padding_id=0,
        norm=nn.Identity(),
    )


def _build_attention() -> Attention:
    """Return attention with two heads and the matrices of this page."""
    attention = Attention(d_model=D_MODEL, num_heads=NUM_HEADS, d_k=D_K, d_v=D_K, bias=False, dropout=0.0)
    attention.attention_impl = explicit_attention
    for linear, rows in (
        (attention.query, _QUERY),
        (attention.key, _KEY),
        (attention.value, _VALUE),
        (attention.output, _OUTPUT),
    ):
        linear.weight.copy_(torch.tensor(rows))
    return attention


@torch.no_grad()
def compute_steps() -> list[Equation]:
    weight_VD = torch.tensor(_EMBEDDINGS, dtype=torch.float32)
    embedding, attention = _build_embedding(weight_VD), _build_attention()
    x_BTD = embedding(torch.tensor([[1, 2]]))
    query_BHTK, key_value = attention.project_qkv(x_BTD)
    scaled_BHTS = scaled_dot_scores(query_BHTK, key_value.key)
    weights_BHTS = attention.compute_weights(query_BHTK, key_value.key, None)
    heads_BHTU = attention.compute_heads(query_BHTK, key_value, None, 0.0)
    concatenated_TC = heads_BHTU.transpose(1, 2).flatten(-2)[0]
    x_TD = x_BTD[0]
    query_TK, key_SK, value_SU = query_BHTK[0, 0], key_value.key[0, 0], key_value.value[0, 0]

    def first_head(linear: nn.Module) -> Tensor:
        weight: Tensor = linear.weight  # type: ignore[assignment]
        return weight[:D_K].T

    return [
        Equation(
            "1. Each word has a row of E. It is multiplied by √d_model, and the encoding of its position is added.",
            [("E", weight_VD[1:]), "· 2 +", ("PE", embedding.positions(0, 2)), "=", ("X", x_TD)],
        ),
        Equation(
            "2. Head 1 makes a query of each word …",
            [("X", x_TD), "·", ("W^Q", first_head(attention.query)), "=", ("Q", query_TK)],
        ),
        Equation("3. … a key …", [("X", x_TD), "·", ("W^K", first_head(attention.key)), "=", ("K", key_SK)]),
        Equation("4. … and a value.", [("X", x_TD), "·", ("W^V", first_head(attention.value)), "=", ("V", value_SU)]),
        Equation(
            "5. Each query is multiplied with each key, and divided by √d_k.",
            [("Q", query_TK), "·", ("Kᵀ", key_SK.T), "/ 2 =", ("scores", scaled_BHTS[0, 0])],
        ),
        Equation(
            "6. The softmax makes weights of each row: they are positive, and their sum is 1.",
            ["softmax", ("scores", scaled_BHTS[0, 0]), "=", ("weights", weights_BHTS[0, 0])],
        ),
        Equation(
            "7. The output of the head is the sum of the values with these weights.",
            [("weights", weights_BHTS[0, 0]), "·", ("V", value_SU), "=", ("Z₁", heads_BHTU[0, 0])],
        ),
        Equation(
            "8. Head 2 does the same with matrices of its own; both outputs lie side by side.",
            [("Z₁", heads_BHTU[0, 0]), "beside", ("Z₂", heads_BHTU[0, 1]), "=", ("Concat", concatenated_TC)],
        ),
        Equation(
            "9. W^O makes vectors of the width of the model again: one z for each word.",
            [
                ("Concat", concatenated_TC),
                "·",
                ("W^O", attention.output.weight.T),
                "=",
                ("Z", attention.output(concatenated_TC)),
            ],
        ),
    ]


def show_words() -> Demonstration:
    """Walk from the words "Thinking Machines" to z in matrices (sections 3.2, 3.4 and 3.5)."""
    steps = compute_steps()
    lesson = "Follow the two rows, one for each word: only steps 5 to 7 mix the rows, all others compute each word by itself."
    title = "From the words “Thinking Machines” to z"
    rows = [(step.name, *(" ".join(_format_number(value) for value in row) for row in step.result.tolist())) for step in steps]
    return Demonstration(title, lesson, ["step", *WORDS], rows, lambda: _draw(steps, title, lesson))


def _format_number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".").replace("-", "−") if abs(value) >= 0.005 else "0"


def _draw(steps: Sequence[Equation], title: str, lesson: str) -> str:
    body, y, width = list[str](), 44.0, 0.0
    for step in steps:
        body.append(render_label(step.name, _MARGIN, y + 14, _LABEL_SIZE))
        top = y + 40
        heights = [len(part[1]) for part in step.parts if not isinstance(part, str)]
        middle = top + _CELL_HEIGHT * max(heights) / 2
        x = _MARGIN
        for part in step.parts:
            if isinstance(part, str):
                text_width = max(_OPERATOR_WIDTH, estimate_text_width(part, 14) + 14)
                body.append(render_label(part, x + text_width / 2, middle + 5, 14, anchor="middle"))
                x += text_width
            else:
                body += _draw_matrix(*part, x, middle - _CELL_HEIGHT * len(part[1]) / 2)
                x += _CELL_WIDTH * part[1].shape[1]
        width = max(width, x)
        y = top + _CELL_HEIGHT * max(heights) + 14
    width += _MARGIN
    colors = ("first", "#cfe8f7", "#123a52"), ("second", "#fbe0cd", "#55301a"), ("other", "#eef2f6", "#1c232c")
    rules = (
        {f".{name}": f"fill:{light}" for name, light, _ in colors},
        {f".{name}": f"fill:{dark}" for name, _, dark in colors},
    )
    return render_lesson("dragoman-matrices", body, width=width, height=y + 16, title=title, lesson=lesson, rules=rules)


def _draw_matrix(name: str, matrix: Tensor, x: float, y: float) -> list[str]:
    """Draw a matrix with its name above. Those with one row for each word have the colors of the words."""
    rows = matrix.tolist()
    parts = [render_label(name, x, y - 5, 12, css_class="muted")]
    for index, row in enumerate(rows):
        css_class = ("first", "second")[index] if len(rows) == len(WORDS) else "other"
        top = y + _CELL_HEIGHT * index
        parts.append(f'<path class="{css_class}" d="{box_path(x, top, _CELL_WIDTH * len(row), _CELL_HEIGHT - 1)}"/>')
        parts += [
            render_label(_format_number(value), x + _CELL_WIDTH * (column + 0.5), top + 15, _NUMBER_SIZE, anchor="middle")
            for column, value in enumerate(row)
        ]
    return parts

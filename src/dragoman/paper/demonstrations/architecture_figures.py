"""Figures 1 and 2 of the paper, drawn, with the sizes of the base model."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dragoman.config import make_recipe
from dragoman.model.attention import Attention, attention_weights, explicit_attention, scaled_dot_scores
from dragoman.model.factory import assemble_model
from dragoman.paper.demonstrations.demonstration import Demonstration, render_lesson
from dragoman.viz.svg import box_path, format_number, render_label

VOCABULARY = 37_000
"""Pieces of the vocabulary that English and German share (section 5.1)."""
NUM_TOKENS = 10

_COLORS = {
    "attention": "#ffe0b8",
    "forward": "#c9e4f6",
    "norm": "#f3f3b6",
    "embedding": "#f6d4dc",
    "linear": "#d9d9f3",
    "softmax": "#cfe9cf",
    "stack": "#f3f4f6",
}
_RULES = {
    **{f".{name}": f"fill:{color};stroke:#57606a" for name, color in _COLORS.items()},
    ".in-box": "fill:#1f2328",
}
_LIGHT = {**_RULES, ".arrow": "fill:none;stroke:#57606a;stroke-width:1.4", ".tip": "fill:#57606a"}
_DARK = {
    **_RULES,
    ".stack": "fill:#1c232c;stroke:#9198a1",
    ".arrow": "fill:none;stroke:#9198a1;stroke-width:1.4",
    ".tip": "fill:#9198a1",
}
_BOX_WIDTH, _BOX_HEIGHT, _SIZE = 150.0, 34.0, 13
_TIP = 4.0

Point = tuple[float, float]


class _Diagram:
    """Boxes and arrows of a drawing."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.parts: list[str] = []

    def add_box(
        self, css_class: str, text: str, x: float, y: float, width: float = _BOX_WIDTH, height: float = _BOX_HEIGHT
    ) -> None:
        """Add a box with text in its middle. x, y: middle of the box"""
        self.parts.append(f'<path class="{css_class}" d="{box_path(x - width / 2, y - height / 2, width, height)}"/>')
        lines = text.split("\n") if text else []
        for index, line in enumerate(lines):
            line_y = y + 4.5 + 15 * (index - (len(lines) - 1) / 2)
            self.parts.append(render_label(line, x, line_y, _SIZE, css_class="in-box", anchor="middle"))

    def add_text(self, text: str, x: float, y: float, anchor: str = "middle") -> None:
        self.parts.append(render_label(text, x, y, _SIZE, css_class="ink", anchor=anchor))

    def add_arrow(self, *points: Point) -> None:
        """Add a line through these points, with a tip at the last one."""
        path = "M" + "L".join(f"{format_number(x)} {format_number(y)}" for x, y in points)
        (before_x, before_y), (x, y) = points[-2:]
        length = max(abs(x - before_x), abs(y - before_y))
        dx, dy = (x - before_x) / length * _TIP, (y - before_y) / length * _TIP
        tip = [(x, y), (x - 2 * dx - dy, y - 2 * dy + dx), (x - 2 * dx + dy, y - 2 * dy - dx)]
        tip_path = "M" + "L".join(f"{format_number(a)} {format_number(b)}" for a, b in tip) + "z"
        self.parts += [f'<path class="arrow" d="{path}"/>', f'<path class="tip" d="{tip_path}"/>']

    def render(self, width: float, height: float, lesson: str) -> str:
        return render_lesson(
            "dragoman-figure", self.parts, width=width, height=height, title=self.title, lesson=lesson, rules=(_LIGHT, _DARK)
        )


def show_figure_1() -> Demonstration:
    """Draw Figure 1, the Transformer, with the parameters of each block of the base model."""
    title = "Figure 1: the Transformer"
    lesson = (
        "Follow the arrows from the bottom: the source passes the left stack once, and each layer of the right stack reads its "
        "output; every sub-layer has an arrow around it, the residual connection."
    )
    config = make_recipe({"preset": "paper", "size": "base"}).model
    with torch.device("meta"):
        model = assemble_model(config, source_vocab_size=VOCABULARY, target_vocab_size=VOCABULARY)
    counts: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        block = _find_block(name)
        counts[block] = counts.get(block, 0) + parameter.numel()
    layers = {"encoder": config.encoder_layers, "decoder": config.decoder_layers}
    rows: list[tuple[str, int, int, int]] = []
    for block, count in counts.items():
        repeats = layers.get(block.split()[0], 1)
        rows.append((block, repeats, count // repeats, count))
    rows.append(("all", 1, model.num_parameters(), model.num_parameters()))
    header = ["block of the base model", "times", "parameters each", "parameters"]
    return Demonstration(title, lesson, header, rows, lambda: _draw_figure_1(title, lesson))


def _find_block(name: str) -> str:
    if ".layers." not in name:
        return "embeddings and output matrix, shared"
    stack, _, _, part, *_ = name.split(".")
    kinds = {
        "attention": "self-attention" if stack == "encoder" else "masked self-attention",
        "cross_attention": "attention to the source",
        "feed_forward": "feed-forward",
    }
    return f"{stack} {kinds.get(part, 'Add & Norm')}"


def _draw_figure_1(title: str, lesson: str) -> str:
    diagram = _Diagram(title)
    left, right, bottom = 190.0, 450.0, 700.0
    for x, height, text_x, anchor in ((left, 230.0, 78.0, "middle"), (right, 344.0, 566.0, "middle")):
        diagram.add_box("stack", "", x, bottom - 136 - height / 2, _BOX_WIDTH + 50, height)
        diagram.add_text("N×", text_x, bottom - 136 - height / 2 + 5, anchor)
    encoder = [("attention", "Multi-head attention"), ("forward", "Feed-forward")]
    decoder = [("attention", "Masked\nmulti-head attention"), *encoder]
    for x, inputs, embedding, sublayers in (
        (left, "source tokens", "Source embedding", encoder),
        (right, "target tokens so far", "Target embedding", decoder),
    ):
        diagram.add_text(inputs, x, bottom)
        diagram.add_arrow((x, bottom - 14), (x, bottom - 33))
        diagram.add_box("embedding", embedding, x, bottom - 50)
        diagram.add_text("+ positional encoding", x, bottom - 92)
        diagram.add_arrow((x, bottom - 67), (x, bottom - 80))
        entry = bottom - 108
        for index, (css_class, text) in enumerate(sublayers):
            y = bottom - 184 - 114 * index
            side = x + (_BOX_WIDTH / 2 + 14) * (-1 if x == left else 1)
            diagram.add_arrow((x, entry), (x, y + _BOX_HEIGHT / 2 + 1))
            diagram.add_box(css_class, text, x, y)
            diagram.add_box("norm", "Add & Norm", x, y - 44)
            diagram.add_arrow((x, y - _BOX_HEIGHT / 2), (x, y - 26))
            edge = x + (_BOX_WIDTH / 2 + 1) * (-1 if x == left else 1)
            turn = y + _BOX_HEIGHT / 2 + 14
            diagram.add_arrow((x, turn), (side, turn), (side, y - 44), (edge, y - 44))
            entry = y - 44 - _BOX_HEIGHT / 2
    top_left, cross_y = bottom - 184 - 114 - 44 - _BOX_HEIGHT / 2, bottom - 184 - 114
    lane = (left + right) / 2
    diagram.add_arrow(
        (left, top_left), (left, top_left - 24), (lane, top_left - 24), (lane, cross_y), (right - _BOX_WIDTH / 2 - 1, cross_y)
    )
    for css_class, text, y in (("linear", "Linear", bottom - 520), ("softmax", "Softmax", bottom - 576)):
        diagram.add_arrow((right, entry), (right, y + _BOX_HEIGHT / 2 + 1))
        diagram.add_box(css_class, text, right, y)
        entry = y - _BOX_HEIGHT / 2
    diagram.add_arrow((right, entry), (right, entry - 20))
    diagram.add_text("probabilities of the next token", right, entry - 28)
    return diagram.render(640, bottom + 36, lesson)


def show_figure_2() -> Demonstration:
    """Draw Figure 2, scaled dot-product and multi-head attention, with the sizes in the base model."""
    title = "Figure 2: attention, and several heads of it"
    lesson = (
        "The right side holds the left side once for each head: Q, K and V are projected to d_k and d_v numbers, and the "
        "results of all heads lie side by side before the last product."
    )
    config = make_recipe({"preset": "paper", "size": "base"}).model
    d_k = config.d_model // config.num_heads
    module = Attention(d_model=config.d_model, num_heads=config.num_heads, d_k=d_k, d_v=d_k, bias=False, dropout=0.0)
    module.attention_impl = explicit_attention
    with torch.no_grad():
        x_BTD = torch.randn(1, NUM_TOKENS, config.d_model)
        query_BHTK, key_value = module.project_qkv(x_BTD)
        heads_BHTU = module.compute_heads(query_BHTK, key_value, None, 0.0)
        stages = [
            ("input", "x", x_BTD),
            ("Linear, for Q, K and V each", "x·W", query_BHTK),
            ("MatMul and Scale", "Q·Kᵀ/√d_k", scaled_dot_scores(query_BHTK, key_value.key)),
            ("Mask and SoftMax", "softmax(…)", attention_weights(query_BHTK, key_value.key, None)),
            ("MatMul", "softmax(…)·V", heads_BHTU),
            ("Concat", "Concat(head₁, …)", heads_BHTU.transpose(1, 2).flatten(-2)),
            ("Linear", "Concat(…)·W^O", module.attend(query_BHTK, key_value, None)),
        ]
    rows = [(name, formula, " × ".join(map(str, tensor.shape[1:]))) for name, formula, tensor in stages]
    header = ["box", "formula", f"shape for {NUM_TOKENS} tokens in base: heads × tokens × numbers"]
    return Demonstration(title, lesson, header, rows, lambda: _draw_figure_2(title, lesson))


def _draw_figure_2(title: str, lesson: str) -> str:
    diagram = _Diagram(title)
    left, right, bottom = 150.0, 450.0, 470.0
    diagram.add_text("Scaled dot-product attention", left, 62)
    diagram.add_text("Multi-head attention", right, 62)
    _draw_dot_product(diagram, left, bottom)
    _draw_heads(diagram, right, bottom)
    return diagram.render(620, bottom + 36, lesson)


def _draw_dot_product(diagram: _Diagram, x: float, bottom: float) -> None:
    boxes: Sequence[tuple[str, str]] = (
        ("attention", "MatMul"), ("norm", "Scale by 1/√d_k"), ("embedding", "Mask (decoder)"), ("softmax", "SoftMax"),
        ("attention", "MatMul"),
    )  # fmt: skip
    for name, offset in (("Q", -40), ("K", 10), ("V", 95)):
        diagram.add_text(name, x + offset, bottom)
    diagram.add_arrow((x - 40, bottom - 14), (x - 40, bottom - 54))
    diagram.add_arrow((x + 10, bottom - 14), (x + 10, bottom - 54))
    for index, (css_class, text) in enumerate(boxes):
        y = bottom - 72 - 66 * index
        diagram.add_box(css_class, text, x - 15, y, 130)
        diagram.add_arrow((x - 15, y - _BOX_HEIGHT / 2), (x - 15, y - 48))
    y = bottom - 72 - 66 * (len(boxes) - 1)
    diagram.add_arrow((x + 95, bottom - 14), (x + 95, y), (x + 51, y))


def _draw_heads(diagram: _Diagram, x: float, bottom: float) -> None:
    for index, name in enumerate(("V", "K", "Q")):
        column = x - 80 + 80 * index
        diagram.add_text(name, column, bottom)
        diagram.add_arrow((column, bottom - 14), (column, bottom - 62))
        diagram.add_arrow((column, bottom - 97), (column, bottom - 149))
    for shift in (16, 8, 0):  # the boxes of all heads lie behind each other
        diagram.add_box("attention", "" if shift else "Scaled dot-product attention", x + shift, bottom - 170 - shift, 220, 40)
        for index in range(3):
            text = "" if shift else "Linear"
            diagram.add_box("linear", text, x - 80 + 80 * index + shift, bottom - 80 - shift, 66)
    diagram.add_text("h", x + 142, bottom - 165, "start")
    diagram.add_arrow((x, bottom - 206), (x, bottom - 242))
    diagram.add_box("norm", "Concat", x, bottom - 260, 130)
    diagram.add_arrow((x, bottom - 277), (x, bottom - 307))
    diagram.add_box("linear", "Linear, W^O", x, bottom - 325, 130)
    diagram.add_arrow((x, bottom - 342), (x, bottom - 372))

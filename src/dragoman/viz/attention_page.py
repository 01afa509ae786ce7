"""Attention page: one file that shows the attention and the search of one output.

The page loads nothing. Its security policy names its script and its styles by their hashes. The weights of a kind of attention
are the pixels of one PNG, one byte each: a row of heads for each layer. The script reads the weights from these pixels.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import struct
from collections.abc import Iterator
from importlib.resources import files

from dragoman.viz.attention_svg import (
    DARK_HEAD_COLORS,
    HEAD_COLORS,
    KIND_TITLES,
    display_token,
    find_strongest_pair,
    render_head_view,
    render_line_view,
)
from dragoman.viz.beam_svg import format_probability, render_beam_tree
from dragoman.viz.explanation import (
    WEIGHT_LEVELS,
    AttentionHeads,
    AttentionKind,
    Explanation,
    TokenCandidate,
    merge_tokens,
)
from dragoman.viz.explanation_figures import render_words
from dragoman.viz.html_report import build_css_variables, text_to_html, wrap_scrollable
from dragoman.viz.png import encode_palette_png, interpolate_colors, to_data_url
from dragoman.viz.svg import DARK, FONT, LIGHT, escape_hidden, escape_text
from dragoman.viz.tree_attention import render_tree_attention

MAX_OPTIONAL_PAGE_BYTES = 500_000
"""Page size up to which the vectors of further heads are added."""
MAX_TOKENS = 400
"""Most tokens of a side, because the number of weights grows with the square."""

_MAX_LINES = 600
_BACKGROUND_COLOR, _WEIGHT_COLOR = (255, 255, 255), (8, 69, 148)
_BAR_LEVELS = 20
_PAGE_KINDS: tuple[AttentionKind, ...] = ("cross", "encoder", "decoder")

HeadId = tuple[AttentionKind, int, int]
"""Kind of attention, layer and head; layer and head count from 0."""


def render_attention_page(explanation: Explanation, *, include_heads: tuple[HeadId, ...] = ()) -> str:
    """Return the whole page.

    include_heads: heads whose vectors the page must hold; others are added while the page stays small

    Raises ValueError if a side has more than `MAX_TOKENS` tokens, or if sizes do not match.
    """
    _check_explanation(explanation)
    word_section = list(_render_word_section(explanation))
    sections = [
        _render_header(explanation),
        "<main>",
        *_render_tree_section(explanation),
        *(word_section if explanation.image else []),
        '<section id="attention"><h2>Attention</h2>',
        '<p class="hint">Each line leads from a query token to a key token. A stronger line is a greater weight.</p>',
        '<div id="controls"></div><div class="beside"><div id="lines">',
        *(
            f'<figure data-kind="{kind}">{render_line_view(explanation, kind, max_lines=_MAX_LINES)}</figure>'
            for kind in _list_page_kinds(explanation)
        ),
        '</div><div id="grids"><div id="readout" aria-live="polite"></div>',
        *(_render_weights_figure(explanation.heads(kind), kind, KIND_TITLES[kind]) for kind in _list_page_kinds(explanation)),
        "</div></div></section>",
        *([] if explanation.image else word_section),
        *_render_decoding_section(explanation),
        '<section id="inside"><h2>Inside one head</h2><div id="pair"></div>',
        wrap_scrollable("inside one head", f"<figure>{render_head_view(explanation, 'cross')}</figure>"),
        "</section>\n</main>",
        *(f'<footer dir="auto">{text_to_html(note)}</footer>' for note in explanation.notes),
    ]
    body_html = "\n".join(sections)
    budget_bytes = MAX_OPTIONAL_PAGE_BYTES - len(_render_document(explanation, body_html, "", {}).encode())
    offsets, vectors = _pack_vectors(explanation, include_heads, budget_bytes)
    return _render_document(explanation, body_html, vectors, offsets)


def embed_in_iframe(page: str, *, height: int = 720) -> str:
    """Return a frame for a notebook, which may run only the script of the page. `height` is in pixels."""
    return (
        f'<iframe sandbox="allow-scripts" title="attention" width="100%" height="{height}" '
        f'style="border:0" srcdoc="{page.replace("&", "&amp;").replace(chr(34), "&quot;")}"></iframe>'
    )


def _list_page_kinds(explanation: Explanation) -> list[AttentionKind]:
    return [kind for kind in _PAGE_KINDS if kind in explanation.kinds]


def _check_explanation(explanation: Explanation) -> None:
    for kind in explanation.kinds:
        rows, columns = len(explanation.query_tokens(kind)), len(explanation.key_tokens(kind))
        if explanation.heads(kind).shape[2:] != (rows, columns):
            raise ValueError(
                f"{kind} weights: have shape {explanation.heads(kind).shape[2:]} for {(rows, columns)} tokens; give equal sizes"
            )
        if max(rows, columns) > MAX_TOKENS:
            raise ValueError(f"tokens: {max(rows, columns)} are too many; a page holds {MAX_TOKENS}")
    if not explanation.output_tokens:
        raise ValueError("output tokens: are empty; explain an output with at least one token")


def _render_header(explanation: Explanation) -> str:
    kind = "text" if explanation.image else "translation" if explanation.tree is None else "parse"
    output_label = "given" if explanation.teacher_forced else kind
    html_texts = [text_to_html(text) for text in (explanation.model, explanation.source, explanation.target)]
    return (
        f'<header><p class="model" dir="auto">{html_texts[0]}</p>\n<h1 dir="auto">{html_texts[1]}</h1>\n'
        f'<p class="target"><small>{output_label}</small> <bdi>{html_texts[2]}</bdi></p></header>'
    )


# The weights


def _compute_gap(columns: int) -> int:
    return max(1, columns // 14)


def _encode_weights_png(heads: AttentionHeads) -> bytes:
    """Return all heads as one PNG, with one byte for each weight: round(255 · weight)."""
    layers, num_heads, rows, columns = heads.shape
    gap = _compute_gap(columns)
    levels = (heads.weights_LHTS * WEIGHT_LEVELS).round().clip(0, WEIGHT_LEVELS).astype("u1")
    pixel_rows = []
    for layer in range(layers):
        if layer:
            pixel_rows += [bytes(num_heads * columns + (num_heads - 1) * gap)] * gap
        for row in range(rows):
            pixel_rows.append(bytes(gap).join(levels[layer, head, row].tobytes() for head in range(num_heads)))
    return encode_palette_png(pixel_rows, interpolate_colors(_BACKGROUND_COLOR, _WEIGHT_COLOR))


def _render_weights_figure(heads: AttentionHeads, kind: AttentionKind, name: str) -> str:
    layers, num_heads, _, _ = heads.shape
    head_numbers = "".join(f"<span>{head + 1}</span>" for head in range(num_heads))
    return (
        f'<figure class="grid" data-kind="{kind}"><figcaption>{name}: {layers} layers × {num_heads} heads</figcaption>'
        f'<div class="heads" aria-hidden="true">{head_numbers}</div>'
        f'<div class="layers" aria-hidden="true">{"".join(f"<span>{layer + 1}</span>" for layer in range(layers))}</div>'
        f'<div class="mosaic"><img alt="a thumbnail of each head" src="{to_data_url(_encode_weights_png(heads))}"></div>'
        "</figure>"
    )


def _pack_vectors(
    explanation: Explanation, requested_heads: tuple[HeadId, ...], budget_bytes: int
) -> tuple[dict[str, int], str]:
    """Return the offset of the vectors of each head, and all vectors as base64 text.

    The requested heads come first. Further heads follow while the text is within the budget.
    """
    packed = bytearray()
    offsets: dict[str, int] = {}
    for kind, layer, head in [*requested_heads, *_iterate_heads(explanation)]:
        name = f"{kind}.{layer}.{head}"
        heads = explanation.heads(kind)
        vectors = [heads.query_LHTK[layer, head], heads.key_LHSK[layer, head], heads.value_LHSU[layer, head]]
        num_bytes = 12 + 2 * sum(vector.size for vector in vectors)
        exceeds_budget = math.ceil((len(packed) + num_bytes + 3) / 3) * 4 + 24 * (len(offsets) + 1) > budget_bytes
        if name in offsets or (exceeds_budget and (kind, layer, head) not in requested_heads):
            continue
        offsets[name] = len(packed)
        scales = [float(abs(vector).max()) / 32767 or 1.0 for vector in vectors]
        packed += struct.pack("<3f", *scales)
        for vector, scale in zip(vectors, scales, strict=True):
            packed += (vector / scale).round().astype("<i2").tobytes()
        packed += bytes(-len(packed) % 4)
    return offsets, base64.b64encode(packed).decode("ascii")


def _iterate_heads(explanation: Explanation) -> Iterator[HeadId]:
    """Yield the selected heads first, then all heads from the last layer to the first."""
    for kind in _list_page_kinds(explanation):
        selection = explanation.selections[kind]
        yield from ((kind, selection.layer, head) for head in selection.heads)
    for kind in _list_page_kinds(explanation):
        layers, num_heads, _, _ = explanation.heads(kind).shape
        yield from ((kind, layer, head) for layer in reversed(range(layers)) for head in range(num_heads))


# The tree


def _render_tree_section(explanation: Explanation) -> Iterator[str]:
    if explanation.tree is None:
        return
    pointer_hint = (
        " A triangle marks the word that the decoder gets as its next input word." if explanation.tree.has_pointer else ""
    )
    yield '<section id="tree"><h2>The tree</h2>'
    yield (
        '<p class="hint">Each row is a bracket. A darker cell is more attention from the token that opens the bracket. '
        f"The frame shows the words of the bracket.{pointer_hint}</p>"
    )
    yield wrap_scrollable("the tree", f"<figure>{render_tree_attention(explanation)}</figure>") + "</section>"


# The words


def _render_word_section(explanation: Explanation) -> Iterator[str]:
    if explanation.image:
        yield '<section id="words" class="source"><h2>Attention to the source</h2>'
        yield (
            '<p class="hint">Rows are output tokens. A darker cell is more attention to the part of the source above it. '
            "Point at a row, or use the arrow keys, to see its attention in the source.</p>"
        )
    else:
        yield '<section id="words"><h2>Words</h2>'
        yield (
            '<p class="hint">Subword tokens are merged into words. Rows attend to columns. '
            "High attention suggests an alignment, but does not prove it.</p>"
        )
    yield wrap_scrollable("words", f"<figure>{render_words(explanation)}</figure>")
    yield '<p id="word" class="readout" aria-live="polite"></p></section>'


# The decoding


def _render_decoding_section(explanation: Explanation) -> Iterator[str]:
    yield '<section id="steps"><h2>Step by step</h2>'
    yield '<p class="hint">Each row shows an output token, then the most probable tokens at its place.</p>'
    num_columns = max(len(prediction.candidates) for prediction in explanation.predictions)
    rows: list[str] = []
    for step_number, prediction in enumerate(explanation.predictions, start=1):
        cells = "".join(
            f'<td class="b{_quantize_probability(candidate.log_prob)}{" output" if rank == prediction.rank else ""}">'
            f"{_render_candidate(candidate)}</td>"
            for rank, candidate in enumerate(prediction.candidates, start=1)
        )
        output_cell = f"<b>{_render_candidate(prediction.output)}</b>"
        rank_note = f" <i>no. {prediction.rank}</i>" if prediction.rank > len(prediction.candidates) else ""
        rows.append(f"<tr><td>{step_number}</td><th scope=row>{output_cell}{rank_note}</th>{cells}</tr>")
    header_cells = "".join(f"<th scope=col>{rank}</th>" for rank in range(1, num_columns + 1))
    table = (
        f"<table><thead><tr><th></th><th>output</th>{header_cells}</tr></thead><tbody>\n" + "\n".join(rows) + "</tbody></table>"
    )
    yield wrap_scrollable("the most probable tokens of each step", table)
    if explanation.beam:
        yield wrap_scrollable("the beam as a tree", f"<figure>{render_beam_tree(explanation)}</figure>")
    yield '<div id="step" class="readout" aria-live="polite"></div></section>'


def _render_candidate(candidate: TokenCandidate) -> str:
    token, probability = display_token(candidate.token), format_probability(candidate.log_prob)
    return f"<bdi>{escape_text(token)}</bdi> <i>{escape_text(probability)}</i>"


def _quantize_probability(log_prob: float) -> int:
    return round(math.exp(log_prob) * _BAR_LEVELS)


# The file


def _serialize_data(explanation: Explanation, offsets: dict[str, int]) -> str:
    """Return the data of the script as JSON that is safe within a script element."""
    kinds = {}
    for kind in explanation.kinds:
        heads = explanation.heads(kind)
        kinds[kind] = {
            "name": KIND_TITLES[kind],
            "shape": heads.shape,
            "gap": _compute_gap(heads.shape[3]),
            "widths": [heads.query_LHTK.shape[3], heads.value_LHSU.shape[3]],
            "queryTokens": [escape_hidden(display_token(token)) for token in explanation.query_tokens(kind)],
            "keyTokens": [escape_hidden(display_token(token)) for token in explanation.key_tokens(kind)],
            "window": heads.window,
            "layer": explanation.selections[kind].layer,
            "heads": explanation.selections[kind].heads,
            "pair": find_strongest_pair(explanation, kind),
        }
    rows = (
        [display_token(token) for token in explanation.output_tokens]
        if explanation.image
        else merge_tokens(explanation.output_tokens, explanation.output_word_ids)
    )
    document = {
        "kinds": kinds,
        "rowWords": explanation.output_word_ids,
        "columnWords": explanation.source_word_ids,
        "rows": [escape_hidden(row) for row in rows],
        "columns": [escape_hidden(word) for word in merge_tokens(explanation.source_tokens, explanation.source_word_ids)],
        "vectors": offsets,
    }
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _read_asset(name: str) -> str:
    return files("dragoman.viz").joinpath(name).read_text(encoding="utf-8")


def _build_style() -> str:
    bar_rules = "".join(f".b{level}{{--p:{100 * level // _BAR_LEVELS}%}}" for level in range(_BAR_LEVELS + 1))
    dark_colors, light_colors = (
        {f"h{index}": color for index, color in enumerate(colors)} for colors in (DARK_HEAD_COLORS, HEAD_COLORS)
    )
    dark_rules = f"@media (prefers-color-scheme:dark){{{build_css_variables(DARK, **dark_colors)}}}"
    font_rule = f"body{{font-family:{FONT}}}"
    light_rules = f":root{{color-scheme:light dark}}{build_css_variables(LIGHT, **light_colors)}"
    return f"{light_rules}{dark_rules}{font_rule}{bar_rules}{_read_asset('attention.css')}"


def _render_document(explanation: Explanation, body: str, vectors: str, offsets: dict[str, int]) -> str:
    style, script = _build_style(), _read_asset("attention.js")
    svg_style = re.search(r"<style>(.*?)</style>", body, re.DOTALL)
    assert svg_style is not None
    policy = (
        f"default-src 'none'; img-src data:; script-src {_hash_for_policy(script)}; "
        f"style-src {_hash_for_policy(style)} {_hash_for_policy(svg_style[1])}; "
        "base-uri 'none'; form-action 'none'"
    )
    title = f"{escape_hidden(explanation.source)[:60]} → {escape_hidden(explanation.target)[:60]}"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<meta name="referrer" content="no-referrer">\n'
        f"<title>{escape_text(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n{body}\n"
        f'<script type="application/json" id="data">{_serialize_data(explanation, offsets)}</script>\n'
        f'<script type="text/plain" id="vectors">{vectors}</script>\n<script>{script}</script>\n</body>\n</html>\n'
    )


def _hash_for_policy(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"

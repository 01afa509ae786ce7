"""The attention page: one file that shows how a model came from a sentence to its translation.

The page asks for nothing: its script and its styles are named in its policy by their hashes, and all it shows stands in it. The
weights of a kind of attention are the pixels of one PNG, layers below each other and heads beside each other, a byte each: what
one sees without a script is what the script reads.
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
    HUES,
    HUES_IN_THE_DARK,
    NAMES,
    inside_view,
    line_view,
    shown,
    strongest_pair,
    word_matrix,
)
from dragoman.viz.beam_svg import beam_tree, probability
from dragoman.viz.explanation import KINDS, LEVELS, Explanation, Heads, Kind, word_texts
from dragoman.viz.html_report import html_text
from dragoman.viz.png import data_address, palette_png, shades
from dragoman.viz.svg import DARK, FONT, LIGHT, Colours, inert, visible
from dragoman.viz.tree_attention import tree_view

SMALL_PAGE = 500_000
"""Bytes up to which the vectors of heads are laid in that nobody asked for by name."""
MOST_TOKENS = 400
"""Longest side that a page is made of: its weights grow with the square."""

_MOST_LINES = 600
_PAPER, _INK = (255, 255, 255), (8, 69, 148)
_BARS = 20

HeadName = tuple[Kind, int, int]
"""A kind of attention, a layer and a head, counted from 0."""


def attention_page(explanation: Explanation, *, inside: tuple[HeadName, ...] = ()) -> str:
    """The whole page. `inside` names heads whose vectors must be in it; others are laid in while the page stays small.

    Raises ValueError where a side has more tokens than `MOST_TOKENS`, or sizes do not match.
    """
    _check(explanation)
    body = [
        _head(explanation),
        "<main>",
        *_tree(explanation),
        '<section id="looks"><h2>Where it looks</h2>',
        '<p class="hint">Each line leads from a token to one that it looks at: the stronger, the greater the weight.</p>',
        '<div id="controls"></div><div class="beside"><div id="lines">',
        *(f'<figure data-kind="{kind}">{line_view(explanation, kind, most=_MOST_LINES)}</figure>' for kind in _by_interest()),
        '</div><div id="grids"><div id="readout" aria-live="polite"></div>',
        *(_grid(explanation.heads(kind), kind, NAMES[kind]) for kind in _by_interest()),
        "</div></div></section>",
        '<section id="words"><h2>Word by word</h2>',
        '<p class="hint">Sub-words merged; each row looks at the columns. '
        "Attention hints at what came from where, and proves nothing.</p>",
        _scrolling("words", f"<figure>{word_matrix(explanation)}</figure>"),
        '<p id="word" class="readout" aria-live="polite"></p></section>',
        *_decoding(explanation),
        '<section id="inside"><h2>Inside one head</h2><div id="pair"></div>',
        _scrolling("inside one head", f"<figure>{inside_view(explanation, 'cross')}</figure>"),
        "</section>\n</main>",
        *(f'<footer dir="auto">{html_text(note)}</footer>' for note in explanation.notes),
    ]
    without = "\n".join(body)
    room = SMALL_PAGE - len(_whole(explanation, without, "", {}).encode())
    offsets, vectors = _vectors(explanation, inside, room)
    return _whole(explanation, without, vectors, offsets)


def framed(page: str, *, height: int = 720) -> str:
    """The page within a notebook: a frame that may run the page's own script and nothing else."""
    return (
        f'<iframe sandbox="allow-scripts" title="attention" width="100%" height="{height}" '
        f'style="border:0" srcdoc="{page.replace("&", "&amp;").replace(chr(34), "&quot;")}"></iframe>'
    )


def _check(explanation: Explanation) -> None:
    for kind in KINDS:
        rows, columns = len(explanation.looking(kind)), len(explanation.looked_at(kind))
        if explanation.heads(kind).shape[2:] != (rows, columns):
            raise ValueError(f"{kind} weights are {explanation.heads(kind).shape[2:]}, the tokens {(rows, columns)}")
        if max(rows, columns) > MOST_TOKENS:
            raise ValueError(f"{max(rows, columns)} tokens; a page holds {MOST_TOKENS}")
    if not explanation.said:
        raise ValueError("nothing was said, so there is nothing to look at")


def _by_interest() -> list[Kind]:
    return ["cross", "encoder", "decoder"]


def _head(explanation: Explanation) -> str:
    how = "given" if explanation.forced else "translation" if explanation.tree is None else "parse"
    texts = [html_text(text) for text in (explanation.model, explanation.source, explanation.target)]
    return (
        f'<header><p class="model" dir="auto">{texts[0]}</p>\n<h1 dir="auto">{texts[1]}</h1>\n'
        f'<p class="target"><small>{how}</small> <bdi>{texts[2]}</bdi></p></header>'
    )


def _scrolling(name: str, content: str) -> str:
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{inert(name)}">{content}</div>'


# The weights


def _gap(columns: int) -> int:
    return max(1, columns // 14)


def _mosaic(heads: Heads) -> bytes:
    """All heads as one picture, a byte a weight: round(255 · weight)."""
    layers, count, rows, columns = heads.shape
    gap = _gap(columns)
    levels = (heads.weights_LHTS * LEVELS).round().clip(0, LEVELS).astype("u1")
    lines = []
    for layer in range(layers):
        if layer:
            lines += [bytes(count * columns + (count - 1) * gap)] * gap
        for row in range(rows):
            lines.append(bytes(gap).join(levels[layer, head, row].tobytes() for head in range(count)))
    return palette_png(lines, shades(_PAPER, _INK))


def _grid(heads: Heads, kind: Kind, name: str) -> str:
    layers, count, _, _ = heads.shape
    numbers = "".join(f"<span>{head + 1}</span>" for head in range(count))
    return (
        f'<figure class="grid" data-kind="{kind}"><figcaption>{name}: {layers} layers × {count} heads</figcaption>'
        f'<div class="heads" aria-hidden="true">{numbers}</div>'
        f'<div class="layers" aria-hidden="true">{"".join(f"<span>{layer + 1}</span>" for layer in range(layers))}</div>'
        f'<div class="mosaic"><img alt="a thumbnail of each head" src="{data_address(_mosaic(heads))}"></div></figure>'
    )


def _vectors(explanation: Explanation, wanted: tuple[HeadName, ...], room: int) -> tuple[dict[str, int], str]:
    """Where the vectors of each head begin, and all of them as one text: those wanted, then more while there is room."""
    packed = bytearray()
    offsets: dict[str, int] = {}
    for kind, layer, head in [*wanted, *_all_heads(explanation)]:
        name = f"{kind}.{layer}.{head}"
        heads = explanation.heads(kind)
        numbers = [heads.query_LHTK[layer, head], heads.key_LHSK[layer, head], heads.value_LHSU[layer, head]]
        size = 12 + 2 * sum(one.size for one in numbers)
        too_large = math.ceil((len(packed) + size + 3) / 3) * 4 + 24 * (len(offsets) + 1) > room
        if name in offsets or (too_large and (kind, layer, head) not in wanted):
            continue
        offsets[name] = len(packed)
        scales = [float(abs(one).max()) / 32767 or 1.0 for one in numbers]
        packed += struct.pack("<3f", *scales)
        for one, scale in zip(numbers, scales, strict=True):
            packed += (one / scale).round().astype("<i2").tobytes()
        packed += bytes(-len(packed) % 4)
    return offsets, base64.b64encode(packed).decode("ascii")


def _all_heads(explanation: Explanation) -> Iterator[HeadName]:
    """The heads in view first, then their layers, then all."""
    order = _by_interest()
    yield from ((kind, explanation.focus[kind].layer, head) for kind in order for head in explanation.focus[kind].heads)
    for kind in order:
        layers, count, _, _ = explanation.heads(kind).shape
        yield from ((kind, layer, head) for layer in reversed(range(layers)) for head in range(count))


# The tree


def _tree(explanation: Explanation) -> Iterator[str]:
    if explanation.tree is None:
        return
    shown_word = " A triangle stands before the word that the decoder was shown." if explanation.tree.points else ""
    yield '<section id="tree"><h2>The tree</h2>'
    yield (
        '<p class="hint">Below the words a row for each bracket: the darker a word, the more the token that opened the bracket '
        f"looked at it. The frame is what the bracket holds.{shown_word}</p>"
    )
    yield _scrolling("the tree", f"<figure>{tree_view(explanation)}</figure>") + "</section>"


# The decoding


def _decoding(explanation: Explanation) -> Iterator[str]:
    yield '<section id="steps"><h2>Step by step</h2>'
    yield '<p class="hint">A row for each place: what was said, then the likeliest tokens, with their probabilities.</p>'
    rows = []
    for number, choice in enumerate(explanation.choices, start=1):
        cells = "".join(
            f'<td class="b{_bar(candidate.log_prob)}{" said" if rank == choice.rank else ""}">'
            f"<bdi>{inert(shown(candidate.token))}</bdi> <i>{inert(probability(candidate.log_prob))}</i></td>"
            for rank, candidate in enumerate(choice.candidates, start=1)
        )
        said = f"<b><bdi>{inert(shown(choice.said.token))}</bdi></b> <i>{inert(probability(choice.said.log_prob))}</i>"
        late = f" <i>no. {choice.rank}</i>" if choice.rank > len(choice.candidates) else ""
        rows.append(f"<tr><td>{number}</td><th scope=row>{said}{late}</th>{cells}</tr>")
    most = max(len(choice.candidates) for choice in explanation.choices)
    head = "".join(f"<th scope=col>{rank}</th>" for rank in range(1, most + 1))
    table = f"<table><thead><tr><th></th><th>said</th>{head}</tr></thead><tbody>\n" + "\n".join(rows) + "</tbody></table>"
    yield _scrolling("the likeliest tokens at each place", table)
    if explanation.beam:
        yield _scrolling("the beam as a tree", f"<figure>{beam_tree(explanation)}</figure>")
    yield '<div id="step" class="readout" aria-live="polite"></div></section>'


def _bar(log_prob: float) -> int:
    return round(math.exp(log_prob) * _BARS)


# The file


def _data(explanation: Explanation, offsets: dict[str, int]) -> str:
    """What the script needs to know, safe within a script element."""
    kinds = {}
    for kind in KINDS:
        heads = explanation.heads(kind)
        kinds[kind] = {
            "name": NAMES[kind],
            "shape": heads.shape,
            "gap": _gap(heads.shape[3]),
            "widths": [heads.query_LHTK.shape[3], heads.value_LHSU.shape[3]],
            "looking": [visible(shown(token)) for token in explanation.looking(kind)],
            "lookedAt": [visible(shown(token)) for token in explanation.looked_at(kind)],
            "window": heads.window,
            "layer": explanation.focus[kind].layer,
            "heads": explanation.focus[kind].heads,
            "pair": strongest_pair(explanation, kind),
        }
    document = {
        "kinds": kinds,
        "rowWords": explanation.said_words,
        "columnWords": explanation.source_words,
        "rows": [visible(word) for word in word_texts(explanation.said, explanation.said_words)],
        "columns": [visible(word) for word in word_texts(explanation.source_tokens, explanation.source_words)],
        "vectors": offsets,
    }
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _asset(name: str) -> str:
    return files("dragoman.viz").joinpath(name).read_text(encoding="utf-8")


def _variables(colours: Colours, hues: list[str]) -> str:
    named = [f"--{name}:{colour}" for name, colour in colours._asdict().items()]
    named += [f"--h{index}:{hue}" for index, hue in enumerate(hues)]
    return ":root{" + ";".join(named) + "}"


def _style() -> str:
    bars = "".join(f".b{level}{{--p:{100 * level // _BARS}%}}" for level in range(_BARS + 1))
    dark = f"@media (prefers-color-scheme:dark){{{_variables(DARK, HUES_IN_THE_DARK)}}}"
    font = f"body{{font-family:{FONT}}}"
    return f":root{{color-scheme:light dark}}{_variables(LIGHT, HUES)}{dark}{font}{bars}{_asset('attention.css')}"


def _whole(explanation: Explanation, body: str, vectors: str, offsets: dict[str, int]) -> str:
    style, script = _style(), _asset("attention.js")
    drawn = re.search(r"<style>(.*?)</style>", body, re.DOTALL)
    assert drawn is not None
    policy = (
        f"default-src 'none'; img-src data:; script-src {_hash(script)}; style-src {_hash(style)} {_hash(drawn[1])}; "
        "base-uri 'none'; form-action 'none'"
    )
    title = f"{visible(explanation.source)[:60]} → {visible(explanation.target)[:60]}"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<meta name="referrer" content="no-referrer">\n'
        f"<title>{inert(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n{body}\n"
        f'<script type="application/json" id="data">{_data(explanation, offsets)}</script>\n'
        f'<script type="text/plain" id="vectors">{vectors}</script>\n<script>{script}</script>\n</body>\n</html>\n'
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"

"""Markup as codes, and codes in translations."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dragoman.text.inline_codes import CodedText, Element, Part, Point, list_markup, parse_markup, read_inline
from dragoman.text.projection import UnitText, find_maximum_subarrays, project, split_units


def project_all(sources: Sequence[CodedText], translations: Sequence[str], weights: Sequence[npt.ArrayLike]) -> list[str]:
    pairs = [(UnitText.divide(s.clean.text), UnitText.divide(t)) for s, t in zip(sources, translations, strict=True)]
    sizes = [[len(units.words) for units in pair[::-1]] for pair in pairs]
    weights_NTS = np.zeros((len(pairs), *np.maximum(1, np.max(sizes, axis=0))))
    for own_TS, size, weights_TS in zip(weights_NTS, sizes, weights, strict=True):
        own_TS[: size[0], : size[1]] = np.reshape(weights_TS, size)
    return list(project(sources, pairs, [weights_NTS]))


def project_links(source: CodedText, translation: str, links: list[tuple[int, int]]) -> str:
    """Return the projection with attention 1 on these links of source units to target units."""
    weights = np.zeros((len(split_units(translation)), len(split_units(source.clean.text))))
    for source_unit, target_unit in links:
        weights[target_unit, source_unit] = 1.0
    return project_all([source], [translation], [weights])[0]


def test_placeholders_become_points() -> None:
    coded = read_inline("Hi {name}, see %s.")
    assert coded.parts == ("Hi ", Point("{name}"), ", see ", Point("%s"), ".")
    assert coded.clean.text == "Hi , see ."


@pytest.mark.parametrize(
    ("markup", "clean", "codes"),
    [
        ("a <b>c</b> d", "a c d", ["<b>", "</b>"]),
        ("<0>a <1>b</1></0> c", "a b c", ["<0>", "<1>", "</1>", "</0>"]),
        ("a<br>c <br/> d", "a c d", ["<br>", "<br/>"]),
        ('go <x id="7"></x> on', "go on", ['<x id="7"></x>']),
        ("a <code>x < y</code> b", "a b", ["<code>x < y</code>"]),
        ("<b>a <i>b</b> c</i>", "a b c", ["<b>", "<i>", "</b>", "</i>"]),
        ("R&amp;D &lt;ok&gt; <!-- no --> <a href='x'>y</a>", "R&D <ok> y", ["<!-- no -->", "<a href='x'>", "</a>"]),
        ('say <span class="notranslate">Foo</span>!', "say !", ['<span class="notranslate">Foo</span>']),
    ],
)
def test_html_becomes_text_and_codes(markup: str, clean: str, codes: list[str]) -> None:
    coded = parse_markup(markup, is_html=True)
    assert (coded.clean.text, list_markup(coded.parts)) == (clean, codes)
    assert coded.write().replace("&lt; y", "< y") == markup


def test_names_of_xml_have_case_and_ignored_elements_stay_whole() -> None:
    coded = parse_markup("<B>a</b> <x>keep</x> <br>", is_html=False, opaque=frozenset({"x"}))
    assert list_markup(coded.parts) == ["<B>", "</b>", "<x>keep</x>", "<br>"]


PROGRAMS = ("a(", "x->", "A<", "A<b,", "a[", "A::")


@pytest.mark.slow
def test_hostile_markup_takes_linear_time(subtests: pytest.Subtests) -> None:
    """Each pattern makes a search that starts again at every character take hours."""
    for pattern in ["<", "<!--", "<![CDATA[", '<a "', "<a>", "</a>", "{", "${", "a@", "http://.", "%", *PROGRAMS]:
        with subtests.test(pattern=pattern):
            text = pattern * 50_000
            assert parse_markup(text, is_html=True).write().replace("&lt;", "<").replace("&gt;", ">") == text


@pytest.mark.parametrize(
    ("source", "translation", "links", "expected"),
    [
        ("Click <b>Save</b> now.", "Jetzt speichern.", [(1, 1), (2, 0)], "Jetzt <b>speichern</b>."),
        ("the <i>red house</i>", "la maison rouge", [(0, 0), (1, 2), (2, 1)], "la <i>maison rouge</i>"),
        ("<b>a</b> <i>b</i>", "y x", [(0, 1), (1, 0)], "<i>y</i> <b>x</b>"),
        ("Hello {name}!", "Hallo!", [(0, 0), (1, 1)], "Hallo {name}!"),
        ("one <b>{n}</b> two", "eins zwei", [(0, 0), (1, 1)], "eins <b>{n}</b> zwei"),
        ("a &nbsp; b&lrm; c", "d e f", [(0, 0), (1, 1), (2, 2)], "d &nbsp; e&lrm; f"),
        ("the soft&shy;ware", "das Programm", [(0, 0), (1, 1)], "das&shy; Programm"),
        ("Only {n}KB free", "Nur KB frei", [(0, 0), (1, 1), (2, 2)], "Nur {n}KB frei"),
        ("Press {key} to go", "キーを押す", [(0, 2), (1, 3)], "キーを押{key}す"),
        ("<a><b>x</b> y</a>", "u v", [(0, 1), (1, 0)], "<a>u <b>v</b></a>"),
        ("1 &lt; <b>2</b>", "1 < 2", [(0, 0), (1, 1), (2, 2)], "1 &lt; <b>2</b>"),
        ("按{key}继续", "Press to go", [(0, 0), (1, 1), (2, 2)], "Press {key} to go"),
    ],
)
def test_codes_follow_attention(source: str, translation: str, links: list[tuple[int, int]], expected: str) -> None:
    assert project_links(parse_markup(source, is_html=True), translation, links) == expected


def test_text_of_an_element_that_occurs_in_the_translation_is_its_place() -> None:
    source = parse_markup("Open <b>Tools</b> first", is_html=True)
    assert project_links(source, "Zuerst Tools öffnen", [(1, 0)]) == "Zuerst <b>Tools</b> öffnen"


def test_japanese_element_ends_between_scripts() -> None:
    """The first character of the compound has no attention, and none of the particle."""
    source = parse_markup("Select <b>document format</b> here", is_html=True)
    translation = "ここで文書形式を選択"
    links = [(3, 0), (3, 1), (1, 4), (2, 5), (2, 6), (0, 8), (0, 9)]
    assert project_links(source, translation, links) == "ここで<b>文書形式</b>を選択"
    assert "<b>书形式</b>" in project_links(source, "在文书形式选择", [(1, 2), (2, 3), (2, 4), (0, 5), (0, 6)])


def test_element_ends_with_the_same_kind_of_mark() -> None:
    """The first word of the next sentence has half of its attention to the element, so it gains 0.7 without the loss."""
    source = parse_markup("<b>Opens a file.</b> A file has pages.", is_html=True)
    links = [(2, 0), (1, 1), (0, 2), (3, 3), (2, 4), (5, 4), (7, 5), (6, 6), (8, 7)]
    text = "Datei eine öffnet. Datei Seiten hat."
    assert project_links(source, text, links) == "<b>Datei eine öffnet.</b> Datei Seiten hat."


def test_element_ends_at_a_space_in_japanese() -> None:
    """Particle and verb have half of their attention to the element, so they gain 0.7 each, and the space gains 2."""
    source = parse_markup("Choose <b>Insert Table</b>", is_html=True)
    links = [(1, 0), (1, 1), (2, 2), (2, 3), *((word, unit) for unit in (4, 5, 6) for word in (0, 1)), (0, 7), (0, 8)]
    assert project_links(source, "挿入 表示 を選択する", links) == "<b>挿入 表示</b> を選択する"
    assert project_links(source, "挿入表示を選択する", links) == "<b>挿入表示を選択</b>する"


def test_unit_that_attends_elsewhere_belongs_to_no_code() -> None:
    """The particle between the two words has a tenth of their attention, all of it to the element."""
    source = parse_markup("go <b>home</b>", is_html=True)
    weights = np.array([[0.0, 1.0], [0.0, 0.1], [1.0, 0.0]])
    assert project_all([source], ["heim da gehen"], [weights])[0] == "<b>heim</b> da gehen"


def test_many_points_share_the_search_for_their_gap() -> None:
    """20,000 points beside 500 elements would take 10 million steps."""
    source = CodedText(
        tuple(Element("<b>", (f"a{number} ",), "</b>") for number in range(500)) + (Point("<br/>"),) * 20_000 + ("end",)
    )
    result = project_all([source], [" ".join(f"b{number}" for number in range(501))], [np.eye(501)])[0]
    assert result.count("<br/>") == 20_000


@given(arrays(np.int64, st.tuples(st.just(3), st.integers(1, 3), st.integers(1, 12)), elements=st.integers(-4, 4)))
def test_maximum_subarray_is_the_first_and_shortest_of_the_best_runs(rows: npt.NDArray[np.int64]) -> None:
    """Small integers have many ties."""
    for (gains, starts, ends), result in zip(rows.swapaxes(0, 1), find_maximum_subarrays(*rows), strict=True):
        runs = [(i, j) for i in range(len(gains)) for j in range(i + 1, len(gains) + 1)]
        sums = {(i, j): gains[i:j].sum() + starts[i] + ends[j - 1] for i, j in runs}
        best = max(sums.values())
        assert result == (best, *min((run for run in runs if sums[run] == best), key=lambda run: (run[1], -run[0])))


def parts_of_depth(depth: int) -> st.SearchStrategy[list[Part]]:
    text = st.text(alphabet="ab .,中文", min_size=1, max_size=8)
    point = st.integers(0, 99).map(lambda number: Point(f"<p{number}/>"))
    choices: list[st.SearchStrategy[Part]] = [text, point]
    if depth:
        choices.append(
            st.tuples(st.integers(0, 99), parts_of_depth(depth - 1)).map(
                lambda pair: Element(f"<e{pair[0]}>", tuple(pair[1]), f"</e{pair[0]}>")
            )
        )
    return st.lists(st.one_of(choices), max_size=4)


def list_points(parts: tuple[Part, ...]) -> list[str]:
    """Return the markup of points; a tag without its partner is one."""
    return [
        markup
        for part in parts
        if not isinstance(part, str)
        for markup in ([part.markup] if isinstance(part, Point) else list_points(part.parts))
    ]


@given(parts_of_depth(2), st.text(alphabet="xy .,日本", max_size=20), st.data())
def test_every_code_is_in_the_translation_once(parts: list[Part], translation: str, data: st.DataObject) -> None:
    source = CodedText(tuple(parts), is_escaped=True)
    shape = (len(split_units(translation)), len(split_units(source.clean.text)))
    weights = data.draw(arrays(np.float64, shape, elements=st.floats(0, 1))) if all(shape) else np.zeros(shape)
    result = project_all([source], [translation], [weights])[0]
    assert sorted(re.findall("<[^>]*>", result)) == sorted(re.findall("<[^>]*>", source.write()))
    projected = parse_markup(result, is_html=False)
    assert not any(re.fullmatch("</?e[^>]*>", markup) for markup in list_points(projected.parts))
    assert projected.clean.text.replace(" ", "") == translation.replace(" ", "")


def test_codes_of_many_sentences_have_the_places_of_each_alone() -> None:
    """Words of the first sentence stand in its translation, and the last but one is empty; both are shorter than others."""
    sources = [
        parse_markup(text, is_html=True)
        for text in ("<b>Open</b> it", "a <i>b c</i> <br/>d <b>e</b>", "<i>gone</i>", "1 <u>2 <b>3</b></u> 4 5 6 7")
    ]
    translations = ["es Open", "d c b a e", "", "7 6 5 4 3 2 1"]
    weights = [
        np.random.default_rng(0).random((len(t.split()), len(split_units(s.clean.text))))
        for s, t in zip(sources, translations, strict=True)
    ]
    alone = [project_all([s], [t], [w])[0] for s, t, w in zip(sources, translations, weights, strict=True)]
    assert project_all(sources, translations, weights) == alone
    assert alone[0] == "es <b>Open</b>"


def test_units_of_long_texts_do_not_stay_in_memory() -> None:
    """The units of a million characters take 40 MB."""
    tracemalloc.start()
    try:
        for number in range(3):
            assert len(split_units(f"{number} " + "one " * 20_000)) == 20_001
        assert tracemalloc.get_traced_memory()[0] < 2**20
    finally:
        tracemalloc.stop()

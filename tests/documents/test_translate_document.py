"""Translation of documents with a stub of a model, which writes words in capitals."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from document_checks import OPTIONS, make_stub, translate_content

from dragoman.documents import po
from dragoman.documents.document import Document, Unit
from dragoman.documents.formats import SUFFIXES, get_parser, parse_document
from dragoman.documents.subtitles import SubtitleLimits
from dragoman.documents.translate_document import DocumentOptions, check_document, check_unit, translate_document
from dragoman.documents.translation_memory import TranslationMemory
from dragoman.inference.text_options import ModelLimits
from dragoman.inference.translation_result import Translation
from dragoman.inference.whole_texts import LineRequest
from expected_errors import raises_code

CATALOG = """msgid ""
msgstr "Language: de\\nPlural-Forms: nplurals=2; plural=(n != 1);\\n"

msgid "One file"
msgstr ""

msgid "Two"
msgstr "Zwei"

msgctxt "again"
msgid "One file"
msgstr ""

#, fuzzy
msgid "Three"
msgstr "Alt"
"""
CUES = """1
00:00:01,000 --> 00:00:02,000
the first part of

2
00:00:02,100 --> 00:00:03,000
a long sentence.
"""


def translate(
    name: str, text: str, options: DocumentOptions = OPTIONS, change: Callable[[str], str] = str.upper
) -> tuple[str, list[tuple[str, ...]]]:
    result = translate_content(name, text, change, options)
    return result.content.decode(), [unit.flags for unit in result.results]


def list_lines(options: DocumentOptions) -> tuple[str, list[str]]:
    """Return the translated catalog, and the lines that the model has read."""
    lines: list[str] = []
    result = translate_document(po.parse(CATALOG.encode()), po.parse, make_stub(lines=lines), options)
    return result.content.decode(), lines


def test_empty_entries_are_translated_once() -> None:
    written, flags = translate("a.po", CATALOG)
    assert list_lines(OPTIONS) == (written, ["One file"])
    assert flags == [(), ()]
    assert written.count('#, fuzzy\nmsgid "One file"\nmsgstr "ONE FILE"\n') == 1
    assert '#, fuzzy\nmsgctxt "again"\nmsgid "One file"\nmsgstr "ONE FILE"\n' in written
    assert translate("a.po", written) == (written, [])


def test_scope_selects_fuzzy_and_translated_entries() -> None:
    written, lines = list_lines(replace(OPTIONS, scope="fuzzy", accept=True))
    assert lines == ["One file", "Three"]
    assert "fuzzy" not in written
    assert list_lines(replace(OPTIONS, scope="all"))[1] == ["One file", "Two", "Three"]


def test_memory_has_precedence() -> None:
    written, lines = list_lines(replace(OPTIONS, memory=TranslationMemory({"One file": "Eine Datei"})))
    assert lines == []
    assert written == CATALOG.replace('"One file"\nmsgstr ""', '"One file"\nmsgstr "Eine Datei"')


def test_translation_of_a_similar_text_is_never_good() -> None:
    memory = TranslationMemory({"Two small files": "Zwei kleine Dateien", "Send 20 files": "20 Dateien senden"}, 0.8)
    options = replace(OPTIONS, accept=True, memory=memory)
    text = CATALOG.replace("One file", "Two small file").replace("Three", "Send 35 files")
    result = translate_content("a.po", text, options=replace(options, scope="fuzzy"))
    written = result.content.decode()
    assert '#, fuzzy\n#| msgid "Two small files"\nmsgid "Two small file"\nmsgstr "Zwei kleine Dateien"' in written
    assert '#, fuzzy\n#| msgid "Send 20 files"\nmsgid "Send 35 files"\nmsgstr "35 Dateien senden"' in written
    assert [(unit.origin, unit.match and unit.match.percent) for unit in result.results] == [("memory", 93)] * 2 + [
        ("memory", 84)
    ]
    source = (
        '<xliff version="1.2"><file><body><trans-unit id="1"><source>Send 20 file</source></trans-unit></body></file></xliff>'
    )
    written, _ = translate("a.xlf", source, options)
    assert '<target state="needs-review-translation" state-qualifier="fuzzy-match">20 Dateien senden</target>' in written
    assert '<note from="dragoman">memory-match-92</note>' in written


def test_branches_of_a_message_are_translated_as_sentences() -> None:
    message = "Delete {n, plural, =0 {no file} one {# file} other {# of {name}'s files}}?"
    translated = "{n, plural, =0 {zDelete zno zfile?} one {zDelete # zfile?} other {zDelete # zof {name}''zs zfiles?}}"

    def change(line: str) -> str:
        return re.sub(r"(\{.*?\})|\w+", lambda match: match[1] or f"z{match[0]}", line)

    for name, template in (
        ("a.json", '{{"a": "{}"}}'),
        ("a.yaml", 'a: "{}"\n'),
        ("a.properties", "a={}\n"),
        ("a.xml", '<resources><string name="a">{}</string></resources>'),
    ):
        is_android = name == "a.xml"
        source = template.format(message.replace("'", "\\'") if is_android else message)
        written, flags = translate(name, source, change=change)
        assert written == template.format(translated.replace("'", "\\'") if is_android else translated), name
        assert flags == [()]
    broken = "{n, plural, one {a file}}"
    assert translate("a.json", f'{{"a": "{broken}"}}', change=change) == (f'{{"a": "{broken}"}}', [("variables",)])
    files = Unit("1", "{n, plural, one {# file} other {# files}}")
    assert check_unit(files, "{n, plural, one {# plik} few {# pliki} other {# plików}}", OPTIONS) == ()
    assert check_unit(files, "{n, plural, one {# plik} other {plików}}", OPTIONS) == ("variables",)


def test_low_score_of_the_model_is_a_flag() -> None:
    log_probs = {"one": (-0.5, -0.5), "two": (-3.0, -1.1)}

    def score(request: LineRequest) -> list[Translation]:
        return [replace(line, token_log_probs=log_probs[line.text.lower()]) for line in make_stub()(request)]

    document = parse_document("a.json", b'{"a": "one", "b": "two"}')
    options = replace(OPTIONS, limits=ModelLimits(low_score=-2.0))
    result = translate_document(document, get_parser("a.json"), score, options)
    assert [unit.flags for unit in result.results] == [(), ("low_score",)]


def test_subtitles_are_broken_and_checked() -> None:
    limits = replace(OPTIONS, subtitles=SubtitleLimits(line_length=12, reading_speed=20))
    cues = "1\n00:00:01,000 --> 00:00:0{},000\n{}\n"
    written, flags = translate("a.srt", cues.format(3, "a first part."), limits, lambda line: f"the {line}")
    assert written == cues.format(3, "the a first\npart.")
    assert flags == [()]
    long = cues.format(2, "This one is a bit too long, is it?")
    assert translate("a.srt", long, limits, str.title)[1] == [("untranslated", "line_length", "reading_speed")]


def test_failed_check_is_flagged_and_fuzzy() -> None:
    text = CATALOG.replace("One file", "The %s has 1234 items")
    written, flags = translate("a.po", text, replace(OPTIONS, accept=True), lambda line: line.replace("1234", "12"))
    assert flags == [("numbers", "untranslated")] * 2
    assert written.count("#, fuzzy") == 3


def test_lost_text_stays_untranslated() -> None:
    written, flags = translate("a.po", CATALOG, change=lambda line: "")
    assert written == CATALOG
    assert len(flags) == 2


def test_sentence_is_translated_across_cues() -> None:
    lines: list[str] = []
    document = parse_document("a.srt", CUES.encode())
    written = translate_document(document, get_parser("a.srt"), make_stub(lines=lines), OPTIONS).content.decode()
    assert set(lines) == {"the first part of a long sentence."}
    assert written == CUES.replace("the first part of", "THE FIRST PART OF").replace("a long sentence.", "A LONG SENTENCE.")


def test_text_that_cannot_be_written_is_left_out() -> None:
    source = "One\n\nTwo three\n"
    written, flags = translate("a.md", source, change=lambda line: "X\n\n# Y" if line == "One" else line.upper())
    assert "TWO THREE" in written
    assert flags[1] == ()


def test_other_language_is_refused() -> None:
    with raises_code("unsupported-language"):
        translate("a.po", CATALOG, replace(OPTIONS, target_language="fr"))


@pytest.mark.parametrize(
    ("source", "text", "flags"),
    [
        ("%d files", "Dateien", ("printf",)),
        ("{name} is on", "Es ist an", ("variables",)),
        ("Line\n", "Zeile", ("newlines",)),
        ("See http://a.b/c", "Siehe", ("urls",)),
        ("A text", "Ein langer Text", ("max_length",)),
        ("A text", "Ein Text", ()),
    ],
)
def test_checks_have_the_names_of_pofilter(source: str, text: str, flags: tuple[str, ...]) -> None:
    assert check_unit(Unit("1", source, max_length=12), text, OPTIONS) == flags


def test_each_ending_has_a_parser() -> None:
    parsers: list[Callable[[bytes], Document]] = [get_parser(f"file{suffix}") for suffix in SUFFIXES]
    assert all(map(callable, parsers))


def test_check_of_subtitles_reads_their_lines_and_times() -> None:
    text = "1\n00:00:01,000 --> 00:00:03,000\n" + "a" * 39 + "\nb\n\n2\n00:00:04,000 --> 00:00:05,000\n" + "long " * 9 + "\n"
    options = replace(OPTIONS, subtitles=SubtitleLimits(line_length=40, reading_speed=20))
    results = check_document(parse_document("a.srt", text.encode()), options)
    assert [result.flags for result in results] == [(), ("line_length", "reading_speed")]


POLISH_PLURALS = "nplurals=3; plural=(n==1 ? 0 : n%10>=2 && n%10<=4 && (n%100<12 || n%100>14) ? 1 : 2);"


def write_polish(line: str) -> str:
    """Inflect the word for files, as Polish does."""
    return {"1 file": "1 plik", "2 files": "2 pliki", "5 files": "5 plików"}.get(line, "pliki liczone")


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "a.po",
            f'msgid ""\nmsgstr "Language: pl\\nPlural-Forms: {POLISH_PLURALS}\\n"\n\n'
            'msgid "%d file"\nmsgid_plural "%d files"\nmsgstr[0] ""\nmsgstr[1] ""\nmsgstr[2] ""\n',
            'msgstr[0] "%d plik"\nmsgstr[1] "%d pliki"\nmsgstr[2] "%d plików"\n',
        ),
        (
            "a.xml",
            '<resources>\n  <plurals name="f">\n    <item quantity="one">%d file</item>\n    <item quantity="other">%d files'
            "</item>\n  </plurals>\n</resources>\n",
            '<item quantity="one">%d plik</item>\n    <item quantity="few">%d pliki</item>\n    <item quantity="many">%d plików'
            '</item>\n    <item quantity="other">',
        ),
        (
            "a.json",
            '{\n  "f_one": "{{count}} file",\n  "f_other": "{{count}} files",\n  "x_other": "Other"\n}\n',
            '"f_one": "{{count}} plik",\n  "f_few": "{{count}} pliki",\n  "f_many": "{{count}} plików",\n  "f_other": ',
        ),
        (
            "b.json",
            '{"f": "{n, plural, one {# file} other {# files}}"}',
            '{"f": "{n, plural, one {# plik} few {# pliki} many {# plików} other {',
        ),
    ],
)
def test_each_plural_form_is_translated_with_a_number_of_its_own(name: str, text: str, expected: str) -> None:
    written, _ = translate(name, text, replace(OPTIONS, target_language="pl"), write_polish)
    assert expected in written


def test_long_texts_are_translated_a_few_at_a_time() -> None:
    """The texts that are translated together have 100,000 characters at most, because memory holds all of their parts."""
    document = parse_document("a.txt", "\n\n".join(f"{number} {'ab' * 15_000}" for number in range(10)).encode())
    counts: list[int] = []
    translate_document(document, get_parser("a.txt"), make_stub(), OPTIONS, counts.append)
    assert [count for count in counts if count] == [3, 3, 3, 1]

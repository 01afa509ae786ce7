"""Every parser of texts from outside takes time in proportion to their length, in runs of any character and nested."""

from __future__ import annotations

import asyncio
import html
import inspect
import io
import json
import os
import pkgutil
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from fastapi import Request

import dragoman.data.tokenization
import dragoman.documents
import dragoman.text
from dragoman.data.tokenization.byte_pieces import BYTE_TOKENS, ByteScheme
from dragoman.data.tokenization.characters import CharacterScheme
from dragoman.data.tokenization.normalization import normalize
from dragoman.data.tokenization.subword_nmt import SubwordNmtScheme
from dragoman.data.tokenization.token_list import TokenListTokenizer
from dragoman.data.tokenization.words import WordScheme
from dragoman.documents.cue_text import read_cue_text, split_cue, split_for_cues
from dragoman.documents.formats import SUFFIXES, get_parser, parse_document
from dragoman.documents.plural_forms import insert_number
from dragoman.documents.translate_document import DocumentOptions, translate_document
from dragoman.documents.translation_memory import TranslationMemory
from dragoman.documents.xml_spans import set_attribute
from dragoman.formats.glossary_file import parse_table
from dragoman.formats.readers import SIDE_SUFFIX_FORMATS, SUFFIX_FORMATS, read_file, read_sides
from dragoman.inference.segmentation import split_line
from dragoman.inference.translation_result import Translation
from dragoman.inference.whole_texts import LineRequest, TextOptions, translate_texts
from dragoman.serving.http_errors import HttpError
from dragoman.serving.language_detection import LanguageDetector
from dragoman.serving.request_fields import RequestFields, check_fields, read_fields
from dragoman.text.accelerators import Accelerator, find_accelerator
from dragoman.text.glossary import Glossary, GlossaryEntry
from dragoman.text.guards import check_translation
from dragoman.text.inline_codes import parse_markup, read_inline
from dragoman.text.inline_rules import InlineRules
from dragoman.text.placeholders import find_placeholders
from dragoman.text.sentences import cut_long_spans, split_sentences
from dragoman.trees.ptb_tokenizer import tokenize_ptb
from long_texts import BRACKETS, CHARACTERS, PIECES, QUICK, check_time_is_linear, make_nested, make_run

Parse = Callable[[str], object]

GLOSSARY = Glossary(
    [GlossaryEntry("a", ("b",)), GlossaryEntry("a a a", ("c",)), GlossaryEntry("keep", do_not_translate=True)], "en", "de"
)
OPTIONS = TextOptions("none", "en", "de", glossary=GLOSSARY, mask_codes=True)
HTML_OPTIONS = TextOptions("html", "en", "de", glossary=GLOSSARY, mask_codes=True)


def copy_lines(request: LineRequest) -> Sequence[Translation]:
    """Return each line as its translation."""
    return [
        Translation(text=line, score=0.0, tokens=(), token_log_probs=(), status="ok", source_tokens=())
        for line in request.lines
    ]


def translate(suffix: str, wrap: Callable[[str], str | bytes], text: str) -> None:
    """Read the file that `wrap` makes of a text, copy its texts with all checks, and write it."""
    name, content = f"a{suffix}", wrap(text)
    document = parse_document(name, content.encode("utf-8", "replace") if isinstance(content, str) else content)
    translate_document(document, get_parser(name), copy_lines, DocumentOptions("en", "de", glossary=GLOSSARY))


def escape(text: str) -> str:
    """Return a text as XML, without the characters that XML cannot hold."""
    return html.escape("".join(character for character in text if character in "\t\n" or " " <= character < "\ufdd0"))


def make_zip(**members: str) -> bytes:
    """Return an archive; `__` in a name is a slash."""
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w") as archive:
        for name, data in members.items():
            archive.writestr(name.replace("__", "/"), data)
    return output.getvalue()


def make_package(kind: str, main: str, name: str, xml: str) -> bytes:
    """Return an Office Open XML package with one part."""
    part = f'PartName="/{name}" ContentType="application/vnd.openxmlformats-officedocument.{main}+xml"'
    types = "http://schemas.openxmlformats.org/package/2006/content-types"
    base = f"http://schemas.openxmlformats.org/{kind}/2006/main"
    return make_zip(
        **{"[Content_Types].xml": f'<Types xmlns="{types}"><Override {part}/></Types>', name: xml.replace("XMLNS", base)}
    )


def make_docx(body: str) -> bytes:
    body = f'<w:document xmlns:w="XMLNS"><w:body>{body}</w:body></w:document>'
    return make_package("wordprocessingml", "wordprocessingml.document.main", "word/document.xml", body)


def make_odt(body: str) -> bytes:
    namespaces = 'xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0" '
    namespaces += 'xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0"'
    return make_zip(
        mimetype="application/vnd.oasis.opendocument.text",
        **{
            "content.xml": f"<office:document-content {namespaces}>{body}</office:document-content>",
            "META-INF/manifest.xml": "<manifest/>",
        },
    )


def make_epub(body: str) -> bytes:
    item = '<item href="a.xhtml" media-type="application/xhtml+xml"/>'
    return make_zip(
        mimetype="application/epub+zip",
        **{
            "META-INF/container.xml": '<container><rootfiles><rootfile full-path="b.opf"/></rootfiles></container>',
            "b.opf": f"<package><manifest>{item}</manifest></package>",
            "a.xhtml": f'<html xmlns="http://www.w3.org/1999/xhtml"><body>{body}</body></html>',
        },
    )


CUE = "00:00:01.000 --> 00:00:02.000\n"
XLIFF = '<xliff version="1.2"><file><body><trans-unit id="a"><source>w{}</source></trans-unit></body></file></xliff>'
QT = '<TS version="2.1"><context><name>c</name><message><source>w{}</source><translation/></message></context></TS>'
TMX = '<tmx version="1.4"><header srclang="en"/><body><tu><tuv xml:lang="en"><seg>w{}</seg></tuv></tu></body></tmx>'
# A text inside a file of each format; each format is also read with the text as its whole content.
INSIDE: dict[str, Sequence[Callable[[str], str | bytes]]] = {
    ".po": [lambda text: f'msgid {json.dumps(text)}\nmsgstr ""\n'],
    ".xlf": [lambda text: XLIFF.format(escape(text)), lambda text: XLIFF.format(text)],
    ".tmx": [lambda text: TMX.format(escape(text))],
    ".html": [
        lambda text: f"<html><p>{text}</p>",
        lambda text: f"<html><p title='w{text.replace(chr(39), '')}'>a</p>",
        lambda text: f"<html><p {text}>a</p>",
    ],
    ".md": [
        lambda text: f"Word {text} word",
        lambda text: f"|a|b|\n|-|-|\n|{text}|x|\n",
        lambda text: f"---\ntitle: {json.dumps(text)}\n---\nText",
        lambda text: f'+++\ntitle = "{text}"\n+++\nText',
    ],
    ".srt": [lambda text: f"1\n{CUE}{text.replace(chr(10), ' ')}"],
    ".vtt": [lambda text: f"WEBVTT\n\n{CUE}{text.replace(chr(10), ' ')}"],
    ".json": [lambda text: json.dumps({"a": text, "b": {"message": text}}), lambda text: f'{{"a": {text}'],
    ".yaml": [lambda text: f"en:\n  a: {json.dumps(text)}\n", lambda text: f"en:\n  a: w{text}\n"],
    ".properties": [lambda text: "a=w" + text.replace("\n", "\\\n")],
    ".strings": [lambda text: f'"a" = {json.dumps(text, ensure_ascii=False)};'],
    ".xml": [lambda text: f'<resources><string name="a">w{escape(text)}</string></resources>'],
    ".resx": [lambda text: f'<root><data name="a"><value>w{escape(text)}</value></data></root>'],
    ".ts": [lambda text: QT.format(escape(text))],
    ".docx": [
        lambda text: make_docx(f"<w:p><w:r><w:t>w{escape(text)}</w:t></w:r></w:p>"),
        lambda text: make_docx(f"<w:p><w:r><w:t>w</w:t></w:r>{text}</w:p>"),
    ],
    ".pptx": [
        lambda text: make_package(
            "drawingml",
            "presentationml.slide",
            "ppt/slides/slide1.xml",
            f'<sld xmlns:a="XMLNS"><a:p><a:r><a:t>w{escape(text)}</a:t></a:r></a:p></sld>',
        )
    ],
    ".xlsx": [
        lambda text: make_package(
            "spreadsheetml",
            "spreadsheetml.sharedStrings",
            "xl/sharedStrings.xml",
            f'<sst xmlns="XMLNS"><si><t>w{escape(text)}</t></si></sst>',
        )
    ],
    ".odt": [lambda text: make_odt(f"<text:p>w{escape(text)}</text:p>")],
    ".epub": [lambda text: make_epub(f"<p>w{escape(text)}</p>"), lambda text: make_epub(f"<p>w</p>{text}")],
    ".txt": [],
}
# Endings of one format, which one of them stands for.
EQUAL_SUFFIXES = {
    ".pot": ".po", ".xliff": ".xlf", ".htm": ".html", ".xhtml": ".html", ".markdown": ".md", ".arb": ".json", ".yml": ".yaml",
    ".resw": ".resx",
}  # fmt: skip


def move_accelerator(text: str) -> None:
    """Find the accelerator of a text, and write one into it."""
    find_accelerator(text, InlineRules())
    Accelerator("&", "z", text).insert(text, is_spaced=True)


# Calls of public functions that take more than texts.
CALLS: dict[str, Parse] = {
    "text.glossary.Glossary": lambda text: GLOSSARY.check(text, text),
    "text.accelerators.find_accelerator": move_accelerator,
    "text.sentences.split_sentences": lambda text: [split_sentences(text, language) for language in ("en", "el", "de", "")],
    "text.sentences.cut_long_spans": lambda text: cut_long_spans(text, [(0, len(text))], find_placeholders(text), 200),
    "text.guards.check_translation": lambda text: check_translation(text, f"{text} b", "de"),
    "text.inline_codes.parse_markup": lambda text: [parse_markup(text, is_html=True).clean, parse_markup(text, is_html=False)],
    "documents.cue_text.split_for_cues": lambda text: split_for_cues(text, [10, 20, 30], is_spaced=True),
    "text.inline_codes.read_inline": lambda text: [read_inline(text, markup).clean for markup in ("none", "html", "xml")],
    "documents.cue_text.split_cue": lambda text: list(split_cue(text, 0, len(text))),
    "documents.cue_text.read_cue_text": lambda text: read_cue_text(text, is_escaped=True),
    "documents.plural_forms.insert_number": lambda text: insert_number(f"{text} %d", "few", "pl"),
    "documents.translation_memory.TranslationMemory": lambda text: TranslationMemory({f"{text} b": "b"}, 0.5).find(text),
    "documents.xml_spans.set_attribute": lambda text: set_attribute(f"<a {text}>", "b", "c"),
    "data.tokenization.normalization.normalize": lambda text: normalize(text, "nfkc"),
    "data.tokenization.token_list.TokenListTokenizer": TokenListTokenizer(ByteScheme(), BYTE_TOKENS).encode,
    "data.tokenization.byte_pieces.ByteScheme": ByteScheme().split,
    "data.tokenization.characters.CharacterScheme": CharacterScheme().split,
    "data.tokenization.words.WordScheme": WordScheme().split,
    "data.tokenization.subword_nmt.SubwordNmtScheme": SubwordNmtScheme([("a", "a"), ("aa", "aa"), (".", ".")]).split,
    "formats.glossary_file.parse_table": lambda text: [list(parse_table(text.split("\n"), mark, "a")) for mark in ",\t"],
    "inference.segmentation.split_line": lambda text: split_line(text, lambda part: len(part) // 2, 100),
    "inference.whole_texts.translate_texts": lambda text: translate_texts([text], OPTIONS, copy_lines),
    "inference.whole_texts.translate_texts of HTML": lambda text: translate_texts([text], HTML_OPTIONS, copy_lines),
    "trees.ptb_tokenizer.tokenize_ptb": lambda text: tokenize_ptb(text, style="ontonotes"),
}
# Public functions that read no text from outside, or that another call contains.
NO_PARSERS = {
    "text.inline_tokens.tokenize_markup": "is called by read_inline",
    "text.inline_tokens.make_code_token": "is called by read_inline",
    "text.placeholders.select_styles": "is called by find_codes",
    "text.placeholders.find_code_at": "is called by find_codes",
    "documents.office_languages.state_run": "is called by the writer of DOCX",
    "text.projection.project": "is called by translate_texts, with sentences of limited length",
    "text.term_annotation.annotate_terms": "is called by translate_texts, with terms of a glossary",
    "documents.document.apply_edits": "is called for each format",
    "documents.document.apply_ordered_edits": "is called for each format",
    "documents.document.check_written": "is called for each format",
    "documents.flowing_text.add_flowing_text": "is called by the readers of ODT and EPUB",
    "documents.formats.parse_document": "is called for each format",
    "documents.icu_message.pair_sentences": "reads messages",
    "documents.translate_document.check_unit": "is called by translate_document",
    "documents.xml_units.write_content": "is called by the writers of XML",
    "documents.xml_units.write_element_content": "is called by the writers of XML",
    "documents.yaml_file.write_scalar": "is called by the writer of YAML",
    "data.tokenization.sentencepiece.encode_utf8": "encodes",
}
_TEXT_TYPES = ("str", "bytes")
_TEXT_NAMES = frozenset(
    ("text", "content", "raw", "source", "translation", "expression", "line", "markup", "start_tag", "first", "second")
)
"""Names of the parameters that hold a text from outside; others hold a language, a path or a name."""


def list_modules(package: ModuleType) -> Iterator[ModuleType]:
    for item in pkgutil.iter_modules(package.__path__):
        yield import_module(f"{package.__name__}.{item.name}")


def find_parsers() -> tuple[dict[str, Parse], list[str]]:
    """Return the calls of the public functions that read a text, and the functions that have none."""
    parsers, unknown = dict(CALLS), []
    for package in (dragoman.text, dragoman.documents, dragoman.data.tokenization):
        for module in list_modules(package):
            for name, function in vars(module).items():
                if name.startswith("_") or not inspect.isfunction(function) or function.__module__ != module.__name__:
                    continue
                label = f"{module.__name__}.{name}".removeprefix("dragoman.")
                parameters = [item for item in inspect.signature(function).parameters.values() if item.default is item.empty]
                types = [item.annotation for item in parameters]
                has_text = any(item.name in _TEXT_NAMES and item.annotation in _TEXT_TYPES for item in parameters)
                if label in parsers or label in NO_PARSERS or not has_text:
                    continue
                if set(types) <= set(_TEXT_TYPES):
                    parsers[label] = make_call(function, types)
                else:
                    unknown.append(label)
    return parsers, unknown


def make_call(function: Callable[..., object], types: Sequence[str]) -> Parse:
    """Return the call of a function with a text for each of its parameters."""
    return lambda text: function(*(text if item == "str" else text.encode("utf-8", "replace") for item in types))


def find_file_parsers() -> dict[str, Parse]:
    """Return the reading and writing of each format of files."""
    parsers: dict[str, Parse] = {}
    for suffix in SUFFIXES:
        wrappers: list[Callable[[str], str | bytes]] = [] if suffix in EQUAL_SUFFIXES else [str, *INSIDE[suffix]]
        for number, wrap in enumerate(wrappers):
            parsers[f"{suffix} {number}"] = partial(translate, suffix, wrap)
    return parsers


def find_request_parsers() -> dict[str, Parse]:
    """Return the reading of a body as each content type, and the check of each kind of fields with one long field."""
    parsers: dict[str, Parse] = {"language detection": LanguageDetector(["de", "en"]).detect}
    for content_type in ("application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=a"):
        parsers[f"body {content_type}"] = partial(read_body, content_type)
    parsers["body of JSON with a text"] = lambda text: read_body("application/json", json.dumps({"q": text}))
    for module in list_modules(import_module("dragoman.serving")):
        for name, model in vars(module).items():
            if inspect.isclass(model) and issubclass(model, RequestFields) and model.__module__ == module.__name__:
                for field in model.model_fields:
                    parsers[f"{name}.{field}"] = partial(check_field, model, field)
    return parsers


def read_body(content_type: str, text: str) -> None:
    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": text.encode("utf-8", "replace")}

    headers = [(b"content-type", content_type.encode())]
    scope = {"type": "http", "method": "POST", "query_string": b"", "headers": headers}
    with suppress(HttpError):
        asyncio.run(read_fields(Request(scope, receive)))


def check_field(model: type[RequestFields], field: str, text: str) -> None:
    for value in (text, text.split("a"), list(text)):
        with suppress(HttpError):
            check_fields(model, {field: value})


def find_corpus_parsers(folder: Path) -> dict[str, Parse]:
    """Return the reading of each format of a corpus."""

    def read(suffix: str, text: str) -> None:
        path = folder / f"a{suffix}"
        path.write_bytes(text.encode("utf-8", "replace"))
        file_format = {**SUFFIX_FORMATS, **SIDE_SUFFIX_FORMATS, "": "lines"}[suffix]
        one_side = suffix not in SUFFIX_FORMATS
        pairs = read_sides(path, path, file_format) if one_side else read_file(path, file_format, **languages)
        for _ in pairs:
            pass

    languages = {"source_language": "en", "target_language": "de"}
    return {f"corpus {suffix}": partial(read, suffix) for suffix in [*SUFFIX_FORMATS, ".sgm", ""]}


FOUND_PARSERS, UNKNOWN = find_parsers()
PARSERS = FOUND_PARSERS | find_file_parsers() | find_request_parsers()
ALL_TEXTS = pytest.mark.skipif(
    not os.environ.get("DRAGOMAN_TEST_ALL_TEXTS"), reason="takes hours; set DRAGOMAN_TEST_ALL_TEXTS=1"
)


def check_runs(name: str, parse: Parse, pieces: Sequence[str], length: int) -> None:
    for piece in pieces:
        check_time_is_linear(f"{name}, run of {piece!r}", parse, make_run(piece), length)


def check_nested(name: str, parse: Parse, length: int) -> None:
    for start, end in BRACKETS:
        check_time_is_linear(f"{name}, {start!r} in {start!r}", parse, make_nested(start, end), length)
        check_time_is_linear(f"{name}, open {start!r}", parse, make_run(start), length)


def test_every_parser_has_a_call() -> None:
    assert UNKNOWN == [], "add a call of each to CALLS, or a reason to NO_PARSERS"
    assert set(SUFFIXES) == INSIDE.keys() | EQUAL_SUFFIXES.keys()


@pytest.mark.parametrize("name", [name for name in FOUND_PARSERS if "translate_texts" not in name])
def test_time_is_linear_in_common_runs(name: str) -> None:
    check_runs(name, PARSERS[name], QUICK, 512)


@ALL_TEXTS
@pytest.mark.slow
@pytest.mark.parametrize("name", PARSERS)
def test_time_is_linear_in_all_runs(name: str) -> None:
    check_runs(name, PARSERS[name], CHARACTERS + PIECES, 4096 if name in FOUND_PARSERS else 1024)


@ALL_TEXTS
@pytest.mark.slow
@pytest.mark.parametrize("name", PARSERS)
def test_time_is_linear_in_nested_texts(name: str) -> None:
    check_nested(name, PARSERS[name], 4096 if name in FOUND_PARSERS else 1024)


@ALL_TEXTS
@pytest.mark.slow
def test_time_of_corpus_readers_is_linear(tmp_path: Path) -> None:
    for name, parse in find_corpus_parsers(tmp_path).items():
        check_runs(name, parse, CHARACTERS + PIECES, 4096)
        check_nested(name, parse, 4096)

"""Functions that read a text from outside, each as a function of one text.

Public functions of texts alone are found by their parameters. `CALLS` has those that take more, and that neither a file nor a
translation calls. The work on files is shared out: `copy_file` reads and writes each format, and `translate_file` also does
what formats have in common, for one format of each kind.
"""

from __future__ import annotations

import asyncio
import html
import inspect
import io
import json
import pkgutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from random import Random
from types import ModuleType

import sentencepiece
from fastapi import Request
from starlette.exceptions import HTTPException

import dragoman.cleaning
import dragoman.data.tokenization
import dragoman.documents
import dragoman.parsing.trees
import dragoman.serving
import dragoman.text
from dragoman.cleaning.decontamination import EvaluationTexts
from dragoman.cleaning.filters import is_out_of_ratio, is_too_long, make_mojibake_filter
from dragoman.cleaning.language_id import make_language_filter, make_script_filter
from dragoman.data.tokenization.added_tokens import AddedToken, AddedTokenSplitter
from dragoman.data.tokenization.byte_level_bpe import ByteLevelBpeScheme
from dragoman.data.tokenization.byte_pieces import BYTE_TOKENS, ByteScheme
from dragoman.data.tokenization.characters import CharacterScheme
from dragoman.data.tokenization.grapheme_normalization import GraphemeNormalizer
from dragoman.data.tokenization.language_tokens import LanguageTokens
from dragoman.data.tokenization.normalization import normalize
from dragoman.data.tokenization.piece_vocabulary import PieceList, PieceVocabulary
from dragoman.data.tokenization.sentencepiece import SentencePieceTokenizer
from dragoman.data.tokenization.sentencepiece_proto import read_charsmap
from dragoman.data.tokenization.subword_nmt import SubwordNmtScheme
from dragoman.data.tokenization.subword_sampling import build_sampler
from dragoman.data.tokenization.token_list import TokenListTokenizer
from dragoman.data.tokenization.words import WordScheme
from dragoman.documents.cue_text import split_for_cues
from dragoman.documents.document import UnitTranslation, add_plural_forms, check_written, write_document
from dragoman.documents.earlier_output import keep_values, match_texts
from dragoman.documents.formats import get_parser, parse_document
from dragoman.documents.plural_forms import insert_number
from dragoman.documents.translate_document import DocumentOptions, translate_document
from dragoman.documents.translation_memory import TranslationMemory
from dragoman.documents.xml_spans import set_attribute
from dragoman.formats.glossary_file import parse_table
from dragoman.formats.readers import SIDE_SUFFIX_FORMATS, SUFFIX_FORMATS, read_file, read_sides
from dragoman.inference.segmentation import split_line
from dragoman.inference.text_options import TextOptions
from dragoman.inference.translation_result import Translation
from dragoman.inference.whole_texts import LineRequest, translate_texts
from dragoman.parsing.trees.ptb import read_tree
from dragoman.parsing.trees.ptb_tokenizer import tokenize_ptb
from dragoman.serving.http_errors import HttpError
from dragoman.serving.language_detection import LanguageDetector
from dragoman.serving.request_fields import RequestFields, check_fields, read_fields
from dragoman.text.accelerators import Accelerator, find_accelerator
from dragoman.text.glossary import Glossary, GlossaryEntry
from dragoman.text.inline_codes import Markup, read_inline
from dragoman.text.inline_rules import InlineRules
from dragoman.text.placeholders import find_placeholders
from dragoman.text.sentences import cut_long_spans, split_sentences
from dragoman.text.unicode_forms import normalize_form
from office_files import make_docx, make_epub, make_odt, make_pptx, make_xlsx

Parse = Callable[[str], object]
Wrap = Callable[[str], str | bytes]
"""Function that makes the content of a file of a text."""


@cache
def make_glossary() -> Glossary:
    """Return a glossary, whose dictionaries take a second to read."""
    terms = [GlossaryEntry("a", ("b",)), GlossaryEntry("a a a", ("c",)), GlossaryEntry("keep", do_not_translate=True)]
    return Glossary(terms, "en", "de")


def copy_text(text: str, markup: Markup, glossary: Glossary | None = None) -> None:
    """Copy a text with all checks."""
    translate_texts([text], TextOptions(markup, "en", "de", glossary=glossary, mask_codes=True), copy_lines)


def copy_lines(request: LineRequest) -> Sequence[Translation]:
    """Return each line as its translation."""
    return [
        Translation(text=line, score=0.0, tokens=(), token_log_probs=(), status="ok", source_tokens=())
        for line in request.lines
    ]


def read(suffix: str, wrap: Wrap, text: str) -> tuple[str, bytes]:
    """Return the name and the bytes of the file that `wrap` makes of a text."""
    content = wrap(text)
    return f"a{suffix}", content.encode("utf-8", "replace") if isinstance(content, str) else content


def copy_file(suffix: str, wrap: Wrap, text: str) -> None:
    """Read a file, write its texts as their own translations, and read what was written."""
    name, content = read(suffix, wrap, text)
    parse = get_parser(name)
    document = add_plural_forms(parse_document(name, content), parse, "de")
    texts = {unit.id: UnitTranslation(unit.source) for unit in document.units if unit.state != "locked"}
    check_written(document, texts, write_document(document, texts, "de"), parse)


def translate_file(suffix: str, wrap: Wrap, text: str) -> None:
    """Read a file, copy its texts with all checks, and write it."""
    name, content = read(suffix, wrap, text)
    translate_document(parse_document(name, content), get_parser(name), copy_lines, DocumentOptions("en", "de"))


def escape(text: str) -> str:
    """Return a text as XML, without the characters that XML cannot hold."""
    return html.escape("".join(character for character in text if character in "\t\n" or " " <= character < "\ufdd0"))


EVENTS = "[Events]\nFormat: Layer, Start, End, Style, Text\n"
CUE = "00:00:01.000 --> 00:00:02.000\n"
XLIFF = '<xliff version="1.2"><file><body><trans-unit id="a"><source>w{}</source></trans-unit></body></file></xliff>'
SDLXLIFF = (
    '<xliff version="1.2" xmlns:sdl="http://sdl.com/FileTypes/SdlXliff/1.0"><file><body><trans-unit id="a"><source>w</source>'
    '<seg-source><mrk mtype="seg" mid="1">w{}</mrk></seg-source><sdl:seg-defs><sdl:seg id="1"/></sdl:seg-defs></trans-unit>'
    "</body></file></xliff>"
)
QT = '<TS version="2.1"><context><name>c</name><message><source>w{}</source><translation/></message></context></TS>'
TMX = (
    '<tmx version="1.4"><header srclang="en"/><body><tu><tuv xml:lang="en"><seg>w{}</seg></tuv><tuv xml:lang="de"/></tu>'
    "</body></tmx>"
)
# A text inside a file of each format; each format is also read with the text as its whole content.
INSIDE: dict[str, Sequence[Wrap]] = {
    ".po": [lambda text: f'msgid {json.dumps(text, ensure_ascii=False)}\nmsgstr ""\n'],
    ".xlf": [lambda text: XLIFF.format(escape(text)), lambda text: XLIFF.format(text)],
    ".sdlxliff": [lambda text: SDLXLIFF.format(escape(text)), lambda text: SDLXLIFF.format(text)],
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
    ".ass": [lambda text: f"{EVENTS}Dialogue: 0,0:00:01.00,0:00:02.00,,w{text.replace(chr(10), ' ')}\n"],
    ".json": [lambda text: json.dumps({"a": text, "b": {"message": text}}), lambda text: f'{{"a": {text}'],
    ".json5": [lambda text: f"{{a: 'w{text.replace(chr(10), ' ')}'}}", lambda text: f"{{a: 'w', {text}"],
    ".xcstrings": [
        lambda text: json.dumps(
            {
                "sourceLanguage": "en",
                "strings": {f"w{text}": {"localizations": {"de": {"stringUnit": {"state": "new", "value": text}}}}},
            }
        )
    ],
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
    ".pptx": [lambda text: make_pptx(f"<a:p><a:r><a:t>w{escape(text)}</a:t></a:r></a:p>")],
    ".xlsx": [lambda text: make_xlsx(f"<si><t>w{escape(text)}</t></si>")],
    ".odt": [lambda text: make_odt(f"<text:p>w{escape(text)}</text:p>")],
    ".epub": [lambda text: make_epub(f"<p>w{escape(text)}</p>"), lambda text: make_epub(f"<p>w</p>{text}")],
    ".csv": [lambda text: f'id,en\na,"w{text.replace(chr(34), chr(34) * 2)}"\n', lambda text: f"id,en\na,{text}\n"],
    ".ftl": [
        lambda text: f"a = w{text}\n",
        lambda text: f"b = w\na = w {{ $n ->\n    [one] w{text}\n   *[other] w\n}} w\n",
    ],
    ".stringsdict": [
        lambda text: (
            "<plist><dict><key>a</key><dict><key>NSStringLocalizedFormatKey</key><string>%#@x@</string><key>x</key><dict>"
            "<key>NSStringFormatSpecTypeKey</key><string>NSStringPluralRuleType</string><key>other</key>"
            f"<string>w{escape(text)}</string></dict></dict></dict></plist>"
        )
    ],
    ".txt": [],
    ".rst": [lambda text: f"Word {text} word", lambda text: f"Title\n=====\n\n.. note:: w{text}\n\n- w{text}\n"],
    ".adoc": [lambda text: f"Word {text} word", lambda text: f"== Title\n\n|===\n|w{text}\n|===\n\n* w{text}\n"],
    ".docbook": [
        lambda text: f"<article><para>w{escape(text)}</para></article>",
        lambda text: f"<article><para>w</para>{text}</article>",
    ],
}
# Endings of one format, which one of them stands for.
EQUAL_SUFFIXES = {
    ".pot": ".po", ".xliff": ".xlf", ".htm": ".html", ".xhtml": ".html", ".markdown": ".md", ".arb": ".json", ".yml": ".yaml",
    ".resw": ".resx", ".mdx": ".md", ".dotx": ".docx", ".potx": ".pptx", ".ppsx": ".pptx", ".xltx": ".xlsx", ".ott": ".odt",
    ".odp": ".odt", ".otp": ".odt", ".ods": ".odt", ".ots": ".odt", ".tsv": ".csv", ".docm": ".docx", ".dotm": ".docx",
    ".pptm": ".pptx", ".potm": ".pptx", ".ppsm": ".pptx", ".xlsm": ".xlsx", ".xltm": ".xlsx", ".ssa": ".ass",
    ".asciidoc": ".adoc", ".dbk": ".docbook",
}  # fmt: skip


def move_accelerator(text: str) -> None:
    """Find the accelerator of a text, and write one into it."""
    find_accelerator(text, InlineRules())
    Accelerator("&", "z", text).insert(text, is_spaced=True)


@cache
def train_pieces(model_type: str) -> bytes:
    """Return a SentencePiece model of letters and marks."""
    output = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["aa ab ba .. a. <a> {a} 7 7a"] * 8), model_writer=output, model_type=model_type, vocab_size=24,
        hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    return output.getvalue()


def encode_pieces(text: str) -> None:
    """Encode a text in all ways of both types of SentencePiece models, and of one with added tokens."""
    for model_type in ("unigram", "bpe"):
        tokenizer = SentencePieceTokenizer(train_pieces(model_type))
        tokenizer.decode([*tokenizer.encode(text), *tokenizer.encode_continuation(text)])
        tokenizer.sample_encode(text, alpha=0.1, seed=1)
    for rules in ("transformers", "marian", "tokenizers", "tokenizers-strip"):
        added = tuple(AddedToken(token, 4, lstrip=True, rstrip=True, single_word=token == ".") for token in ("a", ".", " "))
        pieces = PieceList(("<pad>", "<unk>", "<s>", "</s>", "a"), added, rules)
        vocabulary = PieceVocabulary(train_pieces("unigram"), pieces)
        vocabulary.decode([*vocabulary.encode(text), *vocabulary.encode_continuation(text)])


def split_added(text: str) -> None:
    """Split a text at added tokens with each combination of their flags."""
    for rules in ("transformers", "tokenizers"):
        for number in range(8):
            flags = {name: bool(number >> bit & 1) for bit, name in enumerate(("lstrip", "rstrip", "single_word"))}
            tokens = [AddedToken(token, index, **flags) for index, token in enumerate(("a", ".", "<a>", "\u4e2d"))]
            list(AddedTokenSplitter(tokens, rules, str.lower).split(text))


# Calls of public functions and classes that take more than texts. A blank and words behind a name tell two calls apart.
CALLS: dict[str, Parse] = {
    "text.glossary.Glossary": lambda text: make_glossary().check(text, text),
    "text.sentences.split_sentences": lambda text: [split_sentences(text, language) for language in ("en", "el", "de", "")],
    "text.sentences.cut_long_spans": lambda text: cut_long_spans(text, [(0, len(text))], find_placeholders(text), 200),
    **{f"text.inline_codes.read_inline {markup}": partial(read_inline, markup=markup) for markup in ("none", "html", "xml")},
    "documents.cue_text.split_for_cues": lambda text: split_for_cues(text, [10, 20, 30], is_spaced=True),
    "documents.plural_forms.insert_number": lambda text: insert_number(f"{text} %d", "few", "pl"),
    "documents.translation_memory.TranslationMemory": lambda text: TranslationMemory({f"{text} b": "b"}, 0.5).find(text),
    "documents.xml_spans.set_attribute": lambda text: set_attribute(f"<a {text}>", "b", "c"),
    "data.tokenization.added_tokens.AddedTokenSplitter": split_added,
    "text.unicode_forms.normalize_form": partial(normalize_form, "NFKC"),
    "data.tokenization.grapheme_normalization.GraphemeNormalizer": lambda text: GraphemeNormalizer(
        read_charsmap(train_pieces("unigram")), str
    ).normalize(text),
    "data.tokenization.normalization.normalize": lambda text: normalize(text, "nfkc"),
    "data.tokenization.language_tokens.LanguageTokens": lambda text: LanguageTokens(">>{}<<", "source").split_source(
        SentencePieceTokenizer(train_pieces("unigram")), text
    ),
    "data.tokenization.sentencepiece.SentencePieceTokenizer": encode_pieces,
    "data.tokenization.subword_sampling.BpeDropout": lambda text: build_sampler(train_pieces("bpe")).split(
        text, 0.1, Random(1)
    ),
    "data.tokenization.subword_sampling.UnigramSampling": lambda text: build_sampler(train_pieces("unigram")).split(
        text, 0.1, Random(1)
    ),
    "data.tokenization.token_list.TokenListTokenizer": TokenListTokenizer(ByteScheme(), BYTE_TOKENS).encode,
    "data.tokenization.byte_pieces.ByteScheme": ByteScheme().split,
    "data.tokenization.characters.CharacterScheme": CharacterScheme().split,
    "data.tokenization.words.WordScheme": WordScheme().split,
    "data.tokenization.byte_level_bpe.ByteLevelBpeScheme": ByteLevelBpeScheme([("a", "a"), ("aa", "aa"), (".", ".")]).split,
    "data.tokenization.subword_nmt.SubwordNmtScheme": SubwordNmtScheme([("a", "a"), ("aa", "aa"), (".", ".")]).split,
    "cleaning.decontamination.EvaluationTexts": lambda text: EvaluationTexts.from_pairs([]).contains_side(text, text),
    "cleaning.filters.is_too_long": lambda text: is_too_long(text, text, 10, None),
    "cleaning.filters.is_out_of_ratio": lambda text: is_out_of_ratio(text, f"{text} b", 2.0),
    "cleaning.filters.make_mojibake_filter": lambda text: make_mojibake_filter()(f"{text}\u00e9", text),
    "cleaning.language_id.make_script_filter": lambda text: make_script_filter(0.5, source_language="de", target_language="zh")(
        f"{text}\u00e9", text
    ),
    "cleaning.language_id.make_language_filter": lambda text: make_language_filter(
        0.5, source_language="en", target_language="de"
    )(text, text),
    "formats.glossary_file.parse_table": lambda text: [list(parse_table(text.split("\n"), mark, "a")) for mark in ",\t"],
    "inference.segmentation.split_line": lambda text: split_line(text, lambda part: len(part) // 2, 8),
    "parsing.trees.ptb.read_tree": read_tree,
    "parsing.trees.ptb.read_tree of brackets": lambda text: read_tree(f"(a {text} a)"),
    "parsing.trees.ptb_tokenizer.tokenize_ptb": lambda text: tokenize_ptb(text, style="ontonotes"),
}
NO_PARSERS = (
    "text.edit_distance.compute_distance", "text.references.count_sign", "documents.formats.parse_document",
    "documents.xml_spans.find_attribute",
)  # fmt: skip
"""Functions of short texts and of names, and one that `set_attribute` calls."""
PACKAGES = (dragoman.text, dragoman.documents, dragoman.data.tokenization, dragoman.cleaning, dragoman.parsing.trees)
_TEXT_NAMES = frozenset(
    ("text", "content", "raw", "source", "translation", "expression", "line", "markup", "start_tag", "first", "second")
)
"""Names of the parameters that hold a text from outside; others hold a language, a path or a name."""


def list_modules(package: ModuleType) -> Iterator[ModuleType]:
    for item in pkgutil.iter_modules(package.__path__):
        yield import_module(f"{package.__name__}.{item.name}")


@cache
def find_parsers() -> dict[str, Parse]:
    """Return the calls of `CALLS`, and of the public functions that need nothing but texts."""
    parsers = dict(CALLS)
    for module in (module for package in PACKAGES for module in list_modules(package)):
        for name, item in vars(module).items():
            if name.startswith("_") or not inspect.isfunction(item) or item.__module__ != module.__name__:
                continue
            label = f"{module.__name__}.{name}".removeprefix("dragoman.")
            needed = [value for value in inspect.signature(item).parameters.values() if value.default is value.empty]
            types = [value.annotation for value in needed]
            has_text = any(value.name in _TEXT_NAMES for value in needed)
            if has_text and set(types) <= {"str", "bytes"} and label not in NO_PARSERS:
                parsers[label] = make_call(item, types)
    return parsers


def make_call(function: Callable[..., object], types: Sequence[str]) -> Parse:
    """Return the call of a function with a text for each of its parameters, each of which ends otherwise."""

    def call(text: str) -> object:
        texts = [f"{text} 1" if number else text for number in range(len(types))]
        return function(
            *(item if kind == "str" else item.encode("utf-8", "replace") for item, kind in zip(texts, types, strict=True))
        )

    return call


def list_wrappers(suffix: str) -> list[Wrap]:
    """Return the functions that make a file of a text: first the one whose file is the text."""
    return [str, *INSIDE[suffix]]


def find_file_parsers() -> dict[str, Parse]:
    """Return the reading and writing of each format of files, with a text as the whole file and in each of its places."""
    return {
        f"{suffix} {number}": partial(copy_file, suffix, wrap)
        for suffix in INSIDE
        for number, wrap in enumerate(list_wrappers(suffix))
    }


def find_translations() -> dict[str, Parse]:
    """Return the translation of texts, one with a glossary, and of one format of each kind."""
    places = {".txt": 0, ".html": 1, ".xlf": 1, ".srt": 1, ".json": 1, ".po": 1}
    return {
        "text and terms": lambda text: copy_text(text, "none", make_glossary()),
        "text of HTML": lambda text: copy_text(text, "html"),
        "second run": match_list,
        **{
            f"file {suffix} {number}": partial(translate_file, suffix, list_wrappers(suffix)[number])
            for suffix, number in places.items()
        },
    }


def match_list(text: str) -> None:
    """Match the items of a list of JSON with those of its earlier output."""
    document = parse_document("a.json", json.dumps([f"{text} {number}" for number in range(2)]).encode())
    match_texts(document, keep_values(document, get_parser("a.json"), document))


def find_request_parsers() -> dict[str, Parse]:
    """Return the reading of a body as each content type, and the check of a long field of each type of field."""
    parsers: dict[str, Parse] = {"language detection": LanguageDetector(["de", "en"]).detect}
    for content_type in ("application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=a"):
        parsers[f"body {content_type}"] = partial(read_body, content_type)
    parsers["body of JSON with a text"] = lambda text: read_body("application/json", json.dumps({"q": text}))
    fields: dict[str, tuple[type[RequestFields], str]] = {}
    for module in list_modules(dragoman.serving):
        for model in vars(module).values():
            if inspect.isclass(model) and issubclass(model, RequestFields) and model.__module__ == module.__name__:
                for name, field in model.model_fields.items():
                    fields.setdefault(repr((field.annotation, field.metadata)), (model, name))
    return parsers | {f"{model.__name__}.{name}": partial(check_field, model, name) for model, name in fields.values()}


def read_body(content_type: str, text: str) -> None:
    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": text.encode("utf-8", "replace")}

    headers = [(b"content-type", content_type.encode())]
    scope = {"type": "http", "method": "POST", "query_string": b"", "headers": headers}
    with suppress(HttpError, HTTPException):
        asyncio.run(read_fields(Request(scope, receive)))


def check_field(model: type[RequestFields], field: str, text: str) -> None:
    for value in (text, text.split("a"), list(text)):
        with suppress(HttpError):
            check_fields(model, {field: value})


def find_corpus_parsers() -> dict[str, Parse]:
    """Return the reading of each format of a corpus."""

    def read_pairs(suffix: str, text: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, f"a{suffix}")
            path.write_bytes(text.encode("utf-8", "replace"))
            file_format = {**SUFFIX_FORMATS, **SIDE_SUFFIX_FORMATS, "": "lines"}[suffix]
            one_side = suffix not in SUFFIX_FORMATS
            for _ in read_sides(path, path, file_format) if one_side else read_file(path, file_format, **languages):
                pass

    languages = {"source_language": "en", "target_language": "de"}
    return {f"corpus {suffix}": partial(read_pairs, suffix) for suffix in [*SUFFIX_FORMATS, ".sgm", ""]}

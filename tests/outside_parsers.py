"""Every public function and class that reads a text from outside, each as a function of one text.

Functions are found by their parameters. What takes more than texts has a call in `CALLS`, or a reason in `NO_PARSERS`. A new
one has neither, and a test names it. The work on files is shared out: `copy_file` reads and writes each format, and
`translate_file` also does what formats have in common, for one format of each kind.
"""

from __future__ import annotations

import asyncio
import html
import inspect
import io
import json
import pkgutil
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from dragoman.documents.cue_text import read_cue_text, split_cue, split_for_cues
from dragoman.documents.document import UnitTranslation, add_plural_forms, check_written, write_document
from dragoman.documents.formats import get_parser, parse_document
from dragoman.documents.plural_forms import insert_number
from dragoman.documents.subtitles import SubtitleLimits
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
from dragoman.text.guards import check_translation
from dragoman.text.inline_codes import Markup, parse_markup, read_inline
from dragoman.text.inline_rules import InlineRules
from dragoman.text.inline_tokens import is_plain
from dragoman.text.placeholders import find_placeholders
from dragoman.text.sentences import cut_long_spans, split_sentences
from dragoman.text.unicode_forms import normalize_form

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


def make_zip(**members: str) -> bytes:
    """Return an archive; `__` in a name is a slash."""
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w") as archive:
        for name, data in members.items():
            archive.writestr(name.replace("__", "/"), data)
    return output.getvalue()


def make_package(kind: str, types: dict[str, str], name: str, xml: str) -> bytes:
    """Return an Office Open XML package. types: content type of each part; name, xml: the part with the text"""
    overrides = "".join(
        f'<Override PartName="/{part}" ContentType="application/vnd.openxmlformats-officedocument.{part_type}+xml"/>'
        for part, part_type in types.items()
    )
    namespace = "http://schemas.openxmlformats.org/package/2006/content-types"
    base = f"http://schemas.openxmlformats.org/{kind}/2006/main"
    members = {"[Content_Types].xml": f'<Types xmlns="{namespace}">{overrides}</Types>', **dict.fromkeys(types, "<a/>")}
    return make_zip(**members | {name: xml.replace("XMLNS", base)})


def make_docx(body: str) -> bytes:
    body = f'<w:document xmlns:w="XMLNS"><w:body>{body}</w:body></w:document>'
    name = "word/document.xml"
    return make_package("wordprocessingml", {name: "wordprocessingml.document.main"}, name, body)


def make_pptx(body: str) -> bytes:
    name = "ppt/slides/slide1.xml"
    types = {"ppt/presentation.xml": "presentationml.presentation.main", name: "presentationml.slide"}
    return make_package("drawingml", types, name, f'<sld xmlns:a="XMLNS">{body}</sld>')


def make_xlsx(body: str) -> bytes:
    name = "xl/sharedStrings.xml"
    types = {"xl/workbook.xml": "spreadsheetml.sheet.main", name: "spreadsheetml.sharedStrings"}
    return make_package("spreadsheetml", types, name, f'<sst xmlns="XMLNS">{body}</sst>')


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


EVENTS = "[Events]\nFormat: Layer, Start, End, Style, Text\n"
CUE = "00:00:01.000 --> 00:00:02.000\n"
XLIFF = '<xliff version="1.2"><file><body><trans-unit id="a"><source>w{}</source></trans-unit></body></file></xliff>'
SDLXLIFF = (
    '<xliff version="1.2" xmlns:sdl="http://sdl.com/FileTypes/SdlXliff/1.0"><file><body><trans-unit id="a"><source>w</source>'
    '<seg-source><mrk mtype="seg" mid="1">w{}</mrk></seg-source><sdl:seg-defs><sdl:seg id="1"/></sdl:seg-defs></trans-unit>'
    "</body></file></xliff>"
)
QT = '<TS version="2.1"><context><name>c</name><message><source>w{}</source><translation/></message></context></TS>'
TMX = '<tmx version="1.4"><header srclang="en"/><body><tu><tuv xml:lang="en"><seg>w{}</seg></tuv></tu></body></tmx>'
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
    "text.accelerators.find_accelerator": lambda text: find_accelerator(text, InlineRules()),
    "text.accelerators.Accelerator": lambda text: Accelerator("&", "z", text).insert(text, is_spaced=True),
    "text.sentences.split_sentences": lambda text: [split_sentences(text, language) for language in ("en", "el", "de", "")],
    "text.sentences.cut_long_spans": lambda text: cut_long_spans(text, [(0, len(text))], find_placeholders(text), 200),
    "text.guards.check_translation": lambda text: check_translation(text, f"{text} b", "de"),
    "text.inline_tokens.is_plain": lambda text: is_plain(text, InlineRules(), keep_line_breaks=True),
    "text.inline_codes.parse_markup": lambda text: parse_markup(text, is_html=True).clean,
    "text.inline_codes.parse_markup of XML": lambda text: parse_markup(text, is_html=False).clean,
    **{f"text.inline_codes.read_inline {markup}": partial(read_inline, markup=markup) for markup in ("none", "html", "xml")},
    "documents.cue_text.split_for_cues": lambda text: split_for_cues(text, [10, 20, 30], is_spaced=True),
    "documents.cue_text.split_cue": lambda text: list(split_cue(text, 0, len(text))),
    "documents.cue_text.read_cue_text": lambda text: read_cue_text(text, is_escaped=True),
    "documents.plural_forms.insert_number": lambda text: insert_number(f"{text} %d", "few", "pl"),
    "documents.subtitles.SubtitleLimits": lambda text: SubtitleLimits().check(text, 1.0),
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
# Public functions and classes that read no text from outside, or that another call contains.
NO_PARSERS = {
    "text.inline_tokens.tokenize_markup": "is called by read_inline",
    "text.inline_tokens.make_code_token": "is called by read_inline",
    "text.other_scripts.is_in_other_script": "is called by translate_texts, with the scripts of a pair",
    "text.placeholders.select_styles": "is called by find_codes",
    "text.placeholders.find_code_at": "is called by find_codes",
    "text.projection.project": "is called by translate_texts, with sentences of limited length",
    "text.references.count_sign": "counts one character",
    "text.references.spells_word": "reads a character and those beside it",
    "text.term_annotation.annotate_terms": "is called by translate_texts, with terms of a glossary",
    "documents.code_formatting.FontStyles": "counts letters",
    "documents.compared_texts.ComparedTexts": "is made by the reader of XLSX",
    "documents.document.Document": "is made for each format",
    "documents.document.apply_edits": "is called for each format",
    "documents.document.apply_ordered_edits": "is called for each format",
    "documents.document.check_written": "is called for each format",
    "documents.encoded_text.EncodedText": "is made for each format of text",
    "documents.flowing_text.add_flowing_text": "is called by the readers of ODT and EPUB",
    "documents.marked_text.MarkedTextReader": "is made by the readers of reStructuredText and AsciiDoc",
    "documents.marked_text.MarkedSyntax": "is a protocol",
    "documents.rst_marks.RstSyntax": "is used by the reader of reStructuredText",
    "documents.asciidoc_marks.AsciidocSyntax": "is used by the reader of AsciiDoc",
    "documents.formats.parse_document": "is called for each format",
    "documents.html_languages.PageLanguage": "is made by the readers of HTML",
    "documents.icu_message.pair_sentences": "reads messages",
    "documents.office_languages.state_run": "is called by the writer of DOCX",
    "documents.output_names.find_original": "reads the name of a file",
    "documents.output_names.name_in_project": "reads the name of a file",
    "documents.plural_forms.NumberedText": "is made by insert_number",
    "documents.reasons.describe_flags": "names the flags of a text",
    "documents.sdl_segments.write_mark": "is called by the writer of XLIFF",
    "documents.script_languages.ScriptCounts": "counts letters",
    "documents.script_languages.ScriptLanguages": "counts letters",
    "text.edit_distance.compute_distance": "is called by TranslationMemory, with texts of limited length, and by a metric",
    "documents.translate_document.check_unit": "is called by translate_document",
    "documents.xml_spans.XmlSource": "is made for each format of XML",
    "documents.xml_spans.find_attribute": "searches as set_attribute does",
    "documents.xml_units.TaggedText": "is made for each format of XML",
    "documents.xml_units.UnitList": "is made for each format of XML",
    "documents.xml_units.write_content": "is called by the writers of XML",
    "documents.xml_units.write_element_content": "is called by the writers of XML",
    "documents.yaml_file.read_scalars": "is called for each file of YAML",
    "documents.yaml_file.write_scalar": "is called by the writer of YAML",
    "documents.zip_document.ZipMembers": "is made for each format in ZIP archives",
    "data.tokenization.pair_tokenizer.PairTokenizer": "calls the tokenizer of a side",
    "data.tokenization.piece_vocabulary.PieceVocabulary": "is called beside SentencePieceTokenizer",
    "data.tokenization.sentencepiece.encode_utf8": "encodes",
}
PACKAGES = (dragoman.text, dragoman.documents, dragoman.data.tokenization, dragoman.cleaning, dragoman.parsing.trees)
_TEXT_TYPES = ("str", "bytes")
_TEXT_NAMES = frozenset(
    ("text", "content", "raw", "source", "translation", "expression", "line", "markup", "start_tag", "first", "second")
)
"""Names of the parameters that hold a text from outside; others hold a language, a path or a name."""


def list_modules(package: ModuleType) -> Iterator[ModuleType]:
    for item in pkgutil.iter_modules(package.__path__):
        yield import_module(f"{package.__name__}.{item.name}")


def has_text(parameters: Iterable[inspect.Parameter]) -> bool:
    return any(item.name in _TEXT_NAMES and item.annotation in _TEXT_TYPES for item in parameters)


@cache
def find_parsers() -> tuple[dict[str, Parse], list[str]]:
    """Return the calls of the public functions and classes that read a text, and the names of those that have none."""
    parsers, unknown = dict(CALLS), []
    for module in (module for package in PACKAGES for module in list_modules(package)):
        module_parsers, module_unknown = find_module_parsers(module)
        parsers |= module_parsers
        unknown += module_unknown
    return parsers, unknown


def find_module_parsers(module: ModuleType) -> tuple[dict[str, Parse], list[str]]:
    """Return those of a module that `CALLS` lacks."""
    parsers: dict[str, Parse] = {}
    unknown: list[str] = []
    for name, item in vars(module).items():
        label = f"{module.__name__}.{name}".removeprefix("dragoman.")
        is_known = label in NO_PARSERS or any(label == known.partition(" ")[0] for known in CALLS)
        if name.startswith("_") or getattr(item, "__module__", "") != module.__name__ or is_known:
            continue
        if inspect.isfunction(item):
            signature = inspect.signature(item)
            parameters = [value for value in signature.parameters.values() if value.default is value.empty]
            types = [value.annotation for value in parameters]
            if has_text(parameters) and set(types) <= set(_TEXT_TYPES):
                parsers[label] = make_call(item, types)
            elif has_text(parameters) or str(signature.return_annotation).startswith("Callable[[str"):
                unknown.append(label)
        elif inspect.isclass(item) and not getattr(item, "_is_protocol", False):
            methods = [method for key, method in vars(item).items() if inspect.isfunction(method) and not key.startswith("_")]
            if any(has_text(inspect.signature(method).parameters.values()) for method in methods):
                unknown.append(label)
    return parsers, unknown


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
        **{
            f"file {suffix} {number}": partial(translate_file, suffix, list_wrappers(suffix)[number])
            for suffix, number in places.items()
        },
    }


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

"""Translation of a file with a loaded bundle: read, translate, check, and write beside the original or elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from dragoman.documents.document import Document, add_plural_forms
from dragoman.documents.earlier_output import EarlierTexts, keep_values, match_texts, merge_translations
from dragoman.documents.folder_links import NO_ANCHORS, LinkedAnchors
from dragoman.documents.formats import get_parser, read_document
from dragoman.documents.output_comments import keep_comments
from dragoman.documents.output_names import get_output_suffix, name_beside, name_in_project
from dragoman.documents.subtitles import LINE_LENGTH, READING_SPEED, SubtitleLimits
from dragoman.documents.translate_document import (
    DocumentOptions,
    TermCount,
    UnitResult,
    check_languages,
    count_terms,
    get_state,
    is_redone,
    translate_document,
)
from dragoman.documents.translation_memory import TranslationMemory, read_translations
from dragoman.documents.unit_selection import KeyGlobs, Scope, count_texts, list_selected
from dragoman.errors import DataError, OutputError
from dragoman.formats.glossary_file import resolve_glossary
from dragoman.inference.text_options import ModelLimits, PlaceholderMethod
from dragoman.inference.whole_texts import LineRequest
from dragoman.io.storage import atomic_write, check_path_is_free, make_dirs, to_write_error
from dragoman.languages import is_foreign

if TYPE_CHECKING:
    from dragoman.inference.translation_result import Translation
    from dragoman.inference.translator import Translator
    from dragoman.text.glossary import Glossary


@dataclass(frozen=True)
class FileTranslation:
    """Translated file.

    Attributes:
        path: the original
        output: the new file
        format: name of the format, such as "po"
        num_texts: number of texts in the file
        results: one for each text that was to be translated, in order
        glossary, terms: the glossary, and the use of its terms; None without a glossary
        num_kept: number of texts whose translation, in the file or an earlier output, stays
        num_for_review: number of new translations that the file marks for a human
        unused: keys, or sources, of the texts of the earlier output that have no place any more
        skipped: numbers of texts that readers see and that stay, by what they are, such as "names of sheets"
    """

    path: Path
    output: Path
    format: str
    num_texts: int
    results: Sequence[UnitResult] = field(repr=False)
    glossary: Glossary | None = field(default=None, repr=False)
    terms: Sequence[TermCount] | None = field(default=None, repr=False)
    num_kept: int = 0
    num_for_review: int = 0
    unused: Sequence[str] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)

    @property
    def flagged(self) -> list[UnitResult]:
        """Results that fail a check."""
        return [result for result in self.results if result.flags]


@dataclass(frozen=True)
class FileOptions:
    """Options for the translation of files.

    Attributes:
        memory: translation memory in TMX or TSV, whose translations are taken first
        min_similarity: lowest similarity of a text in the memory, from 0.5 to 1; translations of texts that are not equal are
            marked for review
        scope: "empty" for texts without a translation, "fuzzy" also for those with a fuzzy one, "all" for all
        accept: mark translations that pass all checks as good; otherwise a human has to check them
        line_length, reading_speed: most characters of a line of subtitles, and most characters a second
        glossary, strict_terms: terms to use and to check, as in `Translator.translate_texts`
        placeholders: way to keep placeholders and tags without content, as in `Translator.translate_texts`
        any_language: also translate a file that states another language than that of the source
        keys, skip_keys: patterns of keys whose values are translated, and whose values stay, such as `app.*.title`
        language_check: keep a sentence that is in the target language already; it gets the flag `target_language`
        project_names: name an output as the program of the project looks for it, such as `de.json` for `en.json`
    """

    memory: str | Path | None = None
    min_similarity: float = 1.0
    scope: Scope = "empty"
    accept: bool = False
    line_length: int = LINE_LENGTH
    reading_speed: float = READING_SPEED
    glossary: Glossary | str | Path | None = None
    strict_terms: bool = False
    placeholders: PlaceholderMethod = "auto"
    any_language: bool = False
    keys: Sequence[str] = ()
    skip_keys: Sequence[str] = ()
    project_names: bool = False
    language_check: bool = True


class FileTranslator:
    """Translator of files with one bundle and the same options.

    options: options for every file
    """

    def __init__(self, translator: Translator, options: FileOptions, **decoding: Any) -> None:
        """Read the memory and the glossary. Raises the errors of `translate_file`."""
        self._translator = translator
        self._decoding = decoding
        self._project_names = options.project_names
        config = translator.resolve_decoding(decoding)
        task = translator.recipe.task
        languages = config.source_language or task.source_language, config.target_language or task.target_language
        translations = {} if options.memory is None else read_translations(Path(options.memory), *languages)
        self.options = DocumentOptions(
            *languages,
            options.scope,
            options.accept,
            TranslationMemory(translations, options.min_similarity),
            ModelLimits.read(translator.bundle, *languages),
            SubtitleLimits(options.line_length, options.reading_speed),
            resolve_glossary(options.glossary, *languages),
            options.strict_terms,
            translator.texts.reads_terms,
            translator.texts.uses_mask(options.placeholders),
            options.any_language,
            KeyGlobs(tuple(options.keys), tuple(options.skip_keys)),
            options.language_check,
        )

    def translate(
        self,
        path: Path,
        output: Path | None = None,
        *,
        overwrite: bool = False,
        original: Path | None = None,
        anchors: LinkedAnchors = NO_ANCHORS,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> FileTranslation:
        """Translate a file; see `translate_file`.

        anchors: anchors of the file that other pages of its folder link to
        """
        parse = get_parser(path.name)
        document = read_document(path)
        check_languages(document, self.options)
        document = add_plural_forms(document, parse, self.options.target_language)
        document.keep_anchors(anchors.names, anchors.is_hugo)
        output = output or self.name_output(path)
        if output.suffix.lower() not in (path.suffix.lower(), get_output_suffix(path)):
            raise OutputError(f"{output}: ends otherwise than {path.name}, whose format it has; give another name")
        if _is_same_file(output, path):
            raise OutputError(f"{output}: is the original, which stays; give another name", code="output-is-input")
        if not overwrite:
            check_path_is_free(output, "complete")
        document, earlier = self._read_earlier(document, parse, output, original)
        options = self.options
        selected = list_selected(document, options.scope, options.keys, options.source_language, options.target_language)
        redone = {unit.id for unit in selected if is_redone(unit, earlier.texts, options.scope)}
        num_kept = sum(
            unit.id not in redone and bool(unit.target or unit.id in earlier.texts)
            for unit in document.units
            if not is_foreign(unit.target_language, options.target_language)
        )
        total, done = len(redone), 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            on_progress(done, total)

        advance(0)
        result = translate_document(document, parse, self._translate_lines, self.options, advance, earlier.texts)
        try:
            make_dirs(output.parent)
        except OSError as error:
            raise to_write_error(output, error) from None
        with atomic_write(output, overwrite=overwrite, mode_of=path) as stream:
            cast(TextIO, stream).buffer.write(result.content)
        terms = None if self.options.glossary is None else count_terms(result.results, self.options.glossary)
        return FileTranslation(
            path,
            output,
            document.format,
            count_texts(document, options.keys, options.target_language),
            result.results,
            self.options.glossary,
            terms,
            num_kept,
            sum(get_state(item, options) == "fuzzy" for item in result.results if item.text) if document.is_bilingual else 0,
            earlier.unused,
            document.skipped,
        )

    def _read_earlier(
        self, document: Document, parse: Callable[[bytes], Document], output: Path, original: Path | None
    ) -> tuple[Document, EarlierTexts]:
        """Return the texts that an output has already; a file of two languages has them in the document that is returned.

        Raises DataError if nobody can tell which they are.
        """
        if self.options.scope == "all" or not output.exists() or not output.stat().st_size:
            return document, EarlierTexts({})
        try:
            if document.is_bilingual:
                check_languages(output_document := read_document(output), self.options)
                merged, unused = merge_translations(document, parse, output_document)
                return merged, EarlierTexts({}, unused)
            output_document, read_original = read_document(output), None
            if original is not None:
                read_original = add_plural_forms(read_document(original), parse, self.options.target_language)
            document, comments = keep_comments(document, parse, output_document, read_original)
            document = keep_values(document, parse, output_document, read_original)
            if read_original is not None:
                read_original = keep_values(read_original, parse, output_document)
            earlier = match_texts(document, output_document, read_original)
            return earlier.keep_codes(document), replace(earlier, unused=[*earlier.unused, *comments])
        except DataError as error:
            message = str(error).removeprefix(f"{output}: ")
            raise DataError(
                f"{output}: exists, and its texts cannot be kept: {message}; name the file that it is a translation of with "
                "--translation-of, or translate all texts again with --redo-all",
                code=error.code,
            ) from None

    def name_output(self, path: Path) -> Path:
        """Return the name of the translation of a file: beside it, or as its project has it."""
        return self._find_project_name(path) or name_beside(path, self.options.target_language)

    def has_project_name(self, path: Path) -> bool:
        """Return whether the name of a file says where its project looks for the translation."""
        return self._find_project_name(path) is not None

    def _find_project_name(self, path: Path) -> Path | None:
        languages = self.options.source_language, self.options.target_language
        return name_in_project(path, *languages) if self._project_names and all(languages) else None

    def _translate_lines(self, request: LineRequest) -> Sequence[Translation]:
        return self._translator.texts.answer(request, self._decoding)


def _is_same_file(output: Path, path: Path) -> bool:
    """Return whether an output is the file itself. Raises OutputError if its folder cannot be read."""
    try:
        return output.exists() and output.samefile(path)
    except OSError as error:
        raise to_write_error(output, error) from None


def translate_file(
    translator: Translator,
    path: str | Path,
    output: str | Path | None = None,
    options: FileOptions | None = None,
    *,
    overwrite: bool = False,
    original: str | Path | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    **decoding: Any,
) -> FileTranslation:
    """Translate the texts of a file, and write a file in which every other byte is as it was. The original stays.

    The new file has the permissions of the original, or those of the file that it replaces.

    Args:
        translator: translator that `dragoman.load` returned
        path: the file; the ending of its name selects the format
        output: the new file, with the same ending; by default `NAME.de.po` beside `NAME.po`, for German
        options: options of the translation; see `FileOptions`
        overwrite: complete an output that exists. The texts that it has stay, unless the scope is "all".
        original: file that the output is a translation of, if the file has changed since
        on_progress: called with the number of finished texts and the number of all
        decoding: keys of the recipe's [decoding] section to change

    Raises:
        DataError: the file, the memory or the glossary cannot be read or is not of its format, or is of other languages.
        OutputError: the output exists, is the original, or cannot be written.
        RecipeError: wrong decoding options.
    """
    return FileTranslator(translator, options or FileOptions(), **decoding).translate(
        Path(path),
        None if output is None else Path(output),
        overwrite=overwrite,
        original=None if original is None else Path(original),
        on_progress=on_progress,
    )

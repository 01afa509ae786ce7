"""Packages of Argos Translate and LibreTranslate: an `.argosmodel` file, or the folder of an installed package.

The file is a zip archive, in which one folder holds everything:

- `metadata.json` names the languages.
- `model/` is a model folder of CTranslate2.
- `sentencepiece.model` splits the text, or `bpe.model`, which has codes of subword-nmt for text that Moses has split.
- `stanza/` splits text into sentences. It is ignored, and so is any other file.

Entries are read in memory, and the weights are unpacked to an unnamed temporary file. No entry is written under its own name.
"""

from __future__ import annotations

import mmap
import tempfile
from functools import cached_property
from pathlib import Path

from dragoman.bundle import ModelOrigin
from dragoman.conversion.ctranslate2_model import MODEL_FILE, convert_folder, open_folder
from dragoman.conversion.mapped_arrays import damaged, map_file
from dragoman.conversion.model_card import read_license
from dragoman.conversion.source_files import MAX_FILE_BYTES, ModelSettings, SourceFiles
from dragoman.conversion.target import ConversionOptions, ConvertedModel
from dragoman.conversion.text_tokenizers import build_pair_tokenizer, describe_text, find_segmenters
from dragoman.conversion.zip_archive import ZipArchive
from dragoman.errors import DataError

NAME = "argos"
SUFFIX = ".argosmodel"
METADATA_FILE, MODEL_FOLDER = "metadata.json", "model"
PIECES_MODEL, CODES = "sentencepiece.model", "bpe.model"
SEARCH = {"beam_size": 4, "length_penalty": 0.2}
"""Search options of Argos Translate, which no package states."""
SENTENCES_NOTE = "The package's model that splits text into sentences is not converted; give a sentence a line."
UNKNOWN_NOTE = "Argos Translate copies the source's word for an unknown token; dragoman does not."


class PackageFiles(SourceFiles):
    """Files of a package, by their path inside of its folder.

    Args:
        path: the package
        archive: its zip archive
        prefix: path of the folder in the archive, with a slash at its end, or empty
    """

    def __init__(self, path: Path, archive: ZipArchive, prefix: str) -> None:
        super().__init__(path)
        self.archive = archive
        self.prefix = prefix

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of the files in the folder, without those of its folders."""
        names = (name.removeprefix(self.prefix) for name in self.archive.entries if name.startswith(self.prefix))
        return frozenset(name for name in names if name and "/" not in name and "\\" not in name)

    def subfolder(self, name: str) -> SourceFiles:
        """Return the files of a folder inside of this one."""
        return PackageFiles(self.folder / name, self.archive, f"{self.prefix}{name}/")

    def read_bytes(self, name: str, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        """Return the content of a file. Raise DataError if it is missing, damaged, or larger than `max_bytes`."""
        path = self.path(name)
        if self.archive.entries[self.prefix + name].file_size > max_bytes:
            raise damaged(path, f"has more than {max_bytes:,} bytes")
        return b"".join(self.archive.iter_chunks(self.prefix + name))

    def map_file(self, name: str) -> mmap.mmap:
        """Return the bytes of a file, unpacked to an unnamed temporary file. Raise DataError if they cannot be."""
        path = self.path(name)
        try:
            with tempfile.TemporaryFile() as file:
                for chunk in self.archive.iter_chunks(self.prefix + name):
                    file.write(chunk)
                file.flush()
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise damaged(path, "is empty") from None
        except OSError as error:
            raise DataError(f"{path}: cannot be unpacked: {error.strerror}", code="file-unreadable") from None


def open_package(path: Path) -> PackageFiles:
    """Return the files of a package. Raise DataError if it cannot be read, or holds no package."""
    archive = ZipArchive(path, map_file(path))
    prefixes = [name.removesuffix(METADATA_FILE) for name in archive.entries if name.split("/")[-1] == METADATA_FILE]
    prefixes = [prefix for prefix in prefixes if prefix.count("/") <= 1]
    if len(prefixes) != 1:
        raise damaged(path, f"has {len(prefixes)} files {METADATA_FILE} instead of one, so it is no package of Argos Translate")
    return PackageFiles(path, archive, prefixes[0])


def detect(files: SourceFiles) -> bool:
    """Return whether the files are those of a package."""
    return isinstance(files, PackageFiles) or (METADATA_FILE in files and MODEL_FILE in _list_names(files))


def _list_names(files: SourceFiles) -> frozenset[str]:
    """Return the names in the folder of the model; none if there is no such folder."""
    return files.subfolder(MODEL_FOLDER).names if (files.folder / MODEL_FOLDER).is_dir() else frozenset()


def read(files: SourceFiles, options: ConversionOptions) -> ConvertedModel:
    """Return the model of a package."""
    metadata = files.read_settings(METADATA_FILE)
    if metadata.get("type", "translate") != "translate":
        raise metadata.refuse("type", "dragoman has packages of the type 'translate' only")
    if metadata.get("target_prefix"):
        raise metadata.refuse("target_prefix", "dragoman does not begin each output with such a token")
    folder = open_folder(files.subfolder(MODEL_FOLDER))
    segmenters = find_segmenters(files, (), (PIECES_MODEL, CODES))
    if segmenters[0] is None:
        raise damaged(files.folder, f"has neither {PIECES_MODEL} nor {CODES}")
    tokenizer = build_pair_tokenizer(
        files,
        segmenters,
        folder.orders,
        append_source_eos=folder.append_source_eos,
        codes=[CODES],
    )
    return convert_folder(
        folder,
        tokenizer,
        ModelOrigin(format=NAME, name=options.name, license=read_license(files)),
        options.choose_languages(metadata.get("from_code"), metadata.get("to_code")),
        search=ModelSettings(SEARCH, metadata.path),
        notes=(SENTENCES_NOTE, UNKNOWN_NOTE, *describe_text(tokenizer, has_segmenter=True)),
    )

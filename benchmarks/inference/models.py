"""Models of the benchmark: the same weights in several formats, in one folder.

bundle/         dragoman's bundle
ctranslate2/    the output of `dragoman export`
marian/         the output of `dragoman export` for transformers; absent if MarianMT has no such model

A model of OPUS-MT's shape goes the other way. Both engines convert the same folder of transformers:

huggingface/    MarianMT with random weights, written by transformers
bundle/         the output of `dragoman convert`
ctranslate2/    the output of `ct2-transformers-converter`, and `pieces.json`, the pieces by dragoman's id
"""

from __future__ import annotations

import json
import shutil
import sys
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from common.usage import run_commands
from numpy.typing import NDArray

from dragoman.bundle import load_bundle, save_bundle
from dragoman.config import ModelConfig, TokenizerConfig, make_recipe
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.data.tokenization.sentencepiece import train_sentencepiece
from dragoman.data.tokenization.special_tokens import SPECIAL_IDS
from dragoman.errors import BundleError
from dragoman.export.ctranslate2 import export_ctranslate2
from dragoman.export.huggingface import export_huggingface
from dragoman.model_weights import list_shapes

TARGET_RATIO, ONE_SENTENCE_TARGET_RATIO = 1.5, 2.0
"""Least ratios over the best setting of CTranslate2 that the project aims at. The second one is for one sentence of `fixed`."""
VOCABULARY = 37_000
FORMATS_MARKER = "formats-3"
"""File that says that all formats are written. Its name changes with the formats."""


@dataclass(frozen=True)
class RandomModel:
    """Model with random weights.

    size: size of the recipe; None for OPUS-MT's shape
    """

    name: str
    size: str | None
    vocabulary: int

    @property
    def is_imported(self) -> bool:
        """Return whether both engines convert a folder of transformers."""
        return self.size is None


BASE = RandomModel("base", "base", VOCABULARY)
BIG = RandomModel("big", "big", VOCABULARY)
OPUS = RandomModel("opus-mt", None, 60_000)


@dataclass(frozen=True)
class ModelFormats:
    """Paths of the formats of one model."""

    folder: Path

    @property
    def bundle(self) -> Path:
        return self.folder / "bundle"

    @property
    def ctranslate2(self) -> Path:
        return self.folder / "ctranslate2"

    @property
    def marian(self) -> Path | None:
        path = self.folder / "marian"
        return path if path.is_dir() else None


def build_random_model(random_model: RandomModel, folder: Path) -> ModelFormats:
    """Return a model with random weights and a vocabulary of synthetic words; it is made once."""
    forms, vocabulary = ModelFormats(folder), random_model.vocabulary
    if not (folder / FORMATS_MARKER).exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        sections = {
            "model": {"decoder_start_token": "bos", "position_encoding": "halves"},  # as in MarianMT
            "tokenizer": {"vocab_size": vocabulary, "byte_fallback": False},
        }
        recipe = make_recipe({"preset": "t2t-2017", "size": random_model.size, **sections}, ())
        weights = draw_weights(recipe.model, vocabulary)
        save_bundle(forms.bundle, recipe=recipe, tokenizer=make_word_tokenizer(vocabulary), weights=weights, metadata={})
        _write_formats(forms)
    return forms


def build_imported_model(random_model: RandomModel, folder: Path, programs: Path) -> ModelFormats:
    """Return a MarianMT model with random weights and its two conversions; it is made once.

    programs: programs of the peers' environment, which has transformers and CTranslate2
    """
    forms, source = ModelFormats(folder), folder / "huggingface"
    if not (folder / FORMATS_MARKER).exists():
        shutil.rmtree(folder, ignore_errors=True)
        source.mkdir(parents=True)
        tokenizer = make_word_tokenizer(random_model.vocabulary + 1).source  # MarianMT has no begin token
        words = tokenizer.ids_to_pieces(range(len(SPECIAL_IDS), len(tokenizer)))
        ids = {piece: index for index, piece in enumerate(["</s>", "<unk>", *words, "<pad>"])}
        (source / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
        (source / "tokenizer_config.json").write_text(json.dumps({"source_lang": "en", "target_lang": "de"}), encoding="utf-8")
        for name in ("source.spm", "target.spm"):
            (source / name).write_bytes(tokenizer.serialized_model)
        module_path = {"PYTHONPATH": str(Path(__file__).resolve().parents[1])}
        run_commands(
            [programs / "python", "-m", "inference.make_marian", source, str(random_model.vocabulary)], environment=module_path
        )
        run_commands([Path(sys.executable).parent / "dragoman", "convert", source, "-o", forms.bundle])
        run_commands([programs / "ct2-transformers-converter", "--model", source, "--output_dir", forms.ctranslate2])
        tokenizer = load_bundle(forms.bundle).tokenizer.source
        pieces = tokenizer.ids_to_pieces(range(len(tokenizer)))
        (forms.ctranslate2 / "pieces.json").write_text(json.dumps(pieces), encoding="utf-8")
        (folder / FORMATS_MARKER).touch()
    return forms


def draw_weights(config: ModelConfig, vocabulary: int) -> dict[str, NDArray[np.float32]]:
    """Return random weights of the usual sizes."""
    generator = np.random.default_rng(1)
    shapes = list_shapes(config, source_vocab_size=vocabulary, target_vocab_size=vocabulary)
    return {
        name: np.float32(shape[-1] ** -0.5) * generator.standard_normal(shape, np.float32)
        if len(shape) > 1
        else np.full(shape, float(name.endswith("norm.weight")), np.float32)
        for name, shape in shapes.items()
    }


def make_word_tokenizer(vocabulary: int = VOCABULARY) -> PairTokenizer:
    """Return a tokenizer with one word per id, so that any ids are the ids of a text."""
    letters = "bcdfghjklmnpqrstvwxz"
    words = (
        a + "aeiou"[i % 5] + b + c + d + last
        for last in ("", "n")
        for i, a in enumerate(letters)
        for b in letters
        for c in letters
        for d in "aeiouy"
    )
    config = TokenizerConfig.model_construct(**{**TokenizerConfig().model_dump(), "model_type": "word", "byte_fallback": False})
    model = train_sentencepiece(islice(words, vocabulary), config, vocab_size=vocabulary, seed=1)
    return PairTokenizer(model, model, append_source_eos=True)


def convert_bundle(bundle: Path, folder: Path) -> ModelFormats:
    """Return the formats of a trained bundle; convert it again if it changed."""
    forms = ModelFormats(folder)
    manifest = (bundle / "manifest.json").read_text(encoding="utf-8")
    if not (folder / FORMATS_MARKER).exists() or (forms.bundle / "manifest.json").read_text(encoding="utf-8") != manifest:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(bundle, forms.bundle)
        _write_formats(forms)
    return forms


def _write_formats(forms: ModelFormats) -> None:
    bundle = load_bundle(forms.bundle)
    export_ctranslate2(bundle, forms.ctranslate2)
    with suppress(BundleError):  # a model that MarianMT does not have
        export_huggingface(bundle, forms.folder / "marian")
    (forms.folder / FORMATS_MARKER).touch()

"""One model of each format that `dragoman convert` reads, written by PyTorch, CTranslate2 and transformers."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

import dragoman
import fairseq_checkpoints
import fsmt_folders
import joeynmt_folders
import m2m100_folders
import marian_folders
import marian_npz_folders
import opennmt_checkpoints
import t5_folders
import tuned_folders
from dragoman.bundle import load_bundle
from dragoman.export.argos import export_argos

EXPECTED_FILE = "digests.json"
"""SHA-256 of the weights of each converted bundle."""
LANGUAGE_PAIRS = {"nllb": ("eng_Latn", "deu_Latn"), "mbart50": ("en_XX", "de_DE")}


def write_sources(folder: Path, get_bundle: Callable[[], Path]) -> Path:
    """Write a source of each format, and the digests of their weights, and return the folder.

    get_bundle: returns a bundle of dragoman, which becomes the package of Argos Translate. The other sources are written before
    """
    folder.mkdir(parents=True)
    digests = {}
    for name, write in WRITERS.items():
        source = write(folder / name) if write else export_argos(load_bundle(get_bundle()), folder / f"{name}.argosmodel").path
        bundle = folder.parent / f"{folder.name}-bundles" / name
        source_language, target_language = LANGUAGE_PAIRS.get(name, ("en", "de"))
        dragoman.convert(source, bundle, source_language=source_language, target_language=target_language)
        manifest = json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))
        digests[source.name] = manifest["files"]["weights.safetensors"]["sha256"]
    (folder / EXPECTED_FILE).write_text(json.dumps(digests), encoding="utf-8")
    return folder


def _write_marian_npz(folder: Path) -> Path:
    tensors = marian_folders.make_tensors(len(marian_folders.list_pieces()))
    return marian_npz_folders.write_folder(folder, tensors)


def _write_bfloat16(folder: Path) -> Path:
    def convert_tensors(tensors: dict[str, torch.Tensor]) -> None:
        tensors.update({name: tensor.bfloat16() for name, tensor in tensors.items()})

    return marian_folders.write_folder(folder, change_tensors=convert_tensors, as_checkpoint=True)


def _write_tuned(folder: Path, write: Callable[[Path], object]) -> Path:
    write(folder)
    return folder


def _write_fsmt(folder: Path) -> Path:
    fsmt_folders.write_folder(folder, is_shared=True)
    return folder


def _write_fairseq(folder: Path) -> Path:
    args = fairseq_checkpoints.make_args(encoder_learned_pos=True, decoder_learned_pos=True)
    sides = {"en": marian_folders.SOURCE_LETTERS, "de": marian_folders.TARGET_LETTERS}
    dictionaries = {language: fairseq_checkpoints.list_subwords(letters) for language, letters in sides.items()}
    sizes = [len(fairseq_checkpoints.SPECIAL_TOKENS) + len(tokens) for tokens in dictionaries.values()]
    state = fairseq_checkpoints.make_state(args, sizes[0], sizes[1])
    merges = fairseq_checkpoints.list_merges("".join(sides.values()))
    codes = "#version: 0.2\n" + "".join(f"{left} {right}\n" for left, right in merges)
    return fairseq_checkpoints.write_folder(folder, args=args, state=state, dictionaries=dictionaries, codes=codes)


def _list_tokens() -> tuple[list[str], list[str]]:
    letters = marian_folders.SOURCE_LETTERS, marian_folders.TARGET_LETTERS
    source, target = ([*opennmt_checkpoints.SPECIAL_TOKENS, *fairseq_checkpoints.list_subwords(text)] for text in letters)
    return source, target


def _write_opennmt(folder: Path) -> Path:
    model, tokens = opennmt_checkpoints.make_model(), _list_tokens()
    state = opennmt_checkpoints.make_state(model, len(tokens[0]), len(tokens[1]))
    opt = opennmt_checkpoints.make_opt(model)
    return opennmt_checkpoints.write_checkpoint(folder, version=3, opt=opt, state=state, tokens=tokens)


def _write_eole(folder: Path) -> Path:
    model, tokens = opennmt_checkpoints.make_model(), _list_tokens()
    state = opennmt_checkpoints.make_state(model, len(tokens[0]), len(tokens[1]))
    config = opennmt_checkpoints.make_config(model)
    return opennmt_checkpoints.write_eole_folder(folder, config=config, state=state, tokens=tokens)


def _write_joeynmt(folder: Path) -> Path:
    config = joeynmt_folders.make_config()
    special = joeynmt_folders.SPECIAL_TOKENS
    letters = marian_folders.SOURCE_LETTERS, marian_folders.TARGET_LETTERS
    source, target = ([*special, *fairseq_checkpoints.list_subwords(text)] for text in letters)
    state = joeynmt_folders.make_state(config, len(source), len(target))
    return joeynmt_folders.write_folder(folder, config=config, state=state, tokens=(source, target))


def _write_ctranslate2(folder: Path) -> Path:
    import ctranslate2

    source = marian_folders.write_folder(folder.with_name(f"{folder.name}-source"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        converter = ctranslate2.converters.TransformersConverter(str(source), copy_files=["source.spm", "target.spm"])
        converter.convert(str(folder), quantization="int8")
    return folder


WRITERS: dict[str, Callable[[Path], Path] | None] = {
    "marian": marian_folders.write_folder,
    "marian-bfloat16": _write_bfloat16,
    "m2m100": m2m100_folders.write_folder,
    "nllb": partial(_write_tuned, write=tuned_folders.write_nllb),
    "mbart50": partial(_write_tuned, write=tuned_folders.write_mbart50),
    "bart": partial(_write_tuned, write=tuned_folders.write_bart),
    "fsmt": _write_fsmt,
    "t5": partial(_write_tuned, write=partial(t5_folders.write_folder, variant="t5-v1.1", with_json=True)),
    "fairseq": _write_fairseq,
    "opennmt": _write_opennmt,
    "eole": _write_eole,
    "joeynmt": _write_joeynmt,
    "marian-npz": _write_marian_npz,
    "ctranslate2": _write_ctranslate2,
    "argos": None,
}

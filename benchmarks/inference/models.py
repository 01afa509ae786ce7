"""Models of the benchmark: the same weights in several formats, in one folder.

bundle/         dragoman's bundle
ctranslate2/    the output of `dragoman export`
marian/         weights under the names of Marian in transformers, with its config; absent if Marian has no such model

A model of OPUS-MT's shape goes the other way. Both engines convert the same folder of transformers:

huggingface/    MarianMT with random weights, written by transformers
bundle/         the output of `dragoman convert`
ctranslate2/    the output of `ct2-transformers-converter`, and `pieces.json`, the pieces by dragoman's id
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from common.usage import run_commands
from safetensors.torch import save_file
from torch import Tensor

from dragoman.bundle import Bundle, load_bundle, save_bundle
from dragoman.config import TokenizerConfig, make_recipe
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.data.tokenization.sentencepiece import train_sentencepiece
from dragoman.data.tokenization.special_tokens import BEGIN_ID, END_ID, PADDING_ID, SPECIAL_IDS
from dragoman.export.ctranslate2 import SUPPRESSED_LOGIT, export_ctranslate2
from dragoman.model.attention import Attention
from dragoman.model.factory import build_model
from dragoman.model.layers import DecoderLayer, EncoderLayer
from dragoman.model.transformer import Decoder, Encoder
from dragoman.tasks.inference_model import get_decoder_start_id

TARGET_RATIO, ONE_SENTENCE_TARGET_RATIO = 1.5, 2.0
"""Least ratios over the best setting of CTranslate2 that the project aims at. The second one is for one sentence of `fixed`."""
VOCABULARY = 37_000
POSITIONS = 1024
FORMATS_MARKER = "formats-2"
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
            "model": {"decoder_start_token": "bos"},
            "tokenizer": {"vocab_size": vocabulary, "byte_fallback": False},
        }
        recipe = make_recipe({"preset": "t2t-2017", "size": random_model.size, **sections}, ())
        torch.manual_seed(1)
        model = build_model(recipe.model, source_vocab_size=vocabulary, target_vocab_size=vocabulary)
        tokenizer = make_word_tokenizer(vocabulary)
        weights = {name: weight.detach() for name, weight in model.named_parameters()}
        save_bundle(forms.bundle, recipe=recipe, tokenizer=tokenizer, weights=weights, metadata={})
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
    if marian_supports(bundle):
        write_marian(bundle, forms.folder / "marian")
    (forms.folder / FORMATS_MARKER).touch()


def marian_supports(bundle: Bundle) -> bool:
    """Return whether Marian supports the model: post-norm, heads of one width, and a source end token."""
    config = bundle.recipe.model
    plain = (
        config.norm == "post"
        and not config.final_norm
        and config.attention_window is None
        and not config.target_space_embedding
    )
    return plain and config.append_source_eos and config.key_width == config.value_width == config.d_model // config.num_heads


def write_marian(bundle: Bundle, folder: Path) -> None:
    folder.mkdir()
    model, config = bundle.model, bundle.recipe.model
    source, target = len(bundle.tokenizer.source), len(bundle.tokenizer.target)
    shared = config.tie_embeddings == "all"
    weights: dict[str, Tensor] = {
        "model.encoder.embed_tokens.weight": model.encoder.embedding.weight,
        "model.decoder.embed_tokens.weight": model.decoder.embedding.weight,
        "lm_head.weight": model.output,
    }
    if shared:
        weights["model.shared.weight"] = model.output
    # Padding is a zero vector for the decoder, which may start with it. No output contains it, so its row may have any value.
    for name in list(weights):
        weights[name] = weights[name].detach().index_fill(0, torch.tensor([PADDING_ID]), 0.0)
    never = torch.zeros(1, target)
    never[0, [PADDING_ID, BEGIN_ID]] = SUPPRESSED_LOGIT
    weights["final_logits_bias"] = never
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        weights[f"model.{side}.embed_positions.weight"] = stack.embedding.positions(0, POSITIONS)
        weights |= _marian_layers(f"model.{side}.layers", stack)
    save_file({name: weight.detach().clone().contiguous() for name, weight in weights.items()}, folder / "marian.safetensors")
    sizes = {
        f"{side}_{name}": value
        for side, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers))
        for name, value in (("layers", layers), ("ffn_dim", config.d_ff), ("attention_heads", config.num_heads))
    }
    settings = {
        **sizes,
        "vocab_size": source,
        "decoder_vocab_size": target,
        "d_model": config.d_model,
        "activation_function": "relu",
        "max_position_embeddings": POSITIONS,
        "scale_embedding": config.scale_embeddings,
        "share_encoder_decoder_embeddings": shared,
        "tie_word_embeddings": config.tie_embeddings != "none",
        "pad_token_id": PADDING_ID,
        "bos_token_id": BEGIN_ID,
        "eos_token_id": END_ID,
        "decoder_start_token_id": get_decoder_start_id(config),
        "forced_eos_token_id": None,
        "norm_epsilon": config.norm_epsilon,  # of ours; Marian's own config has none
    }
    (folder / "marian.json").write_text(json.dumps(settings), encoding="utf-8")
    for name in ("source.model", "target.model"):
        if (path := folder.parent / "bundle" / name).exists():
            shutil.copy(path, folder / name)


def _marian_layers(prefix: str, stack: Encoder | Decoder) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}
    for number, layer in enumerate(stack.layers):
        assert isinstance(layer, EncoderLayer | DecoderLayer)
        name_prefix = f"{prefix}.{number}"
        weights |= _marian_attention(f"{name_prefix}.self_attn", layer.attention)
        norms = {"self_attn_layer_norm": layer.attention_residual.norm, "final_layer_norm": layer.feed_forward_residual.norm}
        if isinstance(layer, DecoderLayer):
            weights |= _marian_attention(f"{name_prefix}.encoder_attn", layer.cross_attention)
            norms["encoder_attn_layer_norm"] = layer.cross_attention_residual.norm
        linears = {"fc1": layer.feed_forward.inner, "fc2": layer.feed_forward.outer}
        for name, module in {**norms, **linears}.items():
            weights |= {f"{name_prefix}.{name}.{part}": weight for part, weight in module.named_parameters()}
    return weights


def _marian_attention(prefix: str, attention: Attention) -> dict[str, Tensor]:
    """Return the weights of an attention under Marian's names; zeros replace absent biases."""
    weights = {}
    for name in ("query", "key", "value", "output"):
        linear = getattr(attention, name)
        theirs = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}[name]
        weights[f"{prefix}.{theirs}.weight"] = linear.weight
        weights[f"{prefix}.{theirs}.bias"] = torch.zeros(linear.out_features) if linear.bias is None else linear.bias
    return weights

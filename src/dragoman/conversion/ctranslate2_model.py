"""Model folders of CTranslate2, whose weights may be float32, float16, bfloat16, int16 or int8.

- `model.bin` has the weights and most settings; see `ctranslate2_binary`.
- `config.json` names the special tokens. Models of version 5 and before have flags in `model.bin` instead.
- `shared_vocabulary.json`, or `source_vocabulary.json` and `target_vocabulary.json`, number the tokens; `.txt` in old models.
- SentencePiece models beside them split the text, such as `source.spm` and `target.spm`. CTranslate2 itself reads tokens only.
- `dragoman.json` has the languages and the search options of a model that `dragoman export` wrote.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dragoman.bundle import ModelOrigin
from dragoman.conversion.ctranslate2_binary import BinaryModel, read_binary
from dragoman.conversion.language_codes import M2M100_LANGUAGES, NLLB_LANGUAGES, WMT21_LANGUAGES
from dragoman.conversion.mapped_arrays import Array, MappedArrays, damaged
from dragoman.conversion.model_card import read_license
from dragoman.conversion.source_files import MAX_JSON_BYTES, ModelSettings, SourceFiles
from dragoman.conversion.target import (
    ConversionOptions,
    ConvertedModel,
    RowSource,
    WeightBuilder,
    build_model,
    check_language,
    describe_beam,
)
from dragoman.conversion.text_tokenizers import (
    build_pair_tokenizer,
    describe_text,
    find_segmenters,
)
from dragoman.conversion.vocabulary_order import VocabularyOrder
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.data.tokenization.piece_vocabulary import PieceVocabulary
from dragoman.data.tokenization.special_tokens import END_ID
from dragoman.errors import BundleError
from dragoman.io.bfloat16 import widen
from dragoman.io.safetensors import TensorStream
from dragoman.positions import SINUSOIDS

NAME = "ctranslate2"
MODEL_FILE, CONFIG_FILE, METADATA_FILE = "model.bin", "config.json", "dragoman.json"
SPECIFICATION, REVISIONS = "TransformerSpec", range(3, 8)
ACTIVATIONS = ("relu", "gelu-tanh", "silu", "gelu", "gelu-sigmoid", "tanh", "sigmoid")
"""Activations by their number in CTranslate2. dragoman has the first, third and fourth."""
SUPPORTED_ACTIVATIONS = ("relu", "silu", "gelu")
PADDING_TOKENS = ("<pad>", "<blank>")
SEGMENTER_PAIRS = (("source.spm", "target.spm"), ("source.model", "target.model"), ("src.spm", "tgt.spm"))
SEGMENTERS = (
    "source.model", "sentencepiece.model", "sentencepiece.bpe.model", "spm.model", "tokenizer.model", "vocab.spm", "joint.spm",
)  # fmt: skip
"""Names of a SentencePiece model of both sides. The first is that of `dragoman export`."""
IGNORED = re.compile(
    r"(encoder|decoder)/(embeddings_merge|num_heads|pre_norm|activation)|decoder/(alignment_(layer|heads)|alibi_use_positive"
    r"_positions|scale_alibi)|alignment_(layer|heads)|num_heads|pre_norm|activation|embeddings_merge|with_(source|target)_[be]os"
)
"""Variables that do not change the model, or that are read as settings."""
POSITION_TOLERANCE = 2e-3
"""Largest difference of a table of positions from sinusoids, which float16 rounds to 2⁻¹¹."""
LANGUAGE_TOKENS = (("{}", NLLB_LANGUAGES), ("__{}__", M2M100_LANGUAGES), ("__{}__", WMT21_LANGUAGES))
"""Patterns of the tokens of languages that the decoder reads before its output, and the languages."""
SOURCE_LANGUAGE_TOKEN = ">>{}<<"
"""Pattern of the tokens of target languages that OPUS-MT models read before the source."""
END_NOTE = "The caller of CTranslate2 appends </s> to the source of such a model; dragoman appends it itself."
SEARCH_NOTE = "The folder states no search options, so those of CTranslate2 are set: a beam of 2 and a length penalty of 1."
DEFAULT_SEARCH = {"beam_size": 2, "length_penalty": 1.0, "min_decoding_length": 1}


@dataclass(frozen=True)
class CTranslate2Folder:
    """Content of a folder.

    Attributes:
        files: files of the folder
        binary: variables of `model.bin`
        settings: names of the special tokens, and options
        orders: tokens of source and target in the bundle's order
        start: first input of the decoder, as `model.decoder_start_token` has it
        append_source_eos: the encoder reads an end token after each source
        language_token: pattern of the tokens of a model of many languages; empty for all other models
        languages: the languages of such a model
    """

    files: SourceFiles
    binary: BinaryModel
    settings: ModelSettings
    orders: tuple[VocabularyOrder, VocabularyOrder]
    start: str
    append_source_eos: bool
    language_token: str
    languages: tuple[str, ...]


def detect(files: SourceFiles) -> bool:
    """Return whether a folder holds a model of CTranslate2."""
    return MODEL_FILE in files


def read(files: SourceFiles, options: ConversionOptions) -> ConvertedModel:
    """Return the model of a folder."""
    folder = open_folder(files)
    # An export with two tokenizers has both names; one with a joint tokenizer has the first only.
    pairs = [pair for pair in SEGMENTER_PAIRS if pair[1] in files or pair[0] not in SEGMENTERS]
    segmenters = find_segmenters(files, pairs, SEGMENTERS)
    tokenizer = build_pair_tokenizer(files, segmenters, folder.orders, append_source_eos=folder.append_source_eos)
    metadata = files.find_settings(METADATA_FILE)
    search = metadata.get("decoding_options")
    notes = describe_text(tokenizer, has_segmenter=False)
    if not isinstance(search, dict):
        search, notes = DEFAULT_SEARCH, (SEARCH_NOTE, *notes)
    return convert_folder(
        folder,
        tokenizer,
        ModelOrigin(format=NAME, name=options.name, license=read_license(files)),
        options.choose_languages(metadata.get("source_language"), metadata.get("target_language")),
        search=ModelSettings(search, metadata.path),
        notes=notes,
    )


def open_folder(files: SourceFiles) -> CTranslate2Folder:
    """Return the content of a folder. Raise DataError or BundleError; see `read`."""
    path = files.path(MODEL_FILE)
    binary = read_binary(files.map_file(MODEL_FILE), path)
    if binary.specification != SPECIFICATION or binary.revision not in REVISIONS:
        raise BundleError(
            f"{path}: specification = {binary.specification[:40]!r} with revision {binary.revision}: dragoman has "
            f"{SPECIFICATION} with the revisions {REVISIONS[0]} to {REVISIONS[-1]} only; this model cannot be converted",
            code="conversion-unsupported",
        )
    settings = _read_settings(files, binary)
    binary.arrays.release()
    for name in ("multi_query_attention", "add_source_bos"):
        settings.require(name, False, False)
    if settings.get("quantization_type"):
        raise settings.refuse("quantization_type", "dragoman reads CTranslate2's own quantization only")
    source_tokens = _read_tokens(files, "source")
    target_tokens = _read_tokens(files, "target")
    has_zero_start = _read_flag(binary.arrays, "decoder/start_from_zero_embedding", False)
    start_id = None if has_zero_start else _find_start(files, settings, target_tokens)
    target_order = _build_order(files, settings, target_tokens, start_id)
    source_order = target_order if source_tokens == target_tokens else _build_order(files, settings, source_tokens)
    start = "zero" if start_id is None else "eos" if start_id == target_order.rows[END_ID] else "bos"
    language_token, languages = _find_languages(source_tokens) if source_order == target_order else ("", ())
    append_source_eos = settings.boolean("add_source_eos", False)
    if METADATA_FILE not in files:  # the callers of Marian's and fairseq's models append the token themselves
        append_source_eos = append_source_eos or start != "bos" or bool(language_token)
    return CTranslate2Folder(
        files, binary, settings, (source_order, target_order), start, append_source_eos, language_token, languages
    )


def _find_languages(tokens: list[str]) -> tuple[str, tuple[str, ...]]:
    """Return the pattern of the tokens of languages, and the languages; an empty pattern for a model of one pair."""
    present = set(tokens)
    for pattern, languages in LANGUAGE_TOKENS:
        if present.issuperset(pattern.format(language) for language in languages):
            return pattern, languages
    before, after = SOURCE_LANGUAGE_TOKEN.split("{}")
    languages = tuple(
        token[len(before) : -len(after)]
        for token in tokens
        if token.startswith(before) and token.endswith(after) and len(token) > len(before + after)
    )
    return (SOURCE_LANGUAGE_TOKEN, languages) if len(languages) > 1 else ("", ())


def convert_folder(
    folder: CTranslate2Folder,
    tokenizer: PairTokenizer,
    origin: ModelOrigin,
    languages: tuple[str, str],
    *,
    search: ModelSettings,
    notes: tuple[str, ...],
) -> ConvertedModel:
    """Return the model of an open folder.

    Args:
        folder: the folder
        tokenizer: tokenizers of both sides
        origin: format, name and license of the source
        languages: languages of source and target
        search: options of CTranslate2's `translate_batch`
        notes: differences to the source

    Raises:
        DataError: the settings are impossible.
        BundleError: the model has a feature that dragoman does not have, or lacks a language.
    """
    weights, model_section = _Weights(folder).read()
    # A list of tokens reads the token of a language as a word of the text.
    language_token = folder.language_token if isinstance(tokenizer.source, PieceVocabulary) else ""
    reads_source_language = language_token not in ("", SOURCE_LANGUAGE_TOKEN)
    if reads_source_language:
        check_language(folder.files.folder, "source", languages[0], folder.languages)
    check_language(folder.files.folder, "target", languages[1], folder.languages)
    if folder.append_source_eos and not folder.settings.boolean("add_source_eos", False):
        notes = (*notes, END_NOTE)
    num_positions = model_section.get("max_positions")
    beam_size = search.integer("beam_size", 1)
    return build_model(
        replace(
            origin,
            source_languages=list(folder.languages) if reads_source_language else None,
            target_languages=list(folder.languages) or None,
        ),
        folder.files.folder,
        languages,
        {
            "tokenizer": ({"language_token": language_token} if language_token else {})
            | ({"language_token_placement": "both"} if reads_source_language else {}),
            "model": model_section,
            "decoding": {
                **describe_beam(beam_size),
                "length_penalty": "power",
                "alpha": search.number("length_penalty", 1.0),
                "early_stopping": "beam_full",
                "min_length": search.integer("min_decoding_length", 1),
                **({} if num_positions is None else {"max_source_tokens": num_positions}),
            },
        },
        tokenizer,
        weights,
        notes=notes,
    )


def _read_settings(files: SourceFiles, binary: BinaryModel) -> ModelSettings:
    """Return the content of config.json. Models of version 5 and before have flags in `model.bin` instead."""
    config = files.find_json_object(CONFIG_FILE)
    if binary.version < 6:
        flags = {
            name: _read_flag(binary.arrays, f"with_{name.removeprefix('add_')}", False)
            for name in ("add_source_bos", "add_source_eos")
        }
        starts_with_begin = _read_flag(binary.arrays, "with_target_bos", True)
        config = {**flags, "decoder_start_token": "<s>" if starts_with_begin else "</s>", **config}
    return ModelSettings(config, files.folder / CONFIG_FILE)


def _read_flag(arrays: MappedArrays, name: str, default: bool) -> bool:
    """Return a truth value, which is 0 or 1."""
    if name not in arrays:
        return default
    value = arrays[name].item()
    if value not in (0, 1):
        raise damaged(arrays.location, f"{name} = {value!r:.40} is neither 0 nor 1")
    return bool(value)


def _read_tokens(files: SourceFiles, side: str) -> list[str]:
    """Return the tokens of one side by id."""
    names = [f"{kind}_vocabulary.{ending}" for kind in ("shared", side) for ending in ("json", "txt")]
    if f"{side}_1_vocabulary.json" in files or f"{side}_1_vocabulary.txt" in files:
        raise BundleError(
            f"{files.folder}: has several vocabularies of the {side}, for word features, which dragoman does not have; this "
            "model cannot be converted",
            code="conversion-unsupported",
        )
    name = next((name for name in names if name in files), None)
    if name is None:
        raise damaged(files.folder, f"has no {names[0]} and no {names[2]}")
    if name.endswith(".txt"):
        lines = files.read_text(name).split("\n")
        return [line.removesuffix("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]
    try:
        tokens = json.loads(files.read_text(name, MAX_JSON_BYTES))
    except (ValueError, RecursionError):
        raise damaged(files.folder / name, "is not valid JSON") from None
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise damaged(files.folder / name, "is not a list of tokens")
    return tokens


def _find(files: SourceFiles, settings: ModelSettings, tokens: list[str], key: str, default: str) -> int:
    """Return the id of a special token. Raise DataError if the vocabulary does not have it."""
    token = settings.get(key) or default
    if not isinstance(token, str) or token not in tokens:
        raise damaged(files.folder, f"{key} = {token!r:.40}, which is not in the vocabulary")
    return tokens.index(token)


def _find_start(files: SourceFiles, settings: ModelSettings, tokens: list[str]) -> int:
    """Return the id of the token that starts the decoder."""
    unknown = _find(files, settings, tokens, "unk_token", "<unk>")
    if "decoder_start_token" in settings and settings["decoder_start_token"] is None:
        raise settings.refuse("decoder_start_token", "dragoman starts with a fixed token, and not with one of the caller")
    start = _find(files, settings, tokens, "decoder_start_token", "<s>")
    if start == unknown:
        raise settings.refuse("decoder_start_token", "dragoman never starts with the unknown token")
    return start


def _build_order(files: SourceFiles, settings: ModelSettings, tokens: list[str], start: int | None = None) -> VocabularyOrder:
    """Return the order of a vocabulary.

    start: token that starts the decoder; None for a source, and for a decoder that starts with zeros
    """
    unknown = _find(files, settings, tokens, "unk_token", "<unk>")
    end = _find(files, settings, tokens, "eos_token", "</s>")
    padding = next((tokens.index(token) for token in PADDING_TOKENS if token in tokens), None)
    begin_token = settings.get("bos_token") or "<s>"
    begin = tokens.index(begin_token) if begin_token in tokens and tokens.index(begin_token) != end else None
    if start is not None:
        begin = begin if start == end else start
        padding = None if padding == start else padding
    special = [row for row in (padding, unknown, begin, end) if row is not None]
    if len(set(special)) < len(special):
        names = ", ".join(repr(tokens[row])[:40] for row in special)
        raise damaged(files.folder, f"two of its special tokens {names} are one")
    return VocabularyOrder.build(tokens, padding=padding, unknown=unknown, begin=begin, end=end)


class _Weights:
    """Weights of a folder, and the recipe section `model` that follows from their names, shapes and flags."""

    def __init__(self, folder: CTranslate2Folder) -> None:
        self.folder = folder
        self.arrays = folder.binary.arrays
        self.path = self.arrays.location
        self.builder = WeightBuilder(self.arrays, self.arrays.release)
        self.num_heads = self._read_equal_number("num_heads")

    def read(self) -> tuple[dict[str, TensorStream], dict[str, Any]]:
        """Return the weights of the bundle, and the recipe section `model`."""
        arrays, settings = self.arrays, self.folder.settings
        activation = self._read_equal_number("activation", 0)
        if activation >= len(ACTIVATIONS) or ACTIVATIONS[activation] not in SUPPORTED_ACTIVATIONS:
            name = ACTIVATIONS[activation] if activation < len(ACTIVATIONS) else str(activation)
            raise self._refuse("activation", name, f"dragoman has {', '.join(SUPPORTED_ACTIVATIONS)}")
        for name in ("encoder/multi_query_attention", "decoder/alibi"):
            if _read_flag(arrays, name, False):
                raise self._refuse(name, "true", "dragoman has no such feature")
        weights, tying = self._read_vocabulary_matrices()
        d_model = arrays.matrix("decoder/embeddings/weight").shape[1]
        has_bias = any(re.fullmatch(r"(en|de)coder/layer_\d+/(self_)?attention/linear_\d/bias", name) for name in arrays)
        num_layers = {stack: self._count_layers(stack) for stack in ("encoder", "decoder")}
        for stack, count in num_layers.items():
            for layer in range(count):
                weights |= self._read_layer(stack, layer, has_bias)
        stack_norms = {"layer_norm": "norm", "layernorm_embedding": "embedding.norm"}
        has_norm = {name: f"encoder/{name}/gamma" in arrays for name in stack_norms}
        for source, target in stack_norms.items():
            if has_norm[source] != (f"decoder/{source}/gamma" in arrays):
                raise self._refuse(source, "in one stack only", "dragoman has it in both stacks or in none")
            for stack in num_layers if has_norm[source] else ():
                weights |= self._read_norm(f"{stack}/{source}", f"{stack}.{target}")
        positions, position_weights = self._read_positions(d_model)
        weights |= position_weights
        width = arrays.matrix("encoder/layer_0/self_attention/linear_0/weight").shape[0] // (3 * self.num_heads)
        scales_embeddings = self._read_embedding_scale(d_model)
        arrays.used |= {name for name in arrays if IGNORED.fullmatch(name)}
        arrays.check_all_used("CTranslate2")
        arrays.release()
        return weights, {
            "encoder_layers": num_layers["encoder"],
            "decoder_layers": num_layers["decoder"],
            "d_model": d_model,
            "d_ff": arrays.matrix("encoder/layer_0/ffn/linear_0/weight").shape[0],
            "num_heads": self.num_heads,
            **({} if width * self.num_heads == d_model else {"d_k": width, "d_v": width}),
            "norm": "pre" if self._read_equal_number("pre_norm", 1) else "post",
            "final_norm": has_norm["layer_norm"],
            "embedding_norm": has_norm["layernorm_embedding"],
            "norm_epsilon": settings.number("layer_norm_epsilon", 1e-5),
            "attention_bias": has_bias,
            "activation": ACTIVATIONS[activation],
            **positions,
            "tie_embeddings": tying,
            "output_bias": "output_bias" in weights,
            "scale_embeddings": scales_embeddings,
            "decoder_start_token": self.folder.start,
            "append_source_eos": self.folder.append_source_eos,
        }

    def _refuse(self, name: str, value: object, problem: str) -> BundleError:
        return BundleError(
            f"{self.path}: {name} = {value!s:.60}: {problem}; this model cannot be converted", code="conversion-unsupported"
        )

    def _read_number(self, name: str, default: int | None = None) -> int:
        if name not in self.arrays and default is not None:
            return default
        value = self.arrays[name].item()
        if not isinstance(value, int) or value < 0:
            raise damaged(self.path, f"{name} = {value!r:.40} is not a whole number from 0 up")
        return value

    def _read_equal_number(self, name: str, default: int | None = None) -> int:
        """Return a number that both stacks share. Models of revision 4 and before have one number for both."""
        if self.folder.binary.revision < 5:
            return self._read_number(name, default)
        encoder, decoder = (self._read_number(f"{stack}/{name}", default) for stack in ("encoder", "decoder"))
        if encoder != decoder:
            raise self._refuse(
                f"decoder/{name}", decoder, f"dragoman has one value for both stacks, but encoder/{name} differs"
            )
        return encoder

    def _read_embedding_scale(self, d_model: int) -> bool:
        """Return whether the embeddings of both stacks are multiplied by √d."""
        scales = set()
        for stack in ("encoder", "decoder"):
            embeddings = "encoder/embeddings_0" if f"{stack}/embeddings_0/weight" in self.arrays else f"{stack}/embeddings"
            name = f"{stack}/scale_embeddings"
            if name not in self.arrays and f"{embeddings}/multiply_by_sqrt_depth" in self.arrays:
                name = f"{embeddings}/multiply_by_sqrt_depth"
            array = self.arrays.find(name)
            value = None if array is None else array.item()
            if array is None or (array.dtype == np.int8 and value == 1):
                scales.add(True)
            elif value in (0, 1):  # 0 is a flag, and 1.0 a factor
                scales.add(False)
            elif isinstance(value, float) and abs(value - d_model**0.5) < 1e-2:
                scales.add(True)
            else:
                raise self._refuse(name, value, "dragoman multiplies by 1 or √d_model")
        if len(scales) > 1:
            raise self._refuse(
                "decoder/scale_embeddings", True, "dragoman has one value for both stacks, and the encoder's differs"
            )
        return scales.pop()

    def _read_vocabulary_matrices(self) -> tuple[dict[str, TensorStream], str]:
        """Return the embeddings, the output matrix and its bias, and which matrices are one."""
        source_order, target_order = self.folder.orders
        source_name = (
            "encoder/embeddings/weight" if "encoder/embeddings/weight" in self.arrays else "encoder/embeddings_0/weight"
        )
        names = {"source": source_name, "target": "decoder/embeddings/weight", "output": "decoder/projection/weight"}
        canonical = {key: self.folder.binary.canonical_names.get(name) for key, name in names.items()}
        weights = {"output": self._reorder(names["output"], target_order)}
        tying = "none"
        if canonical["target"] == canonical["output"]:
            is_joint = canonical["source"] == canonical["output"] and source_order == target_order
            tying = "all" if is_joint else "decoder"
        if tying == "none":
            weights["decoder.embedding.weight"] = self._reorder(names["target"], target_order)
        if tying != "all":
            weights["encoder.embedding.weight"] = self._reorder(names["source"], source_order)
        self.arrays.used |= set(names.values())
        bias = self.arrays.find("decoder/projection/bias")
        if bias is not None or target_order.has_missing_rows:
            values = None if bias is None else bias.load().reshape(-1)
            if values is not None and len(values) != target_order.num_source_rows:
                raise damaged(self.path, f"decoder/projection/bias has {len(values)} values, unlike the vocabulary")
            weights["output_bias"] = self.builder.output_bias(values, target_order, weights["output"].dtype)
        return weights, tying

    def _reorder(self, name: str, order: VocabularyOrder) -> TensorStream:
        matrix = self.arrays.matrix(name)
        if len(matrix) != order.num_source_rows:
            raise damaged(self.path, f"{name} has {len(matrix)} rows, but the vocabulary has {order.num_source_rows} tokens")
        return self.builder.reorder_rows(matrix, order)

    def _count_layers(self, stack: str) -> int:
        numbers = [int(match[1]) for name in self.arrays if (match := re.match(rf"{stack}/layer_(\d{{1,4}})/", name))]
        if not numbers:
            raise damaged(self.path, f"has no layers of the {stack}")
        return 1 + max(numbers)

    def _read_layer(self, stack: str, layer: int, has_bias: bool) -> dict[str, TensorStream]:
        source, target = f"{stack}/layer_{layer}", f"{stack}.layers.{layer}"
        weights = self._read_attention(f"{source}/self_attention", f"{target}.attention", [["query", "key", "value"]], has_bias)
        weights |= self._read_norm(f"{source}/self_attention/layer_norm", f"{target}.attention_residual.norm")
        if stack == "decoder":
            groups = [["query"], ["key", "value"]]
            weights |= self._read_attention(f"{source}/attention", f"{target}.cross_attention", groups, has_bias)
            weights |= self._read_norm(f"{source}/attention/layer_norm", f"{target}.cross_attention_residual.norm")
        for part, name in (("linear_0", "inner"), ("linear_1", "outer")):
            weights |= self._read_linear(f"{source}/ffn/{part}", [f"{target}.feed_forward.{name}"], has_bias=True)
        return weights | self._read_norm(f"{source}/ffn/layer_norm", f"{target}.feed_forward_residual.norm")

    def _read_attention(self, source: str, target: str, groups: list[list[str]], has_bias: bool) -> dict[str, TensorStream]:
        """Return the weights of one attention. groups: the projections that each of the first matrices holds"""
        width = len(self.arrays.matrix(f"{source}/linear_0/weight")) / (len(groups[0]) * max(1, self.num_heads))
        scale = 1.0
        if f"{source}/queries_scale" in self.arrays:
            value = self.arrays[f"{source}/queries_scale"].item()
            scale = float(value or 0) * width**0.5
            scale = 1.0 if abs(scale - 1) < 1e-6 else scale
        weights: dict[str, TensorStream] = {}
        for index, names in enumerate([*groups, ["output"]]):
            targets = [f"{target}.{name}" for name in names]
            weights |= self._read_linear(f"{source}/linear_{index}", targets, has_bias, 1.0 if index else scale)
        return weights

    def _read_linear(
        self, source: str, targets: list[str], has_bias: bool, first_scale: float = 1.0
    ) -> dict[str, TensorStream]:
        """Return the weights and biases of projections that one matrix holds. first_scale: factor of the first of them"""
        matrix = self.arrays.matrix(f"{source}/weight")
        num_rows, remainder = divmod(len(matrix), len(targets))
        if remainder:
            raise damaged(self.path, f"{source}/weight has {len(matrix)} rows, which are not {len(targets)} equal parts")
        bias = self.arrays.find(f"{source}/bias")
        if bias is not None and bias.shape != matrix.shape[:1]:
            raise damaged(self.path, f"{source}/bias has the shape {tuple(bias.shape)}, but its matrix has {len(matrix)} rows")
        weights: dict[str, TensorStream] = {}
        for index, target in enumerate(targets):
            start, stop, scale = index * num_rows, (index + 1) * num_rows, 1.0 if index else first_scale
            weights[f"{target}.weight"] = self.builder.concat([matrix.select(start, stop)], scale=scale)
            if has_bias:
                part: RowSource = np.zeros(num_rows, np.float32) if bias is None else bias.select(start, stop)
                weights[f"{target}.bias"] = self.builder.concat([part], scale=scale)
        return weights

    def _read_norm(self, source: str, target: str) -> dict[str, TensorStream]:
        """Return the weights of a layer normalization. Raise BundleError for one without bias."""
        if f"{source}/gamma" in self.arrays and f"{source}/beta" not in self.arrays:
            raise self._refuse(f"{source}/beta", "missing", "dragoman has no normalization by the root mean square")
        parts = (("weight", "gamma"), ("bias", "beta"))
        return {f"{target}.{kind}": self.builder.copy(f"{source}/{name}") for kind, name in parts}

    def _read_positions(self, d_model: int) -> tuple[dict[str, Any], dict[str, TensorStream]]:
        """Return the settings of the positions, and their weights if they are learned."""
        names = {stack: f"{stack}/position_encodings/encodings" for stack in ("encoder", "decoder")}
        tables = {stack: widen(self.arrays.matrix(name).load()) for stack, name in names.items() if name in self.arrays}
        if not tables:  # CTranslate2's own sinusoids begin at 1
            return {"position_encoding": "concatenated", "position_offset": 1}, {}
        if len(tables) < len(names):
            raise self._refuse("position_encodings", "in one stack only", "dragoman has one kind of positions for both stacks")
        if any(table.shape[1] != d_model for table in tables.values()):
            raise damaged(self.path, f"its table of positions is not {d_model} wide")
        encoder, decoder = (_find_sinusoids(table) for table in tables.values())
        if encoder is not None and encoder == decoder:
            return {"position_encoding": encoder[0], "position_offset": encoder[1]}, {}
        num_positions = len(tables["encoder"])
        if num_positions != len(tables["decoder"]):
            raise self._refuse("position_encodings", "of two lengths", "dragoman has one number of learned positions")
        weights = {  # in float32, because dragoman multiplies learned positions by √d
            f"{stack}.embedding.positions.weight": self.builder.concat([table], scale=d_model**-0.5)
            for stack, table in tables.items()
        }
        return {"position_encoding": "learned", "max_positions": num_positions}, weights


def _find_sinusoids(table_PD: Array) -> tuple[str, int] | None:
    """Return the layout and the first position of sinusoids; None for other positions."""
    num_positions, d_model = table_PD.shape
    if d_model % 2:
        return None
    for layout, compute in SINUSOIDS.items():
        for offset in range(3):
            expected = compute(offset + num_positions, d_model)[offset:]
            if np.allclose(table_PD, expected, rtol=0.0, atol=POSITION_TOLERANCE):
                return layout, offset
    return None

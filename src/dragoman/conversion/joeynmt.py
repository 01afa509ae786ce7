"""Model folders of JoeyNMT, versions 1 and 2.

- `config.yaml` has the options of the experiment (extra `joeynmt`). It is read by PyYAML's safe loader.
- `best.ckpt`, or the only `*.ckpt`, has the tensors.
- `src_vocab.txt` and `trg_vocab.txt` number the tokens.
- A SentencePiece model or codes of subword-nmt split the text; `config.yaml` names them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.bundle import ModelOrigin
from dragoman.conversion.checkpoint_reader import NUMPY_CLASSES, CheckpointContent, read_checkpoint
from dragoman.conversion.mapped_arrays import damaged
from dragoman.conversion.source_files import ModelSettings, SourceFiles, SourceTensors, is_state_dict
from dragoman.conversion.target import ConversionOptions, ConvertedModel, build_model, describe_beam
from dragoman.conversion.text_tokenizers import read_codes_file
from dragoman.conversion.vocabulary_order import VocabularyOrder
from dragoman.conversion.weight_reader import WeightReader
from dragoman.data.tokenization.characters import CharacterScheme
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.data.tokenization.piece_vocabulary import PieceVocabulary
from dragoman.data.tokenization.special_tokens import SPECIAL_IDS
from dragoman.data.tokenization.subword_nmt import CONTINUATION, SubwordNmtScheme
from dragoman.data.tokenization.token_list import TokenListTokenizer, TokenScheme
from dragoman.data.tokenization.vocabulary import TextTokenizer
from dragoman.data.tokenization.words import WordScheme
from dragoman.errors import DataError, MissingDependencyError
from dragoman.io.safetensors import TensorStream

NAME = "joeynmt"
CONFIG_FILE, SOURCE_VOCABULARY, TARGET_VOCABULARY = "config.yaml", "src_vocab.txt", "trg_vocab.txt"
BEST_CHECKPOINT = "best.ckpt"
MAX_CONFIG_BYTES, MAX_DEPTH, MAX_ALIASES = 2**18, 32, 8
"""Limits of `config.yaml`. Merged aliases multiply, and PyYAML takes quadratic time for nested values."""
INERT_CLASSES = frozenset([*NUMPY_CLASSES, "collections.deque"])
"""Classes of the training's statistics, which stay plain data."""
SPECIAL_TOKENS = {"unk": "<unk>", "pad": "<pad>", "bos": "<s>", "eos": "</s>"}
"""First tokens of each vocabulary, by their name in `special_symbols`."""
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu"}
"""Activations by their name in JoeyNMT."""
ATTENTION_PARTS = {"q_layer": "query", "k_layer": "key", "v_layer": "value", "output_layer": "output"}
FEED_FORWARD_PARTS = {
    "feed_forward.pwff_layer.0": "feed_forward.inner",
    "feed_forward.pwff_layer.3": "feed_forward.outer",
    "feed_forward.layer_norm": "feed_forward_residual.norm",
}
ATTENTIONS = {
    "encoder": {"src_src_att": "attention"},
    "decoder": {"trg_trg_att": "attention", "src_trg_att": "cross_attention"},
}
NORMS = {
    "encoder": {"layer_norm": "attention_residual.norm"},
    "decoder": {"x_layer_norm": "attention_residual.norm", "dec_layer_norm": "cross_attention_residual.norm"},
}
"""Parts of the layers of each stack: name in JoeyNMT → name in dragoman."""
MOSES_NOTE = "The model reads text that the Moses tokenizer has split, and writes such text; the bundle has no Moses tokenizer."
NORMALIZE_NOTE = "JoeyNMT also replaces typographic quotes and removes spaces before punctuation, which the bundle does not do."
LOWERCASE_NOTE = "The model reads lower-cased text; the bundle does not change the case."
VOCABULARY_NOTE = "JoeyNMT splits subwords that the vocabulary lacks further; the bundle reads them as <unk>."


@dataclass(frozen=True)
class Segmenter:
    """Splitter of the text of one side.

    Attributes:
        kind: sentencepiece, subword-nmt, word or char
        file_name: SentencePiece model or codes; empty if there is none
        is_pretokenized: the text is split by another program before
    """

    kind: str
    file_name: str
    is_pretokenized: bool

    @property
    def is_sentencepiece(self) -> bool:
        """Return whether the splitter is a SentencePiece model."""
        return self.kind == "sentencepiece"


def detect(files: SourceFiles) -> bool:
    """Return whether a folder holds a model of JoeyNMT."""
    return CONFIG_FILE in files and SOURCE_VOCABULARY in files


def read(files: SourceFiles, options: ConversionOptions) -> ConvertedModel:
    """Return the model of a folder."""
    config = _read_config(files)
    data, model = _get_section(config, "data"), _get_section(config, "model")
    # Version 1 has one set of options for both sides, and `src` and `trg` are the languages.
    sides = [_get_section(data, side) if isinstance(data.get(side), dict) else data for side in ("src", "trg")]
    source_order, target_order = (_read_vocabulary(files, name, data) for name in (SOURCE_VOCABULARY, TARGET_VOCABULARY))
    tensors = _read_tensors(files)
    section = _convert_settings(model, tensors)
    tie_embeddings, weights = _build_weights(tensors, section, (source_order, target_order))
    segmenters = [_find_segmenter(side) for side in sides]
    if len({segmenter.kind for segmenter in segmenters}) > 1:
        raise sides[1].refuse("level", "dragoman has one kind of tokenizer for both sides")
    source = _build_tokenizer(files, sides[0], segmenters[0], source_order)
    is_joint = source_order == target_order and segmenters[0] == segmenters[1]
    target = source if is_joint else _build_tokenizer(files, sides[1], segmenters[1], target_order)
    languages = options.choose_languages(
        *(_get_text(side, "lang") or _get_text(data, name) for side, name in zip(sides, ("src", "trg"), strict=True))
    )
    return build_model(
        ModelOrigin(format=NAME, name=options.name),
        config.path,
        languages,
        {
            "task": {"tokenized": segmenters[0].is_pretokenized},
            "model": {**section, "tie_embeddings": tie_embeddings, "output_bias": target_order.has_missing_rows},
            "decoding": _convert_search(_get_section(config, "testing", is_required=False)),
        },
        PairTokenizer(source, target, append_source_eos=True),
        weights,
        notes=tuple(_list_notes(sides[0], segmenters[0])),
    )


def _read_config(files: SourceFiles) -> ModelSettings:
    """Return the options of the experiment. Raise DataError if the file is not YAML, or exceeds a limit of this module."""
    path = files.folder / CONFIG_FILE
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError:
        raise MissingDependencyError("PyYAML", "joeynmt", f"{path}: a configuration of JoeyNMT") from None
    text = files.read_text(CONFIG_FILE, MAX_CONFIG_BYTES)
    try:
        depth = num_aliases = 0
        for event in yaml.parse(text, yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            num_aliases += isinstance(event, yaml.AliasEvent)
            if depth > MAX_DEPTH or num_aliases > MAX_ALIASES:
                raise damaged(
                    path, f"has more than {MAX_DEPTH} nested values or {MAX_ALIASES} aliases (*name); write it plainly"
                )
        document = yaml.safe_load(text)
        repr(document)  # raises ValueError for a number of thousands of digits, which no message can show
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError, TypeError, AttributeError, LookupError) as error:
        raise damaged(path, f"is not valid YAML ({type(error).__name__})") from None
    if not isinstance(document, dict):
        raise damaged(path, "is not a YAML mapping")
    return _as_settings(document, path)


def _as_settings(values: Mapping[Any, Any], path: Path) -> ModelSettings:
    return ModelSettings({str(name): value for name, value in values.items()}, path)


def _get_section(config: ModelSettings, name: str, *, is_required: bool = True) -> ModelSettings:
    """Return a section of the options. Raise DataError if it is missing or something else."""
    section = config.get(name, None if is_required else {})
    if not isinstance(section, dict):
        raise damaged(config.path, f"has no section {name}")
    return _as_settings(section, config.path)


def _get_text(settings: ModelSettings, name: str) -> str:
    value = settings.get(name)
    return value if isinstance(value, str) else ""


def _read_vocabulary(files: SourceFiles, name: str, data: ModelSettings) -> VocabularyOrder:
    """Return the order of a vocabulary, which has one token a line, and begins with the special tokens."""
    symbols = _get_section(data, "special_symbols", is_required=False)
    if symbols.get("lang_tags"):
        raise symbols.refuse("lang_tags", "dragoman has no prompts")
    tokens = [symbols.get(f"{key}_token") or default for key, default in SPECIAL_TOKENS.items()]
    tokens += [symbols["sep_token"]] if symbols.get("sep_token") else []
    if not all(isinstance(token, str) for token in tokens) or len(set(tokens)) < len(tokens):
        raise damaged(data.path, "special_symbols are not different texts")
    lines = files.read_text(name).splitlines()  # as JoeyNMT reads it
    return VocabularyOrder.build(list(dict.fromkeys(tokens + lines)), unknown=0, padding=1, begin=2, end=3)


def _read_tensors(files: SourceFiles) -> SourceTensors:
    """Return the tensors of the best checkpoint, or of the only one."""
    names = sorted(name for name in files.names if name.endswith(".ckpt"))
    if BEST_CHECKPOINT not in names and len(names) != 1:
        raise DataError(
            f"{files.folder}: has no {BEST_CHECKPOINT} and {len(names)} other checkpoints; copy the best one into the folder",
            code="source-damaged",
        )
    path = files.path(BEST_CHECKPOINT if BEST_CHECKPOINT in names else names[0])
    checkpoint: CheckpointContent = read_checkpoint(path, inert_classes=INERT_CLASSES)
    state = checkpoint.value.get("model_state") if isinstance(checkpoint.value, dict) else None
    if not is_state_dict(state):
        raise damaged(path, "has no model_state, so it is not a checkpoint of JoeyNMT")
    return SourceTensors(state, checkpoint.release, path, settings=CONFIG_FILE)


def _convert_settings(model: ModelSettings, tensors: SourceTensors) -> dict[str, Any]:
    """Return the recipe section `model`, without the keys that the weights determine."""
    stacks = {name: _get_section(model, name) for name in ("encoder", "decoder")}
    encoder, decoder = stacks.values()
    if encoder.get("type", "recurrent") != "transformer" or decoder.get("type", "transformer") != "transformer":
        raise encoder.refuse("type", "dragoman has the Transformer only")
    for stack in stacks.values():
        stack.require("alpha", 1.0, 1.0)
    for name in ("hidden_size", "ff_size", "num_heads", "activation", "layer_norm"):
        if encoder.get(name) != decoder.get(name):
            raise decoder.refuse(name, "dragoman has one value for both stacks, but the encoder's differs")
    activation = encoder.get("activation", "relu")
    if activation not in list(ACTIVATIONS):
        raise encoder.refuse("activation", f"dragoman has {', '.join(ACTIVATIONS)}")
    # Version 1 is always pre-norm. The defaults of the versions 2 differ, and are not the same for both stacks in 2.3.
    norm = encoder.get("layer_norm", "pre" if "encoder.layer_norm.weight" in tensors else None)
    if norm not in ("pre", "post"):
        raise encoder.refuse("layer_norm", "versions of JoeyNMT differ if it is not set; add 'pre' or 'post' to both stacks")
    embeddings = {name: _get_section(stack, "embeddings") for name, stack in stacks.items()}
    scales = {name: section.boolean("scale", False) for name, section in embeddings.items()}
    if model.boolean("tied_embeddings", False):
        scales["decoder"] = scales["encoder"]
    if scales["encoder"] != scales["decoder"]:
        raise embeddings["decoder"].refuse("scale", "dragoman has one value for both stacks, but the encoder's differs")
    dropout = encoder.number("dropout", 0.0)
    return {
        "encoder_layers": encoder.integer("num_layers", 8),
        "decoder_layers": decoder.integer("num_layers", 4),
        "d_model": encoder.integer("hidden_size", 512),
        "d_ff": encoder.integer("ff_size", 2048),
        "num_heads": encoder.integer("num_heads"),
        "norm": norm,
        "final_norm": norm == "pre",
        "norm_epsilon": 1e-6,
        "attention_bias": True,
        "activation": ACTIVATIONS[activation],
        "position_encoding": "interleaved",
        "scale_embeddings": scales["encoder"],
        "residual_dropout": dropout,
        "embedding_dropout": embeddings["encoder"].number("dropout", dropout),
        "attention_dropout": dropout,
        "activation_dropout": dropout,
        "decoder_start_token": "bos",
        "append_source_eos": True,
    }


def _build_weights(
    tensors: SourceTensors,
    section: Mapping[str, Any],
    orders: tuple[VocabularyOrder, VocabularyOrder],
) -> tuple[str, dict[str, TensorStream]]:
    """Return the weights of the bundle, and which matrices are equal, as `model.tie_embeddings` has it."""
    reader = WeightReader(tensors, prefix="", family="JoeyNMT's Transformer")
    encoder = reader.get("src_embed.lut.weight")
    decoder = reader.get("trg_embed.lut.weight")
    output = reader.get("decoder.output_layer.weight")
    tie_embeddings, weights = reader.read_vocabulary_matrices(encoder, decoder, output, orders)
    for stack in ("encoder", "decoder"):
        parts = FEED_FORWARD_PARTS | NORMS[stack]
        for attention, name in ATTENTIONS[stack].items():
            parts |= {f"{attention}.{part}": f"{name}.{target}" for part, target in ATTENTION_PARTS.items()}
        weights |= reader.read_layers(stack, section[f"{stack}_layers"], parts)
        if section["final_norm"]:
            weights |= reader.read_norm(stack)
        reader.skip_sinusoids(f"{stack}.pe.pe", layout="interleaved")
    reader.check_all_used()
    return tie_embeddings, weights


def _find_segmenter(side: ModelSettings) -> Segmenter:
    """Return the splitter of the text of a side. Raise BundleError for a tokenizer that dragoman does not have."""
    level = side.get("level", "word")
    options = _get_section(side, "tokenizer_cfg", is_required=False)
    pretokenizer = options.get("pretokenizer") or "none"
    if pretokenizer not in ("none", "moses"):
        raise options.refuse("pretokenizer", "dragoman knows none and moses")
    if level in ("word", "char"):
        return Segmenter(level, "", level == "word" or pretokenizer == "moses")
    if level != "bpe":
        raise side.refuse("level", "dragoman has word, char and bpe")
    if isinstance(side.get("src"), str):  # version 1 reads text that is split already
        return Segmenter("subword-nmt", "", True)
    kind = side.get("tokenizer_type") or side.get("bpe_type") or "sentencepiece"
    if kind not in ("sentencepiece", "subword-nmt"):
        raise side.refuse("tokenizer_type", "dragoman has sentencepiece and subword-nmt")
    options.require("separator", CONTINUATION, CONTINUATION)
    key = "model_file" if kind == "sentencepiece" else "codes"
    file_name = re.split(r"[/\\]", _get_text(options, key))[-1]
    if not file_name:
        raise damaged(side.path, f"names no {key}")
    return Segmenter(kind, file_name, kind == "subword-nmt" or pretokenizer == "moses")


def _build_tokenizer(files: SourceFiles, side: ModelSettings, segmenter: Segmenter, order: VocabularyOrder) -> TextTokenizer:
    """Return the tokenizer of one side."""
    path = files.path(segmenter.file_name) if segmenter.file_name else side.path
    if segmenter.is_sentencepiece:
        return PieceVocabulary(files.read_bytes(segmenter.file_name), order.pieces, name=str(path))
    schemes: dict[str, TokenScheme] = {
        "word": WordScheme(), "char": CharacterScheme(), "subword-nmt": SubwordNmtScheme(None)
    }  # fmt: skip
    scheme = schemes[segmenter.kind]
    if segmenter.file_name:
        scheme = read_codes_file(files, segmenter.file_name)
    return TokenListTokenizer(
        scheme,
        order.pieces[len(SPECIAL_IDS) :],
        normalization="nfkc" if side.boolean("normalize", False) else "identity",
        lowercase=side.boolean("lowercase", False),
        name=str(path),
    )


def _convert_search(testing: ModelSettings) -> dict[str, Any]:
    """Return the recipe section `decoding`."""
    if testing.number("repetition_penalty", -1.0) > 1.0:
        raise testing.refuse(
            "repetition_penalty", "JoeyNMT applies it in another way; remove it from the file to convert without it"
        )
    beam_size = testing.integer("beam_size", 1)
    alpha = testing.number("beam_alpha", testing.number("alpha", -1.0))
    max_length = _get_count(testing, "max_output_length")
    return {
        **describe_beam(beam_size),
        **({"length_penalty": "gnmt", "alpha": alpha} if alpha >= 0 else {"length_penalty": "none"}),
        "early_stopping": "best",
        **({"max_extra_tokens": max_length} if max_length > 0 else {}),
        "min_length": _get_count(testing, "min_output_length", 1),
        "no_repeat_ngram_size": _get_count(testing, "no_repeat_ngram_size"),
        "suppress_tokens": [] if testing.boolean("generate_unk", True) else [SPECIAL_TOKENS["unk"]],
    }


def _get_count(settings: ModelSettings, name: str, default: int = 0) -> int:
    """Return a whole number; -1 stands for 0."""
    return 0 if settings.get(name) == -1 else settings.integer(name, default)


def _list_notes(side: ModelSettings, segmenter: Segmenter) -> list[str]:
    """Return the differences to the source, one sentence each."""
    options = _get_section(side, "tokenizer_cfg", is_required=False)
    notes = [MOSES_NOTE] if options.get("pretokenizer") == "moses" else []
    if side.boolean("normalize", False):
        notes.append(NORMALIZE_NOTE)
    if segmenter.is_sentencepiece and side.boolean("lowercase", False):
        notes.append(LOWERCASE_NOTE)
    if segmenter.file_name:
        notes.append(VOCABULARY_NOTE)
    return notes

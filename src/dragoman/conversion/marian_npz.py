"""Models of Marian: `model.npz` as OPUS-MT publishes it, or `model.bin` as Firefox uses it, with its vocabularies.

- `*.npz` or `model*.bin` has the weights, and the settings of the architecture as the entry `special:model.yml`.
- `decoder.yml`, `model.npz.decoder.yml` or `config.*.yml` names the model and its vocabularies, and has the search options.
- `lex*.bin` is the lexical shortlist.
- A vocabulary is a SentencePiece model (`.spm`), which also splits the text, or a list of tokens (`.yml`, `.json` or `.txt`).
- `source.spm` and `target.spm`, or the codes `source.bpe` and `target.bpe`, split the text of a list of tokens.
- `README.md` and `LICENSE` state languages and license of the OPUS-MT models.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np

from dragoman.bundle import ModelOrigin
from dragoman.conversion.mapped_arrays import MappedArray, MappedArrays, damaged
from dragoman.conversion.marian_binary import Int8Array, is_binary, open_binary, read_lexical_table
from dragoman.conversion.marian_yaml import parse_settings, parse_vocabulary
from dragoman.conversion.model_card import read_license
from dragoman.conversion.npz_file import open_npz
from dragoman.conversion.source_files import ModelSettings, SourceFiles
from dragoman.conversion.target import (
    ConversionOptions,
    ConvertedModel,
    WeightBuilder,
    build_model,
    check_language,
    describe_beam,
)
from dragoman.conversion.text_tokenizers import build_pair_tokenizer, describe_text, find_segmenters
from dragoman.conversion.vocabulary_order import VocabularyOrder
from dragoman.data.tokenization.language_tokens import list_languages
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.data.tokenization.piece_vocabulary import PieceVocabulary
from dragoman.data.tokenization.sentencepiece_proto import CONTROL, UNKNOWN, read_pieces
from dragoman.errors import DataError
from dragoman.io.int8_tensors import INPUT_STEP_SUFFIX, STEP_SUFFIX
from dragoman.io.safetensors import TensorStream, is_floating_point
from dragoman.shortlist import Shortlist, compute_vocabulary_digest
from dragoman.tasks.attention_alignment import AlignmentHead

NAME, BINARY_NAME = "marian-npz", "marian-bin"
SETTINGS_ENTRY = "special:model.yml"
DECODER_FILE, DECODER_NAME = "decoder.yml", re.compile(r"[^/]+\.decoder\.yml|config\.intgemm[^/]*\.yml")
VOCABULARIES = ("vocab.spm", "vocab.yml")
"""Vocabularies of both sides in a folder without settings of the decoder."""
VOCABULARY_NAME = re.compile(r"(src|trg)?vocab\.[\w-]{1,20}\.spm")
"""Vocabularies of Firefox's models, with the languages in their names."""
MODEL_LANGUAGES = re.compile(r"model\.([a-z]{2})([a-z]{2})\.[\w.]{1,100}")
"""Name of a model of Firefox, with its languages."""
SEGMENTER_PAIRS, CODES = (("source.spm", "target.spm"), ("source.bpe", "target.bpe")), ("source.bpe", "target.bpe")
LANGUAGE_TOKEN = ">>{}<<"
END_TOKENS, UNKNOWN_TOKENS = ("</s>", "eos"), ("<unk>", "UNK")
"""Names of the two special tokens in a list, and those of Nematus, which have the numbers 0 and 1."""
ACTIVATIONS = {"relu": "relu", "swish": "silu"}
"""Activations by their name in Marian. Its GELU is x·σ(1.702·x), which dragoman does not have."""
PROJECTIONS = {"q": "query", "k": "key", "v": "value", "o": "output"}
# Settings with the only values that dragoman has; a setting that is missing has the first one.
FIXED_SETTINGS: dict[str, tuple[Any, ...]] = {
    "type": ("transformer",),
    "transformer-decoder-autoreg": ("self-attention", "rnn"),
    "transformer-no-projection": (False,),
    "transformer-no-bias": (False,),
    "transformer-no-affine": (False,),
    "transformer-rnn-projection": (False,),
    "transformer-pool": (False,),
    "transformer-tied-layers": ([], None),
    "transformer-ffn-depth": (2,),
    "transformer-decoder-ffn-depth": (0, 2),
    "right-left": (False,),
    "ulr": (False,),
    "lemma-dim-emb": (0,),
    "lemma-dependency": ("", None),
    "input-types": ([], None),
    "factors-combine": ("sum", "", None),
}
TRANSLATION_SETTINGS: dict[str, tuple[Any, ...]] = {
    "word-penalty": (0, 0.0),
    "skip-cost": (False,),
    "output-sampling": ([], None, False),
    "n-best": (False,),
}
SEARCH_NOTE = "The folder has no decoder.yml, so the search options of OPUS-MT are set: a beam of 6 and a length penalty of 1."


@dataclass(frozen=True)
class _Vocabulary:
    """Vocabulary of one side. segmenter: file that splits its text, if it is the vocabulary itself"""

    order: VocabularyOrder
    segmenter: str | None


def detect(files: SourceFiles) -> bool:
    """Return whether a folder holds a model of Marian."""
    return DECODER_FILE in files or bool(_list_models(files))


def _list_models(files: SourceFiles) -> list[str]:
    """Return the names of the files that may be a model."""
    return sorted(
        name
        for name in files.names
        if (name.endswith(".npz") and not name.endswith(".optimizer.npz"))
        or (name.startswith("model") and name.endswith(".bin") and _begins_as_binary(files, name))
    )


def _begins_as_binary(files: SourceFiles, name: str) -> bool:
    return bool((files.folder / name).stat().st_size) and is_binary(files.map_file(name))


def read(files: SourceFiles, options: ConversionOptions) -> ConvertedModel:
    """Return the model of a folder."""
    decoder = _read_decoder_settings(files)
    model_file = _choose_model(files, decoder)
    path = files.path(model_file)
    has_binary = model_file.endswith(".bin")
    arrays = open_binary(files.map_file(model_file), path) if has_binary else open_npz(path)
    if SETTINGS_ENTRY not in arrays:
        raise damaged(path, f"has no {SETTINGS_ENTRY}, so it is not a model of Marian")
    text = arrays[SETTINGS_ENTRY].load().astype(np.uint8).tobytes()
    # The binary format ends the text with a zero byte, and has other bytes behind it.
    settings = ModelSettings(parse_settings(text.partition(b"\0")[0].decode("utf-8", "replace"), path), path)
    _check_settings(settings, decoder)
    names = _choose_vocabularies(files, decoder)
    sizes = _get_sizes(settings)
    source = _read_vocabulary(files, names[0], sizes[0])
    target = source if names[0] == names[1] and sizes[0] == sizes[1] else _read_vocabulary(files, names[1], sizes[1])
    segmenters = (source.segmenter, target.segmenter)
    if segmenters == (None, None):
        segmenters = find_segmenters(files, SEGMENTER_PAIRS, ())
    elif None in segmenters:
        raise damaged(files.folder, "only one of its vocabularies is a SentencePiece model")
    orders = (source.order, target.order)
    tokenizer = build_pair_tokenizer(files, segmenters, orders, append_source_eos=True, codes=CODES)
    weights, model_section = _build_weights(arrays, settings, orders, tokenizer.shares_vocabulary)
    languages = list_languages(LANGUAGE_TOKEN, tokenizer.source)
    # A list of tokens reads the token of a language as a word of the text.
    is_multilingual = len(languages) > 1 and isinstance(tokenizer.source, PieceVocabulary) and tokenizer.shares_vocabulary
    stated = _read_languages(files, model_file)
    source_language, target_language = options.choose_languages(*(side[0] if len(side) == 1 else "" for side in stated))
    if is_multilingual:
        check_language(files.folder, "target", options.target_language or "", languages)
        target_language = target_language if target_language in languages else ""
    origin = ModelOrigin(
        format=BINARY_NAME if has_binary else NAME,
        name=options.name,
        license=_read_license(files),
        source_languages=None if options.source_language else stated[0] or None,
        target_languages=languages if is_multilingual else None if target_language else stated[1] or None,
    )
    return build_model(
        origin,
        path,
        (source_language, target_language),
        {
            "tokenizer": {"language_token": LANGUAGE_TOKEN} if is_multilingual else {},
            "model": model_section,
            "decoding": _convert_search(decoder, model_section.get("max_positions"), is_greedy=has_binary),
        },
        tokenizer,
        weights,
        notes=(*(() if decoder or has_binary else (SEARCH_NOTE,)), *describe_text(tokenizer, segmenters[0] in CODES)),
        shortlist=_read_shortlist(files, decoder, orders, tokenizer),
        alignment=None if settings.get("transformer-guided-alignment-layer") != "last" else AlignmentHead(-1, 0),
    )


def _read_shortlist(
    files: SourceFiles, decoder: ModelSettings, orders: tuple[VocabularyOrder, VocabularyOrder], tokenizer: PairTokenizer
) -> Shortlist | None:
    """Return the lexical shortlist; None if the folder has no binary one."""
    stated = decoder.get("shortlist")
    names = sorted(name for name in files.names if name.startswith("lex") and name.endswith(".bin"))
    name = _get_file_name(stated[0], decoder) if isinstance(stated, list) and stated else next(iter(names), None)
    if name is None or not name.endswith(".bin"):
        return None
    table = read_lexical_table(files.map_file(name), files.path(name))
    rows, columns = orders
    target_ids = np.zeros(len(columns), np.int32)
    target_ids[[row for row in columns.rows if row is not None]] = [
        index for index, row in enumerate(columns.rows) if row is not None
    ]
    num_source = len([row for row in rows.rows if row is not None])
    if len(table.offset_V) != num_source + 1 or table.candidates.max(initial=0) >= len(target_ids):
        raise damaged(files.folder / name, f"is not the shortlist of vocabularies of {num_source} and {len(columns)} tokens")
    candidates_VK = np.zeros((len(rows), int(np.diff(table.offset_V).max(initial=0))), np.int32)
    for index, row in enumerate(rows.rows):
        if row is not None:
            tokens = target_ids[table.candidates[table.offset_V[row] : table.offset_V[row + 1]]]
            candidates_VK[index, : len(tokens)] = tokens
    frequent_F = target_ids[: min(table.num_frequent, len(target_ids))]
    return Shortlist(candidates_VK, frequent_F, tokenizer.shares_vocabulary, compute_vocabulary_digest(tokenizer))


def _read_decoder_settings(files: SourceFiles) -> ModelSettings:
    """Return the settings of the decoder; none if there is no such file."""
    names = [DECODER_FILE] if DECODER_FILE in files else sorted(name for name in files.names if DECODER_NAME.fullmatch(name))
    if len(names) > 1:
        raise DataError(
            f"{files.folder}: has several settings of the decoder: {', '.join(names[:5])}; leave one", code="source-damaged"
        )
    if not names:
        return ModelSettings({}, files.folder / DECODER_FILE)
    return ModelSettings(parse_settings(files.read_text(names[0]), files.folder / names[0]), files.folder / names[0])


def _choose_model(files: SourceFiles, decoder: ModelSettings) -> str:
    """Return the name of the model: that of the decoder's settings, else the only one."""
    stated = decoder.get("models")
    if isinstance(stated, list) and stated:
        if len(stated) > 1:
            raise decoder.refuse("models", "an ensemble of several models becomes one bundle each; leave one")
        return _get_file_name(stated[0], decoder)
    names = _list_models(files)
    if len(names) != 1:
        problem = f"has several models: {', '.join(names[:5])}" if names else "has no model in .npz or .bin"
        raise DataError(f"{files.folder}: {problem}; leave one, or name it in {DECODER_FILE}", code="source-damaged")
    return names[0]


def _get_file_name(value: object, settings: ModelSettings) -> str:
    """Return the name of a file without its folder, because Marian writes paths of the machine that trained."""
    name = PureWindowsPath(PurePosixPath(value).name).name if isinstance(value, str) else ""
    if not name:
        raise damaged(settings.path, f"{value!r:.60} is not the name of a file")
    return name


def _choose_vocabularies(files: SourceFiles, decoder: ModelSettings) -> tuple[str, str]:
    """Return the names of both vocabularies."""
    stated = decoder.get("vocabs")
    if isinstance(stated, list) and stated:
        if len(stated) > 2:
            raise decoder.refuse("vocabs", "dragoman has one source and one target")
        return _get_file_name(stated[0], decoder), _get_file_name(stated[-1], decoder)
    name = next((name for name in VOCABULARIES if name in files), None)
    names = {match[1]: match[0] for match in map(VOCABULARY_NAME.fullmatch, sorted(files.names)) if match}
    if name is None and {"src", "trg"} <= names.keys():
        return names["src"], names["trg"]
    name = name or names.get(None)
    if name is None:
        raise damaged(files.folder, f"no {DECODER_FILE} names the vocabularies, and there is no {' or '.join(VOCABULARIES)}")
    return name, name


def _check_settings(settings: ModelSettings, decoder: ModelSettings) -> None:
    """Raise BundleError for a feature that dragoman does not have."""
    for group, values in ((settings, FIXED_SETTINGS), (decoder, TRANSLATION_SETTINGS)):
        for name, allowed in values.items():
            if group.get(name, allowed[0]) not in allowed:
                raise group.refuse(name, f"dragoman has {allowed[0]!r} only")
    if settings.integer("transformer-decoder-dim-ffn", 0) not in (0, settings.get("transformer-dim-ffn")):
        raise settings.refuse("transformer-decoder-dim-ffn", "dragoman has one width for both stacks")


def _get_sizes(settings: ModelSettings) -> tuple[int, int]:
    """Return the numbers of source and target tokens."""
    sizes = settings.get("dim-vocabs")
    if not isinstance(sizes, list) or not all(type(size) is int and 0 < size < 2**24 for size in sizes):
        raise damaged(settings.path, f"dim-vocabs = {sizes!r:.60} is not a list of two numbers of tokens")
    if len(sizes) != 2:
        raise settings.refuse("dim-vocabs", "dragoman has one source and one target")
    return sizes[0], sizes[1]


def _read_vocabulary(files: SourceFiles, name: str, size: int) -> _Vocabulary:
    """Return a vocabulary, filled up to the number of rows of the embeddings."""
    path = files.folder / name
    if name.endswith(".spm"):
        try:
            pieces = read_pieces(files.read_bytes(name))
        except ValueError:
            raise damaged(path, "is not a SentencePiece model") from None
        tokens = [piece.text for piece in pieces]
        ends = [index for index, piece in enumerate(pieces) if piece.piece_type == CONTROL and piece.text == END_TOKENS[0]]
        unknowns = [index for index, piece in enumerate(pieces) if piece.piece_type == UNKNOWN]
    else:
        tokens = _read_tokens(files, name)
        ends, unknowns = (
            [tokens.index(names[0])]
            if names[0] in tokens
            else [number]
            if tokens[number : number + 1] in ([names[1]], [""])
            else []
            for number, names in enumerate((END_TOKENS, UNKNOWN_TOKENS))
        )
    if not ends or not unknowns:
        raise damaged(path, f"has no {UNKNOWN_TOKENS[0] if ends else END_TOKENS[0]}")
    if len(tokens) > size:
        raise damaged(path, f"has {len(tokens)} tokens, but the model has {size}")
    tokens = [token or f"<unused-{index}>" for index, token in enumerate([*tokens, *[""] * (size - len(tokens))])]
    begin = tokens.index("<s>") if "<s>" in tokens and name.endswith(".spm") else None
    order = VocabularyOrder.build(tokens, padding=None, unknown=unknowns[0], begin=begin, end=ends[0])
    return _Vocabulary(order, name if name.endswith(".spm") else None)


def _read_tokens(files: SourceFiles, name: str) -> list[str]:
    """Return the tokens of a list by number; an empty text for a number without a token."""
    path = files.folder / name
    if name.endswith((".yml", ".yaml")):
        numbers: dict[str, Any] = dict(parse_vocabulary(files.read_text(name), path))
    elif name.endswith(".json"):
        numbers = files.read_json_object(name)
    else:
        lines = files.read_text(name).split("\n")
        numbers = {line.rstrip("\r"): index for index, line in enumerate(lines[:-1] if not lines[-1] else lines)}
    if not numbers or not all(type(number) is int and 0 <= number < 2**24 for number in numbers.values()):
        raise damaged(path, "is not a list of tokens with their numbers")
    tokens = [""] * (1 + max(numbers.values()))
    for token, number in numbers.items():
        if tokens[number]:
            raise damaged(path, f"two tokens have the number {number}")
        tokens[number] = token
    return tokens


def _convert_search(decoder: ModelSettings, num_positions: int | None, *, is_greedy: bool) -> dict[str, Any]:
    """Return the recipe section `decoding`. `normalize` is true, or the exponent of the length.

    is_greedy: the search is greedy if no file states it, as in Firefox
    """
    beam_size = decoder.integer("beam-size", 12 if decoder else 1 if is_greedy else 6)
    normalize = decoder.get("normalize", 0 if decoder else 1)
    alpha = float(normalize) if isinstance(normalize, bool) else decoder.number("normalize", float(not decoder))
    return {
        **describe_beam(beam_size),
        "length_penalty": "power" if alpha else "none",
        "alpha": alpha,
        "early_stopping": "beam_full",
        "suppress_tokens": [] if decoder.boolean("allow-unk", False) else ["<unk>"],
        **({} if num_positions is None else {"max_source_tokens": num_positions}),
    }


def _read_languages(files: SourceFiles, model_file: str) -> tuple[list[str], list[str]]:
    """Return the languages of each side that the model card of OPUS-MT lists, or that the name of a Firefox model states."""
    if match := MODEL_LANGUAGES.fullmatch(model_file):
        return [match[1]], [match[2]]
    text = files.read_text("README.md") if "README.md" in files else ""
    source, target = (
        match[1].split() if (match := re.search(rf"^\* {side} language\(s\):[ \t]*([\w -]{{1,2000}})$", text, re.M)) else []
        for side in ("source", "target")
    )
    return source, target


def _read_license(files: SourceFiles) -> str | None:
    """Return the license of the model card, or that of the file `LICENSE` if it is the one of OPUS-MT."""
    if license_name := read_license(files):
        return license_name
    is_attribution = "LICENSE" in files and "Attribution 4.0 International" in files.read_text("LICENSE")[:1000]
    return "cc-by-4.0" if is_attribution else None


def _get_norm(settings: ModelSettings) -> str:
    """Return the place of the layer normalization. The letters stand for dropout, addition and normalization."""
    operations = tuple(
        (settings.get(f"transformer-{name}", default) or "").replace("d", "")
        for name, default in (("preprocess", ""), ("postprocess", "dan"))
    )
    if operations == ("", "an"):
        return "post"
    if operations == ("n", "a"):
        return "pre"
    name = "transformer-preprocess" if operations[1] == "an" else "transformer-postprocess"
    raise settings.refuse(name, "dragoman has '' and 'dan', or 'n' and 'da'")


def _build_weights(
    arrays: MappedArrays, settings: ModelSettings, orders: tuple[VocabularyOrder, VocabularyOrder], shares_vocabulary: bool
) -> tuple[dict[str, TensorStream], dict[str, Any]]:
    """Return the weights of the bundle, and the recipe section `model`."""
    builder = WeightBuilder(arrays, arrays.release)
    norm, d_model = _get_norm(settings), settings.integer("dim-emb")
    activation = settings.get("transformer-ffn-activation", "swish")
    if activation not in ACTIVATIONS:
        raise settings.refuse("transformer-ffn-activation", f"dragoman has Marian's {' and '.join(ACTIVATIONS)} only")
    if "n" in str(settings.get("transformer-postprocess-emb") or "") or "encoder_emb_ln_scale_pre" in arrays:
        raise settings.refuse("transformer-postprocess-emb", "dragoman has no normalization of embeddings")
    top = (settings.get("transformer-postprocess-top") or "").replace("d", "")
    if top not in ("", "n"):
        raise settings.refuse("transformer-postprocess-top", "dragoman has '' and 'n'")
    weights, tying = _read_vocabulary_matrices(arrays, builder, settings, orders, shares_vocabulary)
    has_ssru = settings.get("transformer-decoder-autoreg", "self-attention") == "rnn"
    if has_ssru and settings.get("dec-cell") != "ssru":
        raise settings.refuse("transformer-decoder-autoreg", "dragoman has it with dec-cell = 'ssru' only")
    for stack in ("encoder", "decoder"):
        for layer in range(settings.integer("enc-depth" if stack == "encoder" else "dec-depth")):
            suffix = "_pre" if norm == "pre" else ""
            weights |= _read_layer(arrays, builder, stack, layer, suffix, has_ssru=has_ssru and stack == "decoder")
        if top:
            weights |= _read_norm(arrays, builder, f"{stack}_top", "", f"{stack}.norm")
    positions: dict[str, Any] = {"position_encoding": "concatenated"}
    is_learned = any(settings.get(f"transformer-train-{name}", False) for name in ("positions", "position-embeddings"))
    if is_learned:
        table = arrays.matrix("Wpos")
        positions = {"position_encoding": "learned", "max_positions": len(table)}
        for stack in ("encoder", "decoder"):  # dragoman multiplies learned positions by √d
            weights[f"{stack}.embedding.positions.weight"] = builder.concat([table], scale=d_model**-0.5)
    arrays.check_all_used("Marian")
    arrays.release()
    return weights, {
        "encoder_layers": settings.integer("enc-depth"),
        "decoder_layers": settings.integer("dec-depth"),
        "d_model": d_model,
        "d_ff": settings.integer("transformer-dim-ffn"),
        "num_heads": settings.integer("transformer-heads"),
        "norm": norm,
        "final_norm": bool(top),
        "norm_epsilon": 1e-6,
        "attention_bias": True,
        "activation": ACTIVATIONS[activation],
        "decoder_autoregression": "ssru" if has_ssru else "self-attention",
        **positions,
        "tie_embeddings": tying,
        "output_bias": True,
        "scale_embeddings": not is_learned,
        "residual_dropout": settings.number("transformer-dropout", 0.1),
        "embedding_dropout": settings.number("transformer-dropout", 0.1),
        "attention_dropout": settings.number("transformer-dropout-attention", 0.0),
        "activation_dropout": settings.number("transformer-dropout-ffn", 0.0),
        "decoder_start_token": "zero",
        "append_source_eos": True,
    }


def _read_vocabulary_matrices(
    arrays: MappedArrays,
    builder: WeightBuilder,
    settings: ModelSettings,
    orders: tuple[VocabularyOrder, VocabularyOrder],
    shares_vocabulary: bool,
) -> tuple[dict[str, TensorStream], str]:
    """Return the embeddings, the output matrix and its bias, and which matrices are one."""
    ties_all = settings.boolean("tied-embeddings-all", False)
    ties_source = ties_all or settings.boolean("tied-embeddings-src", False)
    ties_output = ties_all or settings.boolean("tied-embeddings", False)
    sizes = _get_sizes(settings)

    def reorder(target: str, name: str, side: int, is_transposed: bool = False) -> dict[str, TensorStream]:
        matrix = arrays.matrix(name).transposed if is_transposed else arrays.matrix(name)
        if len(matrix) != sizes[side]:
            raise damaged(arrays.location, f"{name} has {len(matrix)} rows, but dim-vocabs has {sizes[side]} tokens")
        return _add_steps(target, builder.reorder_rows(matrix, orders[side]), matrix)

    source_name, target_name = ("Wemb", "Wemb") if ties_source else ("encoder_Wemb", "decoder_Wemb")
    weights: dict[str, TensorStream] = {}
    tying = "none" if not ties_output else "all" if ties_source and shares_vocabulary else "decoder"
    if ties_output:
        weights |= reorder("output", target_name, 1)
    else:
        is_old = "decoder_ff_logit_out_W" in arrays
        weights |= reorder("output", "decoder_ff_logit_out_W" if is_old else "decoder_ff_logit_out_Wt", 1, is_old)
        weights |= reorder("decoder.embedding.weight", target_name, 1)
    if tying != "all":
        weights |= reorder("encoder.embedding.weight", source_name, 0)
    bias = None
    if not settings.boolean("output-omit-bias", False):
        bias = arrays["decoder_ff_logit_out_b"].load().reshape(-1)
        if len(bias) != sizes[1]:
            raise damaged(
                arrays.location, f"decoder_ff_logit_out_b has {len(bias)} values, but dim-vocabs has {sizes[1]} tokens"
            )
    dtype = weights["output"].dtype if is_floating_point(weights["output"]) else np.dtype(np.float32)
    weights["output_bias"] = builder.output_bias(bias, orders[1], dtype)
    return weights, tying


def _read_layer(
    arrays: MappedArrays, builder: WeightBuilder, stack: str, layer: int, suffix: str, *, has_ssru: bool
) -> dict[str, TensorStream]:
    """Return the weights of one layer.

    suffix: end of the names of a normalization before the sub-layer
    has_ssru: an SSRU takes the place of self-attention
    """
    source, target = f"{stack}_l{layer + 1}", f"{stack}.layers.{layer}"
    weights: dict[str, TensorStream] = {}
    if has_ssru:
        weights |= _read_matrix(arrays, builder, f"{source}_rnn_W", f"{target}.attention.candidate")
        weights |= _read_linear(arrays, builder, f"{source}_rnn", "f", f"{target}.attention.forget")
        weights |= _read_norm(arrays, builder, f"{source}_rnn_ffn", suffix, f"{target}.attention_residual.norm")
    for part, name in (("self", "attention"), ("context", "cross_attention")):
        if (part == "self" and not has_ssru) or (part == "context" and stack == "decoder"):
            for letter, projection in PROJECTIONS.items():
                weights |= _read_linear(arrays, builder, f"{source}_{part}", letter, f"{target}.{name}.{projection}")
            weights |= _read_norm(arrays, builder, f"{source}_{part}_Wo", suffix, f"{target}.{name}_residual.norm")
    for number, name in (("1", "inner"), ("2", "outer")):
        weights |= _read_linear(arrays, builder, f"{source}_ffn", number, f"{target}.feed_forward.{name}")
    return weights | _read_norm(arrays, builder, f"{source}_ffn_ffn", suffix, f"{target}.feed_forward_residual.norm")


def _read_linear(arrays: MappedArrays, builder: WeightBuilder, source: str, end: str, target: str) -> dict[str, TensorStream]:
    """Return a projection, whose matrix has the inputs as rows in Marian."""
    bias = builder.concat([arrays[f"{source}_b{end}"].vector])
    return _read_matrix(arrays, builder, f"{source}_W{end}", target) | {f"{target}.bias": bias}


def _read_matrix(arrays: MappedArrays, builder: WeightBuilder, source: str, target: str) -> dict[str, TensorStream]:
    """Return the matrix of a projection."""
    matrix = arrays.matrix(source).transposed
    return _add_steps(f"{target}.weight", builder.concat([matrix]), matrix)


def _add_steps(target: str, stream: TensorStream, matrix: MappedArray) -> dict[str, TensorStream]:
    """Return the stream of a matrix by its name in the bundle, with its steps if it is int8."""
    if not isinstance(matrix, Int8Array):
        return {target: stream}
    steps = {target + STEP_SUFFIX: np.full(stream.shape[:1], matrix.step, np.float32)}
    if matrix.input_step is not None:
        steps[target + INPUT_STEP_SUFFIX] = np.array([matrix.input_step], np.float32)
    return {target: stream} | {name: TensorStream.of(array) for name, array in steps.items()}


def _read_norm(arrays: MappedArrays, builder: WeightBuilder, source: str, suffix: str, target: str) -> dict[str, TensorStream]:
    """Return the weights of a layer normalization."""
    return {
        f"{target}.{kind}": builder.concat([arrays[f"{source}_ln_{name}{suffix}"].vector])
        for kind, name in (("weight", "scale"), ("bias", "bias"))
    }

"""Export of a bundle to CTranslate2: the same weights in the layout of its C++ engine.

    model.bin, config.json, *vocabulary.json    files that CTranslate2 reads
    source.model                                SentencePiece model of the source, or of both sides if they use one
    target.model                                SentencePiece model of the target, if the sides differ
    dragoman.json                               origin of the model, and settings of its text and its search
    README.md                                   model card with the code that translates
    manifest.json                               size and SHA-256 of each file

CTranslate2 fuses the projections of an attention layer, has one width for keys and values, and reads positions from a table.
The export pads heads of two widths with zeros, which add nothing to a sum. It writes the positions as a table, because
CTranslate2's own positions begin at 1.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.bundle import Bundle
from dragoman.config import DecodingConfig, ModelConfig
from dragoman.data.tokenization.language_tokens import list_languages
from dragoman.data.tokenization.pair_tokenizer import write_tokenizer
from dragoman.data.tokenization.special_tokens import BEGIN_ID, END_ID, UNKNOWN_ID
from dragoman.errors import MissingDependencyError
from dragoman.export.card_writer import build_model_card
from dragoman.export.result import (
    CARD_FILE,
    METADATA_FILE,
    ExportResult,
    check_is_translator,
    check_layers,
    check_unique_pieces,
    collect_metadata,
    count_positions,
    describe_text_format,
    unsupported,
)
from dragoman.export.usage import (
    IMPORTS,
    PATH_NOTE,
    describe_text_tokens,
    describe_token_files,
    has_usage,
    list_tokens,
    write_text_code,
)
from dragoman.export.weight_streams import iter_rows
from dragoman.io.storage import atomic_dir, write_json
from dragoman.model_weights import ModelWeights, Stack
from dragoman.tasks.generation import FORBIDDEN_IDS
from dragoman.tasks.inference_model import get_decoder_start_id

Array = NDArray[np.float32]
# Added to the logit of a suppressed token: its exponential is 0 in every precision, and float16 can represent it.
SUPPRESSED_LOGIT = -3e4
# CTranslate2 ends a search after PATIENCE · beam_size outputs, dragoman when no alive hypothesis can win. Both agree from 2 on.
PATIENCE = 2
LATER_KEYS = ("norm_type", "feed_forward_bias", "activation", "position_encoding", "tie_embeddings")
"""Keys of later layers that CTranslate2 has; it has no SSRU."""
INT8_MAX = np.float32(127.0)
ACTIVATIONS = {"relu": "RELU", "silu": "SWISH", "gelu": "GELU", "geglu": "GELUTanh", "swiglu": "SWISH"}
"""Activations: name in the recipe → name in CTranslate2."""
SEARCH_CODE = """
translator = ctranslate2.Translator("PATH", compute_type="float32")
sources = [encode(text) for text in ["A sentence."]]
results = translator.translate_batch({sources}, {prefix}**info["decoding_options"])
print([decode(result.hypotheses[0]{output}) for result in results])
"""
LANGUAGE_SEARCHES = {
    None: {"sources": "sources", "prefix": "", "output": ""},
    "source": {"sources": '[["{target}", *source] for source in sources]', "prefix": "", "output": ""},
    "both": {
        "sources": '[["{source}", *source] for source in sources]',
        "prefix": 'target_prefix=[["{target}"]] * len(sources), ',
        "output": "[1:]",
    },
}
"""Parts of `SEARCH_CODE` by the placement of the language tokens."""


def export_ctranslate2(bundle: Bundle, path: Path, *, overwrite: bool = False) -> ExportResult:
    """Write a folder that `ctranslate2.Translator` opens, completely or not at all, in float32.

    Raises BundleError for a model that CTranslate2 cannot express, MissingDependencyError without the ctranslate2 package,
    and OutputError if `path` exists.
    """
    check_is_translator(bundle, "CTranslate2")
    check_exportable(bundle.recipe.model)
    num_positions = count_positions(bundle)
    spec = build_spec(bundle, num_positions)
    decoding_options, notes = convert_decoding_options(bundle.recipe.decoding, num_positions=num_positions)
    notes = [*describe_text_format(bundle), *_describe_language_tokens(bundle), *notes]
    size = sum(value.num_bytes() for value in spec.variables().values() if not isinstance(value, str))
    with atomic_dir(path, overwrite=overwrite, size=size) as folder:
        spec.save(str(folder))
        write_tokenizer(folder, bundle.tokenizer)
        metadata = collect_metadata(bundle, max_positions=num_positions, decoding_options=decoding_options, notes=notes)
        metadata["language_tokens"] = _collect_language_tokens(bundle)
        metadata["text_tokens"] = describe_text_tokens(bundle)
        write_json(folder / METADATA_FILE, metadata)
        usage = _write_usage(bundle) if has_usage(bundle) else describe_token_files(bundle)
        (folder / CARD_FILE).write_text(build_model_card(bundle, usage=usage, notes=notes), encoding="utf-8")
    return ExportResult.of_folder(path, num_positions, decoding_options, notes)


def _write_usage(bundle: Bundle) -> str:
    """Return the Python code of the model card."""
    config, task = bundle.recipe.tokenizer, bundle.recipe.task
    placement, names = None, {}
    if config.language_token is not None:
        placement = config.language_token_placement
        languages = (_collect_language_tokens(bundle) or {}).get("languages") or [""]
        names = {
            side: config.language_token.format(language or languages[0])
            for side, language in (("source", task.source_language), ("target", task.target_language))
        }
    parts = {name: code.format(**names) for name, code in LANGUAGE_SEARCHES[placement].items()}
    return f"```python\n{IMPORTS['ctranslate2']}\n\n{write_text_code(bundle)}\n{SEARCH_CODE.format(**parts)}```\n\n{PATH_NOTE}"


def build_spec(bundle: Bundle, num_positions: int, *, is_int8: bool = False) -> Any:
    """Return the complete model specification of CTranslate2.

    Args:
        bundle: a model that `check_exportable` accepts
        num_positions: rows of the position tables
        is_int8: round the matrices to int8; otherwise they stay float32

    Raises:
        MissingDependencyError: the ctranslate2 package is not installed.
        BundleError: the tokenizer has a piece twice.
    """
    try:
        from ctranslate2.specs import TransformerSpec
        from ctranslate2.specs.common_spec import Activation
    except ImportError:
        raise MissingDependencyError("ctranslate2", "ctranslate2", "the export to CTranslate2") from None
    config, model = bundle.recipe.model, bundle.weights
    assert model is not None  # a model with other layers has no export
    model = model.with_full_heads()
    # CTranslate2 has no option for a norm at the end of a stack. Its pre-norm specification has one, for layers of both kinds.
    spec = TransformerSpec.from_config(
        (config.encoder_layers, config.decoder_layers),
        config.num_heads,
        pre_norm=config.has_final_norm,
        activation=Activation[ACTIVATIONS[config.activation]],
        layernorm_embedding=config.embedding_norm,
        relative_attention_bias=config.position_encoding == "relative",
        ffn_glu=config.is_gated,
        rms_norm=config.norm_type == "rms",
    )
    spec.encoder.embeddings[0].weight = model.get_embedding("encoder")
    spec.decoder.embeddings.weight = model.get_embedding("decoder")
    spec.decoder.start_from_zero_embedding = config.decoder_start_token == "zero"
    _set_stack(spec.encoder, model, "encoder", num_positions)
    _set_stack(spec.decoder, model, "decoder", num_positions)
    spec.decoder.projection.weight = model.output
    output_bias = np.zeros(len(model.output), np.float32) if model.output_bias is None else model.output_bias.copy()
    output_bias[[*FORBIDDEN_IDS, *bundle.tokenizer.target.reserved_ids]] = SUPPRESSED_LOGIT
    spec.decoder.projection.bias = output_bias
    _set_vocabulary(spec, bundle)
    spec.validate()
    if is_int8:
        _quantize(spec, bundle.release)
    spec.optimize()  # stores equal weights once
    bundle.release()
    for variable in spec.variables().values():
        if not isinstance(variable, str):
            variable.to_bytes = _release_after(variable.to_bytes, bundle.release)
    return spec


def _quantize(spec: Any, release: Callable[[], None]) -> None:
    """Round each matrix of weights to int8 with one scale for each row, by the formula of CTranslate2.

    CTranslate2 rounds in place, which would change the weights of the bundle.
    """
    from ctranslate2.specs.model_spec import NumpyVariable, index_spec

    for name, variable in spec.variables(ordered=True):
        scope, _, key = name.rpartition("/")
        layer = index_spec(spec, scope)
        if hasattr(layer, f"{key}_scale"):
            rows, scales = [], []
            for _, part in iter_rows(variable.numpy()):
                limits = np.abs(part).max(axis=1)
                scales.append(INT8_MAX / np.where(limits == 0, INT8_MAX, limits))
                rows.append(np.rint(part * scales[-1][:, None]).astype(np.int8))
                release()
            setattr(layer, key, NumpyVariable(np.concatenate(rows)))
            setattr(layer, f"{key}_scale", NumpyVariable(np.concatenate(scales)))


def _release_after(to_bytes: Callable[[], bytes], release: Callable[[], None]) -> Callable[[], bytes]:
    """Return a function that returns the bytes of a weight and releases the mapped memory that they were read from."""

    def read() -> bytes:
        data = to_bytes()
        release()
        return data

    return read


def check_exportable(config: ModelConfig) -> None:
    """Raise BundleError for a model that CTranslate2 cannot express."""
    check_layers(config, "CTranslate2", later_keys=LATER_KEYS)
    if config.position_encoding == "rotary":
        raise unsupported("model.position_encoding = 'rotary'", "CTranslate2 has no such translator; export to onnx")
    if config.position_encoding == "relative" and config.target_space_embedding:
        raise unsupported(
            "model.target_space_embedding = True", "CTranslate2 adds it to positions, which are relative here; export to onnx"
        )
    if config.attention_window is not None:
        raise unsupported(
            f"model.attention_window = {config.attention_window}",
            "CTranslate2 has no local attention; train without a window to export",
        )


def convert_decoding_options(decoding: DecodingConfig, *, num_positions: int) -> tuple[dict[str, Any], list[str]]:
    """Return arguments of translate_batch that are nearest to these settings, and notes on the differences.

    With return_end_token the length penalty counts the end token, as dragoman does. Each output then ends with that token.

    num_positions: most tokens of an output
    """
    max_tokens = min(decoding.max_source_tokens + decoding.max_extra_tokens, num_positions)
    alpha = 0.0 if decoding.length_penalty == "none" else decoding.alpha
    # The default truncates inputs of more than 1,024 tokens silently; 0 raises an error at the last position.
    options: dict[str, Any] = {"max_input_length": 0, "min_decoding_length": 0, "max_decoding_length": max_tokens}
    options |= {"beam_size": 1, "length_penalty": alpha, "return_end_token": True}
    notes = [
        f"CTranslate2 truncates an output at {max_tokens} tokens (max_decoding_length); dragoman truncates it at the source's "
        f"length + {decoding.max_extra_tokens}"
    ]
    if decoding.method == "sample":
        options |= {"sampling_topk": decoding.top_k, "sampling_topp": decoding.top_p, "num_hypotheses": decoding.nbest}
        options["sampling_temperature"] = decoding.temperature
        notes.append("CTranslate2 samples with another random generator, so no seed gives the samples of dragoman")
    if decoding.method != "beam" or decoding.beam_size == 1:
        return options, notes
    options |= {"beam_size": decoding.beam_size, "num_hypotheses": decoding.nbest, "patience": PATIENCE}
    if decoding.length_penalty == "gnmt" and alpha:
        notes.append(
            f"CTranslate2 divides scores by |Y|^α, so length_penalty = {alpha:g} differs from the recipe's ((5+|Y|)/6)^α; "
            "rank its n-best list again by the recipe's formula"
        )
    if not alpha:
        notes.append(
            "without a length penalty dragoman finds very short outputs that CTranslate2 does not find; CTranslate2 accepts an "
            "end token among the beam_size best candidates only"
        )
    return options, notes


def _collect_language_tokens(bundle: Bundle) -> dict[str, Any] | None:
    """Return the tokens of a model of many languages, for `METADATA_FILE`; None for all other models.

    A source begins with the token of the target language. If the placement is `both`, it begins with that of the source
    language, and each output with that of the target language: the argument `target_prefix` of translate_batch.
    """
    config, origin = bundle.recipe.tokenizer, bundle.metadata.origin
    if config.language_token is None:
        return None
    languages = (origin and origin.target_languages) or list_languages(config.language_token, bundle.tokenizer.source)
    return {"pattern": config.language_token, "placement": config.language_token_placement, "languages": list(languages)}


def _describe_language_tokens(bundle: Bundle) -> list[str]:
    config = bundle.recipe.tokenizer
    if config.language_token is None:
        return []
    if config.language_token_placement == "source":
        return ["begin each source with the token of its target language; CTranslate2 does not add it"]
    return [
        "begin each source with the token of its language, and give that of the target language as target_prefix; each output "
        "then begins with it"
    ]


def _set_stack(spec: Any, model: ModelWeights, stack: Stack, num_positions: int) -> None:
    """Set the layers of a stack, its positions and its last norm."""
    config = model.config
    spec.pre_norm = config.norm == "pre"
    spec.scale_embeddings = config.scale_embeddings
    if config.position_encoding != "relative":
        table_PD = model.compute_positions(stack, 0, num_positions)
        space_D = model.get_target_space(stack)  # is added to every token, so it can be added to the positions
        spec.position_encodings.encodings = table_PD if space_D is None else table_PD + space_D
    if config.embedding_norm:
        _set_norm(spec.layernorm_embedding, model, f"{stack}.embedding.norm")
    if config.has_final_norm:
        _set_norm(spec.layer_norm, model, f"{stack}.norm")
    for index, layer_spec in enumerate(spec.layer):
        layer = f"{stack}.layers.{index}"
        _set_attention(layer_spec.self_attention, model, layer, "attention")
        if config.position_encoding == "relative":
            layer_spec.self_attention.relative_attention_bias = model.arrays[f"{stack}.relative_positions.weight"]
            distance = np.int32(config.relative_attention_max_distance)
            layer_spec.self_attention.relative_attention_max_distance = distance
        if stack == "decoder":
            _set_attention(layer_spec.attention, model, layer, "cross_attention")
        parts = {"linear_0": "gate", "linear_0_noact": "inner"} if config.is_gated else {"linear_0": "inner"}
        for attribute, part in {**parts, "linear_1": "outer"}.items():
            _set_linear(getattr(layer_spec.ffn, attribute), *_get_linear(model, f"{layer}.feed_forward.{part}"))
        _set_norm(layer_spec.ffn.layer_norm, model, f"{layer}.feed_forward_residual.norm")


def _set_attention(spec: Any, model: ModelWeights, layer: str, name: str) -> None:
    """Set an attention layer: one matrix for queries, keys and values, or a separate query matrix for cross-attention.

    All heads get the larger of the key and value widths.
    """
    config = model.config
    width = max(config.key_width, config.value_width)
    query, key, value = (
        [_pad_heads(array, config.num_heads, width) for array in _get_linear(model, f"{layer}.{name}.{projection}")]
        for projection in ("query", "key", "value")
    )
    groups = [[query, key, value]] if len(spec.linear) == 2 else [[query], [key, value]]
    for linear_spec, group in zip(spec.linear, groups, strict=False):
        _set_linear(linear_spec, *(np.concatenate(parts) for parts in zip(*group, strict=True)))
    output_DI, *bias = _get_linear(model, f"{layer}.{name}.output")
    _set_linear(spec.linear[-1], np.ascontiguousarray(_pad_heads(output_DI.T, config.num_heads, width).T), *bias)
    spec.queries_scale = config.key_width**-0.5
    _set_norm(spec.layer_norm, model, f"{layer}.{name}_residual.norm")


def _pad_heads(rows: Array, num_heads: int, width: int) -> Array:
    """Return consecutive heads of rows, each padded with zeros to `width` rows. (heads · rows, …) → (heads · width, …)."""
    by_head = rows.reshape(num_heads, len(rows) // num_heads, -1)
    padded = np.pad(by_head, ((0, 0), (0, width - by_head.shape[1]), (0, 0)))
    return padded.reshape(num_heads * width, *rows.shape[1:])


def _get_linear(model: ModelWeights, name: str) -> list[Array]:
    """Return the weight of a linear layer, and its bias if it has one."""
    return [model.arrays[f"{name}.{part}"] for part in ("weight", "bias") if f"{name}.{part}" in model.arrays]


def _set_linear(spec: Any, weight: Array, *bias: Array) -> None:
    spec.weight = weight
    if bias:
        (spec.bias,) = bias


def _set_norm(spec: Any, model: ModelWeights, name: str) -> None:
    spec.gamma = model.arrays[f"{name}.weight"]
    if model.config.norm_type == "layer":
        spec.beta = model.arrays[f"{name}.bias"]


def _set_vocabulary(spec: Any, bundle: Bundle) -> None:
    config, tokenizer = bundle.recipe.model, bundle.tokenizer
    source, target = (list_tokens(side) for side in (tokenizer.source, tokenizer.target))
    check_unique_pieces("CTranslate2", source, target)
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = (target[i] for i in (UNKNOWN_ID, BEGIN_ID, END_ID))
    # If the decoder starts from a zero vector, the token does not matter.
    spec.config.decoder_start_token = target[get_decoder_start_id(config)]
    spec.config.add_source_eos = config.append_source_eos
    spec.config.layer_norm_epsilon = config.norm_epsilon

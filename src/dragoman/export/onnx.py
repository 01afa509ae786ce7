"""Export of a bundle to ONNX: an encoder, and a decoder step with its state, which onnxruntime runs.

    encoder.onnx      source ids → keys and values of the source for each decoder layer
    decoder.onnx      one token of each row, those keys and values, and the state so far → logits and the next state
    source.model, …   tokenizers, as in a bundle
    dragoman.json     start and end tokens, tensors of the state, origin of the model
    README.md         model card with the code that translates
    manifest.json     size and SHA-256 of each file

The graphs compute in float32. Their matrices are stored in float32 or int8.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dragoman.bundle import Bundle
from dragoman.config import DecodingConfig
from dragoman.data.tokenization.pair_tokenizer import write_tokenizer
from dragoman.data.tokenization.special_tokens import END_ID, PADDING_ID, UNKNOWN_ID
from dragoman.errors import MissingDependencyError
from dragoman.export.card_writer import build_model_card
from dragoman.export.onnx_file import count_bytes, write_onnx
from dragoman.export.onnx_model import build_decoder, build_encoder, list_state
from dragoman.export.result import (
    CARD_FILE,
    METADATA_FILE,
    ExportResult,
    check_is_translator,
    check_layers,
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
from dragoman.export.web_page import check_page, describe_page, write_page
from dragoman.io.storage import atomic_dir, write_json
from dragoman.tasks.generation import FORBIDDEN_IDS
from dragoman.tasks.inference_model import get_decoder_start_id

ENGINE = "the ONNX export"
ENCODER_FILE, DECODER_FILE = "encoder.onnx", "decoder.onnx"
SEARCH_CODE = """
decoder_info = info["decoder"]
encoder = onnxruntime.InferenceSession(folder / "encoder.onnx")
decoder = onnxruntime.InferenceSession(folder / "decoder.onnx")
ids = {piece: index for index, piece in reversed(list(enumerate(tokens["source"])))}


def translate(text):
    source = np.array([[ids.get(piece, tokens["unknown_id"]) for piece in encode(text)] + decoder_info["source_suffix"]])
    cross_keys, cross_values = encoder.run(None, {"source": source})
    fixed = {"source": source, "cross_keys": cross_keys, "cross_values": cross_values}
    state = {tensor["input"]: np.zeros(tensor["shape"], tensor["dtype"]) for tensor in decoder_info["state"]}
    token, output = decoder_info["start_id"], []
    while len(output) < source.shape[1] + decoder_info["max_extra_tokens"]:
        logits, *new_state = decoder.run(None, fixed | state | {"tokens": np.array([token])})
        state = dict(zip(state, new_state))
        token = int(logits[0].argmax())
        if token == decoder_info["end_id"]:
            break
        output.append(token)
    return decode([tokens["target"][token] for token in output])


print([translate(text) for text in ["A sentence."]])
"""


def export_onnx(
    bundle: Bundle, path: Path, *, is_int8: bool = False, has_page: bool = False, overwrite: bool = False
) -> ExportResult:
    """Write a folder with the graphs of a model, completely or not at all.

    is_int8: store matrices as int8; the graphs compute in float32
    has_page: write a page that translates in a browser, too

    Raises:
        BundleError: the graphs cannot express the model.
        MissingDependencyError: the onnx package is not installed.
        OutputError: the path exists or cannot be written.
    """
    check_exportable(bundle)
    if has_page:
        check_page(bundle)
    if find_spec("onnx") is None:
        raise MissingDependencyError("onnx", "onnx", "the export to ONNX")
    weights = bundle.weights
    assert weights is not None  # a model with other layers has no export
    weights = weights.with_full_heads()
    decoding = bundle.recipe.decoding
    num_positions = count_positions(bundle)
    suppressed_ids = [*FORBIDDEN_IDS, *bundle.tokenizer.target.reserved_ids]
    graphs = {
        ENCODER_FILE: build_encoder(weights, num_positions, is_int8=is_int8),
        DECODER_FILE: build_decoder(weights, num_positions, is_int8=is_int8, suppressed_ids=suppressed_ids),
    }
    options, notes = _convert_decoding_options(decoding)
    notes = [*describe_text_format(bundle), *notes]
    metadata = collect_metadata(bundle, max_positions=num_positions, decoding_options=options, notes=notes)
    metadata["decoder"] = describe_decoder(bundle)
    with atomic_dir(path, overwrite=overwrite, size=sum(count_bytes(graph.weights) for graph in graphs.values())) as folder:
        for name, graph in graphs.items():
            write_onnx(folder / name, graph.model, graph.weights)
        write_tokenizer(folder, bundle.tokenizer)
        metadata["text_tokens"] = describe_text_tokens(bundle) | {
            "source": list_tokens(bundle.tokenizer.source),
            "target": list_tokens(bundle.tokenizer.target),
            "unknown_id": UNKNOWN_ID,
        }
        if has_page:
            metadata["page"] = describe_page(bundle)
            write_page(folder)
        write_json(folder / METADATA_FILE, metadata)
        usage = describe_token_files(bundle)
        if has_usage(bundle):
            usage = f"```python\n{IMPORTS['onnx']}\n\n{write_text_code(bundle)}{SEARCH_CODE}```\n\n{PATH_NOTE}"
        (folder / CARD_FILE).write_text(build_model_card(bundle, usage=usage, notes=notes), encoding="utf-8")
    return ExportResult.of_folder(path, num_positions, options, notes)


def check_exportable(bundle: Bundle) -> None:
    """Raise BundleError for a model that the graphs cannot express."""
    check_is_translator(bundle, ENGINE)
    config, tokenizer = bundle.recipe.model, bundle.recipe.tokenizer
    check_layers(config, ENGINE, later_keys=tuple(config.find_later_layers()))
    if config.attention_window is not None:
        raise unsupported(
            f"model.attention_window = {config.attention_window}",
            f"{ENGINE} has no local attention; train without a window to export",
        )
    if tokenizer.language_token is not None:
        raise unsupported(
            f"tokenizer.language_token = {tokenizer.language_token!r}",
            f"{ENGINE} has no language tokens yet; translate with dragoman",
        )


def describe_decoder(bundle: Bundle) -> dict[str, Any]:
    """Return the tokens that a search needs, and the tensors that a step gives to the next one; see `list_state`."""
    config, decoding = bundle.recipe.model, bundle.recipe.decoding
    return {
        "start_id": get_decoder_start_id(config),
        "end_id": END_ID,
        "padding_id": PADDING_ID,
        "source_suffix": [END_ID] if config.append_source_eos else [],
        "max_extra_tokens": decoding.max_extra_tokens,
        "state": [tensor.to_dict() for tensor in list_state(config)],
    }


def _convert_decoding_options(decoding: DecodingConfig) -> tuple[dict[str, Any], list[str]]:
    """Return the search options of the recipe, and notes. The caller writes the search, so the options are dragoman's own."""
    options: dict[str, Any] = {"method": decoding.method, "max_extra_tokens": decoding.max_extra_tokens}
    if decoding.method == "beam":
        options |= {"beam_size": decoding.beam_size, "length_penalty": decoding.length_penalty, "alpha": decoding.alpha}
    return options, ["the graphs hold no search; the guide to exports shows greedy search in Python"]

"""Export of a bundle to ONNX: an encoder, and a decoder step with KV caches, which onnxruntime runs.

    encoder.onnx      source ids → keys and values of the source for each decoder layer
    decoder.onnx      one token of each row, those keys and values, and the caches so far → logits and the longer caches
    source.model, …   tokenizers, as in a bundle
    dragoman.json     start and end tokens, shapes of the caches, origin of the model
    README.md         model card with the code that translates
    manifest.json     size and SHA-256 of each file

The graphs are written node by node with the `onnx` package, so that they do not depend on the version of PyTorch. They use
operators of opset 17 only.

L counts decoder layers, B rows, H heads, S source tokens, T output tokens so far, K and U the widths of keys and values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.bundle import Bundle
from dragoman.config import DecodingConfig
from dragoman.data.tokenization.pair_tokenizer import write_tokenizer
from dragoman.data.tokenization.special_tokens import END_ID, PADDING_ID, UNKNOWN_ID
from dragoman.errors import MissingDependencyError
from dragoman.export.card_writer import build_model_card
from dragoman.export.onnx_file import count_bytes, write_onnx
from dragoman.export.result import (
    CARD_FILE,
    METADATA_FILE,
    ExportResult,
    check_is_translator,
    check_layers,
    collect_metadata,
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
from dragoman.export.weight_streams import stream_weight
from dragoman.io.safetensors import TensorStream
from dragoman.io.storage import atomic_dir, write_json
from dragoman.model.attention import Attention
from dragoman.model.layers import DecoderLayer, EncoderLayer, FeedForward, PostNorm, PreNorm
from dragoman.model.positional_encoding import LearnedPositionalEmbedding
from dragoman.model.transformer import Embedding
from dragoman.tasks.generation import FORBIDDEN_IDS
from dragoman.tasks.inference_model import get_decoder_start_id

ENGINE = "the ONNX export"
ENCODER_FILE, DECODER_FILE = "encoder.onnx", "decoder.onnx"
OPSET, IR_VERSION = 17, 8
"""Versions of the operators and of the file format; onnxruntime reads them since version 1.12."""
MASKED_SCORE = -1e9
"""Attention score of a masked position: its weight is exactly 0 in float32."""
SEARCH_CODE = """
decoder_info = info["decoder"]
encoder = onnxruntime.InferenceSession(folder / "encoder.onnx")
decoder = onnxruntime.InferenceSession(folder / "decoder.onnx")
ids = {piece: index for index, piece in reversed(list(enumerate(tokens["source"])))}


def translate(text):
    source = np.array([[ids.get(piece, tokens["unknown_id"]) for piece in encode(text)] + decoder_info["source_suffix"]])
    cross_keys, cross_values = encoder.run(None, {"source": source})
    fixed = {"source": source, "cross_keys": cross_keys, "cross_values": cross_values}
    keys = np.zeros(decoder_info["key_cache_shape"], np.float32)
    values = np.zeros(decoder_info["value_cache_shape"], np.float32)
    token, output = decoder_info["start_id"], []
    while len(output) < source.shape[1] + decoder_info["max_extra_tokens"]:
        step = {"tokens": np.array([token]), "self_keys": keys, "self_values": values}
        logits, keys, values = decoder.run(None, fixed | step)
        token = int(logits[0].argmax())
        if token == decoder_info["end_id"]:
            break
        output.append(token)
    return decode([tokens["target"][token] for token in output])


print([translate(text) for text in ["A sentence."]])
"""
SUPPRESSED_LOGIT = -3e4
"""Added to the logits of padding and begin tokens, which no output contains: their probability is 0 in every precision."""


def export_onnx(bundle: Bundle, path: Path, *, overwrite: bool = False) -> ExportResult:
    """Write a folder with the graphs of a model, completely or not at all, in float32.

    Raises:
        BundleError: the graphs cannot express the model.
        MissingDependencyError: the onnx package is not installed.
        OutputError: the path exists or cannot be written.
    """
    check_exportable(bundle)
    if find_spec("onnx") is None:
        raise MissingDependencyError("onnx", "onnx", "the export to ONNX")
    decoding = bundle.recipe.decoding
    num_positions = _count_positions(bundle)
    graphs = {ENCODER_FILE: build_encoder(bundle, num_positions), DECODER_FILE: build_decoder(bundle, num_positions)}
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
        write_json(folder / METADATA_FILE, metadata)
        usage = describe_token_files(bundle)
        if has_usage(bundle):
            usage = f"```python\n{IMPORTS['onnx']}\n\n{write_text_code(bundle)}{SEARCH_CODE}```\n\n{PATH_NOTE}"
        (folder / CARD_FILE).write_text(build_model_card(bundle, usage=usage, scores={}, notes=notes), encoding="utf-8")
    num_bytes = sum(file.stat().st_size for file in path.iterdir())
    return ExportResult(path, num_bytes, num_positions, options, tuple(notes))


def check_exportable(bundle: Bundle) -> None:
    """Raise BundleError for a model that the graphs cannot express."""
    check_is_translator(bundle, ENGINE)
    config, tokenizer = bundle.recipe.model, bundle.recipe.tokenizer
    check_layers(config, ENGINE)
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
    """Return the tokens and shapes that a search needs.

    The caches have the shape (layers, rows, heads, tokens, width), with 0 tokens before the first step.
    """
    config, decoding = bundle.recipe.model, bundle.recipe.decoding
    return {
        "start_id": get_decoder_start_id(config),
        "end_id": END_ID,
        "padding_id": PADDING_ID,
        "source_suffix": [END_ID] if config.append_source_eos else [],
        "max_extra_tokens": decoding.max_extra_tokens,
        "key_cache_shape": [config.decoder_layers, 1, config.num_heads, 0, config.key_width],
        "value_cache_shape": [config.decoder_layers, 1, config.num_heads, 0, config.value_width],
    }


def _convert_decoding_options(decoding: DecodingConfig) -> tuple[dict[str, Any], list[str]]:
    """Return the search options of the recipe, and notes. The caller writes the search, so the options are dragoman's own."""
    options: dict[str, Any] = {"method": decoding.method, "max_extra_tokens": decoding.max_extra_tokens}
    if decoding.method == "beam":
        options |= {"beam_size": decoding.beam_size, "length_penalty": decoding.length_penalty, "alpha": decoding.alpha}
    return options, ["the graphs hold no search; the guide to exports shows greedy search in Python"]


def _count_positions(bundle: Bundle) -> int:
    """Return the number of rows of the position tables: the most tokens of a source or output by the recipe."""
    positions = bundle.model.encoder.embedding.positions
    if isinstance(positions, LearnedPositionalEmbedding):
        return len(positions.weight)
    return bundle.recipe.decoding.max_source_tokens + bundle.recipe.decoding.max_extra_tokens


@dataclass(frozen=True)
class Graph:
    """Graph to write.

    Attributes:
        model: ModelProto without weights
        weights: its weights by name
    """

    model: Any
    weights: dict[str, TensorStream]


class GraphBuilder:
    """Nodes and weights of one graph. A method adds nodes and returns the name of their output.

    release: releases the mapped memory of the weights
    """

    def __init__(self, release: Callable[[], None]) -> None:
        self.release = release
        self.nodes: list[Any] = []
        self.weights: dict[str, TensorStream] = {}

    def weight(self, name: str, values: Tensor) -> str:
        """Add a constant under a name, or return it if it exists."""
        if name not in self.weights:
            self.weights[name] = stream_weight(values.detach().numpy(), self.release)
        return name

    def integers(self, *values: int) -> str:
        """Add a vector of integers."""
        return self.weight("integers_" + "_".join(map(str, values)), torch.tensor(values, dtype=torch.int64))

    def number(self, value: float) -> str:
        """Add a float32."""
        return self.weight(f"number_{value!r}", torch.tensor(value, dtype=torch.float32))

    def add(self, operator: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """Add a node with one output."""
        from onnx import helper

        output = output or f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [output], **attributes))
        return output

    def linear(self, x: str, linear: nn.Linear, name: str) -> str:
        """Return x·Wᵀ + b. (…, in) → (…, out)"""
        y = self.add("MatMul", x, self.weight(f"{name}.weight", linear.weight.t()))
        return y if linear.bias is None else self.add("Add", y, self.weight(f"{name}.bias", linear.bias))

    def norm(self, x: str, norm: nn.Module, name: str) -> str:
        """Return the layer normalization of x, or x for an identity."""
        if not isinstance(norm, nn.LayerNorm):
            return x
        gamma, beta = self.weight(f"{name}.weight", norm.weight), self.weight(f"{name}.bias", norm.bias)
        return self.add("LayerNormalization", x, gamma, beta, axis=-1, epsilon=norm.eps)

    def embed(self, ids: str, embedding: Embedding, name: str) -> str:
        """Return the scaled vectors of tokens, and zeros for padding. (…) → (…, D)"""
        vectors = self.add("Gather", self.weight(name, embedding.weight), ids)
        is_token = self.add("Not", self.add("Equal", ids, self.integers_scalar(embedding.padding_id)))
        scale = self.add("Mul", self.add("Cast", is_token, to=1), self.number(embedding.scale))
        return self.add("Mul", vectors, self.add("Unsqueeze", scale, self.integers(-1)))

    def integers_scalar(self, value: int) -> str:
        """Add one integer without a dimension."""
        return self.weight(f"integer_{value}", torch.tensor(value, dtype=torch.int64))

    def split_heads(self, x: str, num_heads: int) -> str:
        """(B, T, H · W) → (B, H, T, W)"""
        return self.add("Transpose", self.add("Reshape", x, self.integers(0, 0, num_heads, -1)), perm=[0, 2, 1, 3])

    def project_kv(self, x: str, attention: Attention, name: str) -> tuple[str, str]:
        """Return keys (B, H, S, K) and values (B, H, S, U)."""
        key, value = self.linear(x, attention.key, f"{name}.key"), self.linear(x, attention.value, f"{name}.value")
        return self.split_heads(key, attention.num_heads), self.split_heads(value, attention.num_heads)

    def attend(self, x: str, key: str, value: str, mask: str | None, attention: Attention, name: str) -> str:
        """Return the attention of x to keys and values (equation 1). mask: true for positions to attend to. → (B, T, D)"""
        query = self.split_heads(self.linear(x, attention.query, f"{name}.query"), attention.num_heads)
        width = attention.query.out_features // attention.num_heads
        query = self.add("Mul", query, self.number(width**-0.5))
        scores = self.add("MatMul", query, self.add("Transpose", key, perm=[0, 1, 3, 2]))
        if mask is not None:
            scores = self.add("Where", mask, scores, self.number(MASKED_SCORE))
        heads = self.add("MatMul", self.add("Softmax", scores, axis=-1), value)
        merged = self.add("Reshape", self.add("Transpose", heads, perm=[0, 2, 1, 3]), self.integers(0, 0, -1))
        return self.linear(merged, attention.output, f"{name}.output")

    def feed_forward(self, x: str, feed_forward: FeedForward, name: str) -> str:
        """Return FFN(x) (equation 2)."""
        y = self.linear(x, feed_forward.inner, f"{name}.inner")
        match feed_forward.activation:
            case "relu":
                y = self.add("Relu", y)
            case "silu":
                y = self.add("Mul", y, self.add("Sigmoid", y))
            case _:
                erf = self.add("Erf", self.add("Mul", y, self.number(0.5**0.5)))
                half = self.add("Mul", y, self.number(0.5))
                y = self.add("Mul", half, self.add("Add", erf, self.number(1.0)))
        return self.linear(y, feed_forward.outer, f"{name}.outer")

    def sublayer_input(self, x: str, residual: PostNorm | PreNorm, name: str) -> str:
        """Return the input of a sublayer: x, or its normalization."""
        return self.norm(x, residual.norm, f"{name}.norm") if isinstance(residual, PreNorm) else x

    def add_residual(self, x: str, y: str, residual: PostNorm | PreNorm, name: str) -> str:
        """Return the residual sum of a sublayer's input and output, normalized in a post-norm model."""
        total = self.add("Add", x, y)
        return total if isinstance(residual, PreNorm) else self.norm(total, residual.norm, f"{name}.norm")

    def token_mask(self, source: str) -> str:
        """Return true for tokens and false for padding. (B, S) → (B, 1, 1, S)"""
        is_token = self.add("Not", self.add("Equal", source, self.integers_scalar(PADDING_ID)))
        return self.add("Unsqueeze", is_token, self.integers(1, 2))

    def stack(self, parts: Sequence[str], output: str) -> str:
        """Return several tensors as one with a new first dimension."""
        return self.add("Concat", *[self.add("Unsqueeze", part, self.integers(0)) for part in parts], output=output, axis=0)

    def build(self, name: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> Graph:
        """Return the graph."""
        from onnx import helper

        graph = helper.make_graph(self.nodes, name, list(inputs), list(outputs))
        opset = helper.make_opsetid("", OPSET)
        model = helper.make_model(graph, producer_name="dragoman", opset_imports=[opset], ir_version=IR_VERSION)
        return Graph(model, self.weights)


def _declare(name: str, kind: str, shape: Sequence[int | str]) -> Any:
    """Return the declaration of an input or output; a text in the shape is a dimension of any size."""
    from onnx import TensorProto, helper

    return helper.make_tensor_value_info(name, getattr(TensorProto, kind), list(shape))


def _declare_caches(bundle: Bundle, prefix: str, length: str) -> list[Any]:
    """Return the declarations of keys and values (L, B, H, length, width)."""
    config = bundle.recipe.model
    widths = {"keys": config.key_width, "values": config.value_width}
    return [
        _declare(f"{prefix}_{name}", "FLOAT", [config.decoder_layers, "rows", config.num_heads, length, width])
        for name, width in widths.items()
    ]


def build_encoder(bundle: Bundle, num_positions: int) -> Graph:
    """Return the graph of the encoder: source (B, S) → cross_keys (L, B, H, S, K), cross_values (L, B, H, S, U)."""
    encoder, graph = bundle.model.encoder, GraphBuilder(bundle.release)
    positions_PD = encoder.embedding.positions(0, num_positions)
    if encoder.embedding.target_space_embedding is not None:
        positions_PD = positions_PD + encoder.embedding.target_space_embedding
    mask = graph.token_mask("source")
    length = graph.add("Shape", "source", start=1, end=2)
    table = graph.weight("positions", positions_PD)
    positions = graph.add("Slice", table, graph.integers(0), length, graph.integers(0))
    x = graph.add("Add", graph.embed("source", encoder.embedding, "embedding"), positions)
    x = graph.norm(x, encoder.embedding.norm, "encoder.embedding.norm")
    for index, layer in enumerate(encoder.layers):
        assert isinstance(layer, EncoderLayer)
        name = f"encoder.layers.{index}"
        y = graph.sublayer_input(x, layer.attention_residual, f"{name}.attention_residual")
        key, value = graph.project_kv(y, layer.attention, f"{name}.attention")
        y = graph.attend(y, key, value, mask, layer.attention, f"{name}.attention")
        x = graph.add_residual(x, y, layer.attention_residual, f"{name}.attention_residual")
        x = _add_feed_forward(graph, x, layer, name)
    memory = graph.norm(x, encoder.norm, "encoder.norm")
    keys, values = [], []
    for index, layer in enumerate(bundle.model.decoder.layers):
        assert isinstance(layer, DecoderLayer)
        key, value = graph.project_kv(memory, layer.cross_attention, f"decoder.layers.{index}.cross_attention")
        keys.append(key)
        values.append(value)
    graph.stack(keys, "cross_keys")
    graph.stack(values, "cross_values")
    inputs = [_declare("source", "INT64", ["rows", "source_length"])]
    return graph.build("encoder", inputs, _declare_caches(bundle, "cross", "source_length"))


def build_decoder(bundle: Bundle, num_positions: int) -> Graph:
    """Return the graph of one decoder step.

    Its inputs are tokens (B,), source (B, S), cross_keys and cross_values of the encoder, and self_keys (L, B, H, T, K) and
    self_values (L, B, H, T, U). Its outputs are logits (B, V), and new_self_keys and new_self_values with T + 1 tokens.
    """
    model, graph = bundle.model, GraphBuilder(bundle.release)
    decoder = model.decoder
    mask = graph.token_mask("source")
    position = graph.add("Shape", "self_keys", start=3, end=4)
    positions = graph.add("Gather", graph.weight("positions", decoder.embedding.positions(0, num_positions)), position)
    embedding_name = "output" if decoder.embedding.weight is model.output else "embedding"
    vectors = graph.embed("tokens", decoder.embedding, embedding_name)
    x = graph.norm(graph.add("Add", vectors, positions), decoder.embedding.norm, "decoder.embedding.norm")
    x = graph.add("Unsqueeze", x, graph.integers(1))
    keys, values = [], []
    for index, layer in enumerate(decoder.layers):
        assert isinstance(layer, DecoderLayer)
        name = f"decoder.layers.{index}"
        caches = [
            graph.add("Gather", cache, graph.integers_scalar(index), axis=0)
            for cache in ("self_keys", "self_values", "cross_keys", "cross_values")
        ]
        y = graph.sublayer_input(x, layer.attention_residual, f"{name}.attention_residual")
        key, value = (
            graph.add("Concat", cache, new, axis=2)
            for cache, new in zip(caches[:2], graph.project_kv(y, layer.attention, f"{name}.attention"), strict=True)
        )
        y = graph.attend(y, key, value, None, layer.attention, f"{name}.attention")
        x = graph.add_residual(x, y, layer.attention_residual, f"{name}.attention_residual")
        y = graph.sublayer_input(x, layer.cross_attention_residual, f"{name}.cross_attention_residual")
        y = graph.attend(y, caches[2], caches[3], mask, layer.cross_attention, f"{name}.cross_attention")
        x = graph.add_residual(x, y, layer.cross_attention_residual, f"{name}.cross_attention_residual")
        x = _add_feed_forward(graph, x, layer, name)
        keys.append(key)
        values.append(value)
    graph.stack(keys, "new_self_keys")
    graph.stack(values, "new_self_values")
    x = graph.add("Squeeze", graph.norm(x, decoder.norm, "decoder.norm"), graph.integers(1))
    bias_V = torch.zeros(len(model.output)) if model.output_bias is None else model.output_bias.detach().clone()
    bias_V[[*FORBIDDEN_IDS, *bundle.tokenizer.target.reserved_ids]] = SUPPRESSED_LOGIT
    output, bias = graph.weight("output", model.output), graph.weight("output_bias", bias_V)
    graph.add("Gemm", x, output, bias, output="logits", transB=1)
    inputs = [
        _declare("tokens", "INT64", ["rows"]),
        _declare("source", "INT64", ["rows", "source_length"]),
        *_declare_caches(bundle, "cross", "source_length"),
        *_declare_caches(bundle, "self", "length"),
    ]
    outputs = [
        _declare("logits", "FLOAT", ["rows", len(model.output)]),
        *_declare_caches(bundle, "new_self", "new_length"),
    ]
    return graph.build("decoder", inputs, outputs)


def _add_feed_forward(graph: GraphBuilder, x: str, layer: EncoderLayer | DecoderLayer, name: str) -> str:
    """Return the output of the last sublayer of a layer."""
    y = graph.sublayer_input(x, layer.feed_forward_residual, f"{name}.feed_forward_residual")
    y = graph.feed_forward(y, layer.feed_forward, f"{name}.feed_forward")
    return graph.add_residual(x, y, layer.feed_forward_residual, f"{name}.feed_forward_residual")

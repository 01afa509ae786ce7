"""Explanation of one translation: attention, other candidate tokens, and pruned hypotheses of the beam.

The translator makes the translation first. The explanation then runs the model again, so it cannot change the translation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from dragoman.bundle import Bundle
from dragoman.config import DecodingConfig, ModelConfig, Recipe
from dragoman.data.collate import collate
from dragoman.data.tokenization.special_tokens import END_ID, UNKNOWN_ID
from dragoman.data.tokenization.vocabulary import Vocabulary
from dragoman.data.tokenization.word_boundaries import get_word_numbers
from dragoman.errors import BundleError, DataError
from dragoman.inference.explain.search_trace import trace_search
from dragoman.inference.translation_result import Translation
from dragoman.model.attention import Attention, AttentionObserver, KeyValue, observe_attention
from dragoman.model.local_attention import Mask
from dragoman.model.transformer import Transformer, check_predicts_by_steps
from dragoman.tasks.attention_alignment import AlignmentHead
from dragoman.tasks.generation import FORBIDDEN_IDS
from dragoman.tasks.inference_model import get_decoder_start_id
from dragoman.tasks.translation import has_text
from dragoman.torch_engine.inference_model import get_max_positions
from dragoman.viz.attention_page import MAX_TOKENS
from dragoman.viz.explanation import (
    ATTENTION_KINDS,
    AttentionHeads,
    AttentionKind,
    BeamNode,
    Explanation,
    HeadSelection,
    SourceImage,
    TokenCandidate,
    TokenPrediction,
)

NUM_CANDIDATES = 10
"""Candidate tokens at each position."""


class ExplainableTranslator(Protocol):
    """Part of `Translator` that an explanation needs."""

    bundle: Bundle

    @property
    def recipe(self) -> Recipe: ...
    def resolve_decoding(self, decoding: Mapping[str, Any], /) -> DecodingConfig: ...
    @property
    def translate(self) -> Callable[..., list[Translation]]: ...


def explain(
    translator: ExplainableTranslator,
    text: str,
    *,
    target: str | None = None,
    layer: int | None = None,
    heads: Sequence[int] = (),
    **decoding: Any,
) -> Explanation:
    """Translate one line and return the attention and the predictions of the first model.

    target: text that the model is forced to output; None for its own translation
    layer, heads: layer and heads that the page shows first, counted from 1. The default is the bundle's alignment head for
        cross-attention, and all heads of the last layer elsewhere.
    decoding: keys of the recipe's [decoding] section to change

    Raises DataError for a line that cannot be explained, with the limit if it is too long, and BundleError for a model that
    predicts all tokens at once.
    """
    model = translator.bundle.model
    check_predicts_by_steps(model, "explain")
    config = translator.resolve_decoding(decoding)
    tokenizer = translator.bundle.select_languages(config.source_language, config.target_language, zero_shot=config.zero_shot)
    prompt = tokenizer.decoder_prompt
    source = encode_source_line(translator, text, config)
    beam: tuple[BeamNode, ...] = ()
    notes: list[str] = []
    if target is not None:
        output_ids, finished, output_text = encode_forced_target(tokenizer.target, target), True, target
        notes.append("The translation is forced, so there was no search.")
    else:
        translation, output_ids, finished, beam = _translate_and_trace(
            translator, text, source, prompt, config, decoding, notes
        )
        output_text = translation.text
    if prompt:
        pieces = " ".join(tokenizer.target.ids_to_pieces(prompt))
        notes.insert(0, f"The decoder reads the language token {pieces} before its output.")
    notes += _describe_score(translator.recipe.model)
    check_length(len(prompt) + len(output_ids) + finished, get_max_positions([model]), "the translation")
    explanation = explain_output(
        translator.bundle,
        source,
        output_ids,
        finished=finished,
        layer=layer,
        heads=heads,
        prompt=prompt,
        suppressed_ids=(*FORBIDDEN_IDS, *tokenizer.target.reserved_ids),
    )
    return replace(
        explanation,
        source="" if explanation.image else text,
        target=output_text,
        beam=beam,
        teacher_forced=target is not None,
        notes=tuple(notes),
    )


def explain_output(
    bundle: Bundle,
    source: Sequence[int],
    output_ids: Sequence[int],
    *,
    finished: bool,
    layer: int | None,
    heads: Sequence[int],
    prompt: Sequence[int] = (),
    suppressed_ids: Sequence[int] = FORBIDDEN_IDS,
) -> Explanation:
    """Return the attention and the predictions of a model that is forced to output these ids, without texts and beam.

    finished: the output ends with the end token
    prompt: ids that the decoder reads between the start token and the output; they are keys, but not queries
    suppressed_ids: tokens that no search outputs
    Raises DataError for a layer or a head that the model does not have.
    """
    image = draw_source(bundle.recipe.model, source)
    if image is None:
        check_has_attention(bundle.recipe.model)
    model, tokenizer, decoder_start = bundle.model, bundle.tokenizer, get_decoder_start_id(bundle.recipe.model)
    with record_attention_arguments(model) as recorded:
        inputs = [*prompt, *(output_ids if finished else output_ids[:-1])]
        batch = collate([source], [inputs], start_id=decoder_start).to(model.output.device)
        with torch.no_grad():
            logits_TV = model(batch.source_BS, batch.inputs_BT)[0, len(prompt) :]
    num_keys = count_vectors(bundle, source)
    num_skipped_rows = {"encoder": 0, "decoder": len(prompt), "cross": len(prompt)}
    sizes = {"encoder": (num_keys, num_keys), "decoder": (len(inputs), len(inputs) + 1), "cross": (0, num_keys)}
    weights = {
        kind: stack_heads(recorded[kind], model, kind, num_skipped_rows[kind])
        if recorded[kind]
        else AttentionHeads.without_layers(*sizes[kind])
        for kind in ATTENTION_KINDS
    }
    output_tokens = tuple(tokenizer.target.ids_to_pieces([*output_ids, END_ID] if finished else output_ids))
    source_tokens = image.list_labels() if image else tuple(tokenizer.source.ids_to_pieces(source))
    return Explanation(
        model=bundle.recipe.name,
        source="",
        target="",
        source_tokens=source_tokens,
        output_tokens=output_tokens,
        decoder_input=tuple(
            tokenizer.target.ids_to_pieces([decoder_start, *prompt, *output_ids][: len(prompt) + len(output_tokens)])
        ),
        source_word_ids=tuple(range(num_keys))
        if image
        else number_words(
            source_tokens, has_end=tokenizer.append_source_eos, num_language_tokens=tokenizer.num_language_tokens
        ),
        output_word_ids=tuple(range(len(output_tokens))) if image else number_words(output_tokens, has_end=finished),
        encoder=weights["encoder"],
        decoder=weights["decoder"],
        cross=weights["cross"],
        selections={
            kind: choose_focus(weights[kind], kind, layer, heads, bundle.metadata.alignment)
            for kind in ATTENTION_KINDS
            if recorded[kind]
        },
        predictions=list_predictions(logits_TV, [*output_ids, END_ID][: len(output_tokens)], tokenizer.target, suppressed_ids),
        image=image,
    )


def draw_source(config: ModelConfig, source: Sequence[int]) -> SourceImage | None:
    """Return the image of a sound or a picture as source ids; None for text."""
    images = [extension.draw_source(source) for extension in config.model_extensions]
    return next((image for image in images if image is not None), None)


def count_vectors(bundle: Bundle, source: Sequence[int]) -> int:
    """Return the number of positions that a source has in the encoder."""
    return -(-len(source) // bundle.model.encoder.source_frontend.numbers_per_vector)


def check_has_attention(config: ModelConfig) -> None:
    """Raise BundleError for a model whose decoder does not attend to the source."""
    if not config.num_cross_attentions:
        raise BundleError(
            "this model: the decoder has no attention to the source, so there is nothing to show; explain another model",
            code="no-cross-attention",
        )


def _describe_score(config: ModelConfig) -> list[str]:
    """Return a note on the equation that the page shows for one head, if the model's attention has another one."""
    notes = [extension.describe_attention() for extension in config.model_extensions]
    return [note for note in notes if note is not None]


def encode_source_line(translator: ExplainableTranslator, text: str, config: DecodingConfig) -> list[int]:
    """Return the source ids of one line. Raises DataError for several lines, no text, or a line that is too long."""
    check_single_line(text)
    tokenizer = translator.bundle.select_languages(config.source_language, config.target_language, zero_shot=config.zero_shot)
    ids = tokenizer.encode_source(text)
    if not has_text(text, ids):
        raise DataError("the text is empty, so there is nothing to translate; give a sentence")
    num_vectors = count_vectors(translator.bundle, ids)
    subject, unit, position = ("the text", "token", "token") if num_vectors == len(ids) else ("the source", "number", "vector")
    if len(ids) > config.max_source_tokens:
        raise DataError(
            f"{subject} has {len(ids)} {unit}s, and decoding.max_source_tokens is {config.max_source_tokens}; shorten it"
        )
    check_length(num_vectors, get_max_positions([translator.bundle.model]), subject, position)
    return list(ids)


def check_single_line(text: str) -> None:
    """Raise DataError for a text of several lines."""
    if (num_lines := len(text.splitlines())) > 1:
        raise DataError(f"the text has {num_lines} lines, and an explanation is of one line; give one line")


def check_length(length: int, max_positions: int | None, subject: str, unit: str = "token") -> None:
    """Raise DataError for more tokens than the model has positions for, or a page has place for."""
    if max_positions is not None and length > max_positions:
        raise DataError(f"{subject} has {length} {unit}s, and the model has positions for {max_positions}; shorten it")
    if length > MAX_TOKENS:
        raise DataError(f"{subject} has {length} {unit}s, and a page holds {MAX_TOKENS}; explain a shorter part of it")


def encode_forced_target(vocabulary: Vocabulary, target: str) -> list[int]:
    """Return the ids of a text. Raises DataError for an empty one, and for a character that the model has no token for."""
    ids = vocabulary.encode(target)
    if not ids:
        raise DataError("the target is empty; give the translation to explain")
    if UNKNOWN_ID in ids:
        unknown = next((character for character in target if UNKNOWN_ID in vocabulary.encode(character)), target)
        raise DataError(f"the target has {unknown!a}, and the model has no token for it; remove it")
    return ids


def choose_focus(
    heads: AttentionHeads,
    kind: AttentionKind,
    layer: int | None,
    head_numbers: Sequence[int],
    alignment_head: AlignmentHead | None = None,
) -> HeadSelection:
    """Return the layer and the heads that the page shows first. Raises DataError for a number that the model does not have."""
    num_layers, num_heads, _, _ = heads.shape
    if layer is not None and not 1 <= layer <= num_layers and kind != "encoder":
        raise DataError(f"layer {layer} does not exist; the decoder has layers 1 to {num_layers}")
    if unknown_heads := [head for head in head_numbers if not 1 <= head <= num_heads]:
        raise DataError(f"head {unknown_heads[0]} does not exist; a layer has heads 1 to {num_heads}")
    if kind == "cross" and layer is None and not head_numbers:
        alignment_head = alignment_head or AlignmentHead()
        return HeadSelection(
            alignment_head.layer % num_layers,
            tuple(range(num_heads)) if alignment_head.head is None else (alignment_head.head,),
        )
    head_indices = tuple(sorted({head - 1 for head in head_numbers})) or tuple(range(num_heads))
    return HeadSelection(min(layer or num_layers, num_layers) - 1, head_indices)


def number_words(tokens: Sequence[str], *, has_end: bool, num_language_tokens: int = 0) -> tuple[int, ...]:
    """Return the word number of each token; an end token, and each language token at the start, is a word of its own."""
    text_numbers = get_word_numbers(tokens[num_language_tokens : -1 if has_end else None])
    numbers = [*range(num_language_tokens), *(num_language_tokens + number for number in text_numbers)]
    return (*numbers, numbers[-1] + 1 if numbers else 0) if has_end else tuple(numbers)


# Attention


class _RecordedAttention(NamedTuple):
    """Arguments of one attention layer for one sentence, and its weights."""

    query_HTK: Tensor
    key_HSK: Tensor
    value_HSU: Tensor
    weights_HTS: Tensor


@contextmanager
def record_attention_arguments(model: Transformer) -> Iterator[dict[AttentionKind, list[_RecordedAttention]]]:
    """Record the arguments of each attention layer while the model runs; its results do not change."""
    recorded: dict[AttentionKind, list[_RecordedAttention]] = {kind: [] for kind in ATTENTION_KINDS}

    def make_observer(kind: AttentionKind, module: Attention) -> AttentionObserver:
        def record(query: Tensor, key_value: KeyValue, mask: Mask | None) -> None:
            weights = module.compute_weights(query, key_value.key, mask)
            tensors = (query[0], key_value.key[0], key_value.value[0], weights[0])
            recorded[kind].append(_RecordedAttention(*(tensor.float().cpu() for tensor in tensors)))

        return record

    attentions = [(_get_kind(name), module) for name, module in model.named_modules() if isinstance(module, Attention)]
    with observe_attention({module: make_observer(kind, module) for kind, module in attentions}):
        yield recorded


def _get_kind(name: str) -> AttentionKind:
    """Return the kind of attention of a module with this name, such as `decoder.layers.0.cross_attention`."""
    if name.endswith("cross_attention"):
        return "cross"
    return "encoder" if name.startswith("encoder") else "decoder"


def stack_heads(
    recorded: Sequence[_RecordedAttention], model: Transformer, kind: AttentionKind, num_skipped_rows: int
) -> AttentionHeads:
    """Return the heads of all layers without the first queries."""
    rows = slice(num_skipped_rows, None)
    window = {"encoder": model.encoder.window, "decoder": model.decoder.window, "cross": None}[kind]
    query_LHTK, key_LHSK, value_LHSU, weights_LHTS = (torch.stack(tensors).numpy() for tensors in zip(*recorded, strict=True))
    return AttentionHeads(weights_LHTS[:, :, rows], query_LHTK[:, :, rows], key_LHSK, value_LHSU, window)


# Predictions and beam


def list_predictions(
    logits_TV: Tensor, ids: Sequence[int], vocabulary: Vocabulary, suppressed_ids: Sequence[int]
) -> tuple[TokenPrediction, ...]:
    """Return the likeliest tokens at each position. Suppressed tokens are excluded, as in the search."""
    log_probs_TV = logits_TV.float().log_softmax(dim=-1)
    log_probs_TV[:, list(suppressed_ids)] = float("-inf")
    top = log_probs_TV.topk(min(NUM_CANDIDATES, log_probs_TV.shape[1] - len(suppressed_ids)), dim=1)
    predictions = []
    for position, output_id in enumerate(ids):
        order = top.indices[position].tolist()
        names = vocabulary.ids_to_pieces([output_id, *order])
        log_prob = log_probs_TV[position, output_id]
        rank = order.index(output_id) + 1 if output_id in order else int((log_probs_TV[position] > log_prob).sum()) + 1
        candidates = tuple(map(TokenCandidate, names[1:], top.values[position].tolist()))
        predictions.append(TokenPrediction(TokenCandidate(names[0], float(log_prob)), rank, candidates))
    return tuple(predictions)


def _translate_and_trace(
    translator: ExplainableTranslator,
    text: str,
    source: Sequence[int],
    prompt: Sequence[int],
    config: DecodingConfig,
    decoding: Mapping[str, Any],
    notes: list[str],
) -> tuple[Translation, list[int], bool, tuple[BeamNode, ...]]:
    """Return the translation, its output as ids, whether it is finished, and the nodes of the beam."""
    translation = translator.translate([text], **decoding)[0]
    vocabulary = translator.bundle.tokenizer.target
    finished = len(translation.token_log_probs) > len(translation.tokens)
    if not translation.tokens and not finished:
        raise DataError("the translation is empty, so there is nothing to explain; give another text")
    id_by_piece = {piece: index for index, piece in enumerate(vocabulary.ids_to_pieces(range(len(vocabulary))))}
    ids = [id_by_piece[piece] for piece in translation.tokens]
    if config.method == "sample":
        notes.append("The translation was sampled, so there is no beam to show.")
        return translation, ids, finished, ()
    trace = trace_search(
        translator.bundle.model,
        vocabulary,
        source,
        config,
        start_id=get_decoder_start_id(translator.recipe.model),
        prompt=prompt,
        suppressed_ids=(*FORBIDDEN_IDS, *vocabulary.reserved_ids),
    )
    if trace.ids != (*ids, END_ID)[: len(ids) + finished]:
        notes.append("The recorded search found another output than the translation, so its beam is not shown.")
        return translation, ids, finished, ()
    return translation, ids, finished, trace.nodes

"""Why a translation is what it is: what a model looked at, what else it might have said, and what its beam gave up.

The translation is made first, by the translator itself; all this is read off beside it, so that nothing here can change it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from dragoman.bundle import Bundle
from dragoman.config import DecodingConfig
from dragoman.data.collate import collate
from dragoman.data.tokenization.sentencepiece import Vocabulary
from dragoman.data.tokenization.special_tokens import END_ID, UNKNOWN_ID
from dragoman.data.tokenization.word_boundaries import words_of
from dragoman.errors import DataError
from dragoman.inference.explain.search_trace import recorded_search as recorded_search
from dragoman.model.attention import Attention, explicit_weights
from dragoman.model.layers import DecoderLayer, EncoderLayer
from dragoman.model.local_attention import Mask
from dragoman.model.transformer import Transformer
from dragoman.tasks.attention_alignment import chosen_head
from dragoman.tasks.generation import FORBIDDEN
from dragoman.tasks.inference_model import most_positions, start_id
from dragoman.tasks.translation import holds_text
from dragoman.viz.attention_page import MOST_TOKENS
from dragoman.viz.explanation import KINDS, Branch, Candidate, Choice, Explanation, Focus, Heads, Kind

if TYPE_CHECKING:
    from dragoman.inference.translator import Translator

TOP = 10
"""Candidates that are told at each place."""


def explain(
    translator: Translator,
    text: str,
    *,
    target: str | None = None,
    layer: int | None = None,
    heads: Sequence[int] = (),
    **decoding: Any,
) -> Explanation:
    """Translate one line, or force `target` as its translation, and tell all that the (first) model looked at on the way.

    layer, heads: what to look at first, counted from 1; when not given, the head that the bundle names for alignments, and
        elsewhere all heads of the last layer
    decoding: knobs of the recipe's [decoding] section to change

    Raises DataError for a line that cannot be explained, naming the limit where it is too long.
    """
    config = translator.check(decoding)
    model, tokeniser = translator.bundle.model, translator.bundle.tokeniser
    source = source_ids(translator, text, config)
    beam: tuple[Branch, ...] = ()
    notes: list[str] = []
    if target is not None:
        said_ids, finished, said_text = _forced_ids(tokeniser.target, target), True, target
        notes.append("The translation was given, so no search was made.")
    else:
        said_ids, finished, said_text, beam = _translated(translator, text, source, config, decoding, notes)
    _refuse_long(len(said_ids) + finished, most_positions([model]), "the translation")
    looked = looked_at(translator.bundle, source, said_ids, finished=finished, layer=layer, heads=heads)
    return replace(looked, source=text, target=said_text, beam=beam, forced=target is not None, notes=tuple(notes))


def looked_at(
    bundle: Bundle,
    source: Sequence[int],
    said_ids: Sequence[int],
    *,
    finished: bool,
    layer: int | None,
    heads: Sequence[int],
    never: Sequence[int] = FORBIDDEN,
) -> Explanation:
    """What a model looks at while it says these ids, and what else it might say; the texts and the search are left out.

    finished: it came to its end after them
    never: tokens that no search says
    Raises DataError for a layer or a head that it does not have.
    """
    model, tokeniser, start = bundle.model, bundle.tokeniser, start_id(bundle.recipe.model)
    with _watched(model) as seen:
        batch = collate([source], [said_ids if finished else said_ids[:-1]], start_id=start).to(model.output.device)
        with torch.no_grad():
            logits_TV = model(batch.source_BS, batch.inputs_BT)[0]
    weights = {kind: _gathered(seen[kind], model, kind) for kind in KINDS}
    said = tuple(tokeniser.target.pieces([*said_ids, END_ID] if finished else said_ids))
    source_tokens = tuple(tokeniser.source.pieces(source))
    return Explanation(
        model=bundle.recipe.name,
        source="",
        target="",
        source_tokens=source_tokens,
        said=said,
        read=tuple(tokeniser.target.pieces([start, *said_ids][: len(said)])),
        source_words=numbered_words(source_tokens, ended=tokeniser.append_source_eos),
        said_words=numbered_words(said, ended=finished),
        encoder=weights["encoder"],
        decoder=weights["decoder"],
        cross=weights["cross"],
        focus={kind: _focus(bundle.story, weights[kind], kind, layer, heads) for kind in KINDS},
        choices=_choices(logits_TV, [*said_ids, END_ID][: len(said)], tokeniser.target, never),
    )


def source_ids(translator: Translator, text: str, config: DecodingConfig) -> list[int]:
    """One line as the encoder reads it. Raises DataError where it is none, holds nothing, or is too long."""
    if len(text.splitlines()) > 1:
        raise DataError(f"the text has {len(text.splitlines())} lines; one line at a time can be explained")
    source = translator.bundle.tokeniser.encode_source(text)
    if not holds_text(text, source):
        raise DataError("the text is empty: there is nothing to translate, and nothing to explain")
    if len(source) > config.max_source_tokens:
        raise DataError(
            f"the text has {len(source)} tokens, and decoding.max_source_tokens is {config.max_source_tokens}; shorten it"
        )
    _refuse_long(len(source), most_positions([translator.bundle.model]), "the text")
    return list(source)


def _refuse_long(length: int, positions: int | None, what: str) -> None:
    if positions is not None and length > positions:
        raise DataError(f"{what} has {length} tokens, and the model has positions for {positions}; shorten it")
    if length > MOST_TOKENS:
        raise DataError(f"{what} has {length} tokens, and a page holds {MOST_TOKENS}: explain it a part at a time")


def _forced_ids(subword: Vocabulary, target: str) -> list[int]:
    ids = subword.encode(target)
    if not ids:
        raise DataError("the target is empty: give the translation that is to be explained")
    if UNKNOWN_ID in ids:
        unknown = next((character for character in target if UNKNOWN_ID in subword.encode(character)), target)
        raise DataError(f"the target holds {unknown!a}, for which the model has no token, so it can never say it")
    return ids


def _focus(story: Mapping[str, Any], heads: Heads, kind: Kind, layer: int | None, wanted: Sequence[int]) -> Focus:
    layers, count, _, _ = heads.shape
    if layer is not None and not 1 <= layer <= layers and kind != "encoder":
        raise DataError(f"layer {layer}: the decoder has layers 1 to {layers}")
    if strange := [head for head in wanted if not 1 <= head <= count]:
        raise DataError(f"head {strange[0]}: a layer has heads 1 to {count}")
    best = chosen_head(story)
    if kind == "cross" and layer is None and not wanted:
        return Focus(best.layer % layers, tuple(range(count)) if best.head is None else (best.head,))
    chosen = tuple(sorted({head - 1 for head in wanted})) or tuple(range(count))
    return Focus(min(layer or layers, layers) - 1, chosen)


def numbered_words(tokens: Sequence[str], *, ended: bool) -> tuple[int, ...]:
    """The number of each token's word; an end token is a word of its own."""
    numbers = words_of(tokens[:-1] if ended else tokens)
    return (*numbers, numbers[-1] + 1 if numbers else 0) if ended else tuple(numbers)


# What the model looked at


@dataclass(frozen=True)
class _Seen:
    """One attention's arguments, all of one sentence, and the weights that follow from them."""

    query_HTK: Tensor
    key_HSK: Tensor
    value_HSU: Tensor
    weights_HTS: Tensor


@contextmanager
def _watched(model: Transformer) -> Iterator[dict[Kind, list[_Seen]]]:
    """What each attention was asked while the model ran once, layer by layer; its answers stay what they were."""
    seen: dict[Kind, list[_Seen]] = {kind: [] for kind in KINDS}
    modules: list[tuple[Kind, Attention]] = []
    modules += [("encoder", cast(EncoderLayer, layer).attention) for layer in model.encoder.layers]
    modules += [("decoder", cast(DecoderLayer, layer).attention) for layer in model.decoder.layers]
    modules += [("cross", cast(DecoderLayer, layer).cross_attention) for layer in model.decoder.layers]
    before = [module.attend for _, module in modules]

    def watch(kind: Kind, module: Attention) -> None:
        attend = module.attend

        def attend_and_keep(query: Tensor, key: Tensor, value: Tensor, mask: Mask | None, dropout_p: float) -> Tensor:
            kept = (query[0], key[0], value[0], explicit_weights(query, key, mask)[0])
            seen[kind].append(_Seen(*(one.float().cpu() for one in kept)))
            return attend(query, key, value, mask, dropout_p)

        module.attend = attend_and_keep

    for kind, module in modules:
        watch(kind, module)
    try:
        yield seen
    finally:
        for (_, module), attend in zip(modules, before, strict=True):
            module.attend = attend


def _gathered(seen: Sequence[_Seen], model: Transformer, kind: Kind) -> Heads:
    window = {"encoder": model.encoder.window, "decoder": model.decoder.window, "cross": None}[kind]
    return Heads(
        weights_LHTS=torch.stack([one.weights_HTS for one in seen]).numpy(),
        query_LHTK=torch.stack([one.query_HTK for one in seen]).numpy(),
        key_LHSK=torch.stack([one.key_HSK for one in seen]).numpy(),
        value_LHSU=torch.stack([one.value_HSU for one in seen]).numpy(),
        window=window,
    )


# What it might have said


def _choices(logits_TV: Tensor, ids: Sequence[int], subword: Vocabulary, never: Sequence[int]) -> tuple[Choice, ...]:
    """The likeliest tokens at each place. Those that are never said are left out, as the search leaves them out."""
    log_probs_TV = logits_TV.float().log_softmax(dim=-1)
    log_probs_TV[:, list(never)] = float("-inf")
    best = log_probs_TV.topk(min(TOP, log_probs_TV.shape[1] - len(never)), dim=1)
    choices = []
    for place, said in enumerate(ids):
        names = subword.pieces([said, *best.indices[place].tolist()])
        log_prob = log_probs_TV[place, said]
        order = best.indices[place].tolist()
        rank = order.index(said) + 1 if said in order else int((log_probs_TV[place] > log_prob).sum()) + 1
        candidates = tuple(map(Candidate, names[1:], best.values[place].tolist()))
        choices.append(Choice(Candidate(names[0], float(log_prob)), rank, candidates))
    return tuple(choices)


def _translated(
    translator: Translator,
    text: str,
    source: Sequence[int],
    config: DecodingConfig,
    decoding: Mapping[str, Any],
    notes: list[str],
) -> tuple[list[int], bool, str, tuple[Branch, ...]]:
    """The translator's own output as ids, whether it came to its end, its text, and the beam that led to it."""
    translation = translator.translate([text], **decoding)[0]
    subword = translator.bundle.tokeniser.target
    finished = len(translation.token_log_probs) > len(translation.tokens)
    if not translation.tokens and not finished:
        raise DataError("the model said nothing to this text, so there is nothing to explain")
    number = {piece: index for index, piece in enumerate(subword.pieces(range(len(subword))))}
    ids = [number[piece] for piece in translation.tokens]
    if config.method == "sample":
        notes.append("The translation was drawn by chance, so there is no beam to show.")
        return ids, finished, translation.text, ()
    record = recorded_search(translator.bundle.model, source, config, start=start_id(translator.recipe.model))
    if record.ids != [*ids, END_ID][: len(ids) + finished]:
        notes.append("The search that was recorded came to another output than the translation, so its beam is not shown.")
        return ids, finished, translation.text, ()
    return ids, finished, translation.text, record.branches(subword)

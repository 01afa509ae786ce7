"""Differences between a recipe and the paper, item by item.

A run's header and its bundle list the deviations of `config.paper_settings`. This module adds the items that have no recipe
key: those that hold for every recipe, and those that the corpus decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from dragoman.config.paper_settings import Deviation, find_deviations

DifferenceState = Literal["as printed", "not in the text", "deviates", "fixed", "left to the recipe"]


@dataclass(frozen=True)
class PaperItem:
    """One item on which the text of the paper, tensor2tensor 1.0.3 and later code may differ.

    recipe_keys: the keys of `paper_settings.PAPER_SETTINGS` that set it
    value: dragoman's behavior if there are no such keys; `state` says whether a recipe can change it
    """

    number: int
    name: str
    text: str
    code: str
    later_code: str = ""
    recipe_keys: tuple[str, ...] = ()
    decided_by: tuple[str, ...] = ()
    """Keys that set it but depend on the corpus, so that no value of them is a deviation."""
    value: str = ""
    state: DifferenceState = "fixed"


@dataclass(frozen=True)
class Difference:
    """Item with its state and its value in a recipe."""

    item: PaperItem
    state: DifferenceState
    value: str
    deviations: Sequence[Deviation] = field(default=())


PAPER_ITEMS = (
    PaperItem(1, "normalization", "post: LayerNorm(x + Sublayer(x))", "post, ε 1e-6, no final one",
         "pre-norm with a final one since 2017-10; Sockeye, Paddle and the Annotated Transformer pre, fairseq post",
         ("model.norm", "model.norm_type", "model.final_norm", "model.embedding_norm", "model.norm_epsilon")),
    PaperItem(2, "Adam", "β₁ .9, β₂ .98, ε 1e-9", "the same", "β₂ .997",
         ("training.adam_beta1", "training.adam_beta2", "training.adam_epsilon", "training.weight_decay",
          "training.clip_norm")),
    PaperItem(3, "learning rate", "d^-.5 · min(s^-.5, s · 4000^-1.5)", "constant 1.0, uses s + 1", "× 2.0, warm-up 8000",
         ("training.schedule", "training.lr_factor", "training.warmup_steps", "training.lr_decay_ratio")),
    PaperItem(4, "dropout on attention weights and after the ReLU", "not stated", "0, 0", "0.1, 0.1",
         ("model.attention_dropout", "model.activation_dropout")),
    PaperItem(5, "dropout on sub-layers and on embedding + position", "yes, in both stacks", "yes", "",
         ("model.residual_dropout", "model.embedding_dropout")),
    PaperItem(6, "biases of the attention projections", "none in the formula", "on", "off since 2017-11",
         ("model.attention_bias",)),
    PaperItem(7, "sinusoids", "sin and cos interleaved, 10000^(2i/d)", "[sin …, cos …], exponent i/(d/2−1)",
         "as the code in fairseq and Paddle", ("model.position_encoding",)),
    PaperItem(8, "learned positions (row E)", "a reference to another paper", "N(0, d^-.5), then × d^.5",
         value="N(0, d^-.5), then × d^.5, where model.position_encoding = 'learned'"),
    PaperItem(9, "tied embeddings", "both embeddings and the matrix before the softmax; × √d on embeddings", "the same", "",
         ("model.tie_embeddings", "model.scale_embeddings")),
    PaperItem(10, "initial weights", "not stated", "Glorot uniform; embeddings N(0, d^-.5)", "", ("model.initialization",)),
    PaperItem(11, "extra parameters", "none", "a target-space embedding added to the encoder's input", "",
         ("model.target_space_embedding",)),
    PaperItem(12, "first decoder input", "offset by one", "shifted right with a zero vector; an end token on the source, too",
         "a begin token", ("model.decoder_start_token", "model.append_source_eos")),
    PaperItem(13, "label smoothing", "ε .1", "the true class 1−ε, the others ε/(V−1)",
         "ε/V with the true class in PyTorch, Paddle and Marian; ε/(V−2) in JoeyNMT",
         ("training.label_smoothing", "training.label_smoothing_mode")),
    PaperItem(14, "divisor of the loss", "not stated", "all target tokens that are not padding, over all devices",
         value="the same: the sum over all devices, divided by all target tokens without padding; it has no switch"),
    PaperItem(15, "perplexity", "per word-piece", "the reported loss is smoothed, which inflates it",
         value="per subword token, without smoothing; the smoothed loss is reported separately"),
    PaperItem(16, "batches", "about 25,000 source and 25,000 target tokens",
         "4,096 padded tokens × 8 devices, over 256 dropped",
         decided_by=("training.batch_tokens", "training.batches_per_update", "data.max_length", "data.overlong_pairs")),
    PaperItem(17, "vocabulary", "about 37,000 shared BPE; En-Fr 32,000 word-pieces",
         "40,960 rows, of which some 4,000 are no token; tokenizer.reserved_tokens adds such rows", "",
         decided_by=("tokenizer.model_type", "tokenizer.joint", "tokenizer.vocab_size", "tokenizer.reserved_tokens")),
    PaperItem(18, "corpus", "WMT14, 4.5 million pairs; En-Fr 36 million", "the tarball holds the preparation of WMT16",
         value="the corpus of the recipe", state="left to the recipe"),
    PaperItem(19, "big, En-De", "P_drop .3, 300,000 steps", "the same", decided_by=("size", "training.max_steps")),
    PaperItem(20, "big, En-Fr", "big with P_drop .1", "d_ff 8192, embeddings not shared", "d_ff 4096 in fairseq",
         value="the recipe wmt14-enfr-big", state="left to the recipe"),
    PaperItem(21, "score of big, En-Fr", "41.8 in Table 2, 41.0 in section 6.1", "", value="table2 prints 41.8"),
    PaperItem(22, "averaging", "the last 5 (base) or 20 (big), 10 minutes apart; none in Table 3", "the same",
         decided_by=("training.checkpoint_averaging", "training.num_averaged_checkpoints",
                     "training.checkpoint_every_minutes")),
    PaperItem(23, "length penalty and beam", "beam 4, α .6, after [GNMT]", "((5+|Y|)/6)^α, |Y| with the end token, no coverage",
         "|Y|^p in CTranslate2, fairseq, Transformers and Marian: their 0.6 has another meaning",
         ("decoding.beam_size", "decoding.length_penalty", "decoding.alpha")),
    PaperItem(24, "end of the search", "early when possible",
         "when the worst finished hypothesis so far beats the bound of the live ones, in all sentences of the batch: "
         "worst_finished, whose best output is that of exhaustive",
         "when the best finished one does", ("decoding.early_stopping",)),
    PaperItem(25, "longest output", "the input + 50",
         "the padded batch's length + 50, which has no switch: an output must not depend on the other sentences", "+ 100",
         ("decoding.max_extra_tokens",)),
    PaperItem(26, "BLEU", "not stated", "Moses tokens, compounds split at hyphens, multi-bleu",
         "sacreBLEU: 0.7 to 1.0 lower for the same output",
         value="sacreBLEU and the paper's BLEU, each with its signature (dragoman score --language de)"),
    PaperItem(27, "parsing: settings",
         "4 layers, d 1024, 16,000 or 32,000 tokens, + 300, beam 21, α .3; dropout and rate chosen; all else as base",
         "transformer_parsing_base_dr6: base with 6 layers, d 1024, attention and residual dropout .2, warm-up 16,000, 5 × the "
         "rate, nothing shared. transformer_parsing_big: d_ff 4096, 16 heads, dropout .1, warm-up 4,000, 5 × the rate, the "
         "target's matrices shared",
         "half the rate instead of 5 × the rate",
         value="the recipes parsing-wsj and parsing-wsj-semi; a run prints its deviations", state="left to the recipe"),
    PaperItem(28, "parsing: form of the trees", "not stated",
         "labels with parts of speech and typed closers, no words in the target",
         value="set by the parsing recipe", state="left to the recipe"),
    PaperItem(29, "rows A", "constant computation", "h · d_k = 512", decided_by=("size", "model.num_heads", "model.d_k")),
    PaperItem(30, "rows B", "d_k alone", "d_v stays", decided_by=("size", "model.d_k", "model.d_v")),
    PaperItem(31, "rows C, d_model 256 and 1024", "d_k = d_v = 32 and 128", "d/8, d_ff stays 2048",
         decided_by=("size", "model.d_model", "model.d_ff")),
    PaperItem(32, "restricted self-attention", "future work (section 4)", "none", "", ("model.attention_window",)),
)  # fmt: skip
"""The 31 items, and after them the one that the text leaves to future work."""


def find_differences(recipe: Mapping[str, Any]) -> list[Difference]:
    """Return the state of each item in a recipe, which is a nested dictionary."""
    deviations_by_key = {deviation.key: deviation for deviation in find_deviations(recipe)}
    return [_compare_item(item, recipe, deviations_by_key) for item in PAPER_ITEMS]


def _compare_item(item: PaperItem, recipe: Mapping[str, Any], deviations_by_key: Mapping[str, Deviation]) -> Difference:
    if item.decided_by:
        return Difference(item, "left to the recipe", _format_values(item.decided_by, recipe))
    if not item.recipe_keys:
        return Difference(item, item.state, item.value)
    item_deviations = [deviations_by_key[key] for key in item.recipe_keys if key in deviations_by_key]
    state: DifferenceState = "deviates" if item_deviations else "not in the text" if item.text == "not stated" else "as printed"
    return Difference(item, state, _format_values(item.recipe_keys, recipe), item_deviations)


def _format_values(keys: Sequence[str], recipe: Mapping[str, Any]) -> str:
    return ", ".join(f"{key.rpartition('.')[2]} {_format_value(key, recipe)}" for key in keys)


def _format_value(key: str, recipe: Mapping[str, Any]) -> str:
    value: Any = recipe
    for name in key.split("."):
        value = value[name]
    if value is None:
        return {"model.final_norm": "set by norm", "model.d_k": "d_model / heads", "model.d_v": "d_model / heads"}.get(
            key, "none"
        )
    return str(value).lower() if isinstance(value, bool) else f"{value:,}" if isinstance(value, int) else str(value)

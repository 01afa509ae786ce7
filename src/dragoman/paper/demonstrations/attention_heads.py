"""Section 4: heads learn different tasks, and many show the syntactic structure of the sentences.

Each head of the encoder is scored by the word with its largest weight, other than the word itself: the previous word, the next
word, or the syntactic parent. The parent of a word is the head word of the smallest phrase that has another head word.
For each class of words, the best head competes with the best fixed distance (Clark et al. 2019, "What Does BERT Look At?").
Both are chosen on every other sentence and scored on the rest. A removed head has an output of zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
import torch.nn.functional as F

from dragoman.config import CorpusConfig
from dragoman.data.collate import Batch, collate
from dragoman.data.padding import split_by_tokens
from dragoman.data.tokenization.special_tokens import PADDING_ID
from dragoman.errors import DataError
from dragoman.formats.readers import read_pairs
from dragoman.model.attention import Attention
from dragoman.model.layers import EncoderLayer
from dragoman.paper.demonstrations.demonstration import Demonstration, render_lesson
from dragoman.paper.figures import record_encoder_attention
from dragoman.paper.table4 import read_treebank
from dragoman.parsing.trees.tree import Tree, get_leaves, iter_events
from dragoman.tasks.inference_model import get_decoder_start_id
from dragoman.viz.svg import box_path, format_number, render_label

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dragoman.inference.translator import Translator

    Array = NDArray[Any]

MAX_SENTENCES, MAX_WORDS, MAX_PAIRS = 100, 40, 30
DISTANCES = (-4, -3, -2, -1, 1, 2, 3, 4)
WORD_CLASSES: Mapping[str, tuple[str, ...]] = {
    "determiners": ("DT",),
    "adjectives": ("JJ",),
    "nouns": ("NN",),
    "prepositions": ("IN",),
    "verbs": ("VB",),
}
"""Beginnings of the tags of each class."""
_HEAD_CHILDREN: Mapping[str, tuple[tuple[str, ...], bool]] = {
    "NP": (("NN", "NML", "NX", "NP"), True),
    "NML": (("NN", "NML", "NX"), True),
    "VP": (("VP", "VB", "MD"), False),
    "PP": (("IN", "TO", "VBG"), False),
    "S": (("VP", "S"), False),
    "SBAR": (("S", "IN"), False),
    "ADJP": (("JJ", "ADJP"), True),
}
"""Labels of the child that is the head of a phrase, by preference, and whether the last such child is taken, not the first."""


def choose_head_child(label: str, children: Sequence[str]) -> int:
    """Return the index of the head among the labels of the children; the last one for a phrase without a rule."""
    labels, takes_last = _HEAD_CHILDREN.get(label, ((), True))
    for prefix in labels:
        matches = [index for index, child in enumerate(children) if child.startswith(prefix)]
        if matches:
            return matches[-1 if takes_last else 0]
    return len(children) - 1


def find_parents(tree: Tree) -> list[int | None]:
    """Return the index of the parent of each word; None for the head of the sentence."""
    parents: list[int | None] = [None] * len(get_leaves(tree))
    open_phrases: list[tuple[str, list[tuple[str, int]]]] = [("", [])]
    num_words = 0
    for event in iter_events(tree):
        if event.is_open:
            open_phrases.append((event.label or "", []))
        elif event.kind == "leaf":
            open_phrases[-1][1].append((event.label or "", num_words))
            num_words += 1
        else:
            label, children = open_phrases.pop()
            head = children[choose_head_child(label, [child for child, _ in children])][1]
            for _, word in children:
                if word != head:
                    parents[word] = head
            open_phrases[-1][1].append((label, head))
    return parents


@dataclass(frozen=True)
class AttendedSentence:
    """Words of a sentence, and where each head looks.

    targets_LHW: word with the largest attention weight of each word, apart from itself
    """

    tags: Sequence[str]
    parents: Sequence[int | None]
    targets_LHW: Array


@dataclass(frozen=True)
class HeadResult:
    """Shares of words whose largest weight goes to each kind of word, and the loss without the head.

    loss_change: nats per target token that the model loses without the head; None without pairs
    """

    layer: int
    head: int
    previous: float
    next: float
    parent: float
    loss_change: float | None


@dataclass(frozen=True)
class ClassResult:
    """Best head and best fixed distance for the parents of one class of words, scored on sentences that did not choose them.

    head: layer and head, counted from 1
    head_accuracy, distance_accuracy: share of words whose parent they find
    margin: half of the 95 % interval of the difference, by the words on which both disagree
    """

    word_class: str
    num_words: int
    head: tuple[int, int]
    head_accuracy: float
    distance: int
    distance_accuracy: float
    margin: float


def read_sentences(translator: Translator, trees: Path) -> list[AttendedSentence]:
    """Return the attention of the first sentences. Raises DataError if none has the words of its tree."""
    sentences: list[AttendedSentence] = []
    for tree in read_treebank([trees]).trees:
        leaves = get_leaves(tree)
        if 2 <= len(leaves) <= MAX_WORDS and len(sentences) < MAX_SENTENCES:
            attention = record_encoder_attention(translator, " ".join(leaf.word for leaf in leaves))
            words_W = np.array(attention.word_indices)
            has_end = attention.tokens[-1] == "</s>"
            if words_W[-1] + 1 - has_end == len(leaves):
                targets_LHW = _find_targets(attention.weights_LHTS, words_W, len(leaves))
                sentences.append(AttendedSentence([leaf.tag or "" for leaf in leaves], find_parents(tree), targets_LHW))
    if len(sentences) < 2:
        raise DataError(f"{trees}: fewer than two sentences of 2 to {MAX_WORDS} words fit the tokens of the model; give others")
    return sentences


def _find_targets(weights_LHTS: Array, words_T: Array, num_words: int) -> Array:
    """Return the word with the largest weight of each word: the sum over its tokens, the mean over those of the query."""
    belongs_TW = words_T[:, None] == np.arange(num_words)
    weights_LHWW = np.einsum("tw,lhts,sv->lhwv", belongs_TW / belongs_TW.sum(axis=0), weights_LHTS, belongs_TW.astype(float))
    diagonal = np.arange(num_words)
    weights_LHWW[:, :, diagonal, diagonal] = -1.0
    targets: Array = weights_LHWW.argmax(axis=-1)
    return targets


def score_heads(sentences: Sequence[AttendedSentence], losses_LH: Array | None = None) -> list[HeadResult]:
    """Return the shares of each head over all words that have a parent."""
    hits: dict[str, Array] = {}
    for name in ("previous", "next", "parent"):
        columns = []
        for sentence in sentences:
            words = np.array([word for word, parent in enumerate(sentence.parents) if parent is not None])
            wanted_W = {
                "previous": words - 1,
                "next": words + 1,
                "parent": np.array([sentence.parents[word] for word in words]),
            }[name]
            columns.append(sentence.targets_LHW[:, :, words] == wanted_W)
        hits[name] = np.concatenate(columns, axis=-1).mean(axis=-1)
    num_layers, num_heads = hits["parent"].shape
    return [
        HeadResult(
            layer + 1,
            head + 1,
            float(hits["previous"][layer, head]),
            float(hits["next"][layer, head]),
            float(hits["parent"][layer, head]),
            None if losses_LH is None else float(losses_LH[layer, head]),
        )
        for layer in range(num_layers)
        for head in range(num_heads)
    ]


def compare_classes(sentences: Sequence[AttendedSentence]) -> list[ClassResult]:
    """Return the result of each class with at least 20 words in both halves of the sentences."""
    results = []
    for word_class, tags in WORD_CLASSES.items():
        (chosen_LHX, chosen_DX), (scored_LHX, scored_DX) = (_collect_hits(sentences[half::2], tags) for half in (0, 1))
        if min(chosen_LHX.shape[-1], scored_LHX.shape[-1]) < 20:
            continue
        layer, head = np.unravel_index(chosen_LHX.mean(axis=-1).argmax(), chosen_LHX.shape[:2])
        distance = int(chosen_DX.mean(axis=-1).argmax())
        head_hits_X, distance_hits_X = scored_LHX[layer, head], scored_DX[distance]
        differences_X = head_hits_X.astype(float) - distance_hits_X
        margin = 1.96 * float(differences_X.std(ddof=1)) / math.sqrt(len(differences_X))
        results.append(
            ClassResult(
                word_class,
                len(differences_X),
                (int(layer) + 1, int(head) + 1),
                float(head_hits_X.mean()),
                DISTANCES[distance],
                float(distance_hits_X.mean()),
                margin,
            )
        )
    return results


def _collect_hits(sentences: Sequence[AttendedSentence], tags: tuple[str, ...]) -> tuple[Array, Array]:
    """Return whether each head (L, H, X) and each distance (D, X) finds the parent of each word X of these tags."""
    head_hits, distance_hits = [], []
    for sentence in sentences:
        for word, (tag, parent) in enumerate(zip(sentence.tags, sentence.parents, strict=True)):
            if parent is not None and tag.startswith(tags):
                head_hits.append(sentence.targets_LHW[:, :, word] == parent)
                distance_hits.append([word + distance == parent for distance in DISTANCES])
    if not head_hits:
        return np.zeros((1, 1, 0)), np.zeros((len(DISTANCES), 0))
    return np.stack(head_hits, axis=-1), np.array(distance_hits).T


@torch.no_grad()
def measure_removals(translator: Translator, pairs: Path) -> Array:
    """Return the nats per target token that the model loses without each head of the encoder. (L, H)"""
    corpus = CorpusConfig(file=str(pairs))
    languages = {name: getattr(translator.recipe.task, name) for name in ("source_language", "target_language")}
    texts = [pair for pair, _ in zip(read_pairs(corpus, Path(), **languages), range(MAX_PAIRS), strict=False)]
    tokenizer = translator.bundle.tokenizer
    sources, targets = (
        [tokenizer.encode_source(pair.source) for pair in texts],
        [tokenizer.encode_target(pair.target) for pair in texts],
    )
    start_id = get_decoder_start_id(translator.recipe.model)
    parts = split_by_tokens([max(map(len, ids)) for ids in zip(sources, targets, strict=True)], 2000)
    batches = [collate(sources[part], targets[part], start_id=start_id) for part in parts]
    whole = _compute_loss(translator, batches)
    layers = [cast(EncoderLayer, layer).attention for layer in translator.bundle.model.encoder.layers]
    losses_LH = []
    for attention in layers:
        row = []
        for head in range(attention.num_heads):
            with remove_head(attention, head):
                row.append(_compute_loss(translator, batches) - whole)
        losses_LH.append(row)
    return np.array(losses_LH)


@contextmanager
def remove_head(attention: Attention, head: int) -> Iterator[None]:
    """Compute with an output of zero for one head, by zeros in its columns of W^O."""
    weight_DC = attention.output.weight
    width = weight_DC.shape[1] // attention.num_heads
    columns = slice(head * width, (head + 1) * width)
    kept_DU = weight_DC[:, columns].detach().clone()
    with torch.no_grad():
        weight_DC[:, columns] = 0.0
    try:
        yield
    finally:
        with torch.no_grad():
            weight_DC[:, columns] = kept_DU


def _compute_loss(translator: Translator, batches: Sequence[Batch]) -> float:
    total, count = 0.0, 0
    model = translator.bundle.model
    for batch in batches:
        logits_BTV = model(batch.source_BS, batch.inputs_BT)
        loss = F.cross_entropy(
            logits_BTV.flatten(0, 1).float(), batch.targets_BT.flatten(), ignore_index=PADDING_ID, reduction="sum"
        )
        total += loss.item()
        count += batch.num_target_tokens
    return total / count


def show_heads(translator: Translator, trees: Path, pairs: Path | None) -> Demonstration:
    """Show what the heads of an encoder do, and what the model loses without each."""
    sentences = read_sentences(translator, trees)
    results = score_heads(sentences, None if pairs is None else measure_removals(translator, pairs))
    classes = compare_classes(sentences)
    title = f"Heads of the encoder of {translator.recipe.name}, {len(sentences)} sentences"
    lesson = (
        "Dark cells are specialists: look for heads that nearly always attend to the previous or the next word, for heads that "
        "find the syntactic parent, and for the few heads without which the loss rises."
    )
    notes = [
        f"{result.word_class} ({result.num_words} words): head {result.head[1]} of layer {result.head[0]} finds the parent of "
        f"{100 * result.head_accuracy:.0f} %, the best distance, {result.distance:+d}, of {100 * result.distance_accuracy:.0f} "
        f"%; difference {100 * (result.head_accuracy - result.distance_accuracy):+.0f} ± {100 * result.margin:.0f} points"
        for result in classes
    ]
    rows = [
        (
            result.layer,
            result.head,
            result.previous,
            result.next,
            result.parent,
            "" if result.loss_change is None else result.loss_change,
        )
        for result in results
    ]
    header = ["layer", "head", "previous word", "next word", "syntactic parent", "loss without it, nats"]
    return Demonstration(title, lesson, header, rows, lambda: _draw(results, title, lesson), notes)


_CELL_WIDTH, _CELL_HEIGHT, _SIZE = 36.0, 24.0, 12


def _draw(results: Sequence[HeadResult], title: str, lesson: str) -> str:
    """Draw a grid of layers and heads for each score, two grids side by side."""
    num_heads = max(result.head for result in results)
    num_layers = max(result.layer for result in results)
    grids: list[tuple[str, list[float], float]] = [
        (f"% of words: attention to the {name}", [100 * getattr(result, key) for result in results], 100.0)
        for key, name in (("previous", "previous word"), ("next", "next word"), ("parent", "syntactic parent"))
    ]
    changes = [1000 * result.loss_change for result in results if result.loss_change is not None]
    if changes:
        grids.append(("loss without the head, nats / 1,000", changes, max(*changes, 1e-9)))
    grid_width, grid_height = _CELL_WIDTH * num_heads + 76, _CELL_HEIGHT * num_layers + 76
    width = max(2 * grid_width + 16, 640.0)
    body: list[str] = []
    for number, (name, values, largest) in enumerate(grids):
        left, top = 16 + grid_width * (number % 2) + 44, 92 + grid_height * (number // 2)
        body.append(render_label(name, left - 44, top - 28, 13))
        for head in range(num_heads):
            x = left + _CELL_WIDTH * (head + 0.5)
            body.append(render_label(f"h{head + 1}", x, top - 8, _SIZE, css_class="muted", anchor="middle"))
        for index, (result, value) in enumerate(zip(results, values, strict=True)):
            x, y = left + _CELL_WIDTH * (result.head - 1), top + _CELL_HEIGHT * (result.layer - 1)
            if index % num_heads == 0:
                body.append(render_label(f"layer {result.layer}", left - 6, y + 16, 11, css_class="muted", anchor="end"))
            share = min(max(value / largest, 0.0), 1.0)
            box = box_path(x, y, _CELL_WIDTH - 1, _CELL_HEIGHT - 1)
            body.append(f'<path class="cell" fill-opacity="{format_number(share)}" d="{box}"/>')
            css_class = "on-cell" if share > 0.55 else "ink"
            text = f"{value:.0f}".replace("-", "−")
            body.append(render_label(text, x + _CELL_WIDTH / 2, y + 16, _SIZE, css_class=css_class, anchor="middle"))
    bottom = 74 + grid_height * ((len(grids) + 1) // 2)
    rules = (
        {".cell": "fill:#08519c", ".on-cell": "fill:#ffffff"},
        {".cell": "fill:#79b8ff", ".on-cell": "fill:#0d1117"},
    )
    return render_lesson("dragoman-heads", body, width=width, height=bottom, title=title, lesson=lesson, rules=rules)

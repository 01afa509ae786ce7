"""What compiled functions are given: numbers, and where things stand in memory. Python and what is compiled both read it.

N rows    D width of the model    L layers    I, O inputs and outputs of a product    V vocabulary    B sentences
K, U width of keys and values of all heads together    S places of the source    T places of the output
P rows that are stored    R hypotheses of each sentence    X = 2R candidates    M longest output
"""

from __future__ import annotations

from typing import NamedTuple

Address = int

# Numbers of 32 bits in a vector, and its bytes.
LANES = 16
VECTOR_BYTES = 4 * LANES
# Of 64 bytes each.
TILE_ROWS = 16
# So many tokens are looked at together. A sum over all hangs on it: it is the same wherever there is one.
LOGIT_BLOCK = 512
INT8_MAX = 127.0
# What is added to a signed input, so that it has no sign.
UINT8_OFFSET = 128
# Nothing smaller is told from zero, so that a row of zeros has a scale as well.
MIN_SCALE = 1e-30
# Outputs that are computed at once: four vectors.
OUTPUT_BLOCK = 4 * LANES
# Rows from which on tiles are the faster, where there are any.
AMX_MIN_ROWS = 5
# What becomes of a product; the last of one whose inputs are never below zero.
STORE, RELU, ADD_RESIDUAL, ADD_RESIDUAL_U8 = range(4)
# Sums of 32 rows and 16 outputs.
ACCUMULATOR_STRIDE = 2 * TILE_ROWS * LANES
# Numbers of 64 bits from what one thread writes to what another does: a cache line.
CACHE_LINE_I64 = 8


class Int8Weights(NamedTuple):
    """The weights of one product in all layers, as bytes: where they stand.

    weights: (L, O / 16, I / 4, 16, 4) bytes, O filled up to whole groups and I to whole vectors with zeros
    scale, bias: (L, O), O filled up likewise. shift: what is added to every input comes to
    outputs: O. filled: O filled up. then: what becomes of it
    """

    weights: Address
    scale: Address
    bias: Address
    compensation: Address
    num_outputs: int
    padded_outputs: int
    epilogue: int


class ThreadGroup(NamedTuple):
    """Threads that compute the same function, each its share: how many, and which this one is.

    arrived: (members, APART), of which the first is how often each has come to where all wait for all
    over: 1 where nobody waits any more
    pass_on: a function that lets other threads of this core go on, or 0
    """

    num_threads: int
    thread_index: int
    arrivals: Address
    cancelled: Address
    yield_fn: Address


class Workspace(NamedTuple):
    """Where there is memory to work in, for N rows.

    x: (N, D). y: (N, D). steps: (N,). sums: of 32 rows and 64 outputs
    places: (S or T,), where one query looks. scores: (S or T, 16), of all heads there. keys, values: (N, K or U), halves
    inputs: (N, stride) bytes, the stride being the widest input's in whole vectors, and N filled up to whole pairs of tiles
    described: what tiles are like; 0 where there are none
    width: D

    and that of all members of the team, each of whom writes what is its share:
    wide: (N, widest output). found: (N, U), what attention finds. onto: (N, D), x and a product. Who is alone needs none of the
    last two: they may be y and x
    """

    x: Address
    y: Address
    projections: Address
    attention_output: Address
    residual: Address
    quantized_inputs: Address
    row_scales: Address
    kv_rows: Address
    scores: Address
    keys: Address
    values: Address
    accumulators: Address
    tile_config: Address
    width: int
    input_stride: int
    group: ThreadGroup


class NormWeights(NamedTuple):
    """Layer normalisations: where their weights and biases (L, D) stand. there: whether there are any"""

    weight: Address
    bias: Address
    epsilon: float
    is_present: bool


class LayerWeights(NamedTuple):
    """What both stacks have. norms: those of attention and of the feed-forward. before: whether they come first"""

    num_layers: int
    qkv: Int8Weights
    output: Int8Weights
    inner: Int8Weights
    outer: Int8Weights
    norms: tuple[NormWeights, NormWeights]
    pre_norm: bool
    final_norm: NormWeights


class CrossAttention(NamedTuple):
    """What the decoder's layers have besides. remember: keys and values of the source"""

    query: Int8Weights
    output: Int8Weights
    kv: Int8Weights
    norms: NormWeights


class HeadLayout(NamedTuple):
    """How many stand side by side: 1, 2, 4, 8 or 16. How wide the keys and values of all are: multiples of 16."""

    num_heads: int
    key_width: int
    value_width: int


class EmbeddingTable(NamedTuple):
    """Vectors of tokens: vectors (V, D), gain (V,) by which each is multiplied."""

    vectors: Address
    scale: Address


class CrossKVCache(NamedTuple):
    """Keys and values of the sources (L, B, S, K or U), halves. length: (B,), places of each that are there"""

    keys: Address
    values: Address
    lengths: Address
    num_sentences: int
    num_positions: int


class SelfKVCache(NamedTuple):
    """Keys and values of the outputs (L, P, T, K or U), halves, and what tells the rows apart.

    lineage: (N, room), the stored row that holds what each row descends from at each place. stored: (N,), where each row writes
    sentence: (N,), the source of each row
    """

    keys: Address
    values: Address
    ancestors: Address
    slot_rows: Address
    sentence_ids: Address
    num_rows: int
    capacity: int


class DecoderWeights(NamedTuple):
    """What a step computes with. positions: (room, D). words: (W,), what is said as tokens of the table, or 0: as they are"""

    embedding_table: EmbeddingTable
    positions: Address
    layers: LayerWeights
    cross_attention: CrossAttention
    head_layout: HeadLayout
    output: Int8Weights
    vocabulary_map: Address


class SearchOptions(NamedTuple):
    """What is asked of all outputs.

    limits: (B,), most tokens of each, the end token included. may_loop: (B,), 1 where it may go round in circles
    banned: (C,), `never` tokens that are never said, and behind them the end token, which is not up to min_length tokens
    no_repeat_ngram_size: no sequence of so many tokens stands twice in an output; 0 lets all stand
    span: an output goes round in circles where its last so many tokens do, by as many `times`; 0 where nobody looks. every: at
        what lengths somebody looks
    longest: M
    """

    max_lengths: Address
    allow_repetition: Address
    suppressed_ids: Address
    num_suppressed: int
    end_id: int
    min_length: int
    no_repeat_ngram_size: int
    repetition_window: int
    min_repeats: int
    check_interval: int
    max_length: int


class RowBuffers(NamedTuple):
    """Where there is memory for rows and their steps.

    rows: N, as there is memory. tokens: (N,), what each row said last, as tokens of the table. at: (N,). logits: (N, COLUMNS)

    and of all members of a team, G of them:
    last: (N,), what each row said last. left: how many rows, or sentences, go on
    top, sum: (N, V / COLUMNS), the greatest of so many logits and Σ exp of them less that. total: (N,), log Σ exp of all
    proposed: how many of the best of each row are wanted. filled: (G, N), how many each member has found among its tokens; the
        first, then, among all. values, best: (G, N, proposed), their logits and tokens, in order
    """

    num_rows: int
    input_ids: Address
    position_ids: Address
    logits: Address
    last_ids: Address
    num_active: Address
    block_max: Address
    block_sum: Address
    logsumexp: Address
    num_candidates: int
    num_filled: Address
    candidate_logits: Address
    candidate_ids: Address


class GreedyBuffers(NamedTuple):
    """Greedy outputs, by sentences: tokens (B, M), log_probs (B, M), length (B,), looped (B,). said: (B, M), by rows"""

    row_ids: Address
    output_ids: Address
    log_probs: Address
    lengths: Address
    is_repetition: Address


class BeamBuffers(NamedTuple):
    """What a beam has come to, by sentences.

    rows: R. counted: the place among the finished that the living must still be able to beat. all_finished: see `beam_search`
    sentences: B. length: (B,), tokens at which each was done
    score: (B, R) of the living. finished, codes: (B, R), score over penalty, and length · X + column of those that ended
    cap: (B,), the greatest penalty. penalties: (M + 1,)
    parents, tokens, log_probs: (M, B, X). living: (M, B, R), columns among the candidates
    said: (N, M), where circles are looked for. looped: (M / every, B, R), 1 where the living one then was in a circle and left
    looped_score: likewise, its score
    taken: (X,), values: (X,), again: (R, M): to work in
    """

    beam_size: int
    target_rank: int
    stop_when_full: bool
    num_sentences: int
    lengths: Address
    alive_scores: Address
    finished_scores: Address
    finished_node_ids: Address
    max_penalties: Address
    penalties: Address
    parents: Address
    tokens: Address
    log_probs: Address
    alive: Address
    row_ids: Address
    is_repetition: Address
    repetition_scores: Address
    cursors: Address
    candidate_scores: Address
    scratch_ids: Address

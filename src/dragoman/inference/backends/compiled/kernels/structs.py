"""Arguments of the compiled functions: numbers and addresses of memory. Python and the kernels both read these definitions.

Letters in comments: N rows, D width of the model in whole vectors, L layers, I inputs and O outputs of a product, V vocabulary.
K and U are the widths of all heads' keys and values. B sentences have R hypotheses each, and X = 2R candidates.
S positions of the source, T positions of the output, P stored rows. M is the longest output, and G the number of threads.
"""

from __future__ import annotations

from typing import NamedTuple

Address = int

# Numbers of 32 bits in a vector, and the vector's bytes.
LANES = 16
VECTOR_BYTES = 4 * LANES
# Rows of a tile, of 64 bytes each.
TILE_ROWS = 16
# Tokens whose logits are computed and summed together. The sums depend on it, so it is the same everywhere.
LOGIT_BLOCK = 512
INT8_MAX = 127.0
# Added to signed values to store them as unsigned bytes, and subtracted from unsigned values to store them as signed ones.
BYTE_OFFSET = 128
# Lower bound of a quantization step, so that a row of zeros has a step too.
MIN_SCALE = 1e-30
# Greatest sum of weights of one sign whose products are added in 16 bits. Inputs are at most 255, and 255 · 128 < 2¹⁵.
MAX_LANE_WEIGHTS = 128
# Outputs that are computed at once: four vectors.
OUTPUT_BLOCK = 4 * LANES
# Most queries of one sentence that attention computes together.
MAX_QUERIES_AT_ONCE = 4
# Most keys of a long source that its cache holds side by side. The positions of a cache of sources are a multiple of it.
MAX_LONG_COLUMNS = 2 * LANES
# Rows from which on tiles are faster than vectors.
AMX_MIN_ROWS = 5
# Each row keeps its best tokens in a sorted list, which is as long as two beams.
MAX_BEAM_SIZE = 32
# Last operation of a product. MULTIPLY multiplies by the numbers that the outputs replace. The inputs of ADD_RESIDUAL_U8 are
# never negative.
STORE, RELU, SILU, GELU, GELU_TANH, MULTIPLY, ADD_RESIDUAL, ADD_RESIDUAL_U8 = range(8)
# Sums of 32 rows and 16 outputs.
ACCUMULATOR_STRIDE = 2 * TILE_ROWS * LANES
# Distance between values of different threads in 64-bit numbers: one cache line.
CACHE_LINE_I64 = 8


class LinearWeights(NamedTuple):
    """Weights of one product in all layers, in int8 or in float32.

    weights: (L, O / 16, I / 4, 16, 4) bytes, or (L, O / 16, I, 16) floats. Zeros pad O to whole blocks and I to whole vectors.
    scale, compensation: in int8, the step of each output (L, O), and the sum that the offset of quantized inputs contributes
    input_steps: (L,), the step of quantized inputs that was stored with the weights, or 0 if each row of inputs has its own
    bias: (L, O), with O padded likewise
    num_outputs, padded_outputs: O without and with padding
    epilogue: last operation, such as RELU
    """

    weights: Address
    scale: Address
    bias: Address
    compensation: Address
    input_steps: Address
    num_outputs: int
    padded_outputs: int
    epilogue: int
    is_float32: bool


class ThreadGroup(NamedTuple):
    """Threads that compute one function together, each a share of it.

    num_threads, thread_index: G, and the index of this thread
    arrivals: (G, CACHE_LINE_I64), whose first column counts the barriers that each thread has reached
    canceled: 1 if no thread waits at barriers any more
    yield_fn: address of a function that lets other threads of this core run, or 0
    """

    num_threads: int
    thread_index: int
    arrivals: Address
    canceled: Address
    yield_fn: Address


class Workspace(NamedTuple):
    """Memory of one thread for N rows, and memory that its group shares.

    Own memory:
    x, y: (N, D), the activations and their normalized copy
    row_scales: (N,), quantization steps
    accumulators: sums of 32 rows and 64 outputs
    kv_rows: (S or T,), rows of the keys that one query attends to
    scores: (S or T, MAX_QUERIES_AT_ONCE, 16), the scores of all heads
    keys, values: (N, K or U), in the floats of the caches
    quantized_inputs: (N, input_stride) bytes, with N padded to whole pairs of tiles
    tile_config: description of the tiles, or 0 without AMX
    width, input_stride: D, and the widest input in whole vectors

    Memory of the group, of which each thread writes its share:
    projections: (N, widest output)
    attention_output: (N, U)
    residual: (N, D), the sum of x and a product
    A single thread may use y and x for the last two.
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
    """Normalizations of all layers.

    weight, bias: (L, D), with zeros behind the features of the trained model
    num_features: D without padding
    is_rms: whether they are RMSNorm, whose bias is zero, and not layer normalization
    """

    weight: Address
    bias: Address
    epsilon: float
    num_features: int
    is_present: bool
    is_rms: bool


class LayerWeights(NamedTuple):
    """Weights of the encoder or the decoder.

    gate: product whose activation multiplies `inner`, if `is_gated`
    norms: those of self-attention and of the feed-forward layer
    relative_bias: (2 · max_distance + 1, groups of heads, 16), what the scores of self-attention add at each distance, or 0
    window: greatest distance of positions that self-attention connects
    has_ssru: whether an SSRU takes the place of self-attention. `qkv` is then its projections, and `output` is not used
    """

    num_layers: int
    qkv: LinearWeights
    output: LinearWeights
    gate: LinearWeights
    inner: LinearWeights
    outer: LinearWeights
    is_gated: bool
    norms: tuple[NormWeights, NormWeights]
    pre_norm: bool
    final_norm: NormWeights
    window: int
    relative_bias: Address
    max_distance: int
    has_ssru: bool


class CrossAttention(NamedTuple):
    """Weights of cross-attention in the decoder's layers. kv: projection of the source to keys and values"""

    query: LinearWeights
    output: LinearWeights
    kv: LinearWeights
    norms: NormWeights


class HeadLayout(NamedTuple):
    """Order of the heads' features.

    num_groups: groups of heads, one behind the other
    num_heads: heads of each group (1, 2, 4, 8 or 16), which alternate
    key_width, value_width: K and U of all groups together, which are multiples of 16 in each group
    has_float32_kv: whether caches hold keys and values in 32 bits, else in 16
    rotation_width: numbers behind each vector of positions: sines and cosines that turn the keys of one group; or 0
    num_used_heads: heads of the model; those behind them pad the last group with zeros
    """

    num_groups: int
    num_heads: int
    key_width: int
    value_width: int
    has_float32_kv: bool
    rotation_width: int
    num_used_heads: int


class EmbeddingTable(NamedTuple):
    """Token embeddings.

    vectors: (V, width), D without padding, in float32 or int8
    steps: (V,), the step of each vector of int8; 0 for float32
    scale: (V,), the factor of each vector
    norm: normalization of the sum of vector and position
    """

    vectors: Address
    steps: Address
    scale: Address
    width: int
    norm: NormWeights


class CrossKVCache(NamedTuple):
    """Keys and values of the sources (L, B, S, K or U), where a long source has the layout of `long_cross_attention`.

    lengths: (B,), tokens of each source
    """

    keys: Address
    values: Address
    lengths: Address
    num_sentences: int
    num_positions: int


class SelfKVCache(NamedTuple):
    """Keys and values of the outputs (L, P, T, K or U), and the table of ancestors.

    cells: (L, P, 2, D), the cells of an SSRU after tokens at even and at odd positions. There are then no keys and values
    ancestors: (N, capacity), the stored row whose slot each row descends from at each position
    slot_rows: (N,), the stored row that each row writes
    sentence_ids: (N,), the source of each row
    num_rows, capacity: P and T
    """

    keys: Address
    values: Address
    cells: Address
    ancestors: Address
    slot_rows: Address
    sentence_ids: Address
    num_rows: int
    capacity: int


class EncoderBatch(NamedTuple):
    """Tokens of some sentences, one after the other.

    token_ids, position_ids: (N,)
    num_rows, num_sentences: N, and the number of these sentences
    sentence_starts: (num_sentences + 1,), the first row of each sentence, and the end of the last one
    sentence_ids: (num_sentences,), indices of the sentences among the B of the whole batch
    outputs: (N, D), the encoder's outputs, or 0 if nobody reads them
    """

    token_ids: Address
    position_ids: Address
    num_rows: int
    sentence_starts: Address
    sentence_ids: Address
    num_sentences: int
    outputs: Address


class FrameBatch(NamedTuple):
    """Positions of some sentences whose tokens are predicted at once, one sentence after the other.

    memory: (num_tokens, D), the encoder's outputs for these sentences
    num_rows: N, a multiple of num_tokens
    position_ids, row_sentence_ids: (N,), number of each position in its sentence, and index of the sentence in the whole batch
    sentence_starts: (num_sentences + 1,), the first row of each sentence, and the end of the last one
    """

    memory: Address
    num_tokens: int
    num_rows: int
    position_ids: Address
    row_sentence_ids: Address
    sentence_starts: Address
    num_sentences: int


class EncoderWeights(NamedTuple):
    """Weights of the encoder, and of the decoder's projections of its output. positions: (S, D + rotation_width)"""

    embedding_table: EmbeddingTable
    positions: Address
    layers: LayerWeights
    cross_kv: LinearWeights
    num_decoder_layers: int
    head_layout: HeadLayout


class DecoderWeights(NamedTuple):
    """Weights of the decoder.

    positions: (T, D + rotation_width)
    vocabulary_map: (W,), token ids of a restricted output vocabulary, or 0 for the whole vocabulary
    """

    embedding_table: EmbeddingTable
    positions: Address
    layers: LayerWeights
    cross_attention: CrossAttention
    head_layout: HeadLayout
    output: LinearWeights
    vocabulary_map: Address


class SearchOptions(NamedTuple):
    """Settings of a search.

    max_lengths: (B,), most tokens of each output, the end token included
    allow_repetition: (B,), 1 if degenerate repetition is allowed
    suppressed_ids: (num_suppressed,), tokens that never occur, in rising order
    prompt_ids: (num_prompt_tokens,), tokens that the decoder reads between its start token and each output
    end_id, min_length: the end token, which does not occur among the first `min_length` tokens
    no_repeat_ngram_size: number of tokens that no output repeats in order; 0 allows all
    repetition_window: number of last tokens that are searched for a repetition, or 0
    min_repeats: number of repeats that count as degenerate
    check_interval: lengths at which repetition is checked are multiples of it
    max_length: M
    """

    max_lengths: Address
    allow_repetition: Address
    suppressed_ids: Address
    num_suppressed: int
    prompt_ids: Address
    num_prompt_tokens: int
    end_id: int
    min_length: int
    no_repeat_ngram_size: int
    repetition_window: int
    min_repeats: int
    check_interval: int
    max_length: int


class RowBuffers(NamedTuple):
    """Memory for the rows of a search.

    Own memory of a thread:
    num_rows: N
    input_ids, position_ids: (N,), ids of the last tokens in the embedding table, and their positions
    logits: (N, LOGIT_BLOCK)

    Memory of the group:
    last_ids: (N,), the last token of each row
    num_active: number of rows, or of sentences, that continue
    block_max, block_sum: (N, V / LOGIT_BLOCK), greatest logit of a block, and Σ exp of the block's logits less it
    logsumexp: (N,), log Σ exp of all logits
    num_candidates: number of best tokens of each row
    num_filled: (G, N), number of candidates that each thread has found; thread 0 then holds those of all threads
    candidate_logits, candidate_ids: (G, N, num_candidates), best first
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
    """Results of greedy search by sentence: (B, M) or (B,). row_ids: (B, M), the outputs by row"""

    row_ids: Address
    output_ids: Address
    log_probs: Address
    lengths: Address
    is_repetition: Address


class BeamBuffers(NamedTuple):
    """State and results of beam search by sentence.

    beam_size, num_sentences: R and B
    target_rank: rank among the finished hypotheses that alive hypotheses must still be able to beat
    stop_when_full: the search of a sentence ends with R finished hypotheses
    only_best_may_end: only ends among the R best candidates compete
    uses_present_length: alive hypotheses compete with the penalty of their present length, not with the greatest one
    lengths: (B,), length at which each search ended
    alive_scores: (B, R)
    finished_scores, finished_node_ids: (B, R), score over penalty, and length · X + column.
    max_penalties, penalties: (B,), the greatest length penalty, and (M + 1,) the penalty of each length.
    parents, tokens, log_probs: (M, B, X), the candidates of each step
    alive: (M, B, R), columns of the alive hypotheses among the candidates
    row_ids: (N, M), the outputs, for the repetition check
    is_repetition, repetition_scores: (M / check_interval, B, R), dropped repetitions and their scores
    cursors, candidate_scores, scratch_ids: (X,), (X,) and (R, num_prompt_tokens + M), scratch memory
    """

    beam_size: int
    target_rank: int
    stop_when_full: bool
    only_best_may_end: bool
    uses_present_length: bool
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

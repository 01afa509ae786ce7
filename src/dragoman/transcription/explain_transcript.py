"""Explanation of the transcript of one window: attention over the spectrogram, and candidate tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from dragoman.data.tokenization.special_tokens import BEGIN_ID, END_ID
from dragoman.errors import DataError
from dragoman.frontends.log_mel import LogMel
from dragoman.frontends.sound_file import SAMPLE_RATE, read_sound
from dragoman.inference.explain.explain_translation import (
    check_length,
    choose_focus,
    encode_forced_target,
    list_predictions,
    record_attention_arguments,
    stack_heads,
)
from dragoman.tasks.generation import FORBIDDEN_IDS
from dragoman.transcription.speech_search import SpeechSearch
from dragoman.viz.attention_page import MAX_TOKENS
from dragoman.viz.explanation import AttentionHeads, Explanation, SourceImage

if TYPE_CHECKING:
    from dragoman.transcription.transcriber import Transcriber

SEARCH_NOTE = "Probabilities are the model's own; the search allows only tokens that the rules of timestamps allow."
FRAMES_PER_VECTOR = 2
"""Frames of the spectrogram for each vector of the encoder."""


def explain_transcript(
    transcriber: Transcriber,
    path: Path,
    *,
    target: str | None = None,
    layer: int | None = None,
    heads: Sequence[int] = (),
    **decoding: Any,
) -> Explanation:
    """Transcribe the first window of a recording and return the decoder's attention and predictions.

    target, layer, heads, decoding: see `explain`

    Raises DataError for a file that cannot be read, and for an output that cannot be explained.
    """
    samples_N = read_sound(path)
    notes, window_N = [SEARCH_NOTE], samples_N[: transcriber.window_samples]
    if len(window_N) < len(samples_N):
        notes.append(f"Only the first {len(window_N) / SAMPLE_RATE:g} s of the recording are explained.")
    features_MF = transcriber.compute_features(window_N)
    vocabulary, has_timestamps = transcriber.bundle.tokenizer.target, target is None
    search = SpeechSearch(transcriber.session.inference_model, transcriber.tokens, transcriber.resolve_decoding(decoding))
    state = search.encode(features_MF[None])
    prompt = search.build_prompt(search.predict_starts(state, 1)[0].language, "transcribe", has_timestamps=has_timestamps)
    if target is None:
        output = search.run(state, [prompt], has_timestamps=True)[0]
        output_ids, is_finished = list(output.tokens), len(output.token_log_probs) > len(output.tokens)
    else:
        output_ids, is_finished = encode_forced_target(vocabulary, target), True
    if not output_ids:
        raise DataError(f"{path}: no speech was found in it, so there is nothing to explain; give another recording")
    text = vocabulary.decode([token for token in output_ids if token < transcriber.tokens.first_special])
    targets = [*output_ids, END_ID] if is_finished else output_ids
    inputs = [*prompt, *targets[:-1]]
    check_length(len(inputs), transcriber.bundle.recipe.model.max_positions, "the transcript")
    logits_TV, cross, decoder = _run_decoder(transcriber, features_MF, inputs, len(prompt) - 1)
    image, cross = _crop(features_MF, cross, len(window_N))
    if (group := image.frames_per_vector // FRAMES_PER_VECTOR) > 1:
        notes.append(f"A column is {group} positions of the encoder: the sum of their weights, the mean of their vectors.")
    suppressed_ids = [*FORBIDDEN_IDS, *transcriber.tokens.suppressed]
    return Explanation(
        model=transcriber.bundle.recipe.name,
        source=str(path),
        target=text.strip(),
        source_tokens=image.list_labels(),
        output_tokens=tuple(vocabulary.ids_to_pieces(targets)),
        decoder_input=tuple(vocabulary.ids_to_pieces(inputs)),
        source_word_ids=tuple(range(cross.shape[3])),
        output_word_ids=tuple(range(len(targets))),
        encoder=AttentionHeads.without_layers(cross.shape[3], cross.shape[3]),
        decoder=decoder,
        cross=cross,
        selections={
            "decoder": choose_focus(decoder, "decoder", layer, heads),
            "cross": choose_focus(cross, "cross", layer, heads),
        },
        predictions=list_predictions(logits_TV, targets, vocabulary, suppressed_ids),
        teacher_forced=target is not None,
        notes=tuple(notes),
        image=image,
    )


def _run_decoder(
    transcriber: Transcriber, features_MF: NDArray[np.float32], inputs: Sequence[int], num_skipped: int
) -> tuple[torch.Tensor, AttentionHeads, AttentionHeads]:
    """Return logits, cross-attention and self-attention of the inputs behind the first ones, from the model of PyTorch."""
    model = transcriber.bundle.model
    assert inputs[0] == BEGIN_ID
    source_BMF, inputs_BT = torch.from_numpy(features_MF[None]), torch.tensor([inputs])
    with torch.no_grad():
        state = model.start(source_BMF)
        with record_attention_arguments(model) as recorded:
            logits_TV = model.compute_logits(model.decoder(inputs_BT, state)[0])[0, num_skipped:]
    cross, decoder = (stack_heads(recorded[kind], model, kind, num_skipped) for kind in ("cross", "decoder"))
    return logits_TV, cross, decoder


def _crop(features_MF: NDArray[np.float32], cross: AttentionHeads, num_samples: int) -> tuple[SourceImage, AttentionHeads]:
    """Return the spectrogram without silence behind the sound, and the attention to it in at most `MAX_TOKENS` columns."""
    num_frames = min(max(num_samples // LogMel.hop, FRAMES_PER_VECTOR), features_MF.shape[1])
    num_vectors = -(-num_frames // FRAMES_PER_VECTOR)
    group = -(-num_vectors // MAX_TOKENS)
    starts = np.arange(0, num_vectors, group)
    sizes_S1 = np.diff(starts, append=num_vectors)[:, None].astype(np.float32)
    image = SourceImage.from_numbers(
        features_MF[::-1, :num_frames],
        features_MF.min(),
        features_MF.max(),
        frames_per_vector=FRAMES_PER_VECTOR * group,
        unit="s",
        units_per_frame=LogMel.hop / SAMPLE_RATE,
        top_label=f"{SAMPLE_RATE // 2000} kHz",
        bottom_label="0 kHz",
    )
    keys, values = (
        (np.add.reduceat(x_LHSK[:, :, :num_vectors], starts, axis=2) / sizes_S1).astype(np.float32)
        for x_LHSK in (cross.key_LHSK, cross.value_LHSU)
    )
    weights_LHTS = np.add.reduceat(cross.weights_LHTS[..., :num_vectors], starts, axis=3)
    return image, AttentionHeads(weights_LHTS, cross.query_LHTK, keys, values)

"""Search of a speech model: the prompt of each window, the language that it detects, and the tokens that may follow.

The rules for timestamps are those of Whisper (Radford et al. 2022, section 4.5): they come in pairs, do not decrease, and take
precedence over text if they are together likelier than each token of it. Log-probabilities are those after the rules.

    B windows    M bands    F frames    N rows, R for each window    P prompt tokens    T output tokens    V vocabulary
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.bundle import SpeechTokens
from dragoman.config import DecodingConfig
from dragoman.data.tokenization.special_tokens import BEGIN_ID, END_ID, PADDING_ID, UNKNOWN_ID
from dragoman.decoding.beam_search import BeamSearchOptions, beam_search
from dragoman.decoding.constraints import DecodingConstraints
from dragoman.decoding.greedy import decode_tokens
from dragoman.decoding.hypothesis import Hypothesis, LengthPenalty
from dragoman.decoding.interface import SearchSettings, SearchState
from dragoman.tasks.inference_model import InferenceModel

MAX_PROMPT_TOKENS = 4
"""Tokens before an output: start, language, task, and that there are no timestamps."""
DECODING_KEYS = frozenset(
    {"method", "beam_size", "length_penalty", "alpha", "early_stopping", "no_repeat_ngram_size", "repetition_window"}
)
"""Keys of the section `decoding` that the search reads."""
MASKED = np.float32(-1e30)
"""Logit of a token that may not follow. It is finite, so that a block of such tokens still has a sum."""


@dataclass(frozen=True)
class SpeechRules:
    """Tokens that may follow an output.

    has_timestamps: whether outputs have timestamps
    """

    tokens: SpeechTokens
    has_timestamps: bool

    def mask(self, logits_NV: NDArray[np.float32], outputs_NT: NDArray[np.int64]) -> None:
        """Mask the tokens that may not follow these outputs, in place."""
        tokens, is_first = self.tokens, outputs_NT.shape[1] == 0
        logits_NV[:, [PADDING_ID, UNKNOWN_ID, BEGIN_ID, *tokens.suppressed]] = MASKED
        if is_first:
            logits_NV[:, tokens.suppressed_first] = MASKED
        if self.has_timestamps:
            self._mask_timestamps(logits_NV, outputs_NT, is_first=is_first)

    def _mask_timestamps(self, logits_NV: NDArray[np.float32], outputs_NT: NDArray[np.int64], *, is_first: bool) -> None:
        first, no_timestamps = self.tokens.first_timestamp, self.tokens.no_timestamps
        logits_NV[:, no_timestamps] = MASKED
        if is_first:
            logits_NV[:, :first] = MASKED
            if self.tokens.max_initial_timestamp is not None:
                logits_NV[:, first + self.tokens.max_initial_timestamp + 1 :] = MASKED
            return
        is_timestamp_NT = outputs_NT >= first
        for row, is_timestamp_T in enumerate(is_timestamp_NT):
            is_open = bool(is_timestamp_T[-1])  # the output ends with a timestamp
            is_pair = is_open and (len(is_timestamp_T) < 2 or bool(is_timestamp_T[-2]))
            if is_pair:
                logits_NV[row, first:] = MASKED
            elif is_open:  # its pair follows, or the end
                logits_NV[row, len((PADDING_ID, UNKNOWN_ID, BEGIN_ID, END_ID)) : self.tokens.first_special] = MASKED
            if is_timestamp_T.any():
                last = int(outputs_NT[row][is_timestamp_T][-1])
                logits_NV[row, first : last if is_open and not is_pair else last + 1] = MASKED
        timestamps_NX = logits_NV[:, first:]
        max_N = timestamps_NX.max(1)
        log_sum_N = max_N + np.log(np.exp(timestamps_NX - max_N[:, None]).sum(1))
        logits_NV[log_sum_N > logits_NV[:, :first].max(1), :first] = MASKED


@dataclass(frozen=True)
class _SpeechState:
    """State of a search whose rows follow the rules.

    outputs_NT: tokens of each row, without the last one that was chosen; None before the prompt
    """

    inner: Any
    num_windows: int
    outputs_NT: NDArray[np.int64] | None = None

    def reorder(self, rows_N: NDArray[np.int64]) -> _SpeechState:
        assert self.outputs_NT is not None
        return _SpeechState(self.inner.reorder(rows_N), self.num_windows, self.outputs_NT[rows_N])

    def select_sentences(self, sentences_B: NDArray[np.int64]) -> _SpeechState:
        assert self.outputs_NT is not None
        outputs_BRT = self.outputs_NT.reshape(self.num_windows, -1, self.outputs_NT.shape[1])[sentences_B]
        outputs_NT = outputs_BRT.reshape(-1, self.outputs_NT.shape[1])
        return _SpeechState(self.inner.select_sentences(sentences_B), len(sentences_B), outputs_NT)


@dataclass(frozen=True)
class WindowStart:
    """Predictions of a model before its first token.

    language: likeliest language; None for a model of one language
    language_probability: its probability among the languages
    no_speech_probability: probability that nobody speaks; 0 if the model does not predict it
    """

    language: str | None
    language_probability: float
    no_speech_probability: float


@dataclass(frozen=True)
class SpeechSearch:
    """Search for the tokens of encoded windows.

    model: model whose `start` reads features (B, M, F)
    """

    model: InferenceModel
    tokens: SpeechTokens
    config: DecodingConfig

    def encode(self, features_BMF: NDArray[np.float32]) -> SearchState:
        """Return the state before the first token, from which several searches may start."""
        return self.model.start(features_BMF)

    def predict_starts(self, state: SearchState, num_windows: int) -> list[WindowStart]:
        """Return the language of each window, and the probability that nobody speaks."""
        logits_BV, _ = self.model.step(np.full(num_windows, BEGIN_ID), state)
        codes, no_speech = list(self.tokens.languages), self.tokens.no_speech
        starts = []
        for logits_V in np.asarray(logits_BV, np.float64):
            probs_V = np.exp(logits_V - logits_V.max())
            no_speech_probability = 0.0 if no_speech is None else float(probs_V[no_speech] / probs_V.sum())
            language, probability = None, 1.0
            if codes:
                language_logits = logits_V[list(self.tokens.languages.values())]
                weights = np.exp(language_logits - language_logits.max())
                best = int(weights.argmax())
                language, probability = codes[best], float(weights[best] / weights.sum())
            starts.append(WindowStart(language, probability, no_speech_probability))
        return starts

    def build_prompt(self, language: str | None, task: str, *, has_timestamps: bool, previous: Sequence[int] = ()) -> list[int]:
        """Return the tokens before an output: the start, the language and the task of a model of many languages.

        previous: tokens of a text before the window, of which the last half of the decoder's positions count
        """
        prompt = [BEGIN_ID]
        if previous:
            assert self.tokens.previous is not None
            assert self.model.max_positions is not None
            prompt = [self.tokens.previous, *previous[-(self.model.max_positions // 2 - 1) :], BEGIN_ID]
        if language is not None and self.tokens.languages:
            prompt += [self.tokens.languages[language], self.tokens.tasks[task]]
        return prompt if has_timestamps else [*prompt, self.tokens.no_timestamps]

    def run(self, state: SearchState, prompts: Sequence[Sequence[int]], *, has_timestamps: bool) -> list[Hypothesis]:
        """Return the best output of each window.

        prompts: tokens that the decoder reads before each output, of one length
        """
        prompt_BP = np.array(prompts, np.int64)
        rules = SpeechRules(self.tokens, has_timestamps)

        def step(tokens_N: NDArray[np.int64], state: _SpeechState) -> tuple[NDArray[np.float32], _SpeechState]:
            inner, outputs_NT = state.inner, state.outputs_NT
            if outputs_NT is None:
                outputs_NT = np.empty((len(tokens_N), 0), np.int64)
                for prompt_N in np.repeat(prompt_BP, len(tokens_N) // len(prompt_BP), axis=0).T:
                    logits_NV, inner = self.model.step(prompt_N, inner)
            else:
                outputs_NT = np.concatenate([outputs_NT, tokens_N[:, None]], axis=1)
                logits_NV, inner = self.model.step(tokens_N, inner)
            rules.mask(logits_NV, outputs_NT)
            return logits_NV, _SpeechState(inner, state.num_windows, outputs_NT)

        config, num_windows = self.config, len(prompt_BP)
        assert self.model.max_positions is not None
        settings = SearchSettings(
            start_id=BEGIN_ID,
            end_id=END_ID,
            length_penalty=LengthPenalty(config.length_penalty, config.alpha),
            decoding_constraints=DecodingConstraints(
                no_repeat_ngram_size=config.no_repeat_ngram_size, repetition_window=config.repetition_window
            ),
        )
        options: dict[str, Any] = {
            "max_lengths": [self.model.max_positions - prompt_BP.shape[1]] * num_windows,
            "settings": settings,
            "arrays": self.model.arrays,
            "topk_impl": None if self.model.make_topk is None else self.model.make_topk(),
        }
        start = _SpeechState(state, num_windows)
        if config.method == "beam":
            beam = BeamSearchOptions(beam_size=config.beam_size, early_stopping=config.early_stopping)
            return [hypotheses[0] for hypotheses in beam_search(step, start, options=beam, **options)]
        return decode_tokens(step, start, **options)

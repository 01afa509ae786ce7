"""Generation: source ids in, hypotheses out. Validation and inference both use it.

`generate` makes batches and calls `map_fn` with a `GenerationJob`. The job searches one batch with `BatchSearch`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dragoman.config import DecodingConfig
from dragoman.data.padding import pad_sequences
from dragoman.data.tokenization.special_tokens import BEGIN_ID, END_ID, PADDING_ID
from dragoman.decoding.constraints import NO_DECODING_CONSTRAINTS, AllowedTokensFn, DecodingConstraints, SentenceConstraints
from dragoman.decoding.hypothesis import Hypothesis, LengthPenalty
from dragoman.decoding.interface import SearchSettings
from dragoman.decoding.native_search import NativeSearch, SearchRequest, build_request
from dragoman.errors import refuse_steps
from dragoman.tasks.inference_model import InferenceModel, OwnSearch, prompt_decoder

if TYPE_CHECKING:
    from dragoman.decoding.beam_search import BeamSearchOptions
    from dragoman.decoding.greedy import TokenSelector

FORBIDDEN_IDS = (PADDING_ID, BEGIN_ID)
# Sample i draws from stream seed · SEED_STRIDE + i, so that its number, and not its batch, determines the draws.
SEED_STRIDE = 1 << 32

# Most batches that are made equally large, and the steps into which their budget is divided meanwhile.
MAX_BALANCED_BATCHES, BALANCE_PRECISION = 16, 32

OnProgress = Callable[[int], None]
ConstraintFactory = Callable[[Sequence[int], Sequence[int]], AllowedTokensFn]
"""(indices of one batch's sources, most tokens of each output) → `DecodingConstraints.allowed_tokens_fn` for that batch."""
ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


class MapFn(Protocol):
    """Apply a function to many items, as `map` does or in parallel, and yield the results in order."""

    def __call__(self, fn: Callable[[ItemT], ResultT], items: Iterable[ItemT], /) -> Iterable[ResultT]: ...


def batch_by_length(lengths: Sequence[int], batch_tokens: int) -> Iterable[list[int]]:
    """Return batches of sentence indices, longest first, each within a budget of padded tokens.

    A few batches are about equally large, so that threads share them evenly.
    """
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    batches = list(_fill_batches(order, lengths, batch_tokens))
    if not 1 < len(batches) <= MAX_BALANCED_BATCHES:
        return batches
    low, high = batch_tokens // len(batches), batch_tokens  # the smallest budget that makes no more batches lies between
    while high - low > max(batch_tokens // BALANCE_PRECISION, 1):
        middle = (low + high) // 2
        if len(trial := list(_fill_batches(order, lengths, middle))) <= len(batches):
            batches, high = trial, middle
        else:
            low = middle
    return batches


def _fill_batches(order: Sequence[int], lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Yield batches of indices in this order, each as large as the budget of padded tokens allows."""
    batch: list[int] = []
    for index in order:
        if batch and lengths[batch[0]] * (len(batch) + 1) > batch_tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def generate(
    search: BatchSearch,
    sources: Sequence[Sequence[int]],
    *,
    sample_ids: Sequence[int] | None = None,
    constraints: Sequence[SentenceConstraints] = (),
    decode: Callable[[Sequence[int]], str] | None = None,
    on_progress: OnProgress = lambda _: None,
    map_fn: MapFn = map,
) -> list[list[Hypothesis]]:
    """Return the hypotheses of each source, best first, in the order of the sources.

    sources: ids that the encoder reads; none is empty, and none is longer than the model has positions for
    sample_ids: number of each source in its text, which selects the random stream of sampling; default 0, 1, …
    constraints: constraints on the output of each source, or an empty sequence
    decode: returns the text of an output; of the hypotheses of a beam with one text, only the best is returned
    on_progress: called with the number of sentences that are finished
    map_fn: applies the search to the batches, for example in several threads
    """
    config = search.config
    results: list[list[Hypothesis]] = [[] for _ in sources]
    rows_per_source = {"beam": config.beam_size, "greedy": 1, "sample": config.nbest}[config.method]
    job = GenerationJob(search, sources, range(len(sources)) if sample_ids is None else sample_ids, constraints)
    batches = list(batch_by_length([len(source) for source in sources], max(1, config.batch_tokens // rows_per_source)))
    for batch, batch_results in zip(batches, map_fn(job, batches), strict=True):
        for index, hypotheses in zip(batch, batch_results, strict=True):
            if decode is not None and config.method == "beam" and config.nbest > 1 and not search.return_alternatives:
                hypotheses = _remove_equal_texts(hypotheses, decode)
            results[index] = hypotheses[: config.nbest]
        on_progress(len(batch))
    return results


def _remove_equal_texts(hypotheses: Sequence[Hypothesis], decode: Callable[[Sequence[int]], str]) -> list[Hypothesis]:
    """Return the first hypothesis of each text. A text may have several segmentations."""
    by_text: dict[str, Hypothesis] = {}
    for hypothesis in hypotheses:
        by_text.setdefault(decode(hypothesis.tokens), hypothesis)
    return list(by_text.values())


@dataclass(frozen=True)
class BatchSearch:
    """Search that a config describes, for one batch at a time.

    constraint_factory: makes the allowed-tokens function of a batch; cannot be used with a restricted vocabulary
    return_alternatives: each group of the beam starts with another of the likeliest tokens after the prefix
    prompt: ids that the decoder reads between the start token and the output, such as a language token
    """

    inference_model: InferenceModel
    config: DecodingConfig
    start_id: int
    decoding_constraints: DecodingConstraints = NO_DECODING_CONSTRAINTS
    constraint_factory: ConstraintFactory | None = None
    return_alternatives: bool = False
    prompt: tuple[int, ...] = ()

    def run(
        self,
        batch: Sequence[int],
        sources: Sequence[Sequence[int]],
        sample_ids: Sequence[int],
        constraints: Sequence[SentenceConstraints],
    ) -> list[list[Hypothesis]]:
        """Return the hypotheses of each source of a batch, best first."""
        source_BS = pad_sequences(sources)
        num_vectors = [-(-len(source) // self.inference_model.numbers_per_vector) for source in sources]
        limits = [count + self.config.max_extra_tokens for count in num_vectors]
        if constraints:
            limits = [
                max(limit, sentence_constraints.required_tokens)
                for limit, sentence_constraints in zip(limits, constraints, strict=True)
            ]
        if self.inference_model.max_positions is not None:
            limits = [min(limit, self.inference_model.max_positions - len(self.prompt)) for limit in limits]
        if self.inference_model.restrict_vocabulary is None:
            return self._search(
                self.inference_model,
                self.prompt,
                source_BS,
                limits,
                sample_ids,
                constraints,
                self._add_allowed_tokens(batch, limits),
            )
        required_ids = [
            token
            for constraint in constraints
            for token in chain(
                constraint.prefix,
                *(phrase.tokens for phrase in chain.from_iterable(constraint.include)),
                constraint.exactly_once,
            )
        ]
        required_ids += self.prompt
        inference_model, token_ids = self.inference_model.restrict_vocabulary(source_BS, required_ids)
        vocabulary_map = VocabularyMap(token_ids.tolist())
        decoding_constraints = replace(
            self.decoding_constraints, suppress_tokens=vocabulary_map.to_local_ids(self.decoding_constraints.suppress_tokens)
        )
        results = self._search(
            inference_model,
            vocabulary_map.to_local_ids(self.prompt),
            source_BS,
            limits,
            sample_ids,
            [vocabulary_map.map_constraints(constraint) for constraint in constraints],
            decoding_constraints,
        )
        return [[vocabulary_map.restore_hypothesis(hypothesis) for hypothesis in hypotheses] for hypotheses in results]

    @property
    def is_native(self) -> bool:
        """Return whether the model's native search supports this search, apart from sentence constraints."""
        config, native_search = self.config, self.inference_model.native_search
        if (
            native_search is None
            or config.own_search is not None
            or self.constraint_factory is not None
            or self.return_alternatives
            or config.method == "sample"
            or config.repetition_penalty != 1.0
            or (config.early_stopping == "worst_finished" and config.nbest > 1)
        ):
            return False
        return config.method == "greedy" or (config.num_beam_groups == 1 and config.beam_size <= native_search.max_beam_size)

    @property
    def _rows_per_source(self) -> int:
        """Number of rows of a source; sampling draws each of its hypotheses in a row of its own."""
        return self.config.nbest if self.config.method == "sample" else 1

    def _add_allowed_tokens(self, batch: Sequence[int], limits: Sequence[int]) -> DecodingConstraints:
        if self.constraint_factory is None:
            return self.decoding_constraints
        rows = self._rows_per_source
        repeated = [index for index in batch for _ in range(rows)], [limit for limit in limits for _ in range(rows)]
        return replace(self.decoding_constraints, allowed_tokens_fn=self.constraint_factory(*repeated))

    def _search(
        self,
        inference_model: InferenceModel,
        prompt: Sequence[int],
        source_BS: NDArray[np.int64],
        limits: Sequence[int],
        sample_ids: Sequence[int],
        constraints: Sequence[SentenceConstraints],
        decoding_constraints: DecodingConstraints,
    ) -> list[list[Hypothesis]]:
        settings = SearchSettings(
            start_id=self.start_id,
            end_id=END_ID,
            forbidden_ids=FORBIDDEN_IDS,
            length_penalty=LengthPenalty(self.config.length_penalty, self.config.alpha, len(prompt)),
            decoding_constraints=decoding_constraints,
            repetition_penalty=self.config.repetition_penalty,
        )
        if inference_model.own_search is not None:
            return self._search_all_at_once(inference_model.own_search, source_BS, limits, settings, constraints)
        if self.config.own_search is not None:
            prompted = prompt_decoder(inference_model, prompt)
            outputs: list[list[Hypothesis]] = self.config.own_search.search(
                prompted, source_BS, limits=limits, settings=settings, constraints=constraints
            )
            return outputs
        if inference_model.native_search is not None and self.is_native:
            request = build_request(settings, constraints, max_lengths=limits, prompt=prompt)
            if request is not None:
                return self._search_natively(inference_model.native_search, source_BS, request)
        inference_model = prompt_decoder(inference_model, prompt)
        with np.errstate(invalid="ignore"):  # weights of a damaged model may be no numbers
            if self.config.method == "beam":
                from dragoman.decoding.beam_search import beam_search  # most searches are native

                return beam_search(
                    inference_model.step,
                    inference_model.start(source_BS),
                    max_lengths=limits,
                    settings=settings,
                    options=self._beam_options,
                    arrays=inference_model.arrays,
                    constraints=constraints,
                    topk_impl=inference_model.make_topk() if inference_model.make_topk is not None else None,
                )
            from dragoman.decoding.greedy import decode_tokens

            rows = self._rows_per_source
            hypotheses = decode_tokens(
                inference_model.step,
                inference_model.start(np.repeat(source_BS, rows, axis=0)),
                max_lengths=[limit for limit in limits for _ in range(rows)],
                settings=settings,
                arrays=inference_model.arrays,
                select_tokens=self._make_token_selector(sample_ids),
                constraints=[sentence_constraints for sentence_constraints in constraints for _ in range(rows)],
                topk_impl=inference_model.make_topk() if inference_model.make_topk is not None else None,
            )
            groups = [hypotheses[start : start + rows] for start in range(0, len(hypotheses), rows)]
            return [sorted(group, key=lambda hypothesis: -hypothesis.score) for group in groups]

    def _search_all_at_once(
        self,
        own_search: OwnSearch,
        source_BS: NDArray[np.int64],
        limits: Sequence[int],
        settings: SearchSettings,
        constraints: Sequence[SentenceConstraints],
    ) -> list[list[Hypothesis]]:
        """Return the outputs of a model that predicts all tokens at once, by greedy search or a beam without groups.

        Raises BundleError for another search.
        """
        config, is_beam = self.config, self.config.method == "beam"
        if config.method == "sample" or config.num_beam_groups > 1 or self.return_alternatives or self.prompt:
            refuse_steps("this search")
        if self.constraint_factory is not None or not all(constraint.is_supported for constraint in constraints):
            refuse_steps("constraints")
        may_repeat = [constraint.allow_repetition for constraint in constraints] or [False] * len(limits)
        return own_search(
            source_BS,
            limits=limits,
            settings=settings,
            may_repeat=may_repeat,
            beam_size=config.beam_size if is_beam else None,
        )

    def _search_natively(
        self, native_search: NativeSearch, source_BS: NDArray[np.int64], request: SearchRequest
    ) -> list[list[Hypothesis]]:
        if self.config.method == "greedy":
            return [[output] for output in native_search.greedy(source_BS, request)]
        config = self.config
        return native_search.beam(
            source_BS, request, beam_size=config.beam_size, early_stopping=self._early_stopping, nbest=config.nbest
        )

    @property
    def _early_stopping(self) -> str:
        """End of beam search. With nbest = 1 some rules return the same hypothesis as "best", which stops first."""
        early_stopping = self.config.early_stopping
        stops_at_best = early_stopping in ("exhaustive", "worst_finished") and self.config.nbest == 1
        return "best" if stops_at_best else early_stopping

    @property
    def _beam_options(self) -> BeamSearchOptions:
        from dragoman.decoding.beam_search import BeamSearchOptions
        from dragoman.decoding.diverse_beam import BeamGroups

        config = self.config
        has_penalty = config.num_beam_groups > 1 and not self.return_alternatives
        return BeamSearchOptions(
            beam_size=config.beam_size,
            nbest=config.nbest,
            early_stopping=self._early_stopping,
            groups=BeamGroups(
                config.num_beam_groups, config.diversity_penalty if has_penalty else 0.0, self.return_alternatives
            ),
        )

    def _make_token_selector(self, sample_ids: Sequence[int]) -> TokenSelector:
        """Return the choice of greedy search, or the sampler of these samples with a random stream for each row."""
        from dragoman.decoding.greedy import argmax, make_sampler

        config, rows = self.config, self._rows_per_source
        if config.method != "sample":
            return argmax
        seeds = [config.seed * SEED_STRIDE + sample_id * rows + row for sample_id in sample_ids for row in range(rows)]
        return make_sampler(
            seeds, self.inference_model.arrays, temperature=config.temperature, top_k=config.top_k, top_p=config.top_p
        )


@dataclass(frozen=True)
class GenerationJob:
    """Sources with their search; calling it with the indices of a batch returns the hypotheses of that batch.

    sample_ids: number of each source in its text
    constraints: one for each source, or an empty sequence
    """

    search: BatchSearch
    sources: Sequence[Sequence[int]]
    sample_ids: Sequence[int]
    constraints: Sequence[SentenceConstraints]

    def __call__(self, batch: Sequence[int]) -> list[list[Hypothesis]]:
        sources, sample_ids = [self.sources[index] for index in batch], [self.sample_ids[index] for index in batch]
        return self.search.run(batch, sources, sample_ids, [self.constraints[index] for index in batch if self.constraints])

    @property
    def is_native(self) -> bool:
        """Return whether native search does the whole job, without Python."""
        return self.search.is_native and all(sentence_constraints.is_supported for sentence_constraints in self.constraints)


class VocabularyMap:
    """Restricted vocabulary of a batch: maps between its token numbers and the ids of the whole vocabulary."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        self.token_ids = token_ids
        self.local_ids = {token_id: local_id for local_id, token_id in enumerate(token_ids)}

    def to_local_ids(self, tokens: Iterable[int]) -> tuple[int, ...]:
        return tuple(self.local_ids[token] for token in tokens if token in self.local_ids)

    def map_constraints(self, constraints: SentenceConstraints) -> SentenceConstraints:
        return replace(
            constraints,
            prefix=self.to_local_ids(constraints.prefix),
            include=tuple(tuple(phrase.restrict(self.local_ids) for phrase in group) for group in constraints.include),
            exclude=tuple(phrase.restrict(self.local_ids) for phrase in constraints.exclude),
            exactly_once=self.to_local_ids(constraints.exactly_once),
        )

    def restore_hypothesis(self, hypothesis: Hypothesis) -> Hypothesis:
        return replace(hypothesis, tokens=tuple(self.token_ids[token] for token in hypothesis.tokens))

"""Constraints, required phrases, beam groups and repetition, against lists, enumeration or their definition."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from test_beam_search import (
    EARLY_STOPPING,
    END,
    PENALTIES,
    TORCH,
    Banned,
    ScoredOutput,
    Table,
    assert_outputs,
    decode,
    divisor,
    make_settings,
    no_tokens,
    reference_beam,
    search,
    to_outputs,
)

from dragoman.config import DecodingConfig, update_section
from dragoman.decoding.arrays import NUMPY, Array, Arrays
from dragoman.decoding.beam_search import BeamSearchOptions, beam_search
from dragoman.decoding.constraints import DecodingConstraints, SentenceConstraints
from dragoman.decoding.diverse_beam import BeamGroups
from dragoman.decoding.greedy import make_sampler, sample_tokens
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.interface import SearchSettings
from dragoman.decoding.phrase import Phrase
from dragoman.decoding.repetition import contains_repetition, is_repeating
from dragoman.decoding.topk import BlockTopK, find_best_candidates
from expected_errors import raises_code

pytestmark = pytest.mark.usefixtures("one_core")

Tokens = tuple[int, ...]


def make_phrase(*tokens: int) -> Phrase:
    """Return a phrase in a vocabulary in which the text of each token is one byte."""
    return Phrase(bytes(tokens), tokens, {token: bytes([token]) for token in range(9)})


def constrain(
    prefix: Tokens = (),
    include: Sequence[Tokens] = (),
    include_any: Sequence[Sequence[Tokens]] = (),
    exclude: Sequence[Tokens] = (),
    exactly_once: Tokens = (),
) -> SentenceConstraints:
    groups = [*((phrase,) for phrase in include), *include_any]
    return SentenceConstraints(
        prefix,
        tuple(tuple(make_phrase(*tokens) for tokens in group) for group in groups),
        tuple(make_phrase(*tokens) for tokens in exclude),
        exactly_once=exactly_once,
    )


def contains_phrase(tokens: Tokens, phrase: Tokens) -> bool:
    return any(tokens[start : start + len(phrase)] == phrase for start in range(len(tokens)))


def assert_own_log_probs(hypothesis: Hypothesis, table: Table, sentence: int) -> None:
    """Check that the token log-probabilities are the model's own, without any mask."""
    output_ids = [*hypothesis.tokens, END][: len(hypothesis.token_log_probs)]
    expected = [table.log_probs(sentence, output_ids[:position])[token] for position, token in enumerate(output_ids)]
    assert hypothesis.token_log_probs == pytest.approx(expected, abs=1e-5)


def assert_beam_outputs(
    outputs: list[list[Hypothesis]], table: Table, limits: Sequence[int], beam: int, *, banned: Banned
) -> None:
    for sentence, (hypotheses, limit) in enumerate(zip(outputs, limits, strict=True)):
        assert_outputs(hypotheses, reference_beam(table, sentence, limit, beam, "gnmt", 0.6, banned=banned))
        for hypothesis in hypotheses:
            assert_own_log_probs(hypothesis, table, sentence)


# The search itself


def test_beam_search_equals_reference_with_lists(subtests: pytest.Subtests) -> None:
    cases_1: list[str] = [*EARLY_STOPPING, "beam_full", "worst_finished"]
    for vocabulary in [8, 1031]:
        for stop in cases_1:
            with subtests.test(vocabulary=vocabulary, stop=stop):
                limits = [9, 4, 1, 12, 7]
                for seed, (form, alpha) in enumerate(PENALTIES if vocabulary == 8 else PENALTIES[:2]):
                    table = Table.random(seed, vocabulary, spread=3.0, contexts=61)
                    table.logits_CV[:, END] += 2.0 + vocabulary / 300
                    beam = 1 + seed % 4
                    nbest = min(beam, 1 + seed % 2)
                    outputs = search(table, limits, beam, make_settings(form, alpha), early_stopping=stop, nbest=nbest)
                    for sentence, (hypotheses, limit) in enumerate(zip(outputs, limits, strict=True)):
                        expected = reference_beam(table, sentence, limit, beam, form, alpha, early_stopping=stop, nbest=nbest)
                        assert_outputs(hypotheses, expected)


def test_compaction_threshold_changes_no_output(subtests: pytest.Subtests) -> None:
    for threshold in [0.3, 1.0]:
        with subtests.test(threshold=threshold):
            limits = [9, 4, 1, 12, 7, 7]
            settings, late = make_settings(), make_settings(compaction_threshold=threshold)
            for seed in range(6):
                table = Table.random(seed)
                assert search(table, limits, 3, late) == search(table, limits, 3, settings)
                assert decode(table, limits, late) == decode(table, limits, settings)


def test_logsumexp_and_topk_equal_torch(subtests: pytest.Subtests) -> None:
    cases: list[tuple[int, int]] = [(1, 5), (3, 1024), (4, 1999), (2, 40_000), (40, 9_001)]
    cases_1: list[Arrays] = [NUMPY, TORCH]
    for rows, vocabulary in cases:
        for arrays in cases_1:
            with subtests.test(rows=rows, vocabulary=vocabulary, arrays=arrays):
                logits = torch.randn(2 * rows, vocabulary, generator=torch.Generator().manual_seed(rows)) * 5
                topk, our_logits = BlockTopK(arrays), arrays.asarray(logits.numpy())
                sums = topk.logsumexp(our_logits)
                # torch's own log_softmax has the same error: 6e-6 at 40,000 such logits
                np.testing.assert_allclose(arrays.to_numpy(sums), logits.double().logsumexp(-1).numpy(), rtol=0, atol=1e-5)
                score = torch.randn(2, rows, generator=torch.Generator().manual_seed(1))
                total_scores = (logits.log_softmax(-1).view(2, rows, -1) + score[:, :, None]).flatten(1)
                count = min(2 * rows, total_scores.shape[1])
                our_score = arrays.asarray(score.numpy())
                ours = find_best_candidates(
                    our_logits.reshape(2, rows, -1), sums.reshape(2, rows), our_score, count, topk_impl=topk, arrays=arrays
                )
                expected = total_scores.topk(count, dim=1)
                np.testing.assert_allclose(arrays.to_numpy(ours.score_BX), expected.values.numpy(), rtol=0, atol=1e-5)
                assert (ours.parent_BX * vocabulary + ours.token_BX).tolist() == expected.indices.tolist()
                assert topk.topk(our_logits[:, None], None, 1)[:, 0].tolist() == logits.argmax(-1).tolist()


@pytest.mark.parametrize("arrays", [NUMPY, TORCH], ids=["numpy", "torch"])
def test_sampling_from_top_tokens_equals_full_sampling(arrays: Arrays) -> None:
    """Nearly equal logits make draws fall beyond the 256 tokens that are sorted first."""
    generator = torch.Generator().manual_seed(0)
    for spread, top_k, top_p in [(3.0, 0, 1.0), (0.1, 0, 1.0), (0.1, 0, 0.6), (3.0, 0, 0.9), (1.0, 300, 1.0), (1.0, 5, 0.7)]:
        logits, uniform = torch.randn(6, 2000, generator=generator) * spread, torch.rand(6, generator=generator)
        sorted_probs, order = logits.double().softmax(-1).sort(dim=-1, descending=True)
        for row in range(6):
            kept = sorted_probs[row].clone()
            kept[top_k or 2000 :] = 0
            kept[kept.cumsum(0) - kept >= top_p] = 0
            expected_rank = int((kept.cumsum(0) <= kept.sum() * uniform[row]).sum())
            row_logits = logits[row : row + 1]
            tensors = row_logits, row_logits.logsumexp(-1), uniform[row : row + 1]
            logits_1V, log_sum_1, uniform_1 = (arrays.asarray(tensor.numpy()) for tensor in tensors)
            token = sample_tokens(logits_1V, log_sum_1, uniform_1, BlockTopK(arrays), top_k=top_k, top_p=top_p)
            assert token.tolist() == [int(order[row, expected_rank])]


# Masks


def ban_early_end(min_length: int) -> Banned:
    return lambda sentence, tokens: {END} if len(tokens) < min_length else set()


def ban_repeated_ngrams(size: int) -> Banned:
    def banned(sentence: int, tokens: tuple[int, ...]) -> set[int]:
        ngrams = [tokens[first : first + size] for first in range(len(tokens) - size + 1)]
        return {last for *head, last in ngrams if tuple(head) == tokens[len(tokens) - size + 1 :]}

    return banned


def ban_phrases(excluded: Sequence[Sequence[tuple[int, ...]]]) -> Banned:
    def banned(sentence: int, tokens: tuple[int, ...]) -> set[int]:
        return {last for *head, last in excluded[sentence] if not head or tokens[-len(head) :] == tuple(head)}

    return banned


def force_prefixes(prefixes: Sequence[tuple[int, ...]], otherwise: Banned = no_tokens) -> Banned:
    def banned(sentence: int, tokens: tuple[int, ...]) -> set[int]:
        if len(tokens) < len(prefixes[sentence]):
            return set(range(99)) - {prefixes[sentence][len(tokens)]}
        return otherwise(sentence, tokens)

    return banned


def require_once(required: Sequence[tuple[int, ...]], limits: Sequence[int], otherwise: Banned = no_tokens) -> Banned:
    """Return the rule of `exactly_once`; a missing token is allowed even if `otherwise` bans it."""

    def banned(sentence: int, tokens: tuple[int, ...]) -> set[int]:
        missing = set(required[sentence]) - set(tokens)
        if not missing:
            return otherwise(sentence, tokens) | set(required[sentence])
        has_room = limits[sentence] - len(tokens) - 1 > len(missing)
        return (otherwise(sentence, tokens) | {*required[sentence], END} if has_room else set(range(99))) - missing

    return banned


EXCLUDED = [((3,), (4, 5)), (), ((5, 5, 0), (0,), (3, 4)), ((1, 3),)]
PREFIXES = [(3, 3, 5), (), (4,), (0, 0)]
LIMITS = [9, 6, 10, 4]
ONCE = [(3, 4), (), (5,), (0, 3, 5)]


def constrain_decoding(**constraints: Any) -> SearchSettings:
    return make_settings(decoding_constraints=DecodingConstraints(**constraints))


CASES: dict[str, tuple[SearchSettings, list[SentenceConstraints], Banned]] = {
    "forbidden tokens": (make_settings(forbidden_ids=(0, 4)), [], lambda sentence, tokens: {0, 4}),
    "suppress_tokens": (constrain_decoding(suppress_tokens=(3, 5)), [], lambda sentence, tokens: {3, 5}),
    "min_length": (constrain_decoding(min_length=3), [], ban_early_end(3)),
    "no repeated token": (constrain_decoding(no_repeat_ngram_size=1), [], ban_repeated_ngrams(1)),
    "no repeated bigram": (constrain_decoding(no_repeat_ngram_size=2), [], ban_repeated_ngrams(2)),
    "no repeated trigram": (constrain_decoding(no_repeat_ngram_size=3), [], ban_repeated_ngrams(3)),
    "exclude": (make_settings(), [constrain(exclude=phrases) for phrases in EXCLUDED], ban_phrases(EXCLUDED)),
    "prefix": (make_settings(), [constrain(prefix=prefix) for prefix in PREFIXES], force_prefixes(PREFIXES)),
    "prefix overrides masks": (
        constrain_decoding(suppress_tokens=(3,), no_repeat_ngram_size=1, min_length=3),
        [constrain(prefix=prefix) for prefix in PREFIXES],
        force_prefixes(
            PREFIXES,
            lambda sentence, tokens: {3} | ban_repeated_ngrams(1)(sentence, tokens) | ban_early_end(3)(sentence, tokens),
        ),
    ),
    "exactly once": (
        make_settings(),
        [constrain(exactly_once=tokens) for tokens in ONCE],
        require_once(ONCE, LIMITS),
    ),
    "exactly once after a prefix, with masks": (
        constrain_decoding(suppress_tokens=(3, 5), no_repeat_ngram_size=2, min_length=3),
        [constrain(prefix=(1,), exactly_once=tokens, exclude=((4,),)) for tokens in ONCE],
        force_prefixes(
            [(1,)] * 4,
            require_once(
                ONCE,
                LIMITS,
                lambda sentence, tokens: (
                    {3, 4, 5} | ban_repeated_ngrams(2)(sentence, tokens) | ban_early_end(3)(sentence, tokens)
                ),
            ),
        ),
    ),
}


def test_masks_equal_those_of_the_reference(subtests: pytest.Subtests) -> None:
    for case in CASES:
        with subtests.test(case=case):
            settings, constraints, banned = CASES[case]
            sampler = make_sampler(range(4), Table.arrays, temperature=3.0)
            for seed in range(6):
                table = Table.random(seed)
                outputs = search(table, LIMITS, 3, settings, constraints=constraints)
                assert_beam_outputs(outputs, table, LIMITS, 3, banned=banned)
                for sentence, hypothesis in enumerate(decode(table, LIMITS, settings, constraints=constraints)):
                    expected = reference_beam(table, sentence, LIMITS[sentence], 1, "gnmt", 0.6, banned=banned)
                    assert_outputs([hypothesis], expected)
                samples = decode(table, LIMITS, settings, constraints=constraints, select_tokens=sampler)
                for sentence, hypothesis in enumerate(samples):
                    output_ids = (*hypothesis.tokens, END)[: len(hypothesis.token_log_probs)]
                    assert all(
                        token not in banned(sentence, output_ids[:position]) for position, token in enumerate(output_ids)
                    )
                    assert_own_log_probs(hypothesis, table, sentence)
                    assert hypothesis.score == pytest.approx(hypothesis.log_prob / divisor("gnmt", 0.6, len(output_ids)))


def test_automaton_limits_the_next_tokens() -> None:
    """Allow ascending tokens only, and the end token after three; the automaton reads only outputs that it allowed."""

    def ascending(tokens: Sequence[int]) -> set[int]:
        last = max(tokens, default=-1)
        assert list(tokens) == sorted(tokens), "an output that was never allowed"
        return {token for token in range(9) if token > last and token != END} | ({END} if len(tokens) >= 3 else set())

    def allow(outputs_NT: Array, sentences_N: Array) -> Array:
        rows = [[token in ascending(output) for token in range(9)] for output in outputs_NT.tolist()]
        assert len(sentences_N) == len(rows)
        return Table.arrays.asarray(rows)

    def banned(sentence: int, tokens: tuple[int, ...]) -> set[int]:
        return set(range(9)) - ascending(tokens)

    for seed in range(4):
        table = Table.random(seed, vocabulary=9)
        outputs = search(table, [9, 3, 7], 5, constrain_decoding(allowed_tokens_fn=allow))
        assert_beam_outputs(outputs, table, [9, 3, 7], 5, banned=banned)


def test_output_ends_if_no_token_is_allowed() -> None:
    def allow(outputs_NT: Array, sentences_N: Array) -> Array:
        rows = [[outputs_NT.shape[1] < 2 and token != END for token in range(6)]] * len(outputs_NT)
        return Table.arrays.asarray(rows)

    table, settings = Table.random(0), constrain_decoding(allowed_tokens_fn=allow)
    (greedy,) = decode(table, [9], settings)
    assert (len(greedy.tokens), len(greedy.token_log_probs), greedy.finished) == (2, 2, False)
    assert greedy.score == pytest.approx(greedy.log_prob / divisor("gnmt", 0.6, 2), abs=1e-5)
    assert search(table, [9], 3, settings) == [[]]


# Required phrases


def best_with_phrases(table: Table, sentence: int, limit: int, phrases: Sequence[tuple[int, ...]]) -> ScoredOutput:
    """Return the best finished output with all phrases, by enumeration."""
    words = [token for token in range(table.logits_CV.shape[1]) if token != END]
    outputs = [
        (tokens, (sum(table.log_probs(sentence, tokens[:position])[token] for position, token in enumerate(tokens))))
        for length in range(limit)
        for tokens in itertools.product(words, repeat=length)
        if all(contains_phrase(tokens, phrase) for phrase in phrases)
    ]
    ended = [
        (tokens, (log_prob + table.log_probs(sentence, tokens)[END]) / divisor("gnmt", 0.6, len(tokens) + 1), True)
        for tokens, log_prob in outputs
    ]
    return max(ended, key=lambda output: output[1])


def test_wide_beam_returns_best_output_with_one_phrase_of_each_group() -> None:
    for groups in [(((3,),),), (((1, 1),), ((1, 3),)), (((3,), (0, 1)),), (((3, 0), (1, 1)), ((0,), (3, 3), (1, 3)))]:
        for seed in range(3):
            table = Table.random(seed, vocabulary=4)
            constraints = constrain(include_any=groups)
            (hypotheses,) = search(table, [5], 60, make_settings(), constraints=[constraints])
            best = max(
                (best_with_phrases(table, 0, 5, phrases) for phrases in itertools.product(*groups)),
                key=lambda output: output[1],
            )
            assert_outputs(hypotheses[:1], [best])
        settings = constrain_decoding(suppress_tokens=(3,))
        (hypotheses,) = search(table, [6], 8, settings, constraints=[constrain(include_any=(((3,), (0, 1)), ((3, 3),)))])
        assert contains_phrase(hypotheses[0].tokens, (0, 1))


def test_narrow_beam_places_every_phrase() -> None:
    constraints = [
        constrain(include=((5, 6), (7, 7, 4))),
        constrain(),
        constrain(include=((4,),), prefix=(3, 3), exclude=((6,),)),
        constrain(),
    ]
    limits = [14, 9, 12, 5]
    for seed in range(8):
        table = Table.random(seed, vocabulary=8)
        outputs = search(table, limits, 4, make_settings(), constraints=constraints)
        unconstrained = search(table, limits, 4, make_settings())
        for sentence in (1, 3):
            assert_outputs(outputs[sentence], to_outputs(unconstrained[sentence]))
        for hypotheses, sentence_constraints in zip(outputs, constraints, strict=True):
            best = hypotheses[0]
            assert best.finished
            assert all(group[0].is_in(best.tokens) for group in sentence_constraints.include)
        assert outputs[2][0].tokens[:2] == (3, 3)
        assert 6 not in outputs[2][0].tokens
        for hypothesis in outputs[0]:
            assert_own_log_probs(hypothesis, table, 0)


def test_output_without_impossible_phrases_is_returned() -> None:
    table = Table.random(2, vocabulary=8)
    pair = constrain(include=((5, 3), (4,)))
    cases = [
        (make_settings(), constrain(include=((5, 3), (4,)), exclude=((3,),)), (5, 3), 12),
        (constrain_decoding(suppress_tokens=(5,)), pair, (5, 3), 12),
        (make_settings(), constrain(include=((4,), (5, 5, 6, 6, 7, 7))), (5, 5, 6, 6, 7, 7), 6),
        # only the search finds that this phrase is impossible; the best finished output without it is the result
        (constrain_decoding(no_repeat_ngram_size=1), constrain(include=((5, 5),)), (5, 5), 12),
    ]
    for settings, constraints, unmet, limit in cases:
        (hypotheses,) = search(table, [limit], 4, settings, constraints=[constraints])
        assert hypotheses[0].finished
        missing = [group[0].tokens for group in constraints.include if not group[0].is_in(hypotheses[0].tokens)]
        assert missing == [unmet]


# Phrases as text: every vocabulary of strings, against Python's own search in the joined text

TEXT_PIECES = ("", "a", "b", "ab", "ba", "aba", "bb", "abab", "aa")


def test_phrase_is_found_in_any_tokens() -> None:
    for text in ["a", "ab", "aba", "abab", "abb", "bbabb"]:
        phrase = Phrase(text.encode(), (), {token: piece.encode() for token, piece in enumerate(TEXT_PIECES) if piece})
        generator = random.Random(text)
        for _ in range(300):
            tokens = [generator.randrange(1, len(TEXT_PIECES)) for _ in range(generator.randrange(6))]
            output = "".join(TEXT_PIECES[token] for token in tokens)
            assert phrase.is_in(tokens) == (text in output)
            expected = max(length for length in range(len(text)) if output.endswith(text[:length]))
            assert phrase.find_state(tokens) == expected
            completing = {
                token
                for token, piece in enumerate(TEXT_PIECES)
                if (piece and output.count(text) < (output + piece).count(text))
                or text in output[len(output) - expected :] + piece
            }
            assert set(phrase.list_completing_tokens(phrase.find_state(tokens))) == completing


# Groups


def reference_groups(
    table: Table, sentence: int, limit: int, width: int, groups: int, diversity_penalty: float
) -> list[list[ScoredOutput]]:
    """Return the outputs of each group by algorithm 1 of Vijayakumar et al. 2018, with lists."""
    alive: list[list[tuple[float, tuple[int, ...]]]] = [[(0.0, ())] for _ in range(groups)]
    finished: list[list[ScoredOutput]] = [[] for _ in range(groups)]
    for length in range(1, limit + 1):
        earlier_tokens: list[int] = []
        for group in range(groups):
            expanded = [
                (score + log_prob - diversity_penalty * earlier_tokens.count(token), score + log_prob, (*tokens, token))
                for score, tokens in alive[group]
                for token, log_prob in enumerate(table.log_probs(sentence, tokens))
            ]
            expanded = sorted(expanded, reverse=True)[: 2 * width]
            finished[group] += [
                (tokens[:-1], score / divisor("gnmt", 0.6, length), True) for _, score, tokens in expanded if tokens[-1] == END
            ]
            alive[group] = [(score, tokens) for _, score, tokens in expanded if tokens[-1] != END][:width]
            earlier_tokens += [tokens[-1] for _, tokens in alive[group]]
    return [sorted(outputs, key=lambda output: -output[1])[:width] for outputs in finished]


def test_diverse_groups_equal_those_of_the_reference() -> None:
    for diversity_penalty in [0.3, 2.0]:
        for seed in range(6):
            table = Table.random(seed, vocabulary=7)
            (hypotheses,) = search(table, [6], 6, make_settings(), groups=BeamGroups(3, diversity_penalty))
            groups = reference_groups(table, 0, 6, 2, 3, diversity_penalty)
            expected = {tokens: score for group in groups for tokens, score, _ in group}
            ours = {hypothesis.tokens: hypothesis.score for hypothesis in hypotheses if hypothesis.finished}
            assert ours.keys() == expected.keys()
            assert all(ours[tokens] == pytest.approx(score, abs=1e-5) for tokens, score in expected.items())
            best = sorted({group[0][0]: group[0][1] for group in groups}.values(), reverse=True)
            assert [hypothesis.score for hypothesis in hypotheses[: len(best)]] == pytest.approx(best, abs=1e-5)


@pytest.mark.parametrize("groups", [BeamGroups(2), BeamGroups(2, 0.7), BeamGroups(4, return_alternatives=True)])
def test_groups_of_done_sentences_leave_the_batch(groups: BeamGroups) -> None:
    """Outputs equal those of a batch that keeps its done sentences."""
    table, limits, sizes = Table.random(1), [2, 9, 4, 12], list[int]()
    outputs = search(table, limits, 4, make_settings(), groups=groups, on_step=lambda step: sizes.append(len(step.sentences)))
    assert outputs == search(table, limits, 4, make_settings(compaction_threshold=2.0), groups=groups)
    assert (sizes[0], sizes[-1]) == (4 * groups.num_groups, groups.num_groups)


def test_alternatives_differ_after_the_prefix() -> None:
    """Each alternative equals the best output with the prefix and one of the four most probable next tokens."""
    for width in [1, 3]:
        limits = [9, 7, 9]
        constraints = [constrain(prefix=(3, 4)), constrain(), constrain(prefix=(5, 5, 5))]
        groups = BeamGroups(4, return_alternatives=True)
        for seed in range(4):
            table = Table.random(seed)
            outputs = search(table, limits, 4 * width, make_settings(), constraints=constraints, groups=groups)
            for sentence, (alternatives, sentence_constraints) in enumerate(zip(outputs, constraints, strict=True)):
                prefix = sentence_constraints.prefix
                log_probs = table.log_probs(sentence, prefix)
                first_tokens = sorted(range(6), key=lambda token: -log_probs[token])[:4]
                assert len(alternatives) == 4
                for token, alternative in zip(first_tokens, alternatives, strict=True):
                    if token == END:
                        assert (alternative.tokens, alternative.finished) == (prefix, True)
                        continue
                    banned = force_prefixes([(*prefix, token)] * 3)
                    expected = reference_beam(table, sentence, limits[sentence], width, "gnmt", 0.6, banned=banned)
                    assert_outputs([alternative], expected[:1])


# Degenerate repetition


def repeats_by_definition(tokens: Sequence[int], window: int) -> bool:
    """Return whether the last tokens are one group of at most `window` tokens, four times or more, over `window` or more."""
    for period in range(1, window + 1):
        length = max(window, 4 * period)
        tail = tokens[-length:]
        if len(tail) == length and all(tail[position] == tail[position - period] for position in range(period, length)):
            return True
    return False


@pytest.mark.parametrize("arrays", [NUMPY, TORCH], ids=["numpy", "torch"])
def test_repetition_detection_follows_its_definition(arrays: Arrays) -> None:
    rng, seen = random.Random(0), set()
    for _ in range(500):
        window, period = rng.choice([8, 11, 16]), rng.randint(1, 20)
        group = [rng.randint(0, 2) for _ in range(period)]
        tokens = [rng.randint(0, 2) for _ in range(rng.randint(0, 9))] + (group * 70)[: rng.randint(0, 5 * period)]
        if tokens and rng.random() < 0.3:
            tokens[rng.randrange(len(tokens))] = 9
        expected = repeats_by_definition(tokens, window)
        assert bool(is_repeating(arrays.asarray([tokens, tokens], arrays.xp.int64), window, arrays)[1]) == expected
        anywhere = any(repeats_by_definition(tokens[:last], window) for last in range(len(tokens) + 1))
        assert contains_repetition(tokens, window) == anywhere
        seen.add((expected, anywhere))
    assert seen == {(True, True), (False, True), (False, False)}


def test_repeating_output_is_stopped_and_marked() -> None:
    """Decode with a table in which three tokens follow each other and the end token is improbable."""
    table = Table(torch.full((7, 6), -9.0))
    for context in range(7):
        table.logits_CV[context, 3 + context % 3] = 9.0
    table.logits_CV[:, END] = -30.0
    settings, limits = constrain_decoding(repetition_window=12), [60, 9, 60]
    free = decode(table, limits)
    assert contains_repetition(free[0].tokens, 12)
    assert not any(hypothesis.has_repetition for hypothesis in free)
    stopped = decode(table, limits, settings)
    assert [hypothesis.has_repetition for hypothesis in stopped] == [True, False, True]
    assert len(stopped[0].tokens) % 8 == 0
    assert len(stopped[0].tokens) < 40
    assert repeats_by_definition(stopped[0].tokens, 12)
    assert not stopped[0].finished
    assert decode(table, limits, settings, constraints=[SentenceConstraints(allow_repetition=True)] * 3) == free
    table.steps = 0
    beam = search(table, limits, 2, settings)
    assert beam[0][0].has_repetition
    assert repeats_by_definition(beam[0][0].tokens, 12)
    assert beam[0][0].tokens == stopped[0].tokens
    assert beam[0][0].score == pytest.approx(stopped[0].score, abs=1e-5)
    assert not beam[1][0].has_repetition


# All constraints together, and recipe keys


def test_constrained_output_does_not_depend_on_the_batch() -> None:
    constraints = [
        constrain(prefix=(3,), include=((5, 4),)),
        constrain(exclude=((4,), (5, 3))),
        constrain(include=((4, 4),), exclude=((3,),)),
        constrain(prefix=(5, 5)),
        constrain(),
    ]
    limits, settings = [12, 9, 11, 7, 10], constrain_decoding(no_repeat_ngram_size=3, min_length=1, repetition_window=8)
    for seed in range(5):
        table = Table.random(seed, vocabulary=7)
        together = search(table, limits, 4, settings, constraints=constraints)
        for row in range(5):
            (alone,) = beam_search(
                table.step,
                table.start(5, 4).select_sentences(table.arrays.asarray([row])),
                max_lengths=[limits[row]],
                settings=settings,
                options=BeamSearchOptions(beam_size=4),
                arrays=table.arrays,
                constraints=[constraints[row]],
            )
            assert_outputs(together[row], to_outputs(alone))


def test_invalid_decoding_keys_raise_one_line_errors() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"num_beam_groups": 3}, "num_beam_groups = 3 does not divide beam_size = 4"),
        ({"num_beam_groups": 2, "method": "sample"}, "num_beam_groups = 2 is for beam search, but method = 'sample'"),
        ({"repetition_window": 5}, "repetition_window = 5 would stop ordinary text"),
        ({"diversity_penalty": 0.0}, "diversity_penalty = 0.0"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size = -1"),
        ({"suppress_tokens": "ab"}, "suppress_tokens = 'ab'"),
    ]
    for changes, message in cases:
        with raises_code("invalid-recipe", "decoding: ", message):
            update_section(DecodingConfig(), changes, where="decoding")

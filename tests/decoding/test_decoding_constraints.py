"""Rules, wishes, groups and loops, each against lists, enumeration or the words of its definition."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from dragoman.config import DecodingConfig, update_section
from dragoman.decoding.beam_search import beam_search
from dragoman.decoding.constraints import DecodingConstraints, SentenceConstraints, contains_phrase
from dragoman.decoding.diverse_beam import BeamGroups
from dragoman.decoding.greedy import make_sampler, sample_tokens
from dragoman.decoding.hypothesis import Hypothesis, LengthPenalty
from dragoman.decoding.repetition import contains_repetition, is_repeating
from dragoman.decoding.topk import BlockLogSumExp, find_best_candidates, topk
from dragoman.errors import RecipeError
from test_decoding import END, PENALTIES, START, STOPS, Found, Table, assert_found, divisor, search, walk

pytestmark = pytest.mark.usefixtures("one_core")

Banned = Callable[[int, tuple[int, ...]], set[int]]
"""(sentence, output so far) → tokens that may not follow."""


def nothing(sentence: int, tokens: tuple[int, ...]) -> set[int]:
    return set()


def ruled_log_probs(table: Table, sentence: int, tokens: tuple[int, ...], banned: Banned) -> list[float]:
    """The model's own, without those that are ruled out."""
    ruled_out = banned(sentence, tokens)
    return [-math.inf if token in ruled_out else log_prob for token, log_prob in enumerate(table.log_probs(sentence, tokens))]


def reference_beam(
    table: Table,
    sentence: int,
    limit: int,
    beam: int,
    form: str,
    alpha: float,
    *,
    stop: str = "exhaustive",
    nbest: int = 1,
    banned: Banned = nothing,
) -> list[Found]:
    """tensor2tensor's beam search for one sentence with lists, in double precision, ending when the search is to end."""
    alive: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    finished: list[Found] = []
    counted = beam if stop == "exhaustive" else nbest
    for length in range(1, limit + 1):
        grown = [
            (score + log_prob, (*tokens, token))
            for score, tokens in alive
            for token, log_prob in enumerate(ruled_log_probs(table, sentence, tokens, banned))
            if log_prob > -math.inf
        ]
        grown = sorted(grown, reverse=True)[: 2 * beam]
        ends = [
            (tokens[:-1], score / divisor(form, alpha, length), True)
            for place, (score, tokens) in enumerate(grown)
            if tokens[-1] == END and place < (2 * beam if stop != "beam_full" and beam > 1 else beam)
        ]
        finished = sorted(finished + ends, key=lambda output: -output[1])[:beam]
        alive = [one for one in grown if one[1][-1] != END][:beam]
        best = alive[0][0] / divisor(form, alpha, limit) if alive else -math.inf
        if length == limit or not alive or (len(finished) >= counted and (beam == 1 or finished[counted - 1][1] >= best)):
            break
        if stop == "beam_full" and len(finished) == beam:
            break
    cut = [(tokens, score / divisor(form, alpha, length), False) for score, tokens in alive]
    return [*finished, *cut][:beam]


def assert_same(found: list[list[Hypothesis]], table: Table, limits: Sequence[int], beam: int, **rest: Any) -> None:
    for sentence, (hypotheses, limit) in enumerate(zip(found, limits, strict=True)):
        expected = reference_beam(table, sentence, limit, beam, "gnmt", 0.6, **rest)
        assert_found(hypotheses, expected)
        for hypothesis in hypotheses:
            said = [*hypothesis.tokens, END][: len(hypothesis.token_log_probs)]
            own = [table.log_probs(sentence, said[:place])[token] for place, token in enumerate(said)]
            assert hypothesis.token_log_probs == pytest.approx(own, abs=1e-5)


# The search itself


@pytest.mark.parametrize("vocabulary", [8, 1100, 1031])  # whole, in blocks, in blocks with a remainder
@pytest.mark.parametrize("stop", [*STOPS, "beam_full"])
def test_beam_search_is_the_plain_one_step_for_step(stop: str, vocabulary: int) -> None:
    limits = [9, 4, 1, 12, 7]
    for seed, (form, alpha) in enumerate(PENALTIES):
        table = Table.random(seed, vocabulary, spread=3.0, contexts=61)
        table.logits_CV[:, END] += 2.0 + vocabulary / 300
        beam, nbest = 2 + seed % 3, 1 + seed % 2
        found = search(table, limits, beam, form, alpha, stop=stop, nbest=nbest)
        for sentence, (hypotheses, limit) in enumerate(zip(found, limits, strict=True)):
            assert_found(hypotheses, reference_beam(table, sentence, limit, beam, form, alpha, stop=stop, nbest=nbest))


@pytest.mark.parametrize("leaving", [0.3, 1.0])
def test_when_sentences_leave_changes_nothing(leaving: float) -> None:
    limits = [9, 4, 1, 12, 7, 7]
    for seed in range(6):
        table = Table.random(seed)
        assert search(table, limits, 3, "gnmt", 0.6, leaving=leaving) == search(table, limits, 3, "gnmt", 0.6)
        assert walk(table, limits, leaving=leaving) == walk(table, limits)


@pytest.mark.parametrize(("rows", "vocabulary"), [(1, 5), (3, 1024), (4, 1999), (2, 40_000), (40, 9_001)])
def test_sums_and_the_best_are_those_of_torch(rows: int, vocabulary: int) -> None:
    logits = torch.randn(2 * rows, vocabulary, generator=torch.Generator().manual_seed(rows)) * 5
    sums = BlockLogSumExp()(logits)
    # torch's own log_softmax is as far from double precision: 6e-6 at 40,000 such logits
    torch.testing.assert_close(sums, logits.double().logsumexp(-1), rtol=0, atol=1e-5)
    score = torch.randn(2, rows, generator=torch.Generator().manual_seed(1))
    whole = (logits.log_softmax(-1).view(2, rows, -1) + score[:, :, None]).flatten(1)
    count = min(2 * rows, whole.shape[1])
    ours = find_best_candidates(logits.view(2, rows, -1), sums.view(2, rows), score, count)
    expected = whole.topk(count, dim=1)
    torch.testing.assert_close(ours.score_BX, expected.values, rtol=0, atol=1e-5)
    assert torch.equal(ours.parent_BX * vocabulary + ours.token_BX, expected.indices)
    assert torch.equal(topk(logits[:, None], None, 1)[:, 0], logits.argmax(-1))


def test_a_draw_from_the_likeliest_few_is_the_draw_from_all() -> None:
    """Also where it falls beyond the 256 that are looked at first: nearly flat logits."""
    generator = torch.Generator().manual_seed(0)
    for spread, top_k, top_p in [(3.0, 0, 1.0), (0.1, 0, 1.0), (0.1, 0, 0.6), (3.0, 0, 0.9), (1.0, 300, 1.0), (1.0, 5, 0.7)]:
        logits, uniform = torch.randn(6, 2000, generator=generator) * spread, torch.rand(6, generator=generator)
        sorted_probs, order = logits.double().softmax(-1).sort(dim=-1, descending=True)
        for row in range(6):
            kept = sorted_probs[row].clone()
            kept[top_k or 2000 :] = 0
            kept[kept.cumsum(0) - kept >= top_p] = 0
            wanted = int((kept.cumsum(0) <= kept.sum() * uniform[row]).sum())
            one = logits[row : row + 1]
            given = sample_tokens(one, one.logsumexp(-1), uniform[row : row + 1], top_k=top_k, top_p=top_p)
            assert int(given) == int(order[row, wanted])


# Bans


def ends_before(fewest: int) -> Banned:
    return lambda sentence, tokens: {END} if len(tokens) < fewest else set()


def repeats(size: int) -> Banned:
    def banned(sentence: int, tokens: tuple[int, ...]) -> set[int]:
        said = [tokens[first : first + size] for first in range(len(tokens) - size + 1)]
        return {last for *begun, last in said if tuple(begun) == tokens[len(tokens) - size + 1 :]}

    return banned


def phrases(excluded: Sequence[Sequence[tuple[int, ...]]]) -> Banned:
    def banned(sentence: int, tokens: tuple[int, ...]) -> set[int]:
        own = excluded[sentence]
        return {last for *begun, last in own if not begun or tokens[-len(begun) :] == tuple(begun)}

    return banned


def prefixes(given: Sequence[tuple[int, ...]], otherwise: Banned = nothing) -> Banned:
    def banned(sentence: int, tokens: tuple[int, ...]) -> set[int]:
        if len(tokens) < len(given[sentence]):
            return set(range(99)) - {given[sentence][len(tokens)]}
        return otherwise(sentence, tokens)

    return banned


EXCLUDED = [((3,), (4, 5)), (), ((5, 5, 0), (0,), (3, 4)), ((1, 3),)]
PREFIXES = [(3, 3, 5), (), (4,), (0, 0)]
LIMITS = [9, 6, 10, 4]

CASES: dict[str, tuple[dict[str, Any], Banned]] = {
    "suppressed": ({"rules": DecodingConstraints(suppress_tokens=(3, 5))}, lambda sentence, tokens: {3, 5}),
    "min_length": ({"rules": DecodingConstraints(min_length=3)}, ends_before(3)),
    "no token twice": ({"rules": DecodingConstraints(no_repeat_ngram_size=1)}, repeats(1)),
    "no pair twice": ({"rules": DecodingConstraints(no_repeat_ngram_size=2)}, repeats(2)),
    "no three twice": ({"rules": DecodingConstraints(no_repeat_ngram_size=3)}, repeats(3)),
    "excluded": ({"wishes": [SentenceConstraints(exclude=own) for own in EXCLUDED]}, phrases(EXCLUDED)),
    "prefix": ({"wishes": [SentenceConstraints(prefix=own) for own in PREFIXES]}, prefixes(PREFIXES)),
    "prefix against bans": (
        {
            "wishes": [SentenceConstraints(prefix=own) for own in PREFIXES],
            "rules": DecodingConstraints(suppress_tokens=(3,), no_repeat_ngram_size=1, min_length=3),
        },
        prefixes(PREFIXES, lambda sentence, tokens: {3} | repeats(1)(sentence, tokens) | ends_before(3)(sentence, tokens)),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_bans_are_those_of_the_plain_search(case: str) -> None:
    rest, banned = CASES[case]
    for seed in range(6):
        table = Table.random(seed)
        assert_same(search(table, LIMITS, 3, "gnmt", 0.6, **rest), table, LIMITS, 3, banned=banned)
        greedy = walk(table, LIMITS, **rest)
        for sentence, hypothesis in enumerate(greedy):
            assert_found([hypothesis], reference_beam(table, sentence, LIMITS[sentence], 1, "gnmt", 0.6, banned=banned))
        for sentence, hypothesis in enumerate(walk(table, LIMITS, choose=make_sampler(range(4), temperature=3.0), **rest)):
            said = (*hypothesis.tokens, END)[: len(hypothesis.token_log_probs)]
            assert all(token not in banned(sentence, said[:place]) for place, token in enumerate(said))


def test_an_automaton_decides_what_may_come_next() -> None:
    """Each token greater than the last, the end only after three; and empty places show only what it allowed."""

    def rising(tokens: Sequence[int]) -> set[int]:
        least = max(tokens, default=-1)
        assert list(tokens) == sorted(tokens), "an output that was never allowed"
        return {token for token in range(9) if token > least and token != END} | ({END} if len(tokens) >= 3 else set())

    def allow(outputs_NT: Tensor, sentences_N: Tensor) -> Tensor:
        rows = [[token in rising(output) for token in range(9)] for output in outputs_NT.tolist()]
        assert len(sentences_N) == len(rows)
        return torch.tensor(rows)

    def banned(sentence: int, tokens: tuple[int, ...]) -> set[int]:
        return set(range(9)) - rising(tokens)

    for seed in range(4):
        table = Table.random(seed, vocabulary=9)
        assert_same(
            search(table, [9, 3, 7], 5, "gnmt", 0.6, rules=DecodingConstraints(allowed_tokens_fn=allow)),
            table,
            [9, 3, 7],
            5,
            banned=banned,
        )


def test_where_nothing_is_allowed_the_output_ends_there() -> None:
    def allow(outputs_NT: Tensor, sentences_N: Tensor) -> Tensor:
        return torch.full((len(outputs_NT), 6), outputs_NT.shape[1] < 2) & (torch.arange(6) != END)

    table = Table.random(0)
    (greedy,) = walk(table, [9], rules=DecodingConstraints(allowed_tokens_fn=allow))
    assert (len(greedy.tokens), len(greedy.token_log_probs), greedy.finished) == (2, 2, False)
    assert greedy.score == pytest.approx(greedy.log_prob / divisor("gnmt", 0.6, 2), abs=1e-5)
    assert search(table, [9], 3, "gnmt", 0.6, rules=DecodingConstraints(allowed_tokens_fn=allow)) == [[]]


# Phrases that must stand in the output


def best_with(table: Table, sentence: int, limit: int, phrases: Sequence[tuple[int, ...]]) -> Found:
    """By enumeration: the best output that ends and holds them all."""
    others = [token for token in range(table.logits_CV.shape[1]) if token != END]
    outputs = [
        (tokens, (sum(table.log_probs(sentence, tokens[:place])[token] for place, token in enumerate(tokens))))
        for length in range(limit)
        for tokens in itertools.product(others, repeat=length)
        if all(contains_phrase(tokens, phrase) for phrase in phrases)
    ]
    ended = [
        (tokens, (log_prob + table.log_probs(sentence, tokens)[END]) / divisor("gnmt", 0.6, len(tokens) + 1), True)
        for tokens, log_prob in outputs
    ]
    return max(ended, key=lambda output: output[1])


@pytest.mark.parametrize("include", [((3,),), ((3, 0),), ((0, 1), (3,)), ((1, 1), (1, 3))])
def test_a_wide_beam_finds_the_best_output_that_holds_the_phrases(include: tuple[tuple[int, ...], ...]) -> None:
    for seed in range(3):
        table = Table.random(seed, vocabulary=4)
        (found,) = search(table, [5], 60, "gnmt", 0.6, wishes=[SentenceConstraints(include=include)])
        assert_found(found[:1], [best_with(table, 0, 5, include)])
        assert found[0].unmet_constraints == ()


def test_a_narrow_beam_places_every_phrase_and_leaves_the_others_alone() -> None:
    wishes = [
        SentenceConstraints(include=((5, 6), (7, 7, 4))),
        SentenceConstraints(),
        SentenceConstraints(include=((4,),), prefix=(3, 3), exclude=((6,),)),
        SentenceConstraints(),
    ]
    limits = [14, 9, 12, 5]
    for seed in range(8):
        table = Table.random(seed, vocabulary=8)
        found = search(table, limits, 4, "gnmt", 0.6, wishes=wishes)
        alone = search(table, limits, 4, "gnmt", 0.6)
        for one, other in zip([found[1], found[3]], [alone[1], alone[3]], strict=True):
            assert_found(one, [(two.tokens, two.score, two.finished) for two in other])
        for hypotheses, wish in zip(found, wishes, strict=True):
            best = hypotheses[0]
            assert best.finished
            assert best.unmet_constraints == ()
            assert all(contains_phrase(best.tokens, phrase) for phrase in wish.include)
        assert found[2][0].tokens[:2] == (3, 3)
        assert 6 not in found[2][0].tokens
        for hypothesis in found[0]:
            said = [*hypothesis.tokens, END][: len(hypothesis.token_log_probs)]
            own = [table.log_probs(0, said[:place])[token] for place, token in enumerate(said)]
            assert hypothesis.token_log_probs == pytest.approx(own, abs=1e-5)


def test_a_phrase_that_begins_anew_within_itself() -> None:
    """3 3 4 after 3 3 3 4: what has been matched falls back, as in Knuth, Morris and Pratt."""
    table = Table.random(1)
    (found,) = search(table, [9], 3, "gnmt", 0.6, wishes=[SentenceConstraints(prefix=(3, 3, 3, 4), include=((3, 3, 4),))])
    (plain,) = search(table, [9], 3, "gnmt", 0.6, wishes=[SentenceConstraints(prefix=(3, 3, 3, 4))])
    assert found[0].unmet_constraints == ()
    assert found[0].tokens == plain[0].tokens


def test_a_phrase_that_cannot_be_placed_is_named() -> None:
    table = Table.random(2, vocabulary=8)
    cases: list[tuple[dict[str, Any], tuple[tuple[int, ...], ...], int]] = [
        ({"wishes": [SentenceConstraints(include=((5, 3), (4,)), exclude=((3,),))]}, ((5, 3),), 12),
        (
            {"wishes": [SentenceConstraints(include=((5, 3), (4,)))], "rules": DecodingConstraints(suppress_tokens=(5,))},
            ((5, 3),),
            12,
        ),
        ({"wishes": [SentenceConstraints(include=((4,), (5, 5, 6, 6, 7, 7)))]}, ((5, 5, 6, 6, 7, 7),), 6),
    ]
    for rest, missing, limit in cases:
        (found,) = search(table, [limit], 4, "gnmt", 0.6, **rest)
        assert found[0].finished
        assert found[0].unmet_constraints == missing
    # what forbids it shows only on the way: the best output without it is given, ended
    (found,) = search(
        table,
        [12],
        4,
        "gnmt",
        0.6,
        wishes=[SentenceConstraints(include=((5, 5),))],
        rules=DecodingConstraints(no_repeat_ngram_size=1),
    )
    assert found[0].finished
    assert found[0].unmet_constraints == ((5, 5),)
    (greedy,) = walk(table, [12], wishes=[SentenceConstraints(include=((5, 5),))])
    assert greedy.unmet_constraints == (() if contains_phrase(greedy.tokens, (5, 5)) else ((5, 5),))


# Groups


def reference_groups(table: Table, sentence: int, limit: int, width: int, groups: int, strength: float) -> list[list[Found]]:
    """Vijayakumar et al. 2018, algorithm 1, with lists: each group's beam, in order."""
    alive: list[list[tuple[float, tuple[int, ...]]]] = [[(0.0, ())] for _ in range(groups)]
    finished: list[list[Found]] = [[] for _ in range(groups)]
    for length in range(1, limit + 1):
        said: list[int] = []
        for group in range(groups):
            grown = [
                (score + log_prob - strength * said.count(token), score + log_prob, (*tokens, token))
                for score, tokens in alive[group]
                for token, log_prob in enumerate(table.log_probs(sentence, tokens))
            ]
            grown = sorted(grown, reverse=True)[: 2 * width]
            finished[group] += [
                (tokens[:-1], score / divisor("gnmt", 0.6, length), True) for _, score, tokens in grown if tokens[-1] == END
            ]
            alive[group] = [(score, tokens) for _, score, tokens in grown if tokens[-1] != END][:width]
            said += [tokens[-1] for _, tokens in alive[group]]
    return [sorted(found, key=lambda output: -output[1])[:width] for found in finished]


@pytest.mark.parametrize("strength", [0.3, 2.0])
def test_diverse_groups_are_those_of_the_plain_search(strength: float) -> None:
    """Ends are made unlikely until the limit nears, so that no group ends before another and none is cut."""
    for seed in range(6):
        table = Table.random(seed, vocabulary=7)
        (found,) = search(table, [6], 6, "gnmt", 0.6, groups=BeamGroups(3, strength), early_stopping="exhaustive")
        groups = reference_groups(table, 0, 6, 2, 3, strength)
        expected = {tokens: score for group in groups for tokens, score, _ in group}
        ours = {hypothesis.tokens: hypothesis.score for hypothesis in found if hypothesis.finished}
        assert ours.keys() == expected.keys()
        assert all(ours[tokens] == pytest.approx(score, abs=1e-5) for tokens, score in expected.items())
        best = sorted({group[0][0]: group[0][1] for group in groups}.values(), reverse=True)
        assert [hypothesis.score for hypothesis in found[: len(best)]] == pytest.approx(best, abs=1e-5)


def test_strong_groups_differ_more() -> None:
    table, limits = Table.random(0, vocabulary=30), [10] * 8
    table.logits_CV[:, END] += 1.0

    def distinct(**rest: Any) -> int:
        found = search(table, limits, 4, "gnmt", 0.6, **rest)
        return sum(len({hypothesis.tokens[:1] for hypothesis in hypotheses}) for hypotheses in found)

    assert distinct(groups=BeamGroups(4, 4.0)) > distinct()


@pytest.mark.parametrize("width", [1, 3])
def test_alternatives_part_after_the_prefix_and_go_on_as_from_that_prefix(width: int) -> None:
    wishes, limits = (
        [SentenceConstraints(prefix=(3, 4)), SentenceConstraints(), SentenceConstraints(prefix=(5, 5, 5))],
        [9, 7, 9],
    )
    for seed in range(4):
        table = Table.random(seed)
        found = search(table, limits, 4 * width, "gnmt", 0.6, wishes=wishes, groups=BeamGroups(4, return_alternatives=True))
        for sentence, (alternatives, wish) in enumerate(zip(found, wishes, strict=True)):
            own = table.log_probs(sentence, wish.prefix)
            parting = sorted(range(6), key=lambda token: -own[token])[:4]
            assert len(alternatives) == 4
            for token, alternative in zip(parting, alternatives, strict=True):
                prefix = (*wish.prefix, token)
                if token == END:
                    assert (alternative.tokens, alternative.finished) == (wish.prefix, True)
                    continue
                banned = prefixes([prefix] * 3)
                expected = reference_beam(table, sentence, limits[sentence], width, "gnmt", 0.6, banned=banned)
                assert_found([alternative], expected[:1])


# Loops


def plainly_loops(tokens: Sequence[int], span: int) -> bool:
    """The words of the rule: the last tokens are one group of up to `span` tokens, four times or more, over `span` or more."""
    for period in range(1, span + 1):
        stretch = max(span, 4 * period)
        tail = tokens[-stretch:]
        if len(tail) == stretch and all(tail[place] == tail[place - period] for place in range(period, stretch)):
            return True
    return False


def test_loops_are_found_by_the_words_of_the_rule() -> None:
    chance, seen = random.Random(0), set()
    for _ in range(1500):
        span, period = chance.choice([8, 11, 16]), chance.randint(1, 20)
        group = [chance.randint(0, 2) for _ in range(period)]
        tokens = [chance.randint(0, 2) for _ in range(chance.randint(0, 9))] + (group * 70)[: chance.randint(0, 5 * period)]
        if tokens and chance.random() < 0.3:
            tokens[chance.randrange(len(tokens))] = 9
        expected = plainly_loops(tokens, span)
        assert bool(is_repeating(torch.tensor([tokens, tokens], dtype=torch.long), span)[1]) == expected
        anywhere = any(plainly_loops(tokens[:last], span) for last in range(len(tokens) + 1))
        assert contains_repetition(tokens, span) == anywhere
        seen.add((expected, anywhere))
    assert seen == {(True, True), (False, True), (False, False)}


def test_an_output_that_goes_in_circles_is_stopped_and_says_so() -> None:
    """A table of which each row wants the next of three tokens, and never the end."""
    table = Table(torch.full((7, 6), -9.0))
    for context in range(7):
        table.logits_CV[context, 3 + context % 3] = 9.0
    table.logits_CV[:, END] = -30.0
    rules, limits = DecodingConstraints(repetition_window=12), [60, 9, 60]
    free = walk(table, limits)
    assert contains_repetition(free[0].tokens, 12)
    assert not any(hypothesis.has_repetition for hypothesis in free)
    stopped = walk(table, limits, rules=rules)
    assert [hypothesis.has_repetition for hypothesis in stopped] == [True, False, True]
    assert len(stopped[0].tokens) % 8 == 0
    assert len(stopped[0].tokens) < 40
    assert plainly_loops(stopped[0].tokens, 12)
    assert not stopped[0].finished
    assert walk(table, limits, rules=rules, wishes=[SentenceConstraints(allow_repetition=True)] * 3) == free
    table.steps = 0
    beam = search(table, limits, 2, "gnmt", 0.6, rules=rules)
    assert beam[0][0].has_repetition
    assert plainly_loops(beam[0][0].tokens, 12)
    assert beam[0][0].tokens == stopped[0].tokens
    assert beam[0][0].score == pytest.approx(stopped[0].score, abs=1e-5)
    assert not beam[1][0].has_repetition


# All at once, and knobs


def test_a_sentence_with_wishes_is_no_other_for_its_batch_mates() -> None:
    wishes = [
        SentenceConstraints(prefix=(3,), include=((5, 4),)),
        SentenceConstraints(exclude=((4,), (5, 3))),
        SentenceConstraints(include=((4, 4),), exclude=((3,),)),
        SentenceConstraints(prefix=(5, 5)),
        SentenceConstraints(),
    ]
    limits, rules = [12, 9, 11, 7, 10], DecodingConstraints(no_repeat_ngram_size=3, min_length=1, repetition_window=8)
    for seed in range(5):
        table = Table.random(seed, vocabulary=7)
        together = search(table, limits, 4, "gnmt", 0.6, wishes=wishes, rules=rules)
        for row in range(5):
            start = table.start(5, 4).keep(torch.tensor([row]))
            (alone,) = beam_search(
                table.step,
                start,
                max_lengths=[limits[row]],
                beam_size=4,
                start_id=START,
                end_id=END,
                length_penalty=LengthPenalty("gnmt", 0.6),
                device=torch.device("cpu"),
                constraints=[wishes[row]],
                decoding_constraints=rules,
            )
            assert_found(together[row], [(one.tokens, one.score, one.finished) for one in alone])


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"num_beam_groups": 3}, "num_beam_groups = 3 does not divide beam_size = 4"),
        ({"num_beam_groups": 2, "method": "sample"}, "num_beam_groups = 2 is for beam search, but method = 'sample'"),
        ({"repetition_window": 5}, "repetition_window = 5 would stop ordinary text"),
        ({"diversity_penalty": 0.0}, "diversity_penalty = 0.0"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size = -1"),
        ({"suppress_tokens": "ab"}, "suppress_tokens = 'ab'"),
    ],
)
def test_impossible_knobs_are_refused_in_one_line(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(RecipeError, match="decoding: ") as refused:
        update_section(DecodingConfig(), changes, where="decoding")
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)

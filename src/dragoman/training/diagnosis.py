"""What goes wrong in a run, told from its record: what is seen, what that probably means, and which knob to turn.

Each rule looks at one thing and answers with a finding or with none. Means are over quarters of the journal's lines, so that a
single line decides nothing. The thresholds are for the paper's kind of model and corpus; a finding is a reason to look.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from dragoman.training.record import Record

Points = Sequence[tuple[float, float]]

# Lines of the journal below which a rule about a course has nothing to say.
_ENOUGH = 8


@dataclass(frozen=True)
class Finding:
    """One thing that goes wrong."""

    name: str
    seen: str
    """Numbers, with the steps that they are of."""
    means: str
    turn: str
    """Which knob, which way."""


Rule = Callable[[Record], Finding | None]


def diagnose(record: Record) -> list[Finding]:
    """All findings, the gravest first."""
    return [finding for rule in RULES if (finding := rule(record)) is not None]


def rate_too_high(record: Record) -> Finding | None:
    """The loss came down and went up again, and stays there; or it never left the neighbourhood of not knowing anything."""
    loss = record.points("train", "loss")
    if len(loss) < _ENOUGH:
        return None
    quarters = _quarters(loss)
    lowest, last = min(quarters), quarters[-1]
    warmup = record.recipe.training.warmup_steps
    rate = record.points("train", "rate")
    turn = f"{_rate_knob(record)} (the rate is {rate[-1][1]:.2g})" if rate else _rate_knob(record)
    if last > lowest + max(0.2, 0.05 * lowest):
        return Finding(
            "rate too high",
            f"the training loss was {lowest:.2f} and is {last:.2f} (mean of steps {_steps(_last_quarter(loss))})",
            "the learning rate is too high for this model and batch, or bad text came up",
            f"{turn}; training.warmup_steps longer; training.clip_norm = 1.0; model.norm = 'pre'",
        )
    uniform = record.about.get("uniform_loss") or math.log(record.recipe.subword.vocabulary_size)
    if loss[-1][0] > warmup and last > 0.6 * uniform and quarters[1] - last < 0.02 * uniform:
        return Finding(
            "rate too high",
            f"the training loss is {last:.2f} since step {_second_half(loss)[0][0]:,.0f} and no longer falls, though warm-up "
            f"ended at step {warmup:,}; a model that knows nothing has ln V = {uniform:.2f}",
            "the model has learnt how frequent words are and nothing else: the rate was too high, or source and target do not "
            "belong together line by line",
            f"{turn}; training.warmup_steps longer; model.norm = 'pre'; compare some lines of both sides of the corpus",
        )
    return None


def gradient_spikes(record: Record) -> Finding | None:
    """Norms far above their usual size, again and again."""
    norms = [point for point in record.points("train", "gradient_norm") if point[0] > record.recipe.training.warmup_steps]
    if len(norms) < _ENOUGH:
        return None
    usual = median(value for _, value in norms)
    spikes = [point for point in norms if point[1] > 10.0 * usual]
    if len(spikes) < max(2, 0.02 * len(norms)):
        return None
    step, highest = max(spikes, key=lambda point: point[1])
    return Finding(
        "gradient spikes",
        f"{len(spikes)} of {len(norms)} lines after warm-up have a gradient norm over ten times the usual {usual:.2g}; the "
        f"highest is {highest:.3g} at step {step:,.0f}",
        "single batches pull the weights out of all proportion: the rate is at its limit, or some lines of the corpus are junk",
        f"training.clip_norm = {_round(2.0 * usual)}, or training.spike_limit = 6; {_rate_knob(record)}; clean the corpus "
        "(data.cleaning)",
    )


def skipped_steps(record: Record) -> Finding | None:
    """More than single steps were left out."""
    skipped = record.points("train", "skipped")
    restored = [entry for entry in record.events if entry.get("event") == "restored"]
    if not skipped or (skipped[-1][1] < max(2, 0.001 * skipped[-1][0]) and not restored):
        return None
    step, count = skipped[-1]
    back = f", and the run went back to a checkpoint {len(restored)} times" if restored else ""
    return Finding(
        "skipped steps",
        f"{count:,.0f} of {step:,.0f} steps were left out{back}",
        "their loss or gradient was not a finite number, or far out of proportion",
        f"{_rate_knob(record)}; training.clip_norm = 1.0"
        + ("; training.precision = 'float32', to see whether it is the cause" if _is_low_precision(record) else ""),
    )


def overfits(record: Record) -> Finding | None:
    """Validation got worse for some time while training got better."""
    valid = record.points("valid", "nll")
    if len(valid) < 3:
        return None
    best_step, best = min(valid, key=lambda point: point[1])
    since = [point for point in valid if point[0] > best_step]
    training = record.points("train", "loss")
    before = [value for step, value in training if step <= best_step][-5:]
    after = [value for _, value in training[-5:]]
    if len(since) < 2 or since[-1][1] < best + 0.02 or not before or fmean(after) >= fmean(before):
        return None
    epochs = record.points("train", "epoch")
    seen = f" after {epochs[-1][1]:.1f} passes over the corpus" if epochs else ""
    return Finding(
        "overfits",
        f"validation was best at step {best_step:,.0f} ({best:.3f} nats per token) and is {since[-1][1]:.3f} at step "
        f"{since[-1][0]:,.0f}, while training went from {fmean(before):.3f} to {fmean(after):.3f}{seen}",
        "the model learns its corpus by heart",
        f"training.patience = {len(since)} to end there; training.average = 'best'; model.residual_dropout above "
        f"{record.recipe.model.residual_dropout:g}; a smaller model or more text",
    )


def no_progress(record: Record) -> Finding | None:
    """Neither training nor validation got any better over the last half, though the budget goes on."""
    loss = record.points("train", "loss")
    if len(loss) < 2 * _ENOUGH or loss[-1][0] <= record.recipe.training.warmup_steps:
        return None
    quarters = _quarters(loss)
    gained = quarters[1] - quarters[3]
    valid = record.points("valid", "nll")
    middle = _second_half(loss)[0][0]
    better = min((value for step, value in valid if step < middle), default=math.inf) - min(
        (value for step, value in valid if step >= middle), default=math.inf
    )
    if not abs(gained) < 0.005 * quarters[1] or better > 0.002 or overfits(record) or rate_too_high(record):
        return None
    return Finding(
        "no progress",
        f"the training loss was {quarters[1]:.3f} and is {quarters[3]:.3f} (means of steps {_steps(_quarter(loss, 1))} and "
        f"{_steps(_last_quarter(loss))})",
        "the run has learnt what it can at this rate",
        "end it (training.patience); let the rate fall to zero at the end (training.cooldown = 0.2); a larger model learns on",
    )


def ends_in_warmup(record: Record) -> Finding | None:
    """The budget is spent before the rate has reached its height."""
    training = record.recipe.training
    last = record.train[-1] if record.train else None
    end = float(training.max_steps)
    if last is not None and last["share_spent"] > 0.0 and last["step"] >= 100:
        end = min(end, last["step"] / last["share_spent"])
    if end > 1.5 * training.warmup_steps:
        return None
    return Finding(
        "warm-up too long",
        f"the budget ends at step {end:,.0f} or so, and the rate grows until step {training.warmup_steps:,}",
        "most of the run has a rate that is lower than it should be",
        f"training.warmup_steps = {max(1, round(end / 10))}, or a larger budget",
    )


def small_epochs(record: Record) -> Finding | None:
    """An epoch of a few steps only, or very many epochs."""
    epochs = record.points("train", "epoch")
    if len(epochs) < 2 or epochs[-1][1] <= epochs[0][1]:
        return None
    steps = (epochs[-1][0] - epochs[0][0]) / (epochs[-1][1] - epochs[0][1])
    training = record.recipe.training
    if steps < 10:
        return Finding(
            "few batches",
            f"an epoch is {steps:.1f} steps (batch_tokens = {training.batch_tokens}, accumulation = {training.accumulation})",
            "so few steps see the whole corpus that there is little to learn from one to the next",
            "training.batch_tokens or training.accumulation lower, or more text",
        )
    if epochs[-1][1] > 100:
        return Finding(
            "corpus exhausted",
            f"the corpus was seen {epochs[-1][1]:.0f} times by step {epochs[-1][0]:,.0f}",
            "after so many passes there is little left in it to learn",
            "end the run (training.patience, training.max_epochs), or add text: more corpora, subword.sampling = 0.1",
        )
    return None


def waits_for_data(record: Record) -> Finding | None:
    """More than a twentieth of the time goes by without a batch to train on."""
    waiting = _second_half(record.points("train", "waiting"))
    if len(waiting) < 2 or fmean(value for _, value in waiting) <= 0.05:
        return None
    loaders = record.recipe.data.loaders
    return Finding(
        "waits for data",
        f"{fmean(value for _, value in waiting):.0%} of the time of steps {_steps(waiting)} was spent waiting for batches",
        "making batches is slower than training on them",
        f"data.loaders = {max(1, 2 * loaders)} (it is {loaders}); put the run folder on a local disk",
    )


def memory_grows(record: Record) -> Finding | None:
    """Memory rises from quarter to quarter, beyond what caches take at the start."""
    memory = record.points("train", "memory_mib")
    if len(memory) < 2 * _ENOUGH or memory[-1][0] < 500:
        return None
    # The first quarter does not count, nor what slows down: caches fill.
    second, third, fourth = (median(value for _, value in _quarter(memory, number)) for number in (1, 2, 3))
    if fourth - third < max(0.5 * (third - second), 50.0) or third <= second or fourth < 1.1 * second:
        return None
    steps = _last_quarter(memory)[0][0] - _quarter(memory, 1)[0][0]
    return Finding(
        "memory grows",
        f"{second:,.0f}, {third:,.0f}, {fourth:,.0f} MiB (medians of the last three quarters, to step {memory[-1][0]:,.0f}): "
        f"{1000.0 * (fourth - second) / steps:,.0f} MiB in a thousand steps",
        "something is kept that should not be; the run may be killed for it",
        "the same command goes on after a kill; try data.loaders = 0, training.compile = false, a lower training.batch_tokens, "
        "and report it if it stays",
    )


def short_of_memory(record: Record) -> Finding | None:
    """Batches had to be split."""
    events = [entry for entry in record.events if entry.get("event") == "memory"]
    if not events:
        return None
    return Finding(
        "short of memory",
        f"{len(events)} times, last at step {events[-1]['step']:,}: {events[-1].get('text', '')}",
        "the largest batches do not fit, and are split, which takes time",
        f"training.batch_tokens below {record.recipe.training.batch_tokens}, and training.accumulation higher for equal steps",
    )


def checkpoints_fail(record: Record) -> Finding | None:
    """The last attempts to keep the state failed, or what was kept is damaged."""
    kept = [entry for entry in record.events if entry.get("event") in ("checkpoint", "unsaved")]
    failed = [entry for entry in kept if entry.get("event") == "unsaved"]
    if kept and kept[-1].get("event") == "unsaved":
        good = [entry for entry in kept if entry.get("event") == "checkpoint"]
        since = f"the last good one is of step {good[-1]['step']:,}" if good else "none was kept so far"
        return Finding(
            "checkpoints fail",
            f"{len(failed)} failed; {since}; step {failed[-1]['step']:,}: {failed[-1].get('text', '')}",
            "what is learnt since would be lost",
            "make room on the disk, or training.keep_last and training.keep_best lower; the run tries again by itself",
        )
    if record.damaged:
        return Finding(
            "damaged checkpoints",
            f"{len(record.damaged)} set aside: {', '.join(record.damaged[:3])}",
            "files changed after they were written: a failing disk or memory, or another program",
            "check the disk; remove them when nobody wants to look at them any more",
        )
    return None


def slow(record: Record) -> Finding | None:
    """Far below what this machine reaches in matrix products alone, small products taken into account."""
    ceiling = _second_half(record.points("train", "ceiling"))
    expected = 0.25 * min(1.0, record.recipe.model.d_model / 512)
    if len(ceiling) < 2 or (share := median(value for _, value in ceiling)) >= expected:
        return None
    training = record.recipe.training
    turns = [f"training.batch_tokens above {training.batch_tokens}"]
    turns += ["training.precision = 'auto'"] if training.precision == "float32" else []
    turns += [] if training.compile else ["training.compile = true"]
    return Finding(
        "slow",
        f"{share:.0%} of the machine's measured ceiling in steps {_steps(ceiling)}",
        "batches are too small to keep this machine busy, or other programs are at work on it",
        "; ".join(turns),
    )


def padded(record: Record) -> Finding | None:
    """Much of what is computed is padding."""
    padding = _second_half(record.points("train", "padding"))
    if len(padding) < 2 or fmean(value for _, value in padding) <= 0.2:
        return None
    return Finding(
        "padding",
        f"{fmean(value for _, value in padding):.0%} of the places in the batches of steps {_steps(padding)} hold no token",
        "batches hold pairs of very different lengths: few pairs to choose from, or sides that do not fit each other",
        "data.cleaning.max_ratio = 3; data.max_length lower; more text, so that pairs of one length are found",
    )


def died(record: Record) -> Finding | None:
    """The journal ends before the run does."""
    if record.state != "silent":
        return None
    step = f"step {record.train[-1]['step']:,}" if record.train else "its first line"
    return Finding(
        "silent",
        f"nothing was written for {record.quiet_seconds / 60:,.0f} minutes, after {step}",
        "the process was killed, hangs, or has lost its disk",
        "look whether it still runs; if not, the same command goes on from the newest checkpoint",
    )


RULES: tuple[Rule, ...] = (
    died, checkpoints_fail, rate_too_high, skipped_steps, gradient_spikes, overfits, ends_in_warmup, no_progress, small_epochs,
    memory_grows, short_of_memory, waits_for_data, padded, slow,
)  # fmt: skip


def _quarter(points: Points, number: int) -> Points:
    size = len(points) / 4
    return points[round(number * size) : round((number + 1) * size)]


def _last_quarter(points: Points) -> Points:
    return _quarter(points, 3)


def _second_half(points: Points) -> Points:
    return points[len(points) // 2 :]


def _quarters(points: Points) -> list[float]:
    return [fmean(value for _, value in _quarter(points, number)) for number in range(4)]


def _steps(points: Points) -> str:
    return f"{points[0][0]:,.0f} to {points[-1][0]:,.0f}"


def _round(value: float) -> str:
    """To one digit, which is all that such a number is worth."""
    return f"{float(f'{value:.1g}'):g}"


def _rate_knob(record: Record) -> str:
    training = record.recipe.training
    if training.schedule == "paper":
        return f"training.rate_factor = {training.rate_factor / 2:g}"
    return f"training.peak_rate = {training.peak_rate / 2:g}"


def _is_low_precision(record: Record) -> bool:
    return "bfloat16" in str(record.about.get("machine", record.recipe.training.precision))

"""What goes wrong in a run, told from its record: what is seen, what that probably means, and which knob to turn.

Each rule looks at one thing and answers with a finding or with none; those about the machine are in `upkeep`. Means are over
quarters of the journal's lines, so that a single line decides nothing. The thresholds are for the paper's kind of model and
corpus; a finding is a reason to look.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import fmean, median

from dragoman.training.finding import ENOUGH, Finding
from dragoman.training.monitoring.run_status import Record, means_of_quarters, quarter, second_half, steps_of
from dragoman.training.upkeep import (
    checkpoints_fail,
    died,
    memory_grows,
    padded,
    short_of_memory,
    slow,
    waits_for_data,
)

Rule = Callable[[Record], Finding | None]


def diagnose(record: Record) -> list[Finding]:
    """All findings, the gravest first."""
    return [finding for rule in RULES if (finding := rule(record)) is not None]


def rate_too_high(record: Record) -> Finding | None:
    """The loss came down and went up again, and stays there; or it never left the neighbourhood of not knowing anything."""
    loss = record.points("train", "loss")
    if len(loss) < ENOUGH:
        return None
    quarters = means_of_quarters(loss)
    lowest, last = min(quarters), quarters[-1]
    warmup = record.recipe.training.warmup_steps
    rate = record.points("train", "rate")
    at = f", at a rate of {rate[-1][1]:.2g}" if rate else ""
    if last > lowest + max(0.2, 0.05 * lowest):
        return Finding(
            "rate too high",
            f"the training loss was {lowest:.2f} and is {last:.2f} (mean of steps {steps_of(quarter(loss, 3))}){at}",
            "the learning rate is too high for this model and batch, or bad text came up",
            _calmer(record),
        )
    uniform = record.about.get("uniform_loss") or math.log(record.recipe.tokenizer.vocab_size)
    if loss[-1][0] > warmup and last > 0.6 * uniform and quarters[1] - last < 0.02 * uniform:
        return Finding(
            "rate too high",
            f"the training loss is {last:.2f} since step {second_half(loss)[0][0]:,.0f} and no longer falls, though warm-up "
            f"ended at step {warmup:,}; a model that knows nothing has ln V = {uniform:.2f}{at}",
            "the model has learnt how frequent words are and nothing else: the rate was too high, or source and target do not "
            "belong together line by line",
            f"{_calmer(record)}; compare some lines of both sides of the corpus",
        )
    return None


def ignores_source(record: Record) -> Finding | None:
    """Targets are as likely with the source of another sentence as with their own."""
    own_source, shuffled = record.points("valid", "nll_own_source"), dict(record.points("valid", "nll_shuffled_source"))
    if not own_source or own_source[-1][0] not in shuffled:
        return None
    step, own = own_source[-1]
    other = shuffled[step]
    passes = max((epoch for at, epoch in record.points("train", "epoch") if at <= step), default=0.0)
    if passes < 2.0 or other - own > 0.02 * own:
        return None
    parses = record.recipe.task.kind == "parsing"
    pointer = "model.pointer = true; " if parses and not record.recipe.model.pointer else ""
    return Finding(
        "ignores the source",
        f"at step {step:,.0f}, after {passes:.1f} passes over the corpus, validation has {own:.3f} nats per token, and "
        f"{other:.3f} with the sources of other sentences as long",
        "the model has learnt what targets are like and does not look at its source: too little text for it to find out where "
        "to look, too high a rate, or sides that do not belong together",
        f"{pointer}{_calmer(record)}; compare some lines of both sides of the corpus",
    )


def gradient_spikes(record: Record) -> Finding | None:
    """Norms far above their usual size, again and again."""
    norms = [point for point in record.points("train", "gradient_norm") if point[0] > record.recipe.training.warmup_steps]
    if len(norms) < ENOUGH or rate_too_high(record):
        return None
    # By their neighbours, since norms fall in the course of a run.
    around = [norms[max(0, index - ENOUGH) : index + ENOUGH + 1] for index in range(len(norms))]
    spikes = [point for point, many in zip(norms, around, strict=True) if point[1] > 10.0 * median(norm for _, norm in many)]
    if len(spikes) < max(2, 0.02 * len(norms)):
        return None
    usual = median(norm for _, norm in norms)
    step, highest = max(spikes, key=lambda point: point[1])
    clip = float(f"{2.0 * usual:.1g}")
    return Finding(
        "gradient spikes",
        f"{len(spikes)} of {len(norms)} lines after warm-up have a gradient norm over ten times that of the lines around them, "
        f"usually {usual:.2g}; the highest is {highest:.3g} at step {step:,.0f}",
        "single batches pull the weights out of all proportion: the rate is at its limit, or some lines of the corpus are junk",
        f"training.clip_norm = {clip:g}, or training.grad_norm_spike_sigma = 6; {_rate_knob(record)}; clean the corpus (data.cleaning)",
    )


def skipped_steps(record: Record) -> Finding | None:
    """More than single steps were left out."""
    told = [entry["step"] for entry in record.events if entry.get("event") == "skipped"]
    restored = [entry for entry in record.events if entry.get("event") == "restored"]
    # A run that ends within its first line has told of them by events alone.
    counts = [(0, 0), *record.points("train", "skipped"), *zip(told, range(1, len(told) + 1), strict=True)]
    step, count = (max(values) for values in zip(*counts, strict=True))
    if count < max(2, 0.001 * step) and not restored:
        return None
    back = f", and the run went back to a checkpoint {len(restored)} times" if restored else ""
    low = "bfloat16" in str(record.about.get("machine", ""))
    return Finding(
        "skipped steps",
        f"{count:,.0f} of {step:,.0f} steps were left out{back}",
        "their loss or gradient was not a finite number, or far out of proportion",
        _calmer(record) + ("; training.precision = 'float32', to see whether it is the cause" if low else ""),
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
    course = (
        f"validation was best at step {best_step:,.0f} ({best:.3f} nats per token) and is {since[-1][1]:.3f} at step "
        f"{since[-1][0]:,.0f}, while training went from {fmean(before):.3f} to {fmean(after):.3f}{seen}"
    )
    if epochs and epochs[-1][1] <= 1.0:
        return Finding(
            "validation gets worse",
            course,
            "the text of validation is of another kind than the corpus, of which nothing was seen twice as yet",
            "compare some lines of data.valid with the corpus; more text of its kind; training.checkpoint_averaging = 'best'",
        )
    return Finding(
        "overfits",
        course,
        "the model learns its corpus by heart",
        f"training.patience = {min(len(since), 3)} to end soon after; training.checkpoint_averaging = 'best'; model.residual_dropout above "
        f"{record.recipe.model.residual_dropout:g}; a smaller model or more text",
    )


def no_progress(record: Record) -> Finding | None:
    """Neither training nor validation got any better over the last half, though the budget goes on."""
    loss = record.points("train", "loss")
    if len(loss) < 2 * ENOUGH or loss[-1][0] <= record.recipe.training.warmup_steps:
        return None
    quarters = means_of_quarters(loss)
    gained = quarters[1] - quarters[3]
    valid = record.points("valid", "nll")
    middle = second_half(loss)[0][0]
    better = min((value for step, value in valid if step < middle), default=math.inf) - min(
        (value for step, value in valid if step >= middle), default=math.inf
    )
    if not abs(gained) < 0.005 * quarters[1] or better > 0.002 or overfits(record) or rate_too_high(record):
        return None
    return Finding(
        "no progress",
        f"the training loss was {quarters[1]:.3f} and is {quarters[3]:.3f} (means of steps {steps_of(quarter(loss, 1))} and "
        f"{steps_of(quarter(loss, 3))})",
        "the run has learnt what it can at this rate",
        "end it (training.patience); let the rate fall to zero at the end (training.lr_decay_ratio = 0.2); a larger model learns on",
    )


def ends_in_warmup(record: Record) -> Finding | None:
    """The budget is spent before the rate has reached its height."""
    training = record.recipe.training
    end = float(training.max_steps)
    if record.train and (last := record.train[-1])["share_spent"] > 0.0 and last["step"] >= 100:
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
            f"an epoch is {steps:.1f} steps (batch_tokens = {training.batch_tokens}, batches_per_update = {training.batches_per_update})",
            "so few steps see the whole corpus that there is little to learn from one to the next",
            f"training.{'batches_per_update' if training.batches_per_update > 1 else 'batch_tokens'} lower, or more text",
        )
    if epochs[-1][1] > 100:
        return Finding(
            "corpus exhausted",
            f"the corpus was seen {epochs[-1][1]:.0f} times by step {epochs[-1][0]:,.0f}",
            "after so many passes there is little left in it to learn",
            "end the run (training.patience, training.max_epochs), or add text: more corpora, tokenizer.sampling_alpha = 0.1",
        )
    return None


RULES: tuple[Rule, ...] = (
    died, checkpoints_fail, rate_too_high, ignores_source, skipped_steps, gradient_spikes, overfits, ends_in_warmup,
    no_progress, small_epochs, memory_grows, short_of_memory, waits_for_data, padded, slow,
)  # fmt: skip


def _rate_knob(record: Record) -> str:
    """Half the rate, or the paper's for this width and warm-up where that is lower."""
    training = record.recipe.training
    if training.schedule == "noam":
        return f"training.lr_factor = {min(training.lr_factor / 2, 1.0):.2g}"
    paper = (record.recipe.model.d_model * training.warmup_steps) ** -0.5
    return f"training.peak_lr = {min(training.peak_lr / 2, paper):.2g}"


def _calmer(record: Record) -> str:
    """What keeps updates in proportion, as far as it is not in use."""
    training = record.recipe.training
    turns = [_rate_knob(record), "training.warmup_steps longer"]
    turns += ["training.clip_norm = 1.0"] if training.clip_norm is None else []
    turns += ["model.norm = 'pre'"] if record.recipe.model.norm == "post" else []
    return "; ".join(turns)

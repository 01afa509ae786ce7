"""What goes wrong in a run, told from its record: what is seen, what that probably means, and which knob to turn.

Each rule looks at one thing and answers with a finding or with none; those about the machine are in `upkeep`. Means are over
quarters of the journal's lines, so that a single line decides nothing. The thresholds are for the paper's kind of model and
corpus; a finding is a reason to look.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import fmean, median

from dragoman.training.finding import MIN_LOG_LINES, Diagnosis
from dragoman.training.monitoring.run_status import (
    RunStatus,
    compute_quarter_means,
    format_step_range,
    select_quarter,
    select_second_half,
)
from dragoman.training.upkeep import (
    diagnose_data_wait,
    diagnose_dead_run,
    diagnose_failed_checkpoints,
    diagnose_low_mfu,
    diagnose_memory_growth,
    diagnose_out_of_memory,
    diagnose_padding,
)

Rule = Callable[[RunStatus], Diagnosis | None]


def diagnose(status: RunStatus) -> list[Diagnosis]:
    """All findings, the gravest first."""
    return [diagnosis for rule in DIAGNOSTIC_RULES if (diagnosis := rule(status)) is not None]


def diagnose_high_lr(status: RunStatus) -> Diagnosis | None:
    """The loss came down and went up again, and stays there; or it never left the neighbourhood of not knowing anything."""
    loss = status.points("train", "loss")
    if len(loss) < MIN_LOG_LINES:
        return None
    quarters = compute_quarter_means(loss)
    lowest, last = min(quarters), quarters[-1]
    warmup = status.recipe.training.warmup_steps
    lr_points = status.points("train", "rate")
    lr_note = f", at a rate of {lr_points[-1][1]:.2g}" if lr_points else ""
    if last > lowest + max(0.2, 0.05 * lowest):
        return Diagnosis(
            "rate too high",
            f"the training loss was {lowest:.2f} and is {last:.2f} (mean of steps {format_step_range(select_quarter(loss, 3))}){lr_note}",
            "the learning rate is too high for this model and batch, or bad text came up",
            _suggest_stabilizers(status),
        )
    uniform = status.run_info.get("uniform_loss") or math.log(status.recipe.tokenizer.vocab_size)
    if loss[-1][0] > warmup and last > 0.6 * uniform and quarters[1] - last < 0.02 * uniform:
        return Diagnosis(
            "rate too high",
            f"the training loss is {last:.2f} since step {select_second_half(loss)[0][0]:,.0f} and no longer falls, though warm-up "
            f"ended at step {warmup:,}; a model that knows nothing has ln V = {uniform:.2f}{lr_note}",
            "the model has learnt how frequent words are and nothing else: the rate was too high, or source and target do not "
            "belong together line by line",
            f"{_suggest_stabilizers(status)}; compare some lines of both sides of the corpus",
        )
    return None


def diagnose_ignored_source(status: RunStatus) -> Diagnosis | None:
    """Targets are as likely with the source of another sentence as with their own."""
    own_nll_points, shuffled_nll = status.points("valid", "nll_own_source"), dict(status.points("valid", "nll_shuffled_source"))
    if not own_nll_points or own_nll_points[-1][0] not in shuffled_nll:
        return None
    step, own_nll = own_nll_points[-1]
    other_nll = shuffled_nll[step]
    epochs_seen = max((epoch for epoch_step, epoch in status.points("train", "epoch") if epoch_step <= step), default=0.0)
    if epochs_seen < 2.0 or other_nll - own_nll > 0.02 * own_nll:
        return None
    is_parsing = status.recipe.task.kind == "parsing"
    pointer_remedy = "model.pointer = true; " if is_parsing and not status.recipe.model.pointer else ""
    return Diagnosis(
        "ignores the source",
        f"at step {step:,.0f}, after {epochs_seen:.1f} passes over the corpus, validation has {own_nll:.3f} nats per token, and "
        f"{other_nll:.3f} with the sources of other sentences as long",
        "the model has learnt what targets are like and does not look at its source: too little text for it to find out where "
        "to look, too high a rate, or sides that do not belong together",
        f"{pointer_remedy}{_suggest_stabilizers(status)}; compare some lines of both sides of the corpus",
    )


def diagnose_gradient_spikes(status: RunStatus) -> Diagnosis | None:
    """Norms far above their usual size, again and again."""
    norms = [point for point in status.points("train", "gradient_norm") if point[0] > status.recipe.training.warmup_steps]
    if len(norms) < MIN_LOG_LINES or diagnose_high_lr(status):
        return None
    # By their neighbours, since norms fall in the course of a run.
    neighbors = [norms[max(0, index - MIN_LOG_LINES) : index + MIN_LOG_LINES + 1] for index in range(len(norms))]
    spikes = [
        point
        for point, neighborhood in zip(norms, neighbors, strict=True)
        if point[1] > 10.0 * median(norm for _, norm in neighborhood)
    ]
    if len(spikes) < max(2, 0.02 * len(norms)):
        return None
    typical_norm = median(norm for _, norm in norms)
    step, highest = max(spikes, key=lambda point: point[1])
    clip = float(f"{2.0 * typical_norm:.1g}")
    return Diagnosis(
        "gradient spikes",
        f"{len(spikes)} of {len(norms)} lines after warm-up have a gradient norm over ten times that of the lines around them, "
        f"usually {typical_norm:.2g}; the highest is {highest:.3g} at step {step:,.0f}",
        "single batches pull the weights out of all proportion: the rate is at its limit, or some lines of the corpus are junk",
        f"training.clip_norm = {clip:g}, or training.grad_norm_spike_sigma = 6; {_suggest_lr(status)}; clean the corpus (data.cleaning)",
    )


def diagnose_skipped_steps(status: RunStatus) -> Diagnosis | None:
    """More than single steps were left out."""
    skip_event_steps = [entry["step"] for entry in status.events if entry.get("event") == "skipped"]
    rollbacks = [entry for entry in status.events if entry.get("event") == "restored"]
    # A run that ends within its first line has told of them by events alone.
    counts = [
        (0, 0),
        *status.points("train", "skipped"),
        *zip(skip_event_steps, range(1, len(skip_event_steps) + 1), strict=True),
    ]
    step, count = (max(values) for values in zip(*counts, strict=True))
    if count < max(2, 0.001 * step) and not rollbacks:
        return None
    rollback_note = f", and the run went back to a checkpoint {len(rollbacks)} times" if rollbacks else ""
    is_bfloat16 = "bfloat16" in str(status.run_info.get("machine", ""))
    return Diagnosis(
        "skipped steps",
        f"{count:,.0f} of {step:,.0f} steps were left out{rollback_note}",
        "their loss or gradient was not a finite number, or far out of proportion",
        _suggest_stabilizers(status)
        + ("; training.precision = 'float32', to see whether it is the cause" if is_bfloat16 else ""),
    )


def diagnose_overfitting(status: RunStatus) -> Diagnosis | None:
    """Validation got worse for some time while training got better."""
    valid = status.points("valid", "nll")
    if len(valid) < 3:
        return None
    best_step, best_nll = min(valid, key=lambda point: point[1])
    points_since_best = [point for point in valid if point[0] > best_step]
    training = status.points("train", "loss")
    losses_before = [value for step, value in training if step <= best_step][-5:]
    losses_after = [value for _, value in training[-5:]]
    if (
        len(points_since_best) < 2
        or points_since_best[-1][1] < best_nll + 0.02
        or not losses_before
        or fmean(losses_after) >= fmean(losses_before)
    ):
        return None
    epochs = status.points("train", "epoch")
    epochs_note = f" after {epochs[-1][1]:.1f} passes over the corpus" if epochs else ""
    evidence = (
        f"validation was best at step {best_step:,.0f} ({best_nll:.3f} nats per token) and is {points_since_best[-1][1]:.3f} at step "
        f"{points_since_best[-1][0]:,.0f}, while training went from {fmean(losses_before):.3f} to {fmean(losses_after):.3f}{epochs_note}"
    )
    if epochs and epochs[-1][1] <= 1.0:
        return Diagnosis(
            "validation gets worse",
            evidence,
            "the text of validation is of another kind than the corpus, of which nothing was seen twice as yet",
            "compare some lines of data.valid with the corpus; more text of its kind; training.checkpoint_averaging = 'best'",
        )
    return Diagnosis(
        "overfits",
        evidence,
        "the model learns its corpus by heart",
        f"training.patience = {min(len(points_since_best), 3)} to end soon after; training.checkpoint_averaging = 'best'; model.residual_dropout above "
        f"{status.recipe.model.residual_dropout:g}; a smaller model or more text",
    )


def diagnose_no_progress(status: RunStatus) -> Diagnosis | None:
    """Neither training nor validation got any better over the last half, though the budget goes on."""
    loss = status.points("train", "loss")
    if len(loss) < 2 * MIN_LOG_LINES or loss[-1][0] <= status.recipe.training.warmup_steps:
        return None
    quarters = compute_quarter_means(loss)
    loss_decrease = quarters[1] - quarters[3]
    valid = status.points("valid", "nll")
    middle_step = select_second_half(loss)[0][0]
    nll_decrease = min((value for step, value in valid if step < middle_step), default=math.inf) - min(
        (value for step, value in valid if step >= middle_step), default=math.inf
    )
    if (
        not abs(loss_decrease) < 0.005 * quarters[1]
        or nll_decrease > 0.002
        or diagnose_overfitting(status)
        or diagnose_high_lr(status)
    ):
        return None
    return Diagnosis(
        "no progress",
        f"the training loss was {quarters[1]:.3f} and is {quarters[3]:.3f} (means of steps {format_step_range(select_quarter(loss, 1))} and "
        f"{format_step_range(select_quarter(loss, 3))})",
        "the run has learnt what it can at this rate",
        "end it (training.patience); let the rate fall to zero at the end (training.lr_decay_ratio = 0.2); a larger model learns on",
    )


def diagnose_long_warmup(status: RunStatus) -> Diagnosis | None:
    """The budget is spent before the rate has reached its height."""
    training = status.recipe.training
    final_step = float(training.max_steps)
    if status.train and (last := status.train[-1])["share_spent"] > 0.0 and last["step"] >= 100:
        final_step = min(final_step, last["step"] / last["share_spent"])
    if final_step > 1.5 * training.warmup_steps:
        return None
    return Diagnosis(
        "warm-up too long",
        f"the budget ends at step {final_step:,.0f} or so, and the rate grows until step {training.warmup_steps:,}",
        "most of the run has a rate that is lower than it should be",
        f"training.warmup_steps = {max(1, round(final_step / 10))}, or a larger budget",
    )


def diagnose_small_epochs(status: RunStatus) -> Diagnosis | None:
    """An epoch of a few steps only, or very many epochs."""
    epochs = status.points("train", "epoch")
    if len(epochs) < 2 or epochs[-1][1] <= epochs[0][1]:
        return None
    steps_per_epoch = (epochs[-1][0] - epochs[0][0]) / (epochs[-1][1] - epochs[0][1])
    training = status.recipe.training
    if steps_per_epoch < 10:
        return Diagnosis(
            "few batches",
            f"an epoch is {steps_per_epoch:.1f} steps (batch_tokens = {training.batch_tokens}, batches_per_update = {training.batches_per_update})",
            "so few steps see the whole corpus that there is little to learn from one to the next",
            f"training.{'batches_per_update' if training.batches_per_update > 1 else 'batch_tokens'} lower, or more text",
        )
    if epochs[-1][1] > 100:
        return Diagnosis(
            "corpus exhausted",
            f"the corpus was seen {epochs[-1][1]:.0f} times by step {epochs[-1][0]:,.0f}",
            "after so many passes there is little left in it to learn",
            "end the run (training.patience, training.max_epochs), or add text: more corpora, tokenizer.sampling_alpha = 0.1",
        )
    return None


DIAGNOSTIC_RULES: tuple[Rule, ...] = (
    diagnose_dead_run, diagnose_failed_checkpoints, diagnose_high_lr, diagnose_ignored_source, diagnose_skipped_steps, diagnose_gradient_spikes, diagnose_overfitting, diagnose_long_warmup,
    diagnose_no_progress, diagnose_small_epochs, diagnose_memory_growth, diagnose_out_of_memory, diagnose_data_wait, diagnose_padding, diagnose_low_mfu,
)  # fmt: skip


def _suggest_lr(status: RunStatus) -> str:
    """Half the rate, or the paper's for this width and warm-up where that is lower."""
    training = status.recipe.training
    if training.schedule == "noam":
        return f"training.lr_factor = {min(training.lr_factor / 2, 1.0):.2g}"
    paper_lr = (status.recipe.model.d_model * training.warmup_steps) ** -0.5
    return f"training.peak_lr = {min(training.peak_lr / 2, paper_lr):.2g}"


def _suggest_stabilizers(status: RunStatus) -> str:
    """What keeps updates in proportion, as far as it is not in use."""
    training = status.recipe.training
    remedies = [_suggest_lr(status), "training.warmup_steps longer"]
    remedies += ["training.clip_norm = 1.0"] if training.clip_norm is None else []
    remedies += ["model.norm = 'pre'"] if status.recipe.model.norm == "post" else []
    return "; ".join(remedies)

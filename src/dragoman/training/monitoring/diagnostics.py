"""Diagnoses of a run from its metrics log: evidence, probable cause, and the recipe key to change.

Each rule checks one thing and returns a diagnosis or None. Means are over quarters of the log's lines, so a single line decides
nothing. The thresholds fit the paper's models and corpora. A diagnosis is a reason for an inspection, not a proof.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, median

from dragoman.runtime.counts import format_count
from dragoman.training.monitoring.run_status import (
    RunStatus,
    compute_quarter_means,
    format_step_range,
    select_quarter,
    select_second_half,
)

# A rule about the course of a run needs at least this many lines.
MIN_LOG_LINES = 8


@dataclass(frozen=True)
class Diagnosis:
    """A problem of a run."""

    name: str
    evidence: str
    """Numbers, with the steps where they were measured."""
    cause: str
    remedy: str
    """Recipe keys with their new values."""


Rule = Callable[[RunStatus], Diagnosis | None]


def diagnose(status: RunStatus) -> list[Diagnosis]:
    """Return all diagnoses, the most serious first."""
    return [diagnosis for rule in DIAGNOSTIC_RULES if (diagnosis := rule(status)) is not None]


def diagnose_high_lr(status: RunStatus) -> Diagnosis | None:
    """Check for a loss that fell and rose again, or that stays near the loss of a uniform distribution."""
    loss = status.points("train", "loss")
    if len(loss) < MIN_LOG_LINES:
        return None
    quarters = compute_quarter_means(loss)
    lowest, last = min(quarters), quarters[-1]
    warmup = status.recipe.training.warmup_steps
    lr_points = status.points("train", "lr")
    lr_note = f", at a learning rate of {lr_points[-1][1]:.2g}" if lr_points else ""
    if last > lowest + max(0.2, 0.05 * lowest):
        return Diagnosis(
            "learning rate too high",
            f"the training loss was {lowest:.2f} and is {last:.2f} (mean of steps "
            f"{format_step_range(select_quarter(loss, 3))}){lr_note}",
            "the learning rate is too high for this model and batch, or some text is bad",
            _suggest_stabilizers(status),
        )
    uniform = status.run_info.get("uniform_loss") or math.log(status.recipe.tokenizer.vocab_size)
    if loss[-1][0] > warmup and last > 0.6 * uniform and quarters[1] - last < 0.02 * uniform:
        return Diagnosis(
            "learning rate too high",
            f"the training loss is {last:.2f} since step {select_second_half(loss)[0][0]:,.0f} and no longer falls, though "
            f"warm-up ended at step {warmup:,}; a uniform distribution has ln V = {uniform:.2f}{lr_note}",
            "the model has learned word frequencies only: the learning rate was too high, or the lines of source and target do "
            "not match",
            f"{_suggest_stabilizers(status)}; compare some lines of both sides of the corpus",
        )
    return None


def diagnose_ignored_source(status: RunStatus) -> Diagnosis | None:
    """Check whether targets are as likely with the source of another sentence as with their own."""
    own_nll_points, shuffled_nll = status.points("valid", "nll_own_source"), dict(status.points("valid", "nll_shuffled_source"))
    if not own_nll_points or own_nll_points[-1][0] not in shuffled_nll:
        return None
    step, own_nll = own_nll_points[-1]
    shuffled_source_nll = shuffled_nll[step]
    epochs_seen = max((epoch for epoch_step, epoch in status.points("train", "epoch") if epoch_step <= step), default=0.0)
    if epochs_seen < 2.0 or shuffled_source_nll - own_nll > 0.02 * own_nll:
        return None
    is_parsing = not status.recipe.task.has_text_target
    pointer_remedy = "model.pointer = true; " if is_parsing and not status.recipe.model.pointer else ""
    return Diagnosis(
        "ignores the source",
        f"at step {step:,.0f}, after {epochs_seen:.1f} passes over the corpus, validation has {own_nll:.3f} nats per "
        f"token, and {shuffled_source_nll:.3f} with the sources of other sentences of equal length",
        "the model has learned a language model of the target and does not attend to its source: too little text, too high a "
        "learning rate, or lines of source and target that do not match",
        f"{pointer_remedy}{_suggest_stabilizers(status)}; compare some lines of both sides of the corpus",
    )


def diagnose_gradient_spikes(status: RunStatus) -> Diagnosis | None:
    """Check for repeated gradient norms far above the usual size."""
    norms = [point for point in status.points("train", "gradient_norm") if point[0] > status.recipe.training.warmup_steps]
    if len(norms) < MIN_LOG_LINES or diagnose_high_lr(status):
        return None
    # Each norm is compared with those around it, since norms fall during a run.
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
        "single batches have far too large gradients: the learning rate is at its limit, or some lines of the corpus are bad",
        f"training.clip_norm = {clip:g}, or training.grad_norm_spike_sigma = 6; {_suggest_lr(status)}; clean the "
        "corpus (data.cleaning)",
    )


def diagnose_skipped_steps(status: RunStatus) -> Diagnosis | None:
    """Check for more than a few skipped steps."""
    skip_event_steps = [entry["step"] for entry in status.events_of_kind("skipped_steps")]
    rollbacks = status.events_of_kind("rolled_back")
    # A run that ends before its first "train" line has events alone.
    counts = [
        (0, 0),
        *status.points("train", "skipped_steps"),
        *zip(skip_event_steps, range(1, len(skip_event_steps) + 1), strict=True),
    ]
    step, count = (max(values) for values in zip(*counts, strict=True))
    if count < max(2, 0.001 * step) and not rollbacks:
        return None
    rollback_note = f", and the run was rolled back to a checkpoint {format_count(len(rollbacks), 'time')}" if rollbacks else ""
    is_bfloat16 = "bfloat16" in str(status.run_info.get("machine", ""))
    return Diagnosis(
        "skipped steps",
        f"{count:,.0f} of {step:,.0f} steps were skipped{rollback_note}",
        "their loss or gradient was not a finite number, or far above its usual size",
        _suggest_stabilizers(status)
        + ("; training.precision = 'float32', to see whether it is the cause" if is_bfloat16 else ""),
    )


def diagnose_overfitting(status: RunStatus) -> Diagnosis | None:
    """Check for a validation loss that rises while the training loss falls."""
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
        f"validation was best at step {best_step:,.0f} ({best_nll:.3f} nats per token) and is {points_since_best[-1][1]:.3f} "
        f"at step {points_since_best[-1][0]:,.0f}, while training went from {fmean(losses_before):.3f} to "
        f"{fmean(losses_after):.3f}{epochs_note}"
    )
    if epochs and epochs[-1][1] <= 1.0:
        return Diagnosis(
            "validation gets worse",
            evidence,
            "the validation text differs in kind from the corpus, because no pair was repeated yet",
            "compare some lines of data.valid with the corpus; more text of its kind; training.checkpoint_averaging = 'best'",
        )
    return Diagnosis(
        "overfits",
        evidence,
        "the model memorizes its corpus",
        f"training.patience = {min(len(points_since_best), 3)} to stop soon after the best; "
        "training.checkpoint_averaging = 'best'; model.residual_dropout above "
        f"{status.recipe.model.residual_dropout:g}; a smaller model or more text",
    )


def diagnose_no_progress(status: RunStatus) -> Diagnosis | None:
    """Check whether neither training nor validation improved over the last half of the log."""
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
    has_changed = abs(loss_decrease) >= 0.005 * quarters[1] or nll_decrease > 0.002
    if has_changed or diagnose_overfitting(status) or diagnose_high_lr(status):
        return None
    return Diagnosis(
        "no progress",
        f"the training loss was {quarters[1]:.3f} and is {quarters[3]:.3f} (means of steps "
        f"{format_step_range(select_quarter(loss, 1))} and {format_step_range(select_quarter(loss, 3))})",
        "the model has learned what it can at this learning rate",
        "stop early (training.patience); decay the learning rate to zero at the end (training.lr_decay_ratio = 0.2); "
        "use a larger model",
    )


def diagnose_long_warmup(status: RunStatus) -> Diagnosis | None:
    """Check whether the budget is spent before the learning rate reaches its peak."""
    training = status.recipe.training
    final_step = float(training.max_steps)
    if status.train and (last := status.train[-1])["progress"] > 0.0 and last["step"] >= 100:
        final_step = min(final_step, last["step"] / last["progress"])
    if final_step > 1.5 * training.warmup_steps:
        return None
    warmup_steps = max(1, round(final_step / 10))
    remedy = f"training.warmup_steps = {warmup_steps}"
    if training.schedule == "noam":  # its peak grows with a shorter warm-up
        lr_factor = training.lr_factor * (warmup_steps / training.warmup_steps) ** 0.5
        remedy += f" with training.lr_factor = {lr_factor:.2g}, which keeps the peak"
    return Diagnosis(
        "warm-up too long",
        f"the budget ends near step {final_step:,.0f}, and the learning rate grows until step {training.warmup_steps:,}",
        "most of the run has too low a learning rate",
        f"{remedy}; or a larger budget",
    )


def diagnose_small_epochs(status: RunStatus) -> Diagnosis | None:
    """Check for epochs of a few steps only, or for very many epochs."""
    epochs = status.points("train", "epoch")
    if len(epochs) < 2 or epochs[-1][1] <= epochs[0][1]:
        return None
    steps_per_epoch = (epochs[-1][0] - epochs[0][0]) / (epochs[-1][1] - epochs[0][1])
    training = status.recipe.training
    if steps_per_epoch < 10:
        return Diagnosis(
            "few batches",
            f"an epoch is {steps_per_epoch:.1f} steps (batch_tokens = {training.batch_tokens}, batches_per_update = "
            f"{training.batches_per_update})",
            "a step reads so much of the corpus that few updates are made",
            f"lower training.{'batches_per_update' if training.batches_per_update > 1 else 'batch_tokens'}, or add text",
        )
    if epochs[-1][1] > 100:
        return Diagnosis(
            "corpus exhausted",
            f"the corpus was seen {epochs[-1][1]:.0f} times by step {epochs[-1][0]:,.0f}",
            "after so many passes the corpus has little left to learn",
            "stop the run (training.patience, training.max_epochs), or add text: more corpora, tokenizer.sampling_alpha = 0.1",
        )
    return None


def diagnose_data_wait(status: RunStatus) -> Diagnosis | None:
    """Check whether more than a tenth of the time is spent waiting for batches."""
    wait_points = select_second_half(status.points("train", "data_wait_fraction"))
    if len(wait_points) < 2 or fmean(value for _, value in wait_points) <= 0.1:
        return None
    num_workers = status.recipe.data.num_workers
    return Diagnosis(
        "waits for data",
        f"{fmean(value for _, value in wait_points):.0%} of the time of steps {format_step_range(wait_points)} was "
        "spent waiting for batches",
        "making batches is slower than training on them",
        f"data.num_workers = {max(1, 2 * num_workers)} (it is {num_workers}); put the run folder on a local disk",
    )


def diagnose_memory_growth(status: RunStatus) -> Diagnosis | None:
    """Check whether memory grows from quarter to quarter, beyond the caches that fill at the start."""
    memory = status.points("train", "memory_mib")
    if len(memory) < 2 * MIN_LOG_LINES or memory[-1][0] < 500:
        return None
    # Caches fill in the first quarter, so it does not count, and neither does growth that slows down.
    second, third, fourth = (median(value for _, value in select_quarter(memory, number)) for number in (1, 2, 3))
    if fourth - third < max(0.5 * (third - second), 50.0) or third <= second or fourth < 1.1 * second:
        return None
    steps = select_quarter(memory, 3)[0][0] - select_quarter(memory, 1)[0][0]
    return Diagnosis(
        "memory grows",
        f"{second:,.0f}, {third:,.0f}, {fourth:,.0f} MiB (medians of the last three quarters, to step {memory[-1][0]:,.0f}): "
        f"{1000.0 * (fourth - second) / steps:,.0f} MiB in a thousand steps",
        "memory leaks, and the system may kill the run",
        "the same command resumes after a kill; try data.num_workers = 0, training.compile = false, a lower "
        "training.batch_tokens, and report it if it stays",
    )


def diagnose_out_of_memory(status: RunStatus) -> Diagnosis | None:
    """Check whether batches were split because of a shortage of memory."""
    events = status.events_of_kind("oom_split")
    if not events:
        return None
    return Diagnosis(
        "out of memory",
        f"{format_count(len(events), 'time')}, last at step {events[-1]['step']:,}: {events[-1].get('text', '')}",
        "the largest batches do not fit into memory; splitting them takes time",
        f"training.batch_tokens below {status.recipe.training.batch_tokens}, and a higher training.batches_per_update "
        "for equal steps",
    )


def diagnose_failed_checkpoints(status: RunStatus) -> Diagnosis | None:
    """Check whether the last checkpoint could not be saved, or some are damaged."""
    save_events, failed_events = (
        status.events_of_kind("checkpoint", "checkpoint_failed"),
        status.events_of_kind("checkpoint_failed"),
    )
    if failed_events and failed_events[-1] is save_events[-1]:
        saved_events = status.events_of_kind("checkpoint")
        saved_note = f"the last good one is of step {saved_events[-1]['step']:,}" if saved_events else "none is saved so far"
        return Diagnosis(
            "checkpoints fail",
            f"{len(failed_events)} failed; {saved_note}; step {failed_events[-1]['step']:,}: "
            f"{failed_events[-1].get('text', '')}",
            "a crash now would lose the training since then",
            "free disk space, or lower training.keep_last and training.keep_best; the run tries again by itself",
        )
    if status.damaged_checkpoints:
        return Diagnosis(
            "damaged checkpoints",
            f"{len(status.damaged_checkpoints)} set aside: {', '.join(status.damaged_checkpoints[:3])}",
            "files changed after they were written: a failing disk or memory, or another program",
            "check the disk; remove them when they are no longer needed",
        )
    return None


def diagnose_low_mfu(status: RunStatus) -> Diagnosis | None:
    """Check for a low MFU. The limit is lower for narrow models, whose matrix products are small."""
    mfu_points = select_second_half(status.points("train", "mfu"))
    expected_mfu = 0.25 * min(1.0, status.recipe.model.d_model / 512)
    if len(mfu_points) < 2 or (mfu := median(value for _, value in mfu_points)) >= expected_mfu:
        return None
    training = status.recipe.training
    remedies = [f"training.batch_tokens above {training.batch_tokens}"]
    remedies += ["training.precision = 'auto'"] if training.precision == "float32" else []
    is_cpu = str(status.run_info.get("machine", "")).startswith("cpu")  # compiled layers measured slower there
    remedies += [] if training.compile or is_cpu else ["training.compile = true"]
    return Diagnosis(
        "slow",
        f"{mfu:.0%} of the machine's measured peak FLOP/s in steps {format_step_range(mfu_points)}",
        "batches are too small to keep this machine busy, or other programs use it too",
        "; ".join(remedies),
    )


def diagnose_padding(status: RunStatus) -> Diagnosis | None:
    """Check whether much of the computation is on padding."""
    padding_points = select_second_half(status.points("train", "padding_fraction"))
    if len(padding_points) < 2 or fmean(value for _, value in padding_points) <= 0.2:
        return None
    return Diagnosis(
        "padding",
        f"{fmean(value for _, value in padding_points):.0%} of the positions in the batches of steps "
        f"{format_step_range(padding_points)} hold no token",
        "batches hold pairs of very different lengths: the corpus is small, or its two sides do not match",
        "data.cleaning.max_ratio = 3; a lower data.max_length; more text, so that batches hold pairs of equal length",
    )


def diagnose_dead_run(status: RunStatus) -> Diagnosis | None:
    """Check whether the metrics log ends before the run does, with an error or without one."""
    if status.state == "failed":
        text = str(status.events[-1].get("text", "")).rstrip(".")
        return Diagnosis("failed", text, "the command ended with this error", "fix the error, and the same command resumes")
    if status.state != "stalled":
        return None
    last_step = f"step {status.train[-1]['step']:,}" if status.train else "its first line"
    minutes = f"nothing was written for {status.seconds_since_update / 60:,.0f} minutes"
    if status.is_training_complete:
        return Diagnosis(
            "stalled after training",
            f"{minutes}, after the end of training at step {status.events[-1]['step']:,}",
            "the process was killed or hangs while it scores the test set",
            "check whether it still runs; if not, the same command writes the bundle and the report",
        )
    return Diagnosis(
        "stalled",
        f"{minutes}, after {last_step}",
        "the process was killed, hangs, or cannot reach its disk",
        "check whether it still runs; if not, the same command resumes from the newest checkpoint",
    )


def _suggest_lr(status: RunStatus) -> str:
    """Return half the learning rate, or the paper's for this width and warm-up if that is lower."""
    training = status.recipe.training
    if training.schedule == "noam":
        return f"training.lr_factor = {min(training.lr_factor / 2, 1.0):.2g}"
    paper_lr = (status.recipe.model.d_model * training.warmup_steps) ** -0.5
    return f"training.peak_lr = {min(training.peak_lr / 2, paper_lr):.2g}"


def _suggest_stabilizers(status: RunStatus) -> str:
    """Return the settings against large updates that the recipe does not use yet."""
    training = status.recipe.training
    remedies = [_suggest_lr(status), "training.warmup_steps longer"]
    remedies += ["training.clip_norm = 1.0"] if training.clip_norm is None else []
    remedies += ["model.norm = 'pre'"] if status.recipe.model.norm == "post" else []
    return "; ".join(remedies)


DIAGNOSTIC_RULES: tuple[Rule, ...] = (
    diagnose_dead_run, diagnose_failed_checkpoints, diagnose_high_lr, diagnose_ignored_source, diagnose_skipped_steps,
    diagnose_gradient_spikes, diagnose_overfitting, diagnose_long_warmup, diagnose_no_progress, diagnose_small_epochs,
    diagnose_memory_growth, diagnose_out_of_memory, diagnose_data_wait, diagnose_padding, diagnose_low_mfu,
)  # fmt: skip

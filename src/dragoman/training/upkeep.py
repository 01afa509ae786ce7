"""What goes wrong with the machine under a run: its memory, its disk, its speed, the process itself. Rules of `diagnosis`."""

from __future__ import annotations

from statistics import fmean, median

from dragoman.training.finding import ENOUGH, Finding
from dragoman.training.monitoring.run_status import Record, quarter, second_half, steps_of


def waits_for_data(record: Record) -> Finding | None:
    """More than a tenth of the time goes by without a batch to train on."""
    waiting = second_half(record.points("train", "waiting"))
    if len(waiting) < 2 or fmean(value for _, value in waiting) <= 0.1:
        return None
    loaders = record.recipe.data.num_workers
    return Finding(
        "waits for data",
        f"{fmean(value for _, value in waiting):.0%} of the time of steps {steps_of(waiting)} was spent waiting for batches",
        "making batches is slower than training on them",
        f"data.num_workers = {max(1, 2 * loaders)} (it is {loaders}); put the run folder on a local disk",
    )


def memory_grows(record: Record) -> Finding | None:
    """Memory rises from quarter to quarter, beyond what caches take at the start."""
    memory = record.points("train", "memory_mib")
    if len(memory) < 2 * ENOUGH or memory[-1][0] < 500:
        return None
    # The first quarter does not count, nor what slows down: caches fill.
    second, third, fourth = (median(value for _, value in quarter(memory, number)) for number in (1, 2, 3))
    if fourth - third < max(0.5 * (third - second), 50.0) or third <= second or fourth < 1.1 * second:
        return None
    steps = quarter(memory, 3)[0][0] - quarter(memory, 1)[0][0]
    return Finding(
        "memory grows",
        f"{second:,.0f}, {third:,.0f}, {fourth:,.0f} MiB (medians of the last three quarters, to step {memory[-1][0]:,.0f}): "
        f"{1000.0 * (fourth - second) / steps:,.0f} MiB in a thousand steps",
        "something is kept that should not be; the run may be killed for it",
        "the same command goes on after a kill; try data.num_workers = 0, training.compile = false, a lower training.batch_tokens, "
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
        f"training.batch_tokens below {record.recipe.training.batch_tokens}, and training.batches_per_update higher for equal steps",
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
    ceiling = second_half(record.points("train", "ceiling"))
    expected = 0.25 * min(1.0, record.recipe.model.d_model / 512)
    if len(ceiling) < 2 or (share := median(value for _, value in ceiling)) >= expected:
        return None
    training = record.recipe.training
    turns = [f"training.batch_tokens above {training.batch_tokens}"]
    turns += ["training.precision = 'auto'"] if training.precision == "float32" else []
    by_processor = str(record.about.get("machine", "")).startswith("cpu")  # where kernels so made were measured to be slower
    turns += [] if training.compile or by_processor else ["training.compile = true"]
    return Finding(
        "slow",
        f"{share:.0%} of the machine's measured ceiling in steps {steps_of(ceiling)}",
        "batches are too small to keep this machine busy, or other programs are at work on it",
        "; ".join(turns),
    )


def padded(record: Record) -> Finding | None:
    """Much of what is computed is padding."""
    padding = second_half(record.points("train", "padding"))
    if len(padding) < 2 or fmean(value for _, value in padding) <= 0.2:
        return None
    return Finding(
        "padding",
        f"{fmean(value for _, value in padding):.0%} of the places in the batches of steps {steps_of(padding)} hold no token",
        "batches hold pairs of very different lengths: few pairs to choose from, or sides that do not fit each other",
        "data.cleaning.max_ratio = 3; data.max_length lower; more text, so that pairs of one length are found",
    )


def died(record: Record) -> Finding | None:
    """The journal ends before the run does, with an error or without a word."""
    if record.state == "failed":
        text = str(record.events[-1].get("text", "")).rstrip(".")
        return Finding("failed", text, "the command ended there", "mend what it says, and the same command goes on")
    if record.state != "silent":
        return None
    step = f"step {record.train[-1]['step']:,}" if record.train else "its first line"
    return Finding(
        "silent",
        f"nothing was written for {record.quiet_seconds / 60:,.0f} minutes, after {step}",
        "the process was killed, hangs, or has lost its disk",
        "look whether it still runs; if not, the same command goes on from the newest checkpoint",
    )

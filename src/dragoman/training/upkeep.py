"""What goes wrong with the machine under a run: its memory, its disk, its speed, the process itself. Rules of `diagnosis`."""

from __future__ import annotations

from statistics import fmean, median

from dragoman.training.finding import MIN_LOG_LINES, Diagnosis
from dragoman.training.monitoring.run_status import RunStatus, format_step_range, select_quarter, select_second_half


def diagnose_data_wait(status: RunStatus) -> Diagnosis | None:
    """More than a tenth of the time goes by without a batch to train on."""
    wait_points = select_second_half(status.points("train", "waiting"))
    if len(wait_points) < 2 or fmean(value for _, value in wait_points) <= 0.1:
        return None
    num_workers = status.recipe.data.num_workers
    return Diagnosis(
        "waits for data",
        f"{fmean(value for _, value in wait_points):.0%} of the time of steps {format_step_range(wait_points)} was spent waiting for batches",
        "making batches is slower than training on them",
        f"data.num_workers = {max(1, 2 * num_workers)} (it is {num_workers}); put the run folder on a local disk",
    )


def diagnose_memory_growth(status: RunStatus) -> Diagnosis | None:
    """Memory rises from quarter to quarter, beyond what caches take at the start."""
    memory = status.points("train", "memory_mib")
    if len(memory) < 2 * MIN_LOG_LINES or memory[-1][0] < 500:
        return None
    # The first quarter does not count, nor what slows down: caches fill.
    second, third, fourth = (median(value for _, value in select_quarter(memory, number)) for number in (1, 2, 3))
    if fourth - third < max(0.5 * (third - second), 50.0) or third <= second or fourth < 1.1 * second:
        return None
    steps = select_quarter(memory, 3)[0][0] - select_quarter(memory, 1)[0][0]
    return Diagnosis(
        "memory grows",
        f"{second:,.0f}, {third:,.0f}, {fourth:,.0f} MiB (medians of the last three quarters, to step {memory[-1][0]:,.0f}): "
        f"{1000.0 * (fourth - second) / steps:,.0f} MiB in a thousand steps",
        "something is kept that should not be; the run may be killed for it",
        "the same command goes on after a kill; try data.num_workers = 0, training.compile = false, a lower training.batch_tokens, "
        "and report it if it stays",
    )


def diagnose_out_of_memory(status: RunStatus) -> Diagnosis | None:
    """Batches had to be split."""
    events = [entry for entry in status.events if entry.get("event") == "memory"]
    if not events:
        return None
    return Diagnosis(
        "short of memory",
        f"{len(events)} times, last at step {events[-1]['step']:,}: {events[-1].get('text', '')}",
        "the largest batches do not fit, and are split, which takes time",
        f"training.batch_tokens below {status.recipe.training.batch_tokens}, and training.batches_per_update higher for equal steps",
    )


def diagnose_failed_checkpoints(status: RunStatus) -> Diagnosis | None:
    """The last attempts to keep the state failed, or what was kept is damaged."""
    save_events = [entry for entry in status.events if entry.get("event") in ("checkpoint", "unsaved")]
    failed_events = [entry for entry in save_events if entry.get("event") == "unsaved"]
    if save_events and save_events[-1].get("event") == "unsaved":
        saved_events = [entry for entry in save_events if entry.get("event") == "checkpoint"]
        last_saved_note = (
            f"the last good one is of step {saved_events[-1]['step']:,}" if saved_events else "none was kept so far"
        )
        return Diagnosis(
            "checkpoints fail",
            f"{len(failed_events)} failed; {last_saved_note}; step {failed_events[-1]['step']:,}: {failed_events[-1].get('text', '')}",
            "what is learnt since would be lost",
            "make room on the disk, or training.keep_last and training.keep_best lower; the run tries again by itself",
        )
    if status.damaged_checkpoints:
        return Diagnosis(
            "damaged checkpoints",
            f"{len(status.damaged_checkpoints)} set aside: {', '.join(status.damaged_checkpoints[:3])}",
            "files changed after they were written: a failing disk or memory, or another program",
            "check the disk; remove them when nobody wants to look at them any more",
        )
    return None


def diagnose_low_mfu(status: RunStatus) -> Diagnosis | None:
    """Far below what this machine reaches in matrix products alone, small products taken into account."""
    mfu_points = select_second_half(status.points("train", "ceiling"))
    expected_mfu = 0.25 * min(1.0, status.recipe.model.d_model / 512)
    if len(mfu_points) < 2 or (mfu := median(value for _, value in mfu_points)) >= expected_mfu:
        return None
    training = status.recipe.training
    remedies = [f"training.batch_tokens above {training.batch_tokens}"]
    remedies += ["training.precision = 'auto'"] if training.precision == "float32" else []
    is_cpu = str(status.run_info.get("machine", "")).startswith("cpu")  # where kernels so made were measured to be slower
    remedies += [] if training.compile or is_cpu else ["training.compile = true"]
    return Diagnosis(
        "slow",
        f"{mfu:.0%} of the machine's measured ceiling in steps {format_step_range(mfu_points)}",
        "batches are too small to keep this machine busy, or other programs are at work on it",
        "; ".join(remedies),
    )


def diagnose_padding(status: RunStatus) -> Diagnosis | None:
    """Much of what is computed is padding."""
    padding_points = select_second_half(status.points("train", "padding"))
    if len(padding_points) < 2 or fmean(value for _, value in padding_points) <= 0.2:
        return None
    return Diagnosis(
        "padding",
        f"{fmean(value for _, value in padding_points):.0%} of the places in the batches of steps {format_step_range(padding_points)} hold no token",
        "batches hold pairs of very different lengths: few pairs to choose from, or sides that do not fit each other",
        "data.cleaning.max_ratio = 3; data.max_length lower; more text, so that pairs of one length are found",
    )


def diagnose_dead_run(status: RunStatus) -> Diagnosis | None:
    """The journal ends before the run does, with an error or without a word."""
    if status.state == "failed":
        text = str(status.events[-1].get("text", "")).rstrip(".")
        return Diagnosis("failed", text, "the command ended there", "mend what it says, and the same command goes on")
    if status.state != "silent":
        return None
    last_step = f"step {status.train[-1]['step']:,}" if status.train else "its first line"
    return Diagnosis(
        "silent",
        f"nothing was written for {status.seconds_since_update / 60:,.0f} minutes, after {last_step}",
        "the process was killed, hangs, or has lost its disk",
        "look whether it still runs; if not, the same command goes on from the newest checkpoint",
    )

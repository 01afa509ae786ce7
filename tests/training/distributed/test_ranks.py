"""Several ranks against one process: the same batches, losses and decisions, and failures of a rank."""

from __future__ import annotations

import io
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from safetensors.torch import load_file

from conftest import MakeRecipe
from dragoman.config import Recipe, make_recipe
from dragoman.errors import DataError, InterruptedRun, OutOfMemoryError, RankZeroError, RunError, WorkerLostError
from dragoman.model.transformer import Transformer
from dragoman.training import train_state
from dragoman.training.checkpoints.checkpoint import list_checkpoints
from dragoman.training.distributed.exit_status import (
    EXIT_STATUS_FILE_VARIABLE,
    LAUNCHER_PID_VARIABLE,
    exit_with_launcher,
    write_exit_status,
)
from dragoman.training.distributed.process_group import (
    DistributedContext,
    check_even_split,
    context_from_environment,
    init_process_group,
)
from dragoman.training.distributed.signals import StopRequest
from dragoman.training.run import train
from dragoman.training.train_step import MicroBatch
from dragoman.training.validation import Validator
from expected_errors import raises_code
from rank_processes import find_free_port, read_losses, run_ranks, train_all
from tiny_runs import write_recipe
from trainers import assert_equal_states, assert_equal_tensors, new_trainer

END_SECONDS = 240.0
"""Longest wait for a file or the end of processes; a busy machine takes many times longer than an idle one."""
# Number of kills of a rank, each with a start and a restart of several processes; DRAGOMAN_TRIALS sets more.
TRIALS = int(os.environ.get("DRAGOMAN_TRIALS", "2"))

FOUR = (
    "training.batches_per_update=4", "training.max_steps=12", "training.log_every_steps=1", "training.validate_every_steps=6",
    "training.checkpoint_every_steps=4", "training.batch_tokens=60", "training.guided_alignment_weight=0.5",
)  # fmt: skip


# Environment of a rank


@pytest.mark.parametrize(
    ("environment", "context"),
    [
        ({}, DistributedContext(0, 1, 0)),
        ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}, DistributedContext(0, 1, 0)),
        ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "a"}, DistributedContext(5, 8, 1)),
        ({"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "a"}, DistributedContext(3, 4, 0)),
        (
            {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "1", "MASTER_ADDR": "a"},
            DistributedContext(3, 4, 1),
        ),
        # A batch script is no task of a step, for any number of tasks of the job.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"}, DistributedContext(0, 1, 0)),
        # torchrun under srun: torchrun is the inner launcher, so it counts.
        (
            {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "RANK": "9", "WORLD_SIZE": "16", "MASTER_ADDR": "a"},
            DistributedContext(9, 16, 0),
        ),
    ],
    ids=str,
)
def test_context_is_read_from_launcher_variables(environment: Mapping[str, str], context: DistributedContext) -> None:
    assert context_from_environment(environment, timeout_minutes=30.0) == context


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({"RANK": "4", "WORLD_SIZE": "4", "MASTER_ADDR": "a"}, "RANK=4, WORLD_SIZE=4, LOCAL_RANK=0"),
        ({"RANK": "one", "WORLD_SIZE": "4", "MASTER_ADDR": "a"}, "RANK=one, WORLD_SIZE=4"),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "many"}, "SLURM_STEP_NUM_TASKS=many"),
        ({"RANK": "1", "WORLD_SIZE": "4"}, "WORLD_SIZE=4: MASTER_ADDR"),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4"}, "SLURM_STEP_NUM_TASKS=4: MASTER_ADDR"),
    ],
    ids=str,
)
def test_inconsistent_launcher_variables_fail(environment: Mapping[str, str], name: str) -> None:
    with raises_code("distributed-setup", name):
        context_from_environment(environment, timeout_minutes=30.0)


def test_uneven_split_fails_with_two_remedies() -> None:
    config = make_recipe({"preset": "modern", "training": {"batches_per_update": 2, "batch_tokens": 4096}})
    check_even_split(config.data, config.tokenizer, config.training, DistributedContext(world_size=2))
    check_even_split(config.data, config.tokenizer, config.training, DistributedContext(world_size=1))
    with raises_code(
        "invalid-recipe", "batches_per_update = 2", "training.batches_per_update=4", "4096 tokens on each"
    ) as caught:
        check_even_split(config.data, config.tokenizer, config.training, DistributedContext(world_size=4))
    assert "training.batch_tokens=2048" in str(caught.value)  # 2 batches of 4,096 are 4 of 2,048


@pytest.mark.parametrize("setting", ["tokenizer.sampling_alpha=0.1", "data.noise.typos=0.1"])
def test_fsdp_with_varying_batch_length_fails(setting: str, tiny: MakeRecipe, tmp_path: Path) -> None:
    """FSDP2 gathers weights for each part of a batch, on all ranks at once."""
    settings = ("training.batches_per_update=2", "tokenizer.byte_fallback=true", setting)
    ddp = tiny(tmp_path / "run", *settings)
    check_even_split(ddp.data, ddp.tokenizer, ddp.training, DistributedContext(world_size=2))
    fsdp = tiny(tmp_path / "run", *settings, "training.parallel=fsdp")
    check_even_split(fsdp.data, fsdp.tokenizer, fsdp.training, DistributedContext(world_size=1))
    with raises_code("key-conflict", "training.parallel=ddp"):
        check_even_split(fsdp.data, fsdp.tokenizer, fsdp.training, DistributedContext(world_size=2))


def test_exit_status_is_left_for_launcher_and_restarts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EXIT_STATUS_FILE_VARIABLE, str(tmp_path / "exit_status"))
    write_exit_status(WorkerLostError("another rank is lost"))
    assert not (tmp_path / "exit_status").exists()
    exit_with_launcher()
    monkeypatch.setenv(LAUNCHER_PID_VARIABLE, str(os.getppid()))
    exit_with_launcher()
    if sys.platform == "linux":
        monkeypatch.setenv(LAUNCHER_PID_VARIABLE, str(os.getpid()))  # not the parent, so the launcher has ended
        with pytest.raises(RankZeroError):
            exit_with_launcher()
    write_exit_status(InterruptedRun("stopped"))
    write_exit_status(RunError("a later error of another rank"))
    with pytest.raises(RankZeroError) as caught:
        exit_with_launcher()
    assert caught.value.exit_code == InterruptedRun.exit_code
    monkeypatch.delenv(EXIT_STATUS_FILE_VARIABLE)
    exit_with_launcher()


# Ranks of this test


@pytest.fixture(scope="module")
def alone(tiny: MakeRecipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run of twelve steps of four batches each, with dropout, by one process."""
    run = tmp_path_factory.mktemp("alone") / "run"
    recipe = tiny(run, *FOUR)
    assert recipe.model.residual_dropout > 0
    train(recipe)
    return run


@pytest.mark.slow
def test_four_ranks_make_the_run_of_one(alone: Path, tiny: MakeRecipe, tmp_path: Path) -> None:
    modes = ("ddp", "fsdp")
    recipes = {find_free_port(): tiny(tmp_path / mode, *FOUR, f"training.parallel={mode}") for mode in modes}
    run_ranks(4, train_all, recipes)
    expected_losses = read_losses(alone)
    assert len(expected_losses) == 14
    for mode in modes:
        losses = read_losses(tmp_path / mode)
        assert losses.keys() == expected_losses.keys()
        for key, loss in expected_losses.items():
            assert losses[key] == pytest.approx(loss, rel=1e-6), (mode, key)
        mine, theirs = (list_checkpoints(run / "checkpoints")[-1] for run in (tmp_path / mode, alone))
        # Equal batches in equal order have equal numbers of tokens and an equal position afterwards.
        assert mine.trainer_state.data_position == theirs.trainer_state.data_position
        assert mine.trainer_state.target_tokens == theirs.trainer_state.target_tokens
        assert mine.trainer_state.flops == pytest.approx(theirs.trainer_state.flops)
        for name, weight in mine.weights().items():
            torch.testing.assert_close(weight, theirs.weights()[name], rtol=0, atol=1e-5)
        for name, value in mine.optimizer_state().items():
            assert value.shape == theirs.optimizer_state()[name].shape


@pytest.mark.slow
def test_resume_with_another_number_of_ranks(alone: Path, tiny: MakeRecipe, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(tiny(run, *FOUR, "training.max_steps=4"))
    run_ranks(2, train_all, {find_free_port(): tiny(run, *FOUR, "training.max_steps=8", "training.parallel=fsdp")})
    run_ranks(4, train_all, {find_free_port(): tiny(run, *FOUR)})
    expected = {key: loss for key, loss in read_losses(alone).items() if key[0] == "train"}
    assert {key: loss for key, loss in read_losses(run).items() if key[0] == "train"} == pytest.approx(expected, rel=1e-6)


def train_with_nonfinite_steps(recipe: Recipe, target: str) -> None:
    """Train with a non-finite number on the last rank in two steps, or skip these steps on all ranks (`skip`)."""
    with init_process_group(context_from_environment(os.environ, timeout_minutes=10.0)) as context:
        trainer = new_trainer(recipe, distributed=context)
        train_step, backward = trainer.train_step, trainer.train_step._backward
        original_should_apply = trainer.guard.should_apply
        current_step = 0

        def step_and_record(step: int, *arguments: Any, **options: Any) -> Any:
            nonlocal current_step
            current_step = step
            return train_step(step, *arguments, **options)

        def poisoned_backward(step: int, micro_batch: MicroBatch, tokens: int, *, is_last: bool) -> torch.Tensor:
            nll = backward(step, micro_batch, tokens, is_last=is_last)
            if step in (3, 7) and context.rank == context.world_size - 1 and is_last:
                if target == "loss":
                    return nll * math.inf
                # The ranks have reduced their gradients already, so the number reaches one rank's shard or sum only.
                parameter = next(iter(trainer.model.parameters()))
                assert parameter.grad is not None
                local = parameter.grad.to_local() if hasattr(parameter.grad, "to_local") else parameter.grad
                local.view(-1)[0] = math.nan
            return nll

        def skip_steps(norm: torch.Tensor, nll: torch.Tensor) -> torch.Tensor:
            return original_should_apply(norm, nll * (math.nan if current_step in (3, 7) else 1.0))

        trainer.train_step = step_and_record  # type: ignore[assignment]
        if target == "skip":
            trainer.guard.should_apply = skip_steps  # type: ignore[method-assign]
        else:
            train_step._backward = poisoned_backward  # type: ignore[method-assign]
        trainer.run()


def train_all_with_nonfinite_steps(recipes: dict[str, tuple[int, Recipe]]) -> None:
    for name, (port, recipe) in recipes.items():
        os.environ["MASTER_PORT"] = str(port)
        train_with_nonfinite_steps(recipe, name.split()[0])


@pytest.mark.slow
def test_nonfinite_number_on_one_rank_skips_on_all(tiny: MakeRecipe, tmp_path: Path) -> None:
    cases = {
        "skip": "ddp", "loss": "ddp", "skip fsdp": "fsdp", "loss fsdp": "fsdp", "gradient fsdp": "fsdp",
    }  # fmt: skip
    recipes = {
        name: (
            find_free_port(),
            tiny(
                tmp_path / name.replace(" ", "-"), *FOUR, f"training.parallel={mode}", "training.num_validation_translations=0"
            ),
        )
        for name, mode in cases.items()
    }
    run_ranks(2, train_all_with_nonfinite_steps, recipes)
    for name, mode in cases.items():
        last = list_checkpoints(tmp_path / name.replace(" ", "-") / "checkpoints")[-1]
        assert (last.step, last.trainer_state.skipped_steps) == (12, 2)
        expected = list_checkpoints(tmp_path / ("skip" if mode == "ddp" else "skip-fsdp") / "checkpoints")[-1]
        assert_equal_states(last, expected)
        assert last.optimizer_state()["output/step"] == 10.0


def train_until_out_of_memory(recipe: Recipe, port: int) -> None:
    os.environ["MASTER_PORT"] = str(port)
    if recipe.training.parallel == "fsdp":
        train_state.build_seeded_model = allow_one_call(train_state.build_seeded_model)
    else:
        Validator.validate = raise_memory_error  # type: ignore[method-assign, assignment]
    with pytest.raises((OutOfMemoryError, RankZeroError)) as caught:
        train(recipe)
    error = {"type": type(caught.value).__name__, "message": str(caught.value)}
    Path(recipe.run, f"error-{os.environ['RANK']}.json").write_text(json.dumps(error))


def raise_memory_error(*_: object) -> NoReturn:
    raise MemoryError


def allow_one_call(build: Callable[..., Transformer]) -> Callable[..., Transformer]:
    """Return a function that builds the trained model, but raises MemoryError for its copy for validation."""
    num_calls = 0

    def build_once(*arguments: Any) -> Transformer:
        nonlocal num_calls
        num_calls += 1
        if num_calls > 1:
            raise MemoryError
        return build(*arguments)

    return build_once


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_validation_without_memory_stops_all_ranks(alone: Path, tiny: MakeRecipe, tmp_path: Path, mode: str) -> None:
    recipe = tiny(tmp_path / "run", *FOUR, f"training.parallel={mode}")
    run_ranks(2, train_until_out_of_memory, recipe, find_free_port())
    first, second = (json.loads((tmp_path / "run" / f"error-{rank}.json").read_text()) for rank in range(2))
    assert "step 6: out of memory in the validation on rank 0; lower decoding.batch_tokens" in first["message"]
    assert "step-00000006 is saved" in first["message"]
    assert second["type"] == "RankZeroError"
    run_ranks(2, train_all, {find_free_port(): recipe})
    assert read_losses(tmp_path / "run") == pytest.approx(read_losses(alone), rel=1e-6)


# A lost rank


def train_and_lose_rank(recipe: Recipe, lost_rank: int, place: str, expected: str) -> None:
    """Train until a rank ends after step 5, and check the message of the others."""
    context = context_from_environment(os.environ, timeout_minutes=10.0)
    is_lost = context.rank == lost_rank
    with nullcontext() if is_lost else raises_code("worker-lost", expected), init_process_group(context):
        trainer = new_trainer(recipe, distributed=context)
        owner, name = {
            "data": (trainer.stream, "next_batch"),
            "backward": (trainer.train_step, "_backward"),
            "end of the step": (trainer, "_after_step"),
        }[place]
        function = getattr(owner, name)

        def end_rank(*arguments: Any, **options: Any) -> Any:
            if trainer.state.step == 5:
                os._exit(0)
            return function(*arguments, **options)

        if is_lost:
            setattr(owner, name, end_rank)
        trainer.run()
    os._exit(0)  # the exit of a process that has lost a connection may hang


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lost_rank", "place", "world_size"), [(0, "data", 2), (1, "backward", 2), (1, "end of the step", 2), (3, "backward", 4)]
)
def test_rank_that_is_left_saves_a_checkpoint(
    lost_rank: int, place: str, world_size: int, alone: Path, tiny: MakeRecipe, tmp_path: Path
) -> None:
    """The run then goes on as if no rank had been lost."""
    recipe = tiny(tmp_path / "run", *FOUR)
    message = "step-00000005 is saved, and the same command resumes from there" if world_size == 2 else "step"
    run_ranks(world_size, train_and_lose_rank, recipe, lost_rank, place, message)
    assert [checkpoint.step for checkpoint in list_checkpoints(tmp_path / "run" / "checkpoints")][-1] == 5
    train(recipe)
    assert read_losses(tmp_path / "run") == pytest.approx(read_losses(alone), rel=1e-6)


@pytest.mark.slow
def test_shards_of_a_lost_rank_are_not_saved(tiny: MakeRecipe, tmp_path: Path) -> None:
    recipe = tiny(tmp_path / "run", *FOUR, "training.parallel=fsdp", "training.checkpoint_every_steps=1000")
    message = "no checkpoint is saved yet, so the same command starts again, and 5 steps are lost"
    run_ranks(2, train_and_lose_rank, recipe, 1, "data", message)
    assert list_checkpoints(tmp_path / "run" / "checkpoints") == []


# Ranks of the command


@contextmanager
def command(recipe: Path, *arguments: str, seconds: float = 180.0) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-m", "dragoman", "train", str(recipe), "--devices", "2", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(words, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()
            for rank in ranks_of(recipe):
                os.kill(rank, signal.SIGKILL)


def ranks_of(recipe: Path) -> list[int]:
    """Return the process ids of the ranks that train this recipe, by rank."""
    pids = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode().split("\0")
            environment = (folder / "environ").read_bytes().decode().split("\0")
        except (OSError, UnicodeDecodeError):
            continue
        rank = [value.removeprefix("RANK=") for value in environment if value.startswith("RANK=")]
        if str(recipe) in words and rank:
            pids[int(rank[0])] = int(folder.name)
    return [pids[rank] for rank in sorted(pids)]


def wait_for(path: Path, seconds: float = END_SECONDS) -> None:
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, path
        time.sleep(0.02)


@pytest.fixture
def written(tiny: MakeRecipe, tmp_path: Path) -> Path:
    """Recipe file with enough steps to interrupt the run."""
    recipe = tiny(tmp_path / "run", *FOUR, "training.max_steps=200", "training.log_every_steps=20", "training.keep_last=200")
    return write_recipe(tmp_path / "recipe.toml", recipe)


HANGING_SCRIPT = """
import atexit, signal, time
from dragoman.training.distributed import process_group

atexit.register(time.sleep, 600)  # as an open connection may hang
process_group._EXIT_TIMEOUT_SECONDS = 1
with process_group.DistributedContext(0, 2).exit_cleanly_on_disconnect():
    raise RuntimeError("gloo: closed by peer")
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "alarm"), reason="needs signal.alarm")
def test_disconnected_rank_ends_if_its_exit_hangs() -> None:
    result = subprocess.run(
        [sys.executable, "-c", HANGING_SCRIPT], capture_output=True, text=True, check=False, timeout=END_SECONDS
    )
    assert result.returncode == -signal.SIGALRM
    assert "closed by peer" in result.stderr


LAUNCHERS = {
    "srun": {"SLURM_PROCID": "{rank}", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "{rank}"},
    "pytorchjob": {"RANK": "{rank}", "WORLD_SIZE": "2"},
}


@pytest.mark.slow
def test_each_launcher_makes_the_same_run(written: Path, tmp_path: Path) -> None:
    """torchrun starts both tasks itself. The variables of Slurm and PyTorchJob are set for each task."""
    train_arguments = ["-m", "dragoman", "train", str(written), "training.max_steps=8", "training.log_every_steps=1"]

    def run(*words: str, **environment: str) -> subprocess.Popen[str]:
        variables = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        return subprocess.Popen([sys.executable, *words], env=variables, text=True, stderr=subprocess.PIPE)

    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    processes = [
        run(*train_arguments, f"run={tmp_path / 'one'}"),
        run(*torchrun, *train_arguments, f"run={tmp_path / 'torchrun'}"),
    ]
    for name, variables in LAUNCHERS.items():
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_free_port())}
        for rank in ("0", "1"):
            values = {key: value.format(rank=rank) for key, value in variables.items()}
            processes.append(run(*train_arguments, f"run={tmp_path / name}", **address, **values))
    for process in processes:
        _, errors = process.communicate(timeout=END_SECONDS)
        assert process.returncode == 0, errors
    expected = read_losses(tmp_path / "one")
    assert len(expected) > 8
    for name in ("torchrun", *LAUNCHERS):
        assert read_losses(tmp_path / name) == pytest.approx(expected, rel=1e-6), name


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the ranks in /proc")
def test_restarts_after_killed_rank_are_exact(written: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    # All runs resume from the same first step, whose checkpoint fixes the compute plan.
    for max_steps in ("training.max_steps=1", "training.max_steps=200"):
        with command(written, f"run={tmp_path / 'unbroken'}", max_steps) as process:
            assert process.wait(END_SECONDS) == 0, process.communicate()[1]
        if not (tmp_path / "first_step").exists():
            shutil.copytree(tmp_path / "unbroken", tmp_path / "first_step")
    expected = list_checkpoints(tmp_path / "unbroken" / "checkpoints")[-1]
    assert expected.step == 200
    for trial in range(TRIALS):
        shutil.copytree(tmp_path / "first_step", run)
        # Without restarts all ranks end soon.
        with command(written) as process:
            wait_for(run / "checkpoints" / "step-00000020")
            ranks = ranks_of(written)
            assert len(ranks) == 2
            os.kill(ranks[trial % 2], signal.SIGKILL)
            errors = process.communicate(timeout=END_SECONDS)[1]
            assert process.returncode == 1
            assert "the connection to another rank broke" in errors or "Traceback" in errors
            assert ranks_of(written) == []
        # With restarts the run equals the unbroken one.
        with command(written, "--max-restarts", "3") as process:
            wait_for(run / "checkpoints" / "step-00000060")
            os.kill(ranks_of(written)[(trial + 1) % 2], signal.SIGKILL)
            errors = process.communicate(timeout=END_SECONDS)[1]
            assert process.returncode == 0, errors
            assert re.search(r"resuming from .*step-00000\d+", errors)
        last = list_checkpoints(run / "checkpoints")[-1]
        assert last.step == 200
        assert_equal_states(last, expected)
        assert_equal_tensors(*(load_file(path / "bundle" / "weights.safetensors") for path in (run, tmp_path / "unbroken")))
        assert read_losses(run) == read_losses(tmp_path / "unbroken")
        shutil.rmtree(run)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the ranks in /proc")
@pytest.mark.parametrize("receiver", ["launcher", "rank"])
def test_signal_to_one_stops_all_ranks(receiver: str, written: Path, tmp_path: Path) -> None:
    with command(written, "training.max_steps=100000") as process:
        wait_for(tmp_path / "run" / "checkpoints" / "step-00000004")
        os.kill(process.pid if receiver == "launcher" else ranks_of(written)[1], signal.SIGTERM)
        errors = process.communicate(timeout=END_SECONDS)[1]
        assert process.returncode == InterruptedRun.exit_code
        (step,) = set(re.findall(r"stopped after step (\d+); .*is saved", errors))
        assert list_checkpoints(tmp_path / "run" / "checkpoints")[-1].step == int(step)
        assert "Traceback" not in errors


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the ranks in /proc")
def test_hanging_rank_ends_all_after_time_out(written: Path, tmp_path: Path) -> None:
    with command(written, "training.max_steps=100000", "training.distributed_timeout_minutes=1") as process:
        wait_for(tmp_path / "run" / "checkpoints" / "step-00000004")
        hanging_rank = ranks_of(written)[1]
        os.kill(hanging_rank, signal.SIGSTOP)
        errors = process.communicate(timeout=END_SECONDS)[1]
        assert process.returncode == 1
        assert "Timeout (0:01:00)!" in errors
        assert re.search(r'File ".*training/(trainer|train_step|distributed/process_group)\.py", line \d+ in', errors)
        assert ranks_of(written) == []


@pytest.mark.slow
def test_error_is_reported_once_without_restart(written: Path, tmp_path: Path) -> None:
    with command(written, f"data.root={tmp_path / 'nowhere'}", "--max-restarts", "2") as process:
        errors = process.communicate(timeout=END_SECONDS)[1]
    assert process.returncode == DataError.exit_code
    lines = [line for line in errors.splitlines() if line.startswith("dragoman: ")]
    assert len(lines) == 1
    assert "nowhere" in lines[0]
    assert "Traceback" not in errors


def test_first_ctrl_c_says_what_the_second_does(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    request = StopRequest()
    request(signal.SIGINT, None)
    assert "with a checkpoint; Ctrl-C again stops at once" in terminal.getvalue()
    with pytest.raises(KeyboardInterrupt):
        request(signal.SIGINT, None)

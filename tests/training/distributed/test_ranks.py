"""Several ranks against one: the same batches, the same losses, the same decisions, and no rank that waits for a dead one."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from safetensors.torch import load_file

from conftest import MakeRecipe
from dragoman.config import Recipe, make_recipe
from dragoman.data.dataloader import TrainingBatches
from dragoman.errors import DataError, InterruptedRun, OutOfMemoryError, RankZeroError, RecipeError, RunError, WorkerLostError
from dragoman.model.transformer import Transformer
from dragoman.training.checkpoints.checkpoint import list_checkpoints
from dragoman.training.distributed.exit_status import (
    EXIT_STATUS_FILE_VARIABLE,
    LAUNCHER_PID_VARIABLE,
    exit_with_launcher,
    write_exit_status,
)
from dragoman.training.distributed.launch import _ignore_timer_errors
from dragoman.training.distributed.process_group import (
    DistributedContext,
    check_even_split,
    context_from_environment,
    init_process_group,
)
from dragoman.training.monitoring.callbacks import NullCallback
from dragoman.training.monitoring.metrics_log import read_metrics_log
from dragoman.training.run import train
from dragoman.training.train_state import TrainState
from dragoman.training.trainer import Trainer
from dragoman.training.validation import Validator

# Kills of a rank, each with a start and a restart of several processes; DRAGOMAN_TRIALS asks for more.
TRIALS = int(os.environ.get("DRAGOMAN_TRIALS", "2"))

FOUR = (
    "training.batches_per_update=4", "training.max_steps=12", "training.log_every_steps=1", "training.validate_every_steps=6",
    "training.checkpoint_every_steps=4", "training.batch_tokens=60",
)  # fmt: skip


# Who is who


@pytest.mark.parametrize(
    ("environment", "world"),
    [
        ({}, DistributedContext(0, 1, 0)),
        ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}, DistributedContext(0, 1, 0)),
        ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "a"}, DistributedContext(5, 8, 1)),
        ({"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "a"}, DistributedContext(3, 4, 0)),
        (
            {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "1", "MASTER_ADDR": "a"},
            DistributedContext(3, 4, 1),
        ),
        # A batch script is no task of a step, whatever the job was given.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"}, DistributedContext(0, 1, 0)),
        # torchrun under srun: the launcher that is nearest counts.
        (
            {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "RANK": "9", "WORLD_SIZE": "16", "MASTER_ADDR": "a"},
            DistributedContext(9, 16, 0),
        ),
    ],
    ids=str,
)
def test_a_launcher_tells_each_process_who_it_is(environment: Mapping[str, str], world: DistributedContext) -> None:
    assert context_from_environment(environment, timeout_minutes=30.0) == world


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({"RANK": "4", "WORLD_SIZE": "4", "MASTER_ADDR": "a"}, "RANK=4, WORLD_SIZE=4, LOCAL_RANK=0: ranks count from 0"),
        ({"RANK": "one", "WORLD_SIZE": "4", "MASTER_ADDR": "a"}, "RANK=one, WORLD_SIZE=4"),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "many"}, "SLURM_STEP_NUM_TASKS=many"),
        ({"RANK": "1", "WORLD_SIZE": "4"}, "WORLD_SIZE=4, but MASTER_ADDR is not set: export"),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4"}, "SLURM_STEP_NUM_TASKS=4, but MASTER_ADDR is not set"),
    ],
    ids=str,
)
def test_a_launcher_that_makes_no_sense_is_told(environment: Mapping[str, str], told: str) -> None:
    with pytest.raises(RunError, match=re.escape(told)) as caught:
        context_from_environment(environment, timeout_minutes=30.0)
    assert "\n" not in str(caught.value)


def test_batches_that_cannot_be_shared_out_are_refused_with_both_ways_out() -> None:
    config = make_recipe({"preset": "modern", "training": {"batches_per_update": 2, "batch_tokens": 4096}})
    check_even_split(config, DistributedContext(world_size=2))
    check_even_split(config, DistributedContext(world_size=1))
    with pytest.raises(
        RecipeError, match=r"batches_per_update = 2: 4 devices .* training.batches_per_update=4 for .* 4096 tokens on each"
    ) as told:
        check_even_split(config, DistributedContext(world_size=4))
    assert "training.batch_tokens=2048" in str(told.value)  # 2 batches of 4,096 are 4 of 2,048


@pytest.mark.parametrize("knob", ["tokenizer.sampling_alpha=0.1", "data.noise.typos=0.1"])
def test_what_makes_batches_longer_is_refused_with_fsdp(knob: str, tiny: MakeRecipe, tmp_path: Path) -> None:
    """FSDP2 gathers weights for each part of a batch, on all ranks at once."""
    settings = ("training.batches_per_update=2", "tokenizer.byte_fallback=true", knob)
    check_even_split(tiny(tmp_path / "run", *settings), DistributedContext(world_size=2))
    check_even_split(tiny(tmp_path / "run", *settings, "training.parallel=fsdp"), DistributedContext(world_size=1))
    with pytest.raises(
        RecipeError, match=r"^(tokenizer.sampling_alpha|data.noise) with training.parallel = 'fsdp'.*parallel=ddp$"
    ):
        check_even_split(tiny(tmp_path / "run", *settings, "training.parallel=fsdp"), DistributedContext(world_size=2))


def test_a_process_by_itself_agrees_with_itself() -> None:
    world = DistributedContext()
    assert world.is_rank_zero
    assert world.all_reduce_sum(2.5, True) == [2.5, True]
    assert world.broadcast_object({"a": 1}) == {"a": 1}
    value = torch.tensor(3.0)
    assert world.all_reduce_tensor(value) is value


def test_what_a_rank_ended_with_is_left_for_the_launcher_and_for_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EXIT_STATUS_FILE_VARIABLE, str(tmp_path / "verdict"))
    write_exit_status(WorkerLostError("that is what restarts are for"))
    assert not (tmp_path / "verdict").exists()
    exit_with_launcher()
    monkeypatch.setenv(LAUNCHER_PID_VARIABLE, str(os.getppid()))
    exit_with_launcher()
    if sys.platform == "linux":
        monkeypatch.setenv(LAUNCHER_PID_VARIABLE, str(os.getpid()))  # so nobody's that it could end with any more
        with pytest.raises(RankZeroError):
            exit_with_launcher()
    write_exit_status(InterruptedRun("stopped"))
    write_exit_status(RunError("what another rank makes of it"))
    with pytest.raises(RankZeroError) as told:
        exit_with_launcher()
    assert told.value.exit_code == InterruptedRun.exit_code
    monkeypatch.delenv(EXIT_STATUS_FILE_VARIABLE)
    exit_with_launcher()


# Several in one place


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def as_rank(rank: int, size: int, port: int, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    told = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in told.items()})
    torch.set_num_threads(1)
    work(*arguments)


def together(size: int, work: Callable[..., None], *arguments: Any, seconds: float = 120.0) -> None:
    """Run `work` as each of so many ranks, each a process of its own."""
    spawn = multiprocessing.get_context("spawn")
    port = free_port()
    ranks = [spawn.Process(target=as_rank, args=(rank, size, port, work, arguments)) for rank in range(size)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(seconds)
    codes = [rank.exitcode for rank in ranks]
    for rank in ranks:
        rank.kill()
    assert codes == [0] * size


def train_all(recipes: dict[int, Recipe]) -> None:
    """One after the other, each with a port of its own: some ranks end sooner than the first, which then tells and judges."""
    for port, recipe in recipes.items():
        os.environ["MASTER_PORT"] = str(port)
        train(recipe)


def losses(run: Path) -> dict[tuple[str, int], float]:
    entries = [entry for entry in read_metrics_log(run / "metrics.jsonl") if entry["type"] in ("train", "valid")]
    return {(entry["type"], entry["step"]): entry["loss"] for entry in entries}


@pytest.fixture(scope="module")
def alone(tiny: MakeRecipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of twelve steps of four batches, with dropout, by one process."""
    run = tmp_path_factory.mktemp("alone") / "run"
    recipe = tiny(run, *FOUR)
    assert recipe.model.residual_dropout > 0
    train(recipe)
    return run


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_any_number_of_ranks_makes_the_same_run(size: int, alone: Path, tiny: MakeRecipe, tmp_path: Path) -> None:
    ways = ("ddp", "fsdp")
    together(size, train_all, {free_port(): tiny(tmp_path / way, *FOUR, f"training.parallel={way}") for way in ways})
    wanted = losses(alone)
    assert len(wanted) == 14
    for way in ways:
        found = losses(tmp_path / way)
        assert found.keys() == wanted.keys()
        for place, loss in wanted.items():
            assert found[place] == pytest.approx(loss, rel=1e-6), (way, place)
        mine, theirs = (list_checkpoints(run / "checkpoints")[-1] for run in (tmp_path / way, alone))
        # The same batches in the same order: the same number of tokens, and the same place afterwards.
        assert mine.trainer_state.data_position == theirs.trainer_state.data_position
        assert mine.trainer_state.target_tokens == theirs.trainer_state.target_tokens
        assert mine.trainer_state.flops == pytest.approx(theirs.trainer_state.flops)
        for name, weight in mine.weights().items():
            torch.testing.assert_close(weight, theirs.weights()[name], rtol=0, atol=1e-5)
        for name, value in mine.optimizer_state().items():
            assert value.shape == theirs.optimizer_state()[name].shape


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_ranks(alone: Path, tiny: MakeRecipe, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(tiny(run, *FOUR, "training.max_steps=4"))
    together(2, train_all, {free_port(): tiny(run, *FOUR, "training.max_steps=8", "training.parallel=fsdp")})
    together(4, train_all, {free_port(): tiny(run, *FOUR)})
    wanted = {place: loss for place, loss in losses(alone).items() if place[0] == "train"}
    assert {place: loss for place, loss in losses(run).items() if place[0] == "train"} == pytest.approx(wanted, rel=1e-6)


def seen_batches(recipe: Recipe, folder: Path, steps: int) -> None:
    """Write down, for each rank, the sources that each step saw."""
    with init_process_group(context_from_environment(os.environ, timeout_minutes=1.0)) as world:
        trainer = Trainer(recipe, NullCallback(), world)
        seen = []
        for _ in range(steps):
            places = range(world.rank, recipe.training.batches_per_update, world.world_size)
            seen.append([(place, [part.source_BS.tolist() for part in trainer.stream.next_batch()]) for place in places])
        (folder / f"{world.rank}.json").write_text(json.dumps(seen))


@pytest.mark.slow
def test_ranks_share_out_the_very_batches_of_one(tiny: MakeRecipe, tmp_path: Path) -> None:
    recipe = tiny(tmp_path / "run", *FOUR)
    together(2, seen_batches, recipe, tmp_path, 6)
    told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    batches = TrainingBatches(recipe, tmp_path / "run" / "data", start_id=2)
    stream = Trainer(recipe, NullCallback()).stream
    for step in range(6):
        both = dict(sorted(told[0][step] + told[1][step]))
        assert list(both.values()) == [[part.source_BS.tolist() for part in stream.next_batch()] for _ in range(4)]
    assert stream.position.epoch > 0 or batches.count_batches(0) > 24


def spoilt(recipe: Recipe, how: str) -> None:
    """Train, but spoil a number on the last rank in two steps; or leave these steps out on all ranks (`skip`)."""
    with init_process_group(context_from_environment(os.environ, timeout_minutes=1.0)) as world:
        trainer = Trainer(recipe, NullCallback(), world)
        take, backward = trainer.train_step.__call__, trainer.train_step._backward
        now = 0

        def taking(step: int, *arguments: Any, **named: Any) -> Any:
            nonlocal now
            now = step
            return take(step, *arguments, **named)

        def poisoned(step: int, part: Any, tokens: int, *, last: bool) -> torch.Tensor:
            nll = backward(step, part, tokens, is_last=last)
            if step in (3, 7) and world.rank == world.world_size - 1 and last:
                if how == "loss":
                    return nll * math.inf
                # Before ranks share their gradients this would reach them all; here it reaches one rank's share or sum.
                parameter = next(iter(trainer.model.parameters()))
                assert parameter.grad is not None
                local = parameter.grad.to_local() if hasattr(parameter.grad, "to_local") else parameter.grad
                local.view(-1)[0] = math.nan
            return nll

        def skipped(norm: torch.Tensor, nll: torch.Tensor) -> torch.Tensor:
            return admit(norm, nll * (math.nan if now in (3, 7) else 1.0))

        admit = trainer.guard.should_apply
        trainer.train_step.__call__ = taking  # type: ignore[method-assign]
        if how == "skip":
            trainer.guard.should_apply = skipped  # type: ignore[method-assign]
        else:
            trainer.train_step._backward = poisoned  # type: ignore[method-assign]
        trainer.run()


def spoil_all(recipes: dict[str, tuple[int, Recipe]]) -> None:
    for how, (port, recipe) in recipes.items():
        os.environ["MASTER_PORT"] = str(port)
        spoilt(recipe, how.split()[0])


@pytest.mark.slow
def test_what_is_no_number_on_one_rank_is_skipped_on_all(tiny: MakeRecipe, tmp_path: Path) -> None:
    cases = {
        "skip": "ddp", "loss": "ddp", "skip fsdp": "fsdp", "loss fsdp": "fsdp", "gradient fsdp": "fsdp",
    }  # fmt: skip
    recipes = {
        how: (
            free_port(),
            tiny(tmp_path / how.replace(" ", "-"), *FOUR, f"training.parallel={way}", "training.num_validation_translations=0"),
        )
        for how, way in cases.items()
    }
    together(2, spoil_all, recipes)
    for how, way in cases.items():
        last = list_checkpoints(tmp_path / how.replace(" ", "-") / "checkpoints")[-1]
        assert (last.step, last.trainer_state.skipped_steps) == (12, 2)
        wanted = list_checkpoints(tmp_path / ("skip" if way == "ddp" else "skip-fsdp") / "checkpoints")[-1]
        for name, weight in wanted.weights().items():
            assert torch.equal(last.weights()[name], weight), (how, name)
        for name, value in wanted.optimizer_state().items():
            assert torch.equal(last.optimizer_state()[name], value), (how, name)
        assert last.optimizer_state()["output/step"] == 10.0


def train_short_of_memory(recipe: Recipe, port: int) -> None:
    os.environ["MASTER_PORT"] = str(port)
    if recipe.training.parallel == "fsdp":
        TrainState._build_model = memory_for_one(TrainState._build_model)  # type: ignore[method-assign, assignment]
    else:
        Validator.validate = refuse_to_judge  # type: ignore[method-assign, assignment]
    with pytest.raises((OutOfMemoryError, RankZeroError)) as told:
        train(recipe)
    said = {"raised": type(told.value).__name__, "told": str(told.value)}
    Path(recipe.run, f"told-{os.environ['RANK']}.json").write_text(json.dumps(said))


def refuse_to_judge(*_: object) -> NoReturn:
    raise MemoryError


def memory_for_one(make: Callable[[TrainState], Transformer]) -> Callable[[TrainState], Transformer]:
    """The model that learns, but no twin of it to judge by."""
    made: list[bool] = []

    def new_model(learner: TrainState) -> Transformer:
        if made:
            raise MemoryError
        made.append(True)
        return make(learner)

    return new_model


@pytest.mark.slow
@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_a_validation_that_memory_does_not_hold_stops_all_ranks_with_their_state_kept(
    alone: Path, tiny: MakeRecipe, tmp_path: Path, way: str
) -> None:
    recipe = tiny(tmp_path / "run", *FOUR, f"training.parallel={way}")
    together(2, train_short_of_memory, recipe, free_port())
    first, second = (json.loads((tmp_path / "run" / f"told-{rank}.json").read_text()) for rank in range(2))
    assert "step 6: out of memory in the validation on rank 0; lower decoding.batch_tokens" in first["told"]
    assert "step-00000006 is kept" in first["told"]
    assert second["raised"] == "FollowedError"
    together(2, train_all, {free_port(): recipe})
    assert losses(tmp_path / "run") == pytest.approx(losses(alone), rel=1e-6)


# Several as a command starts them


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
    """The processes that train this recipe as ranks, by their numbers."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode().split("\0")
            environment = (folder / "environ").read_bytes().decode().split("\0")
        except (OSError, UnicodeDecodeError):
            continue
        rank = [value.removeprefix("RANK=") for value in environment if value.startswith("RANK=")]
        if str(recipe) in words and rank:
            found[int(rank[0])] = int(folder.name)
    return [found[rank] for rank in sorted(found)]


def wait_for(path: Path, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, path
        time.sleep(0.02)


@pytest.fixture
def written(tiny: MakeRecipe, tmp_path: Path) -> Path:
    """A recipe in a file: as many steps as leave time to break in."""
    recipe = tiny(tmp_path / "run", *FOUR, "training.max_steps=200", "training.log_every_steps=20", "training.keep_last=200")
    path = tmp_path / "recipe.toml"
    document = recipe.model_dump(mode="json", exclude_none=True)
    sections = {key: value for key, value in document.items() if isinstance(value, dict)}
    lines = [f"{key} = {json.dumps(value)}" for key, value in document.items() if key not in sections]
    for name, values in sections.items():
        lines += [f"[{name}]", *(f"{key} = {in_toml(value)}" for key, value in values.items() if value is not None)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def in_toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {in_toml(one)}" for key, one in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)


LOSING = """
import os, signal
from dragoman.training.distributed.signals import stop_on_signals
from dragoman.training.distributed.process_group import World

try:
    with stop_on_signals(), World(0, {size}).heard_out():
        raise RuntimeError({message!r})
except RuntimeError as error:
    os.kill(os.getpid(), signal.SIGTERM)
    print("told")
"""


@pytest.mark.parametrize(
    ("size", "message", "told"),
    [
        (2, "gloo: closed by peer", "told\n"),
        pytest.param(2, "another", "", marks=pytest.mark.slow),
        pytest.param(1, "gloo: closed by peer", "", marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_lost_another_is_heard_out(size: int, message: str, told: str) -> None:
    """Its launcher may ask it to stop when the loop's own handlers are gone and what happened is not yet said."""
    losing = LOSING.format(size=size, message=message)
    assert subprocess.run([sys.executable, "-c", losing], capture_output=True, text=True, check=False).stdout == told


HANGING = """
import atexit, signal, time
from dragoman.training.distributed import process_group as world

atexit.register(time.sleep, 60)  # as what is left of a connection may
world._LAST_SECONDS = 1
with world.World(0, 2).heard_out():
    raise RuntimeError("gloo: closed by peer")
"""


@pytest.mark.skipif(not hasattr(signal, "alarm"), reason="a clock of the system ends it")
def test_a_rank_that_lost_another_ends_though_its_end_hangs() -> None:
    ended = subprocess.run([sys.executable, "-c", HANGING], capture_output=True, text=True, check=False, timeout=30)
    assert ended.returncode == -signal.SIGALRM
    assert "closed by peer" in ended.stderr


SRUN = {"SLURM_PROCID": "{rank}", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "{rank}"}
PYTORCHJOB = {"RANK": "{rank}", "WORLD_SIZE": "2"}


@pytest.mark.slow
def test_the_same_command_is_the_same_run_under_each_launcher(written: Path, tmp_path: Path) -> None:
    """torchrun starts both tasks itself; of Slurm and PyTorchJob both get what these tell each of their tasks."""
    train_it = ["-m", "dragoman", "train", str(written), "training.max_steps=8", "training.log_every_steps=1"]

    def run(*words: str, **environment: str) -> subprocess.Popen[str]:
        whole = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        return subprocess.Popen([sys.executable, *words], env=whole, text=True, stderr=subprocess.PIPE)

    def task(name: str, rank: int, port: int, told: Mapping[str, str]) -> subprocess.Popen[str]:
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        return run(
            *train_it, f"run={tmp_path / name}", **place, **{key: value.format(rank=rank) for key, value in told.items()}
        )

    ports = {"srun": free_port(), "pytorchjob": free_port()}
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    begun = [
        [run(*train_it, f"run={tmp_path / 'one'}")],
        [run(*torchrun, *train_it, f"run={tmp_path / 'torchrun'}")],
        [task("srun", rank, ports["srun"], SRUN) for rank in (0, 1)],
        [task("pytorchjob", rank, ports["pytorchjob"], PYTORCHJOB) for rank in (0, 1)],
    ]
    for process in (one for many in begun for one in many):
        _, told = process.communicate(timeout=180)
        assert process.returncode == 0, told
    wanted = losses(tmp_path / "one")
    assert len(wanted) > 8
    for name in ("torchrun", *ports):
        assert losses(tmp_path / name) == pytest.approx(wanted, rel=1e-6), name


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the ranks in /proc")
def test_a_killed_rank_ends_all_and_restarts_go_on_bit_for_bit(written: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    # Each begins with the same first step, whose checkpoint says in which ways all go on to compute.
    for begun in ("training.max_steps=1", "training.max_steps=200"):
        with command(written, f"run={tmp_path / 'unbroken'}", begun) as process:
            assert process.wait(180) == 0, process.communicate()[1]
        if not (tmp_path / "begun").exists():
            shutil.copytree(tmp_path / "unbroken", tmp_path / "begun")
    wanted = list_checkpoints(tmp_path / "unbroken" / "checkpoints")[-1]
    assert wanted.step == 200
    for trial in range(TRIALS):
        shutil.copytree(tmp_path / "begun", run)
        # Without restarts: all end, and soon.
        with command(written) as process:
            wait_for(run / "checkpoints" / "step-00000020")
            ranks = ranks_of(written)
            assert len(ranks) == 2
            os.kill(ranks[trial % 2], signal.SIGKILL)
            killed = time.monotonic()
            told = process.communicate(timeout=30)[1]
            assert time.monotonic() - killed < 30
            assert process.returncode == 1
            assert "the connection to another rank is lost" in told or "Traceback" in told
            assert ranks_of(written) == []
        # With them: the run is the one that nothing befell.
        with command(written, "--max-restarts", "3") as process:
            wait_for(run / "checkpoints" / "step-00000060")
            os.kill(ranks_of(written)[(trial + 1) % 2], signal.SIGKILL)
            told = process.communicate(timeout=180)[1]
            assert process.returncode == 0, told
            assert re.search(r"going on from .*step-00000\d+", told)
        last = list_checkpoints(run / "checkpoints")[-1]
        assert last.step == 200
        for name, weight in wanted.weights().items():
            assert torch.equal(last.weights()[name], weight)
        for name, value in wanted.optimizer_state().items():
            assert torch.equal(last.optimizer_state()[name], value)
        same = [load_file(one / "bundle" / "weights.safetensors") for one in (run, tmp_path / "unbroken")]
        assert all(torch.equal(same[0][name], same[1][name]) for name in same[0])
        assert losses(run) == losses(tmp_path / "unbroken")
        shutil.rmtree(run)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the ranks in /proc")
@pytest.mark.parametrize("to", ["launcher", "rank"])
def test_a_signal_to_one_stops_all_at_the_same_step(to: str, written: Path, tmp_path: Path) -> None:
    with command(written, "training.max_steps=100000") as process:
        wait_for(tmp_path / "run" / "checkpoints" / "step-00000004")
        os.kill(process.pid if to == "launcher" else ranks_of(written)[1], signal.SIGTERM)
        told = process.communicate(timeout=60)[1]
        assert process.returncode == InterruptedRun.exit_code
        (step,) = set(re.findall(r"stopped after step (\d+); .*is kept", told))
        assert list_checkpoints(tmp_path / "run" / "checkpoints")[-1].step == int(step)
        assert "Traceback" not in told


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the ranks in /proc")
def test_a_signal_before_any_rank_trains_is_a_request_to_stop_as_well(written: Path, tmp_path: Path) -> None:
    with command(written) as process:
        end = time.monotonic() + 60.0
        while not ranks_of(written):
            assert time.monotonic() < end
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        told = process.communicate(timeout=60)[1]
        assert process.returncode == InterruptedRun.exit_code, told
        assert "Traceback" not in told
        assert "SIGTERM: stopped; the same command goes on from the newest checkpoint, if there is one" in told


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the ranks in /proc")
def test_a_rank_that_hangs_ends_all_after_the_time_out_and_each_tells_where_it_stood(written: Path, tmp_path: Path) -> None:
    with command(written, "training.max_steps=100000", "training.distributed_timeout_minutes=0.05") as process:
        wait_for(tmp_path / "run" / "checkpoints" / "step-00000004")
        stuck = ranks_of(written)[1]
        os.kill(stuck, signal.SIGSTOP)
        told = process.communicate(timeout=60)[1]
        assert process.returncode == 1
        assert "Timeout (0:00:03)!" in told
        assert re.search(r'File ".*training/(loop|world|step)\.py", line \d+ in', told)
        assert ranks_of(written) == []


@pytest.mark.slow
def test_a_mistake_is_told_once_and_not_tried_again(written: Path, tmp_path: Path) -> None:
    with command(written, f"data.root={tmp_path / 'nowhere'}", "--max-restarts", "2") as process:
        told = process.communicate(timeout=90)[1]
    assert process.returncode == DataError.exit_code
    lines = [line for line in told.splitlines() if line.startswith("dragoman: ")]
    assert len(lines) == 1
    assert "nowhere" in lines[0]
    assert "Traceback" not in told


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the ranks in /proc")
def test_ranks_do_not_outlive_their_launcher(written: Path, tmp_path: Path) -> None:
    with command(written, "training.max_steps=100000") as process:
        wait_for(tmp_path / "run" / "checkpoints" / "step-00000004")
        process.kill()
        process.wait()
        end = time.monotonic() + 30
        while ranks_of(written):
            assert time.monotonic() < end
            time.sleep(0.1)
    last = list_checkpoints(tmp_path / "run" / "checkpoints")[-1]
    assert not last.scheduled or last.step % 4 == 0


@pytest.mark.parametrize(("what", "told"), [("cannot join current thread", False), ("another", True)])
def test_a_timer_that_lets_go_of_itself_is_no_news(
    what: str, told: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def end() -> None:
        raise RuntimeError(what)

    monkeypatch.setattr(sys, "unraisablehook", _ignore_timer_errors)
    timer = DistributedContext()
    weakref.finalize(timer, end)
    del timer
    assert (what in capsys.readouterr().err) == told


def test_devices_that_cannot_share_a_step_are_refused_before_anything_starts(written: Path, tmp_path: Path) -> None:
    with command(written, "training.batches_per_update=3") as process:
        told = process.communicate(timeout=60)[1]
        assert process.returncode == RecipeError.exit_code
        assert "2 devices cannot share the batches of a step" in told
        assert len(told.splitlines()) == 1
    assert not (tmp_path / "run").exists()

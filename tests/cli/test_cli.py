"""Tests of the command line: results on standard output, messages on standard error, and one line for each error."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NoReturn

import click
import pytest
from click.testing import CliRunner
from safetensors.torch import load_file

import dragoman
import dragoman.console.input_windows
from dragoman import Translator
from dragoman.bundle import check_bundle, load_bundle
from dragoman.cleaning import cleaned_corpus
from dragoman.cli.main import COMMANDS, FURTHER_COMMANDS, SUBCOMMANDS, LazyGroup, cli, describe_interrupt, main
from dragoman.config import CorpusConfig, DecodingConfig, Recipe, parse_setting, parse_toml, read_recipe, update_section
from dragoman.config.card_config import CardConfig
from dragoman.console.input_windows import is_live_input, read_windows
from dragoman.console.options import check_output_paths
from dragoman.errors import OutputError
from dragoman.evaluation.bootstrap import paired_bootstrap
from dragoman.evaluation.metrics import bleu, character_error_rate, chrf, exact_match, ter, tokenized_bleu
from dragoman.formats.readers import read_pairs
from dragoman.formats.text import read_lines
from dragoman.training import quickstart_recipe
from progress_lines import drop_progress

pytestmark = pytest.mark.usefixtures("one_core")

RECIPES = Path(__file__).parents[2] / "recipes"


@dataclass(frozen=True)
class CliResult:
    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """Return the one line of an error, and check that there is no other output."""
        assert self.code not in (0, None)
        assert self.out == ""
        (line,) = [line for line in self.err.splitlines() if line]
        assert line.startswith("dragoman: ")
        return line

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        (line,) = self.out.splitlines()
        return json.loads(line)


RunCli = Callable[..., CliResult]


@pytest.fixture(autouse=True)
def _no_log_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch off the lines that a machine without compiled kernels would write between the messages."""
    monkeypatch.setattr(logging.root.manager, "disable", logging.INFO)


@pytest.fixture
def run_cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> RunCli:
    """Run a command as a shell does, with these arguments and this standard input."""

    def run(*words: object, stdin: bytes = b"") -> CliResult:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["dragoman", *map(str, words)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code: Any = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code
        captured = capsys.readouterr()
        return CliResult(code, captured.out, captured.err)

    return run


@pytest.fixture(scope="module")
def sources(corpus: Path) -> list[str]:
    return list(read_lines(corpus / "test.en"))


@pytest.fixture(scope="module")
def references(corpus: Path) -> list[str]:
    return list(read_lines(corpus / "test.de"))


@pytest.fixture(scope="module")
def translations(bundle: Path, sources: list[str], one_core: None) -> list[str]:
    """Return the translations of the test set by the library."""
    return [translation.text for translation in dragoman.load(bundle, task="translation").translate(sources)]


@pytest.fixture
def output(tmp_path: Path, translations: list[str]) -> Path:
    path = tmp_path / "output.de"
    path.write_text("".join(f"{line}\n" for line in translations), encoding="utf-8")
    return path


def list_names(folder: Path) -> list[str]:
    """Return the names of the files in a folder."""
    return sorted(path.name for path in folder.iterdir())


# Help


COMMAND_PATHS = [[name, *words] for name in COMMANDS for words in ([[sub] for sub in SUBCOMMANDS.get(name, ())] or [[]])]
"""Commands, and the commands of the groups that are tables."""


def examples() -> list[str]:
    """Return the command lines in the help of the commands and in the heads of the recipes."""
    runner = CliRunner()
    texts = [runner.invoke(cli, [*path, "--help"], terminal_width=200).output for path in ([], *COMMAND_PATHS)]
    texts += [path.read_text(encoding="utf-8") for path in sorted(RECIPES.glob("*.toml"))]
    line = re.compile(r"^(?:#|[\w ]*:)? +dragoman ([a-z].*?)(?:  +#.*)?$", re.MULTILINE)
    return [command_line for text in texts for command_line in line.findall(text)]


def test_examples_name_existing_commands_and_recipes(subtests: pytest.Subtests, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(RECIPES.parent)
    for example in examples():
        with subtests.test(example=example):
            check_example(example)


@cache
def list_recipe_runs() -> set[str]:
    return {str(parse_toml(path.read_text(encoding="utf-8"), where=path.name).get("run")) for path in RECIPES.glob("*.toml")}


def check_example(example: str) -> None:
    """Check the command and its options, the recipe with its settings, and the run folder of a recipe."""
    name, *words = shlex.split(example)
    command = LazyGroup().get_command(click.Context(cli), name)
    if isinstance(command, click.Group):
        name, *words = words
        command = command.get_command(click.Context(cli), name)
    assert command is not None
    params = command.make_context(name, list(words)).params
    settings = [word for word in words if "=" in word]
    if params.get("recipe") is not None:
        read_recipe(params["recipe"], settings)
    else:
        section = CardConfig() if name == "card" else DecodingConfig()
        update_section(section, dict(map(parse_setting, settings)), where=example)
    runs = [word.removesuffix("/bundle") for word in words if word.startswith("runs/") and word != str(params.get("output"))]
    assert {run.removesuffix("-2") for run in runs} <= list_recipe_runs() | {"runs/quickstart-de"}


def test_help_lists_fifteen_commands_or_all(run_cli: RunCli) -> None:
    for words in ((), ("--help",), ("-h",), ("--all",)):
        answer = run_cli(*words)
        assert (answer.code, answer.err) == (0, "")
        listed = {name for name in COMMANDS if f"  {name} " in answer.out}
        assert listed == (set(COMMANDS) if "--all" in words else set(COMMANDS) - FURTHER_COMMANDS)
        assert len(set(COMMANDS) - FURTHER_COMMANDS) <= 15
        assert "Translate:     dragoman translate en-de" in answer.out


def test_help_imports_no_libraries() -> None:
    program = """
import sys
from dragoman.cli.main import main
try:
    main()
finally:
    heavy = {"torch", "numpy", "sacrebleu", "pydantic", "rich", "pyarrow"}
    print(sorted(heavy & set(sys.modules)), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", program, "--help"], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"
    assert "Everyday use:" in done.stdout


def test_interrupt_during_imports_is_one_line() -> None:
    program = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # the caller may ignore it, as under nohup
class Interrupting:
    def find_spec(self, name, path, target=None):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
from dragoman.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "dragoman: interrupted\n")


# Translate


def test_translate_writes_a_file(run_cli: RunCli, bundle: Path, corpus: Path, translations: list[str], tmp_path: Path) -> None:
    answer = run_cli("translate", bundle, corpus / "test.en", "-o", tmp_path / "out")
    assert (answer.code, answer.out, answer.err) == (0, "", "")
    assert (tmp_path / "out").read_bytes() == "".join(f"{line}\n" for line in translations).encode()
    assert list_names(tmp_path) == ["out"]


def test_translate_reads_standard_input(run_cli: RunCli, bundle: Path, sources: list[str], translations: list[str]) -> None:
    lines = [sources[0], "", sources[1], "   ", sources[2]]
    answer = run_cli("translate", bundle, stdin="\n".join(lines).encode())
    assert answer.code == 0
    assert answer.out.split("\n") == [translations[0], "", translations[1], "   ", translations[2], ""]
    assert run_cli("translate", bundle).out == ""
    assert run_cli("translate", bundle, stdin=b"\n").out == "\n"
    assert run_cli("translate", bundle, stdin=f"{sources[0]}\r\n".encode()).out == f"{translations[0]}\n"


def test_lines_keep_their_order_over_windows(
    run_cli: RunCli, bundle: Path, corpus: Path, sources: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dragoman.console.input_windows, "FILE_WINDOW", 3)
    text = [*sources, "", *sources[:2]]
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in text), encoding="utf-8")
    option_sets: dict[str, dict[str, Any]] = {
        "": {"method": "greedy"},
        "decoding.": {"method": "sample", "temperature": 2.0, "seed": 7},
    }
    for section, options in option_sets.items():
        answer = run_cli("translate", bundle, tmp_path / "in", *(f"{section}{key}={value}" for key, value in options.items()))
        expected = dragoman.load(bundle, task="translation").translate(text, **options)
        assert answer.out.splitlines() == [translation.text for translation in expected]
    numbers = [json.loads(line)["line"] for line in run_cli("translate", bundle, tmp_path / "in", "--json").out.splitlines()]
    assert numbers == list(range(1, len(text) + 1))


def test_piped_lines_are_translated_as_they_arrive(bundle: Path) -> None:
    program = [sys.executable, "-m", "dragoman", "translate", str(bundle), "--precision", "float32"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line in ("one", "two", "one"):
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
            assert process.stdout.readline().endswith("\n")
        process.stdin.close()
        assert process.stdout.read() == ""


def test_nbest_writes_one_line_for_each_line(
    run_cli: RunCli, bundle: Path, sources: list[str], translations: list[str]
) -> None:
    text = "".join(f"{line}\n" for line in [*sources, ""]).encode()
    plain = run_cli("translate", bundle, "nbest=3", stdin=text)
    assert plain.out.splitlines() == [*translations, ""]
    entries = [json.loads(line) for line in run_cli("translate", bundle, "nbest=3", "--json", stdin=text).out.splitlines()]
    assert [entry["text"] for entry in entries] == [*translations, ""]
    assert [len(entry["alternatives"]) for entry in entries] == [2] * len(sources) + [0]


def test_translate_prints_json_lines(run_cli: RunCli, bundle: Path, sources: list[str]) -> None:
    answer = run_cli("translate", bundle, "--json", stdin=f"{sources[0]}\n\n".encode())
    first, empty = (json.loads(line) for line in answer.out.splitlines())
    (expected,) = dragoman.load(bundle, task="translation").translate(sources[:1])
    assert first == {
        "line": 1, "source": sources[0], "num_segments": 1, "text": expected.text, "score": expected.score, "status": "ok",
        "tokens": list(expected.tokens), "token_log_probs": list(expected.token_log_probs), "unmet_constraints": [],
        "alternatives": [],
    }  # fmt: skip
    assert (empty["line"], empty["status"], empty["text"]) == (2, "empty", "")


def test_translate_writes_alignments(
    run_cli: RunCli, bundle: Path, sources: list[str], translations: list[str], corpus: Path, tmp_path: Path
) -> None:
    words = ["translate", bundle, corpus / "test.en", "--alignments", tmp_path / "links"]
    assert run_cli(*words).out.splitlines() == translations
    expected = dragoman.load(bundle, task="translation").translate(sources, attention=True)
    expected_links = [" ".join(f"{source}-{target}" for source, target in sorted(item.alignment or ())) for item in expected]
    assert (tmp_path / "links").read_text().splitlines() == expected_links
    assert any(expected_links)
    assert "links: exists already" in run_cli(*words).line
    assert "links: is the name of two outputs" in run_cli(*words, "--overwrite", "-o", tmp_path / "links").line


def test_incomplete_lines_are_named(run_cli: RunCli, bundle: Path, sources: list[str], translations: list[str]) -> None:
    long = " ".join(["one"] * 40)
    line, text = next((line, text) for line, text in zip(sources, translations, strict=True) if text)
    answer = run_cli(
        "translate", bundle, "max_source_tokens=30", "long_input=error", stdin=f"{line}\n{long}\n{line}\n{long}\n".encode()
    )
    assert answer.code == 3
    assert answer.out.splitlines() == [text, "", text, ""]
    warning = "lines left untranslated: they have more than 30 tokens (decoding.long_input=split cuts them): 2 (2, 4)\n"
    assert answer.err == warning
    whole = run_cli("translate", bundle, "max_source_tokens=30", stdin=f"{line}\n{long}\n".encode())
    assert "lines were longer than 30 tokens and translated in segments: 1 (2)\n" in whole.err
    expected = dragoman.load(bundle, task="translation").translate([line, long], max_source_tokens=30)
    assert whole.out.splitlines() == [translation.text for translation in expected]
    cut = run_cli(
        "translate", bundle, "max_extra_tokens=0", "method=greedy", stdin="".join(f"{line}\n" for line in sources).encode()
    )
    assert cut.code == 3
    assert cut.err.startswith("lines cut, because their translation did not end within the input's length + 0 tokens: ")
    assert len(cut.out.splitlines()) == len(sources)


def test_evaluate_names_and_scores_incomplete_lines(run_cli: RunCli, bundle: Path, tmp_path: Path) -> None:
    test_set = tmp_path / "test.en"
    test_set.write_text(f"one\n\n{'one ' * 40}\n")
    words = ["evaluate", bundle, "--src", test_set, "--ref", test_set, "max_source_tokens=30", "long_input=error"]
    warning = "lines left untranslated: they have more than 30 tokens (decoding.long_input=split cuts them): 1 (3)\n"
    answer = run_cli(*words)
    assert answer.code == 0
    assert answer.err.endswith(warning)
    assert (
        run_cli("translate", bundle, test_set, "max_source_tokens=30", "long_input=error", "--precision", "float32").err
        == warning
    )
    counts = json.loads(run_cli(*words, "--json").out)
    assert (counts["too_long"], counts["empty"]) == (1, 0)


def test_ensemble_of_equal_bundles_is_the_bundle(
    run_cli: RunCli, bundle: Path, bundle_copy: Path, corpus: Path, translations: list[str]
) -> None:
    assert run_cli("translate", bundle, corpus / "test.en", "--ensemble", bundle_copy).out.splitlines() == translations


def test_existing_output_is_not_replaced(run_cli: RunCli, bundle: Path, corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("mine\n")
    assert "out: exists already" in run_cli("translate", bundle, corpus / "test.en", "-o", out).line
    assert out.read_text() == "mine\n"
    assert run_cli("translate", bundle, corpus / "test.en", "-o", out, "--overwrite").code == 0
    assert len(out.read_text(encoding="utf-8").splitlines()) == 8
    assert list_names(tmp_path) == ["out"]


@pytest.mark.parametrize(
    "words",
    [
        "translate BUNDLE test.en -o test.en",
        "translate BUNDLE test.en --constraints asked -o asked",
        "translate BUNDLE test.en --alignments ./test.en",
        "evaluate BUNDLE --src test.en --ref test.de -o test.de",
        "align test.en test.de -o test.de",
        "augment distill BUNDLE pairs.tsv -o pairs.tsv",
        "translate copy test.en -o copy/weights.safetensors",
        "evaluate BUNDLE --ensemble copy --src test.en --ref test.de -o copy/new",
        "tree draw test.mrg -o test.mrg",
        "augment self-train BUNDLE pairs.tsv -o none/../pairs.tsv",
        "model shortlist BUNDLE test.en test.de -o test.de",
        "model shortlist copy test.en test.de -o copy/source.model",
        "explain copy test.en -o copy/weights.safetensors",
        "explain copy test.en --svg copy",
        "paper figures copy test.en -o copy",
        "paper table4 --gold test.mrg -o test.mrg",
    ],
)
def test_inputs_are_never_overwritten(
    words: str, run_cli: RunCli, bundle: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = {"test.en": "one two\n", "test.de": "eins zwei\n", "asked": "{}\n", "pairs.tsv": "one two\teins zwei\n"}
    texts["test.mrg"] = "(S (NN dogs))\n"
    for name, text in texts.items():
        Path(name).write_text(text)
    Path("copy").symlink_to(bundle)
    asked = [bundle if word == "BUNDLE" else word for word in words.split()]
    assert "is an input of this command, which is never overwritten" in run_cli(*asked, "--overwrite").line
    assert {name: Path(name).read_text() for name in list_names(tmp_path) if name != "copy"} == texts
    check_bundle(bundle)


def test_standard_input_is_never_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "text"
    text.write_text("one two\n")
    with text.open() as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        with pytest.raises(OutputError, match="text: is an input"):
            check_output_paths(text, overwrite=True)
        check_output_paths(tmp_path / "other", overwrite=True)
    with Path(os.devnull).open() as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        check_output_paths(Path(os.devnull), overwrite=True)


def test_dash_is_standard_input_and_output(
    run_cli: RunCli, bundle: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plain = run_cli("translate", bundle, stdin=b"one two\n").out
    assert run_cli("translate", bundle, "-", stdin=b"one two\n").out == plain != ""
    assert run_cli("translate", bundle, "-o", "-", stdin=b"one two\n").out == plain
    both = ("--src", corpus / "test.en", "--ref", corpus / "test.de")
    assert "-: cannot be standard output" in run_cli("evaluate", bundle, *both, "-o", "-").line
    assert list_names(tmp_path) == []


def shell(*words: object, stdout: int) -> subprocess.CompletedProcess[str]:
    """Run a command in its own process, with buffered output."""
    program = [sys.executable, "-c", "from dragoman.cli.main import main; main()", *map(str, words)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(program, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, env=environment)


def test_name_too_long_for_a_file_is_an_error() -> None:
    done = shell("info", "x" * 300, stdout=subprocess.DEVNULL)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "name is too long for a file; give" in done.stderr or "File name too long" in done.stderr  # Python 3.14 tells later


def test_removed_folder_and_line_break_in_a_name_are_one_line(run_cli: RunCli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_cli("info", "a\nb\x1b[2J").line.startswith("dragoman: a\\nb\\x1b[2J: there is no such folder")

    def fail() -> str:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    monkeypatch.setattr(os, "getcwd", fail)
    assert run_cli("translate", "en-de", "a.txt", "-o", "b.txt").line == (
        "dragoman: the current folder: was removed; change to another one"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="needs file names of any bytes")
def test_file_name_that_is_not_utf8_is_written_as_escapes() -> None:
    done = shell("translate-file", "en-de", os.fsdecode(b"caf\xe9.txt"), "--json", stdout=subprocess.PIPE)
    assert (done.returncode, json.loads(done.stdout)["file"]) == (4, "caf\udce9.txt")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk_of_standard_output_is_an_error(output: Path, corpus: Path) -> None:
    with open("/dev/full", "w") as full:
        done = shell("score", output, "--ref", corpus / "test.de", stdout=full.fileno())
    assert done.returncode == 1
    assert done.stderr == "dragoman: standard output: the disk is full; free some space and run the command again\n"


@pytest.mark.slow
@pytest.mark.parametrize("command", ["score", "score --json", "translate"])
def test_closed_pipe_prints_no_error(command: str, output: Path, corpus: Path, bundle: Path) -> None:
    words: dict[str, list[object]] = {
        "score": ["score", output, "--ref", corpus / "test.de"],
        "score --json": ["score", output, "--ref", corpus / "test.de", "--json"],
        "translate": ["translate", bundle, corpus / "test.en"],
    }
    reader, writer = os.pipe()
    os.close(reader)  # as `| head -1` does after its line
    try:
        done = shell(*words[command], stdout=writer)
    finally:
        os.close(writer)
    assert done.returncode == 1
    assert drop_progress(done.stderr.splitlines()) == []


@pytest.mark.parametrize("terminal", [True, False])
def test_log_messages_appear_once_on_stderr(
    terminal: bool, run_cli: RunCli, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A log file shows them as well."""
    log = logging.getLogger("dragoman")
    monkeypatch.setattr(log, "handlers", [])
    monkeypatch.setattr(log, "level", log.level)
    monkeypatch.setattr(logging.root.manager, "disable", logging.NOTSET)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    for _ in range(2):
        assert run_cli("--version").code == 0
    logging.getLogger("dragoman.inference").info("reading")
    assert click.unstyle(capsys.readouterr().err).splitlines() == ["reading"]


@pytest.mark.slow
def test_closed_stdin_and_stderr_are_accepted() -> None:
    program = f"{shlex.quote(sys.executable)} -m dragoman paper differences modern --json <&- 2>&-"
    done = subprocess.run(program, shell=True, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    json.loads(done.stdout)


@pytest.mark.slow
def test_closed_stdout_is_an_error() -> None:
    program = f"{shlex.quote(sys.executable)} -m dragoman paper differences modern >&-"
    done = subprocess.run(program, shell=True, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "dragoman: standard output: is closed; open it and run the command again\n")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("train own.toml", "goes on from what is done"),
        ("-v adapt a", "goes on"),
        ("translate-file a", "--overwrite"),
        ("clean", ""),
    ],
)
def test_interrupt_says_whether_work_is_kept(words: str, hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["dragoman", *words.split()])
    assert hint in describe_interrupt()
    assert (";" in describe_interrupt()) == bool(hint)


def test_name_of_a_dash_in_a_folder_is_a_file(
    run_cli: RunCli, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("./-").absolute().write_text("one two\n", encoding="utf-8")
    assert run_cli("translate", bundle, "./-").out.count("\n") == 1
    assert "is an input of this command" in run_cli("translate", bundle, "./-", "-o", "./-").err


def test_file_with_a_format_has_a_better_command(run_cli: RunCli, bundle: Path, tmp_path: Path) -> None:
    for name, has_note in (("a.MD", True), ("a.txt", False), ("a.en", False)):
        (tmp_path / name).write_text("one two\n", encoding="utf-8")
        answer = run_cli("translate", bundle, tmp_path / name)
        assert answer.code == 0
        assert ("dragoman translate-file keeps the format of .md files" in answer.err) == has_note
    assert "translate it with dragoman translate-file" in run_cli("translate", bundle, tmp_path / "a.docx").line


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)])
def test_termination_leaves_no_partial_output(number: signal.Signals, bundle: Path, tmp_path: Path) -> None:
    words = ["translate", str(bundle), "-o", str(tmp_path / "out"), "--precision", "float32"]
    with subprocess.Popen(
        [sys.executable, "-m", "dragoman", *words],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # the caller may ignore the signal, as under nohup
    ) as process:
        until = time.monotonic() + 240
        while not list_names(tmp_path) and process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        assert list_names(tmp_path) != []
        process.send_signal(number)
        assert process.wait(240) == 130
        assert process.stderr is not None
        assert drop_progress(process.stderr.read().strip().splitlines()) == ["dragoman: interrupted"]
    assert list_names(tmp_path) == []


def test_windows_end_where_a_pipe_would_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    with open(reader, encoding="utf-8") as stdin, open(writer, "wb", buffering=0) as pipe:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert is_live_input(None)
        assert not is_live_input(Path("file"))
        windows = read_windows(read_lines(None), None, 3)
        pipe.write(b"1\n")
        assert next(windows) == ["1"]
        pipe.write(b"2\n")
        assert next(windows) == ["2"]
        pipe.write(b"3\n4\n5\n6\n")
        pipe.close()
        assert list(windows) == [["3", "4", "5"], ["6"]]


def test_non_finite_numbers_are_usage_errors(subtests: pytest.Subtests, run_cli: RunCli, bundle: Path) -> None:
    for number in ["nan", "inf", "-1", "0", "many"]:
        with subtests.test(number=number):
            for words in (["paper", "table1", "--budget"], ["paper", "table2", "nowhere", "--tflops"]):
                assert words[-1] in run_cli(*words, number).line
            if number in ("nan", "inf", "many"):
                assert "--min-score" in run_cli("parse", bundle, "--min-score", number).line


NOHUP = """
import os, signal
from dragoman.training.distributed.signals import stop_on_signals

signal.signal(signal.SIGHUP, signal.SIG_IGN)
with stop_on_signals() as request:
    os.kill(os.getpid(), signal.SIGHUP)
    os.kill(os.getpid(), signal.SIGTERM if request.reason is None else signal.SIGKILL)
    print(request.reason)
"""


def test_run_under_nohup_ignores_sighup() -> None:
    assert subprocess.run([sys.executable, "-c", NOHUP], capture_output=True, text=True, check=True).stdout == "SIGTERM\n"


def test_broken_stderr_does_not_end_the_work() -> None:
    program = (
        "from dragoman.console.terminal import rich_console, stderr_console\n"
        "for _ in range(9): stderr_console().print('text', markup=False)\n"
        "for _ in range(9): rich_console().print('text', end='')\n"
        "print('done')"
    )
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as broken:
        done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=broken, check=False)
    assert (done.returncode, done.stdout) == (0, b"done\n")


def test_output_is_utf_8_in_every_locale(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"green\n")))
    monkeypatch.setattr(sys, "argv", ["dragoman", "translate", str(bundle)])
    main()
    (expected,) = dragoman.load(bundle, task="translation").translate(["green"])
    assert "ü" in expected.text
    assert written.getvalue() == f"{expected.text}\n".encode()


@pytest.mark.parametrize(("place", "to"), [("file", "output"), ("standard input", "screen")])
def test_invalid_utf_8_is_named_with_its_line(
    place: str, to: str, run_cli: RunCli, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = b"one\ntwo\nthr\xe9e\nfour\n"
    (tmp_path / "in").write_bytes(content)
    where: list[object] = ["-o", tmp_path / "out"] if to == "output" else []
    if place == "file":
        monkeypatch.setattr(
            dragoman.console.input_windows, "FILE_WINDOW", 1
        )  # all lines of a file are read before the first translation
        line = run_cli("translate", bundle, tmp_path / "in", *where).line
        assert f"{tmp_path / 'in'}, line 3: not UTF-8 (byte 0xe9 at column 4)" in line
    else:
        line = run_cli("translate", bundle, *where, stdin=content).line
        assert "standard input, line 3: not UTF-8 (byte 0xe9 at column 4)" in line
    assert list_names(tmp_path) == ["in"]


# Scores


def test_score_with_references_equals_the_metrics(
    run_cli: RunCli, output: Path, corpus: Path, translations: list[str], references: list[str]
) -> None:
    scores = run_cli("score", output, "--ref", corpus / "test.de", "--json").json["scores"]
    metrics = (bleu, chrf, partial(chrf, word_order=2), ter, exact_match, character_error_rate)
    expected = [metric(translations, [references]) for metric in metrics]
    assert scores == [{key: value for key, value in asdict(score).items() if value is not None} for score in expected]
    table = run_cli("score", output, "--ref", corpus / "test.de").out
    for score in expected:
        assert f"{score.value:.2f}" in table


def test_score_with_language_tokens_and_several_references(
    run_cli: RunCli, output: Path, corpus: Path, translations: list[str], references: list[str]
) -> None:
    names = [
        score["name"]
        for score in run_cli("score", output, "--ref", corpus / "test.de", "--language", "de", "--json").json["scores"]
    ]
    assert names == ["BLEU", "Moses BLEU", "compound-split BLEU", "chrF2", "chrF2++", "TER", "exact match", "CER"]
    tokenized, *_ = run_cli("score", output, "--ref", corpus / "test.de", "--tokenized", "--json").json["scores"]
    assert (tokenized["name"], tokenized["value"]) == ("tokenized BLEU", tokenized_bleu(translations, [references]).value)
    twice, *_ = run_cli("score", output, "--ref", corpus / "test.de", "--ref", output, "--json").json["scores"]
    assert twice["value"] == bleu(translations, [references, translations]).value


def test_score_with_bundle_equals_forced_scores(
    run_cli: RunCli, output: Path, bundle: Path, corpus: Path, sources: list[str], translations: list[str]
) -> None:
    scores = run_cli("score", output, "--bundle", bundle, "--src", corpus / "test.en", "--json").json["model"]
    expected = dragoman.load(bundle, task="translation").score(sources, translations)
    log_probs = [value for translation in expected for value in translation.token_log_probs]
    assert scores["scores"] == [translation.score for translation in expected]
    assert scores["tokens"] == len(log_probs)
    assert scores["nll"] == pytest.approx(-sum(log_probs) / len(log_probs))
    plain = run_cli("score", output, "--bundle", bundle, "--src", corpus / "test.en")
    assert plain.out.splitlines() == [f"{translation.score:.4f}" for translation in expected]
    assert plain.err == f"perplexity {scores['perplexity']:.4f} over {scores['tokens']} tokens\n"


def test_score_takes_all_lines_that_translate_writes(run_cli: RunCli, bundle: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "source", tmp_path / "output"
    source.write_text("one two\n\nred\n \n" + "one " * 1100 + "\n", encoding="utf-8")
    run_cli("translate", bundle, source, "-o", output, "max_source_tokens=40")
    assert output.read_text(encoding="utf-8").count("\n") == 5
    result = run_cli("score", output, "--bundle", bundle, "--src", source)
    scores = result.out.splitlines()
    assert [score == "nan" for score in scores] == [False, True, False, True, True]
    assert "because the source has no text: 2 (2, 4)" in result.err
    assert "because they have more than 1024 tokens: 1 (5)" in result.err
    document = run_cli("score", output, "--bundle", bundle, "--src", source, "--json").json["model"]
    assert [score if score is None else f"{score:.4f}" for score in document["scores"]] == [
        None if score == "nan" else score for score in scores
    ]


def test_evaluate_scores_translations_of_a_bundle(
    run_cli: RunCli, bundle: Path, corpus: Path, sources: list[str], references: list[str], tmp_path: Path
) -> None:
    words = ["evaluate", bundle, "--src", corpus / "test.en", "--ref", corpus / "test.de"]
    result = run_cli(*words, "--json", "-o", tmp_path / "out").json
    translator = dragoman.load(bundle, task="translation", precision="float32")
    translations = [translation.text for translation in translator.translate(sources)]
    assert (tmp_path / "out").read_text(encoding="utf-8").splitlines() == translations
    assert result["sentences"] == 8
    values = {score["name"]: score["value"] for score in result["scores"]}
    # The recipe gives the language.
    assert list(values) == ["BLEU", "Moses BLEU", "compound-split BLEU", "chrF2", "chrF2++", "TER", "exact match", "CER"]
    assert values["BLEU"] == bleu(translations, [references]).value
    assert [result[status] for status in ("truncated", "repetition", "copied", "empty", "too_long")] == [0] * 5
    assert f"{values['BLEU']:.2f}" in run_cli(*words).out
    greedy = [translation.text for translation in translator.translate(sources, method="greedy")]
    assert run_cli(*words, "--json", "method=greedy").json["scores"][0]["value"] == bleu(greedy, [references]).value


def test_compare_equals_paired_bootstrap(
    run_cli: RunCli, output: Path, corpus: Path, translations: list[str], references: list[str], sources: list[str]
) -> None:
    result = run_cli(
        "compare", output, corpus / "test.en", "--ref", corpus / "test.de", "--metric", "chrf", "--resamples", "50", "--json"
    ).json
    expected = paired_bootstrap(translations, sources, [references], metric="chrf", resamples=50)
    assert result["difference"] == expected.difference
    assert result["p_value"] == expected.p_value
    assert result["significant"] == expected.is_significant
    assert result["interval"] == list(expected.interval)
    answer = run_cli(
        "compare", output, corpus / "test.en", "--ref", corpus / "test.de", "--metric", "chrf", "--resamples", "50"
    )
    assert expected.describe(str(output), str(corpus / "test.en")) in answer.out
    rows = [line for line in answer.out.splitlines() if expected.a.signature in line]
    assert [path.name in row for path, row in zip((output, corpus / "test.en"), rows, strict=True)] == [True, True]
    assert answer.err.startswith("8 sentences: with fewer than 300, a bootstrap underestimates the uncertainty")


# Bundles and machines


def test_info_describes_a_bundle(run_cli: RunCli, bundle: Path) -> None:
    document = run_cli("info", bundle, "--json").json
    whole = load_bundle(bundle)
    assert Recipe.model_validate(document["recipe"]) == whole.recipe
    assert document["metadata"] == whole.metadata.to_dict()
    assert document["vocabulary"] == {"source": 80, "target": 80}
    assert document["bytes"] == sum(path.stat().st_size for path in bundle.iterdir())
    shown = run_cli("info", bundle).out
    assert "paper" not in shown
    assert "size base" not in shown  # whose d_model is 512
    text = run_cli("info", bundle, "--all").out
    for expected in ("translation en → de", "1 encoder, 1 decoder, pre-norm", "d_model 16, d_ff 32, 2 heads of 8", "80 source"):
        assert expected in text
    assert all(sentence in text for sentence in whole.metadata.paper_deviations or [])


def test_doctor_describes_this_machine(run_cli: RunCli) -> None:
    document = run_cli("doctor", "--json").json
    assert document["dragoman"] == dragoman.__version__
    assert document["processors"] == os.cpu_count()
    assert document["disk_free_gib"] == pytest.approx(shutil.disk_usage(Path.cwd()).free / 2**30, abs=1.0)
    assert isinstance(document["remarks"], list)
    assert dragoman.__version__ in run_cli("doctor").out


def test_brackets_in_names_are_no_markup(run_cli: RunCli, bundle: Path, output: Path, corpus: Path, tmp_path: Path) -> None:
    # The library that draws the tables has markup in brackets.
    odd = Path(shutil.copytree(bundle, tmp_path / "[bold" / "[" / "red]"))
    assert "[bold" in run_cli("info", odd).out.replace("\n", "")
    shutil.copy(output, tmp_path / "[de]")
    assert "[de]" in run_cli("score", tmp_path / "[de]", "--ref", corpus / "test.de").out.replace("\n", "")


def test_run_folder_accepts_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quickstart_recipe, "PAIR_COUNTS", {"train": 5, "valid": 2, "test": 2})
    run = tmp_path / 'o\'brien \\ "über" 🦊'
    recipe = quickstart_recipe.prepare_quickstart("de", run, seed=1, changes=(), notice=lambda _: None).recipe
    assert (recipe.run, recipe.data.root) == (str(run), str(run / "text"))


# Train


def recipe_file(folder: Path, corpus: Path, run: Path, *lines: str) -> Path:
    path = folder / "recipe.toml"
    path.write_text(
        "\n".join(
            [
                'name = "tiny"', f'run = "{run}"', 'preset = "modern"', 'size = "tiny"',
                "[data]", f'root = "{corpus}"',
                'train = {source = "train.en", target = "train.de"}', 'valid = {source = "valid.en", target = "valid.de"}',
                'test = {source = "test.en", target = "test.de"}', "max_length = 40",
                "[tokenizer]", "vocab_size = 80", "byte_fallback = false",
                "[model]", "encoder_layers = 1", "decoder_layers = 1", "d_model = 16", "d_ff = 32", "num_heads = 2",
                "[training]", "batch_tokens = 130", "max_steps = 6", "precision = 'float32'", "log_every_steps = 2",
                "checkpoint_every_steps = 2", "num_validation_translations = 2", *lines,
            ]
        )
    )  # fmt: skip
    return path


def test_prepare_counts_dropped_pairs(run_cli: RunCli, corpus: Path, tmp_path: Path) -> None:
    recipe = recipe_file(tmp_path, corpus, tmp_path / "run")
    text = tmp_path / "odd.tsv"
    text.write_text("one\teins\n\tzwei\nthree\tthree\none\teins\nfour four four four\tvier vier vier vier\n")
    mixture = f"{{odd={{file='{text}'}}, whole={{source='train.en', target='train.de'}}}}"
    toml = [line for line in recipe.read_text().splitlines() if not line.startswith("train =")]
    recipe.write_text("\n".join(toml))
    rules = ["data.cleaning.source_equals_target=true", "data.cleaning.duplicate_pairs=true", "data.max_length=16"]
    words = ["prepare", recipe, f"data.corpora={mixture}", *rules]
    corpora = run_cli(*words, "--json").json["corpora"]
    assert list(corpora) == ["odd", "whole", "valid"]
    odd = corpora["odd"]
    assert (odd["read"], odd["dropped"]) == (5, {"empty": 1, "source-equals-target": 1, "duplicate-pair": 1})
    assert odd["kept"] + odd["overlong_pairs"] == 2
    answer = run_cli(*words)
    assert (
        "odd: 2 pairs dropped by cleaning (source-equals-target 1, duplicate-pair 1; examples in cleaning.html)" in answer.err
    )
    assert f"odd: 1 pairs with an empty side dropped ({text}:2)" in answer.err
    rows = [re.split("  +", line) for line in answer.out.splitlines()[2:]]
    names = ("read", "overlong_pairs", "kept", "source_tokens", "target_tokens")
    assert rows == [
        [name, *(f"{value:,}" for value in (part["read"], sum(part["dropped"].values()), *(part[key] for key in names[1:])))]
        for name, part in corpora.items()
    ]


# Clean

DIRTY = [
    ("one", "eins"), ("", "zwei"), ("Three", "three"), ("two & <five>", "zwei „&“ fünf"), ("one", "eins"), ("ten", "zehn"),
]  # fmt: skip
CLEAN = [DIRTY[0], DIRTY[3], DIRTY[5]]
RULES = ["data.cleaning.source_equals_target=true", "data.cleaning.duplicate_pairs=true"]


@pytest.fixture
def dirty(tmp_path: Path) -> list[str]:
    """Return the arguments that clean a corpus with two faulty pairs and a duplicate, without the output folder."""
    path = tmp_path / "dirty.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in DIRTY), encoding="utf-8")
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('[task]\nsource_language = "en"\ntarget_language = "de"\n')
    return ["clean", str(recipe), f"data.train={{file='{path}'}}", *RULES]


FORMATS: dict[str, dict[str, str]] = {
    "tsv": {"file": "train.tsv"},
    "lines": {"source": "train.en", "target": "train.de"},
    "jsonl": {"file": "train.jsonl"},
    "tmx": {"file": "train.tmx"},
    "parquet": {"file": "train.parquet"},
}


@pytest.mark.parametrize("pair_format", FORMATS)
def test_clean_writes_kept_pairs_in_any_format(pair_format: str, run_cli: RunCli, dirty: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run_cli(*dirty, "-o", out, "--format", pair_format, "--json").json
    assert result["folder"] == str(out)
    assert json.loads((out / "cleaning.json").read_bytes()) == result["corpora"]
    stats = result["corpora"]["train"]
    assert (stats["num_read"], stats["num_kept"]) == (6, 3)
    counts = {name: part["num_dropped"] for name, part in stats["filters"].items()}
    assert counts == {"empty": 1, "source-equals-target": 1, "duplicate-pair": 1}
    assert stats["filters"]["source-equals-target"]["examples"] == [["Three", "three", f"{tmp_path / 'dirty.tsv'}:3"]]
    names = FORMATS[pair_format]
    assert list_names(out) == sorted(["cleaning.html", "cleaning.json", "manifest.json", *names.values()])
    corpus = CorpusConfig.model_validate(names)
    pairs = list(read_pairs(corpus, out, source_language="en", target_language="de"))
    assert [(pair.source, pair.target) for pair in pairs] == CLEAN
    page = (out / "cleaning.html").read_text(encoding="utf-8")
    assert "The sides are equal, ignoring case and spaces." in page
    assert ">Three</" in page


def test_clean_prints_counts_of_each_filter(run_cli: RunCli, dirty: list[str], tmp_path: Path) -> None:
    answer = run_cli(*dirty, "-o", tmp_path / "out")
    *rows, filters = [re.split("  +", line) for line in answer.out.splitlines()[2:]]
    assert filters[0].startswith("2 of 13 filters are on; off: control, duplicate-source, eval-overlap, ")
    assert [row[:2] for row in rows] == [
        ["read", "6"], ["empty", "1"], ["source-equals-target", "1"], ["duplicate-pair", "1"], ["kept", "3"],
    ]  # fmt: skip
    assert "cleaning.html" in answer.out.replace("\n", "")
    assert answer.err == ""
    assert list_names(tmp_path / "out") == ["cleaning.html", "cleaning.json", "manifest.json", "train.tsv"]


def test_clean_reads_a_pipe_and_a_mixture(run_cli: RunCli, dirty: list[str], tmp_path: Path) -> None:
    text_corpus = f"{{file='{tmp_path / 'dirty.tsv'}', skip_filters=['source-equals-target']}}"
    mixture = f"data.corpora={{piped={{file='-', format='tsv'}}, text={text_corpus}}}"
    words = [dirty[0], dirty[1], mixture, *RULES, "-o", tmp_path / "out", "--json"]
    corpora = run_cli(*words, stdin=b"ten\tzehn\nten\tzehn\n").json["corpora"]
    assert {name: (stats["num_read"], stats["num_kept"]) for name, stats in corpora.items()} == {
        "piped": (2, 1),
        "text": (6, 3),
    }
    assert (tmp_path / "out" / "piped.tsv").read_text() == "ten\tzehn\n"
    text = (tmp_path / "out" / "text.tsv").read_text(encoding="utf-8").splitlines()
    assert text == ["one\teins", "Three\tthree", "two & <five>\tzwei „&“ fünf"]


def test_clean_does_not_replace_a_foreign_folder(run_cli: RunCli, dirty: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("mine")
    assert "out: exists already; give another name" in run_cli(*dirty, "-o", out).line
    assert list_names(out) == ["mine"]
    assert run_cli(*dirty).code == 2


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["data.train={file='{tmp}/none.tsv'}"], 1, "none.tsv: there is no such file"),
        (["data.train={file='{tmp}/bad.tsv'}"], 1, "bad.tsv, line 2: not UTF-8"),
        (["data.train={file='{tmp}/bad.unknown'}"], 1, "the ending '.unknown' does not name a format"),
        (["data.cleaning.mojibake=true"], 1, "pip install 'dragoman[cleaning]'"),
        (["data.cleaning.eval_overlap=true"], 2, "data.cleaning.eval_overlap needs evaluation data"),
        (["data.cleaning.nonsense=true"], 2, "data.cleaning.nonsense is not a key"),
        (["task.target_language=", "--format", "tmx"], 2, "format tmx: its files name both languages"),
        (["--format", "xliff"], 2, "'xliff' is not one of"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_error_in_cleaning_leaves_no_files(
    words: list[str],
    code: int,
    message: str,
    run_cli: RunCli,
    dirty: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ftfy", None)
    monkeypatch.setitem(sys.modules, "ftfy.badness", None)
    (tmp_path / "bad.tsv").write_bytes(b"one\teins\ntwo\tzw\xffei\n")
    (tmp_path / "bad.unknown").touch()
    before = list_names(tmp_path)
    answer = run_cli(*dirty, *(word.replace("{tmp}", str(tmp_path)) for word in words), "-o", tmp_path / "out")
    assert message in answer.line
    assert answer.code == code
    assert list_names(tmp_path) == before


@pytest.mark.parametrize("command", ["clean", "prepare"])
def test_ctrl_c_while_reading_leaves_no_output(
    command: str, run_cli: RunCli, dirty: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that `clean` leaves no files, and that `prepare` resumes."""
    chunks = cleaned_corpus.split_into_chunks

    def interrupted(*_: Any, **__: Any) -> NoReturn:
        raise KeyboardInterrupt

    before = list_names(tmp_path)
    more = ["-o", tmp_path / "out"] if command == "clean" else [f"run={tmp_path / 'out'}", "tokenizer.vocab_size=280"]
    monkeypatch.setattr(cleaned_corpus, "split_into_chunks", interrupted)
    answer = run_cli(command, *dirty[1:], *more)
    hint = "; the same command goes on from what is done" if command == "prepare" else ""
    assert (answer.code, answer.out, answer.err.splitlines()[-1]) == (130, "", f"dragoman: interrupted{hint}")
    monkeypatch.setattr(cleaned_corpus, "split_into_chunks", chunks)
    if command == "clean":
        assert list_names(tmp_path) == before
    else:
        assert list_names(tmp_path / "out") == [".data.partial"]
        assert "resuming an interrupted preparation" in run_cli(command, *dirty[1:], *more).err
        assert list_names(tmp_path / "out") == ["data"]


def test_sigterm_while_reading_ends_a_training_with_one_line(
    run_cli: RunCli, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def terminated(*_: Any, **__: Any) -> None:
        assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL  # which would end the tests
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(cleaned_corpus, "split_into_chunks", terminated)
    answer = run_cli("train", recipe_file(tmp_path, corpus, tmp_path / "run"))
    assert (answer.code, answer.err.splitlines()[-1]) == (
        130,
        "dragoman: interrupted; the same command goes on from what is done",
    )


def test_prepare_train_and_average_write_their_outputs(
    run_cli: RunCli, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # no charts, which take half of the time
    run = tmp_path / "run"
    recipe = recipe_file(tmp_path, corpus, run)
    prepared = run_cli("prepare", recipe, "--json").json
    assert (prepared["folder"], prepared["is_new"]) == (str(run / "data"), True)
    assert prepared["corpora"]["train"]["kept"] == 60
    assert prepared["corpora"]["valid"]["kept"] == 10
    assert run_cli("prepare", recipe, "--json").json["is_new"] is False
    again = run_cli("prepare", recipe)
    assert "nothing changed, nothing to do" in " ".join(again.out.split())
    assert again.err == ""

    answer = run_cli("train", recipe, "--json")
    report = answer.json
    assert report == json.loads((run / "report.json").read_text(encoding="utf-8"))
    assert report["steps"] == 6
    assert "step       6  epoch" in answer.err
    assert "validation" in answer.err
    assert "60 pairs, about 1,059 target tokens: size tiny" in answer.err
    assert "model.norm = pre" not in answer.err
    monkeypatch.setattr(logging.root.manager, "disable", logging.NOTSET)
    again = run_cli("-v", "train", recipe)
    assert "model.norm = pre; the text has post (section 3.1), its code has post" in again.err
    assert again.code == 0
    assert "the budget is spent after step 6; nothing is left to train" in again.err
    assert "step       6  epoch" not in again.err
    assert "validation perplexity" in again.out

    result = run_cli("model", "average", run, "--last", "2", "-o", tmp_path / "mean", "--json").json
    assert result == {"bundle": str(tmp_path / "mean"), "averaged_checkpoints": ["step-00000004", "step-00000006"]}
    weights = [load_file(run / "checkpoints" / name / "model.safetensors") for name in result["averaged_checkpoints"]]
    for name, weight in load_file(tmp_path / "mean" / "weights.safetensors").items():
        assert (weight.double() - (weights[0][name].double() + weights[1][name].double()) / 2).abs().max() < 1e-7
    assert run_cli("translate", tmp_path / "mean", stdin=b"one\n").code in (0, 3)


def test_run_folder_stands_for_its_bundle(run_cli: RunCli, bundle: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(bundle, run / "bundle")
    (run / "recipe.json").write_text("{}")
    assert run_cli("info", run, "--json").json["bundle"] == str(run / "bundle")


# Errors


ERRORS: list[tuple[list[str], int, str]] = [
    (["nosuch"], 2, "No such command 'nosuch'; choose a command (see dragoman --help)"),
    (["translat"], 2, "No such command 'translat'; did you mean translate? (see dragoman --help)"),
    (["quantize"], 2, "No such command 'quantize'; did you mean model quantize? (see dragoman --help)"),
    (["augment", "destill"], 2, "No such command 'destill'; did you mean distill? (see dragoman augment --help)"),
    (["--nosuch"], 2, "No such option"),
    (["translate", "{bundle}", "--source", "de"], 2, "No such option '--source'; did you mean --from?"),
    (["translate"], 2, "Missing argument 'BUNDLE'; for example: dragoman translate en-de"),
    (["translate", "{tmp}/nowhere"], 1, "nowhere: there is no such folder"),
    (["translate", "{tmp}/empty"], 1, "empty: holds no manifest.json"),
    (["translate", "{bundle}", "{tmp}/nowhere.en"], 1, "nowhere.en: there is no such file"),
    (["translate", "{bundle}", "{tmp}/empty"], 1, "empty: is a folder; give a file"),
    (["translate", "{bundle}", "{en}", "{de}"], 2, "test.de: is a second file"),
    (["translate", "{bundle}", "beam=4"], 2, "beam is not a key; did you mean beam_size?"),
    (["translate", "{bundle}", "beam_size=0"], 2, "beam_size = 0"),
    (["translate", "{bundle}", "attention=true"], 2, "attention is not a key"),
    (["translate", "{bundle}", "training.max_steps=3"], 2, "training.max_steps is not a key"),
    (["score", "{de}"], 2, "give --ref FILE, or --bundle and --src (see dragoman score --help)"),
    (["score", "{de}", "--bundle", "{bundle}"], 2, "--bundle and --src go together"),
    (["score", "{de}", "--ref", "{tmp}/nowhere.de"], 1, "nowhere.de: there is no such file"),
    (["score", "{de}", "--ref", "{valid}"], 1, "test.de has 8 lines but {valid} has 10"),
    (["score", "{de}", "--bundle", "{bundle}", "--src", "{valid}"], 1, "test.de has 8 lines but {valid} has 10"),
    (["score", "{tmp}/blank", "--ref", "{tmp}/blank"], 1, "blank: is empty"),
    (["evaluate", "{bundle}", "--src", "{en}"], 2, "give --ref FILE"),
    (["evaluate", "{bundle}", "--src", "{en}", "--ref", "{valid}"], 1, "test.en has 8 lines but {valid} has 10"),
    (["evaluate", "{bundle}", "--src", "{tmp}/blank", "--ref", "{tmp}/blank", "-o", "{tmp}/out"], 1, "blank: is empty"),
    (["evaluate", "{bundle}", "--src", "{en}", "--ref", "{de}", "-o", "{tmp}/blank"], 1, "blank: exists already"),
    (["evaluate", "{bundle}", "--src", "{en}", "--ref", "{de}", "beam_size"], 2, "'beam_size' is not a setting"),
    (["compare", "{de}", "{valid}", "--ref", "{de}"], 1, "test.de has 8 lines but {valid} has 10"),
    (["compare", "{de}", "{de}", "--ref", "{de}", "--metric", "odd"], 2, "'odd' is not one of"),
    (["compare", "{de}", "{de}", "--ref", "{de}", "--resamples", "3"], 2, "resamples = 3: too few"),
    (["info", "{de}"], 1, "test.de"),
    (["model", "average", "{run}", "-o", "{tmp}/out"], 2, "give either --last N or --best N"),
    (["model", "average", "{run}", "--last", "1", "--best", "1", "-o", "{tmp}/out"], 2, "give either --last N or --best N"),
    (["model", "average", "{run}", "--last", "9", "-o", "{tmp}/out"], 1, "9 checkpoints are asked for, but it holds 4"),
    (["model", "average", "{run}", "--last", "1", "-o", "{tmp}/blank"], 1, "blank"),
    (["train", "{tmp}/nowhere.toml"], 2, "nowhere.toml: there is no such recipe"),
    (
        ["train", "nowhere"],
        2,
        "nowhere: there is no such recipe; the package has cleaning, digits-out, en-de, en-zh, ",
    ),
    (
        ["train", "multi30k-enfr", "data.root={tmp}", "run={tmp}/run"],
        1,
        "test_2016_flickr.en.gz: there is no such file (data.root = ",
    ),
    (
        ["prepare", "multi30k-enfr", "data.root={tmp}", "run={tmp}/run"],
        1,
        "check its name, or see the first lines of ",
    ),
    (["clean", "multi30k-enfr", "data.root={tmp}", "-o", "{tmp}/out"], 1, "train.en.gz: there is no such file (data.root"),
    (["train", "{tmp}/blank"], 2, "data.train"),
    (["prepare", "{en}"], 2, "test.en, line 1, column 5: not TOML"),
]
"""Words of a command, its exit status and what its line says."""


def test_every_error_is_one_line(
    subtests: pytest.Subtests,
    run_cli: RunCli,
    bundle: Path,
    trained: Path,
    corpus: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    for words, code, message in ERRORS:
        with subtests.test(words=words, code=code, message=message):
            tmp_path = tmp_path_factory.mktemp("case")
            (tmp_path / "empty").mkdir()
            (tmp_path / "blank").write_text("")
            paths = {
                "tmp": tmp_path, "bundle": bundle, "run": trained, "en": corpus / "test.en", "de": corpus / "test.de",
                "valid": corpus / "valid.de",
            }  # fmt: skip
            if words[0] == "train" and "nowhere" not in words[1]:  # its header comes first
                words = [*words, f"run='{tmp_path / 'run'}'"]
                answer = run_cli(*(word.format(**paths) for word in words))
                assert answer.err.splitlines()[-1].startswith("dragoman: ")
                assert message in answer.err.splitlines()[-1]
            else:
                answer = run_cli(*(word.format(**paths) for word in words))
                assert message.format(**paths) in answer.line
            assert answer.code == code
            assert list_names(tmp_path) == ["blank", "empty"]
            assert (tmp_path / "blank").read_text() == ""


def test_programming_error_shows_its_traceback(run_cli: RunCli, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> NoReturn:
        raise ZeroDivisionError

    monkeypatch.setattr(Translator, "translate", broken)
    with pytest.raises(ZeroDivisionError):
        run_cli("translate", bundle, stdin=b"one\n")

"""Programs that encode a corpus: how each is installed, and its commands.

Each program has its own environment in the work folder, made from a pinned list beside this file.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from common.environments import MissingPeerError, describe_versions, make_environment
from common.usage import CommandError, run_commands

from .corpora import BaseCorpus, TextCorpus, read_text

HERE = Path(__file__).parent
# Debian 12 packages of the program and of the libraries that it is linked with.
DEBIAN = ("sentencepiece", "libsentencepiece0", "libgoogle-perftools4", "libtcmalloc-minimal4", "libprotobuf-lite32")


@dataclass(frozen=True)
class EncodingPeer:
    """Program that encodes the text to ids."""

    name: str
    commands: list[list[str | Path]]
    """Commands that run at once, on both cores."""
    outputs: list[Path]
    """Files and folders that are removed before each run."""
    environment: Mapping[str, str] = field(default_factory=dict)
    count_tokens: Callable[[], int] | None = None
    """Function that counts the subword tokens of both sides in the outputs; None if the format does not allow it."""


def spm_encode(base: BaseCorpus, text: TextCorpus, work: Path) -> EncodingPeer:
    """Return SentencePiece's own program, from the path or unpacked from Debian's packages."""
    program, libraries = shutil.which("spm_encode"), ""
    if program is None:
        folder = work / "environments" / "spm_encode"
        unpacked = folder / "usr" / "bin" / "spm_encode"
        if not unpacked.exists():
            _unpack_debian(folder)
        program = str(unpacked)
        libraries = ":".join(sorted({str(path.parent) for path in folder.rglob("*.so*")}))
    environment = {"LD_LIBRARY_PATH": libraries} if libraries else {}
    try:
        version = run_commands([program, "--version"], environment=environment).output.split()[-1]
    except (CommandError, IndexError) as error:
        raise MissingPeerError(f"{program} does not run: {error}") from None
    outputs = [work / "out" / f"spm_encode.{side}" for side in ("en", "de")]
    return EncodingPeer(
        f"spm_encode {version}",
        [
            [program, f"--model={base.model}", "--output_format=id", f"--input={source}", f"--output={output}"]
            for source, output in zip(text.files, outputs, strict=True)
        ],
        outputs,
        environment,
        lambda: _words(outputs),
    )


def _unpack_debian(folder: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise MissingPeerError(
            "spm_encode: is not on the path, and apt-get is missing; install the Debian package sentencepiece"
        )
    folder.mkdir(parents=True, exist_ok=True)
    try:
        run_commands(["apt-get", "download", *DEBIAN], folder=folder, limit_seconds=120.0)
        for package in sorted(folder.glob("*.deb")):
            run_commands(["dpkg", "-x", package, folder], folder=folder)
    except CommandError as error:
        raise MissingPeerError(
            f"spm_encode: is not on the path, and the Debian package cannot be downloaded: {error}"
        ) from None


def sentencepiece_python(base: BaseCorpus, text: TextCorpus, work: Path, programs: Path) -> EncodingPeer:
    """Return SentencePiece's Python API at the version that dragoman uses."""
    outputs = [work / "out" / f"python.{side}" for side in ("en", "de")]
    return EncodingPeer(
        f"Python API, {describe_versions(programs, 'sentencepiece')}",
        [
            [programs / "python", HERE / "peer_sentencepiece.py", base.model, source, output]
            for source, output in zip(text.files, outputs, strict=True)
        ],
        outputs,
        count_tokens=lambda: _words(outputs),
    )


def datasets_map(base: BaseCorpus, text: TextCorpus, work: Path, programs: Path) -> EncodingPeer:
    """Return Hugging Face datasets with a BPE tokenizer of equal size, trained beforehand on the same text."""
    script = HERE / "peer_datasets.py"
    tokenizer = work / "text" / f"{base.model.stem}.tokenizer.json"
    if not tokenizer.exists():
        run_commands([programs / "python", script, "learn", str(base.vocab_size), tokenizer, *base.text.files])
    tsv = text.source.with_suffix(".tsv")
    if not tsv.exists():
        with tsv.open("w", encoding="utf-8", newline="\n") as stream:
            stream.writelines(f"{source}\t{target}\n" for source, target in read_text(text))
    folder, cache = work / "out" / "datasets", work / "out" / "datasets-cache"
    return EncodingPeer(
        describe_versions(programs, "datasets", "tokenizers"),
        [[programs / "python", script, "encode", tokenizer, tsv, folder, cache]],
        [folder, cache],
    )


def eole(base: BaseCorpus, text: TextCorpus, work: Path, programs: Path) -> EncodingPeer:
    """Return Eole's `build_vocab` over every line, because Eole tokenizes while it trains and stores no ids."""
    folder = work / "out" / "eole"
    config = work / "text" / f"eole-{text.source.stem}.yaml"
    lines = [
        f"save_data: {folder / 'out'}",
        f"src_vocab: {folder / 'vocab'}",
        "share_vocab: true",
        "overwrite: true",
        "n_sample: -1",
        "num_threads: 2",
        "transforms: [sentencepiece]",
        "transforms_configs:",
        "  sentencepiece:",
        f"    src_subword_model: {base.model}",
        f"    tgt_subword_model: {base.model}",
        "data:",
        "  corpus:",
        f"    path_src: {text.source}",
        f"    path_tgt: {text.target}",
    ]
    config.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return EncodingPeer(
        f"{describe_versions(programs, 'eole')} build_vocab",
        [[programs / "eole", "build_vocab", "-config", config]],
        [folder],
        {"PYTHONWARNINGS": "ignore"},
    )


def _words(files: list[Path]) -> int:
    """Count ids that are written as text and separated by spaces."""
    return sum(len(line.split()) for path in files for line in path.open("rb"))


@dataclass(frozen=True)
class EncodingPeers:
    """Available programs in the order of the table, and the reasons why others are missing."""

    peers: list[EncodingPeer]
    absent: dict[str, str]


def find_peers(base: BaseCorpus, text: TextCorpus, work: Path, *, quick: bool) -> EncodingPeers:
    peers: list[EncodingPeer] = []
    absent: dict[str, str] = {}

    def try_peer(name: str, make: Callable[[], EncodingPeer]) -> None:
        try:
            peers.append(make())
        except (MissingPeerError, CommandError) as reason:
            absent[name] = str(reason)

    def environment(name: str, requirements: str, probe: list[str], *, install: bool) -> Path:
        return make_environment(HERE / requirements, work / "environments" / name, install=install, probe=probe)

    def common() -> Path:
        return environment("datasets", "peers.txt", ["python", "-c", "import datasets, tokenizers"], install=True)

    def install_only(name: str, probe: list[str]) -> EncodingPeer:
        environment(name, f"peers-{name}.txt", probe, install=not quick)
        raise MissingPeerError("it installs and starts now, but the benchmark has no command for it")

    try_peer("spm_encode", lambda: spm_encode(base, text, work))
    try_peer("sentencepiece (Python API)", lambda: sentencepiece_python(base, text, work, common()))
    try_peer("datasets + tokenizers", lambda: datasets_map(base, text, work, common()))
    probe = ["eole", "build_vocab", "--help"]
    try_peer("eole", lambda: eole(base, text, work, environment("eole", "peers-eole.txt", probe, install=not quick)))
    try_peer("fairseq-preprocess", lambda: install_only("fairseq", ["fairseq-preprocess", "--help"]))
    try_peer("OpenNMT-py", lambda: install_only("opennmt", ["onmt_build_vocab", "--help"]))
    return EncodingPeers(peers, absent)


def clear(outputs: list[Path]) -> None:
    for path in outputs:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

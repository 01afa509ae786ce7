"""The wheels, installed into an empty environment without PyTorch: a translation, a server and a document.

The wheel is built from the unpacked source archive, with the kernels of the checkout, because they compile slowly.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import threading
import urllib.request
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from dragoman.inference.backends.compiled.kernel_files import FOLDER, LIST_FILE, read_list

ROOT = Path(__file__).parents[2]
PROGRAMS = "Scripts" if sys.platform == "win32" else "bin"
CONSTRAINTS = ("-c", str(ROOT / "constraints.txt"))
TRAINING_LIBRARIES = ("torch", "numba", "llvmlite", "pyarrow", "sacrebleu")
OFFICE = "openxmlformats-officedocument.wordprocessingml.document.main+xml"
CONTENT_TYPES = (
    '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
    f'<Override PartName="/word/document.xml" ContentType="application/vnd.{OFFICE}"/></Types>'
)
DOCUMENT = (
    '<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:body>'
    "<w:p><w:r><w:t>The house is small.</w:t></w:r></w:p><w:sectPr/></w:body></w:document>"
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def run(command: Sequence[str | Path], *, cwd: Path, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run a program that does not see the checkout."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, input=text, capture_output=True, text=True, check=False
    )


def make_environment(folder: Path, *packages: str) -> Path:
    """Return the programs of a new environment with packages of the index. Without an index, the test is skipped."""
    assert run([sys.executable, "-m", "venv", folder], cwd=folder.parent).returncode == 0
    programs = folder / PROGRAMS
    done = run([programs / "python", "-m", "pip", "install", "-q", *CONSTRAINTS, *packages], cwd=folder.parent)
    if re.search("No matching distribution|Max retries|Temporary failure|NewConnectionError", done.stderr):
        pytest.skip(f"the index cannot be reached: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return programs


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with both wheels and the source archive."""
    folder = tmp_path_factory.mktemp("dist")
    python = make_environment(folder / "build", "hatchling") / "python"
    hatchling = [str(python), "-m", "hatchling", "build", "-d", str(folder)]
    for source, target in ((ROOT, "sdist"), (ROOT / "models" / "en-de", "wheel")):
        done = run([*hatchling, "-t", target], cwd=source)
        assert done.returncode == 0, done.stderr
    (archive,) = folder.glob("dragoman-*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    shutil.copytree(FOLDER, unpacked / FOLDER.relative_to(ROOT))
    done = run([*hatchling, "-t", "wheel"], cwd=unpacked)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def programs(dist: Path) -> Path:
    """Programs of an environment with both wheels and the extra serve."""
    wheel, model = get_wheels(dist)
    return make_environment(dist / "installed", f"{wheel}[serve]", str(model))


def get_wheels(dist: Path) -> tuple[Path, Path]:
    """Return the wheels of dragoman and of the model."""
    (wheel,), (model,) = dist.glob("dragoman-*.whl"), dist.glob("dragoman_en_de-*.whl")
    return wheel, model


def test_tags_of_the_wheels_are_true(dist: Path) -> None:
    """The kernels ask for no version of glibc's symbols, and for no symbol of Python."""
    wheel, model = get_wheels(dist)
    assert model.name.endswith("-py3-none-any.whl")
    assert "-py3-none-" in wheel.name
    assert not wheel.name.endswith("-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        libraries = {Path(name).name: archive.read(name) for name in archive.namelist() if "/machine_code/" in name}
    assert libraries.keys() == {LIST_FILE, *read_list().digests}
    if sys.platform == "linux" and platform.libc_ver()[0] == "glibc":
        assert wheel.name.endswith(f"-manylinux_2_17_{platform.machine()}.whl")
        del libraries[LIST_FILE]
        assert [name for name, content in libraries.items() if b"GLIBC_" in content or b"Py_" in content] == []


def test_source_archive_holds_the_package_only(dist: Path) -> None:
    (archive,) = dist.glob("dragoman-*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {name.split("/")[1] for name in tar.getnames()}
    files = {"CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "hatch_build.py", "pyproject.toml", ".gitignore"}
    assert names == {"recipes", "src", "tests", *files}
    assert archive.stat().st_size < 4 * 2**20


def test_environment_lacks_the_libraries_of_training(programs: Path, tmp_path: Path) -> None:
    for name in TRAINING_LIBRARIES:
        done = run([programs / "python", "-c", f"import {name}"], cwd=tmp_path)
        assert f"ModuleNotFoundError: No module named '{name}'" in done.stderr
    done = run([programs / "python", "-m", "pip", "check"], cwd=tmp_path)
    assert done.returncode == 0, done.stdout


def test_installed_command_translates(programs: Path, tmp_path: Path) -> None:
    done = run([programs / "dragoman", "translate", "en-de"], cwd=tmp_path, text="The house is small.\n")
    assert (done.returncode, done.stdout) == (0, "Das Haus ist klein.\n"), done.stderr


def test_installed_command_translates_a_document(programs: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "letter.docx", "w") as archive:
        archive.writestr("[Content_Types].xml", CONTENT_TYPES)
        archive.writestr("word/document.xml", DOCUMENT)
    done = run([programs / "dragoman", "translate-file", "en-de", "letter.docx", "-o", "out"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(tmp_path / "out" / "letter.docx") as archive:
        assert "Das Haus ist klein." in archive.read("word/document.xml").decode()


def test_installed_server_answers(programs: Path, tmp_path: Path) -> None:
    command = [str(programs / "dragoman"), "serve", "en-de", "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            lines: list[str] = []
            while not (match := re.search(r"at (http://\S+)", lines[-1] if lines else "")):
                lines.append(process.stderr.readline())
                assert lines[-1], "".join(lines)
            threading.Thread(target=process.stderr.read, daemon=True).start()
            fields = json.dumps({"q": "The house is small.", "source": "en", "target": "de"}).encode()
            request = urllib.request.Request(match[1] + "translate", fields, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=60) as answer:
                assert json.load(answer)["translatedText"] == "Das Haus ist klein."
        finally:
            process.kill()

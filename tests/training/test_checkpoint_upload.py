from pathlib import Path
from typing import Any

import fsspec
import pytest

from dragoman.errors import BundleError, RunError, WriteError
from dragoman.formats import object_store
from dragoman.inference.bundle_store import locate_bundle
from dragoman.inference.load import load
from dragoman.io.storage import MANIFEST_FILE, verify_checksums
from dragoman.training.monitoring.events import Notice
from dragoman.training.run import train


def list_files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def list_stored(url: str) -> dict[str, bytes]:
    filesystem = fsspec.filesystem("memory")
    prefix = url.removeprefix("memory:/") + "/"
    return {name.removeprefix(prefix): filesystem.cat_file(name) for name in filesystem.find(prefix)}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"memory://{tmp_path.name}/run"


SETTINGS = ("training.max_steps=30", "training.checkpoint_every_steps=10", "training.keep_last=2")


def make_settings(url: str) -> tuple[str, ...]:
    return (*SETTINGS, "training.num_averaged_checkpoints=1", f"training.checkpoint_url={url}")


@pytest.mark.slow
def test_store_has_the_checkpoints_of_the_run_and_its_bundle(tiny: Any, tmp_path: Path, url: str) -> None:
    train(tiny(tmp_path / "run", *make_settings(url)))
    run = tmp_path / "run"
    stored = list_stored(url)
    expected = {f"checkpoints/{name}": content for name, content in list_files(run / "checkpoints").items()}
    assert len({name.split("/")[1] for name in expected}) >= 2
    expected |= {f"bundle/{name}": content for name, content in list_files(run / "bundle").items()}
    assert stored == expected | {"report.json": (run / "report.json").read_bytes()}
    object_store.fetch_folder(f"{url}/checkpoints/step-00000030", tmp_path / "copy")
    verify_checksums(tmp_path / "copy", RunError)


@pytest.mark.slow
def test_failed_upload_does_not_end_the_run_and_is_made_up_for(
    tiny: Any, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pieces, num_calls = object_store.write_pieces, 0

    def fail_first(target: str, pieces: Any) -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 1:
            raise WriteError(f"{target}: cannot be written: the store is away")
        write_pieces(target, pieces)

    monkeypatch.setattr(object_store, "write_pieces", fail_first)
    events: list[Any] = []
    train(tiny(tmp_path / "run", *make_settings(url), "training.keep_last=5"), events.append)
    notices = [event.text for event in events if isinstance(event, Notice) and "not uploaded" in event.text]
    assert len(notices) == 1
    assert "the store is away" in notices[0]
    assert {name.split("/")[1] for name in list_stored(f"{url}/checkpoints")} >= {MANIFEST_FILE}
    assert f"step-00000010/{MANIFEST_FILE}" in list_stored(f"{url}/checkpoints")


def test_bundle_of_a_store_is_copied_once_and_translates_as_the_folder(
    bundle: Path, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(BundleError, match="is no bundle"):
        load(f"{url}/bundle", task="translation")
    object_store.upload_folder(bundle, f"{url}/bundle", last=MANIFEST_FILE)
    folder = locate_bundle(f"{url}/bundle")
    assert list_files(folder) == list_files(bundle)
    monkeypatch.setattr(object_store, "fetch_folder", None)  # a second copy would fail
    translators = [load(path, task="translation", device="cpu", precision="float32") for path in (f"{url}/bundle", bundle)]
    outputs = [translator.translate(["a b c", "d"]) for translator in translators]
    assert [result.text for result in outputs[0]] == [result.text for result in outputs[1]]

"""Upload of a run's checkpoints to an object store, after each is committed on the local disk.

    URL/checkpoints/step-00001000/…   each checkpoint that the run keeps; its manifest comes last
    URL/bundle/…, URL/report.json     at the end of the run

A failed upload does not end the run. The next checkpoint tries again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dragoman.errors import DragomanError
from dragoman.formats.object_store import StoreFolder, normalize_url, upload_folder, write_pieces
from dragoman.io.storage import MANIFEST_FILE
from dragoman.training.monitoring.events import Callback, Notice, RunEvent, RunFinished, TrainingEvent


def with_uploads(run: Path, url: str | None, callback: Callback) -> Callback:
    """Return the callback with uploads of a run to `training.checkpoint_url`, or unchanged if it is not set."""
    return callback if url is None else CheckpointUploader(callback, run, url)


class CheckpointUploader:
    """Callback that passes all events on, and uploads after those of a saved checkpoint and of the end of the run."""

    def __init__(self, callback: Callback, run: Path, url: str) -> None:
        self.callback = callback
        self.run = run
        self.url = normalize_url(url).rstrip("/")
        self.uploaded: set[str] = set()

    def __call__(self, event: TrainingEvent) -> None:
        """Pass the event on, then upload."""
        self.callback(event)
        match event:
            case RunEvent("checkpoint"):
                with self._report_failure():
                    self._upload_checkpoints()
            case RunFinished():
                with self._report_failure():
                    upload_folder(self.run / "bundle", f"{self.url}/bundle", last=MANIFEST_FILE)
                    write_pieces(f"{self.url}/report.json", [(self.run / "report.json").read_bytes()])

    def _upload_checkpoints(self) -> None:
        """Upload the checkpoints that the store lacks, and delete those that the run has pruned."""
        paths = {path.parent.name: path.parent for path in (self.run / "checkpoints").glob(f"step-*/{MANIFEST_FILE}")}
        for name in sorted(paths.keys() - self.uploaded):
            upload_folder(paths[name], f"{self.url}/checkpoints/{name}", last=MANIFEST_FILE)
            self.uploaded.add(name)
        for name in sorted(self.uploaded - paths.keys()):
            StoreFolder(f"{self.url}/checkpoints/{name}").delete()
            self.uploaded.remove(name)

    @contextmanager
    def _report_failure(self) -> Iterator[None]:
        try:
            yield
        except (DragomanError, OSError) as error:
            self.callback(Notice(f"{self.url}: not uploaded: {error}; the run continues, and the next checkpoint tries again"))

"""Commands of a cluster with a real object store on this machine: the server of moto."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.console.options import INCOMPLETE_LINES

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="Ray is tested on Linux")]
BUCKET = "corpora"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
NUM_LINES = 8_000


class Store:
    """Object store of a server. environment: of the commands that use it"""

    def __init__(self, url: str) -> None:
        import boto3

        self.environment = {**os.environ, **CREDENTIALS, "AWS_ENDPOINT_URL": url, "OMP_NUM_THREADS": "1"}
        self.client: Any = boto3.client(
            "s3", endpoint_url=url, aws_access_key_id="key", aws_secret_access_key="secret", region_name="us-east-1"
        )

    def list_keys(self, prefix: str = "") -> set[str]:
        listing = self.client.list_objects_v2(Bucket=BUCKET, Prefix=prefix)
        return {entry["Key"] for entry in listing.get("Contents", [])}

    def read(self, key: str) -> bytes:
        return bytes(self.client.get_object(Bucket=BUCKET, Key=key)["Body"].read())

    def write_folder(self, folder: Path, prefix: str) -> None:
        for path in folder.rglob("*"):
            if path.is_file():
                self.client.upload_file(str(path), BUCKET, f"{prefix}/{path.relative_to(folder).as_posix()}")

    def run(self, *arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "dragoman", *arguments]
        return subprocess.run(
            command, env=environment or self.environment, capture_output=True, text=True, timeout=240, check=False
        )


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    for library, extra in (("moto", "test"), ("boto3", "test"), ("s3fs", "s3"), ("ray", "ray")):
        pytest.importorskip(library, reason=f"needs {library}: pip install 'dragoman[{extra}]'")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                time.sleep(0.2)
        store = Store(f"http://127.0.0.1:{port}")
        store.client.create_bucket(Bucket=BUCKET)
        store.client.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
        yield store
    finally:
        server.terminate()
        server.wait(60)


@pytest.fixture(scope="module")
def text(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    lines = (corpus / "train.en").read_text(encoding="utf-8").splitlines()
    path = tmp_path_factory.mktemp("text") / "text.en"
    path.write_text("".join(lines[number % len(lines)] + "\n" for number in range(NUM_LINES)), encoding="utf-8")
    return path


def test_translation_from_and_to_a_store_resumes_and_is_that_of_one_machine(
    store: Store, bundle: Path, text: Path, tmp_path: Path
) -> None:
    store.client.upload_file(str(text), BUCKET, "in/text.en")
    store.write_folder(bundle, "models/bundle")
    options = ["--precision", "float32", "--window", "40"]
    threads = ["--intra-threads", "1", "--inter-threads", "1"]
    single = store.run("translate", str(bundle), str(text), *options, *threads, "-o", str(tmp_path / "one.de"))
    assert single.returncode == INCOMPLETE_LINES, single.stderr  # some lines of the small model are empty
    environment = {**store.environment, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    url = f"s3://{BUCKET}/in/text.en"
    many = [
        "translate",
        f"s3://{BUCKET}/models/bundle",
        url,
        *options,
        "-o",
        f"s3://{BUCKET}/out/many.de",
        "--cluster",
        "local",
    ]
    command = [sys.executable, "-m", "dragoman", *many]
    # Tests in the background of a shell ignore SIGINT, and child processes inherit that.
    with subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    ) as process:
        deadline = time.monotonic() + 200
        while not (parts := list_parts(tmp_path / "cache")) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        errors = process.communicate()[1].decode()
    assert parts, errors
    assert "out/many.de" not in store.list_keys()
    again = store.run(*many, environment=environment)
    assert again.returncode == INCOMPLETE_LINES, again.stderr
    assert store.read("out/many.de") == (tmp_path / "one.de").read_bytes()
    assert not list_parts(tmp_path / "cache")
    assert store.list_keys("out/") == {"out/many.de"}
    cached = [path.name for path in (tmp_path / "cache" / "dragoman" / "bundles").iterdir()]
    assert len(cached) == 1


def list_parts(cache: Path) -> list[Path]:
    """Return the records of unfinished outputs."""
    return list(cache.glob("dragoman/outputs/*.part/progress.json"))


def assert_one_line(result: subprocess.CompletedProcess[str], text: str) -> None:
    assert result.returncode not in (0, INCOMPLETE_LINES)
    assert text in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
    errors = [line for line in result.stderr.splitlines() if line.startswith("error")]
    assert len(errors) <= 1


def test_missing_bucket_is_one_line(store: Store, bundle: Path, text: Path) -> None:
    missing = store.run("translate", str(bundle), "s3://nowhere/text.en", "-o", "s3://nowhere/out.de", "--cluster", "local")
    assert_one_line(missing, "there is no such file")
    missing = store.run("translate", str(bundle), str(text), "-o", "s3://nowhere/out.de", "--cluster", "local")
    assert_one_line(missing, "there is no such bucket or folder")


def test_credentials_come_from_the_environment_alone(store: Store, bundle: Path, tmp_path: Path) -> None:
    environment = {name: value for name, value in store.environment.items() if name not in CREDENTIALS}
    environment |= {"HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true"}
    url = f"s3://{BUCKET}/secret.en"
    result = store.run(
        "translate", str(bundle), url, "-o", f"s3://{BUCKET}/o.de", "--cluster", "local", environment=environment
    )
    assert_one_line(result, "credentials")

"""A real S3 gateway over a folder, for tests: versitygw, which tests/setup/go_tools.sh installs."""

import http.client
import os
import shutil
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from quire.cluster.backup.object_store import Patience, open_store
from quire.cluster.backup.store import Store
from tests.ports import HOST, free_ports

CACHED = Path(__file__).resolve().parents[2] / ".cache" / "bin" / "versitygw"
ACCESS, SECRET = "backup", "not-a-real-secret"
BUCKET = "backups"
START_TIMEOUT_S = 60.0
MOST = 64 << 20
"""More bytes than any object of these tests has."""
QUICK = Patience(connect_s=5.0, request_s=10.0, retry_s=10.0, retries=2)
"""For tests in which the store fails: it is given up soon."""


class Gateway(NamedTuple):
    """A running gateway: its port, and the folder of its bucket."""

    port: int
    folder: Path

    @property
    def url(self) -> str:
        return f"s3://{BUCKET}/lab"

    @property
    def options(self) -> dict[str, str]:
        """What `--store-option` takes to reach it."""
        return options_for(self.port)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that a command needs to reach it."""
        return environment_for(self.port)

    def store(self, patience: Patience = QUICK) -> Store:
        return open_store(self.url, self.options, patience)


def options_for(port: int) -> dict[str, str]:
    return {
        "endpoint": f"http://{HOST}:{port}",
        "access_key_id": ACCESS,
        "secret_access_key": SECRET,
        "region": "us-east-1",
    }


def environment_for(port: int) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": f"http://{HOST}:{port}",
        "AWS_ACCESS_KEY_ID": ACCESS,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
    }


def program() -> str:
    """The gateway's program."""
    found = str(CACHED) if CACHED.exists() else shutil.which("versitygw")
    assert found is not None, f"no versitygw at {CACHED} or on PATH: run tests/setup/go_tools.sh"
    return found


@contextmanager
def running_gateway(folder: Path) -> Generator[Gateway]:
    """A gateway with one empty bucket, until the block ends."""
    (port,) = free_ports(1)
    root, sidecar = folder / "root", folder / "sidecar"
    (root / BUCKET).mkdir(parents=True)
    sidecar.mkdir()
    with (folder / "gateway.log").open("wb") as output:
        process = subprocess.Popen(
            [program(), "--port", f"{HOST}:{port}", "posix", "--sidecar", str(sidecar), str(root)],
            env={**os.environ, "ROOT_ACCESS_KEY": ACCESS, "ROOT_SECRET_KEY": SECRET},
            stdout=output,
            stderr=output,
        )
        try:
            _wait_for(process, port, folder / "gateway.log")
            yield Gateway(port, root / BUCKET)
        finally:
            process.kill()
            process.wait()


def _wait_for(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        connection = http.client.HTTPConnection(HOST, port, timeout=5)
        try:
            connection.request("GET", "/")
            connection.getresponse().read()
        except OSError:
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.02)
                raise AssertionError(f"versitygw ended while starting: {log.read_text()}") from None
        else:
            return
        finally:
            connection.close()
    raise AssertionError(f"versitygw does not listen after {START_TIMEOUT_S:g} s")

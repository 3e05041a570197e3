"""The commands of docs/backup.md for an object store, as they stand, on a gateway to S3; tests/pages runs the rest."""

import os
import subprocess
import sys
from importlib.metadata import metadata
from pathlib import Path
from secrets import token_hex

import pytest

from tests.backup.gateway import BUCKET, Gateway
from tests.pages.page import read_page
from tests.processes.cluster import Clusters, environment

TIMEOUT_S = 120.0


@pytest.mark.slow
def test_the_page_s_commands_for_an_object_store_run_on_a_gateway_to_s3(
    clusters: Clusters, gateway: Gateway, tmp_path: Path
) -> None:
    cluster = clusters.formed()
    cluster.leader.apply(["add", 3])
    [block] = [block for block in read_page("docs/backup.md").blocks if "s3://" in block.text]
    install, credentials, *commands = [command.text for command in block.commands()]
    assert install == "pip install -e '.[backup]'"
    assert "backup" in (metadata("quire").get_all("Provides-Extra") or [])
    assert {word.split("=")[0] for word in credentials.split()[1:]} <= set(gateway.environment)
    assert len(commands) == 2

    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    variables = environment({"PATH": path, "QUIRE_SERVER": cluster.servers} | dict(gateway.environment))
    here = "\n".join(commands).replace("s3://backups/lab", f"s3://{BUCKET}/{token_hex(4)}")
    run = subprocess.run(
        ["bash", "-e", "-c", here],
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )

    assert run.returncode == 0, run.stdout + run.stderr

"""A standalone log behind a certificate and tokens."""

import asyncio
import re
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from pydantic import ValidationError

from quire.cluster.access.roles import Role
from quire.cluster.access.tls import load_client_tls
from quire.cluster.http.admission.authorization import Route
from quire.cluster.standalone import service
from quire.cluster.standalone.app import ROUTES
from quire.cluster.standalone.config import StandaloneConfig
from tests.cluster.access.callers import CALLERS, answer_to
from tests.cluster.access.locked import Locked
from tests.cluster.access.test_callers import WRONG, outcome
from tests.cluster.logs import ServedLog, served

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def files(tmp_path_factory: pytest.TempPathFactory) -> Locked:
    locked = Locked(tmp_path_factory.mktemp("log"))
    locked.make()
    locked.add("expired", Role.ADMIN, time.time() - 1)
    locked.tokens["wrong"] = WRONG
    return locked


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def log(files: Locked) -> AsyncGenerator[ServedLog]:
    async with served(files.folder / "data", **files.settings_of("log")) as log:
        yield log


@pytest.mark.parametrize("caller", CALLERS[:-2])
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
async def test_a_caller_gets_the_answer_of_its_cell(log: ServedLog, files: Locked, caller: str, route: Route) -> None:
    tls = load_client_tls(files.ca)
    headers = {} if caller == "no token" else files.header(caller)
    path = re.sub(r"{\w+}", "1", route.path)

    reply = await log.call(route.method, path, headers=headers, ssl=tls.context, server_hostname=tls.server_name)

    assert outcome(reply) == answer_to(caller, route.role)


async def test_a_stranger_gets_the_name_of_the_reason_why_a_log_has_failed(
    files: Locked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MARK_INTERVAL_S", 0.01)
    tls = load_client_tls(files.ca)
    secure: dict[str, Any] = {"ssl": tls.context, "server_hostname": tls.server_name}
    async with served(tmp_path / "d", **files.settings_of("log")) as log:
        (tmp_path / "d" / "lock").unlink()
        async with asyncio.timeout(60):
            while (stranger := await log.call("GET", "/healthz", **secure)).status == 200:
                pass
        reader = await log.call("GET", "/healthz", headers=files.header("read"), **secure)

    assert stranger.document["reason"] == "files_missing"
    assert str(tmp_path) in reader.document["reason"]


async def test_nobody_is_asked_for_a_certificate_under_the_name_of_the_log_either(
    log: ServedLog, files: Locked
) -> None:
    tls = load_client_tls(files.ca)

    reply = await log.call("GET", "/healthz", ssl=tls.context, server_hostname="log.shop.quire")

    assert reply.status == 200


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "run `quire certs init certs --cluster NAME`, `quire certs node certs standalone`"),
        ({"tokens": 0}, "tokens needs certificates"),
        ({"tls_cert": 0}, "tls_cert, tls_key and tls_ca go together; give tls_key and tls_ca, too"),
        ({"tls_cert": 0, "tls_key": 0, "tls_ca": 0}, "so this server needs certificates and tokens"),
        ({"tls_cert": 0, "tls_key": 0, "tls_ca": 0, "tokens": 0, "insecure": True}, "insecure has no effect"),
    ],
)
async def test_beyond_loopback_a_log_needs_certificates_and_tokens(
    tmp_path: Path, settings: dict[str, Any], said: str
) -> None:
    (tmp_path / "file").touch()
    given = {name: tmp_path / "file" if value == 0 else value for name, value in settings.items()}
    with pytest.raises(ValidationError, match=re.escape(said)):
        StandaloneConfig.model_validate({"listen": "0.0.0.0:7000", "data_dir": tmp_path, **given})


async def test_beyond_loopback_a_log_starts_with_both_or_with_insecure(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()

    StandaloneConfig(listen="0.0.0.0:7000", data_dir=tmp_path, insecure=True)
    StandaloneConfig(listen="0.0.0.0:7000", data_dir=tmp_path, tls_cert=file, tls_key=file, tls_ca=file, tokens=file)

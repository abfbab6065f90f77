"""Behind a proxy that ends TLS: what it says about the connection is believed if its address was named, and only then."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator

import httpx
import pytest

from cortex_plane.approvals.verbs.credentials import new_approval_token
from cortex_plane.kernel.errors import SetupError
from cortex_plane.kernel.shares import FAILURES
from cortex_plane.main.settings import load
from cortex_plane.tenancy.verbs import logins
from tests.conftest import Urls
from tests.fixtures.people import World
from tests.fixtures.servers import MASTER_KEY
from tests.fixtures.sockets import served


@pytest.mark.proves("D.595")
@pytest.mark.parametrize(
    ("trusted", "believed"), [(None, False), ("10.0.0.7", False), ("10.0.0.7, 127.0.0.0/8", True), ("*", True)]
)
async def test_a_proxy_is_believed_where_it_was_named(
    world: World, urls: Urls, trusted: str | None, believed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests are the proxy, on 127.0.0.1; the cookie tells what the plane took the connection for."""
    monkeypatch.delenv("CORTEX_TRUSTED_PROXIES", raising=False)
    if trusted is not None:
        monkeypatch.setenv("CORTEX_TRUSTED_PROXIES", trusted)
    # A process of its own shows that it takes the setting, where that is not the default.
    serving = _process(urls) if trusted == "10.0.0.7" else _here(world)
    async with serving as url:
        link = await logins.issue_own_login_link(world.db, world.admin.actor)
        async with httpx.AsyncClient(base_url=url, trust_env=False, verify=False) as http:
            answer = await http.post(link.url_path, headers={"X-Forwarded-Proto": "https"})
            # Whoever is not believed cannot choose an address for every guess either.
            guess = {"token": new_approval_token(), "decision": "approved"}
            guesses = await asyncio.gather(
                *(
                    http.post("/v1/approvals/decide", json=guess, headers={"X-Forwarded-For": f"198.51.100.{n}"})
                    for n in range(3 * FAILURES)
                )
            )
        assert answer.status_code == 303, answer.text
        assert ("Secure" in answer.headers["Set-Cookie"]) is believed
        assert ({each.status_code for each in guesses} == {401}) is believed


@contextlib.asynccontextmanager
async def _here(world: World) -> AsyncIterator[str]:
    async with served(world.db, forwarded_allow_ips=load().trusted_proxies) as (url, _, _):
        yield url


@contextlib.asynccontextmanager
async def _process(urls: Urls) -> AsyncIterator[str]:
    environment = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("CORTEX_", "DATABASE_", "FORWARDED_")) or k == "CORTEX_TRUSTED_PROXIES"
    }
    environment |= {"DATABASE_URL": urls.app, "CORTEX_PORT": "0", "CORTEX_LOG_LEVEL": "warning"}
    environment["CORTEX_MASTER_KEY"] = MASTER_KEY
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cortex_plane", "api",
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert server.stdout is not None
    try:
        said = (await server.stdout.readline()).decode()
        assert said.startswith("serving on http"), said
        yield said.split()[-1]
    finally:
        server.terminate()
        await server.wait()


@pytest.mark.parametrize("wrong", ["proxy.internal", "10.0.0.7 10.0.0.8", "10.0.0.7,", "10.0.0.0/33", "*,10.0.0.7"])
def test_what_is_no_address_is_refused(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORTEX_TRUSTED_PROXIES", wrong)
    with pytest.raises(SetupError) as refused:
        load()
    assert "CORTEX_TRUSTED_PROXIES" in refused.value.message

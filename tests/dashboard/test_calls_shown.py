"""Calls of agents that run elsewhere, as people see them, and as the client makes them by hand."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import httpx
import pytest
from structlog.testing import capture_logs

from cortex_plane import Client
from cortex_plane.calls.model import ExternalCall, Next
from cortex_plane.sessions.model.sessions import SessionStatus
from cortex_plane.tenancy.verbs import logins
from tests.calls.test_http_calls import asked, opened
from tests.cli.test_cli import Shell
from tests.cli.test_cli_jobs import _serving
from tests.fixtures.people import World


@pytest.mark.proves("D.283")
async def test_pages_say_that_it_runs_elsewhere(http: httpx.AsyncClient, strict: World) -> None:
    session = await opened(http, strict.service)
    call = await asked(http, strict.service, session, says="The customer <b>asked</b> for it.")
    link = await logins.issue_own_login_link(strict.db, strict.admin.actor)
    await http.post(link.url_path)
    page = (await http.get(f"/jobs/{call['job_id']}", headers={"Accept": "text/html"})).text
    assert "runs elsewhere" in page
    assert "refunds.create" in page
    assert "waiting for a person" in page
    assert "Waiting for a person" in page
    card = (await http.get(f"/approvals/{call['approval_id']}", headers={"Accept": "text/html"})).text
    assert "refunds.create" in card
    assert "elsewhere" in card
    assert "&lt;b&gt;asked&lt;/b&gt;" in card


@pytest.mark.proves("D.283")
async def test_the_client_and_the_command_line(world: World, tmp_path: Path) -> None:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("CORTEX_", "DATABASE_"))}
    with capture_logs():
        async with _serving(world.db) as url, Client(url, world.service.secret) as plane:
            session = await plane.sessions.open_external("deployer", title="By hand")
            call = await session.authorize("refunds.create", {"order": "A"}, key="order-A")
            assert call.next is Next.BEGIN
            begun = await plane.calls.intent(call, sender="one")
            assert begun.next is Next.RUN
            await plane.calls.outcome(begun, "completed", result={"refund": 1})
            done = await plane.calls.get(call.id, wait=5)
            assert (done.next, done.result) == (Next.USE, {"refund": 1})
            assert [each.id async for each in plane.calls.list(session_id=session.id)] == [call.id]
            assert (await session.complete({"n": 1})).status is SessionStatus.TERMINATED
            given_up = await plane.sessions.open_external("deployer")
            assert (await given_up.fail("gone")).status is SessionStatus.TERMINATED
            access = {"CORTEX_URL": url, "CORTEX_KEY": world.admin.secret, "COLUMNS": "300"}
            await asyncio.to_thread(_use, Shell(tmp_path, kept | access), done)


def _use(shell: Shell, call: ExternalCall) -> None:
    table = shell.run("call", "list", "--status", "completed").stdout
    assert str(call.id) in table
    assert "order-A" in table
    assert shell.json("call", "list", "--status", "awaiting") == []
    shown = shell.one("call", "show", str(call.id))
    assert (shown["next"], shown["result"]) == ("use", {"refund": 1})
    unknown = shell.run("call", "show", str(call.session_id), expect=3)
    assert "There is no such call." in unknown.stderr

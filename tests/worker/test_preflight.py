"""Preflight: what it says about parked jobs is what would become of them, and looking changes nothing."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from cortex_plane.agents import store as agents_store
from cortex_plane.db.database import Database
from cortex_plane.jobs.model.checkpoints import CheckpointCorrupt
from cortex_plane.jobs.model.jobs import Finding, Hold, JobStatus, PreflightOutcome, Reason, Severity
from cortex_plane.jobs.verbs.workers import list_every_parked
from cortex_plane.worker.models.backends import Backends
from cortex_plane.worker.preflight import Preflight
from cortex_plane.worker.tools.app import App
from tests.cli.test_cli import Outcome as Told
from tests.cli.test_cli import Shell
from tests.conftest import Urls
from tests.fixtures.approvals import decide, pending, pending_soon
from tests.fixtures.parked import KINDS, park, today
from tests.fixtures.people import World
from tests.fixtures.servers import MASTER_KEY
from tests.fixtures.workers import KEY, call, ended, job_of, make_agent, submit, turn, until, working

ROOT = Path(__file__).parent.parent.parent
TODAY = "tests.fixtures.parked:today"


async def findings(
    db: Database, *apps: App, page: int = 50, backends: Backends | None = None, replay: bool = False
) -> dict[UUID, list[Finding]]:
    """What is said about each parked job."""
    look = await Preflight.of(db, apps, backends or Backends(), KEY, replay=replay)
    said: dict[UUID, list[Finding]] = {}
    async for org, job in list_every_parked(db, page):
        assert job.id not in said, "nothing moves, so each is met once"
        said[job.id] = await look.look(org.id, org.slug, job)
    return said


def environment(urls: Urls) -> dict[str, str]:
    """Of an operator who can reach the database and knows the key."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("CORTEX_", "DATABASE_"))}
    known = {"DATABASE_URL": urls.app, "CORTEX_MASTER_KEY": MASTER_KEY, "CORTEX_HOME": "/nonexistent/.cortex"}
    return clean | known


async def preflight(urls: Urls, *words: str) -> tuple[int, str, str]:
    """The command, as an operator types it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cortex_plane", "doctor", "preflight", *words,
        cwd=ROOT, env=environment(urls), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def everything(admin: asyncpg.Connection) -> str:
    """A digest over every row of every table."""
    tables = await admin.fetch(
        "select c.oid::regclass::text as name from pg_class c join pg_namespace n on n.oid = c.relnamespace"
        " where n.nspname = 'public' and c.relkind = 'r' order by 1"
    )
    assert len(tables) > 40
    digests = [
        await admin.fetchval(
            f"select md5(coalesce(string_agg(md5(t::text), '' order by md5(t::text)), '')) from {table['name']} t"
        )
        for table in tables
    ]
    return "".join(digests)


@pytest.mark.proves("D.285", "D.286")
@pytest.mark.parametrize("each", [2, pytest.param(7, marks=pytest.mark.soak)], ids=["short", "whole"])
async def test_parked_jobs_of_every_kind_are_told_apart_and_none_is_touched(
    strict: World, other: World, admin: asyncpg.Connection, urls: Urls, each: int
) -> None:
    parked = await park(admin, strict, other, each=each)
    fresh = await submit(strict, await make_agent(strict, [], app="tests", slug="fresh"))
    before = await everything(admin)
    said = await findings(strict.db, today, page=7)
    names = {id: kind.name for kind in KINDS for id in parked[kind.name]}
    expected = {id: kind.reasons for kind in KINDS for id in parked[kind.name]}
    assert len(expected) == 2 * each * len(KINDS)
    found = {id: frozenset(finding.reason for finding in findings) for id, findings in said.items()}
    assert {names[id]: reasons for id, reasons in found.items()} == {k.name: k.reasons for k in KINDS}
    assert found == expected
    assert fresh not in said, "what was never begun is not resumed"
    told_of = Counter(finding.org for findings in said.values() for finding in findings)
    assert told_of["strict"] == told_of["rival"] == each * sum(len(kind.reasons) for kind in KINDS)

    code, out, err = await preflight(urls, "--app", TODAY, "--json")
    assert code == 1, err
    told = json.loads(out)
    assert Counter((finding["job_id"], finding["reason"]) for finding in told) == Counter(
        (str(id), str(reason)) for id, reasons in expected.items() for reason in reasons
    )
    assert f"looked at {len(expected)} parked jobs" in err
    assert await everything(admin) == before


@pytest.mark.proves("D.287")
async def test_what_it_says_is_what_becomes_of_them(strict: World, admin: asyncpg.Connection) -> None:
    parked = {name: ids[0] for name, ids in (await park(admin, strict)).items()}
    said = await findings(strict.db, today)
    outcomes = {name: {finding.outcome for finding in said[id]} for name, id in parked.items()}
    for name in parked:
        for asked in await pending(strict, parked[name]):
            if asked.kind == "call" and name in ("flipped", "checkpoint-gone"):
                with pytest.raises(CheckpointCorrupt):
                    await decide(strict, asked)
            elif asked.kind == "call":
                await decide(strict, asked)
    async with working(strict.db, today):
        for name in ("fine", "fine-approved"):
            assert outcomes[name] == set()
            assert (await ended(strict, parked[name])).status is JobStatus.COMPLETED
        for name in ("changed", "changed-approved"):
            assert outcomes[name] == {PreflightOutcome.ASKED_AGAIN}
            (again,) = await pending_soon(strict, parked[name])
            assert again.tool_name == "ask_changed"
        for name in ("code-asks",):
            assert outcomes[name] == set()
            assert (await ended(strict, parked[name])).status is JobStatus.COMPLETED
        for name in ("gone", "gone-approved", "stricter", "prompt-held", "code-tool-gone"):
            assert outcomes[name] == {PreflightOutcome.HELD}
            held = await until(strict, parked[name], JobStatus.PAUSED)
            assert held.holds == [Hold.PROMPT_CHANGED if name == "prompt-held" else Hold.CODE_CHANGED]
        for name in ("newer", "flipped", "forged", "checkpoint-gone", "prompt-fails"):
            assert outcomes[name] == {PreflightOutcome.FAILS}
            assert (await ended(strict, parked[name])).status is JobStatus.FAILED
    assert outcomes["elsewhere"] == {PreflightOutcome.WAITS}
    assert (await job_of(strict, parked["elsewhere"])).status is JobStatus.RETRY
    assert outcomes["held"] == outcomes["again"] == set()


@pytest.mark.proves("D.291")
async def test_code_agents_are_run_again_only_on_demand_and_then_only_on_what_they_recorded(
    strict: World, admin: asyncpg.Connection
) -> None:
    parked = {name: ids[0] for name, ids in (await park(admin, strict)).items()}
    before = await everything(admin)
    plain = await findings(strict.db, today)
    said = await findings(strict.db, today, replay=True)
    assert await everything(admin) == before
    for kind in KINDS:
        more = {f.reason for f in said[parked[kind.name]]} - {f.reason for f in plain[parked[kind.name]]}
        assert more == kind.replayed, kind.name
    (differs,) = [f for f in said[parked["code-detour"]] if f.reason is Reason.REPLAY_MISMATCH]
    assert (differs.outcome, "plan#0" in differs.message) == (PreflightOutcome.HELD, True), differs.message
    await admin.execute(
        "update job set wake_at = plane_now(), runnable_at = plane_now() where id = any($1)",
        [parked["code-fine"], parked["code-renamed"], parked["code-detour"]],
    )
    async with working(strict.db, today):
        assert (await ended(strict, parked["code-detour"])).holds == [Hold.CODE_CHANGED]
        assert (await ended(strict, parked["code-renamed"])).holds == [Hold.CODE_CHANGED]
        async with asyncio.timeout(20):
            while (await job_of(strict, parked["code-fine"])).epoch < 2:  # noqa: ASYNC110 -- only the database knows
                await asyncio.sleep(0.01)
    slept = await job_of(strict, parked["code-fine"])
    assert (slept.status, slept.holds) == (JobStatus.SLEEPING, [])


def _with_server(folder: Path, *more: str) -> App:
    app = App("tests")
    command = [sys.executable, str(ROOT / "examples" / "mcp_agent" / "server.py"), *more]
    app.mcp_server("notes", command=command, env={"NOTES": str(folder / "notes.txt")})
    return app


async def test_tools_of_mcp_servers_are_taken_as_workers_last_heard_of_them(strict: World, tmp_path: Path) -> None:
    agent = await make_agent(strict, [turn(call("notes.add_note", text="hi"))])
    async with working(strict.db, _with_server(tmp_path)):
        async with asyncio.timeout(120):
            while not await agents_store.list_server_tools(strict.db, "tests", "notes"):  # noqa: ASYNC110 -- only the database knows
                await asyncio.sleep(0.05)
        id = await submit(strict, agent)
        await until(strict, id, JobStatus.WAITING_FOR_APPROVAL, seconds=60)
    assert await findings(strict.db, _with_server(tmp_path)) == {id: []}
    ((other,),) = (await findings(strict.db, _with_server(tmp_path, "--other"))).values()
    ((none,),) = (await findings(strict.db, App("tests"))).values()
    assert other.reason is none.reason is Reason.TOOL_MISSING
    assert not (tmp_path / "notes.txt").exists()


async def test_severities_messages_and_hints_say_what_to_do(strict: World, admin: asyncpg.Connection) -> None:
    parked = {name: ids[0] for name, ids in (await park(admin, strict)).items()}
    said = await findings(strict.db, today)
    for name, id in parked.items():
        for finding in said[id]:
            warns = finding.reason is Reason.TOOL_CHANGED
            assert finding.severity is (Severity.WARNING if warns else Severity.ERROR), name
            assert finding.hint
            assert finding.message
    by_name = {name: said[id][0] for name, id in parked.items() if said[id]}
    assert "`ask_gone` (awaiting)" in by_name["gone"].message
    assert "code_changed" in by_name["gone"].hint
    assert "`y`" in by_name["stricter"].message or "y" in by_name["stricter"].message
    assert "version 99 is newer" in by_name["newer"].message
    assert "mac_mismatch" in by_name["forged"].message
    assert "crc_mismatch" in by_name["flipped"].message
    assert "`elsewhere`" in by_name["elsewhere"].message
    assert "settled as `probe`" in by_name["asleep"].message


@pytest.mark.proves("D.285")
async def test_the_command_ends_with_0_where_all_can_go_on_and_2_where_it_cannot_look(
    strict: World, urls: Urls, tmp_path: Path
) -> None:
    agent = await make_agent(strict, [turn(error_status=503)], limits={"retry_base_seconds": 3600.0})
    id = await submit(strict, agent)
    async with working(strict.db, today):
        await until(strict, id, JobStatus.RETRY)
    shell = Shell(ROOT, environment(urls))

    async def run(*words: str, expect: int, **extra: Any) -> Told:
        return await asyncio.to_thread(shell.run, "doctor", "preflight", *words, expect=expect, **extra)

    told = await run("--app", TODAY, expect=0)
    assert "looked at 1 parked job: 0 cannot be resumed" in told.stdout
    told = await run("--app", TODAY, "--json", expect=0)
    assert json.loads(told.stdout) == []
    told = await run(expect=1)
    for word in (str(id), "app_missing", "`tests`", "--app package.module:app", "waits"):
        assert word in told.stdout
    refused: list[tuple[list[str], dict[str, Any], str]] = [
        (["--app", "tests.fixtures.parked:nothing"], {}, "app_not_loadable"),
        (["--app", "no.such.module:app"], {}, "app_not_loadable"),
        ([], {"CORTEX_MASTER_KEY": ""}, "no_master_key"),
        ([], {"CORTEX_MASTER_KEY": "ff" * 32}, "wrong_master_key"),
        ([], {"CORTEX_MASTER_KEY": "short"}, "invalid_setting"),
        ([], {"DATABASE_URL": "postgresql://nobody@127.0.0.1:9/none"}, "unavailable"),
        ([], {"DATABASE_URL": "", "CORTEX_HOME": str(tmp_path)}, "not_running"),
    ]
    for words, extra, expected in refused:
        told = await run(*words, expect=2, **extra)
        assert (expected in told.stderr, "Traceback" in told.stderr, told.stdout) == (True, False, ""), words

"""The export over a real socket: it streams, nobody's absence keeps a connection, and a cut is visible."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import asyncpg
import httpx
import pytest
import pytest_asyncio
from benchmarks.trails import fill
from starlette.types import Message
from structlog.testing import capture_logs

from cortex_plane.client import Client
from cortex_plane.db.database import Database
from cortex_plane.http import streams as downloads
from cortex_plane.http.app import framed
from cortex_plane.kernel.errors import Conflict, Forbidden, NotFound, Unavailable
from cortex_plane.kernel.ids import new_id
from cortex_plane.proof.verbs import audit
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.tenancy.verbs.frame import RequestLimits
from tests.fixtures.exports import lines, verdict
from tests.fixtures.people import Person, World
from tests.fixtures.sockets import served
from tests.http.test_shares import process

MANY = 30_000
"""More than the buffers of two sockets hold."""


@pytest_asyncio.fixture
async def address(db: Database) -> AsyncIterator[str]:
    async with served(db) as (address, _, _):
        yield address


async def _held(admin: asyncpg.Connection) -> int:
    """How many connections hold a transaction open."""
    count: int = await admin.fetchval(
        """
        select count(*) from pg_stat_activity
        where datname = current_database() and pid <> pg_backend_pid() and xact_start is not null
          and backend_type = 'client backend'
        """
    )
    return count


async def _until_free(admin: asyncpg.Connection, seconds: float = 10) -> None:
    async with asyncio.timeout(seconds):
        while await _held(admin):  # noqa: ASYNC110 -- the database tells nobody
            await asyncio.sleep(0.01)


async def _drained(pieces: AsyncIterator[bytes], into: bytearray | None = None) -> None:
    async for piece in pieces:
        if into is not None:
            into += piece


def _plane(address: str, person: Person) -> Client:
    return Client(address, person.secret)


@pytest.mark.proves("D.80", "D.81")
async def test_the_first_bytes_come_before_the_last_are_read(
    address: str, world: World, admin: asyncpg.Connection
) -> None:
    await fill(admin, world.org_id, MANY, padding=400)
    async with _plane(address, world.admin) as plane:
        pieces = plane.audit.export()
        first = await anext(pieces)
        assert first.startswith(b'{"type":"header"')
        assert await _held(admin) == 1, "the rest is still in the database"
        export = first + b"".join([piece async for piece in pieces])
    await _until_free(admin)
    assert lines(export)[-1]["entries"] == (await audit.verify(world.db, world.admin.actor)).entries > MANY
    assert verdict(export).code == 0


@pytest.mark.proves("D.81")
async def test_a_client_that_leaves_frees_the_connection_and_the_place(
    address: str, world: World, admin: asyncpg.Connection
) -> None:
    await fill(admin, world.org_id, MANY, padding=400)
    for _ in range(5):
        async with _plane(address, world.admin) as plane, aclosing(plane.audit.export()) as pieces:
            await anext(pieces)
            assert await _held(admin) == 1
        await _until_free(admin)
    async with _plane(address, world.admin) as plane:
        session = (await world.say()).session_id
        export = b"".join([piece async for piece in plane.audit.export(session)])
    assert verdict(export).said == "1 chains, 4 entries: whole\n"


@pytest.mark.proves("D.81")
@pytest.mark.parametrize("limit", ["CHUNK_SECONDS", "LONGEST_SECONDS"])
async def test_a_reader_that_takes_too_long_is_given_up(
    address: str, world: World, admin: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(downloads, limit, 0.3)
    await fill(admin, world.org_id, MANY, padding=400)
    with capture_logs() as logs:
        async with _plane(address, world.admin) as plane:
            pieces = plane.audit.export()
            got = bytearray(await anext(pieces))
            await _until_free(admin)
            with pytest.raises(Unavailable) as cut:
                await _drained(pieces, got)
    assert cut.value.code == "cut_off"
    assert verdict(bytes(got)).code == 2
    assert [line["reason"] for line in logs if line["event"] == "download given up"] == ["its reader is too slow"]


@pytest.mark.proves("D.81")
async def test_a_database_that_fails_midway_cuts_the_answer_visibly(
    address: str, world: World, admin: asyncpg.Connection
) -> None:
    await fill(admin, world.org_id, MANY, padding=400)
    with capture_logs() as logs:
        async with _plane(address, world.admin) as plane:
            pieces = plane.audit.export()
            got = bytearray(await anext(pieces))
            await admin.execute(
                """
                select pg_terminate_backend(pid) from pg_stat_activity
                where datname = current_database() and pid <> pg_backend_pid() and xact_start is not null
                  and backend_type = 'client backend'
                """
            )
            with pytest.raises(Unavailable) as cut:
                await _drained(pieces, got)
    assert (cut.value.code, bool(cut.value.hint)) == ("cut_off", True)
    assert b'"trailer"' not in got
    assert verdict(bytes(got)).code == 2
    assert "download cut off" in [line["event"] for line in logs]


async def test_many_stay_served_while_one_is_exported(address: str, world: World, admin: asyncpg.Connection) -> None:
    await fill(admin, world.org_id, MANY, padding=400)
    async with _plane(address, world.admin) as plane, aclosing(plane.audit.export()) as pieces:
        await anext(pieces)
        with pytest.raises(Conflict) as twice:
            await anext(plane.audit.export())
        assert twice.value.code == "export_under_way"
        assert (await plane.audit.verify()).faults == []
        assert (await plane.me()).org_id == world.org_id


async def test_a_server_that_stops_does_not_wait_for_a_reader(
    db: Database, world: World, admin: asyncpg.Connection
) -> None:
    await fill(admin, world.org_id, MANY, padding=400)
    async with (
        served(db, timeout_graceful_shutdown=1) as (address, server, running),
        _plane(address, world.admin) as plane,
    ):
        pieces = plane.audit.export()
        await anext(pieces)
        server.should_exit = True
        async with asyncio.timeout(10):
            await running
        await _until_free(admin)
        with pytest.raises(Unavailable):
            await _drained(pieces)


# Who may ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", list(Role))
async def test_only_those_who_may_read_the_trail_may_export_it(
    http: httpx.AsyncClient, world: World, role: Role
) -> None:
    person = await world.person(role)
    answer = await http.get("/v1/audit/export", headers=person.headers)
    if role in (Role.ADMIN, Role.STEWARD, Role.OPERATOR):
        assert answer.status_code == 200
        assert answer.headers["Content-Type"] == "application/x-ndjson"
        assert answer.headers["Content-Disposition"] == 'attachment; filename="audit.ndjson"'
        assert verdict(answer.content).code == 0
    else:
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


@pytest.mark.proves("D.80")
async def test_an_export_holds_nothing_of_another_org(http: httpx.AsyncClient, world: World, other: World) -> None:
    theirs = (await other.say("secret")).session_id
    answer = await http.get("/v1/audit/export", headers=world.admin.headers)
    assert {line.get("chain") for line in lines(answer.content)} == {None, str(world.org_id)}
    for unknown in (theirs, new_id()):
        refused = await http.get(f"/v1/audit/export?session_id={unknown}", headers=world.admin.headers)
        assert (refused.status_code, refused.json()["code"]) == (404, "session_not_found")
    for query in ("session_id=x", "session=1", "limit=1"):
        refused = await http.get(f"/v1/audit/export?{query}", headers=world.admin.headers)
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request")
    away = {**world.admin.headers, "Cortex-Org": "rival"}
    acted = await http.get("/v1/audit/export", headers=away)
    assert lines(acted.content)[0]["org"]["slug"] == "rival", "a platform key acts inside an org, and says which"


async def test_the_client_raises_what_the_plane_refuses(address: str, world: World) -> None:
    member = await world.person(Role.MEMBER)
    async with _plane(address, member) as plane:
        with pytest.raises(Forbidden):
            await anext(plane.audit.export())
    async with _plane(address, world.admin) as plane:
        with pytest.raises(NotFound):
            await anext(plane.audit.export(new_id()))
    async with _plane("http://127.0.0.1:1", world.admin) as plane:
        with pytest.raises(Unavailable, match="does not answer"):
            await anext(plane.audit.export())


async def test_exporting_leaves_no_entry(http: httpx.AsyncClient, world: World, db: Database) -> None:
    before = (await audit.verify(db, world.admin.actor)).entries
    assert (await http.get("/v1/audit/export", headers=world.admin.headers)).status_code == 200
    assert (await audit.verify(db, world.admin.actor)).entries == before


@pytest.mark.proves("D.621")
async def test_an_export_that_its_reader_takes_slowly_is_no_request_in_flight(world: World) -> None:
    """It is a long read for as long as that takes, and holds up nobody else of its org."""
    sent, over = asyncio.Event(), asyncio.Event()

    async def send(_: Message) -> None:
        sent.set()
        await over.wait()

    async def receive() -> Message:
        await over.wait()
        return {"type": "http.disconnect"}

    headers = [(b"authorization", world.admin.headers["Authorization"].encode())]
    scope = {
        "type": "http", "method": "GET", "path": "/v1/audit/export", "query_string": b"", "headers": headers,
    }  # fmt: skip
    async with process(world.db, RequestLimits(in_flight=8, in_flight_of_org=1)) as (http, app):
        exporting = asyncio.ensure_future(framed(app)(scope, receive, send))
        await asyncio.wait_for(sent.wait(), 30)
        answer = await http.get("/v1/me", headers=world.admin.headers)
        second = await http.get("/v1/audit/export", headers=world.admin.headers)
        over.set()
        await exporting
        assert (answer.status_code, second.json()["code"]) == (200, "export_under_way")

"""An agent that runs elsewhere is told of a decision over a webhook of its org: signed, once, however late."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import httpx
import pytest
import pytest_asyncio

from cortex_plane.calls.verbs import deadlines
from cortex_plane.channels.webhooks import WebhookChannel
from cortex_plane.kernel.addresses import Allowed
from cortex_plane.notify.verbs import deliveries
from cortex_plane.tenancy.model.identities import (
    ConnectionChange,
    ConnectionDraft,
    Delivery,
    DeliveryStatus,
    NotificationKind,
)
from cortex_plane.tenancy.verbs import connections
from cortex_plane.worker.notifier import Notifier
from tests.calls.test_http_calls import asked, ended, looked, opened, post
from tests.channels.behaviour import PUBLIC_URL, drain
from tests.conftest import Urls
from tests.dashboard.callback_process import here
from tests.fixtures.clock import Clock
from tests.fixtures.people import Person, World
from tests.fixtures.receivers import Got, Receiver, Reply, certificate, certified, receiving

ROOT = Path(__file__).parent.parent.parent
HOST = "hooks.example"
FIELDS = {
    "call_id", "key", "session_id", "approval_id", "decision", "status", "next", "reason", "input_hash", "decided_at",
}  # fmt: skip


@dataclass
class Hook:
    """A webhook of an org, and the server behind it."""

    world: World
    receiver: Receiver
    channel: WebhookChannel
    id: UUID
    secret: str

    async def send(self) -> None:
        """All that is due, by a notifier of its own."""
        await drain(Notifier(self.world.db, [self.channel], PUBLIC_URL, poll_seconds=0.05))

    async def told(self) -> list[Got]:
        await self.send()
        for got in self.receiver.got:
            assert got.is_signed(self.secret)
        return self.receiver.got

    async def deliveries(self) -> list[Delivery]:
        return (await deliveries.list_deliveries(self.world.db, self.world.admin.actor, None, 10)).items


async def connected(world: World, receiver: Receiver, channel: WebhookChannel, name: str = "hook") -> Hook:
    url = f"https://{HOST}:{receiver.port}/cortex"
    draft = ConnectionDraft(channel_type="webhook", name=name, url=url)
    made = await connections.create_connection(world.db, world.admin.actor, draft)
    assert made.secret is not None
    return Hook(world, receiver, channel, made.id, made.secret)


@asynccontextmanager
async def hooked(world: World) -> AsyncIterator[Hook]:
    server, client = certified(HOST)
    async with receiving(server) as receiver:
        channel = WebhookChannel(Allowed.parse("127.0.0.0/8"), resolver=here, ssl_context=client)
        yield await connected(world, receiver, channel)


@pytest_asyncio.fixture
async def hook(strict: World) -> AsyncIterator[Hook]:
    async with hooked(strict) as made:
        yield made


async def decided(
    http: httpx.AsyncClient, by: Person, call: dict[str, Any], choice: str = "approved", **more: Any
) -> None:
    path = f"/v1/approvals/{call['approval_id']}"
    card = (await http.get(path, headers=by.headers)).json()["approval"]
    body = {"decision": choice, "version": card["version"], "input_hash": card["input_hash"], **more}
    answer = await http.post(f"{path}/decide", json=body, headers=by.headers)
    assert answer.status_code == 200, answer.text


@pytest.mark.proves("D.239")
async def test_an_approved_call_is_told_once_and_then_runs(http: httpx.AsyncClient, hook: Hook) -> None:
    world = hook.world
    session = await opened(http, world.service)
    call = await asked(http, world.service, session, key="k1", callback="hook")
    assert call["next"] == "wait"
    assert await hook.told() == []
    assert await hook.deliveries() == []
    await decided(http, world.admin, call)
    (got,) = await hook.told()
    message = got.verified(hook.secret)
    assert message["type"] == "call.decided"
    assert datetime.fromisoformat(message["timestamp"]) <= datetime.now(UTC)
    data = message["data"]
    assert set(data) == FIELDS
    assert data | {"decided_at": ""} == {
        "call_id": call["id"], "key": "k1", "session_id": session, "approval_id": call["approval_id"],
        "decision": "approved", "status": "approved", "next": "begin", "reason": None,
        "input_hash": call["input_hash"], "decided_at": "",
    }  # fmt: skip
    begun = await post(http, world.service, f"/v1/calls/{data['call_id']}/intent", input_hash=data["input_hash"])
    assert begun["next"] == "run"
    await ended(http, world.service, begun, "completed", result="done")
    assert len(await hook.told()) == 1, "nothing more is to be told"
    (sent,) = await hook.deliveries()
    assert (sent.kind, sent.status, sent.member, sent.member_id) == (
        NotificationKind.CALLBACK, DeliveryStatus.DELIVERED, "deployer", None,
    )  # fmt: skip
    assert (sent.call_id, sent.connection, sent.address) == (UUID(call["id"]), "hook", call["id"])
    trail = (await http.get(f"/v1/audit?session_id={session}", headers=world.admin.headers)).json()["items"]
    (authorized,) = [each for each in trail if each["action"] == "call_authorized"]
    assert authorized["body"]["data"]["callback"] == str(hook.id)


@pytest.mark.proves("D.239")
async def test_a_denial_says_why_and_a_webhook_is_named_by_its_id_too(http: httpx.AsyncClient, hook: Hook) -> None:
    world = hook.world
    call = await asked(http, world.service, await opened(http, world.service), callback=str(hook.id).upper())
    await decided(http, world.admin, call, "denied", reason="Not this customer.")
    (got,) = await hook.told()
    data = got.verified(hook.secret)["data"]
    assert (data["decision"], data["status"], data["next"]) == ("denied", "rejected", "stop")
    assert "Not this customer." in data["reason"]
    assert data["key"] is None


@pytest.mark.proves("D.239")
async def test_an_expired_and_a_cancelled_request_are_told(
    http: httpx.AsyncClient, hook: Hook, admin: asyncpg.Connection
) -> None:
    world = hook.world
    late, dropped = [
        await asked(http, world.service, await opened(http, world.service), callback="hook") for _ in range(2)
    ]
    await post(http, world.admin, f"/v1/jobs/{dropped['job_id']}/cancel", reason="stop")
    clock = await Clock.install(admin, datetime.fromisoformat(late["deadline"]) - timedelta(seconds=1))
    (got,) = await hook.told()
    assert (got.data["call_id"], got.data["decision"], got.data["next"]) == (dropped["id"], "cancelled", "stop")
    await clock.advance(timedelta(seconds=2))
    await deadlines.tick(world.db, uuid4(), "clock")
    _, got = await hook.told()
    assert (got.data["call_id"], got.data["decision"], got.data["next"]) == (late["id"], "expired", "stop")


@pytest.mark.proves("D.239")
async def test_a_receiver_that_was_down_hears_it_later_with_the_same_id(
    http: httpx.AsyncClient, hook: Hook, admin: asyncpg.Connection
) -> None:
    world = hook.world
    call = await asked(http, world.service, await opened(http, world.service), callback="hook")
    await decided(http, world.admin, call)
    clock = await Clock.install(admin, datetime.now(UTC) + timedelta(seconds=1))
    down = len(hook.channel.retry_schedule) - 1
    hook.receiver.replies = [Reply(503)] * down
    for tries in range(1, down + 1):
        await hook.send()
        (waiting,) = await hook.deliveries()
        assert (waiting.status, waiting.attempts) == (DeliveryStatus.PENDING, tries)
        # Longer than a day after the decision too: whoever waits for it is told all the same.
        await clock.advance(timedelta(hours=24, seconds=1))
    # What an approver did not use ran out meanwhile: the message says what holds now.
    now = await looked(http, world.service, call["id"])
    got = (await hook.told())[-1]
    assert len(hook.receiver.got) == down + 1
    assert len({each.headers["webhook-id"] for each in hook.receiver.got}) == 1
    assert (got.data["decision"], got.data["next"]) == ("approved", now["next"])
    (done,) = await hook.deliveries()
    assert done.status is DeliveryStatus.DELIVERED


@pytest.mark.proves("D.239")
async def test_one_that_nobody_takes_is_a_dead_letter_of_its_request(
    http: httpx.AsyncClient, hook: Hook, admin: asyncpg.Connection
) -> None:
    world = hook.world
    session = await opened(http, world.service)
    call = await asked(http, world.service, session, callback="hook")
    await decided(http, world.admin, call)
    hook.receiver.replies = [Reply(500)]
    await admin.execute(
        "update notification set attempts = $1 where call_id is not null", len(WebhookChannel.retry_schedule)
    )
    await hook.send()
    (dead,) = await hook.deliveries()
    assert (dead.status, dead.member) == (DeliveryStatus.DEAD, "deployer")
    trail = (await http.get(f"/v1/audit?session_id={session}", headers=world.admin.headers)).json()["items"]
    (buried,) = [each for each in trail if each["action"] == "approval_undeliverable"]
    assert buried["body"]["data"]["call"] == call["id"]
    shown = (await http.get(f"/v1/approvals/{call['approval_id']}", headers=world.admin.headers)).json()
    assert [each["status"] for each in shown["deliveries"]] == ["dead"]
    again = await http.post(f"/v1/deliveries/{dead.id}/resend", headers=world.admin.headers)
    assert again.status_code == 200, again.text
    await hook.told()
    assert [got.headers["webhook-id"] for got in hook.receiver.got] == [f"msg_{dead.id}_1"] * 2


@pytest.mark.proves("D.239")
@pytest.mark.parametrize(("point", "copies"), [("record_deliveries:before#1", 2), ("record_deliveries:after#1", 1)])
async def test_killed_between_sending_and_writing_it_down_it_comes_again_with_the_same_id(
    http: httpx.AsyncClient, hook: Hook, urls: Urls, admin: asyncpg.Connection, tmp_path: Path, point: str, copies: int
) -> None:
    world = hook.world
    pem = tmp_path / "hooks.pem"
    pem.write_bytes(certificate(HOST))
    call = await asked(http, world.service, await opened(http, world.service), callback="hook")
    await decided(http, world.admin, call)
    clock = await Clock.install(admin, datetime.now(UTC) + timedelta(seconds=1))
    assert await _notify(urls, pem, point) == -signal.SIGKILL
    assert len(hook.receiver.got) == 1
    await clock.advance(timedelta(seconds=61))
    got = await hook.told()
    assert len(got) == copies
    assert len({each.headers["webhook-id"] for each in got}) == 1
    assert len({each.body for each in got}) == 1
    (sent,) = await hook.deliveries()
    assert sent.status is DeliveryStatus.DELIVERED


async def _notify(urls: Urls, certificate: Path, crash_at: str) -> int:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CORTEX_CRASH_AT": crash_at}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.dashboard.callback_process", urls.app, str(certificate), env=environment,
        cwd=ROOT, stdout=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    async with asyncio.timeout(60):
        return await process.wait()


@pytest.mark.proves("D.239")
async def test_calls_that_share_a_request_and_those_without_a_callback(http: httpx.AsyncClient, hook: Hook) -> None:
    world = hook.world
    session = await opened(http, world.service)
    one, two = [await asked(http, world.service, session, callback="hook") for _ in range(2)]
    silent = await asked(http, world.service, session)
    assert one["approval_id"] == two["approval_id"] == silent["approval_id"]
    await decided(http, world.admin, one)
    assert {got.data["call_id"] for got in await hook.told()} == {one["id"], two["id"]}
    assert len(hook.receiver.got) == 2


@pytest.mark.proves("D.239")
async def test_the_same_key_again_is_the_same_call_and_told_once(http: httpx.AsyncClient, hook: Hook) -> None:
    """Also where the webhook that was named is disabled meanwhile: the call is there."""
    world = hook.world
    session = await opened(http, world.service)
    first = await asked(http, world.service, session, key="k", callback="hook")
    change = ConnectionChange(enabled=False)
    await connections.update_connection(world.db, world.admin.actor, hook.id, change, None)
    again = await asked(http, world.service, session, key="k", callback="hook")
    assert again["id"] == first["id"]
    await decided(http, world.admin, first)
    assert await hook.told() == []
    change = ConnectionChange(enabled=True)
    await connections.update_connection(world.db, world.admin.actor, hook.id, change, None)
    assert len(await hook.told()) == 1


@pytest.mark.proves("D.239")
async def test_only_a_webhook_of_the_org_that_is_enabled_can_be_named(
    http: httpx.AsyncClient, hook: Hook, other: World, admin: asyncpg.Connection
) -> None:
    world = hook.world
    theirs = await connected(other, hook.receiver, hook.channel, "theirs")
    mail = ConnectionDraft(channel_type="email", name="mail")
    await connections.create_connection(world.db, world.admin.actor, mail)
    off = await connected(world, hook.receiver, hook.channel, "off")
    await connections.update_connection(world.db, world.admin.actor, off.id, ConnectionChange(enabled=False), None)
    session = await opened(http, world.service)
    for callback, status, code in [
        ("nowhere", 404, "connection_not_found"),
        ("https://elsewhere.example/hook", 404, "connection_not_found"),
        ("theirs", 404, "connection_not_found"),
        (str(theirs.id), 404, "connection_not_found"),
        ("mail", 409, "not_a_webhook"),
        ("off", 409, "connection_disabled"),
        ("", 422, "invalid_request"),
        ("x" * 201, 422, "invalid_request"),
        ("nul\0", 422, "invalid_request"),
    ]:
        answer = await asked(http, world.service, session, status=status, callback=callback)
        assert answer["code"] == code, callback
        assert answer["hint"]
    for table in ("tool_call", "approval_request", "notification"):
        assert await admin.fetchval(f"select count(*) from {table}") == 0
    # The database itself lets no call name a connection of another org.
    call = await asked(http, world.service, session)
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await admin.execute("update external_call set callback_id = $1 where call_id = $2", theirs.id, UUID(call["id"]))


@pytest.mark.proves("D.239")
async def test_an_allowed_call_needs_nobody_and_is_not_told(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    async with hooked(world) as hook:
        session = await opened(http, world.service)
        call = await asked(http, world.service, session, callback="hook", dispatch=True)
        assert call["next"] == "run"
        await ended(http, world.service, call, "completed")
        assert await hook.told() == []
        kept = await admin.fetchval("select callback_id from external_call")
        assert kept == hook.id


@pytest.mark.proves("D.239")
async def test_a_doubt_that_somebody_settles_is_told(http: httpx.AsyncClient, world: World) -> None:
    async with hooked(world) as hook:
        session = await opened(http, world.service)
        call = await asked(http, world.service, session, callback="hook", dispatch=True)
        doubt = await ended(http, world.service, call, "unknown", error="the line was cut")
        assert await hook.told() == []
        answer = await http.post(
            f"/v1/approvals/{doubt['approval_id']}/answer", json={"verdict": "happened"}, headers=world.admin.headers
        )
        assert answer.status_code == 200, answer.text
        (got,) = await hook.told()
        assert (got.data["call_id"], got.data["approval_id"]) == (call["id"], doubt["approval_id"])
        assert (got.data["status"], got.data["next"]) == ("completed", "use")

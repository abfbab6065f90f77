"""Webhooks over HTTP: in, with the vendor's own signatures; and the routes that make, try and rotate them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import httpx
import orjson
import pytest
from structlog.testing import capture_logs

from cortex_plane.approvals.model.approvals import ApprovalStatus, Choice
from cortex_plane.channels.webhooks import WebhookChannel
from cortex_plane.http.app import framed
from cortex_plane.http.metrics import Metrics
from cortex_plane.kernel.addresses import Allowed
from cortex_plane.kernel.meters import metered
from cortex_plane.main.api_process import create_app
from cortex_plane.notify.verbs import deliveries
from cortex_plane.tenancy.model.identities import DeliveryStatus
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.tenancy.verbs import connections
from cortex_plane.tenancy.verbs.connections import new_webhook_secret
from cortex_plane.worker.notifier import Notifier
from tests.fixtures.approvals import Shipping, ship, shown, waiting
from tests.fixtures.clock import Clock
from tests.fixtures.people import World
from tests.fixtures.receivers import Receiver, Reply, receiving
from tests.fixtures.rows import digests
from tests.fixtures.webhooks import URL, System, decision, ping
from tests.notify.test_webhooks import Counted


def same(answer: httpx.Response) -> dict[str, Any]:
    """Without what differs between any two requests."""
    body: dict[str, Any] = answer.json()
    body.pop("request_id", None)
    return body


async def connected(world: World) -> System:
    system = await System.connected(world)
    await system.knows(world.admin, "ada@corp")
    return system


@pytest.mark.proves("D.146")
async def test_a_signed_decision_decides_and_a_ping_is_answered(http: httpx.AsyncClient, strict: World) -> None:
    system = await connected(strict)
    _, (asked,) = await waiting(strict, Shipping())
    pong = await system.send(http, ping())
    assert (pong.status_code, pong.json()["result"]) == (200, "OK")
    answer = await system.send(http, decision(asked))
    assert (answer.status_code, answer.json()) == (
        200,
        {"type": "approval.decision", "result": "OK", "approval_id": str(asked.id), "status": "approved"},
    )
    assert (await shown(strict, asked.id)).status is ApprovalStatus.APPROVED


@pytest.mark.proves("D.147")
async def test_a_redelivered_event_gets_the_recorded_answer_and_changes_nothing(
    http: httpx.AsyncClient, strict: World, admin: asyncpg.Connection
) -> None:
    system = await connected(strict)
    _, (asked,) = await waiting(strict, Shipping())
    events: dict[str, dict[str, Any] | bytes] = {
        "yes": decision(asked),
        "no": decision(asked, choice=Choice.DENIED),
        "stranger": decision(asked, "nobody@corp"),
        "old": decision(asked, version=9),
        "nonsense": b'{"type": "approval.eaten", "timestamp": "2030-01-01T00:00:00Z"}',
        "text": b"not json",
    }
    first = {id: await system.send(http, event, id=id) for id, event in events.items()}
    statuses = {id: answer.status_code for id, answer in first.items()}
    assert statuses == {"yes": 200, "no": 409, "stranger": 403, "old": 200, "nonsense": 422, "text": 422}
    before = await digests(admin)
    soon = datetime.now(UTC) + timedelta(seconds=30)
    for id, event in events.items():
        again = await system.send(http, event, id=id, at=soon)
        assert (again.status_code, same(again)) == (first[id].status_code, same(first[id])), id
        other_body = await system.send(http, ping() | {"timestamp": "2001-01-01T00:00:00Z"}, id=id)
        assert (other_body.status_code, other_body.json()["code"]) == (409, "webhook_id_reused"), id
    assert await digests(admin) == before


@pytest.mark.proves("D.147")
async def test_eight_requests_with_one_event_decide_once(http: httpx.AsyncClient, strict: World) -> None:
    system = await connected(strict)
    _, (asked,) = await waiting(strict, Shipping())
    event = orjson.dumps(decision(asked))
    answers = await asyncio.gather(*(system.send(http, event, id="evt-1") for _ in range(8)))
    assert [answer.status_code for answer in answers] == [200] * 8
    assert len({answer.content for answer in answers}) == 1
    assert answers[0].json()["result"] == "OK"


@pytest.mark.proves("D.146")
async def test_whatever_is_not_signed_well_is_answered_alike_and_leaves_a_count_and_a_log_line(
    http: httpx.AsyncClient, strict: World, other: World, admin: asyncpg.Connection
) -> None:
    system, theirs = await connected(strict), await connected(other)
    _, (asked,) = await waiting(strict, Shipping())
    body = orjson.dumps(decision(asked))
    good = system.headers(body, id="evt-1")
    before = await digests(admin)
    late, early = datetime.now(UTC) - timedelta(minutes=6), datetime.now(UTC) + timedelta(minutes=6)
    attempts: dict[str, tuple[str, dict[str, str], bytes]] = {
        "unsigned": (system.path, {}, body),
        "forged": (system.path, system.headers(body, secret=new_webhook_secret()), body),
        "another org's": (system.path, theirs.headers(body), body),
        "to another org": (theirs.path, good, body),
        "cut off": (system.path, good, body[:-1]),
        "longer": (system.path, good, body + b" "),
        "another id": (system.path, good | {"webhook-id": "evt-2"}, body),
        "late": (system.path, system.headers(body, at=late), body),
        "early": (system.path, system.headers(body, at=early), body),
        "no such connection": (f"/v1/webhooks/{uuid4()}", good, body),
        "not a webhook": (f"/v1/webhooks/{strict.connection.id}", good, body),
        "with a key": (system.path, strict.admin.headers, body),
        "not even JSON": (system.path, {}, b"\xff\x00"),
        "empty": (system.path, {}, b""),
    }
    counted = Counted()
    answers = {}
    with metered(counted), capture_logs() as logs:
        for name, (path, headers, content) in attempts.items():
            answers[name] = await http.post(path, content=content, headers=headers)
    for name, answer in answers.items():
        assert (answer.status_code, answer.json()["code"]) == (401, "webhook_signature_invalid"), name
        assert same(answer) == same(answers["unsigned"]), name
    assert await digests(admin) == before
    refused = [line for line in logs if line["event"] == "webhook refused"]
    assert len(refused) == len(attempts)
    assert all(line["reason"] == "hmac_invalid" for line in refused)
    assert counted.calls == [("webhook", "hmac_invalid")] * len(attempts)
    assert (await http.post(system.path, content=body, headers=good)).status_code == 200


@pytest.mark.proves("D.146")
@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"decision": "maybe"}, "decision"),
        ({"version": "1"}, "version"),
        ({"version": 0}, "version"),
        ({"input_hash": "A" * 64}, "input_hash"),
        ({"external_user": ""}, "external_user"),
        ({"external_user": "a\u0000b"}, "external_user"),
        ({"external_user": 7}, "external_user"),
        ({"approval_id": "x"}, "approval_id"),
        ({"approval_id": None}, "approval_id"),
        ({"reason": "x" * 2001}, "reason"),
        ({"arguments": {"version": "9"}}, "arguments"),
        ({"on_behalf_of": "boss"}, "on_behalf_of"),
    ],
)
async def test_a_wrong_field_is_named_and_decides_nothing(
    http: httpx.AsyncClient, strict: World, change: dict[str, Any], field: str
) -> None:
    system = await connected(strict)
    _, (asked,) = await waiting(strict, Shipping())
    answer = await system.send(http, decision(asked, **change))
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_event")
    assert f"data.{field}" in answer.json()["detail"]
    assert (await shown(strict, asked.id)).status is ApprovalStatus.PENDING


@pytest.mark.proves("D.146")
async def test_bodies_of_any_other_shape_are_refused(http: httpx.AsyncClient, strict: World) -> None:
    system = await connected(strict)
    deep = b'{"type":"ping","timestamp":"2030-01-01T00:00:00Z","data":' + b'{"a":' * 5000 + b"1" + b"}" * 5001
    for body in (b"", b"[]", b"7", b'"x"', b"null", b"{}", b'{"type": "ping"}', deep, b'{"type":"ping","x":1}'):
        answer = await system.send(http, body)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_event"), body[:40]
    raw = b'{"type":"ping","timestamp":"2030-01-01T00:00:00Z","data":{"a":"' + b"x" * (64 * 1024) + b'"}}'
    for headers in (system.headers(raw), {}):
        answer = await http.post(system.path, content=raw, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


@pytest.mark.proves("D.591")
async def test_event_with_a_key_that_stands_twice_is_refused(http: httpx.AsyncClient, strict: World) -> None:
    system = await connected(strict)
    _, (asked,) = await waiting(strict, Shipping())
    body = orjson.dumps(decision(asked)).replace(b'"decision":', b'"decision":"denied","decision":', 1)
    answer = await http.post(system.path, content=body, headers=system.headers(body))
    assert (answer.status_code, answer.json()["code"]) == (422, "duplicate_key")
    assert (await shown(strict, asked.id)).status is ApprovalStatus.PENDING


async def test_a_disabled_webhook_takes_nothing_until_it_is_enabled(http: httpx.AsyncClient, strict: World) -> None:
    system = await connected(strict)
    _, (asked,) = await waiting(strict, Shipping())
    path = f"/v1/connections/{system.id}"
    await http.patch(path, json={"enabled": False}, headers=strict.admin.headers)
    event = decision(asked)
    refused = await system.send(http, event, id="evt-1")
    assert (refused.status_code, refused.json()["code"]) == (409, "connection_disabled")
    await http.patch(path, json={"enabled": True}, headers=strict.admin.headers)
    assert (await system.send(http, event, id="evt-1")).status_code == 200


# Making one, and trying it ---------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def plane(world: World, receiver: Receiver | None) -> AsyncIterator[httpx.AsyncClient]:
    """The application of an operator who lists this receiver."""
    allowed = Allowed.parse(receiver.host if receiver else "")
    metrics = Metrics()
    app = create_app(world.db, metrics, webhook_channel=WebhookChannel(allowed, timeout=3))
    transport = httpx.ASGITransport(framed(app))
    async with httpx.AsyncClient(transport=transport, base_url="http://plane", headers=world.admin.headers) as client:
        yield client
    metrics.close()


@pytest.mark.proves("D.140")
async def test_the_secret_is_shown_once_and_rotated_and_tried(strict: World) -> None:
    async with receiving() as receiver, plane(strict, receiver) as http:
        draft = {"channel_type": "webhook", "name": "hook", "url": receiver.url}
        made = await http.post("/v1/connections", json=draft, headers={"Idempotency-Key": "k"})
        assert (made.status_code, made.json()["url"]) == (201, receiver.url)
        secret = made.json()["secret"]
        assert secret.startswith("whsec_")
        again = await http.post("/v1/connections", json=draft, headers={"Idempotency-Key": "k"})
        assert (again.json()["id"], again.json()["secret"]) == (made.json()["id"], None)
        path = f"/v1/connections/{made.json()['id']}"
        for answer in (await http.get(path), await http.get("/v1/connections")):
            assert "whsec_" not in answer.text
            assert receiver.url in answer.text
        tried = await http.post(f"{path}/test")
        assert (tried.status_code, tried.json()["delivered"], tried.json()["said"]) == (200, True, "HTTP 204.")
        assert receiver.got[0].verified(secret)["type"] == "ping"
        rotated = await http.post(f"{path}/rotate-secret")
        assert rotated.json()["secret"] not in ("", secret)
        await http.post(f"{path}/test")
        for each in (secret, rotated.json()["secret"]):
            receiver.got[1].verified(each)
        receiver.default = Reply(500, body=b"I am on fire")
        failed = await http.post(f"{path}/test")
        assert failed.json()["delivered"] is False
        assert failed.json()["said"] == "The receiver answered HTTP 500: I am on fire"
        assert (await http.get(path)).json()["failing_since"] is None, "trying out changes nothing"


@pytest.mark.proves("D.142")
async def test_an_address_that_nobody_listed_is_refused_when_it_is_made_changed_or_tried(strict: World) -> None:
    async with receiving() as receiver, plane(strict, None) as http:
        for url in (receiver.url, f"https://{receiver.host}/", "http://hooks.example/"):
            draft = {"channel_type": "webhook", "name": "hook", "url": url}
            refused = await http.post("/v1/connections", json=draft)
            assert (refused.status_code, refused.json()["code"]) == (422, "url_not_allowed")
            assert refused.json()["errors"][0]["field"] == "url"
        for url in ("https://u:p@hooks.example/", "https://hooks.example/#x", "ftp://hooks.example"):
            refused = await http.post("/v1/connections", json={"channel_type": "webhook", "name": "hook", "url": url})
            assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request")
        system = await System.connected(strict)
        path = f"/v1/connections/{system.id}"
        assert (await http.patch(path, json={"url": receiver.url})).json()["code"] == "url_not_allowed"
        moved = await http.patch(path, json={"url": "https://hooks.example/other"})
        assert moved.json()["url"] == "https://hooks.example/other"
        nothing = {"channel_type": "slack", "name": "s", "url": URL}
        assert (await http.post("/v1/connections", json=nothing)).status_code == 422
        for action in ("test", "rotate-secret"):
            answer = await http.post(f"/v1/connections/{strict.connection.id}/{action}")
            assert (answer.status_code, answer.json()["code"]) == (409, "not_a_webhook")
    assert receiver.connections == 0


@pytest.mark.proves("D.145")
async def test_a_webhook_that_fails_says_since_when_and_one_that_is_gone_is_disabled(
    strict: World, admin: asyncpg.Connection
) -> None:
    async with receiving() as receiver, plane(strict, receiver) as http:
        channel = WebhookChannel(Allowed.parse(receiver.host), timeout=5)
        notifier = Notifier(strict.db, [channel], "https://plane.example", send_seconds=10)
        draft = {"channel_type": "webhook", "name": "hook", "url": receiver.url}
        made = (await http.post("/v1/connections", json=draft)).json()
        path = f"/v1/connections/{made['id']}"
        member = {"member_id": str(strict.admin.actor.user_account_id), "external_user": "ada@corp"}
        assert (await http.post(f"{path}/mappings", json=member)).status_code == 201
        _, (asked, second) = await waiting(strict, Shipping(), ship("1"), ship("2"))
        clock = await Clock.install(admin, asked.requested_at + timedelta(minutes=1))
        receiver.default = Reply(500)
        while await notifier.turn():
            pass
        failing = (await http.get(path)).json()
        assert failing["failing_since"] is not None
        await clock.advance(timedelta(minutes=1))
        receiver.default = Reply(204)
        while await notifier.turn():
            pass
        assert (await http.get(path)).json()["failing_since"] is None, "a success clears it"
        assert {got.data["approval_id"] for got in receiver.got if got.reply.status == 204} == {
            str(asked.id), str(second.id),
        }  # fmt: skip
        receiver.default = Reply(410)
        system = System(strict, UUID(made["id"]), made["secret"])
        await system.send(http, decision(asked), at=asked.requested_at + timedelta(minutes=2))
        while await notifier.turn():
            pass
        gone = (await http.get(path)).json()
        assert gone["disabled_at"] is not None
        assert "410" in gone["disabled_reason"]
        page = await deliveries.list_deliveries(strict.db, strict.admin.actor, None, 10, status=DeliveryStatus.PENDING)
        assert str(asked.id) in {str(each.approval_id) for each in page.items}, "it waits until somebody enables it"
        trail = (await http.get("/v1/audit", params={"limit": 200})).json()["items"]
        assert "connection_disabled" in [entry["action"] for entry in trail]
        enabled = (await http.patch(path, json={"enabled": True})).json()
        assert (enabled["disabled_at"], enabled["disabled_reason"]) == (None, None)


async def test_only_admins_make_rotate_try_and_map(http: httpx.AsyncClient, strict: World) -> None:
    system = await System.connected(strict)
    operator = await strict.person(Role.OPERATOR)
    body = {"member_id": str(operator.actor.user_account_id), "external_user": "x"}
    for action, given in (("rotate-secret", None), ("test", None), ("mappings", body)):
        answer = await http.post(f"/v1/connections/{system.id}/{action}", json=given, headers=operator.headers)
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert (await connections.get_connection(strict.db, operator.actor, system.id)).url == URL


@pytest.mark.proves("D.142", "D.598")
async def test_trying_out_does_not_tell_what_internal_names_resolve_to(strict: World) -> None:
    """A name inside, a name that does not exist and one without addresses: the same answer, word for word."""
    addresses: dict[str, Sequence[str]] = {"inside.example": ["10.1.2.3"], "mixed.example": ["1.1.1.1", "10.1.2.3"]}

    async def resolve(host: str, port: int) -> Sequence[str]:
        if host == "missing.example":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return addresses.get(host, [])

    metrics = Metrics()
    app = create_app(strict.db, metrics, webhook_channel=WebhookChannel(resolver=resolve, timeout=3))
    answers = {}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(framed(app)), base_url="http://plane", headers=strict.admin.headers
    ) as http:
        for host in ("inside.example", "mixed.example", "missing.example", "empty.example"):
            draft = {"channel_type": "webhook", "name": host, "url": f"https://{host}/hook"}
            id = (await http.post("/v1/connections", json=draft)).json()["id"]
            tried = await http.post(f"/v1/connections/{id}/test")
            assert (tried.status_code, tried.json()["delivered"]) == (200, False)
            assert "10.1.2.3" not in tried.text
            answers[host] = tried.json()["said"].replace(host, "HOST")
    assert set(answers.values()) == {"HOST has no address on the public internet."}
    metrics.close()

"""Validators that are a steward's own system: asked with a signed request, in time, and never gone around."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from cortex_plane.channels.webhooks import WebhookChannel
from cortex_plane.gates.verbs import answer_checks
from cortex_plane.kernel.addresses import Allowed
from cortex_plane.notify.verbs.webhooks import AnswerCallbacks
from cortex_plane.tenancy.model.identities import ConnectionChange, ConnectionDraft
from cortex_plane.tenancy.verbs import connections
from cortex_plane.tenancy.verbs.served_channels import ServedChannels
from tests.fixtures.atlases import publish
from tests.fixtures.external_gates import DESK, desk, opened, permissions, sent, told
from tests.fixtures.external_gates import governed as governed_elsewhere
from tests.fixtures.gated import Desk, atlas, before, gate, get, governed, ledger, question, say
from tests.fixtures.people import World
from tests.fixtures.receivers import Receiver, Reply, receiving
from tests.fixtures.workers import ended, submit, turn, working
from tests.notify.test_http_webhooks import plane

NAME = question(
    "name", "text", "Whose ticket is it?", validation={"custom_validator": "webhook:crm", "min_length": 3},
    on_invalid="log_and_continue",
)  # fmt: skip
CHECKED = gate("named", before("ticket.get"), questions=[NAME])
YES, NO = Reply(200, body=b'{"valid": true}'), Reply(200, body=b'{"valid": false, "reason": "nobody is called Eve"}')
AGAIN = "the validator `webhook:crm` could not look at it"


@pytest_asyncio.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


async def connect(world: World, receiver: Receiver) -> str:
    """The steward's connection, and its secret."""
    draft = ConnectionDraft(channel_type="webhook", name="crm", url=receiver.url)
    allowed = Allowed.parse(receiver.host)
    made = await connections.create_connection(
        world.db, world.admin.actor, draft, channels=ServedChannels(allowed=allowed)
    )
    assert made.secret is not None
    return made.secret


async def session_of(http: httpx.AsyncClient, world: World) -> str:
    await governed_elsewhere(world, desk(gates=[{**CHECKED, "trigger": {"type": "session_start"}}]))
    return await opened(http, world.service)


async def answer(http: httpx.AsyncClient, world: World, session: str, name: str) -> dict[str, Any]:
    return await sent(http, world.service, f"/sessions/{session}/answers", gate="named", answers={"name": name})


@pytest.mark.proves("S5.236")
async def test_a_steward_looks_at_the_answer_of_an_agent_elsewhere(world: World, receiver: Receiver) -> None:
    secret = await connect(world, receiver)
    async with plane(world, receiver) as http:
        session = await session_of(http, world)
        assert "could not" not in str((await permissions(http, world.service, session))["waiting"])
        receiver.replies = [NO, YES]
        refused = await answer(http, world, session, "Eve")
        # `log_and_continue`: what the steward refused goes on, and is recorded.
        assert (refused["passed"], receiver.got[0].verified(secret) is not None) == (True, True)
    (request,) = receiver.got
    assert request.json["type"] == "gate.answer"
    assert request.data == {
        "session_id": session, "atlas": DESK, "gate": "named", "action": None, "question_id": "name",
        "question": "Whose ticket is it?", "type": "text", "answer": "Eve",
    }  # fmt: skip
    (payload,) = [data for name, data in await told(world, session) if name == "checkpoint_response"]
    assert (payload["validation_result"], payload["faults"]) == (
        "accepted_with_faults",
        {"name": "nobody is called Eve"},
    )


@pytest.mark.proves("S5.236", "S5.29")
@pytest.mark.parametrize(
    "reply",
    [
        Reply(500), Reply(302, {"Location": "http://127.0.0.1/"}), Reply(200, body=b"yes"), Reply(200, body=b'{"valid": 1}'),
        Reply(200, body=b'{"valid": false, "reason": 7}'), Reply(204), Reply(broken=True), Reply(silent=True),
    ],
)  # fmt: skip
async def test_what_nobody_could_look_at_is_not_accepted_whatever_follows_from_a_wrong_answer(
    world: World, receiver: Receiver, reply: Reply, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_checks, "SECONDS", 0.5)
    await connect(world, receiver)
    async with plane(world, receiver) as http:
        session = await session_of(http, world)
        receiver.replies = [reply, YES]
        first = await answer(http, world, session, "Ada")
        assert (first["passed"], first["faults"]) == (False, {"name": AGAIN})
        assert (await answer(http, world, session, "Ada"))["passed"]


@pytest.mark.proves("S5.236")
async def test_a_steward_is_not_asked_about_what_is_wrong_anyway_and_not_where_nobody_may_be(
    world: World, receiver: Receiver, http: httpx.AsyncClient
) -> None:
    await connect(world, receiver)
    async with plane(world, receiver) as there:
        session = await session_of(there, world)
        assert (await answer(there, world, session, "A"))["passed"], "too short: logged, and not sent"
    assert receiver.got == []
    # An operator who does not list the receiver: its address is private, and nothing is sent there.
    other = await opened(http, world.service)
    assert (await answer(http, world, other, "Ada"))["faults"] == {"name": AGAIN}
    assert receiver.got == []


@pytest.mark.proves("S5.236")
async def test_a_steward_looks_at_the_answers_of_a_worker_too(world: World, receiver: Receiver) -> None:
    secret = await connect(world, receiver)
    callbacks = AnswerCallbacks(world.db, WebhookChannel(Allowed.parse(receiver.host)))
    clerk = Desk()
    strict = gate("named", before("ticket.get"), questions=[{**NAME, "on_invalid": "retry"}])
    agent = await governed(
        world, atlas(strict), turn(get()), turn(say("named", name="Eve")), turn(say("named", name="Ada")), turn(get())
    )
    receiver.replies = [NO, YES]
    id = await submit(world, agent)
    async with working(world.db, clerk.app, callbacks=callbacks):
        await ended(world, id)
    assert clerk.done == ["get 1"]
    replies = [call.result for call in await ledger(world, id) if call.tool_name == "plane.answer"]
    assert [reply["passed"] for reply in replies] == [False, True]
    assert replies[0]["faults"] == {"name": "nobody is called Eve"}
    assert [got.data["action"] for got in receiver.got if got.verified(secret)] == ["ticket.get", "ticket.get"]
    # Without a way to ask, nothing is accepted.
    again = await submit(world, agent)
    async with working(world.db, clerk.app):
        await ended(world, again)
    assert clerk.done == ["get 1"]


@pytest.mark.proves("S5.236")
async def test_a_connection_that_is_missing_or_disabled_is_a_warning_and_opens_nothing(
    world: World, receiver: Receiver
) -> None:
    missing = await publish(world, atlas(CHECKED, version="0.1.0"))
    assert "no enabled webhook connection `crm`" in "\n".join(missing.warnings)
    await connect(world, receiver)
    fine = await publish(world, atlas(CHECKED, version="0.2.0"))
    assert "crm" not in "\n".join(fine.warnings)
    async with plane(world, receiver) as http:
        session = await session_of(http, world)
        listed = await connections.list_connections(world.db, world.admin.actor, None, 10)
        (connection,) = [each for each in listed.items if each.name == "crm"]
        change = ConnectionChange(enabled=False)
        await connections.update_connection(world.db, world.admin.actor, connection.id, change, None)
        assert (await answer(http, world, session, "Ada"))["faults"] == {"name": AGAIN}
    assert receiver.got == []

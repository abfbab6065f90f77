"""Stewards are told over a webhook of their org: signed, in order, in the transaction of what they are told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
import pytest
import pytest_asyncio

from cortex_plane.channels.webhooks import WebhookChannel
from cortex_plane.gates.model.atlases import NOTICES, GateQuestion, Mode, OnInvalid, ResponseType, TriggerType
from cortex_plane.gates.model.gates import UNANSWERED, Trace
from cortex_plane.gates.rules.effects import ON_THE_TRAIL, RanCall, notices
from cortex_plane.gates.rules.index import CompiledAtlases
from cortex_plane.gates.verbs import session_lifecycle
from cortex_plane.gates.verbs.atlas_cache import AtlasCache
from cortex_plane.kernel.errors import Conflict
from cortex_plane.kernel.fields import Risk
from cortex_plane.notify.verbs import deliveries
from cortex_plane.proof.verbs import audit
from cortex_plane.sessions.model.events import TraceType
from cortex_plane.sessions.model.sessions import SessionDraft
from cortex_plane.tenancy.model.identities import ConnectionChange, DeliveryStatus, NotificationKind
from cortex_plane.tenancy.model.orgs import OrgChange, OrgSettingsChange
from cortex_plane.tenancy.verbs import connections, orgs
from tests.calls.test_http_callbacks import HOST, Hook, hooked
from tests.fixtures.atlases import ATLAS, manifest, publish, steward
from tests.fixtures.gates import Life, atlas, gate
from tests.fixtures.people import World
from tests.fixtures.receivers import Reply

OTHER = "com.acme.billing"


@pytest_asyncio.fixture
async def hook(world: World) -> AsyncIterator[Hook]:
    async with hooked(world) as made:
        yield made


def trace(kind: TraceType, atlas_id: str = ATLAS, **more: Any) -> Trace:
    return Trace(type=kind, payload={"atlas_id": atlas_id, "checkpoint_id": "delete-confirm", **more})


TRIGGERED, RESPONSE, PASSED, BLOCKED = (
    trace(TraceType.TRIGGERED, trigger_data={"action_id": "ticket.delete"}),
    trace(TraceType.RESPONSE, answers={"sure": "acknowledged"}),
    trace(TraceType.PASSED, unlocked_capabilities=[]),
    trace(TraceType.BLOCKED, reason="Required question not answered", blocked_action="ticket.delete"),
)
DELETE = RanCall(action="ticket.delete", risk=Risk.LOW, call_id="c-1")
GET = RanCall(action="ticket.get", risk=Risk.LOW)


async def governing(world: World, url: str, *triggers: str, also: bool = False) -> CompiledAtlases:
    told = steward(notifications={"channels": {"webhook": url}, "triggers": list(triggers)})
    made = [(await publish(world, manifest(steward=told))).version]
    if also:
        made.append((await publish(world, manifest(atlas_id=OTHER))).version)
    pins = [{"atlas_id": v.atlas_id, "version": v.version, "digest": v.digest} for v in made]
    return await AtlasCache().at(world.db, world.org_id, pins)


def url(hook: Hook) -> str:
    return f"https://{HOST}:{hook.receiver.port}/cortex"


async def written(world: World, told: list[dict[str, Any]], revision: int = 0) -> UUID:
    """A write of a session whose gates say this."""
    session = await session_lifecycle.create(world.db, world.admin.actor, SessionDraft(agent="deployer"))
    gates = {"revision": revision, "state": {"executed": 1}, "notices": told}
    async with world.db.transaction(world.org_id) as tx:
        await tx.rows("select record_gates($1, $2, $3, plane_now())", world.org_id, session.id, gates)
    return session.id


@pytest.mark.proves("D.335")
async def test_a_steward_is_told_what_they_asked_for_and_nothing_else(world: World) -> None:
    everything = [TRIGGERED, RESPONSE, PASSED, BLOCKED]
    for triggers, expected in (
        (["checkpoint_blocked"], ["checkpoint_blocked"]),
        (["checkpoint_triggered", "checkpoint_passed"], ["checkpoint_triggered", "checkpoint_passed"]),
        (["policy_override"], ["policy_override"]),
        (["high_risk_action"], ["high_risk_action"]),
        (
            list(NOTICES),
            ["checkpoint_triggered", "checkpoint_passed", "checkpoint_blocked", "policy_override", "high_risk_action"],
        ),
    ):
        told = steward(notifications={"channels": {"webhook": "https://a.example/x"}, "triggers": triggers})
        made = (await publish(world, manifest("-".join(["1", *triggers])[:60], steward=told))).version
        pin = {"atlas_id": ATLAS, "version": made.version, "digest": made.digest}
        found = notices(await AtlasCache().at(world.db, world.org_id, [pin]), everything, [DELETE, GET])
        assert [each["trigger"] for each in found] == expected
        assert "acknowledged" not in str(found), "answers are nobody's business"


@pytest.mark.proves("D.335")
async def test_nothing_that_an_agent_or_a_tool_wrote_is_told(world: World) -> None:
    """A wrong answer is repeated in why it was refused, an error may hold anything."""
    merged = await governing(world, "https://a.example/x", *NOTICES)
    asked = GateQuestion(
        question_id="q", question="?", response_type=ResponseType.JSON, on_invalid=OnInvalid.BLOCK,
        schema={"type": "object", "properties": {"a": {"type": "number"}}},
    )  # fmt: skip
    asks = gate("asks", TriggerType.SESSION_START, of=ATLAS, questions=(asked,))
    looks_on = gate("oops", TriggerType.ERROR_OCCURRED, of=ATLAS, mode=Mode.OBSERVATIONAL)
    tells = gate("tells", TriggerType.EXPLICIT_REQUEST, of=ATLAS, mode=Mode.ADVISORY, on_patterns=("*",))
    life = Life(atlas(asks, looks_on, tells, id=ATLAS))
    life.step(errors=("boom: SECRET-1",))
    life.judge("a.b")
    life.answer("asks", q={"a": "SECRET-2"})
    assert life.state.ended is not None
    life.judge("a.b")
    waiting = Life(atlas(tells, id=ATLAS))
    waiting.request("SECRET-3")
    traces = [*life.traces, *waiting.traces]
    assert all(f"SECRET-{number}" in str(traces) for number in (1, 2, 3)), "the trail has it"
    found = notices(merged, traces)
    assert {each["trigger"] for each in found} == {
        "checkpoint_triggered", "checkpoint_passed", "checkpoint_blocked",
    }  # fmt: skip
    assert "SECRET" not in str(found)
    reasons = {each["data"].get("reason") for each in found if each["trigger"] == "checkpoint_blocked"}
    assert reasons == {UNANSWERED, ON_THE_TRAIL}


@pytest.mark.proves("D.335")
async def test_what_the_org_hides_is_hidden_from_stewards_too(world: World, hook: Hook) -> None:
    await orgs.update_org(world.db, world.admin.actor, OrgChange(settings=OrgSettingsChange(redact=("iban*",))), None)
    merged = await governing(world, url(hook), *NOTICES)
    fired = trace(TraceType.TRIGGERED, trigger_data={"iban_of": "DE1", "password": "p", "action_id": "a.b"})
    await written(world, notices(merged, [fired]))
    (got,) = await hook.told()
    assert got.data["data"]["trigger_data"] == {
        "iban_of": "[redacted]", "password": "[redacted]", "action_id": "a.b",
    }  # fmt: skip


@pytest.mark.proves("D.335")
async def test_a_gate_is_told_to_its_own_steward_and_a_policy_too(world: World) -> None:
    merged = await governing(world, "https://a.example/x", *NOTICES, also=True)
    assert notices(merged, [trace(TraceType.BLOCKED, OTHER)]) == []
    found = notices(merged, [], [DELETE])
    assert [(each["trigger"], each["data"]) for each in found] == [
        (
            "policy_override",
            {
                "action_id": "ticket.delete",
                "call_id": "c-1",
                "risk_tier": "high",
                "policy_ids": ["ask-before-deleting"],
            },
        ),
        ("high_risk_action", {"action_id": "ticket.delete", "call_id": "c-1", "risk_tier": "high"}),
    ]
    # Of the tool's own risk and the atlas's, the higher counts.
    risky = RanCall(action="ticket.get", risk=Risk.CRITICAL)
    assert [each["trigger"] for each in notices(merged, [], [risky])] == ["high_risk_action"]
    assert notices(merged, [], [GET]) == []


@pytest.mark.proves("D.336")
async def test_they_arrive_signed_and_in_order(world: World, hook: Hook) -> None:
    merged = await governing(world, url(hook), *NOTICES)
    session = await written(world, notices(merged, [TRIGGERED, BLOCKED], [DELETE]))
    got = await hook.told()
    said = [each.verified(hook.secret) for each in got]
    assert [each["type"] for each in said] == [
        "atlas.checkpoint_triggered", "atlas.checkpoint_blocked", "atlas.policy_override", "atlas.high_risk_action",
    ]  # fmt: skip
    blocked = said[1]["data"]
    happened = datetime.fromisoformat(blocked.pop("happened_at"))
    assert happened == datetime.fromisoformat(said[1]["timestamp"])
    assert blocked == {
        "trigger": "checkpoint_blocked", "atlas_id": ATLAS, "version": "1.0.0", "session_id": str(session),
        "data": BLOCKED.payload,
    }  # fmt: skip
    assert len({each.headers["webhook-id"] for each in got}) == 4
    listed = await hook.deliveries()
    assert {(each.kind, each.status, each.member, each.member_id) for each in listed} == {
        (NotificationKind.NOTICE, DeliveryStatus.DELIVERED, "acme", None)
    }
    assert await hook.told() == got, "each once"


@pytest.mark.proves("D.336")
async def test_they_belong_to_the_write_that_they_tell_of(world: World, hook: Hook) -> None:
    merged = await governing(world, url(hook), *NOTICES)
    with pytest.raises(Conflict):
        await written(world, notices(merged, [BLOCKED]), revision=5)
    assert await hook.told() == []
    assert await hook.deliveries() == []


@pytest.mark.proves("D.336")
async def test_without_a_webhook_that_has_exactly_this_address_nothing_is_sent(
    world: World, other: World, hook: Hook, admin: asyncpg.Connection
) -> None:
    merged = await governing(world, url(hook) + "/other", *NOTICES)
    await written(world, notices(merged, [BLOCKED]))
    foreign = await governing(other, url(hook), *NOTICES)
    await written(other, notices(foreign, [BLOCKED]))
    assert await admin.fetchval("select count(*) from notification") == 0, "a webhook is its org's own"
    here = await AtlasCache().at(world.db, world.org_id, [])
    assert notices(here, [BLOCKED], [DELETE]) == []
    same = steward(notifications={"channels": {"webhook": url(hook)}, "triggers": ["checkpoint_blocked"]})
    made = (await publish(world, manifest("2", steward=same))).version
    pin = {"atlas_id": ATLAS, "version": "2", "digest": made.digest}
    told = notices(await AtlasCache().at(world.db, world.org_id, [pin]), [BLOCKED])
    await connections.update_connection(world.db, world.admin.actor, hook.id, ConnectionChange(enabled=False), None)
    await written(world, told)
    assert await admin.fetchval("select count(*) from notification") == 0
    await connections.update_connection(world.db, world.admin.actor, hook.id, ConnectionChange(enabled=True), None)
    await written(world, told)
    assert len(await hook.told()) == 1


@pytest.mark.proves("D.336", "S5.25")
async def test_what_cannot_be_delivered_is_seen_and_can_be_sent_again(
    world: World, admin: asyncpg.Connection, hook: Hook
) -> None:
    merged = await governing(world, url(hook), *NOTICES)
    hook.receiver.replies = [Reply(500)]
    await written(world, notices(merged, [BLOCKED]))
    await admin.execute("update notification set attempts = $1", len(WebhookChannel.retry_schedule))
    await hook.send()
    (dead,) = await hook.deliveries()
    assert (dead.status, dead.member) == (DeliveryStatus.DEAD, "acme")
    trail = await audit.list_entries(world.db, world.admin.actor, None, 0, 1000)
    assert trail[-1].action == "notice_undeliverable"
    await deliveries.resend_delivery(world.db, world.admin.actor, dead.id)
    got = (await hook.told())[-1]
    assert got.verified(hook.secret)["type"] == "atlas.checkpoint_blocked"
    assert (await audit.verify(world.db, world.admin.actor)).faults == []


@pytest.mark.proves("D.336")
async def test_a_long_one_is_cut_and_still_arrives(world: World, hook: Hook) -> None:
    merged = await governing(world, url(hook), *NOTICES)
    session = await written(world, notices(merged, [trace(TraceType.BLOCKED, blocked_action="x" * 60_000)]))
    (got,) = await hook.told()
    assert len(got.body) < 20_000
    assert (got.data["session_id"], got.data["truncated"]) == (str(session), True)

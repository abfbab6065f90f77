"""What comes in over a webhook: once, from whom it says, whatever happens in between; and what becomes of silent webhooks."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import orjson
import pytest
from structlog.testing import capture_logs

from cortex_plane.approvals.model.approvals import ApprovalStatus, Channel, Choice, RecordResult
from cortex_plane.approvals.verbs import approvals
from cortex_plane.db import crash_points
from cortex_plane.db.database import Database
from cortex_plane.kernel.errors import Conflict, Forbidden, InvalidInput, NotFound
from cortex_plane.kernel.meters import Meters, metered
from cortex_plane.notify.model.notifications import EventAnswer
from cortex_plane.notify.verbs import webhooks
from cortex_plane.proof.verbs import audit
from cortex_plane.tenancy.model.identities import ConnectionChange, ConnectionDraft, MappingDraft
from cortex_plane.tenancy.model.orgs import MemberChange, Role
from cortex_plane.tenancy.verbs import connections, orgs
from tests.fixtures.approvals import Shipping, decide, ship, shown, waiting
from tests.fixtures.clock import Clock
from tests.fixtures.people import World, apply_policies
from tests.fixtures.webhooks import URL, System, decision, ping

ASK = """
policies:
  - {{name: ask, target: ship, effect: requires_approval, template: {template}, approvers: {{roles: [admin]}},
     self_approval: true, timeout: 7d}}
"""


class Counted(Meters):
    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def called_back(self, channel: str, result: str) -> None:
        self.calls.append((channel, result))


async def receive(system: System, event: dict[str, Any], id: str, **signing: Any) -> EventAnswer:
    body = orjson.dumps(event)
    headers = system.headers(body, id=id, **signing)
    return await webhooks.receive(system.world.db, system.id, headers, body)


async def connected(world: World) -> System:
    """With one person behind it, who may decide everything."""
    system = await System.connected(world)
    await system.knows(world.admin, "ada@corp")
    return system


@pytest.mark.proves("D.146")
async def test_a_decision_is_its_persons_and_says_over_which_door_it_came(strict: World) -> None:
    system = await connected(strict)
    _, (asked,) = await waiting(strict, Shipping())
    counted = Counted()
    with metered(counted):
        answer = await receive(system, decision(asked, reason="fine by me"), "evt-1")
    assert (answer.result, answer.status) == (RecordResult.OK, ApprovalStatus.APPROVED)
    details = await approvals.get_approval(strict.db, strict.admin.actor, asked.id)
    (vote,) = details.votes
    assert (vote.channel, vote.member_id, vote.reason) == (
        Channel.WEBHOOK, strict.admin.actor.user_account_id, "fine by me",
    )  # fmt: skip
    assert details.approval.resolved_via is Channel.WEBHOOK
    assert counted.calls == [("webhook", "ok")]


@pytest.mark.proves("D.147")
async def test_the_same_event_eight_times_at_once_decides_once_and_is_answered_alike(strict: World) -> None:
    system = await connected(strict)
    _, asked = await waiting(strict, Shipping(), *(ship(str(n)) for n in range(5)))
    for n, each in enumerate(asked):
        event = decision(each)
        answers = await asyncio.gather(*(receive(system, event, f"evt-{n}") for _ in range(8)))
        assert {(a.result, a.approval_id, a.status) for a in answers} == {
            (RecordResult.OK, each.id, ApprovalStatus.APPROVED)
        }
        details = await approvals.get_approval(strict.db, strict.admin.actor, each.id)
        assert len(details.votes) == 1
        assert [e.event_type for e in details.events].count("approved") == 1


@pytest.mark.proves("D.147")
async def test_two_events_that_want_different_things_at_once_have_one_winner(strict: World) -> None:
    system = await connected(strict)
    _, asked = await waiting(strict, Shipping(), *(ship(str(n)) for n in range(4)))
    for n, each in enumerate(asked[:1]):
        both = await asyncio.gather(
            receive(system, decision(each), f"yes-{n}"),
            receive(system, decision(each, choice=Choice.DENIED), f"no-{n}"),
            return_exceptions=True,
        )
        won = [a for a in both if isinstance(a, EventAnswer)]
        lost = [a for a in both if isinstance(a, Conflict)]
        assert (len(won), len(lost)) == (1, 1)
        assert lost[0].code == "approval_conflict"
        assert won[0].status == (await shown(strict, each.id)).status


class Died(BaseException):
    """In the place of a process that is killed."""


@pytest.mark.proves("D.147")
async def test_dead_at_any_point_the_next_delivery_decides_once_and_is_told_so(
    strict: World, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between claiming the event, deciding and keeping the answer: every statement and every commit in turn."""
    system = await connected(strict)
    _, asked = await waiting(strict, Shipping(), *(ship(str(n)) for n in range(60)))
    left = 0

    def reached(_: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Died

    monkeypatch.setattr(crash_points, "reached", reached)
    died = 0
    for point, each in enumerate(asked, start=1):
        event, id = decision(each), f"evt-{point}"
        left = point
        monkeypatch.setattr(crash_points, "armed", True)
        try:
            await receive(system, event, id)
        except Died:
            died += 1
        finally:
            monkeypatch.setattr(crash_points, "armed", False)
        again = await receive(system, event, id)
        assert (again.result, again.status) == (RecordResult.OK, ApprovalStatus.APPROVED), point
        details = await approvals.get_approval(db, strict.admin.actor, each.id)
        assert len(details.votes) == 1, point
        if died < point:
            break
    assert 10 < died < 60, "the last one lived: every point was tried"


@pytest.mark.proves("D.147")
async def test_a_second_event_for_the_same_decision_changed_nothing_and_says_so(strict: World) -> None:
    system = await connected(strict)
    _, (asked,) = await waiting(strict, Shipping())
    counted = Counted()
    with metered(counted):
        assert (await receive(system, decision(asked), "evt-1")).result is RecordResult.OK
        assert (await receive(system, decision(asked), "evt-2")).result is RecordResult.DUPLICATE
        event = decision(asked, choice=Choice.DENIED)
        for _ in range(2):
            with pytest.raises(Conflict) as refused:
                await receive(system, event, "evt-3")
            assert refused.value.code == "approval_conflict"
    assert [result for _, result in counted.calls] == ["ok", "duplicate", "conflict", "duplicate"]
    refusals = [e for e in await trail(strict) if e.action == "webhook_refused"]
    assert [e.body["data"]["code"] for e in refusals if e.body] == ["approval_conflict"], "and once"


@pytest.mark.proves("D.147")
async def test_what_somebody_decided_elsewhere_is_told_to_the_event(strict: World) -> None:
    system = await connected(strict)
    _, (asked,) = await waiting(strict, Shipping())
    await decide(strict, asked)
    assert (await receive(system, decision(asked), "evt-1")).result is RecordResult.DUPLICATE
    with pytest.raises(Conflict):
        await receive(system, decision(asked, choice=Choice.DENIED), "evt-2")


async def trail(world: World) -> list[Any]:
    return list(await audit.list_entries(world.db, world.admin.actor, None, 0, 1000))


@pytest.mark.proves("D.146")
async def test_only_a_verified_name_of_an_active_member_decides(strict: World, admin: asyncpg.Connection) -> None:
    system = await connected(strict)
    _, (asked,) = await waiting(strict, Shipping())
    pat = await strict.person(Role.ADMIN, name="Pat")
    await system.knows(pat, "pat@corp")
    assert pat.actor.user_account_id is not None
    await orgs.update_member(strict.db, strict.admin.actor, pat.actor.user_account_id, MemberChange(active=False), None)
    elsewhere = await System.connected(strict, "second")
    await elsewhere.knows(strict.admin, "boss@corp")
    await admin.execute(
        "insert into channel_mapping (org_id, id, connection_id, user_account_id, channel_type, channel_user_id)"
        " values ($1, gen_random_uuid(), $2, $3, 'webhook', 'claims@corp')",
        strict.org_id, system.id, strict.admin.actor.user_account_id,
    )  # fmt: skip
    for n, name in enumerate(("nobody@corp", "pat@corp", "boss@corp", "claims@corp", "ADA@corp")):
        with pytest.raises(Forbidden) as refused:
            await receive(system, decision(asked, name), f"evt-{n}")
        assert refused.value.code == "sender_unknown", name
    assert (await shown(strict, asked.id)).status is ApprovalStatus.PENDING
    assert [e.action for e in await trail(strict)].count("webhook_refused") == 5


@pytest.mark.proves("D.146")
async def test_the_authority_is_the_persons_and_not_the_systems(strict: World) -> None:
    system = await connected(strict)
    _, (asked,) = await waiting(strict, Shipping())
    guest, member = await strict.person(Role.GUEST, name="Gil"), await strict.person(Role.MEMBER, name="Mo")
    await system.knows(guest, "gil@corp")
    await system.knows(member, "mo@corp")
    for name in ("gil@corp", "mo@corp"):
        with pytest.raises((Forbidden, NotFound)):
            await receive(system, decision(asked, name), f"evt-{name}")
    assert (await shown(strict, asked.id)).status is ApprovalStatus.PENDING


@pytest.mark.proves("D.146")
@pytest.mark.proves("D.146", "D.155")
@pytest.mark.parametrize("template", ["full_pipeline", "critical_path", "dev_review"])
async def test_one_secret_approves_nothing_of_high_risk_and_may_deny_it(strict: World, template: str) -> None:
    await apply_policies(strict.db, strict.admin.actor, ASK.format(template=template))
    system = await connected(strict)
    _, (asked,) = await waiting(strict, Shipping())
    if template == "dev_review":
        assert (await receive(system, decision(asked), "evt-1")).status is ApprovalStatus.APPROVED
        return
    event = decision(asked)
    for _ in range(2):
        with pytest.raises(Forbidden) as refused:
            await receive(system, event, "evt-1")
        assert refused.value.code == "login_required"
    details = await approvals.get_approval(strict.db, strict.admin.actor, asked.id)
    assert (details.approval.status, details.votes) == (ApprovalStatus.PENDING, [])
    assert [e.body["data"]["code"] for e in await trail(strict) if e.body and e.action == "webhook_refused"] == [
        "login_required"
    ]
    answer = await receive(system, decision(asked, choice=Choice.DENIED), "evt-2")
    assert answer.status is ApprovalStatus.DENIED


@pytest.mark.proves("D.744")
async def test_another_system_answers_for_a_person_who_then_shaped_what_follows(strict: World) -> None:
    await apply_policies(strict.db, strict.admin.actor, ASK.format(template="dev_review"))
    system = await connected(strict)
    _, (asked,) = await waiting(strict, Shipping())
    event = decision(asked, choice=Choice.RESPONDED, answer="Ship 1.1.")
    for result in (RecordResult.OK, RecordResult.OK):
        answer = await receive(system, event, "evt-1")
        assert (answer.result, answer.status) == (result, ApprovalStatus.RESPONDED)
    after = (await approvals.get_approval(strict.db, strict.admin.actor, asked.id)).approval
    assert (after.answer, after.resolved_via) == ("Ship 1.1.", Channel.WEBHOOK)


async def test_a_decision_about_another_orgs_request_finds_nothing(strict: World, other: World) -> None:
    system = await connected(other)
    _, (asked,) = await waiting(strict, Shipping())
    with pytest.raises(NotFound):
        await receive(system, decision(asked), "evt-1")
    assert (await shown(strict, asked.id)).status is ApprovalStatus.PENDING


async def test_two_systems_may_use_the_same_ids(strict: World) -> None:
    _, asked = await waiting(strict, Shipping(), ship("1"), ship("2"))
    for n, each in enumerate(asked):
        system = await System.connected(strict, f"hook-{n}")
        await system.knows(strict.admin, "ada@corp")
        assert (await receive(system, decision(each), "evt-1")).result is RecordResult.OK


# Connections ---------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.140")
async def test_secrets_are_sealed_and_in_no_row_and_no_log(strict: World, admin: asyncpg.Connection) -> None:
    with capture_logs() as logs:
        system = await System.connected(strict)
        rotated = await connections.rotate_secret(strict.db, strict.admin.actor, system.id)
    rows = await admin.fetch("select to_jsonb(c)::text as line from channel_connection c")
    rows += await admin.fetch("select convert_from(body, 'utf8') as line from audit_entry")
    for secret in (system.secret, rotated.secret):
        assert secret not in str(logs)
        assert all(secret not in row["line"] for row in rows)
        assert all(secret.removeprefix("whsec_") not in row["line"] for row in rows)
    shown_now = await connections.get_connection(strict.db, strict.admin.actor, system.id)
    assert not hasattr(shown_now, "secret")
    actions = [e.action for e in await trail(strict)]
    assert actions.count("connection_secret_rotated") == 1


@pytest.mark.proves("D.140")
async def test_after_a_rotation_the_older_secret_counts_for_a_day(strict: World, admin: asyncpg.Connection) -> None:
    system = await System.connected(strict)
    now = datetime.now(UTC)
    clock = await Clock.install(admin, now)
    new = await connections.rotate_secret(strict.db, strict.admin.actor, system.id)
    assert new.previous_valid_until == now + timedelta(hours=24)
    for n, secret in enumerate((system.secret, new.secret)):
        await receive(system, ping(), f"a-{n}", secret=secret, at=now)
    await clock.advance(timedelta(hours=24))
    later = now + timedelta(hours=24)
    await receive(system, ping(), "b-1", secret=new.secret, at=later)
    with pytest.raises(Exception, match="not valid"):
        await receive(system, ping(), "b-2", secret=system.secret, at=later)
    newest = await connections.rotate_secret(strict.db, strict.admin.actor, system.id)
    with pytest.raises(Exception, match="not valid"):
        await receive(system, ping(), "c-1", secret=system.secret, at=later)
    await receive(system, ping(), "c-2", secret=newest.secret, at=later)


async def failed_lately(world: World, admin: asyncpg.Connection, *systems: System) -> None:
    """A request whose message to each of them failed, and is to be tried again in a few hours."""
    for system in systems:
        await system.knows(world.admin, "ada@corp")
    await waiting(world, Shipping())
    made = await admin.execute(
        "update notification set attempts = 1, last_error = 'HTTP 500', next_attempt_at = plane_now() + interval '20 hours'"
    )
    assert made == f"UPDATE {len(systems)}"


@pytest.mark.proves("D.145")
async def test_what_fails_for_five_days_is_disabled_once_with_the_reason_on_the_trail(
    strict: World, admin: asyncpg.Connection
) -> None:
    system, fine, by_mail = (await System.connected(strict), await System.connected(strict, "fine"), strict.connection)
    now = datetime.now(UTC)
    clock = await Clock.install(admin, now)
    for id, since in (
        (system.id, timedelta(days=5)), (fine.id, timedelta(days=4, hours=23)), (by_mail.id, timedelta(days=9)),
    ):  # fmt: skip
        await admin.execute("update channel_connection set failing_since = $2 where id = $1", id, now - since)
    await failed_lately(strict, admin, system, fine)
    await asyncio.gather(*(webhooks.keep(strict.db) for _ in range(3)))
    off = await connections.get_connection(strict.db, strict.admin.actor, system.id)
    assert (off.disabled_at, off.disabled_reason) == (now, "Nothing was delivered for 5 days.")
    assert (await connections.get_connection(strict.db, strict.admin.actor, fine.id)).disabled_at is None
    assert (await connections.get_connection(strict.db, strict.admin.actor, by_mail.id)).disabled_at is None
    told = [e for e in await trail(strict) if e.action == "connection_disabled"]
    assert [e.body["data"]["connection"] for e in told if e.body] == [str(system.id)]
    assert [e.body["actor"]["kind"] for e in told if e.body] == ["scheduler"]
    await clock.advance(timedelta(hours=1))
    await webhooks.keep(strict.db)
    assert (await connections.get_connection(strict.db, strict.admin.actor, fine.id)).disabled_at is not None
    on = await connections.update_connection(
        strict.db, strict.admin.actor, system.id, ConnectionChange(enabled=True), None
    )
    assert (on.disabled_at, on.disabled_reason, on.failing_since) == (None, None, None)
    await webhooks.keep(strict.db)
    assert (await connections.get_connection(strict.db, strict.admin.actor, system.id)).disabled_at is None


@pytest.mark.proves("D.145")
async def test_a_webhook_to_which_nothing_was_sent_lately_is_not_disabled(
    strict: World, admin: asyncpg.Connection
) -> None:
    """One message failed, and then nobody had anything to send, or nobody sent it."""
    system = await System.connected(strict)
    now = datetime.now(UTC)
    clock = await Clock.install(admin, now)
    await failed_lately(strict, admin, system)
    await admin.execute(
        "update channel_connection set failing_since = $2 where id = $1", system.id, now - timedelta(days=9)
    )
    for fate in (
        "next_attempt_at = $1::timestamptz - interval '1 minute'",
        "next_attempt_at = $1::timestamptz, attempts = 0",
        "next_attempt_at = null, status = 'dead', last_error = coalesce(last_error, $1::timestamptz::text)",
    ):
        await admin.execute(f"update notification set {fate}", now)
        await webhooks.keep(strict.db)
        assert (await connections.get_connection(strict.db, strict.admin.actor, system.id)).disabled_at is None, fate
    await clock.advance(timedelta(hours=1))
    await admin.execute(
        "update notification set status = 'pending', attempts = 2, next_attempt_at = $1::timestamptz + interval '1 day'",
        now,
    )
    await webhooks.keep(strict.db)
    assert (await connections.get_connection(strict.db, strict.admin.actor, system.id)).disabled_at is not None


async def test_events_are_forgotten_after_a_month(strict: World, admin: asyncpg.Connection) -> None:
    system = await System.connected(strict)
    now = datetime.now(UTC)
    clock = await Clock.install(admin, now)
    await receive(system, ping(), "old", at=now)
    await clock.advance(timedelta(days=30))
    await receive(system, ping(), "new", at=now + timedelta(days=30))
    await webhooks.keep(strict.db)
    assert len(await admin.fetch("select from inbound_event")) == 2
    await clock.advance(timedelta(seconds=1))
    await webhooks.keep(strict.db)
    assert [row["event_id"] for row in await admin.fetch("select event_id from inbound_event")] == ["new"]


@pytest.mark.proves("D.148")
async def test_an_admin_vouches_for_a_name_once_and_for_one_person(strict: World) -> None:
    system = await System.connected(strict)
    pat, mo = await strict.person(Role.APPROVER, name="Pat"), await strict.person(Role.APPROVER, name="Mo")
    await system.knows(pat, "p@corp")
    await system.knows(pat, "p@corp")
    assert [e.action for e in await trail(strict)].count("mapping_vouched") == 1
    with pytest.raises(Conflict) as refused:
        await system.knows(mo, "p@corp")
    assert refused.value.code == "identity_taken"
    assert pat.actor.user_account_id is not None
    page = await orgs.list_member_mappings(strict.db, strict.admin.actor, pat.actor.user_account_id, None, 10)
    (mapping,) = page.items
    assert (mapping.connection_id, mapping.channel_user_id) == (system.id, "p@corp")
    assert mapping.verified_at is not None


@pytest.mark.proves("D.148")
async def test_nobody_vouches_where_nothing_is_signed_or_for_whom_is_not_there(strict: World, other: World) -> None:
    system = await System.connected(strict)
    pat = await strict.person(Role.APPROVER, name="Pat")
    assert pat.actor.user_account_id is not None
    draft = MappingDraft(member_id=pat.actor.user_account_id, external_user="p@corp")
    with pytest.raises(Conflict) as refused:
        await connections.map_member(strict.db, strict.admin.actor, strict.connection.id, draft)
    assert refused.value.code == "not_a_webhook"
    with pytest.raises(Forbidden):
        await connections.map_member(strict.db, pat.actor, system.id, draft)
    with pytest.raises(NotFound):
        await connections.map_member(other.db, other.admin.actor, system.id, draft)
    theirs = other.admin.actor.user_account_id
    assert theirs is not None
    with pytest.raises(NotFound):
        await connections.map_member(
            strict.db, strict.admin.actor, system.id, MappingDraft(member_id=theirs, external_user="x")
        )
    await orgs.update_member(strict.db, strict.admin.actor, pat.actor.user_account_id, MemberChange(active=False), None)
    with pytest.raises(Conflict) as gone:
        await connections.map_member(strict.db, strict.admin.actor, system.id, draft)
    assert gone.value.code == "member_deactivated"


async def test_a_webhook_has_an_address_and_nothing_else_has_one(strict: World) -> None:
    for draft in (
        ConnectionDraft(channel_type="webhook", name="none"),
        ConnectionDraft(channel_type="webhook", name="plain", url="http://hooks.example/"),
        ConnectionDraft(channel_type="webhook", name="inside", url="https://127.0.0.1/"),
        ConnectionDraft(channel_type="slack", name="slack", url=URL),
    ):
        with pytest.raises(InvalidInput):
            await connections.create_connection(strict.db, strict.admin.actor, draft)
    for change in (ConnectionChange(url="http://hooks.example/"), ConnectionChange(url="https://10.0.0.1/")):
        system = await System.connected(strict, change.url or "")
        with pytest.raises(InvalidInput):
            await connections.update_connection(strict.db, strict.admin.actor, system.id, change, None)
    with pytest.raises(InvalidInput):
        await connections.update_connection(
            strict.db, strict.admin.actor, strict.connection.id, ConnectionChange(url=URL), None
        )

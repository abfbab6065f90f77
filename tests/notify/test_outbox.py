"""Who is told, when they are told again, and what becomes of what cannot be told."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import httpx
import pytest

from cortex_plane.approvals.model.approvals import (
    OWN_DOORS,
    Approval,
    ApprovalDecision,
    ApprovalKind,
    ApprovalStatus,
    Channel,
    Choice,
    DelegationDraft,
)
from cortex_plane.approvals.verbs import approvals, decisions
from cortex_plane.calls.verbs import deadlines
from cortex_plane.channels.webhooks import WebhookChannel
from cortex_plane.kernel.errors import Conflict, Forbidden, NotFound
from cortex_plane.kernel.ids import new_id
from cortex_plane.notify.model.notifications import Card, Occasion, Outgoing, TryAgain, Undeliverable
from cortex_plane.notify.verbs import cards, deliveries, outbox
from cortex_plane.proof.verbs import audit
from cortex_plane.tenancy.model.access import scheduler_actor
from cortex_plane.tenancy.model.identities import KNOWN_CHANNELS, ConnectionChange, Delivery, DeliveryStatus
from cortex_plane.tenancy.model.orgs import OrgChange, OrgSettingsChange, Role
from cortex_plane.tenancy.verbs import connections, orgs
from cortex_plane.worker.notifier import Notifier
from tests.channels.behaviour import PUBLIC_URL, Failure, delivery_of, drain, link
from tests.channels.postbox import Postbox, connect
from tests.fixtures.approvals import Shipping, decide, ship, shown, waiting
from tests.fixtures.clock import Clock
from tests.fixtures.credentials import by_token, press
from tests.fixtures.notifications import copies
from tests.fixtures.people import Person, World, apply_policies
from tests.fixtures.stages import held_job
from tests.fixtures.visitors import Visitor
from tests.fixtures.workers import whole

TWO = """
policies:
  - name: two
    target: ship
    effect: requires_approval
    approvers: {roles: [approver]}
    timeout: 10h
    remind_before: 1h
    escalate_before: 6h
    escalate_to: [{roles: [operator]}]
    quorum: 2
"""


def one(**more: Any) -> str:
    given = "".join(f"\n    {name}: {value}" for name, value in more.items())
    return (
        "policies:\n  - name: one\n    target: ship\n    effect: requires_approval\n"
        f"    approvers: {{roles: [approver]}}\n    timeout: 10h{given}\n"
    )


async def person(
    world: World, admin: asyncpg.Connection, connection_id: UUID | None, name: str, role: Role = Role.APPROVER
) -> Person:
    made = await world.person(role, name=name)
    if connection_id is not None:
        await link(admin, world, connection_id, made, f"{name.lower()}@example.com")
    return made


async def asked_of(world: World, policies: str | None = None) -> Approval:
    await apply_policies(world.db, world.admin.actor, policies or one())
    _, (asked,) = await waiting(world, Shipping())
    return asked


async def told(world: World, approval: Approval) -> list[Delivery]:
    page = await deliveries.list_deliveries(world.db, world.admin.actor, None, 200, approval_id=approval.id)
    return page.items


def notifier(world: World, box: Postbox) -> Notifier:
    return Notifier(world.db, [box], PUBLIC_URL)


def card(outgoing: Outgoing) -> Card:
    assert isinstance(outgoing.content, Card)
    return outgoing.content


# Who -----------------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.120")
async def test_everybody_who_may_decide_is_told_on_every_address_that_they_proved(
    strict: World, admin: asyncpg.Connection
) -> None:
    mail, hook = await connect(strict), await connect(strict, "webhook", "hook")
    ann = await person(strict, admin, mail, "Ann")
    await link(admin, strict, hook, ann, "ann")
    await person(strict, admin, mail, "Bea")
    await person(strict, admin, mail, "Op", Role.OPERATOR)
    await person(strict, admin, None, "Silent")
    chat = await connect(strict, "web", "chat")
    await link(admin, strict, chat, ann, "U1")
    off = await connect(strict, "email", "off")
    await link(admin, strict, off, ann, "ann@off.example")
    await connections.update_connection(strict.db, strict.admin.actor, off, ConnectionChange(enabled=False), None)
    unproven = await link(admin, strict, mail, ann, "ann@unproven.example")
    await admin.execute("update channel_mapping set verified_at = null where id = $1", unproven)
    refused = await link(admin, strict, mail, ann, "ann@refused.example")
    await admin.execute(
        "update channel_mapping set suppressed_at = plane_now(), suppressed_reason = '550' where id = $1", refused
    )
    asked = await asked_of(strict)
    assert {(d.member, d.channel_type, d.address) for d in await told(strict, asked)} == {
        ("Ann", "email", "ann@example.com"), ("Ann", "webhook", "ann"), ("Bea", "email", "bea@example.com"),
    }  # fmt: skip
    assert await admin.fetchval("select notify_approvers($1, $2)", strict.org_id, asked.id) == 0, "once"
    await link(admin, strict, mail, ann, "ann@second.example")
    assert await admin.fetchval("select notify_approvers($1, $2)", strict.org_id, asked.id) == 1, "what is new"


@pytest.mark.proves("D.120")
async def test_a_policy_may_name_the_channels(strict: World, admin: asyncpg.Connection) -> None:
    ann = await person(strict, admin, await connect(strict), "Ann")
    await link(admin, strict, await connect(strict, "webhook", "hook"), ann, "ann")
    asked = await asked_of(strict, one(channels="[webhook]"))
    assert [d.channel_type for d in await told(strict, asked)] == ["webhook"]


@pytest.mark.proves("S4.207")
async def test_an_org_says_over_which_channels_it_asks_at_all(strict: World, admin: asyncpg.Connection) -> None:
    mail, hook = await connect(strict), await connect(strict, "webhook", "hook")
    ann = await person(strict, admin, mail, "Ann")
    await link(admin, strict, hook, ann, "ann")

    async def use(*channels: str) -> None:
        change = OrgChange(settings=OrgSettingsChange(approval_channels=channels))
        await orgs.update_org(strict.db, strict.admin.actor, change, None)

    await use("email")
    asked = await asked_of(strict)
    assert [d.channel_type for d in await told(strict, asked)] == ["email"]
    await use("webhook")
    decision = ApprovalDecision(decision=Choice.APPROVED, version=asked.version, input_hash=asked.input_hash)
    with pytest.raises(Forbidden) as refused:
        await decisions.decide(strict.db, ann.actor, asked.id, decision, Channel.EMAIL)
    assert refused.value.code == "channel_not_used"
    await use()
    await decisions.decide(strict.db, ann.actor, asked.id, decision, Channel.EMAIL)


@pytest.mark.parametrize("channel", ["email", "webhook"])
@pytest.mark.proves("S4.207")
async def test_messages_of_a_channel_that_its_org_dropped_decide_nothing(
    http: httpx.AsyncClient, strict: World, admin: asyncpg.Connection, channel: str
) -> None:
    """Their links and tokens alike, until the org uses it again. Whoever logs in decides as before."""
    await person(strict, admin, await connect(strict, channel), "Ann")
    asked, box = await asked_of(strict), Postbox(channel)
    await drain(notifier(strict, box))
    message = card(box.received[0])
    assert message.token is not None
    assert message.approve_url is not None

    async def use(*channels: str) -> None:
        body = {"settings": {"approval_channels": channels}}
        answer = await http.patch("/v1/org", json=body, headers=strict.admin.headers)
        assert answer.status_code == 200, answer.text

    async def entries() -> list[str]:
        return [
            each.action for each in await audit.list_entries(strict.db, strict.admin.actor, asked.session_id, 0, 99)
        ]

    await use("webhook" if channel == "email" else "email")
    before = await entries()
    for path, body in (
        ("/v1/approvals/decide", {"decision": "approved"}), ("/api/approvals/approve", {}),
        ("/api/approvals/deny", {}),
    ):  # fmt: skip
        refused = await http.post(path, json={"token": message.token, **body})
        assert (refused.status_code, refused.json()["code"]) == (403, "channel_not_used"), refused.text
        assert f"does not use {channel} for approvals" in refused.json()["detail"]
    page = await press(http, message.approve_url)
    assert (page.status_code, f"does not use {channel} for approvals" in page.text) == (403, True)
    assert (await shown(strict, asked.id)).status is ApprovalStatus.PENDING
    assert await entries() == before
    await use(channel)
    assert (await by_token(http, message.token, "approved", reason="yes")).status_code == 200
    await use("webhook" if channel == "email" else "email")
    assert (await by_token(http, message.token)).json()["code"] == "channel_not_used", "also where it was used"
    assert await whole(strict)


@pytest.mark.proves("S4.207")
async def test_whoever_logs_in_decides_what_a_dropped_channel_told_them_of(
    http: httpx.AsyncClient, strict: World, admin: asyncpg.Connection
) -> None:
    ann = await person(strict, admin, await connect(strict), "Ann")
    asked = await asked_of(strict)
    await drain(notifier(strict, Postbox()))
    change = OrgChange(settings=OrgSettingsChange(approval_channels=("webhook",)))
    await orgs.update_org(strict.db, strict.admin.actor, change, None)
    visitor = await Visitor.log_in(http, strict, ann)
    preview = await visitor.decide(asked.id, "approved")
    answer = await visitor.submit(preview, f"/approvals/{asked.id}/decide", decision="approved")
    assert answer.status_code == 303, answer.text
    assert (await shown(strict, asked.id)).status is ApprovalStatus.APPROVED


async def test_at_most_a_hundred_people_are_told_and_the_named_come_first(
    strict: World, admin: asyncpg.Connection
) -> None:
    mail = await connect(strict)
    ann = await person(strict, admin, None, "Ann")
    asked = await asked_of(strict)
    await admin.execute(
        """with people as (
          insert into user_account (org_id, id, display_name, roles)
          select $1, gen_random_uuid(), 'P' || n, '{approver}' from generate_series(1, 120) n returning id)
        insert into channel_mapping (org_id, id, connection_id, user_account_id, channel_type, channel_user_id, verified_at)
        select $1, gen_random_uuid(), $2, p.id, 'email', p.id || '@example.com', plane_now() from people p""",
        strict.org_id, mail,
    )  # fmt: skip
    await link(admin, strict, mail, ann, "ann@example.com")
    await admin.execute(
        "update approval_request set approvers = jsonb_set(approvers, '{members}', jsonb_build_array($2::uuid)) where id = $1",
        asked.id, ann.actor.user_account_id,
    )  # fmt: skip
    assert await admin.fetchval("select notify_approvers($1, $2)", strict.org_id, asked.id) == 100
    assert "ann@example.com" in {d.address for d in await told(strict, asked)}
    assert await admin.fetchval("select notify_approvers($1, $2)", strict.org_id, asked.id) == 0, "in all"


async def test_an_org_without_such_channels_writes_nothing(strict: World, admin: asyncpg.Connection) -> None:
    await person(strict, admin, None, "Ann")
    asked = await asked_of(strict)
    assert await told(strict, asked) == []
    assert (await shown(strict, asked.id)).channels_dispatched == ["dashboard"]


# When ----------------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.121")
async def test_every_change_that_a_card_shows_is_told_with_its_occasion(
    strict: World, admin: asyncpg.Connection
) -> None:
    mail = await connect(strict)
    ann = await person(strict, admin, mail, "Ann")
    bea = await person(strict, admin, mail, "Bea")
    cid = await person(strict, admin, mail, "Cid", Role.MEMBER)
    await person(strict, admin, mail, "Op", Role.OPERATOR)
    asked = await asked_of(strict, TWO)
    box = Postbox()
    sending = notifier(strict, box)

    async def news() -> set[tuple[str, Occasion, int]]:
        before = len(box.received)
        await drain(sending)
        return {(e.target.member, card(e).occasion, len(card(e).votes)) for e in box.received[before:]}

    assert await news() == {("Ann", Occasion.REQUESTED, 0), ("Bea", Occasion.REQUESTED, 0)}
    await decide(strict, asked, by=ann)
    assert await news() == {("Ann", Occasion.CHANGED, 1), ("Bea", Occasion.CHANGED, 1)}
    assert cid.actor.user_account_id is not None
    await approvals.delegate(
        strict.db, bea.actor, asked.id, DelegationDraft(to=cid.actor.user_account_id, reason="holiday")
    )
    assert await news() == {
        ("Ann", Occasion.DELEGATED, 1), ("Bea", Occasion.DELEGATED, 1), ("Cid", Occasion.DELEGATED, 1),
    }  # fmt: skip
    assert asked.deadline is not None
    clock = await Clock.install(admin, asked.deadline - timedelta(hours=6))
    assert (await deadlines.tick(strict.db, new_id(), "scheduler")).done == ["escalated"]
    escalated = await news()
    assert ("Op", Occasion.ESCALATED, 1) in escalated
    assert len(escalated) == 4
    await clock.set(asked.deadline - timedelta(hours=1))
    assert (await deadlines.tick(strict.db, new_id(), "scheduler")).done == ["reminded"]
    assert {occasion for _, occasion, _ in await news()} == {Occasion.REMINDED}
    await decide(strict, await shown(strict, asked.id), by=cid)
    assert {(name, occasion) for name, occasion, _ in await news()} == {
        (name, Occasion.RESOLVED) for name in ("Ann", "Bea", "Cid", "Op")
    }
    assert await news() == set()
    assert await whole(strict)


@pytest.mark.proves("D.121")
async def test_changes_that_come_close_together_become_one_message(strict: World, admin: asyncpg.Connection) -> None:
    ann = await person(strict, admin, await connect(strict), "Ann")
    asked = await asked_of(strict)
    box = Postbox()
    await drain(notifier(strict, box))
    for _ in range(3):
        await admin.execute("update approval_request set version = version + 1 where id = $1", asked.id)
    await decide(strict, await shown(strict, asked.id), Choice.DENIED, by=ann)
    await drain(notifier(strict, box))
    assert [card(each).status for each in box.received] == [ApprovalStatus.PENDING, ApprovalStatus.DENIED]


async def test_whoever_handed_their_part_on_gets_nothing_that_decides(strict: World, admin: asyncpg.Connection) -> None:
    mail = await connect(strict)
    ann = await person(strict, admin, mail, "Ann")
    cid = await person(strict, admin, mail, "Cid", Role.MEMBER)
    asked = await asked_of(strict)
    box = Postbox()
    await drain(notifier(strict, box))
    assert cid.actor.user_account_id is not None
    await approvals.delegate(strict.db, ann.actor, asked.id, DelegationDraft(to=cid.actor.user_account_id))
    await drain(notifier(strict, box))
    newest = {each.target.member: card(each) for each in box.received}
    assert (newest["Ann"].approve_url, newest["Ann"].token) == (None, None)
    assert newest["Cid"].approve_url
    assert newest["Cid"].token
    assert newest["Cid"].delegations == (("Ann", "Cid", None),)


# What ----------------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.129")
@pytest.mark.parametrize(
    ("template", "token"),
    [("dev_only", True), ("dev_review", True), ("full_pipeline", False), ("critical_path", False)],
)
async def test_only_what_a_string_may_decide_carries_one(
    strict: World, admin: asyncpg.Connection, template: str, token: bool
) -> None:
    await person(strict, admin, await connect(strict), "Ann")
    await asked_of(strict, one(template=template))
    box = Postbox()
    await drain(notifier(strict, box))
    (message,) = box.received
    made = card(message)
    assert (made.token is not None) is token
    assert made.approve_url is not None
    assert made.deny_url is not None
    assert made.approve_url != made.deny_url
    assert made.approve_url.startswith(PUBLIC_URL)


@pytest.mark.proves("D.129")
async def test_a_question_about_an_effect_is_answered_in_the_dashboard_alone(
    strict: World, admin: asyncpg.Connection
) -> None:
    await link(admin, strict, await connect(strict), strict.admin, "ada@example.com")
    await apply_policies(strict.db, strict.admin.actor, 'policies: [{name: all, target: "*", effect: allow}]')
    await held_job(strict)
    box = Postbox()
    await drain(notifier(strict, box))
    (message,) = box.received
    made = card(message)
    assert made.kind is ApprovalKind.UNCERTAIN_EFFECT
    assert (made.approve_url, made.deny_url, made.token) == (None, None, None)
    assert made.question


@pytest.mark.proves("D.126")
async def test_an_orgs_own_names_of_secrets_are_kept_when_other_settings_change(
    strict: World, admin: asyncpg.Connection
) -> None:
    await person(strict, admin, await connect(strict), "Ann")
    await orgs.update_org(
        strict.db, strict.admin.actor, OrgChange(settings=OrgSettingsChange(redact=("version",))), None
    )
    changed = await orgs.update_org(
        strict.db, strict.admin.actor, OrgChange(settings=OrgSettingsChange(guests_may_chat=False)), None
    )
    assert changed.settings == {"guests_may_chat": False, "redact": ["version"]}
    await asked_of(strict)
    box = Postbox()
    await drain(notifier(strict, box))
    made = card(box.received[0])
    assert '"version": "[redacted]"' in made.arguments
    assert made.redacted
    assert not made.truncated
    assert made.approve_url is not None
    assert made.token is None, "a token decides without another look"
    assert await admin.fetchval("select count(*) from approval_token") == 0


PARTS: list[tuple[dict[str, Any], bool, bool]] = [
    ({}, False, False),
    ({"arguments": {"version": "x" * 5000}}, True, False),
    ({"agent_says": "word " * 300}, True, False),
    ({"action": "x" * 201}, True, False),
    ({"details": {"note": "x" * 501}}, True, False),
    ({"agent_says": "password=hunter2"}, False, True),
    ({"details": {"auth": {"user": "ada"}}}, False, True),
    ({"original_arguments": {"version": "1", "db_pass": "x"}}, False, True),
    ({"arguments": {"version": "1.0", "iban": "DE02"}}, False, True),
]


@pytest.mark.proves("D.126", "D.129")
async def test_a_card_that_is_not_the_whole_says_so_and_has_no_token(strict: World, admin: asyncpg.Connection) -> None:
    ann = await person(strict, admin, None, "Ann")
    asked = await asked_of(strict)
    assert ann.actor.user_account_id is not None
    for change, cut, hid in PARTS:
        seen = cards.CardSource(
            approval=replace(asked, **change), votes=[], delegations=[], deciders=["Ann"], org="Acme", redact=["iban"]
        )  # fmt: skip
        made = cards.card(seen, Occasion.REQUESTED, PUBLIC_URL)
        assert (made.truncated, made.redacted) == (cut, hid), change
        async with strict.db.transaction(strict.org_id) as tx:
            deciding = cards.DecidingCards(strict.db, tx, PUBLIC_URL)
            decides = await deciding.make(
                made, member_id=ann.actor.user_account_id, notification_id=None, channel="email"
            )
            await deciding.write_tokens()
        assert decides.approve_url is not None
        assert (decides.token is None) is (cut or hid), change


@pytest.mark.proves("D.129", "D.143")
async def test_a_channel_that_carries_no_credentials_gets_none_and_none_is_made(
    strict: World, admin: asyncpg.Connection
) -> None:
    class Printed(Postbox):
        carries_credentials = False

    await person(strict, admin, await connect(strict), "Ann")
    await asked_of(strict)
    box = Printed()
    await drain(notifier(strict, box))
    made = card(box.received[0])
    assert (made.approve_url, made.deny_url, made.token) == (None, None, None)
    assert await admin.fetchval("select count(*) from approval_token") == 0
    assert WebhookChannel.carries_credentials is False


# What cannot be told -------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.125")
async def test_it_is_given_up_after_twelve_tries_and_says_so_everywhere(
    strict: World, admin: asyncpg.Connection
) -> None:
    await person(strict, admin, await connect(strict), "Ann")
    asked = await asked_of(strict)
    clock = await Clock.install(admin, asked.requested_at + timedelta(minutes=1))
    box = Postbox()
    box.failures = [Failure.TEMPORARY] * 12
    for tries in range(1, 12):
        await drain(notifier(strict, box))
        kept = await delivery_of(strict, asked)
        assert (kept.status, kept.attempts) == (DeliveryStatus.PENDING, tries)
        assert kept.next_attempt_at is not None
        await clock.set(kept.next_attempt_at)
    await drain(notifier(strict, box))
    kept = await delivery_of(strict, asked)
    assert (kept.status, kept.attempts) == (DeliveryStatus.DEAD, 12)
    assert kept.last_error == "given up after 12 tries: 451 the postbox is full"
    assert not await admin.fetchval("select suppressed_at is not null from channel_mapping"), "it may work again"
    event = (await approvals.get_approval(strict.db, strict.admin.actor, asked.id)).events[-1]
    assert (event.event_type, event.channel, event.payload["member"]) == ("undeliverable", "email", "Ann")


@pytest.mark.proves("D.125")
async def test_an_address_that_refuses_mail_for_good_gets_no_more_until_somebody_sends_it_again(
    strict: World, admin: asyncpg.Connection
) -> None:
    await person(strict, admin, await connect(strict), "Ann")
    asked = await asked_of(strict)
    (second,) = await copies(admin, asked, 1, 1)
    box = Postbox()
    box.failures = [Failure.PERMANENT]
    await drain(notifier(strict, box))
    assert box.received == [], "what was due behind it is not sent either"
    assert await admin.fetchval("select suppressed_reason from channel_mapping") == "550 nobody lives here"
    (third,) = await copies(admin, asked, 2, 2)
    assert await admin.fetchval("select count(*) from notification where approval_id = $1", third) == 0
    first = await delivery_of(strict, asked)
    await deliveries.resend_delivery(strict.db, strict.admin.actor, first.id)
    await drain(notifier(strict, box))
    assert [card(each).approval_id for each in box.received] == [asked.id]
    assert await admin.fetchval("select suppressed_at from channel_mapping") is None
    dead = await deliveries.list_deliveries(strict.db, strict.admin.actor, None, 10, status=DeliveryStatus.DEAD)
    assert [each.approval_id for each in dead.items] == [second]


@pytest.mark.proves("D.125")
async def test_a_receiver_that_is_gone_disables_its_connection_with_the_reason(
    strict: World, admin: asyncpg.Connection
) -> None:
    connection_id = await connect(strict, "webhook", "hook")
    await person(strict, admin, connection_id, "Ann")
    await person(strict, admin, connection_id, "Bea")
    asked = await asked_of(strict)

    async def gone(_: Outgoing) -> None:
        raise Undeliverable("410 gone", gone=True)

    await drain(notifier(strict, Postbox("webhook", before=gone)))
    kept = await connections.get_connection(strict.db, strict.admin.actor, connection_id)
    assert kept.disabled_at is not None
    assert kept.disabled_reason == "410 gone"
    # To the other it may have been sent at the same moment. Both wait until somebody enables the connection.
    found = {(d.status, d.last_error) for d in await told(strict, asked)}
    assert (DeliveryStatus.PENDING, "410 gone") in found
    assert found <= {(DeliveryStatus.PENDING, reason) for reason in ("410 gone", "The connection hook is disabled.")}
    entries = await audit.list_entries(strict.db, strict.admin.actor, None, 0, 1000)
    assert [e.action for e in entries].count("connection_disabled") == 1
    assert await whole(strict)


async def test_a_connection_says_since_when_nothing_gets_through(strict: World, admin: asyncpg.Connection) -> None:
    connection_id = await connect(strict)
    await person(strict, admin, connection_id, "Ann")
    asked = await asked_of(strict)
    clock = await Clock.install(admin, asked.requested_at + timedelta(minutes=1))
    box = Postbox()
    box.failures = [Failure.TEMPORARY]
    await drain(notifier(strict, box))
    failing = (await connections.get_connection(strict.db, strict.admin.actor, connection_id)).failing_since
    assert failing == asked.requested_at + timedelta(minutes=1)
    await clock.advance(timedelta(seconds=5))
    await drain(notifier(strict, box))
    assert (await connections.get_connection(strict.db, strict.admin.actor, connection_id)).failing_since is None


async def test_what_lost_its_lease_changes_nothing(strict: World, admin: asyncpg.Connection) -> None:
    await person(strict, admin, await connect(strict), "Ann")
    asked = await asked_of(strict)
    box = Postbox()
    actor = scheduler_actor(strict.org_id, new_id(), "late")
    (lane,) = await outbox.claim_deliveries(strict.db, ["email"], after=None, full=[], lanes=8)
    assert await outbox.claim_deliveries(strict.db, ["email"], after=None, full=[], lanes=8) == [], "somebody has it"
    (prepared,) = await outbox.prepare_deliveries(strict.db, {"email": box}, PUBLIC_URL, lane, lane.ids)
    assert prepared.outgoing is not None
    sent = await box.send(prepared.outgoing)
    await admin.execute("update notification set taken_by = gen_random_uuid()")
    late = deliveries.Delivered(lane=lane, message=prepared, receipt=sent)
    for wait in (False, True):
        assert await deliveries.record_delivered(strict.db, actor, [late], wait=wait) == [
            deliveries.DeliveryRecord(False, False)
        ]
    assert await deliveries.record_failed(strict.db, actor, lane, lane.ids[0], TryAgain("late")) is None
    assert await outbox.prepare_deliveries(strict.db, {"email": box}, PUBLIC_URL, lane, lane.ids) == []
    kept = await delivery_of(strict, asked)
    assert (kept.status, kept.rendered_version, kept.last_error) == (DeliveryStatus.PENDING, 0, None)
    assert (await shown(strict, asked.id)).channels_dispatched == ["dashboard"]


async def test_a_dead_letter_stays_dead_when_its_request_changes(strict: World, admin: asyncpg.Connection) -> None:
    ann = await person(strict, admin, await connect(strict), "Ann")
    asked = await asked_of(strict)
    box = Postbox()
    box.failures = [Failure.PERMANENT]
    await drain(notifier(strict, box))
    await decide(strict, asked, by=ann)
    await drain(notifier(strict, box))
    assert (await delivery_of(strict, asked)).status is DeliveryStatus.DEAD
    assert box.received == []


# Sending again -------------------------------------------------------------------------------------------------------


async def test_only_what_was_given_up_is_sent_again(strict: World, other: World, admin: asyncpg.Connection) -> None:
    await person(strict, admin, await connect(strict), "Ann")
    asked = await asked_of(strict)
    kept = await delivery_of(strict, asked)
    with pytest.raises(Conflict) as refused:
        await deliveries.resend_delivery(strict.db, strict.admin.actor, kept.id)
    assert refused.value.code == "delivery_not_dead"
    await drain(notifier(strict, Postbox()))
    with pytest.raises(Conflict):
        await deliveries.resend_delivery(strict.db, strict.admin.actor, kept.id)
    for id, actor in ((kept.id, other.admin.actor), (new_id(), strict.admin.actor)):
        with pytest.raises(NotFound) as unknown:
            await deliveries.resend_delivery(strict.db, actor, id)
        assert unknown.value.code == "delivery_not_found"


@pytest.mark.parametrize(
    ("role", "reads", "resends"),
    [
        (Role.OPERATOR, True, True), (Role.APPROVER, True, False), (Role.STEWARD, True, False),
        (Role.MEMBER, False, False),
    ],
)  # fmt: skip
async def test_staff_see_deliveries_and_operators_send_them_again(
    strict: World, admin: asyncpg.Connection, role: Role, reads: bool, resends: bool
) -> None:
    await person(strict, admin, await connect(strict), "Ann")
    asked = await asked_of(strict)
    box = Postbox()
    box.failures = [Failure.PERMANENT]
    await drain(notifier(strict, box))
    kept = await delivery_of(strict, asked)
    somebody = (await strict.person(role, name="Somebody")).actor

    async def allowed(act: Any) -> bool:
        try:
            await act
        except Forbidden:
            return False
        return True

    assert await allowed(deliveries.get_delivery(strict.db, somebody, kept.id)) is reads
    assert await allowed(deliveries.list_deliveries(strict.db, somebody, None, 10)) is reads
    assert await allowed(deliveries.resend_delivery(strict.db, somebody, kept.id)) is resends


async def test_the_rows_hold_their_own_promises(strict: World, admin: asyncpg.Connection) -> None:
    await person(strict, admin, await connect(strict), "Ann")
    await asked_of(strict)
    for broken in (
        "next_attempt_at = null", "status = 'delivered'", "status = 'dead', next_attempt_at = null",
        "rendered_version = 7", "taken_by = gen_random_uuid()", "attempts = -1", "kind = 'invitation'",
        "address = ' '", "status = 'lost'", "sent_at = plane_now()",
    ):  # fmt: skip
        with pytest.raises(asyncpg.CheckViolationError):
            await admin.execute(f"update notification set {broken}")


async def test_two_calls_that_ask_at_once_are_two_messages(strict: World, admin: asyncpg.Connection) -> None:
    await person(strict, admin, await connect(strict), "Ann")
    await apply_policies(strict.db, strict.admin.actor, one())
    await waiting(strict, Shipping(), ship("1.0"), ship("2.0"))
    box = Postbox()
    await drain(notifier(strict, box))
    assert len({each.id for each in box.received}) == 2


async def test_the_database_and_the_code_know_the_same_channels(admin: asyncpg.Connection) -> None:
    assert await admin.fetchval("select deliverable_channels()") == list(KNOWN_CHANNELS)
    assert set(KNOWN_CHANNELS) == {channel.value for channel in Channel} - OWN_DOORS

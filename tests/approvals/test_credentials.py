"""Tokens and links lead to a person, and the person decides: once, and only while they may."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl, urlsplit
from uuid import UUID

import asyncpg
import pytest
from structlog.testing import capture_logs

from cortex_plane.approvals.model.approvals import Approval, ApprovalStatus, Choice, DelegationDraft
from cortex_plane.approvals.model.credentials import (
    GRACE,
    KEEP_TOKENS,
    ROTATE_AFTER,
    SecretRotationDraft,
    TokenDecision,
    Visitor,
)
from cortex_plane.approvals.verbs import approvals, credentials
from cortex_plane.approvals.verbs.credentials import new_approval_token
from cortex_plane.calls.verbs import deadlines
from cortex_plane.db.vault import Vault
from cortex_plane.jobs.model.jobs import Cancellation
from cortex_plane.jobs.verbs import steering
from cortex_plane.kernel.errors import Conflict, CortexError, Forbidden, Unauthenticated
from cortex_plane.kernel.ids import new_id
from cortex_plane.kernel.meters import Meters, metered
from cortex_plane.proof.verbs import audit
from cortex_plane.tenancy.model.access import Actor
from cortex_plane.tenancy.model.orgs import MemberChange, Role
from cortex_plane.tenancy.verbs import orgs
from tests.fixtures.approvals import Shipping, decide, shown, waiting
from tests.fixtures.clock import Clock
from tests.fixtures.credentials import link_for, token_for
from tests.fixtures.people import Person, World, apply_policies
from tests.fixtures.rows import digests
from tests.fixtures.servers import CREDENTIAL_KEY

TWO_OF_THREE = """
policies:
  - {name: two, target: ship, effect: requires_approval, approvers: {roles: [admin, approver]}, quorum: 2}
"""
ANY_APPROVER = """
policies:
  - {name: any, target: ship, effect: requires_approval, approvers: {roles: [admin, approver]}}
"""
CLEARED = """
policies:
  - {name: cleared, target: ship, effect: requires_approval, approvers: {roles: [admin, approver]}, clearance: 5}
"""
CRITICAL = """
policies:
  - {name: crit, target: ship, effect: requires_approval, template: critical_path, approvers: {roles: [admin, approver]},
     self_approval: true}
"""


class Counted(Meters):
    """What the meters of callbacks were told."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()

    def called_back(self, channel: str, result: str) -> None:
        self.calls[channel, result] += 1


async def one(world: World, **more: Any) -> Approval:
    _, (approval,) = await waiting(world, Shipping(), **more)
    return approval


async def use(world: World, token: str, choice: Choice = Choice.APPROVED, reason: str | None = None) -> str:
    """The result, or the code of the refusal."""
    try:
        answer = "Another way." if choice is Choice.RESPONDED else None
        given = TokenDecision(token=token, decision=choice, reason=reason, answer=answer)
        return (await credentials.decide_by_token(world.db, given)).result.value
    except CortexError as error:
        return error.code


def parts(link: str) -> tuple[str, str, list[tuple[str, str]]]:
    address = urlsplit(link)
    *_, channel, id = address.path.split("/")
    return channel, id, parse_qsl(address.query)


async def visit(world: World, link: str, session: Actor | None = None) -> Visitor:
    return await credentials.visitor(world.db, *parts(link), session)


async def click(world: World, link: str, session: Actor | None = None, reason: str | None = None) -> str:
    """Open the page and press its button, as one."""
    try:
        found = await visit(world, link, session)
        seen = (await approvals.get_approval(world.db, found.actor, found.link.approval_id)).approval
        shown = found.confirmation(seen.version, seen.input_hash)
        answer = "Another way." if found.link.decision is Choice.RESPONDED else None
        return (await credentials.decide_by_link(world.db, found, shown, reason, answer)).result.value
    except CortexError as error:
        return error.code


async def refused(work: Awaitable[Any]) -> str:
    with pytest.raises(CortexError) as caught:
        await work
    return caught.value.code


# Tokens ------------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.150")
async def test_a_token_decides_once_as_its_person_and_then_says_what_was_recorded(
    strict: World, admin: asyncpg.Connection
) -> None:
    counted = Counted()
    with metered(counted):
        approval = await one(strict)
        token = await token_for(strict, approval.id, strict.admin.actor)
        assert await use(strict, token, reason="from the train") == "OK"
        assert await use(strict, token) == "DUPLICATE"
        assert await use(strict, token, Choice.DENIED) == "approval_conflict"
    after = await shown(strict, approval.id)
    assert (after.status, after.resolved_by) == (ApprovalStatus.APPROVED, strict.admin.actor.user_account_id)
    assert (after.resolution_reason, after.resolved_via) == ("from the train", "api")
    kept = await admin.fetchrow("select token_hash, used_at from approval_token")
    assert kept is not None
    assert kept["token_hash"] == CREDENTIAL_KEY.lookup(hashlib.sha256(token.encode()).digest())
    assert kept["used_at"] is not None
    assert counted.calls == {("api", "ok"): 1, ("api", "duplicate"): 1, ("api", "conflict"): 1}


@pytest.mark.proves("D.150")
async def test_the_token_itself_is_nowhere(strict: World, admin: asyncpg.Connection) -> None:
    with capture_logs() as logs:
        approval = await one(strict)
        token = await token_for(strict, approval.id, strict.admin.actor)
        await use(strict, token)
        await use(strict, token[:-1])
    assert token[:30] not in repr(logs)
    tables = await admin.fetch("select tablename from pg_tables where schemaname = 'public'")
    for table in tables:
        rows = await admin.fetch(f"select t::text as line from {table['tablename']} t")
        assert not any(token[-20:] in row["line"] for row in rows), table


@pytest.mark.proves("D.150")
async def test_any_use_consumes_all_tokens_of_that_approver_through_whatever_door(
    strict: World, admin: asyncpg.Connection
) -> None:
    pat = await strict.person(Role.APPROVER, name="Pat")
    await apply_policies(strict.db, strict.admin.actor, TWO_OF_THREE)
    approval = await one(strict)
    mine = [await token_for(strict, approval.id, pat.actor) for _ in range(3)]
    theirs = await token_for(strict, approval.id, strict.admin.actor)
    await decide(strict, approval, by=pat)  # not with a token at all
    used = {
        row["user_account_id"]: row["n"]
        for row in await admin.fetch(
            "select user_account_id, count(used_at) as n from approval_token group by user_account_id"
        )
    }
    assert used == {pat.actor.user_account_id: 3, strict.admin.actor.user_account_id: 0}
    for token in mine:
        assert await use(strict, token) == "DUPLICATE"
        assert await use(strict, token, Choice.DENIED) == "approval_conflict"
    assert (await shown(strict, approval.id)).status is ApprovalStatus.PENDING
    assert await use(strict, theirs) == "OK"
    assert (await shown(strict, approval.id)).status is ApprovalStatus.APPROVED


@pytest.mark.proves("D.151")
async def test_forged_tokens_leave_no_row_and_no_entry_on_any_chain(
    strict: World, other: World, admin: asyncpg.Connection
) -> None:
    approval = await one(strict)
    token = await token_for(strict, approval.id, strict.admin.actor)
    before, counted = await digests(admin), Counted()
    middle = token[:20] + ("A" if token[20] != "A" else "B") + token[21:]
    with metered(counted), capture_logs() as logs:
        codes = [
            await use(strict, bad)
            for bad in (
                new_approval_token(),
                middle,
                token[:-1],
                token + "A",
                token.replace("_apr_1_", "_apr_2_"),
                "cortex_key_" + token[-43:],
                "cortex_apr_1" + "A" * 43,
            )
        ]
    assert codes == [
        "token_unknown",
        "token_unknown",
        "token_malformed",
        "token_malformed",
        "token_version",
        "not_a_token",
        "token_malformed",
    ]
    assert await digests(admin) == before
    assert counted.calls == {("api", "token_invalid"): 7}
    assert [line["event"] for line in logs] == ["approval token refused"] * 7
    assert await use(strict, token) == "OK"


@pytest.mark.proves("D.151")
async def test_a_token_decides_the_version_that_its_message_showed(strict: World) -> None:
    shipping = Shipping()
    job, (approval,) = await waiting(strict, shipping)
    token = await token_for(strict, approval.id, strict.admin.actor)
    stale = await token_for(strict, approval.id, strict.admin.actor, version=7)
    altered = await token_for(strict, approval.id, strict.admin.actor, input_hash="ab" * 32)
    for each in (stale, altered):
        assert await use(strict, each) == "approval_changed"
        assert await use(strict, each, Choice.DENIED) == "approval_changed"
    assert (await shown(strict, approval.id)).status is ApprovalStatus.PENDING
    assert await use(strict, token) == "OK"
    assert job


@pytest.mark.proves("D.151")
async def test_a_token_is_over_with_its_request(strict: World, admin: asyncpg.Connection) -> None:
    clock = await Clock.install(admin, datetime(2026, 5, 1, 12, tzinfo=UTC))
    approval = await one(strict)
    unused = await token_for(strict, approval.id, strict.admin.actor)
    assert approval.deadline is not None
    await clock.set(approval.deadline - timedelta(microseconds=1))
    short = await token_for(strict, approval.id, strict.admin.actor, expires_at=approval.deadline - timedelta(hours=1))
    assert await use(strict, short) == "token_expired"
    await clock.set(approval.deadline)
    assert await use(strict, unused) == "token_expired"
    assert await use(strict, unused, Choice.DENIED) == "token_expired"
    await deadlines.tick(strict.db, new_id(), "scheduler")
    assert (await shown(strict, approval.id)).status is ApprovalStatus.EXPIRED
    assert await use(strict, unused) == "token_expired"


async def test_a_used_token_tells_what_was_recorded_also_after_its_time(
    strict: World, admin: asyncpg.Connection
) -> None:
    clock = await Clock.install(admin, datetime(2026, 5, 1, 12, tzinfo=UTC))
    approval = await one(strict)
    token = await token_for(strict, approval.id, strict.admin.actor)
    assert await use(strict, token) == "OK"
    await clock.advance(timedelta(days=3))
    assert await use(strict, token) == "DUPLICATE"
    assert await use(strict, token, Choice.DENIED) == "approval_conflict"


async def _deactivated(world: World, pat: Person, approval: Approval) -> None:
    assert pat.actor.user_account_id is not None
    await orgs.update_member(world.db, world.admin.actor, pat.actor.user_account_id, MemberChange(active=False), None)


async def _less_cleared(world: World, pat: Person, approval: Approval) -> None:
    assert pat.actor.user_account_id is not None
    await orgs.update_member(world.db, world.admin.actor, pat.actor.user_account_id, MemberChange(clearance=1), None)


async def _guest(world: World, pat: Person, approval: Approval) -> None:
    assert pat.actor.user_account_id is not None
    await orgs.update_member(
        world.db, world.admin.actor, pat.actor.user_account_id, MemberChange(roles=[Role.GUEST]), None
    )


async def _other_role(world: World, pat: Person, approval: Approval) -> None:
    assert pat.actor.user_account_id is not None
    await orgs.update_member(
        world.db, world.admin.actor, pat.actor.user_account_id, MemberChange(roles=[Role.OPERATOR]), None
    )


async def _delegated(world: World, pat: Person, approval: Approval) -> None:
    quinn = await world.person(Role.APPROVER, name="Quinn", clearance=9)
    assert quinn.actor.user_account_id is not None
    await approvals.delegate(world.db, pat.actor, approval.id, DelegationDraft(to=quinn.actor.user_account_id))


async def _cancelled(world: World, pat: Person, approval: Approval) -> None:
    assert approval.job_id is not None
    await steering.cancel(world.db, world.admin.actor, approval.job_id, Cancellation())


async def _denied(world: World, pat: Person, approval: Approval) -> None:
    await decide(world, approval, Choice.DENIED, by=await world.person(Role.ADMIN, name="Zoe", clearance=9))


FATES: dict[str, tuple[Callable[[World, Person, Approval], Awaitable[None]], set[str]]] = {
    "deactivated": (_deactivated, {"member_deactivated"}),
    "less cleared": (_less_cleared, {"clearance_too_low"}),
    "a guest now": (_guest, {"guest_cannot_decide", "approval_not_found"}),
    "another role": (_other_role, {"not_an_approver"}),
    "delegated away": (_delegated, {"delegated_away"}),
    "cancelled": (_cancelled, {"approval_conflict"}),
    "denied by another": (_denied, {"approval_conflict"}),
}


@pytest.mark.parametrize("fate", FATES)
@pytest.mark.parametrize("by", ["token", "link"])
@pytest.mark.proves("D.151", "D.153")
async def test_authority_is_the_person_at_this_moment_and_never_the_string(
    strict: World, admin: asyncpg.Connection, fate: str, by: str
) -> None:
    pat = await strict.person(Role.APPROVER, name="Pat", clearance=9)
    await apply_policies(strict.db, strict.admin.actor, CLEARED)
    approval = await one(strict)
    token = await token_for(strict, approval.id, pat.actor)
    link = await link_for(strict, approval, to=pat)
    happens, codes = FATES[fate]
    await happens(strict, pat, approval)
    status = (await shown(strict, approval.id)).status
    assert (await use(strict, token) if by == "token" else await click(strict, link)) in codes
    assert (await shown(strict, approval.id)).status is status
    assert await admin.fetchval("select count(*) from approval_vote where member = 'Pat'") == 0


@pytest.mark.proves("D.151")
async def test_a_token_names_its_org_whoever_carries_it(strict: World, other: World, admin: asyncpg.Connection) -> None:
    await apply_policies(other.db, other.admin.actor, ANY_APPROVER)
    ours, theirs = await one(strict), await one(other)
    token = await token_for(strict, ours.id, strict.admin.actor)
    entries = "select count(*) from audit_entry where org_id = $1"
    before = await admin.fetchval(entries, other.org_id)
    assert await use(other, token) == "OK"
    assert (await shown(strict, ours.id)).resolved_by == strict.admin.actor.user_account_id
    assert (await shown(other, theirs.id)).status is ApprovalStatus.PENDING
    assert await admin.fetchval(entries, other.org_id) == before


@pytest.mark.parametrize("by", ["token", "link"])
@pytest.mark.proves("D.155")
async def test_high_risk_is_not_decided_by_what_was_sent_in_a_message(strict: World, by: str) -> None:
    await apply_policies(strict.db, strict.admin.actor, CRITICAL)
    pat = await strict.person(Role.APPROVER, name="Pat")
    approval = await one(strict)
    if by == "token":
        assert await use(strict, await token_for(strict, approval.id, pat.actor)) == "login_required"
        assert (await shown(strict, approval.id)).status is ApprovalStatus.PENDING
        return
    link = await link_for(strict, approval, to=pat)
    for session in (None, strict.admin.actor):
        assert await click(strict, link, session) == "login_required"
    assert (await shown(strict, approval.id)).status is ApprovalStatus.PENDING
    assert await click(strict, link, pat.actor) == "OK"


async def test_somebody_elses_login_in_another_org_is_no_login(strict: World, other: World) -> None:
    await apply_policies(strict.db, strict.admin.actor, CRITICAL)
    approval = await one(strict)
    link = await link_for(strict, approval)
    assert await click(strict, link, other.admin.actor) == "login_required"


# Links -------------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.152")
async def test_a_link_decides_through_its_channel_and_again_says_the_same(strict: World) -> None:
    counted = Counted()
    approval = await one(strict)
    yes, no = await link_for(strict, approval), await link_for(strict, approval, Choice.DENIED)
    with metered(counted):
        assert await click(strict, yes, reason="looks right") == "OK"
        assert await click(strict, yes) == "DUPLICATE"
        assert await click(strict, no) == "approval_conflict"
    after = await shown(strict, approval.id)
    assert (after.status, after.resolved_via, after.resolution_reason) == ("approved", "email", "looks right")
    assert counted.calls == {("email", "ok"): 1, ("email", "duplicate"): 1, ("email", "conflict"): 1}


@pytest.mark.proves("D.152")
async def test_whatever_is_tampered_with_a_link_is_refused_alike_and_leaves_no_trace(
    strict: World, other: World, admin: asyncpg.Connection
) -> None:
    approval = await one(strict)
    another = await one(strict, slug="second")
    await apply_policies(other.db, other.admin.actor, ANY_APPROVER)
    foreign = await one(other, slug="third")
    pat = await strict.person(Role.APPROVER, name="Pat")
    link = await link_for(strict, approval)
    channel, id, query = parts(link)
    good = dict(query)
    await link_for(other, foreign)
    before, counted = await digests(admin), Counted()
    tampered: list[tuple[str, str, dict[str, str]]] = [
        (channel, id, good | {"d": "denied"}),
        (channel, id, good | {"t": str(int(good["t"]) + 1)}),
        (channel, id, good | {"t": str(int(good["t"]) + 86_400)}),
        (channel, id, good | {"o": str(pat.actor.user_account_id)}),
        (channel, id, good | {"sig": "0" * 64}),
        (channel, id, good | {"sig": good["sig"][:-1] + ("0" if good["sig"][-1] != "0" else "1")}),
        (channel, id, good | {"sig": good["sig"].upper()}),
        (channel, id, {name: value for name, value in good.items() if name != "sig"}),
        (channel, str(another.id), good),
        (channel, str(foreign.id), good),
        (channel, str(new_id()), good),
        (channel, "nothing", good),
        ("fax", id, good),
    ]
    with metered(counted), capture_logs() as logs:
        answers = set()
        for where, of, given in tampered:
            with pytest.raises(Unauthenticated) as caught:
                await credentials.visitor(strict.db, where, of, given.items(), None)
            answers.add((caught.value.code, caught.value.message, caught.value.hint))
    assert len(answers) == 1
    assert await digests(admin) == before
    assert counted.calls == {("email", "hmac_invalid"): 12, ("unknown", "hmac_invalid"): 1}
    assert len(logs) == 13
    assert good["sig"] not in repr(logs)
    assert await click(strict, link) == "OK"


@pytest.mark.proves("D.153")
async def test_a_link_lives_to_its_deadline(strict: World, admin: asyncpg.Connection) -> None:
    clock = await Clock.install(admin, datetime(2026, 5, 1, 12, 0, 0, 500_000, tzinfo=UTC))
    approval = await one(strict)
    assert approval.deadline is not None
    link = await link_for(strict, approval)
    for late, code in [(-1, None), (0, "approval_expired"), (299, "approval_expired"), (301, "link_expired")]:
        await clock.set(approval.deadline + timedelta(seconds=late))
        if code is not None:
            assert await click(strict, link) == code
        else:
            assert (await visit(strict, link)).over is False
    assert (await visit(strict, link)).over is True
    assert (await shown(strict, approval.id)).status is ApprovalStatus.PENDING


@pytest.mark.proves("D.154")
async def test_without_the_nonce_of_its_own_page_nothing_is_decided(strict: World, admin: asyncpg.Connection) -> None:
    clock = await Clock.install(admin, datetime(2026, 5, 1, 12, tzinfo=UTC))
    approval = await one(strict)
    pat = await strict.person(Role.ADMIN, name="Pat")
    found = await visit(strict, await link_for(strict, approval))
    denying = await visit(strict, await link_for(strict, approval, Choice.DENIED))
    of_pat = await visit(strict, await link_for(strict, approval, to=pat))
    seen = (approval.version, approval.input_hash)
    good, nonce = found.confirmation(*seen)
    for bad in (
        None,
        (good, "0" * 64),
        denying.confirmation(*seen),
        of_pat.confirmation(*seen),
        (found.confirmation(2, approval.input_hash)[0], nonce),
        (good, found.link.signature(found.secrets[0].value)),
    ):
        assert await refused(credentials.decide_by_link(strict.db, found, bad, None)) == "not_confirmed"
    await clock.advance(timedelta(minutes=31))
    later = await visit(strict, await link_for(strict, approval))
    assert await refused(credentials.decide_by_link(strict.db, later, (good, nonce), None)) == "not_confirmed"
    assert (await shown(strict, approval.id)).status is ApprovalStatus.PENDING
    fresh = later.confirmation(*seen)
    assert (await credentials.decide_by_link(strict.db, later, fresh, None)).result == "OK"


async def test_a_page_that_was_rendered_before_a_change_decides_nothing(strict: World) -> None:
    approval = await one(strict)
    found = await visit(strict, await link_for(strict, approval))
    stale = found.confirmation(approval.version + 1, approval.input_hash)
    assert await refused(credentials.decide_by_link(strict.db, found, stale, None)) == "approval_changed"
    assert (await shown(strict, approval.id)).status is ApprovalStatus.PENDING


# Races -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", Choice)
@pytest.mark.proves("D.156")
async def test_sixteen_uses_of_one_token_and_its_link_are_one_decision(
    strict: World, admin: asyncpg.Connection, choice: Choice
) -> None:
    approval = await one(strict)
    token = await token_for(strict, approval.id, strict.admin.actor)
    link = await link_for(strict, approval, choice)
    answers = await asyncio.gather(
        *(use(strict, token, choice) for _ in range(8)), *(click(strict, link) for _ in range(8))
    )
    assert Counter(answers) == {"OK": 1, "DUPLICATE": 15}
    assert await admin.fetchval("select count(*) from approval_vote") == 1
    decided = "select count(*) from approval_event where event_type in ('approved', 'denied', 'responded')"
    assert await admin.fetchval(decided) == 1
    assert await admin.fetchval("select count(*) from approval_token where used_at is null") == 0
    assert (await audit.verify(strict.db, strict.admin.actor)).faults == []


@pytest.mark.proves("D.156")
async def test_opposite_decisions_race_and_everybody_is_told_the_same(strict: World) -> None:
    await apply_policies(strict.db, strict.admin.actor, ANY_APPROVER)
    pat = await strict.person(Role.APPROVER, name="Pat")
    approval = await one(strict)
    yes = [await token_for(strict, approval.id, strict.admin.actor) for _ in range(4)]
    no = await link_for(strict, approval, Choice.DENIED, to=pat)
    answers = await asyncio.gather(*(use(strict, token) for token in yes), *(click(strict, no) for _ in range(4)))
    after = await shown(strict, approval.id)
    said, other = (answers[:4], answers[4:]) if after.status == "approved" else (answers[4:], answers[:4])
    assert Counter(said) == {"OK": 1, "DUPLICATE": 3}
    assert set(other) == {"approval_conflict"}


@pytest.mark.proves("D.156")
async def test_two_people_with_their_own_tokens_are_two_votes(strict: World, admin: asyncpg.Connection) -> None:
    pat = await strict.person(Role.APPROVER, name="Pat")
    await apply_policies(strict.db, strict.admin.actor, TWO_OF_THREE)
    approval = await one(strict)
    tokens = [await token_for(strict, approval.id, each.actor) for each in (strict.admin, pat)]
    answers = await asyncio.gather(*(use(strict, token) for token in tokens * 4))
    assert Counter(answers) == {"OK": 2, "DUPLICATE": 6}
    assert (await shown(strict, approval.id)).status is ApprovalStatus.APPROVED
    assert await admin.fetchval("select count(*) from approval_vote") == 2


# Secrets -----------------------------------------------------------------------------------------------------------


async def test_the_first_link_makes_the_secret_and_only_one(strict: World, admin: asyncpg.Connection) -> None:
    approval = await one(strict)
    links = await asyncio.gather(*(link_for(strict, approval) for _ in range(8)))
    assert len(set(links)) == 1
    (row,) = await admin.fetch("select * from signing_secret")
    opened = strict.db.vault.open(strict.org_id, "callback", row["sealed"])
    assert len(opened) == 32
    assert opened not in row["sealed"]
    with pytest.raises(CortexError):
        Vault(bytes(32)).open(strict.org_id, "callback", row["sealed"])


@pytest.mark.proves("D.157")
async def test_a_rotated_secret_is_accepted_in_its_grace_and_not_after(
    strict: World, admin: asyncpg.Connection
) -> None:
    clock = await Clock.install(admin, datetime(2026, 5, 1, 12, tzinfo=UTC))
    approval = await one(strict)
    link = await link_for(strict, approval)
    rotation = await credentials.rotate_secret(strict.db, strict.admin.actor, SecretRotationDraft())
    assert rotation.accepted_until - rotation.rotated_at == GRACE
    newer = await link_for(strict, approval)
    assert parts(newer)[2][-1] != parts(link)[2][-1]
    assert (await visit(strict, link)).actor.name == (await visit(strict, newer)).actor.name == "Ada"
    await clock.set(rotation.accepted_until - timedelta(microseconds=1))
    assert (await visit(strict, link)).over
    await clock.set(rotation.accepted_until)
    assert await refused(visit(strict, link)) == "link_invalid"
    assert (await visit(strict, newer)).over
    await credentials.keep(strict.db)
    assert await admin.fetchval("select count(*) from signing_secret") == 1


@pytest.mark.proves("D.157")
async def test_a_secret_that_leaked_is_forgotten_at_once(strict: World, admin: asyncpg.Connection) -> None:
    approval = await one(strict)
    older = await link_for(strict, approval)
    await credentials.rotate_secret(strict.db, strict.admin.actor, SecretRotationDraft())
    link = await link_for(strict, approval)
    found = await visit(strict, link)
    page = found.confirmation(approval.version, approval.input_hash)
    await credentials.rotate_secret(strict.db, strict.admin.actor, SecretRotationDraft(forget=True))
    for each in (older, link):
        assert await refused(visit(strict, each)) == "link_invalid"
    again = await visit(strict, await link_for(strict, approval))
    assert await refused(credentials.decide_by_link(strict.db, again, page, None)) == "not_confirmed"
    assert await admin.fetchval("select count(*) from signing_secret") == 1
    entries = await audit.list_entries(strict.db, strict.admin.actor, None, 0, 200)
    rotated = [entry for entry in entries if entry.action == "signing_secret_rotated"]
    assert len(rotated) == 2


@pytest.mark.proves("D.157")
async def test_secrets_rotate_every_ninety_days_once_for_any_number_of_keepers(
    strict: World, other: World, admin: asyncpg.Connection
) -> None:
    clock = await Clock.install(admin, datetime(2026, 5, 1, 12, tzinfo=UTC))
    approval = await one(strict)
    await link_for(strict, approval)
    await clock.advance(ROTATE_AFTER - timedelta(seconds=1))
    await credentials.keep(strict.db)
    assert await admin.fetchval("select count(*) from signing_secret") == 1
    await clock.advance(timedelta(seconds=1))
    await asyncio.gather(*(credentials.keep(strict.db) for _ in range(4)))
    rows = await admin.fetch("select retire_at from signing_secret order by created_at")
    assert [row["retire_at"] is None for row in rows] == [False, True]
    actions = [e.action for e in await audit.list_entries(strict.db, strict.admin.actor, None, 0, 200)]
    assert actions.count("signing_secret_rotated") == 1
    assert not await admin.fetchval("select count(*) from signing_secret where org_id = $1", other.org_id)


@pytest.mark.proves("D.157")
async def test_concurrent_rotations_leave_one_secret_that_signs(strict: World, admin: asyncpg.Connection) -> None:
    approval = await one(strict)
    link = await link_for(strict, approval)
    again = await asyncio.gather(
        *(credentials.rotate_secret(strict.db, strict.admin.actor, SecretRotationDraft()) for _ in range(4)),
        return_exceptions=True,
    )
    assert all(not isinstance(each, BaseException) or isinstance(each, Conflict) for each in again)
    assert await admin.fetchval("select count(*) from signing_secret where retire_at is null") == 1
    assert await click(strict, link) == "OK"


async def test_only_admins_rotate(strict: World) -> None:
    for role in set(Role) - {Role.ADMIN}:
        person = await strict.person(role)
        with pytest.raises(Forbidden):
            await credentials.rotate_secret(strict.db, person.actor, SecretRotationDraft())


async def test_tokens_that_nobody_asks_about_any_more_are_forgotten(
    strict: World, other: World, admin: asyncpg.Connection
) -> None:
    clock = await Clock.install(admin, datetime(2026, 5, 1, 12, tzinfo=UTC))
    approval = await one(strict)
    await token_for(strict, approval.id, strict.admin.actor)
    assert approval.deadline is not None
    await clock.set(approval.deadline + KEEP_TOKENS - timedelta(seconds=1))
    await credentials.keep(strict.db)
    assert await admin.fetchval("select count(*) from approval_token") == 1
    await clock.advance(timedelta(seconds=1))
    await credentials.keep(strict.db)
    assert await admin.fetchval("select count(*) from approval_token") == 0


async def test_another_orgs_secret_signs_nothing_here(strict: World, other: World) -> None:
    approval = await one(strict)
    await link_for(strict, approval)
    assert approval.deadline is not None
    member = strict.admin.actor.user_account_id
    assert isinstance(member, UUID)
    async with other.db.transaction(other.org_id) as tx:
        forged = credentials.sign_links(
            await credentials.signing_secret(other.db, tx), approval_id=approval.id, member_id=member, channel="email",
            deadline=approval.deadline, public_url="http://plane",
        )  # fmt: skip
    assert await refused(visit(strict, forged[Choice.APPROVED])) == "link_invalid"

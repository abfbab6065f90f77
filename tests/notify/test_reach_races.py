"""Votes, tokens, links, delegation, escalation and edits at once, while messages go out: one outcome, and nobody twice.

make soak                                     a thousand rounds
CORTEX_APPROVAL_ROUNDS=100 pytest -m soak …   fewer of them
"""

from __future__ import annotations

import contextlib
import os
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from cortex_plane.agents.model.agents import Agent
from cortex_plane.approvals.model.approvals import Approval, Choice
from cortex_plane.db.database import Database
from cortex_plane.notify.model.notifications import Card
from cortex_plane.proof.rules.receipts import as_file, check_file
from cortex_plane.proof.verbs import audit, receipts
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.worker.notifier import Notifier
from cortex_plane.worker.scheduler import in_background
from tests.approvals.test_approval_races import (
    BATCH,
    ROUNDS,
    Outside,
    Round,
    _finish,
    _job_follows,
    _promises,
    _race,
    _rounds,
    racers,
)
from tests.channels.behaviour import PUBLIC_URL, drain, link
from tests.channels.postbox import Postbox, connect
from tests.conftest import Urls
from tests.fixtures.approvals import decide, pending
from tests.fixtures.credentials import links_for, token_for
from tests.fixtures.people import Person, World, apply_policies
from tests.fixtures.servers import VAULT
from tests.fixtures.workers import call, make_agent, turn

POLICIES = """
policies:
  - {name: ask, target: ship, effect: requires_approval, template: dev_review, approvers: {roles: [approver]}, timeout: 1d,
     escalate_before: 12h, escalate_to: [{roles: [operator]}, {roles: [admin]}], quorum: 3, clearance: 1}
"""
QUORUM = 3
"""More than an edit and one vote: so what was said to an earlier version would show."""
EDITED = "9"

# What each of them may be told. Nobody is told to send it again, and nobody meets an error that is not theirs.
LATE = {"approval_conflict", "approval_expired", "approval_changed"}
NOT_THEIRS = {"delegated_away", "not_an_approver", "approval_not_found", "self_approval", "edit_leaves_nobody"}
DECISIONS = {"OK", "DUPLICATE"} | LATE | NOT_THEIRS
DUE = {"escalated", "expired", "nothing"}
ANSWERS = {
    "approve": DECISIONS, "look_and_approve": DECISIONS, "deny": DECISIONS, "token": DECISIONS, "edit": DECISIONS,
    "link": DECISIONS,
    "delegate": {"delegated", "already_voted", "delegation_cycle", "quorum_impossible", "delegate_is_self", "delegate_self_approval"}
    | (LATE - {"approval_changed"}) | NOT_THEIRS,
    "escalate": DUE, "expire": DUE, "cancel": {"changed", "unchanged", "job_finished"},
}  # fmt: skip
YES, NO = ("approve", "look_and_approve", "edit"), ("deny",)
KINDS = ("approve", "token", "link", "delegate", "escalate", "edit", "deny", "expire", "cancel")
"""Each is the first in some rounds."""
EARLY = ("edit", "delegate")
"""In these one vote is there before."""


@dataclass
class People:
    """Who may decide from the start, who after a level, and who when somebody hands them a part."""

    pats: list[Person]
    ops: list[Person]
    mems: list[Person]
    boss: Person

    @property
    def everybody(self) -> list[Person]:
        return [*self.pats, *self.ops, *self.mems, self.boss]

    def named(self, secret: str) -> Person:
        return next(each for each in self.everybody if each.secret == secret)


@dataclass
class Sent:
    """What messages carried before the race: for each request and person a token and two links."""

    tokens: dict[tuple[UUID, UUID], str] = field(default_factory=dict)
    links: dict[tuple[UUID, UUID], dict[Choice, str]] = field(default_factory=dict)


async def _people(world: World, admin: asyncpg.Connection) -> People:
    way = await connect(world)

    async def person(role: Role, name: str) -> Person:
        made = await world.person(role, name=name, clearance=1)
        await link(admin, world, way, made, f"{name.replace(' ', '.').lower()}@example.com")
        return made

    return People(
        [await person(Role.APPROVER, f"Pat {n}") for n in range(6)],
        [await person(Role.OPERATOR, f"Op {n}") for n in range(2)],
        [await person(Role.MEMBER, f"Mem {n}") for n in range(2)],
        await person(Role.ADMIN, "Boss"),
    )


async def _sent(world: World, each: Round, people: People, first: str) -> Sent:
    """Before the race; where it is about edits and parts, somebody has voted already: to be void, or to be kept from it."""
    sent = Sent()
    for asked in each.asked:
        for person in people.pats:
            sent.tokens[asked.id, person.member_id] = await token_for(world, asked.id, person.actor)
            sent.links[asked.id, person.member_id] = await links_for(world, asked, person)
        if first in EARLY:
            assert (await decide(world, asked, by=people.pats[0])).result == "OK"
    return sent


def _acts(each: Round, people: People, sent: Sent, admin: str, chance: random.Random, first: str) -> list[Any]:
    # Whoever must first look, or move the time, is never the quickest by chance.
    late = (0.2, 0.4) if first in ("expire", "escalate", "link", "delegate", "edit") else (0.0, 0.05)
    edited = iter(range(100, 200))

    def act(what: str, by: Person | None = None, **more: Any) -> dict[str, Any]:
        asked: Approval = chance.choice(each.asked)
        by = by or chance.choice(people.everybody)
        more = {name: given(asked, by) if callable(given) else given for name, given in more.items()}
        return {
            "act": what, "by": admin if what in ("cancel", "expire", "escalate") else by.secret,
            "approval": str(asked.id), "version": asked.version, "input_hash": asked.input_hash,
            "job": str(chance.choice(each.jobs)), "after": 0 if what == first else chance.uniform(*late), **more,
        }  # fmt: skip

    def pat() -> Person:
        return chance.choice(people.pats)

    def choice(no: float = 0.1) -> Choice:
        return Choice.DENIED if first == "deny" or chance.random() < no else Choice.APPROVED

    def token(asked: Approval, by: Person) -> str:
        return sent.tokens[asked.id, by.member_id]

    def address(asked: Approval, by: Person) -> str:
        return sent.links[asked.id, by.member_id][choice()]

    def to(_: Approval, by: Person) -> str:
        return str(chance.choice([p for p in people.everybody if p is not by]).member_id)

    many = [
        *(act("approve") for _ in range(8)),
        *(act("look_and_approve", pat()) for _ in range(8)),
        *(act("token", pat(), token=token, choice=choice()) for _ in range(12)),
        *(act("link", pat(), link=address) for _ in range(12)),
        *(act("delegate", to=to) for _ in range(6)),
        *(act("delegate", people.pats[0], to=to) for _ in range(2)),
        *(act("escalate") for _ in range(4)),
        *(act("edit", pat(), edited=f"{EDITED}{next(edited)}") for _ in range(4 if first == "edit" else 1)),
        *(act("deny", pat()) for _ in range(8 if first == "deny" else 1)),
        *(act("expire") for _ in range(8 if first == "expire" else 0)),
        *(act("cancel") for _ in range(6 if first == "cancel" else 0)),
    ]
    many += [act("look_and_approve", chance.choice(people.everybody)) for _ in range(64 - len(many))]
    assert len(many) == 64
    chance.shuffle(many)
    return many


VOTES = "select user_account_id, decision, version from approval_vote where approval_id = $1"
EVENTS = "select event_type, sum(times)::integer from approval_event where approval_id = $1 group by 1"


async def _judge(world: World, admin: asyncpg.Connection, each: Round, people: People, early: bool) -> set[str]:
    told = list(zip(each.acts, each.answers, strict=True))
    expires = any(act["act"] == "expire" for act in each.acts)
    for act, answer in told:
        # Only a test moves the deadline that a link was signed for.
        moved = {"link_invalid"} if act["act"] == "link" and expires else set()
        assert answer in ANSWERS[act["act"]] | moved, (act["act"], answer)
    ends = set()
    for asked in each.asked:
        mine = [(act, answer) for act, answer in told if act["approval"] == str(asked.id)]
        ends.add(await _one_outcome(world, admin, people, asked, mine, early))
    if "pending" not in ends:
        for job in each.jobs:
            await _job_follows(admin, job, ends)
    return ends


async def _one_outcome(
    world: World, admin: asyncpg.Connection, people: People, asked: Approval, mine: list[tuple[Any, str]], early: bool
) -> str:
    row = await admin.fetchrow("select * from approval_request where id = $1", asked.id)
    status: str = row["status"]
    events: Counter[str] = Counter(dict(await admin.fetch(EVENTS, asked.id)))
    kinds: dict[str, Counter[str]] = defaultdict(Counter)
    for act, answer in mine:
        kinds[act["act"]][answer] += 1
    deciding = [k for k in ("approve", "look_and_approve", "edit", "deny", "token", "link") if k in kinds]
    counts = sum((kinds[kind] for kind in deciding), Counter())
    # Each yes or no that somebody was told of is there, and nothing else is.
    # An edit is none: whoever edits a call leaves it to the others.
    assert events["voted"] + events["approved"] + events["denied"] + events["edited"] == counts["OK"] + early
    assert events["delegated"] == kinds["delegate"]["delegated"]
    assert events["escalated"] == sum(kinds[k]["escalated"] for k in ("escalate", "expire")) <= 2
    assert events["expired"] == sum(kinds[k]["expired"] for k in ("escalate", "expire")) == (status == "expired")
    assert events["edited"] <= kinds["edit"]["OK"]
    # A link that is sent twice is the same request twice, which needs no entry of its own.
    others = counts["DUPLICATE"] - kinds["link"]["DUPLICATE"]
    assert others <= events["channel_duplicate"] <= counts["DUPLICATE"]
    refused = sum(n for answer, n in (counts + kinds["delegate"]).items() if answer not in (
        "OK", "DUPLICATE", "delegated", "approval_not_found", "link_invalid"))  # fmt: skip
    # Whoever decided otherwise with a token before is refused without a look at the request.
    assert refused - kinds["token"]["approval_conflict"] <= events["refused"] + events["channel_conflict"] <= refused
    await _votes_are_theirs(admin, people, asked.id, row)
    if status in ("approved", "denied"):
        found = await receipts.get_receipt(world.db, world.admin.actor, asked.id)
        checked = check_file(as_file(found))
        assert checked.fault is None
        says = checked.says
        assert (says["decision"], says["approval_version"]) == (status, row["version"])
        assert len(says["votes"]) == (QUORUM if status == "approved" else len(says["votes"]))
    return status


async def _votes_are_theirs(admin: asyncpg.Connection, people: People, id: UUID, row: asyncpg.Record) -> None:
    """Whoever voted could: by their role, by a level that was reached, or because somebody handed them a part."""
    by_role = {person.member_id for person in people.pats}
    by_role |= {person.member_id for person in people.ops} if row["escalation_level"] >= 1 else set()
    by_role |= {people.boss.member_id} if row["escalation_level"] >= 2 else set()
    handed = {
        r[0] for r in await admin.fetch("select to_member_id from approval_delegation where approval_id = $1", id)
    }
    votes = await admin.fetch(VOTES, id)
    assert {vote["user_account_id"] for vote in votes} <= by_role | handed
    now = [v for v in votes if v["version"] == row["version"]]
    assert not {v["user_account_id"] for v in now} & set(row["delegated"])
    if row["status"] == "approved":
        assert len({v["user_account_id"] for v in now}) == QUORUM
        assert {v["decision"] for v in now} == {"approved"}


async def _settled(world: World, each: Round, people: People, chance: random.Random) -> None:
    """What a round left open ends by a no, so that the next batch begins with nothing."""
    for asked in [a for job in each.jobs for a in await pending(world, job)]:
        able = [p for p in people.pats if p.member_id not in asked.delegated]
        assert able or asked.approvers.members, "somebody can always decide"
        by = chance.choice(able) if able else next(
            p for p in people.everybody if p.member_id in asked.approvers.members and p.member_id not in asked.delegated)  # fmt: skip
        await decide(world, asked, Choice.DENIED, by=by)


async def _everybody_knows(admin: asyncpg.Connection, box: Postbox, sending: Notifier) -> None:
    """The last message to each person about a request says how it ended, and none that tells an end can decide."""
    await drain(sending)
    last: dict[tuple[UUID, str], Card] = {}
    for message in box.received:
        assert isinstance(message.content, Card)
        last[message.content.approval_id, message.target.address] = message.content
    ends = dict(await admin.fetch("select id, status from approval_request"))
    for (id, address), card in last.items():
        assert (card.status, card.token, card.approve_url) == (ends[id], None, None), address


async def _campaign(urls: Urls, world: World, admin: asyncpg.Connection, rounds: int, seed: int) -> None:
    chance, outside, box = random.Random(seed), Outside(), Postbox()
    people = await _people(world, admin)
    await apply_policies(world.db, world.admin.actor, POLICIES)
    limits = {"max_concurrent_jobs": 100}
    one, both = turn(call("ship", version="1")), turn(call("ship", version="1"), call("ship", version="2"))
    agents: list[Agent] = [
        await make_agent(world, [one], slug="one", limits=limits),
        await make_agent(world, [both], slug="two", limits=limits),
    ]
    ends: Counter[str] = Counter()
    answers: dict[str, Counter[str]] = defaultdict(Counter)
    pool = await Database.open(urls.app, max_size=6, vault=VAULT)

    def notifier() -> Notifier:
        return Notifier(pool, [box], PUBLIC_URL, poll_seconds=0.05)

    try:
        async with racers(urls, [p.secret for p in (*people.everybody, world.admin)]) as started:
            begun = 0
            # Who is first is chance: a short campaign goes on until everything has happened.
            while begun < rounds or (begun < 4 * rounds and _missing(ends, answers)):
                batch = await _rounds(world, outside, agents, min(BATCH, rounds))
                for number, each in enumerate(batch):
                    first = KINDS[(begun + number) % len(KINDS)]
                    sent = await _sent(world, each, people, first)
                    each.acts = _acts(each, people, sent, world.admin.secret, chance, first)
                    async with in_background(notifier().run()) if number % 2 else contextlib.nullcontext():
                        await _race(each, started)
                    ends.update(await _judge(world, admin, each, people, first in EARLY))
                    for act, answer in zip(each.acts, each.answers, strict=True):
                        answers[act["act"]][answer] += 1
                await _promises(admin)
                for each in batch:
                    await _settled(world, each, people, chance)
                await _finish(world, admin, outside, batch)
                await _everybody_knows(admin, box, notifier())
                await _promises(admin)
                begun += len(batch)
    finally:
        await pool.close()
    assert _missing(ends, answers) == [], (ends, answers)
    await admin.execute("select pg_stat_force_next_flush()")
    deadlocks = "select deadlocks from pg_stat_database where datname = current_database()"
    assert await admin.fetchval(deadlocks) == 0
    assert (await audit.verify(world.db, world.admin.actor)).faults == []


def _missing(ends: Counter[str], answers: dict[str, Counter[str]]) -> list[str]:
    """What nobody met so far. A race that nobody can lose in proves nothing."""
    expected = {
        **{kind: {"OK"} for kind in ("approve", "look_and_approve", "edit", "deny")},
        "token": {"OK", "DUPLICATE", "approval_conflict", "approval_changed"},
        "link": {"OK", "DUPLICATE", "approval_conflict", "delegated_away"},
        "delegate": {"delegated", "already_voted", "approval_conflict"},
        "escalate": {"escalated"},
    }
    missing = {"approved", "denied", "expired", "cancelled"} - set(ends)
    return [*missing, *(f"{kind} {each}" for kind in expected for each in expected[kind] - set(answers[kind]))]


@pytest.mark.proves("D.200")
async def test_everybody_votes_hands_on_and_edits_at_once_and_messages_go_out(
    urls: Urls, strict: World, admin: asyncpg.Connection
) -> None:
    await _campaign(urls, strict, admin, len(KINDS), seed=1)


@pytest.mark.soak
async def test_they_vote_and_hand_on_for_a_thousand_rounds(
    urls: Urls, strict: World, admin: asyncpg.Connection
) -> None:
    await _campaign(urls, strict, admin, ROUNDS, seed=int(os.environ.get("CORTEX_SOAK_SEED", "2")))

"""Until somebody has proven a channel of their own, they and whoever enrolled or promoted them count as one human."""

from __future__ import annotations

import itertools
from dataclasses import replace
from uuid import UUID

import asyncpg
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cortex_plane.approvals.model.approvals import Approval, ApprovalStatus
from cortex_plane.approvals.verbs import approvals
from cortex_plane.jobs.model.jobs import JobDraft, JobStatus
from cortex_plane.jobs.verbs import jobs
from cortex_plane.policies.model.policies import CountedVote, Quorum, independent, is_reached
from cortex_plane.proof.verbs import audit
from cortex_plane.tenancy.model.identities import ConnectionDraft
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.tenancy.verbs import connections
from tests.fixtures.approvals import Shipping, pending, ship, shown, waiting
from tests.fixtures.people import Person, World, apply_policies
from tests.fixtures.visitors import Visitor
from tests.fixtures.webhooks import System, decision
from tests.fixtures.workers import make_agent, turn, until, working
from tests.tenancy.test_enrolments import added, enrolled, prove_channel, type_code

TWO = (
    "policies: [{name: two-of-us, target: ship, effect: requires_approval, template: dev_review, quorum: 2,"
    " approvers: {roles: [approver, admin]}, self_approval: true}]"
)
FOUR_EYES = (
    "policies: [{name: four-eyes, target: ship, effect: requires_approval, template: dev_review,"
    " approvers: {roles: [approver, admin]}, self_approval: false}]"
)


async def decide(http: httpx.AsyncClient, asked: Approval, by: Person) -> httpx.Response:
    body = {"decision": "approved", "version": asked.version, "input_hash": asked.input_hash}
    return await http.post(f"/v1/approvals/{asked.id}/decide", json=body, headers=by.headers)


async def asked_for(world: World, policies: str) -> Approval:
    await apply_policies(world.db, world.admin.actor, policies)
    _, (asked,) = await waiting(world, Shipping())
    return asked


@pytest.mark.proves("D.465")
async def test_a_vote_of_somebody_one_enrolled_adds_nothing_until_they_prove_a_channel(
    http: httpx.AsyncClient, strict: World
) -> None:
    maria = await enrolled(http, strict, await added(strict))
    asked = await asked_for(strict, TWO)
    first = await decide(http, asked, strict.admin)
    assert (first.status_code, first.json()["approval"]["votes_for"]) == (200, 1)
    second = await decide(http, asked, maria)
    told = second.json()["approval"]
    assert (second.status_code, told["status"], told["votes_for"]) == (200, "pending", 1)
    card = (await http.get(f"/v1/approvals/{asked.id}", headers=strict.admin.headers)).json()
    assert [vote["counts_with"] for vote in card["votes"]] == [None, "Ada"]
    page = await (await Visitor.log_in(http, strict)).get(f"/approvals/{asked.id}")
    assert "Maria and Ada count as one human" in page.text
    await prove_channel(strict, maria)
    assert (await shown(strict, asked.id)).votes_for == 1, "nothing proved it when she voted"
    last = await decide(http, asked, maria)
    assert last.json()["approval"]["status"] == "approved"


@pytest.mark.proves("D.465")
async def test_whoever_has_proven_a_channel_votes_again(http: httpx.AsyncClient, strict: World) -> None:
    maria, pat = await enrolled(http, strict, await added(strict)), await strict.person(Role.APPROVER)
    asked = await asked_for(strict, TWO.replace("quorum: 2", "quorum: 3"))
    for person in (strict.admin, maria):
        assert (await decide(http, asked, person)).json()["approval"]["votes_for"] == 1
    assert (await decide(http, asked, maria)).json()["result"] == "DUPLICATE"
    await prove_channel(strict, maria)
    page = await (await Visitor.log_in(http, strict, maria)).get(f"/approvals/{asked.id}")
    assert 'value="approved"' in page.text, "she can say it again"
    assert "/delegate" not in page.text
    again = (await decide(http, asked, maria)).json()
    assert (again["result"], again["approval"]["votes_for"]) == ("OK", 2)
    assert (await decide(http, asked, maria)).json()["result"] == "DUPLICATE"
    assert (await decide(http, asked, pat)).json()["approval"]["status"] == "approved"
    assert (await audit.verify(strict.db, strict.admin.actor)).whole


@pytest.mark.proves("D.465")
async def test_a_channel_proves_nothing_against_whoever_could_have_set_it_up(
    http: httpx.AsyncClient, strict: World
) -> None:
    """Whoever knows the secret of a connection can let anybody type a code there."""
    maria = await enrolled(http, strict, await added(strict))
    puppet = await enrolled(http, strict, await added(strict, "Pip", Role.ADMIN))
    asked = await asked_for(strict, TWO)
    await decide(http, asked, strict.admin)
    by_puppet = ConnectionDraft(channel_type=strict.connection.channel_type, name="Pip's")
    for number, connection in enumerate(
        (strict.connection, await connections.create_connection(strict.db, puppet.actor, by_puppet))
    ):
        await type_code(strict, maria, connection, str(number))
        last = (await decide(http, asked, maria)).json()["approval"]
        assert (last["status"], last["votes_for"]) == ("pending", 1), connection.name
    await prove_channel(strict, puppet)
    last = (await decide(http, asked, maria)).json()["approval"]
    assert last["status"] == "pending", "Pip's server vouched for her while nothing showed that Pip is no second Ada"


@pytest.mark.proves("D.465")
async def test_two_whom_one_admin_enrolled_are_one_and_a_third_is_another(
    http: httpx.AsyncClient, strict: World
) -> None:
    maria = await enrolled(http, strict, await added(strict, "Maria"))
    ned = await enrolled(http, strict, await added(strict, "Ned"))
    pat = await strict.person(Role.APPROVER, name="Pat")
    asked = await asked_for(strict, TWO)
    for person in (maria, ned):
        assert (await decide(http, asked, person)).json()["approval"]["votes_for"] == 1
    assert (await decide(http, asked, pat)).json()["approval"]["status"] == "approved"


@pytest.mark.proves("D.465")
@pytest.mark.parametrize("change", [{"roles": ["approver", "member"]}, {"clearance": 5}], ids=str)
async def test_whoever_promoted_somebody_counts_with_them(
    http: httpx.AsyncClient, strict: World, change: dict[str, object]
) -> None:
    pat = await strict.person(Role.APPROVER, name="Pat")
    path = f"/v1/members/{pat.member_id}"
    assert (await http.patch(path, json=change, headers=strict.admin.headers)).status_code == 200
    asked = await asked_for(strict, TWO)
    await decide(http, asked, pat)
    assert (await decide(http, asked, strict.admin)).json()["approval"]["status"] == "pending"


@pytest.mark.proves("D.465")
async def test_a_demotion_and_a_new_name_tie_nobody(http: httpx.AsyncClient, strict: World) -> None:
    pat = await strict.person(Role.APPROVER, Role.MEMBER, name="Pat", clearance=5)
    change = {"roles": ["approver"], "clearance": 2, "display_name": "Pat the second"}
    await http.patch(f"/v1/members/{pat.member_id}", json=change, headers=strict.admin.headers)
    asked = await asked_for(strict, TWO)
    await decide(http, asked, pat)
    assert (await decide(http, asked, strict.admin)).json()["approval"]["status"] == "approved"


@pytest.mark.proves("D.465")
async def test_four_eyes_are_not_those_of_an_admin_and_of_whom_they_enrolled(
    http: httpx.AsyncClient, strict: World
) -> None:
    maria = await enrolled(http, strict, await added(strict))
    asked = await asked_for(strict, FOUR_EYES)
    refused = await decide(http, asked, maria)
    assert (refused.status_code, refused.json()["code"]) == (403, "self_approval")
    assert "one human" in refused.json()["detail"]
    details = await approvals.get_approval(strict.db, strict.admin.actor, asked.id)
    assert details.approval.status is ApprovalStatus.PENDING
    await prove_channel(strict, maria)
    assert (await decide(http, asked, maria)).json()["approval"]["status"] == "approved"


@pytest.mark.proves("D.465")
async def test_an_admin_does_not_approve_what_somebody_asked_whom_they_enrolled(
    http: httpx.AsyncClient, strict: World
) -> None:
    maria = await enrolled(http, strict, await added(strict, "Maria", Role.MEMBER))
    pat, sal = await strict.person(Role.APPROVER, name="Pat"), await strict.person(Role.ADMIN, name="Sal")
    await apply_policies(strict.db, strict.admin.actor, FOUR_EYES)
    agent = await make_agent(replace(strict, admin=sal), [turn(ship(), text="I ship.")])
    job = await jobs.submit(strict.db, maria.actor, JobDraft(agent=agent.slug, payload={"text": "go"}))
    async with working(strict.db, Shipping().app):
        await until(strict, job.id, JobStatus.WAITING_FOR_APPROVAL)
    (asked,) = await pending(strict, job.id)
    assert set(asked.causes) == {maria.member_id, sal.member_id}, "the agent is Sal's"
    assert (await decide(http, asked, strict.admin)).json()["code"] == "self_approval"
    assert (await decide(http, asked, pat)).json()["approval"]["status"] == "approved"


@pytest.mark.proves("D.465")
async def test_lists_and_cards_say_who_counts_as_one_human_with_a_cause(http: httpx.AsyncClient, strict: World) -> None:
    maria = await enrolled(http, strict, await added(strict))
    asked = await asked_for(strict, FOUR_EYES)

    async def told() -> list[tuple[bool, bool]]:
        listed = (await http.get("/v1/approvals", headers=maria.headers)).json()["items"]
        card = (await http.get(f"/v1/approvals/{asked.id}", headers=maria.headers)).json()["approval"]
        inbox = (await approvals.list_inbox(strict.db, maria.actor, 10)).mine
        seen = [(each["may_decide"], each["why_not"]) for each in (*listed, card)]
        return [(may, bool(why)) for may, why in (*seen, *((each.may_decide, each.why_not) for each in inbox))]

    assert await told() == [(False, True)] * 3
    await prove_channel(strict, maria)
    assert await told() == [(True, False)] * 3


@pytest.mark.proves("D.465")
async def test_whoever_counts_as_one_human_with_a_cause_hands_no_part_on_and_takes_none(
    http: httpx.AsyncClient, strict: World
) -> None:
    maria = await enrolled(http, strict, await added(strict))
    pat, sal = await strict.person(Role.APPROVER, name="Pat"), await strict.person(Role.APPROVER, name="Sal")
    asked = await asked_for(strict, FOUR_EYES)

    async def delegated(by: Person, to: Person) -> tuple[int, str]:
        path, body = f"/v1/approvals/{asked.id}/delegate", {"to": str(to.member_id)}
        answer = await http.post(path, json=body, headers=by.headers)
        return answer.status_code, answer.json().get("code", "")

    assert await delegated(maria, pat) == (403, "self_approval")
    assert await delegated(pat, maria) == (403, "delegate_self_approval")
    assert await delegated(pat, sal) == (200, "")


@pytest.mark.proves("D.466")
async def test_a_vote_through_a_webhook_and_that_of_whoever_set_its_secret_are_one(
    http: httpx.AsyncClient, strict: World
) -> None:
    pat, bea = [await strict.person(Role.APPROVER, name=name) for name in ("Pat", "Bea")]
    system = await System.connected(strict)
    await system.knows(pat, "pat@corp")
    asked = await asked_for(strict, TWO)
    assert (await system.send(http, decision(asked, "pat@corp"))).json()["result"] == "OK"
    (mapping,) = (await http.get(f"/v1/members/{pat.member_id}/mappings", headers=strict.admin.headers)).json()["items"]
    gone = await http.delete(f"/v1/members/{pat.member_id}/mappings/{mapping['id']}", headers=strict.admin.headers)
    assert gone.status_code == 204
    own = await decide(http, asked, strict.admin)
    assert own.json()["approval"]["status"] == "pending", "also where the name was given up meanwhile"
    assert (await decide(http, asked, bea)).json()["approval"]["status"] == "approved"


@pytest.mark.proves("D.466")
async def test_whoever_set_up_a_webhook_does_not_approve_their_own_call_through_it(
    http: httpx.AsyncClient, strict: World
) -> None:
    pat = await strict.person(Role.APPROVER, name="Pat")
    system = await System.connected(strict)
    await system.knows(pat, "pat@corp")
    asked = await asked_for(strict, FOUR_EYES)
    refused = await system.send(http, decision(asked, "pat@corp"))
    assert (refused.status_code, refused.json()["code"]) == (403, "self_approval")
    assert (await decide(http, asked, pat)).json()["approval"]["status"] == "approved"


# The rule -------------------------------------------------------------------------------------------------------------

PEOPLE = [UUID(int=number) for number in range(1, 8)]
cast = st.lists(
    st.tuples(st.sampled_from(PEOPLE), st.sets(st.sampled_from(PEOPLE), max_size=3)),
    max_size=6,
    unique_by=lambda vote: vote[0],
)


def votes_of(drawn: list[tuple[UUID, set[UUID]]]) -> list[CountedVote]:
    return [
        CountedVote(member_id=id, roles=frozenset({Role.APPROVER}), behind=[id, *sorted(others - {id})])
        for id, others in drawn
    ]


def fewest(votes: list[CountedVote]) -> int:
    """How many humans are enough to have given all of these, tried out."""
    return next(
        size
        for size in range(len(votes) + 1)
        if any(all(set(group) & set(vote.behind) for vote in votes) for group in itertools.combinations(PEOPLE, size))
    )


@given(cast)
def test_the_count_is_never_more_than_the_humans_who_must_have_voted(drawn: list[tuple[UUID, set[UUID]]]) -> None:
    votes = votes_of(drawn)
    counted = len(independent(votes))
    assert counted <= fewest(votes)
    assert (counted > 0) == bool(votes)
    assert is_reached(Quorum(votes=max(counted, 1)), votes) == bool(votes)
    assert not is_reached(Quorum(votes=counted + 1), votes)


@given(cast, st.tuples(st.sampled_from(PEOPLE), st.sets(st.sampled_from(PEOPLE), max_size=3)))
def test_one_more_vote_never_makes_the_count_smaller(
    drawn: list[tuple[UUID, set[UUID]]], more: tuple[UUID, set[UUID]]
) -> None:
    votes = votes_of(drawn)
    if more[0] not in {vote.member_id for vote in votes}:
        assert len(independent(votes_of([*drawn, more]))) >= len(independent(votes))


@pytest.mark.proves("D.465")
async def test_the_database_counts_as_the_rule_does(
    http: httpx.AsyncClient, strict: World, admin: asyncpg.Connection
) -> None:
    people = [await strict.person(Role.APPROVER, name=f"P{number}") for number in range(5)]
    ids = [person.member_id for person in people]
    many = TWO.replace("quorum: 2", "quorum: 6")
    asked = await asked_for(strict, many)
    for person in people:
        await decide(http, asked, person)
    ties: list[dict[int, list[int]]] = [
        {}, {1: [0]}, {1: [0], 2: [0]}, {1: [0], 2: [1]}, {0: [1], 1: [2], 2: [3], 3: [4]}, {4: [0, 1]},
        {0: [4], 1: [4], 2: [4], 3: [4]}, {0: [1, 2], 3: [2]},
    ]  # fmt: skip
    for tie in ties:
        await admin.execute("update user_account set sponsors = '{}'")
        for one, sponsors in tie.items():
            await admin.execute(
                "update user_account set sponsors = $2 where id = $1", ids[one], [ids[each] for each in sponsors]
            )
        details = await approvals.get_approval(strict.db, strict.admin.actor, asked.id)
        assert details.approval.votes_for == len(independent(details.votes)), tie
        silent = [vote for vote in details.votes if vote.counts_with is not None]
        assert len(details.votes) - len(silent) == details.approval.votes_for

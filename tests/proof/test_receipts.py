"""Receipts: one for each decision, in its transaction, saying who decided what on which grounds."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from uuid import UUID

import asyncpg
import orjson
import pytest

from cortex_plane.approvals.model.approvals import Approval, Choice, DelegationDraft
from cortex_plane.approvals.verbs import approvals
from cortex_plane.db.database import Database
from cortex_plane.db.vault import Vault
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.jobs.verbs import steering
from cortex_plane.kernel.canonical import iso
from cortex_plane.kernel.errors import CortexError, NotFound, SetupError
from cortex_plane.proof.model import Receipt
from cortex_plane.proof.rules.receipts import as_file, card_digest, check_file
from cortex_plane.proof.verbs import audit, receipts
from cortex_plane.tenancy.model.orgs import MemberChange, Role
from cortex_plane.tenancy.verbs import orgs
from tests.fixtures.approvals import Shipping, decide, ship, shown, waiting
from tests.fixtures.people import Person, World, apply_policies
from tests.fixtures.standing_approvals import policy, stand
from tests.fixtures.workers import ended, job_of, submit, until, working

TWO_OF_US = "policies: [{name: two-of-us, target: ship, effect: requires_approval, template: dev_review, quorum: 2}]"


async def receipt_of(world: World, approval: Approval, by: Person | None = None) -> Receipt:
    return await receipts.get_receipt(world.db, (by or world.admin).actor, approval.id)


async def said(world: World, approval: Approval) -> dict[str, Any]:
    """What its receipt says, verified with the key that the plane lists."""
    (key, *_) = [each for each in await receipts.list_signing_keys(world.db, world.admin.actor) if not each.retired_at]
    checked = check_file(as_file(await receipt_of(world, approval)), key.fingerprint)
    assert checked.fault is None
    return checked.says


@pytest.mark.proves("D.170", "D.171")
async def test_an_approval_leaves_a_receipt_that_verifies_offline(strict: World, admin: asyncpg.Connection) -> None:
    id, (asked,) = await waiting(strict, Shipping())
    checkpoint = await steering.get_checkpoint(strict.db, strict.admin.actor, id)
    call = await admin.fetchval("select id from tool_call")
    await decide(strict, asked)
    says = await said(strict, asked)
    final = await shown(strict, asked.id)
    assert final.resolved_at is not None
    who = {"id": str(strict.admin.actor.user_account_id), "name": "Ada"}
    assert (says["org"], says["approval"], says["kind"]) == (str(strict.org_id), str(asked.id), "call")
    assert (says["session"], says["job"], says["agent"]) == (
        str(asked.session_id), str(id), str(asked.agent_id),
    )  # fmt: skip
    assert says["tool"] == {"name": "ship", "digest": asked.tool_digest}
    assert says["arguments"] == {"digest": asked.input_hash, "original_digest": None}
    assert (says["calls"], says["decision"], says["by"], says["via"]) == ([str(call)], "approved", who, "api")
    assert says["policy"] == {
        "rule": asked.rule, "version": asked.policy_version, "file_digest": None, "self_approval": True,
    }, "an org without rows of its own has no file"  # fmt: skip
    (vote,) = says["votes"]
    assert (vote["by"], vote["decision"], vote["via"]) == (who, "approved", "api")
    assert says["checkpoints"] == [
        {
            "job": str(id),
            "step_index": 0,
            "crc32": checkpoint["crc32"],
            "mac": (await admin.fetchval("select checkpoint_mac from job where id = $1", id)).hex(),
        }
    ]
    assert says["decided_at"] == final.resolved_at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    expires = await admin.fetchval("select expires_at from approval_grant")
    assert says["expires_at"] == expires.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    assert says["card"] == {"digest": card_digest(final)}, "whoever has the card can compute its digest"
    assert card_digest(asked) == card_digest(final), "the card was decided as it was shown"
    assert says["expires_at"] > says["issued_at"] >= says["decided_at"] > says["requested_at"]


@pytest.mark.proves("D.170")
async def test_a_denial_leaves_one_too(strict: World) -> None:
    _, (asked,) = await waiting(strict, Shipping())
    await decide(strict, asked, Choice.DENIED, reason="a person's own words")
    says = await said(strict, asked)
    assert (says["decision"], says["expires_at"], len(says["calls"])) == ("denied", None, 1)
    assert "own words" not in json.dumps(says), "what cannot be erased holds nobody's words"


@pytest.mark.proves("D.170")
async def test_an_edit_shows_both_digests_and_the_card_as_it_was_decided(strict: World) -> None:
    _, (asked,) = await waiting(strict, Shipping())
    edited = (await decide(strict, asked, arguments={"version": "1.0", "to": "staging"})).approval
    says = await said(strict, asked)
    assert says["arguments"] == {"digest": edited.input_hash, "original_digest": asked.input_hash}
    assert (says["approval_version"], says["card"]["digest"]) == (2, card_digest(edited))
    assert card_digest(edited) != card_digest(asked)


@pytest.mark.proves("D.170")
async def test_votes_and_hands_are_in_it_and_so_is_the_policy_file(strict: World, admin: asyncpg.Connection) -> None:
    bea, cal = [await strict.person(Role.APPROVER, name=name) for name in ("Bea", "Cal")]
    await apply_policies(strict.db, strict.admin.actor, TWO_OF_US)
    _, (asked,) = await waiting(strict, Shipping())
    await decide(strict, asked, by=bea)
    with pytest.raises(NotFound):
        await receipt_of(strict, asked)
    eve = await strict.person(Role.MEMBER, name="Eve")
    assert eve.actor.user_account_id is not None
    await approvals.delegate(strict.db, cal.actor, asked.id, DelegationDraft(to=eve.actor.user_account_id))
    await decide(strict, await shown(strict, asked.id), by=eve)
    says = await said(strict, asked)
    assert [vote["by"]["name"] for vote in says["votes"]] == ["Bea", "Eve"]
    assert [(hop["from"]["name"], hop["to"]["name"]) for hop in says["delegations"]] == [("Cal", "Eve")]
    stored = await admin.fetch("select created_at as at from approval_vote order by created_at")
    stored += await admin.fetch("select created_at as at from approval_delegation")
    assert [fact["at"] for fact in says["votes"] + says["delegations"]] == [iso(row["at"]) for row in stored]
    assert says["by"]["name"] == "Eve"
    digest = await admin.fetchval("select digest from policy_version")
    assert says["policy"]["file_digest"] == digest


@pytest.mark.proves("D.170")
@pytest.mark.parametrize("change", [{"active": False}, {"clearance": 1}, {"roles": [Role.MEMBER]}])
async def test_only_votes_that_counted_are_in_it(strict: World, change: dict[str, Any]) -> None:
    """A vote of somebody who could not give it any more is not told as if it had carried the decision."""
    people = [await strict.person(Role.APPROVER, name=name, clearance=2) for name in ("Bea", "Cal", "Dot")]
    await apply_policies(strict.db, strict.admin.actor, TWO_OF_US.replace("quorum: 2", "quorum: 2, clearance: 2"))
    _, (asked,) = await waiting(strict, Shipping())
    bea, cal, dot = people
    await decide(strict, asked, by=bea)
    assert bea.actor.user_account_id is not None
    await orgs.update_member(strict.db, strict.admin.actor, bea.actor.user_account_id, MemberChange(**change), None)
    await decide(strict, await shown(strict, asked.id), by=cal)
    with pytest.raises(NotFound):
        await receipt_of(strict, asked)
    await decide(strict, await shown(strict, asked.id), by=dot)
    assert [vote["by"]["name"] for vote in (await said(strict, asked))["votes"]] == ["Cal", "Dot"]


@pytest.mark.proves("D.170")
async def test_a_standing_approval_is_in_the_receipt_of_its_request(strict: World) -> None:
    await apply_policies(strict.db, strict.admin.actor, policy())
    _, (asked,) = await waiting(strict, Shipping())
    given = await stand(strict, asked, calls=3, same_arguments=True, condition="args.version != '9'", seconds=60)
    assert (await said(strict, asked))["standing"] == {
        "id": str(given.id), "tool": "ship", "digest": asked.tool_digest, "input_hash": asked.input_hash,
        "condition": "args.version != '9'", "max_calls": 3,
        "expires_at": given.expires_at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
    }  # fmt: skip
    _, (plain,) = await waiting(strict, Shipping(), ship("2"), slug="another")
    await decide(strict, plain)
    assert (await said(strict, plain))["standing"] is None


@pytest.mark.proves("D.170")
async def test_calls_that_joined_share_one_receipt(strict: World, admin: asyncpg.Connection) -> None:
    shipping = Shipping()
    first, (asked,) = await waiting(strict, shipping)
    agent = await admin.fetchval("select slug from agent where slug = 'shipper'")
    session = (await job_of(strict, first)).session_id
    second = await submit(strict, replace(strict.agent, slug=agent), session_id=session)
    async with working(strict.db, shipping.app):
        await until(strict, second, JobStatus.WAITING_FOR_APPROVAL)
    both = await shown(strict, asked.id)
    assert both.invocations == 2
    await decide(strict, both)
    says = await said(strict, asked)
    assert says["calls"] == sorted(str(row["id"]) for row in await admin.fetch("select id from tool_call"))
    assert {mark["job"] for mark in says["checkpoints"]} == {str(first), str(second)}
    async with working(strict.db, shipping.app):
        assert (await ended(strict, first)).status is JobStatus.COMPLETED
        assert (await ended(strict, second)).status is JobStatus.COMPLETED
    assert len(shipping.shipped) == 2


async def test_whoever_sees_the_approval_sees_its_receipt_and_nobody_else(strict: World, other: World) -> None:
    _, (asked,) = await waiting(strict, Shipping())
    with pytest.raises(NotFound) as none_yet:
        await receipt_of(strict, asked)
    assert none_yet.value.code == "receipt_not_found"
    await decide(strict, asked)
    stranger = await strict.person(Role.MEMBER, name="Mo")
    for refused in (
        receipts.get_receipt(strict.db, stranger.actor, asked.id),
        receipts.get_receipt(strict.db, other.admin.actor, asked.id),
        receipts.get_receipt(strict.db, strict.admin.actor, UUID(int=1)),
    ):
        with pytest.raises(NotFound) as hidden:
            await refused
        assert hidden.value.code == "approval_not_found"
    assert (await receipt_of(strict, asked)).approval_id == asked.id


@pytest.mark.proves("D.170")
async def test_without_a_receipt_there_is_no_decision(strict: World, admin: asyncpg.Connection, urls: Any) -> None:
    """One transaction: what cannot be signed is not decided."""
    _, (asked,) = await waiting(strict, Shipping())
    await decide(strict, (await waiting(strict, Shipping(), ship("2"), slug="another"))[1][0])
    wrong = await Database.open(urls.app, max_size=2, vault=Vault(bytes(32)))
    receipts._signers.clear()
    try:
        with pytest.raises(CortexError) as raised:
            await decide(replace(strict, db=wrong), asked)
        assert isinstance(raised.value, SetupError)
    finally:
        await wrong.close()
    assert (await shown(strict, asked.id)).status == "pending"
    assert await admin.fetchval("select count(*) from approval_receipt") == 1
    await decide(strict, asked)
    assert (await said(strict, asked))["decision"] == "approved"


async def test_receipts_and_roots_cannot_be_changed_by_the_plane_itself(
    strict: World, admin: asyncpg.Connection
) -> None:
    _, (asked,) = await waiting(strict, Shipping())
    await decide(strict, asked)
    await audit.make_root(strict.db, strict.org_id)
    for statement in (
        "update approval_receipt set body = body",
        "delete from approval_receipt",
        "update audit_root set body = body",
        "delete from audit_root",
        "update audit_root_head set hash = hash",
        "delete from audit_root_head",
        "update signing_key set public_key = public_key",
        "delete from signing_key",
    ):
        async with admin.transaction():
            await admin.execute("set local role cortex_app")
            await admin.execute("select set_config('app.org_id', $1, true)", str(strict.org_id))
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                async with admin.transaction():
                    await admin.execute(statement)
    assert orjson.loads((await receipt_of(strict, asked)).body)["decision"] == "approved"

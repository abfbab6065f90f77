"""An approved call is sent only with a true receipt: whoever can write to the database cannot approve anything by it."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from uuid import UUID

import asyncpg
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cortex_plane.approvals.model.approvals import Approval, ApprovalStatus, Choice
from cortex_plane.db.vault import Vault
from cortex_plane.jobs.model.jobs import Job, JobStatus
from cortex_plane.jobs.verbs import jobs
from cortex_plane.kernel.canonical import canonical
from cortex_plane.proof.verbs import receipts
from cortex_plane.worker.tools.app import App
from tests.fixtures.approvals import Shipping, decide, pending, ship, waiting
from tests.fixtures.people import World
from tests.fixtures.workers import (
    Died,
    actions,
    call,
    chains_whole,
    died,
    ended,
    job_of,
    make_agent,
    names_what_to_do,
    steps_of,
    submit,
    turn,
    until,
    working,
)

Tampering = Callable[[asyncpg.Connection, Approval], Awaitable[None]]


async def _without(admin: asyncpg.Connection, asked: Approval) -> None:
    await admin.execute("delete from approval_receipt where approval_id = $1", asked.id)


async def _changed(admin: asyncpg.Connection, _: Approval) -> None:
    await admin.execute(
        "update approval_receipt set body = convert_to(replace(convert_from(body, 'UTF8'), 'Ada', 'Eve'), 'UTF8')"
    )


async def _no_text(admin: asyncpg.Connection, asked: Approval) -> None:
    await admin.execute("update approval_receipt set body = '\\xff' where approval_id = $1", asked.id)


async def _other_signature(admin: asyncpg.Connection, asked: Approval) -> None:
    await admin.execute("update approval_receipt set signature = sha512('x') where approval_id = $1", asked.id)


async def _resigned(admin: asyncpg.Connection, asked: Approval) -> None:
    """Somebody puts a key of their own beside the org's, and signs what they like with it."""
    mine = Ed25519PrivateKey.generate()
    body = await admin.fetchval("select body from approval_receipt where approval_id = $1", asked.id)
    key = UUID(int=77)
    sealed = Vault(b"m" * 32).seal(UUID(int=1), receipts.PURPOSE, mine.private_bytes_raw())
    await admin.execute(
        "insert into signing_key (org_id, id, public_key, sealed, retired_at)"
        " select org_id, $1, $2, $3, plane_now() from approval_receipt",
        key, mine.public_key().public_bytes_raw(), sealed,
    )  # fmt: skip
    await admin.execute(
        "update approval_receipt set key_id = $1, signature = $2 where approval_id = $3",
        key, mine.sign(body), asked.id,
    )  # fmt: skip


async def _swapped_key(admin: asyncpg.Connection, asked: Approval) -> None:
    """The same under the name of the org's own key, whose sealed half they cannot make."""
    mine = Ed25519PrivateKey.generate()
    body = await admin.fetchval("select body from approval_receipt where approval_id = $1", asked.id)
    await admin.execute("update signing_key set public_key = $1", mine.public_key().public_bytes_raw())
    await admin.execute("update approval_receipt set signature = $1 where approval_id = $2", mine.sign(body), asked.id)


async def _other_arguments(admin: asyncpg.Connection, _: Approval) -> None:
    """The call and its grant changed together, so that they fit each other."""
    arguments = canonical({"version": "6.66"})
    digest = hashlib.sha256(arguments).digest()
    await admin.execute(
        "update tool_call set arguments = $1::jsonb, input_hash = $2, edited = true", arguments.decode(), digest
    )
    await admin.execute("update approval_grant set input_hash = $1", digest)


TAMPERED: dict[str, tuple[Tampering, str]] = {
    "no receipt": (_without, "there is no receipt of its approval"),
    "another name in it": (_changed, "the signature of its receipt is false"),
    "no text": (_no_text, "the signature of its receipt is false"),
    "another signature": (_other_signature, "the signature of its receipt is false"),
    "a key of their own": (_resigned, "the key of its receipt is not one of the org's"),
    "a key in the org's place": (_swapped_key, "the key of its receipt is not one of the org's"),
    "other arguments": (_other_arguments, "its receipt is for other arguments"),
}


async def _refused(world: World, job: Job, shipping: Shipping, reason: str) -> None:
    assert (job.status, shipping.shipped) == (JobStatus.FAILED, [])
    assert f"`ship` was not sent: {reason}" in (job.error_message or "")
    assert names_what_to_do(job, 0)
    (step, *_) = await steps_of(world, job.id)
    refused = step.calls[-1]
    assert (refused.status, refused.error) == ("rejected", f"not sent: {reason}")
    assert "receipt_refused" in await actions(world, job)
    assert await chains_whole(world)


@pytest.mark.proves("D.172")
@pytest.mark.parametrize("name", TAMPERED)
async def test_a_grant_without_a_true_receipt_is_never_sent(
    strict: World, admin: asyncpg.Connection, name: str
) -> None:
    tamper, reason = TAMPERED[name]
    shipping = Shipping()
    id, (asked,) = await waiting(strict, shipping)
    await decide(strict, asked)
    await tamper(admin, asked)
    async with working(strict.db, shipping.app):
        job = await ended(strict, id)
    if name == "a key in the org's place":
        # Their key stands in the list now; what it signed is refused all the same.
        assert (job.status, shipping.shipped) == (JobStatus.FAILED, [])
        assert reason in (job.error_message or "")
        return
    await _refused(strict, job, shipping, reason)


@pytest.mark.proves("D.172")
async def test_a_yes_that_only_the_database_says_is_not_sent(strict: World, admin: asyncpg.Connection) -> None:
    """A denied request turned around, and a receipt borrowed from another one."""
    shipping = Shipping()
    id, (wanted, other) = await waiting(strict, shipping, ship("6.66"), ship("1.0"))
    await decide(strict, other)
    call_id = await admin.fetchval("select call_id from approval_invocation where approval_id = $1", wanted.id)
    async with admin.transaction():
        await admin.execute("set local session_replication_role = replica")
        await admin.execute(
            "update approval_request set status = 'approved', resolved_at = plane_now(), resolved_by_name = 'Ada',"
            " next_action_at = null where id = $1",
            wanted.id,
        )
        await admin.execute("update tool_call set status = 'approved' where id = $1", call_id)
        await admin.execute(
            "insert into approval_grant select g.org_id, $1, $2, g.tool_digest, c.input_hash, g.created_at, g.expires_at"
            " from approval_grant g, tool_call c where c.id = $1",
            call_id, wanted.id,
        )  # fmt: skip
        await admin.execute(
            "insert into approval_receipt select org_id, $1, key_id, body, signature, created_at"
            " from approval_receipt where approval_id = $2",
            wanted.id, other.id,
        )  # fmt: skip
        await admin.execute(
            "update job set status = 'RUNNING', open_approvals = 0, runnable_at = plane_now() where id = $1", id
        )
    async with working(strict.db, shipping.app):
        job = await ended(strict, id)
    assert (job.status, shipping.shipped) == (JobStatus.FAILED, [])
    assert "its receipt is for other arguments" in (job.error_message or "")


@pytest.mark.proves("D.172")
async def test_what_ran_before_a_refused_call_is_kept(strict: World, admin: asyncpg.Connection) -> None:
    shipping = Shipping()
    id, (first, second) = await waiting(strict, shipping, ship("1"), call("look"), ship("2"))
    await decide(strict, first)
    await decide(strict, second)
    await admin.execute("delete from approval_receipt where approval_id = $1", second.id)
    async with working(strict.db, shipping.app):
        job = await ended(strict, id)
    assert (job.status, shipping.shipped) == (JobStatus.FAILED, ["1 to production"])
    (step, *_) = await steps_of(strict, id)
    assert [each.status for each in step.calls] == ["completed", "completed", "rejected"]
    assert step.calls[0].result == "1 is out"
    assert await chains_whole(strict)


async def test_resubmitting_asks_again_and_then_it_is_sent(strict: World, admin: asyncpg.Connection) -> None:
    shipping = Shipping()
    id, (asked,) = await waiting(strict, shipping)
    await decide(strict, asked)
    await admin.execute("delete from approval_receipt")
    async with working(strict.db, shipping.app):
        assert (await ended(strict, id)).status is JobStatus.FAILED
        again = await jobs.resubmit(strict.db, strict.admin.actor, id, None)
        await until(strict, again.id, JobStatus.WAITING_FOR_APPROVAL)
        (anew,) = await pending(strict, again.id)
        await decide(strict, anew)
        assert (await ended(strict, again.id)).status is JobStatus.COMPLETED
    assert shipping.shipped == ["1.0 to production"]


class Flaky(Shipping):
    """Its worker dies with the first call; nobody knows whether it was sent."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.app = App("tests")

        @self.app.tool(risk="high", timeout=0.2, on_uncertain="retry_with_key")
        async def ship(version: str, to: str = "production") -> str:
            """Ship a version."""
            self.calls += 1
            if self.calls == 1:
                raise Died
            self.shipped.append(f"{version} to {to}")
            return f"{version} is out"


@pytest.mark.proves("D.172")
@pytest.mark.parametrize("tampered", [False, True])
async def test_what_was_sent_with_an_approval_is_sent_again_only_with_its_receipt(
    strict: World, admin: asyncpg.Connection, tampered: bool
) -> None:
    flaky = Flaky()
    id, (asked,) = await waiting(strict, flaky)
    await decide(strict, asked)
    await died(strict.db, flaky.app)
    if tampered:
        await admin.execute("update approval_receipt set signature = sha512('x')")
    async with working(strict.db, flaky.app):
        job = await ended(strict, id)
    if not tampered:
        assert (job.status, flaky.shipped) == (JobStatus.COMPLETED, ["1.0 to production"])
        return
    # It may have happened before: a person is asked, and nothing is sent by itself.
    assert (job.status, flaky.shipped) == (JobStatus.PAUSED, [])
    assert "receipt_refused" in await actions(strict, job)


async def test_a_rotated_key_keeps_its_receipts_good(strict: World) -> None:
    shipping = Shipping()
    id, (asked,) = await waiting(strict, shipping)
    await decide(strict, asked)
    await receipts.rotate_signing_key(strict.db, strict.admin.actor)
    async with working(strict.db, shipping.app):
        assert (await ended(strict, id)).status is JobStatus.COMPLETED
    assert shipping.shipped == ["1.0 to production"]


async def test_a_denial_needs_no_receipt_to_be_obeyed(strict: World) -> None:
    shipping = Shipping()
    id, (asked,) = await waiting(strict, shipping)
    receipt = await decide(strict, asked, Choice.DENIED)
    assert receipt.approval.status is ApprovalStatus.DENIED
    assert (await job_of(strict, id)).status is JobStatus.FAILED
    agent = await make_agent(strict, [turn(call("look"))], slug="looker")
    async with working(strict.db, shipping.app):
        assert (await ended(strict, await submit(strict, agent))).status is JobStatus.COMPLETED

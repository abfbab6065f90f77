"""A process of its own that decides, hands on, expires, cancels and holds at once; several of them race each other.

It says ``ready`` when it is connected. Then every line is a round: acts, each on one request, which it begins together,
give or take some milliseconds; it answers with what became of each.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any
from urllib.parse import parse_qsl, urlsplit
from uuid import UUID

import asyncpg
import structlog

from cortex_plane.approvals.model.approvals import Approval, ApprovalDecision, Channel, Choice, DelegationDraft
from cortex_plane.approvals.model.credentials import Confirmation, TokenDecision
from cortex_plane.approvals.verbs import approvals, credentials, decisions
from cortex_plane.calls.verbs import deadlines
from cortex_plane.db.database import Database
from cortex_plane.jobs.model.jobs import Cancellation, Pause
from cortex_plane.jobs.verbs import steering
from cortex_plane.kernel.errors import CortexError
from cortex_plane.kernel.ids import new_id
from cortex_plane.tenancy.model.access import Actor, scheduler_actor
from cortex_plane.tenancy.verbs import frame
from tests.fixtures.servers import VAULT

CLIENTS = 32
MOVE = "update approval_request set deadline = plane_now(), next_action_at = plane_now() where id = $1 and status = 'pending'"
UP = """
update approval_request r
set escalate_at = array_fill(plane_now(), array[cardinality(r.escalate_at)]), next_action_at = plane_now()
where id = $1 and status = 'pending'"""


class Racer:
    def __init__(self, db: Database, admin: Any, actors: dict[str, Actor]) -> None:
        self.db, self.admin, self.actors = db, admin, actors
        self.id = new_id()

    async def act(self, act: dict[str, Any]) -> str:
        await asyncio.sleep(act["after"])
        try:
            return await getattr(self, act["act"])(act, self.actors[act["by"]])  # type: ignore[no-any-return]
        except CortexError as error:
            return error.code

    async def approve(self, act: dict[str, Any], actor: Actor) -> str:
        return await self._decide(act, actor, Choice.APPROVED)

    async def deny(self, act: dict[str, Any], actor: Actor) -> str:
        return await self._decide(act, actor, Choice.DENIED)

    async def respond(self, act: dict[str, Any], actor: Actor) -> str:
        return await self._decide(act, actor, Choice.RESPONDED, "Go another way.")

    async def _decide(self, act: dict[str, Any], actor: Actor, choice: Choice, answer: str | None = None) -> str:
        seen = {name: act[name] for name in ("version", "input_hash")}
        decision = ApprovalDecision(decision=choice, answer=answer, **seen)
        receipt = await decisions.decide(self.db, actor, UUID(act["approval"]), decision, Channel.API)
        return receipt.result.value

    async def expire(self, act: dict[str, Any], actor: Actor) -> str:
        """Its time is over now, and this scheduler is the first that notices, or one of several."""
        async with self.admin.acquire() as connection:
            await connection.execute(MOVE, UUID(act["approval"]))
        return await self._due(act, actor)

    async def _seen(self, act: dict[str, Any], actor: Actor) -> Approval:
        """As it is now: who looks just before they decide."""
        return (await approvals.get_approval(self.db, actor, UUID(act["approval"]))).approval

    async def look_and_approve(self, act: dict[str, Any], actor: Actor) -> str:
        seen = await self._seen(act, actor)
        return await self.approve({**act, "version": seen.version, "input_hash": seen.input_hash}, actor)

    async def edit(self, act: dict[str, Any], actor: Actor) -> str:
        decision = ApprovalDecision(
            decision=Choice.APPROVED, version=act["version"], input_hash=act["input_hash"],
            arguments={"version": act["edited"]},
        )  # fmt: skip
        receipt = await decisions.decide(self.db, actor, UUID(act["approval"]), decision, Channel.API)
        return receipt.result.value

    async def token(self, act: dict[str, Any], _: Actor) -> str:
        given = TokenDecision(token=act["token"], decision=Choice(act["choice"]))
        return (await credentials.decide_by_token(self.db, given)).result.value

    async def link(self, act: dict[str, Any], _: Actor) -> str:
        return await follow(self.db, act["link"])

    async def delegate(self, act: dict[str, Any], actor: Actor) -> str:
        draft = DelegationDraft(to=UUID(act["to"]), reason="somebody else knows")
        await approvals.delegate(self.db, actor, UUID(act["approval"]), draft)
        return "delegated"

    async def escalate(self, act: dict[str, Any], actor: Actor) -> str:
        """All of its levels are due now; each scheduler that looks takes one step."""
        async with self.admin.acquire() as connection:
            await connection.execute(UP, UUID(act["approval"]))
        return await self._due(act, actor)

    async def _due(self, act: dict[str, Any], actor: Actor) -> str:
        scheduler = scheduler_actor(actor.org_id, self.id, "racer")
        acted = await decisions.act_when_due(self.db, scheduler, UUID(act["approval"]))
        return acted.what if acted else "nothing"

    async def tick(self, _: dict[str, Any], __: Actor) -> str:
        return ", ".join((await deadlines.tick(self.db, self.id, "racer")).done) or "nothing"

    async def cancel(self, act: dict[str, Any], actor: Actor) -> str:
        receipt = await steering.cancel(self.db, actor, UUID(act["job"]), Cancellation())
        return "changed" if receipt.changed else "unchanged"

    async def hold(self, act: dict[str, Any], actor: Actor) -> str:
        receipt = await steering.pause(self.db, actor, UUID(act["job"]), Pause())
        return "changed" if receipt.changed else "unchanged"


async def follow(db: Database, link: str) -> str:
    """Open a signed link, look at the request as its page shows it, and press the button."""
    parts = urlsplit(link)
    channel, approval = parts.path.rsplit("/", 2)[1:]
    visitor = await credentials.visitor(db, channel, approval, parse_qsl(parts.query), None)
    seen = (await approvals.get_approval(db, visitor.actor, visitor.link.approval_id)).approval
    shown = Confirmation(version=seen.version, input_hash=seen.input_hash, issued=int(time.time()))
    nonce = shown.nonce(visitor.secrets[0].value, visitor.link)
    return (await credentials.decide_by_link(db, visitor, (shown, nonce), None)).result.value


async def race(url: str, admin_url: str, secrets: list[str]) -> None:
    db = await Database.open(url, min_size=CLIENTS, max_size=CLIENTS, vault=VAULT)
    admin = await asyncpg.create_pool(admin_url, min_size=1, max_size=2)
    actors = {secret: await frame.authenticate_key(db, secret) for secret in secrets}
    racer = Racer(db, admin, actors)
    _say("ready")
    while line := await asyncio.to_thread(sys.stdin.readline):
        _say(json.dumps(await asyncio.gather(*(racer.act(act) for act in json.loads(line)))))
    await admin.close()
    await db.close()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    # What it answers is on its standard output; what it logs is not.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    asyncio.run(race(sys.argv[1], sys.argv[2], sys.argv[3:]))

"""What other systems send to the plane, signed with the secret of one of its webhooks.

The order of an event: who signed it, is it known, what does it want, what became of it. The event and what it does are two
transactions, and a crash between them costs nothing: the work is done once by its key, and whoever sends the event again
lets it be done, or gets the answer that was kept.

Over the same connection the plane asks a steward's system to validate answers to gates.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

import orjson
import structlog
from pydantic import ValidationError

from cortex_plane.approvals import store as approvals_store
from cortex_plane.approvals.model.approvals import ApprovalDecision, Channel, Choice, RecordResult
from cortex_plane.approvals.model.credentials import ASKS_FOR_LOGIN, login_required
from cortex_plane.approvals.verbs import decisions
from cortex_plane.db.database import Database, Transaction
from cortex_plane.kernel import errors
from cortex_plane.kernel.addresses import Allowed
from cortex_plane.kernel.canonical import unique
from cortex_plane.kernel.errors import Conflict
from cortex_plane.kernel.fields import adapter, parse
from cortex_plane.kernel.ids import IdempotencyKey, new_id
from cortex_plane.kernel.meters import meters
from cortex_plane.notify import store as notify_store
from cortex_plane.notify.model import notifications as model
from cortex_plane.notify.model.notifications import Target, TryAgain
from cortex_plane.tenancy import store as tenancy_store
from cortex_plane.tenancy.model.access import Actor, ActorKind, Permission, scheduler_actor
from cortex_plane.tenancy.model.identities import CHANNEL
from cortex_plane.tenancy.store import SealedConnection
from cortex_plane.tenancy.verbs import access
from cortex_plane.tenancy.verbs.access import forgery_refusal
from cortex_plane.tenancy.verbs.connections import require_webhook
from cortex_plane.tenancy.verbs.frame import record, verb

log = structlog.get_logger()

PATIENCE = timedelta(days=5)
"""A webhook to which nothing has got through for so long is disabled, if a try failed within the last day too: silence where
nothing was sent says nothing about it."""
AT_A_TIME = 10_000
REMEMBERED = timedelta(days=30)
"""How long an event is known. Nobody sends one again after that, and its signature is void five minutes after it was made."""

# What an event was refused with is its answer too. The nearest comes first.
_KEPT = (errors.Stale, errors.Conflict, errors.Forbidden, errors.NotFound, errors.InvalidInput)
# What the database itself stumbles over says nothing about the event: whoever sends it again has another try.
_OURS = (errors.AlreadyExists, errors.InUse)
_MARKS = {RecordResult.OK.value: "ok", RecordResult.DUPLICATE.value: "duplicate", None: "conflict"}


class Webhooks(Protocol):
    """What tries a connection out, and knows which addresses the operator lists."""

    @property
    def allowed(self) -> Allowed: ...

    async def ping(self, target: model.Target, id: UUID) -> str:
        """Send a signed `ping`; returns what was answered. Raises ``TryAgain`` or ``Undeliverable``."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class _SignedEvent:
    connection: SealedConnection
    org_id: UUID
    event_id: str
    body: bytes

    @property
    def key(self) -> str:
        """Of the decision. Ids are a sender's own, so that of the connection belongs to it."""
        return f"webhook/{self.connection.id}/{self.event_id}"

    def sender(self) -> Actor:
        """The other system, on the audit trail."""
        id, name = self.connection.id, self.connection.name
        return Actor(org_id=self.org_id, key_id=id, kind=ActorKind.SERVICE, name=name, roles=frozenset())


async def receive(
    db: Database, connection_id: UUID | None, headers: Mapping[str, str], body: bytes
) -> model.EventAnswer:
    """Take in an event. Nothing of the body is read before its signature is known to be good."""
    delivery = await _verified(db, connection_id, headers, body)
    if delivery.connection.disabled_at is not None:
        raise errors.Conflict(
            "This connection is disabled.",
            code="connection_disabled",
            hint="Enable it with `cortex connection enable`, then send the event again.",
        )
    async with db.transaction(delivery.org_id) as tx:
        digest = hashlib.sha256(body).digest()
        first, earlier = await notify_store.claim_webhook(tx, delivery.connection.id, delivery.event_id, digest)
    if first != digest:
        meters().called_back(CHANNEL, "conflict")
        raise errors.Conflict(
            "This webhook-id came with another body before.",
            code="webhook_id_reused",
            hint="Give every event an id of its own; repeat an id only with the same body.",
        )
    if earlier is not None:
        meters().called_back(CHANNEL, "duplicate")
        return _answer_of(earlier)
    return await _handled(db, delivery)


async def _verified(db: Database, connection_id: UUID | None, headers: Mapping[str, str], body: bytes) -> _SignedEvent:
    """A connection that does not exist and a signature that is not good are answered alike, and leave a count and a line in
    the log: what cannot be tied to an org has no place on its trail."""
    try:
        rows = await db.call("resolve_connection", None, connection_id) if connection_id else []
        if not rows or connection_id is None:
            raise model.forged()
        org_id: UUID = rows[0]["org_id"]
        async with db.transaction(org_id) as tx:
            connection = await tenancy_store.sealed_connection(tx, connection_id)
        if connection is None or connection.channel_type != CHANNEL or connection.sealed is None:
            raise model.forged()
        secrets = model.Secrets.of(tenancy_store.open_secret(db.vault, org_id, connection_id, connection.sealed))
        event_id = model.verify(secrets.valid(connection.now), headers, body, connection.now)
    except errors.Unauthenticated:
        meters().called_back(CHANNEL, "hmac_invalid")
        log.warning("webhook refused", connection=str(connection_id), reason="hmac_invalid")
        raise
    return _SignedEvent(connection=connection, org_id=org_id, event_id=event_id, body=body)


async def _handled(db: Database, delivery: _SignedEvent) -> model.EventAnswer:
    """Do what it wants, keep the answer, give it. Where another delivery kept one first, that is the answer."""
    refusal: errors.CortexError | None = None
    answer: model.EventAnswer | None = None
    person: Actor | None = None
    try:
        answer, person = await _done(db, delivery)
    except _KEPT as error:
        if isinstance(error, _OURS) or error.code == "retry":
            raise
        refusal = error
    async with db.transaction(delivery.org_id) as tx:
        if answer is not None and answer.approval_id is not None and person is not None:
            # Also where this very event decided in an earlier delivery, and a crash came before the answer was kept.
            key = decisions.own_key(person, delivery.key)
            if await tx.value(approvals_store.queries.is_key_used, answer.approval_id, key):
                answer = replace(answer, result=RecordResult.OK)
        reply = _stored_reply(answer, refusal)
        mine = await notify_store.answer_webhook(tx, delivery.connection.id, delivery.event_id, reply)
        if mine and refusal is not None:
            connection, event = delivery.connection.id, delivery.event_id
            await record(
                tx, delivery.sender(), "webhook_refused", connection=connection, event=event, code=refusal.code
            )
        if not mine:
            row = await tx.row(notify_store.queries.get_webhook, delivery.connection.id, delivery.event_id)
            reply = (row and row["answer"]) or reply
    meters().called_back(CHANNEL, _MARKS[reply.get("result")] if mine else "duplicate")
    return _answer_of(reply)


async def _done(db: Database, delivery: _SignedEvent) -> tuple[model.EventAnswer, Actor | None]:
    """The answer, and who decided."""
    try:
        with contextlib.suppress(ValueError, RecursionError):  # what is no JSON at all is refused below
            json.loads(delivery.body, object_pairs_hook=unique)
        event: model.WebhookEvent = adapter(model.WebhookEvent).validate_json(delivery.body)
    except ValidationError as error:
        raise _invalid(error) from None
    if event.type is model.WebhookEventType.PING:
        return model.EventAnswer(type=model.WebhookEventType.PING, result=RecordResult.OK), None
    try:
        request = parse(model.DecisionEvent, event.data)
    except ValidationError as error:
        raise _invalid(error, "data") from None
    async with forgery_refusal(db, _sender_unknown), db.transaction(delivery.org_id) as tx:
        person = await _person(tx, delivery.connection.id, request.external_user)
        if request.decision is not Choice.DENIED:
            # One secret speaks for everybody behind the connection, so it decides nothing of high risk. It may prevent it.
            approval = await approvals_store.get_approval(tx, request.approval_id, person)
            if approval is not None and approval[0].template in ASKS_FOR_LOGIN:
                raise login_required("a webhook")
    decision = ApprovalDecision(
        decision=request.decision, version=request.version, input_hash=request.input_hash, reason=request.reason,
        answer=request.answer,
    )  # fmt: skip
    once = IdempotencyKey(key=delivery.key, fingerprint=hashlib.sha256(delivery.body).digest())
    receipt = await decisions.decide(db, person, request.approval_id, decision, Channel.WEBHOOK, once)
    status = receipt.approval.status
    answer = model.EventAnswer(type=event.type, result=receipt.result, approval_id=request.approval_id, status=status)
    return answer, person


async def _person(tx: Transaction, connection_id: UUID, name: str) -> Actor:
    """Who decides: never the system that says so, always a member whose name there was vouched for or proven."""
    mapping = await tenancy_store.verified_mapping(tx, connection_id, name)
    person = await access.actor_for_member(tx, mapping.user_account_id, mapping.id) if mapping else None
    if person is None:
        raise _sender_unknown()
    return person


def _sender_unknown() -> errors.Forbidden:
    return errors.Forbidden(
        "On this connection this name belongs to no active member.",
        code="sender_unknown",
        hint="An admin can say whose it is: `cortex connection map`. Then send a new event.",
    )


def _invalid(error: ValidationError, *under: str) -> errors.InvalidInput:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    field = ".".join([*under, *(str(part) for part in first["loc"])]) or "body"
    return errors.InvalidInput(
        f"The event is not valid: {field}: {first['msg']}.",
        code="invalid_event",
        hint="docs/guides/webhooks.md shows what events look like. Correct it and send it with a new id.",
    )


def _stored_reply(answer: model.EventAnswer | None, error: errors.CortexError | None) -> dict[str, Any]:
    if error is None:
        reply: dict[str, Any] = adapter(model.EventAnswer).dump_python(answer, mode="json")
        return reply
    kind = next(kind for kind in _KEPT if isinstance(error, kind))
    return {"refused": kind.__name__, "message": error.message, "code": error.code, "hint": error.hint}


def _answer_of(reply: dict[str, Any]) -> model.EventAnswer:
    """The answer, or the error that was."""
    if "refused" not in reply:
        return parse(model.EventAnswer, reply)
    kind = next(kind for kind in _KEPT if kind.__name__ == reply["refused"])
    raise kind(reply["message"], code=reply["code"], hint=reply["hint"])


@verb(Permission.CONNECTION_WRITE)
async def try_out(db: Database, actor: Actor, id: UUID, channel: Webhooks) -> model.Ping:
    """Send a signed `ping` now, and say what came back. It changes nothing, also where it fails."""
    async with db.transaction(actor.org_id) as tx:
        connection = require_webhook(await tenancy_store.sealed_connection(tx, id))
    target = model.Target(
        connection_id=id,
        connection=connection.name,
        config=connection.config,
        secrets=tenancy_store.open_secret(db.vault, actor.org_id, id, connection.sealed),
        address="",
        member=actor.name,
    )
    start = time.monotonic()
    try:
        reply, delivered = await channel.ping(target, new_id()), True
    except (model.TryAgain, model.Undeliverable) as error:
        reply, delivered = error.message, False
    return model.Ping(delivered=delivered, said=reply, seconds=round(time.monotonic() - start, 3))


async def keep(db: Database) -> None:
    """Disable what nobody answers any more, and forget events that nobody sends again. Once an hour is enough."""
    for row in await db.call("find_failing_connections", None, CHANNEL, PATIENCE, AT_A_TIME):
        await _give_up(db, row["org_id"], row["id"])
    await db.call("forget_inbound_events", None, REMEMBERED, AT_A_TIME)


async def _give_up(db: Database, org_id: UUID, id: UUID) -> None:
    reason = f"Nothing was delivered for {PATIENCE.days} days."
    async with db.transaction(org_id) as tx:
        # None where something has got through, or somebody disabled it meanwhile.
        row = await tx.row(tenancy_store.queries.give_up_connection, id, reason, PATIENCE)
        if row is None:
            return
        actor, since = scheduler_actor(org_id, new_id(), "webhooks"), row["failing_since"].isoformat()
        await record(
            tx, actor, "connection_disabled", connection=id, name=row["name"], reason=reason, failing_since=since
        )
    log.warning("webhook disabled", connection=str(id), reason=reason)


MAX_FAULT = 500
"""Characters of what is wrong with an answer."""


class Inquiries(Protocol):
    """The channel that asks, and reads what is answered."""

    async def ask(self, target: Target, id: UUID, at: datetime, kind: str, data: Mapping[str, Any]) -> bytes:
        """Raises ``TryAgain`` or ``Undeliverable``."""
        ...


class AnswerCallbacks:
    def __init__(self, db: Database, channel: Inquiries) -> None:
        self._db, self._channel = db, channel

    async def check_answer(self, org_id: UUID, connection: str, data: Mapping[str, Any]) -> str | None:
        """What is wrong with an answer; None where nothing is. Raises ``CortexError`` where that is not known."""
        db = self._db
        async with db.transaction(org_id) as tx:
            row = require_webhook(await tenancy_store.get_connection_name(tx, connection))
        if row.disabled_at is not None:
            raise Conflict(
                "The connection of this validator is disabled.",
                code="connection_disabled",
                hint="Enable it with `cortex connection enable`.",
            )
        target = Target(
            connection_id=row.id,
            connection=row.name,
            config=row.config,
            secrets=tenancy_store.open_secret(db.vault, org_id, row.id, row.sealed),
            address="",
            member="",
        )
        return _validator_fault(await self._channel.ask(target, new_id(), row.now, "gate.answer", data))


def _validator_fault(body: bytes) -> str | None:
    """Of `{"valid": true}` or `{"valid": false, "reason": "…"}`. Everything else is no answer."""
    try:
        reply = orjson.loads(body)
    except orjson.JSONDecodeError:
        reply = None
    valid = reply.get("valid") if isinstance(reply, dict) else None
    if valid is True:
        return None
    reason = reply.get("reason", "") if valid is False else None
    if not isinstance(reason, str):
        raise TryAgain("The validator answered neither that it is valid nor why it is not.")
    return reason.replace("\x00", "")[:MAX_FAULT] or "it is not accepted"

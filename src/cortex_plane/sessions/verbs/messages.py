"""Messages: into a session from a channel or from its owner. Each is one round trip and one commit."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from uuid import UUID

from cortex_plane.db.database import Database
from cortex_plane.kernel.errors import Conflict, Forbidden
from cortex_plane.kernel.fields import split_ref
from cortex_plane.kernel.idempotency import IdempotencyKey, new_id
from cortex_plane.proof.model.audit import Fact
from cortex_plane.sessions.model.messages import InboundMessage, IngestedMessage, Message, MessageDraft
from cortex_plane.sessions.model.sessions import title_from
from cortex_plane.sessions.store import messages, sessions
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.forgeries import refused_as
from cortex_plane.tenancy.verbs.verbs import require_found, verb

TRIES = 3
REMEMBERED = 50_000
Sender = tuple[UUID, UUID, str]
"""An org, a connection and a name there."""

_checked: OrderedDict[Sender, messages.Checked] = OrderedDict()
"""Mappings whose MAC this process has found true."""


@verb(Permission.MESSAGE_INGEST)
async def ingest(
    db: Database,
    actor: Actor,
    connection_id: UUID,
    inbound: InboundMessage,
    once: IdempotencyKey | None = None,
) -> IngestedMessage:
    """Whoever wrote, and whatever exists already: afterwards the message is in a session with a job to read it."""
    account, mapping, session, job = new_id(), new_id(), new_id(), new_id()
    where = {"connection": str(connection_id), "external_user": inbound.external_user_id}
    facts = (
        Fact.of(actor, "account_created", account=str(account), mapping=str(mapping), **where),
        Fact.of(actor, "session_created", session=str(session), **where),
        Fact.of(actor, "message_received", **where, text_sha256=_digest(inbound.text)),
        Fact.of(actor, "job_created", job=str(job)),
        Fact.of(actor, "session_activated", **where),
    )
    sender = (actor.org_id, connection_id, inbound.external_user_id)
    for _ in range(TRIES):
        try:
            delivery = await messages.ingest_message(
                db,
                actor.org_id,
                connection_id=connection_id,
                agent=split_ref(inbound.agent),
                external_user=inbound.external_user_id,
                display_name=inbound.display_name or inbound.external_user_id,
                metadata=inbound.metadata,
                text=inbound.text,
                title=title_from(inbound.text),
                ids=(account, mapping, session, job),
                bodies=tuple(fact.body for fact in facts),
                checked=_checked.get(sender),
                caller=actor.key_id,
                once=once,
            )
            break
        except Conflict as error:
            if error.code != "mapping_unchecked":
                raise
            await _check(db, sender)
    else:
        raise Conflict("Whose this sender is changes all the time.", code="retry", hint="Send it again.")
    if "account" in delivery.created:
        _remember(sender, (mapping, account))
    db.hints.work()
    return delivery


async def _check(db: Database, sender: Sender) -> None:
    """Once in a process for each sender: afterwards the message itself says whether the mapping is still this one."""
    async with refused_as(db, _sender_unknown):
        checked = await messages.check_mapping(db, *sender)
    if checked is not None:
        _remember(sender, checked)


def _remember(sender: Sender, checked: messages.Checked) -> None:
    _checked[sender] = checked
    _checked.move_to_end(sender)
    if len(_checked) > REMEMBERED:
        _checked.popitem(last=False)


def _sender_unknown() -> Forbidden:
    return Forbidden(
        "It is not known whose this sender is: what is kept about them was not written by the plane.",
        code="sender_unknown",
        hint="An admin takes the channel from the member (`cortex member unlink`), and they link it anew.",
    )


@verb(Permission.SESSION_WRITE)
async def post(
    db: Database, actor: Actor, session_id: UUID, draft: MessageDraft, once: IdempotencyKey | None = None
) -> IngestedMessage:
    job = new_id()
    received = Fact.of(actor, "message_received", text_sha256=_digest(draft.text))
    created = Fact.of(actor, "job_created", job=str(job))
    activated = Fact.of(actor, "session_activated")
    delivery = await messages.post_message(
        db,
        actor.org_id,
        session_id=session_id,
        sees=actor.sees,
        text=draft.text,
        title=title_from(draft.text),
        author=actor.user_account_id,
        job=job,
        bodies=(received.body, created.body, activated.body),
        caller=actor.key_id,
        once=once,
    )
    db.hints.work()
    return delivery


@verb(Permission.SESSION_READ)
async def list_page(db: Database, actor: Actor, session_id: UUID, above: int, limit: int) -> list[Message]:
    """In the order they were said, after number ``above``."""
    async with db.transaction(actor.org_id) as tx:
        require_found(await sessions.get(tx, session_id, actor.sees), "session")
        return await messages.list_page(tx, session_id, above, limit)


def _digest(text: str) -> str:
    """The trail proves what was said without keeping it twice."""
    return hashlib.sha256(text.encode()).hexdigest()

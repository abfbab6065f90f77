"""Deciding from outside the dashboard: tokens that are sent once and kept as a lookup, and links that an org signs.

Neither is authority: both lead to a person, and ``approvals.decide`` asks what that person may do at this moment. What
cannot be tied to a person is a log line and a figure, never an entry of an audit chain.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Awaitable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import structlog

from cortex_plane.approvals import store as approvals_store
from cortex_plane.approvals.model import credentials as rules
from cortex_plane.approvals.model.approvals import ApprovalDecision, Channel, Choice, DecisionReceipt, RecordResult
from cortex_plane.approvals.model.credentials import Confirmation, SecretRotation, SigningSecret, TokenDecision, Visitor
from cortex_plane.approvals.store import CALLBACK, queries
from cortex_plane.approvals.verbs import decisions
from cortex_plane.db.database import Database, Transaction
from cortex_plane.kernel.errors import Conflict, CortexError, Forbidden, Unauthenticated
from cortex_plane.kernel.ids import IdempotencyKey, new_id
from cortex_plane.kernel.meters import meters
from cortex_plane.policies.model.policies import Template
from cortex_plane.tenancy import store as tenancy_store
from cortex_plane.tenancy.model.access import Actor, MacKind, Permission, scheduler_actor
from cortex_plane.tenancy.verbs.access import forgery_refusal
from cortex_plane.tenancy.verbs.frame import record, verb

log = structlog.get_logger()

SECRET_BYTES = 32
AT_ONCE = 200

_OUTCOMES = {
    "approval_conflict": "conflict",
    "token_expired": "expired_link",
    "link_expired": "expired_link",
    "approval_expired": "expired_link",
}
"""What spec 4's metric calls a refusal, by its code; any other is the person's and not the link's: `refused`."""


def new_approval_token() -> str:
    return f"{rules.TOKEN_PREFIX}{rules.TOKEN_VERSION}_{secrets.token_urlsafe(32)}"


def draft_token(
    tx: Transaction, *, approval_id: UUID, member_id: UUID, notification_id: UUID | None, version: int,
    input_hash: str, expires_at: datetime,
) -> tuple[str, approvals_store.TokenRow]:  # fmt: skip
    """A token for one approver and one message, which decides what that message shows, once its row is inserted. It is said here
    and never again."""
    id, token, key = new_id(), new_approval_token(), tx.credential_key
    lookup = key.lookup(rules.digest(token))
    written = {
        "org_id": tx.org, "id": id, "user_account_id": member_id, "approval_id": approval_id, "version": version,
        "input_hash": input_hash, "expires_at": expires_at, "token_hash": lookup,
    }  # fmt: skip
    mac = key.mac(MacKind.APPROVAL_TOKEN, written)
    return token, (id, approval_id, member_id, notification_id, lookup, version, input_hash, expires_at, mac)


def sign_links(
    secret: SigningSecret, *, approval_id: UUID, member_id: UUID, channel: str, deadline: datetime, public_url: str
) -> dict[Choice, str]:
    """An address for each decision. It shows a page to the person it was made for, and decides nothing itself."""
    links = {}
    for choice in Choice:
        link = rules.Link(
            approval_id=approval_id, decision=choice, deadline=int(deadline.timestamp()), operator_id=member_id
        )
        links[choice] = link.address(public_url, channel, secret.value)
    return links


async def signing_secret(db: Database, tx: Transaction) -> SigningSecret:
    """What signs now; made where nothing was signed before."""
    row = await tx.row(queries.current_secret, CALLBACK)
    if row is None:
        await _insert_secret(db, tx)
        row = await tx.row(queries.current_secret, CALLBACK)
    if row is None:
        raise Conflict("The secret that signs links is being replaced.", code="retry")
    return _opened(db, tx.org, row["id"], row["sealed"])


async def _insert_secret(db: Database, tx: Transaction) -> datetime | None:
    """None where there is a current one."""
    sealed = await db.seal(tx, CALLBACK, secrets.token_bytes(SECRET_BYTES))
    made_at: datetime | None = await tx.value(queries.insert_secret, tx.org, new_id(), CALLBACK, sealed)
    return made_at


def _opened(db: Database, org_id: UUID, id: UUID, sealed: bytes) -> SigningSecret:
    return SigningSecret(id=id, value=db.vault.open(org_id, CALLBACK, sealed))


async def decide_by_token(db: Database, decision: TokenDecision) -> DecisionReceipt:
    """As the person to whom the token was sent, about the version that their message showed."""
    try:
        async with forgery_refusal(db, rules.unknown_token):
            token = await approvals_store.open_token(db, rules.digest(decision.token))
        if token is None:
            raise rules.unknown_token()
    except Unauthenticated as error:
        # Whoever it was: no org is known, so no chain is. The token itself is in no log.
        log.warning("approval token refused", code=error.code)
        meters().called_back(Channel.API, "token_invalid")
        raise
    return await _count_outcome(Channel.API, _decide_by_token(db, decision, *token))


async def _count_outcome(channel: Channel, decision: Awaitable[DecisionReceipt]) -> DecisionReceipt:
    try:
        receipt = await decision
    except CortexError as error:
        meters().called_back(channel, _OUTCOMES.get(error.code, "refused"))
        raise
    meters().called_back(channel, "ok" if receipt.result is RecordResult.OK else "duplicate")
    return receipt


async def _decide_by_token(
    db: Database, answer: TokenDecision, token: rules.Token, actor: Actor | None
) -> DecisionReceipt:
    if actor is None:
        raise rules.nobody()
    if token.template in rules.ASKS_FOR_LOGIN:
        raise rules.login_required()
    if token.used_at is None and token.expires_at <= token.now:
        raise Conflict(
            "This token is over: its request had to be decided earlier.",
            code="token_expired",
            hint="Submit the job again with `cortex job resubmit`; whoever may decide gets a new message.",
        )
    if token.vote is not None and token.vote is not answer.decision:
        raise Conflict(
            "You decided otherwise already, and a vote stands.",
            code="approval_conflict",
            hint="The first decision stands; read it with `cortex approval show`.",
        )
    decision = ApprovalDecision(
        decision=answer.decision, version=token.version, input_hash=token.input_hash, reason=answer.reason,
        answer=answer.answer,
    )  # fmt: skip
    return await decisions.decide(db, actor, token.approval_id, decision, Channel.API)


async def visitor(
    db: Database, channel: str, approval_id: str, query: Iterable[tuple[str, str]], session: Actor | None
) -> Visitor:
    """Whoever came with a link. ``session`` is who is logged in in the same browser: high risk asks for that too.
    Everything that is wrong with a link is answered alike; what is wrong with its person or its time is said."""
    signed_link = rules.read_link(channel, approval_id, query)
    if signed_link is None:
        raise _refused(channel)
    link = signed_link.link
    rows = await db.call("open_approval_link", None, link.approval_id, link.operator_id, CALLBACK)
    if not rows:
        raise _refused(channel)
    (row,) = rows
    signing_secrets = [
        _opened(db, row["org_id"], id, sealed) for id, sealed in zip(row["secret_ids"], row["sealed"], strict=True)
    ]
    # Compared with all of them, whichever fits.
    signers = [secret for secret in signing_secrets if link.is_signed_by(secret.value, signed_link.signature)]
    if not signers or not rules.fits(link, row["deadline"]):
        raise _refused(channel)
    actor = approvals_store.credential_person(row, signers[0].id)
    if actor is None:
        raise rules.nobody()
    member = (actor.org_id, link.operator_id)
    visitor = Visitor(
        link=link,
        channel=signed_link.channel,
        actor=actor,
        template=Template(row["template"]),
        now=row["now"],
        over=rules.is_over(link, row["now"]),
        logged_in=session is not None and (session.org_id, session.user_account_id) == member,
        secrets=tuple(signing_secrets),
    )
    if visitor.template in rules.ASKS_FOR_LOGIN and not visitor.logged_in:
        raise rules.login_required()
    return visitor


def _refused(channel: str) -> Unauthenticated:
    """The same for a bad signature and for a request that does not exist."""
    channel_name = rules.channel_label(channel)
    log.warning("approval link refused", channel=channel_name)
    meters().called_back(channel_name, "hmac_invalid")
    return Unauthenticated(
        "This link is not valid: its signature does not fit.",
        code="link_invalid",
        hint="Open the link from the newest message as it is, or decide in the dashboard.",
    )


async def names_of_secrets(db: Database, visitor: Visitor) -> Sequence[str]:
    """What the org lets nobody see outside the dashboard, besides what the plane hides itself."""
    async with db.transaction(visitor.actor.org_id) as tx:
        org = await tenancy_store.get_org(tx)
    names: Sequence[str] = (org.settings.get("redact") if org else None) or ()
    return names


async def decide_by_link(
    db: Database, visitor: Visitor, confirmation_form: tuple[Confirmation, str] | None, reason: str | None,
    answer: Any = None,
) -> DecisionReceipt:  # fmt: skip
    """What the link says about what its page showed. ``shown`` is what the form of that page carried back."""
    if visitor.over:
        meters().called_back(visitor.channel, "expired_link")
        raise Conflict(
            "Its time is over: this had to be decided earlier.",
            code="link_expired",
            hint="Submit the job again with `cortex job resubmit`; whoever may decide gets a new message.",
        )
    confirmation, nonce = confirmation_form or (None, "")
    if (
        confirmation is None
        or not confirmation.was_shown(visitor.secrets, visitor.link, nonce)
        or not confirmation.is_fresh(visitor.now)
    ):
        raise Forbidden(
            "This did not come from the page that shows the request, or from one that is half an hour old.",
            code="not_confirmed",
            hint="Nothing was decided. Look at the request below, and decide again.",
        )
    decision = ApprovalDecision(
        decision=visitor.link.decision, version=confirmation.version, input_hash=confirmation.input_hash, reason=reason,
        answer=answer,
    )  # fmt: skip
    key = visitor.link.key(visitor.channel, confirmation.version, answer)
    once = IdempotencyKey(key=key, fingerprint=hashlib.sha256(key.encode()).digest())
    return await _count_outcome(
        visitor.channel, decisions.decide(db, visitor.actor, visitor.link.approval_id, decision, visitor.channel, once)
    )


@verb(Permission.ORG_WRITE)
async def rotate_secret(db: Database, actor: Actor, decision: rules.SecretRotationDraft) -> SecretRotation:
    """Sign links with a new secret from now on. Those that were sent work to their deadline, or not at all any more."""
    async with db.transaction(actor.org_id) as tx:
        rotation = await _rotate(db, tx, actor, timedelta(0), forget=decision.forget)
    if rotation is None:
        raise Conflict("Somebody else rotates it at this moment.", hint="It is done; nothing is left to do.")
    return rotation


async def _rotate(
    db: Database, tx: Transaction, actor: Actor, older_than: timedelta, *, forget: bool
) -> SecretRotation | None:
    """None where the current one is younger, or somebody else was faster."""
    retire_at = await tx.value(queries.retire_secret, CALLBACK, older_than, timedelta(0) if forget else rules.GRACE)
    if retire_at is None and older_than:
        return None
    made_at = await _insert_secret(db, tx)
    if made_at is None:
        return None
    # Those before it too, where the old ones must not be accepted any more.
    await tx.rows(queries.forget_secrets, CALLBACK, rules.GRACE if forget else timedelta(0))
    rotation = SecretRotation(rotated_at=made_at, accepted_until=retire_at or made_at)
    until = rotation.accepted_until.isoformat()
    await record(tx, actor, "signing_secret_rotated", purpose=CALLBACK, forgotten=forget, accepted_until=until)
    return rotation


async def keep(db: Database) -> None:
    """Rotate what is 90 days old, drop what nobody accepts or asks about any more. Any number may do it at once."""
    rows = await db.call("find_old_credentials", None, rules.ROTATE_AFTER, rules.KEEP_TOKENS, AT_ONCE)
    for org_id in [row["org_id"] for row in rows]:
        actor = scheduler_actor(org_id, UUID(int=0), "scheduler")
        try:
            async with db.transaction(org_id) as tx:
                await tx.rows(queries.forget_tokens, rules.KEEP_TOKENS)
                await tx.rows(queries.forget_secrets, CALLBACK, timedelta(0))
                await _rotate(db, tx, actor, rules.ROTATE_AFTER, forget=False)
        except CortexError as error:
            # One org must not keep the others from theirs.
            log.warning("credentials not kept yet", org=str(org_id), error=str(error))

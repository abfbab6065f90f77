"""Deciding from outside the dashboard: tokens that are sent once and kept as a lookup, and links that an org signs.

Neither is authority: both lead to a person, and ``approvals.decide`` asks what that person may do at this moment. What
cannot be tied to a person is a log line and a figure, never an entry of an audit chain.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import structlog

from cortex_plane.approvals import store as approvals_store
from cortex_plane.approvals.model import credentials as rules
from cortex_plane.approvals.model.approvals import Channel, Choice, Decision, DecisionReceipt, RecordResult
from cortex_plane.approvals.model.credentials import (
    Confirmation,
    Link,
    SecretRotation,
    SecretRotationDraft,
    SigningSecret,
    Token,
    TokenDecision,
    Visitor,
)
from cortex_plane.approvals.store import CALLBACK
from cortex_plane.approvals.verbs import decisions
from cortex_plane.db.database import Database, Transaction
from cortex_plane.kernel.errors import Conflict, CortexError, Unauthenticated
from cortex_plane.kernel.ids import IdempotencyKey, new_id
from cortex_plane.kernel.meters import meters
from cortex_plane.policies.model.policies import Template
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.model import Fact
from cortex_plane.tenancy import store as tenancy_store
from cortex_plane.tenancy.model.access import Actor, Permission, scheduler_actor
from cortex_plane.tenancy.verbs.access import forgery_refusal, new_approval_token
from cortex_plane.tenancy.verbs.frame import verb

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


# Made when a message is rendered ----------------------------------------------------------------------------------


async def mint(
    tx: Transaction, *, approval_id: UUID, member_id: UUID, notification_id: UUID | None, version: int,
    input_hash: str, expires_at: datetime,
) -> str:  # fmt: skip
    """A token for one approver and one message, which decides what that message shows. It is said here and never again."""
    token = new_approval_token()
    await approvals_store.insert_token(
        tx,
        new_id(),
        approval_id=approval_id,
        member_id=member_id,
        notification_id=notification_id,
        token_hash=rules.digest(token),
        version=version,
        input_hash=input_hash,
        expires_at=expires_at,
    )
    return token


async def links(
    db: Database, tx: Transaction, *, approval_id: UUID, member_id: UUID, channel: str, deadline: datetime,
    public_url: str,
) -> dict[Choice, str]:  # fmt: skip
    """A signed address for each decision. It shows a page to the person it was made for, and decides nothing itself."""
    secret = await _current(db, tx)
    links = {}
    for choice in Choice:
        link = Link(approval_id=approval_id, decision=choice, deadline=int(deadline.timestamp()), operator_id=member_id)
        links[choice] = link.address(public_url, channel, secret.value)
    return links


async def _current(db: Database, tx: Transaction) -> SigningSecret:
    """What signs now; made where nothing was signed before."""
    row = await approvals_store.current_secret(tx, CALLBACK)
    if row is None:
        await approvals_store.insert_secret(tx, new_id(), CALLBACK, await _new_secret(db, tx))
        row = await approvals_store.current_secret(tx, CALLBACK)
    if row is None:
        raise Conflict("The secret that signs links is being replaced.", code="retry")
    return _opened(db, tx.org, row["id"], row["sealed"])


async def _new_secret(db: Database, tx: Transaction) -> bytes:
    return await db.seal(tx, CALLBACK, secrets.token_bytes(SECRET_BYTES))


def _opened(db: Database, org_id: UUID, id: UUID, sealed: bytes) -> SigningSecret:
    return SigningSecret(id=id, value=db.vault.open(org_id, CALLBACK, sealed))


# Tokens -----------------------------------------------------------------------------------------------------------


async def decide_by_token(db: Database, decision: TokenDecision) -> DecisionReceipt:
    """As the person to whom the token was sent, about the version that their message showed."""
    try:
        async with forgery_refusal(db, rules.unknown_token):
            locked_approval = await approvals_store.open_token(db, rules.digest(decision.token))
        if locked_approval is None:
            raise rules.unknown_token()
    except Unauthenticated as error:
        # Whoever it was: no org is known, so no chain is. The token itself is in no log.
        log.warning("approval token refused", code=error.code)
        meters().called_back(Channel.API, "token_invalid")
        raise
    try:
        receipt = await _decide_by_token(db, decision, *locked_approval)
    except CortexError as error:
        meters().called_back(Channel.API, _OUTCOMES.get(error.code, "refused"))
        raise
    meters().called_back(Channel.API, _said(receipt))
    return receipt


async def _decide_by_token(
    db: Database, token_decision: TokenDecision, token: Token, actor: Actor | None
) -> DecisionReceipt:
    if actor is None:
        raise rules.nobody()
    if token.template in rules.ASKS_FOR_LOGIN:
        raise rules.login_required()
    if token.used_at is None and token.expires_at <= token.now:
        raise rules.token_expired()
    if token.said is not None and token.said is not token_decision.decision:
        raise rules.decided_with_it()
    decision = Decision(
        decision=token_decision.decision,
        version=token.version,
        input_hash=token.input_hash,
        reason=token_decision.reason,
    )
    return await decisions.decide(db, actor, token.approval_id, decision, Channel.API)


def _said(receipt: DecisionReceipt) -> str:
    return "ok" if receipt.result is RecordResult.OK else "duplicate"


# Links ------------------------------------------------------------------------------------------------------------


async def visitor(
    db: Database, channel: str, approval_id: str, query: Iterable[tuple[str, str]], session: Actor | None
) -> Visitor:
    """Whoever came with a link. ``session`` is who is logged in in the same browser: high risk asks for that too.

    Everything that is wrong with a link is answered alike; what is wrong with its person or its time is said.
    """
    signed_link = rules.read_link(channel, approval_id, query)
    row = (
        await approvals_store.open_link(db, signed_link.link.approval_id, signed_link.link.operator_id)
        if signed_link
        else None
    )
    if signed_link is None or row is None:
        raise _refused(channel)
    link = signed_link.link
    signing_secrets = [
        _opened(db, row["org_id"], id, sealed) for id, sealed in zip(row["secret_ids"], row["sealed"], strict=True)
    ]
    signer = _signer(signing_secrets, link, signed_link.signature)
    if signer is None or not rules.fits(link, row["deadline"]):
        raise _refused(channel)
    actor = approvals_store.link_operator(row, signer.id)
    if actor is None:
        raise rules.nobody()
    visitor = Visitor(
        link=link,
        channel=signed_link.channel,
        actor=actor,
        template=Template(row["template"]),
        now=row["now"],
        over=rules.is_over(link, row["now"]),
        logged_in=_is_same(session, actor.org_id, link.operator_id),
        secrets=tuple(signing_secrets),
    )
    if visitor.template in rules.ASKS_FOR_LOGIN and not visitor.logged_in:
        raise rules.login_required()
    return visitor


def _signer(signing_secrets: Sequence[SigningSecret], link: Link, signature: str) -> SigningSecret | None:
    """Compares with all of them, whichever fits."""
    fitting = [each for each in signing_secrets if link.is_signed_by(each.value, signature)]
    return fitting[0] if fitting else None


def _refused(channel: str) -> Unauthenticated:
    channel_name = rules.channel_said(channel)
    log.warning("approval link refused", channel=channel_name)
    meters().called_back(channel_name, "hmac_invalid")
    return rules.link_refused()


def _is_same(session: Actor | None, org_id: UUID, member_id: UUID) -> bool:
    return session is not None and (session.org_id, session.user_account_id) == (org_id, member_id)


async def names_of_secrets(db: Database, visitor: Visitor) -> Sequence[str]:
    """What the org lets nobody see outside the dashboard, besides what the plane hides itself."""
    async with db.transaction(visitor.actor.org_id) as tx:
        org = await tenancy_store.get_org(tx)
    names: Sequence[str] = (org.settings.get("redact") if org else None) or ()
    return names


async def decide_by_link(
    db: Database, visitor: Visitor, confirmation_form: tuple[Confirmation, str] | None, reason: str | None
) -> DecisionReceipt:
    """What the link says about what its page showed. ``shown`` is what the form of that page carried back."""
    if visitor.over:
        meters().called_back(visitor.channel, "expired_link")
        raise rules.link_over()
    if confirmation_form is None or not confirmation_form[0].was_shown(
        visitor.secrets, visitor.link, confirmation_form[1]
    ):
        raise rules.not_confirmed()
    confirmation = confirmation_form[0]
    if not confirmation.is_fresh(visitor.now):
        raise rules.not_confirmed()
    decision = Decision(
        decision=visitor.link.decision, version=confirmation.version, input_hash=confirmation.input_hash, reason=reason
    )
    key = visitor.link.key(visitor.channel, confirmation.version)
    once = IdempotencyKey(key=key, fingerprint=hashlib.sha256(key.encode()).digest())
    try:
        receipt = await decisions.decide(db, visitor.actor, visitor.link.approval_id, decision, visitor.channel, once)
    except CortexError as error:
        meters().called_back(visitor.channel, _OUTCOMES.get(error.code, "refused"))
        raise
    meters().called_back(visitor.channel, _said(receipt))
    return receipt


# Secrets ----------------------------------------------------------------------------------------------------------


@verb(Permission.ORG_WRITE)
async def rotate_secret(db: Database, actor: Actor, decision: SecretRotationDraft) -> SecretRotation:
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
    grace = timedelta(0) if forget else rules.GRACE
    retire_at = await approvals_store.retire_secret(tx, CALLBACK, older_than, grace)
    if retire_at is None and older_than:
        return None
    made_at = await approvals_store.insert_secret(tx, new_id(), CALLBACK, await _new_secret(db, tx))
    if made_at is None:
        return None
    # Those before it too, where the old ones must not be accepted any more.
    await approvals_store.forget_secrets(tx, CALLBACK, rules.GRACE if forget else timedelta(0))
    rotation = SecretRotation(rotated_at=made_at, accepted_until=retire_at or made_at)
    await proof_store.append_to_org(
        tx,
        Fact.of(
            actor,
            "signing_secret_rotated",
            purpose=CALLBACK,
            forgotten=forget,
            accepted_until=rotation.accepted_until.isoformat(),
        ),
    )
    return rotation


async def keep(db: Database) -> None:
    """Rotate what is 90 days old, drop what nobody accepts or asks about any more. Any number may do it at once."""
    for org_id in await approvals_store.find_old_credential(db, rules.ROTATE_AFTER, rules.KEEP_TOKENS, AT_ONCE):
        actor = scheduler_actor(org_id, UUID(int=0), "scheduler")
        try:
            async with db.transaction(org_id) as tx:
                await approvals_store.forget_tokens(tx, rules.KEEP_TOKENS)
                await approvals_store.forget_secrets(tx, CALLBACK, timedelta(0))
                await _rotate(db, tx, actor, rules.ROTATE_AFTER, forget=False)
        except CortexError as error:
            # One org must not keep the others from theirs.
            log.warning("credentials not kept yet", org=str(org_id), error=str(error))

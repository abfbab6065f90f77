"""New secrets, the actor that a member is, ending a person's access, and reports of forged credentials."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

import structlog

from cortex_plane.approvals import store as approvals_store
from cortex_plane.approvals.model.credentials import TOKEN_PREFIX, TOKEN_VERSION
from cortex_plane.db.database import Database, Transaction
from cortex_plane.kernel.errors import CortexError
from cortex_plane.kernel.meters import meters
from cortex_plane.notify.model.webhooks import SECRET_BYTES, secret_of
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.model import Fact
from cortex_plane.tenancy.model.access import Actor, ActorKind, scheduler_actor
from cortex_plane.tenancy.model.credentials import CODE_PREFIX, ENTROPY_BYTES, LINK_PREFIX, PREFIX, SESSION_PREFIX
from cortex_plane.tenancy.model.identities import ALPHABET, CODE_LENGTH, VERIFY_PREFIX
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.tenancy.rules import Forged
from cortex_plane.tenancy.store import credentials as credentials_store
from cortex_plane.tenancy.store import identities as identities_store
from cortex_plane.tenancy.store import orgs as orgs_store


async def actor_for_member(tx: Transaction, user_account_id: UUID, credential_id: UUID) -> Actor | None:
    """Them, with the roles and the clearance of this moment; None where there is nobody, or they are deactivated."""
    member = await orgs_store.get_member(tx, user_account_id)
    if member is None or member.deactivated_at is not None:
        return None
    return Actor(
        org_id=tx.org,
        key_id=credential_id,
        kind=ActorKind.PERSON,
        name=member.display_name,
        roles=frozenset(Role(role) for role in member.roles),
        user_account_id=member.id,
        clearance=member.clearance,
    )


async def sponsors_by(tx: Transaction, actor: Actor) -> list[UUID]:
    """Who answers for what the actor does to people and their channels: they themselves, and for a program whoever made its key."""
    if actor.kind is not ActorKind.SERVICE:
        return [actor.identity]
    maker = await credentials_store.key_maker(tx, actor.key_id)
    return [actor.identity, *([maker] if maker else [])]


@dataclass(frozen=True, slots=True)
class EndedAccess:
    """What ended with the access of a member."""

    keys: Sequence[UUID] = ()
    browser_sessions: Sequence[UUID] = ()
    others: Sequence[UUID] = ()
    """Links, codes and tokens."""

    def as_audit(self, *others: UUID) -> dict[str, object]:
        credentials = [*self.browser_sessions, *self.others, *others]
        return {
            "keys_ended": [str(id) for id in self.keys],
            "browser_sessions_ended": len(self.browser_sessions),
            "credentials_ended": [str(id) for id in credentials],
        }


async def end_access(tx: Transaction, member_id: UUID) -> EndedAccess:
    """Ends every credential of a member for good, and what came from it. Whoever calls this holds their access."""
    keys = await credentials_store.revoke_keys(tx, member_id)
    return EndedAccess(
        keys=keys,
        browser_sessions=await credentials_store.end_sessions(tx, member_id),
        others=[
            *await credentials_store.end_enrolment_codes_of_keys(tx, keys),
            *await credentials_store.void_enrolment_codes(tx, member_id),
            *await credentials_store.end_links(tx, member_id),
            *await identities_store.void_codes(tx, member_id),
            *await approvals_store.void_tokens(tx, member_id),
        ],
    )


def new_key_secret() -> str:
    return PREFIX + secrets.token_urlsafe(ENTROPY_BYTES)


def new_link_token() -> str:
    return LINK_PREFIX + secrets.token_urlsafe(ENTROPY_BYTES)


def new_session_secret() -> str:
    return SESSION_PREFIX + secrets.token_urlsafe(ENTROPY_BYTES)


def new_enrolment_code() -> str:
    return CODE_PREFIX + secrets.token_urlsafe(ENTROPY_BYTES)


def new_approval_token() -> str:
    return f"{TOKEN_PREFIX}{TOKEN_VERSION}_{secrets.token_urlsafe(ENTROPY_BYTES)}"


def new_verify_code() -> str:
    return VERIFY_PREFIX + secrets.token_urlsafe(ENTROPY_BYTES)


def new_sender_code() -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(CODE_LENGTH))


def new_mark() -> str:
    """Tells one rendering of a page from another."""
    return secrets.token_hex(8)


def new_webhook_secret() -> str:
    return secret_of(secrets.token_bytes(SECRET_BYTES))


log = structlog.get_logger()

PAUSE_SECONDS = 3600
"""A row is on the trail at most so often, and by each process: whoever tries it again and again fills no chain."""
REMEMBERED = 10_000

_forgery_reports: OrderedDict[tuple[UUID, str, str], float] = OrderedDict()


@contextlib.asynccontextmanager
async def forgery_refusal(db: Database, refusal: Callable[[], CortexError]) -> AsyncIterator[None]:
    """Reports a forged row that is met inside, and raises what is raised for one that does not exist.

    Open no transaction around it: what is reported is committed, and what was begun is not."""
    try:
        yield
    except Forged as forgery:
        await report_forgery(db, forgery)
        raise refusal() from None


async def report_forgery(db: Database, forgery: Forged) -> None:
    """In the log, in a metric and on the org's trail."""
    meters().forged(forgery.kind)
    details = {"kind": forgery.kind.value, "id": str(forgery.id)}
    log.error("a row has a false MAC and was refused", org_id=str(forgery.org_id), **details)
    if not _is_due((forgery.org_id, forgery.kind.value, str(forgery.id))):
        return
    plane = scheduler_actor(forgery.org_id, UUID(int=0), "plane")
    async with db.transaction(forgery.org_id) as tx:
        await proof_store.append_to_org(tx, Fact.of(plane, "credential_refused", **details))


def _is_due(row: tuple[UUID, str, str]) -> bool:
    now = time.monotonic()
    before = _forgery_reports.get(row)
    if before is not None and now - before < PAUSE_SECONDS:
        return False
    _forgery_reports[row] = now
    _forgery_reports.move_to_end(row)
    if len(_forgery_reports) > REMEMBERED:
        _forgery_reports.popitem(last=False)
    return True

"""The links that go into mails: made when a mail is rendered, so that none is ever kept as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from cortex_plane.db.database import Transaction
from cortex_plane.kernel.idempotency import new_id
from cortex_plane.notify.model.notifications import Invitation
from cortex_plane.tenancy.model.identities import VERIFY_LIFE, Purpose, digest, path_of
from cortex_plane.tenancy.store import identities, members, orgs
from cortex_plane.tenancy.verbs.secrets import new_verify_code


async def invitation(
    tx: Transaction, mapping_id: UUID, data: Mapping[str, Any], public_url: str
) -> Invitation | None:
    """What the mail to an address says, with a link of its own. None where it was proven or given up meanwhile, or its person
    is deactivated: then there is nothing to say."""
    mapping = await identities.get_mapping(tx, mapping_id)
    if mapping is None or mapping.verified_at is not None:
        return None
    member = await members.get(tx, mapping.user_account_id)
    org = await orgs.get(tx)
    if member is None or member.deactivated_at is not None or org is None:
        return None
    code = new_verify_code()
    await identities.forget_codes(tx, member.id)
    expires_at = await identities.insert_code(
        tx, new_id(), member.id, mapping.id, digest(code), Purpose(data["purpose"]), data["invited_by"], VERIFY_LIFE
    )  # fmt: skip
    return Invitation(
        org=org.name,
        invited_by=data["invited_by"],
        url=public_url.rstrip("/") + path_of(code),
        expires_at=expires_at,
    )

"""One's own browser sessions and keys, and for admins where other people are logged in."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pydantic
from starlette.responses import RedirectResponse, Response

from cortex_plane.approvals.model.approvals import AT_MOST
from cortex_plane.approvals.verbs import approvals
from cortex_plane.dashboard import pages
from cortex_plane.dashboard.people import chosen
from cortex_plane.dashboard.visits import PageRouter, Visit, signed_in
from cortex_plane.kernel.errors import CortexError, InvalidInput, NotFound
from cortex_plane.kernel.fields import parse
from cortex_plane.tenancy.model.access import Permission
from cortex_plane.tenancy.model.credentials import OwnKeyDraft
from cortex_plane.tenancy.verbs import keys, logins

router = PageRouter()

PAGE = 100
HERE = "/access"


async def show_access(visit: Visit) -> Response:
    return await _page(visit, 200)


async def _page(
    visit: Visit, status: int, *, secret: str | None = None, error: CortexError | None = None
) -> Response:
    answer = visit.page(
        "access.html", status, **await _own(visit), **await _others(visit), secret=secret, error=error
    )
    if secret is not None:
        answer.headers["Cache-Control"] = "no-store"
    return answer


async def _own(visit: Visit) -> dict[str, Any]:
    may_have_keys = visit.actor.may(Permission.KEY_OWN)
    sessions = await logins.list_own_sessions(visit.db, visit.actor, None, PAGE)
    own_keys = (await keys.list_own_keys(visit.db, visit.actor, None, PAGE)).items if may_have_keys else []
    return {
        "sessions": sessions.items,
        "keys": [key for key in own_keys if key.revoked_at is None],
        "may_have_keys": may_have_keys,
    }


async def _others(visit: Visit) -> dict[str, Any]:
    """Where the member is logged in whom an admin chose."""
    if not visit.actor.may(Permission.MEMBER_WRITE):
        return {"for_others": False}
    colleagues = await approvals.list_delegates(visit.db, visit.actor)
    given = visit.request.query_params.get("member", "").strip()
    member_id = await chosen(visit, given) if given else None
    page = (
        await logins.list_member_sessions(visit.db, visit.actor, member_id, None, PAGE) if member_id else None
    )
    return {
        "for_others": True,
        "colleagues": colleagues,
        "too_many": len(colleagues) == AT_MOST,
        "member_id": member_id,
        "given": given,
        "theirs": page.items if page else [],
    }


async def end_session(visit: Visit) -> Response:
    await logins.end_own_session(visit.db, visit.actor, _id(visit, "session_id", "browser_session"))
    return _back()


async def end_others(visit: Visit) -> Response:
    """Every session of the visitor but this one."""
    await logins.end_own_sessions(visit.db, visit.actor)
    return _back()


async def end_session_of_member(visit: Visit) -> Response:
    member_id = _id(visit, "member_id", "member")
    session_id = _id(visit, "session_id", "browser_session")
    await logins.end_member_session(visit.db, visit.actor, member_id, session_id)
    return _back(f"?member={member_id}")


async def add_key(visit: Visit) -> Response:
    """The page with the new key, which is shown this once."""
    days = visit.form.get("expires_in_days", "").strip()
    draft = {
        "name": visit.form.get("name", "").strip(),
        "expires_in_days": int(days) if days.isascii() and days.isdecimal() else days or None,
    }
    try:
        new = await keys.create_own_key(visit.db, visit.actor, parse(OwnKeyDraft, draft))
    except pydantic.ValidationError:
        wrong = InvalidInput(
            "A key needs a name, and a whole number of days if it is to expire.",
            hint="Use a name of at most 200 characters, and 1 to 3650 days.",
        )
        return await _page(visit, 422, error=wrong)
    except InvalidInput as error:
        return await _page(visit, error.http_status, error=error)
    return await _page(visit, 201, secret=new.secret)


async def revoke_key(visit: Visit) -> Response:
    await keys.revoke_own_key(visit.db, visit.actor, _id(visit, "key_id", "key"))
    return _back()


def _id(visit: Visit, name: str, noun: str) -> UUID:
    try:
        return UUID(visit.request.path_params[name])
    except ValueError:
        raise NotFound("There is no such thing here.", code=f"{noun}_not_found") from None


def _back(query: str = "") -> Response:
    return RedirectResponse(HERE + query, 303, pages.HEADERS)


router.add(HERE, signed_in(show_access), "GET")
router.add(f"{HERE}/sessions/end", signed_in(end_others), "POST")
router.add(f"{HERE}/sessions/{{session_id}}/end", signed_in(end_session), "POST")
router.add(
    f"{HERE}/members/{{member_id}}/sessions/{{session_id}}/end",
    signed_in(end_session_of_member),
    "POST",
)
router.add(f"{HERE}/keys", signed_in(add_key), "POST")
router.add(f"{HERE}/keys/{{key_id}}/revoke", signed_in(revoke_key), "POST")

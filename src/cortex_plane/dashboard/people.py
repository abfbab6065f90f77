"""People: logging in, proving an address, own sessions and keys, and absences.

GET never uses up a link: mail scanners and chats fetch links ahead of a person. The form that proves an address also
carries the nonce of a page that was rendered, which a program that sends forms blindly does not have.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, date, datetime, time
from typing import Any
from uuid import UUID

import pydantic
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from cortex_plane.approvals.model.approvals import AT_MOST
from cortex_plane.approvals.verbs import approvals
from cortex_plane.dashboard import pages, visits
from cortex_plane.db.database import Database
from cortex_plane.kernel.errors import Conflict, CortexError, Forbidden, InvalidInput, NotFound, Unauthenticated
from cortex_plane.kernel.fields import parse
from cortex_plane.kernel.pages import encode_position
from cortex_plane.kernel.routes import PageRoutes
from cortex_plane.tenancy.model.access import OwnKeyDraft, Permission
from cortex_plane.tenancy.model.identities import AddressVerification, is_nonce, nonce
from cortex_plane.tenancy.model.orgs import AbsenceDraft
from cortex_plane.tenancy.verbs import connections, keys, logins, orgs
from cortex_plane.tenancy.verbs.access import new_mark

router = PageRoutes()

ACCESS = "/access"
ACCESS_PAGE = 100
ABSENCES_PAGE = 50
ABSENCE_FIELDS = ("to", "starts", "ends", "reason", "member")


@router.at("/login", "GET")
async def show_login(_: Request) -> Response:
    return pages.page("login.html", reason=None)


@router.at("/login/{token}", "GET")
@visits.errors_as_pages
async def show_link(request: Request, token: str) -> Response:
    holder = await logins.link_holder(request.app.state.db, token)
    if holder is None:
        return pages.page("link_refused.html", 401)
    return pages.page("link.html", token=token, holder=holder)


@router.at("/login/{token}", "POST")
@visits.errors_as_pages
async def use_link(request: Request, token: str) -> Response:
    return await _log_in(request, logins.log_in, token, "link_refused.html", "/")


@router.at("/enrol/{code}", "GET")
@visits.errors_as_pages
async def show_enrolment(request: Request, code: str) -> Response:
    enrolment = await logins.show_enrolment_code(request.app.state.db, code)
    if enrolment is None:
        return pages.page("enrol_refused.html", 401)
    return pages.page("enrol.html", code=code, enrolment=enrolment)


@router.at("/enrol/{code}", "POST")
@visits.errors_as_pages
async def redeem_enrolment(request: Request, code: str) -> Response:
    return await _log_in(request, logins.redeem_for_session, code, "enrol_refused.html", ACCESS)


async def _log_in(
    request: Request, redeem: Callable[[Database, str], Awaitable[str]], token: str, refusal_page: str, destination: str
) -> Response:
    """Replace the session of this browser by the one that the token is redeemed for."""
    db = request.app.state.db
    try:
        visits.require_same_origin(request)
        secret = await redeem(db, token)
        await logins.end_sessions(db, visits.session_cookie(request))
    except Unauthenticated as error:
        visits.count_rejection(request, error)
        return pages.page(refusal_page, 401)
    except Forbidden as error:
        visits.count_rejection(request, error)
        raise
    answer = pages.redirect(destination)
    visits.set_cookie(answer, request, secret)
    return answer


async def log_out(visit: visits.Visit) -> Response:
    await logins.log_out(visit.db, visit.actor)
    answer = pages.redirect("/login")
    visits.clear_cookie(answer, visit.request)
    return answer


router.add("/logout", visits.signed_in(log_out), "POST")


@router.at("/verify/{code}", "GET", "HEAD")
@visits.errors_as_pages
async def show_verification(request: Request, code: str) -> Response:
    return await _verification_page(request, code, await connections.read_verification(request.app.state.db, code))


@router.at("/verify/{code}", "POST")
@visits.errors_as_pages
async def confirm_verification(request: Request, code: str) -> Response:
    db = request.app.state.db
    try:
        visits.require_same_origin(request)
        fields = await visits.form_fields(request)
        verification = await connections.read_verification(db, code)
        if verification is None or not is_nonce(code, fields.get("nonce", ""), datetime.now(UTC)):
            return await _verification_page(request, code, verification, 403)
        secret = await connections.verify_address(db, code, await visits.person(request))
        if secret is not None:
            await logins.end_sessions(db, visits.session_cookie(request))
    except Unauthenticated:
        return pages.link_page("verify_refused.html", 401)
    except Forbidden as error:
        visits.count_rejection(request, error)
        raise
    answer = RedirectResponse("/", 303, pages.LINK_HEADERS)
    if secret is not None:
        visits.set_cookie(answer, request, secret)
    return answer


async def _verification_page(
    request: Request, code: str, verification: AddressVerification | None, status: int = 200
) -> Response:
    """The page with its button. 403: the button was pressed on a page that is too old, or on none."""
    if verification is None:
        return pages.link_page("verify_refused.html", 401)
    visitor = await visits.person(request) if verification.needs_login else None
    is_member = visitor is not None and visitor.user_account_id == verification.user_account_id
    return pages.link_page(
        "verify.html",
        status,
        asked=verification,
        code=code,
        ready=is_member or not verification.needs_login,
        stale=status != 200,
        nonce=nonce(code, datetime.now(UTC), new_mark()),
    )


async def show_access(
    visit: visits.Visit, status: int = 200, *, secret: str | None = None, error: CortexError | None = None
) -> Response:
    may_have_keys = visit.actor.may(Permission.KEY_OWN)
    sessions = await logins.list_own_sessions(visit.db, visit.actor, None, ACCESS_PAGE)
    own_keys = (await keys.list_own_keys(visit.db, visit.actor, None, ACCESS_PAGE)).items if may_have_keys else []
    answer = visit.page(
        "access.html", status, **await _access_of_others(visit), sessions=sessions.items, may_have_keys=may_have_keys,
        keys=[key for key in own_keys if key.revoked_at is None], secret=secret, error=error,
    )  # fmt: skip
    if secret is not None:
        answer.headers["Cache-Control"] = "no-store"
    return answer


async def _access_of_others(visit: visits.Visit) -> dict[str, Any]:
    """The sessions of the member whom an admin chose."""
    if not visit.actor.may(Permission.MEMBER_WRITE):
        return {"for_others": False}
    name = visit.request.query_params.get("member", "").strip()
    colleagues = await _colleagues(visit)
    member_id = await visits.find_member(visit, name) if name else None
    page = None
    if member_id is not None:
        page = await logins.list_member_sessions(visit.db, visit.actor, member_id, None, ACCESS_PAGE)
    return {
        **colleagues,
        "for_others": True,
        "member_id": member_id,
        "member_name": name,
        "theirs": page.items if page else [],
    }


async def _colleagues(visit: visits.Visit) -> dict[str, Any]:
    colleagues = await approvals.list_delegates(visit.db, visit.actor)
    return {"colleagues": colleagues, "too_many": len(colleagues) == AT_MOST}


async def end_session(visit: visits.Visit) -> Response:
    await logins.end_own_session(visit.db, visit.actor, _access_id(visit, "session_id", "browser_session"))
    return pages.redirect(ACCESS)


async def end_others(visit: visits.Visit) -> Response:
    """Every session of the visitor but this one."""
    await logins.end_own_sessions(visit.db, visit.actor)
    return pages.redirect(ACCESS)


async def end_session_of_member(visit: visits.Visit) -> Response:
    member_id = _access_id(visit, "member_id", "member")
    session_id = _access_id(visit, "session_id", "browser_session")
    await logins.end_member_session(visit.db, visit.actor, member_id, session_id)
    return pages.redirect(f"{ACCESS}?member={member_id}")


async def add_key(visit: visits.Visit) -> Response:
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
        return await show_access(visit, 422, error=wrong)
    except InvalidInput as error:
        return await show_access(visit, error.http_status, error=error)
    return await show_access(visit, 201, secret=new.secret)


async def revoke_key(visit: visits.Visit) -> Response:
    await keys.revoke_own_key(visit.db, visit.actor, _access_id(visit, "key_id", "key"))
    return pages.redirect(ACCESS)


def _access_id(visit: visits.Visit, name: str, noun: str) -> UUID:
    return visit.path_id(name, noun, "There is no such thing here.")


router.add(ACCESS, visits.signed_in(show_access), "GET")
router.add(f"{ACCESS}/sessions/end", visits.signed_in(end_others), "POST")
router.add(f"{ACCESS}/sessions/{{session_id}}/end", visits.signed_in(end_session), "POST")
router.add(
    f"{ACCESS}/members/{{member_id}}/sessions/{{session_id}}/end", visits.signed_in(end_session_of_member), "POST"
)
router.add(f"{ACCESS}/keys", visits.signed_in(add_key), "POST")
router.add(f"{ACCESS}/keys/{{key_id}}/revoke", visits.signed_in(revoke_key), "POST")


async def list_absences(visit: visits.Visit, status: int = 200, error: CortexError | None = None) -> Response:
    """The list, and the form with what was filled in."""
    absences = await orgs.list_absences(visit.db, visit.actor, visit.position("absences"), ABSENCES_PAGE)
    return visit.page(
        "absences.html",
        status,
        **await _colleagues(visit),
        absences=absences.items,
        next_cursor=encode_position("absences", absences.next),
        for_others=visit.actor.may(Permission.MEMBER_WRITE),
        today=datetime.now(UTC).date().isoformat(),
        error=error,
        draft={name: visit.form.get(name, "") for name in ABSENCE_FIELDS},
    )


async def add_absence(visit: visits.Visit) -> Response:
    form = visit.form
    try:
        fields = {
            "delegate_id": await visits.find_member(visit, form.get("to", "")),
            "member_id": await visits.find_member(visit, form["member"]) if form.get("member") else None,
            "starts_at": _first_moment(form.get("starts", ""), "starts"),
            "ends_at": _first_moment(form.get("ends", ""), "ends"),
            "reason": visit.text("reason"),
        }
        if fields["ends_at"] is None:
            raise InvalidInput("Say when you are back.", hint="Choose a day.", field="ends")
        await orgs.create_absence(visit.db, visit.actor, visits.parse_form(AbsenceDraft, fields, too_long=True))
    except (InvalidInput, Conflict, Forbidden, NotFound) as error:
        return await list_absences(visit, error.http_status, error)
    return pages.redirect("/absences")


def _first_moment(text: str, field: str) -> datetime | None:
    """The first moment of a day; None where none was chosen."""
    if not text:
        return None
    try:
        return datetime.combine(date.fromisoformat(text), time(), UTC)
    except ValueError:
        raise InvalidInput("That is no day.", hint="Write it as 2026-12-01.", field=field) from None


async def cancel_absence(visit: visits.Visit) -> Response:
    await orgs.cancel_absence(visit.db, visit.actor, visit.path_id("absence_id", "absence"))
    return pages.redirect("/absences")


router.add("/absences", visits.signed_in(list_absences), "GET")
router.add("/absences", visits.signed_in(add_absence), "POST")
router.add("/absences/{absence_id}/cancel", visits.signed_in(cancel_absence), "POST")

"""Who visits: the cookie, the person behind it, forms that come from our own pages, and what they name."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit
from uuid import UUID

import pydantic
from starlette.requests import Request
from starlette.responses import Response

from cortex_plane.approvals.verbs import approvals
from cortex_plane.dashboard import pages
from cortex_plane.db.database import Database
from cortex_plane.kernel.canonical import check_text
from cortex_plane.kernel.errors import CortexError, Forbidden, InvalidInput, NotFound, Unauthenticated
from cortex_plane.kernel.fields import parse
from cortex_plane.kernel.pages import Position, decode_position
from cortex_plane.kernel.routes import Endpoint
from cortex_plane.tenancy.model.access import WHOLE_LIFE, Actor, Permission, form_token, is_form_token
from cortex_plane.tenancy.verbs import logins

T = TypeVar("T")

COOKIE = "cortex_session"
TLS_COOKIE = "__Host-cortex_session"
"""With TLS. Browsers accept this name only with `Secure` and for this very host: no other host under the same domain can
replace the session."""
FORM_TOKEN = "form_token"  # noqa: S105 -- the name of a field
MAX_FIELDS = 50


@dataclass(frozen=True, slots=True)
class Visit:
    """A request of somebody who is logged in."""

    request: Request
    db: Database
    actor: Actor
    secret: str
    form: dict[str, str]

    def context(self) -> dict[str, Any]:
        """What every page shows of its visitor."""
        mail_folder = getattr(self.request.app.state, "mail_folder", None)
        return {
            "visitor": self.actor,
            "form_token": form_token(self.secret),
            "has_phone": self.has_phone,
            "path": self.request.url.path,
            "keeps_mail": mail_folder is not None and self.actor.may(Permission.MEMBER_WRITE),
        }

    @property
    def has_phone(self) -> bool:
        """Whether this plane has emulators of channels, and the visitor may use them."""
        phone = getattr(self.request.app.state, "phone", None)
        return phone is not None and phone.is_for(self.actor) and self.actor.may(Permission.IDENTITY_LINK)

    def path_id(self, name: str, noun: str, message: str | None = None) -> UUID:
        """The id in the address of the page; 404 where it is none."""
        return parse_id(self.request.path_params[name], noun, message)

    def position(self, kind: str) -> Position | None:
        """Where the page of a list begins, as its address says."""
        return decode_position(kind, self.request.query_params.get("cursor") or None)

    def text(self, field: str) -> str | None:
        """A field of the form with plain line breaks; None where it is empty."""
        return self.form.get(field, "").replace("\r\n", "\n").strip() or None

    def page(self, name: str, status: int = 200, **context: Any) -> Response:
        return pages.page(name, status, **self.context(), **context)

    def unchanged(self, seen: str) -> Response | None:
        """The answer where the page shows this state already."""
        return pages.unchanged() if self.request.query_params.get("seen") == seen else None

    def fragment(self, name: str, **context: Any) -> Response:
        """A part of a page that is polled: empty while nothing has changed."""
        return self.unchanged(context["seen"]) or self.page(name, **context)


Handler = Callable[[Visit], Awaitable[Response]]


def signed_in(handler: Handler, *, by_itself: bool = False) -> Endpoint:
    """A route for people who are logged in; others get the page that says how to log in. Requests that a page makes
    ``by_itself`` do not count as visits: an open tab must not keep its session alive."""

    @functools.wraps(handler)
    async def endpoint(request: Request, **_: str) -> Response:
        db: Database = request.app.state.db
        secret = session_cookie(request)
        try:
            actor = await logins.authenticate_session(db, secret, touch=not by_itself)
            await request.app.state.rates.take(db, actor, by_key=False)
            await request.app.state.in_flight.enter(request.scope["state"], actor.org_id)
        except Unauthenticated as error:
            return _session_ended(request, error, was_in=bool(secret))
        except CortexError as error:
            return pages.error_page(error)
        request.scope["state"]["actor"] = actor
        visit = Visit(request, db, actor, secret, {})
        try:
            if request.method == "POST":
                visit = Visit(request, db, actor, secret, await _read_form(request, secret))
            return await handler(visit)
        except CortexError as error:
            return pages.error_page(error, **visit.context())

    return endpoint


def view(template: str, read: Callable[[Visit], Awaitable[dict[str, Any]]], *, polled: bool = False) -> Endpoint:
    """A page for people who are logged in, with what ``read`` returns; or a part of one, which the page asks for by itself."""

    async def show(visit: Visit) -> Response:
        context = await read(visit)
        return visit.fragment(template, **context) if polled else visit.page(template, **context)

    return signed_in(show, by_itself=polled)


def errors_as_pages(endpoint: Endpoint) -> Endpoint:
    """A route for everybody."""

    @functools.wraps(endpoint)
    async def answer(request: Request, **values: str) -> Response:
        try:
            response: Response = await endpoint(request, **values)
        except CortexError as error:
            return pages.error_page(error)
        return response

    return answer


def _session_ended(request: Request, error: Unauthenticated, *, was_in: bool) -> Response:
    if request.headers.get("hx-request"):
        # A part of a page that outlived its session: the whole page asks for the login.
        return Response(status_code=204, headers={**pages.HEADERS, "HX-Refresh": "true"})
    answer = pages.page("login.html", 401, reason=error.message if was_in else None)
    if was_in:
        clear_cookie(answer, request)
    return answer


async def _read_form(request: Request, secret: str) -> dict[str, str]:
    """The fields of a form of ours."""
    fields = await form_fields(request)
    try:
        require_same_origin(request)
        if not is_form_token(secret, fields.pop(FORM_TOKEN, "")):
            raise _foreign_form()
    except Forbidden as error:
        count_rejection(request, error)
        raise
    return fields


def count_rejection(request: Request, error: CortexError) -> None:
    request.app.state.metrics.rejected_logins.add(1, {"reason": error.code})


async def form_fields(request: Request) -> dict[str, str]:
    try:
        text = (await request.body()).decode()
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS))
    except ValueError as error:
        raise InvalidInput("This form cannot be read.", hint="Go back, reload the page and try again.") from error


def require_same_origin(request: Request) -> None:
    """Browsers say which site a form comes from; it must be this one."""
    site = request.headers.get("sec-fetch-site")
    if site is not None and site != "same-origin":
        raise _foreign_form()
    origin = request.headers.get("origin")
    if origin is not None and site is None and _host(origin) != request.headers.get("host", ""):
        raise _foreign_form()


def _host(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def _foreign_form() -> Forbidden:
    return Forbidden(
        "This form was not sent from a page of this plane, so nothing was done.",
        code="foreign_form",
        hint="Reload the page and try again.",
    )


def session_cookie(request: Request) -> str:
    """The secret of the session; empty where there is none."""
    return request.cookies.get(_cookie_name(request), "")


async def person(request: Request) -> Actor | None:
    """The person who is logged in in this browser; this does not count as a visit."""
    with contextlib.suppress(Unauthenticated):
        return await logins.authenticate_session(request.app.state.db, session_cookie(request), touch=False)
    return None


def set_cookie(response: Response, request: Request, secret: str) -> None:
    response.set_cookie(
        _cookie_name(request),
        secret,
        max_age=int(WHOLE_LIFE.total_seconds()),
        path="/",
        httponly=True,
        samesite="lax",  # strict would log people out who come from a link in a chat or a mail
        secure=_is_tls(request),
    )


def clear_cookie(response: Response, request: Request) -> None:
    response.delete_cookie(_cookie_name(request), path="/", secure=_is_tls(request), httponly=True)


def _cookie_name(request: Request) -> str:
    return TLS_COOKIE if _is_tls(request) else COOKIE


def _is_tls(request: Request) -> bool:
    return request.url.scheme == "https"


def parse_id(text: str, noun: str, message: str | None = None) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        code = f"{noun.replace(' ', '_')}_not_found"
        raise NotFound(message or f"There is no such {noun}.", code=code) from None


def parse_form(kind: type[T], fields: dict[str, Any], *, too_long: bool = False) -> T:
    """A draft from the fields of a form. ``too_long``: the reason is all that can be wrong with it."""
    try:
        return parse(kind, fields)
    except pydantic.ValidationError as error:
        if too_long:
            raise InvalidInput("The reason is too long.", hint="Use at most 2000 characters.") from None
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "form"
        raise InvalidInput(f"`{where}`: {first['msg']}.", hint="Correct it and try again.", field=where) from None


def parse_filter(filters: Mapping[str, T], name: str) -> T:
    if name not in filters:
        raise InvalidInput("There is no such filter.", hint=f"Choose one of: {', '.join(filters)}.")
    return filters[name]


def parse_number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else None


async def find_member(visit: Visit, text: str) -> UUID:
    """The id of a colleague, whom a form names by id or by the whole name."""
    text = text.strip()
    with contextlib.suppress(ValueError):
        return UUID(text)
    name = check_text(text, "name")
    colleagues = await approvals.list_delegates(visit.db, visit.actor, name=name) if name else []
    if not colleagues:
        raise NotFound(
            "There is no active member of that name besides you.",
            code="delegate_unknown",
            hint="Choose somebody, or write the whole name.",
        )
    if len(colleagues) > 1:
        raise InvalidInput("Several members have that name.", hint="Write the id of the one you mean.", field="to")
    return colleagues[0].id

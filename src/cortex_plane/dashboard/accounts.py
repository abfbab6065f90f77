"""Accounts that visitors link by logging in at the vendor: the way there, the vendor's answer, and the confirmation.

The answer comes as a link from another site. It changes nothing but what this browser session began, and links nothing: that takes a
form of ours.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from uuid import UUID

from starlette.responses import Response

from cortex_plane.dashboard import pages
from cortex_plane.dashboard.channels import OWN_CHANNELS, served_channels
from cortex_plane.dashboard.visits import Visit, count_rejection, parse_id, signed_in
from cortex_plane.kernel.errors import CortexError, Forbidden
from cortex_plane.kernel.routes import PageRoutes
from cortex_plane.tenancy.verbs import account_links

router = PageRoutes()

ACCOUNTS = f"{OWN_CHANNELS}/accounts"
MAX_PARAMETER = 1000

Handler = Callable[[Visit, UUID], Awaitable[Response]]


def _explained(handler: Handler) -> Callable[[Visit], Awaitable[Response]]:
    """A page of one connection. What goes wrong is said with the way back to the visitor's channels."""

    async def respond(visit: Visit) -> Response:
        try:
            return await handler(visit, visit.path_id("connection_id", "connection"))
        except CortexError as error:
            if isinstance(error, Forbidden):
                count_rejection(visit.request, error)
            return pages.link_page(
                "account_refused.html", error.http_status, message=error.message, hint=error.hint, **visit.context()
            )

    return respond


async def begin(visit: Visit, connection_id: UUID) -> Response:
    """A page that goes on to the vendor by itself: browsers stop forms that are redirected to another site."""
    channels = served_channels(visit)
    page = await account_links.begin_account_link(visit.db, visit.actor, connection_id, channels=channels)
    return pages.link_page("account_leave.html", 200, vendor_page=page, **visit.context())


async def answer(visit: Visit, connection_id: UUID) -> Response:
    state, code, error = (
        visit.request.query_params.get(name, "")[:MAX_PARAMETER] for name in ("state", "code", "error")
    )
    channels = served_channels(visit)
    await account_links.answer_account_link(visit.db, visit.actor, connection_id, state, code, error, channels=channels)
    return pages.redirect(f"{ACCOUNTS}/{connection_id}")


async def show(visit: Visit, connection_id: UUID) -> Response:
    link = await account_links.show_account_link(visit.db, visit.actor, connection_id)
    return pages.link_page("account_confirm.html", 200, link=link, **visit.context())


async def confirm(visit: Visit, connection_id: UUID) -> Response:
    await account_links.confirm_account_link(visit.db, visit.actor, connection_id, _link_id(visit))
    return pages.redirect(OWN_CHANNELS)


async def refuse(visit: Visit, connection_id: UUID) -> Response:
    await account_links.refuse_account_link(visit.db, visit.actor, connection_id, _link_id(visit))
    return pages.redirect(OWN_CHANNELS)


def _link_id(visit: Visit) -> UUID:
    return parse_id(visit.form.get("link_id", ""), "account link")


router.add(f"{ACCOUNTS}/{{connection_id}}", signed_in(_explained(begin)), "POST")
router.add(f"{ACCOUNTS}/{{connection_id}}", signed_in(_explained(show)), "GET")
router.add(f"{ACCOUNTS}/{{connection_id}}/callback", signed_in(_explained(answer)), "GET")
router.add(f"{ACCOUNTS}/{{connection_id}}/confirm", signed_in(_explained(confirm)), "POST")
router.add(f"{ACCOUNTS}/{{connection_id}}/refuse", signed_in(_explained(refuse)), "POST")

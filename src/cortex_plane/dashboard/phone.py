"""A phone to try channels on, without an account at a vendor: the chats of the emulators that run beside this process.

Everything takes the way of a real channel: what is written here goes to an emulator, which posts it to the plane, and what the plane sends
stands in the emulator's chat. This page only shows chats, and acts as the person who is logged in.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from starlette.responses import Response

from cortex_plane.dashboard import pages
from cortex_plane.dashboard.inbox import AT_MOST_EVERY, HEARTBEAT_SECONDS, Stream, is_signed_in
from cortex_plane.dashboard.pages import fingerprint
from cortex_plane.dashboard.visits import Visit, signed_in
from cortex_plane.kernel.errors import InvalidInput, NotFound
from cortex_plane.kernel.routes import PageRoutes
from cortex_plane.tenancy.model.access import Actor

router = PageRoutes()

TRY = "/channels/try"
MAX_WORDS = 2000
"""Of one message; Telegram takes 4096 characters, Slack's form 3000."""
MESSAGES_SHOWN = 60
WAIT_SECONDS = 1.5
"""So long a browser without scripts waits for what its form leads to."""


class PhoneStyle(StrEnum):
    """What a piece of text looks like."""

    BOLD = "bold"
    ITALIC = "italic"
    STRIKE = "strike"
    CODE = "code"


@dataclass(frozen=True, kw_only=True, slots=True)
class PhoneText:
    """A piece of text with one look."""

    text: str
    styles: frozenset[PhoneStyle] = frozenset()
    url: str | None = None
    """Of a link: https or http."""


class PhoneBlockKind(StrEnum):
    TEXT = "text"
    CODE = "code"
    QUOTE = "quote"


@dataclass(frozen=True, kw_only=True, slots=True)
class PhoneBlock:
    texts: Sequence[PhoneText]
    kind: PhoneBlockKind = PhoneBlockKind.TEXT


@dataclass(frozen=True, kw_only=True, slots=True)
class PhoneButton:
    label: str
    data: str = ""
    """What a press sends; empty for a link."""
    url: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PhoneMessage:
    id: str
    is_mine: bool
    at: datetime
    blocks: Sequence[PhoneBlock]
    buttons: Sequence[Sequence[PhoneButton]] = ()
    """In rows."""
    quote: str = ""
    """The beginning of the message that it replies to."""
    note: str = ""
    """What the app says about it: edited, or visible to one person alone."""

    @property
    def has_choice(self) -> bool:
        return any(button.data for row in self.buttons for button in row)


@dataclass(frozen=True, kw_only=True, slots=True)
class PhoneQuestion:
    """Words that the app asks for: a form that lies over the chat, or a message to reply to."""

    id: str
    title: str
    text: str = ""
    label: str = ""
    is_form: bool = False
    is_optional: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class PhoneChat:
    """What an app shows now."""

    messages: Sequence[PhoneMessage] = ()
    question: PhoneQuestion | None = None
    notice: str = ""
    """What the app shows for a moment, after a press."""


class Phone(Protocol):
    """The emulators, as one person uses them. `main/phone.py` implements it."""

    @property
    def apps(self) -> Sequence[str]:
        """The channels that it has, such as `telegram`."""
        ...

    def is_for(self, actor: Actor) -> bool:
        """Whether this person may use it: it belongs to one org."""
        ...

    async def is_linked(self, actor: Actor) -> bool: ...

    async def link(self, actor: Actor) -> None:
        """Tie the chats to the caller, who is reached there from now on."""
        ...

    def chat(self, actor: Actor, app: str) -> PhoneChat: ...

    def write(self, actor: Actor, app: str, text: str, reply_to: str | None) -> None: ...

    def press(self, actor: Actor, app: str, message: str, data: str) -> None:
        """Raises ``Conflict`` where the button is gone."""
        ...

    def submit(self, actor: Actor, app: str, question: str, words: str | None) -> None:
        """Send a form, or close it (None). Raises ``Conflict`` where it is gone."""
        ...


APP_NAMES = {"telegram": "Telegram", "slack": "Slack"}


def _require_phone(visit: Visit) -> Phone:
    if not visit.has_phone:
        raise NotFound("This plane has no emulators: only `cortex up` runs them, for the org of its owner.")
    phone: Phone = visit.request.app.state.phone
    return phone


def _app(visit: Visit, phone: Phone) -> str:
    app = visit.request.path_params.get("app") or phone.apps[0]
    if app not in phone.apps:
        raise NotFound("There is no such app on this phone.")
    return str(app)


async def _context(visit: Visit) -> dict[str, Any]:
    phone = _require_phone(visit)
    app = _app(visit, phone)
    if not await phone.is_linked(visit.actor):
        return {"app": app, "app_names": APP_NAMES, "apps": list(phone.apps), "chat": None, "seen": "", "choices": {}}
    chats = {name: phone.chat(visit.actor, name) for name in phone.apps}
    choices = {name: sum(message.has_choice for message in chat.messages) for name, chat in chats.items()}
    return {
        "app": app, "app_names": APP_NAMES, "apps": list(phone.apps), "chat": chats[app], "choices": choices,
        "seen": fingerprint(chats[app], choices),
    }  # fmt: skip


async def show_phone(visit: Visit) -> Response:
    return visit.page("phone.html", **await _context(visit))


async def show_chat(visit: Visit) -> Response:
    return visit.fragment("phone_chat.html", **await _context(visit))


async def link_phone(visit: Visit) -> Response:
    await _require_phone(visit).link(visit.actor)
    return pages.redirect(TRY)


async def write_message(visit: Visit) -> Response:
    phone, words = await _linked_phone(visit), _words(visit)
    app = _app(visit, phone)
    if words is None:
        return await _answer(visit, phone, app, fingerprint())
    before = _state(visit, phone)
    phone.write(visit.actor, app, words, visit.form.get("reply_to") or None)
    return await _answer(visit, phone, app, before)


async def press_button(visit: Visit) -> Response:
    phone = await _linked_phone(visit)
    app, before = _app(visit, phone), _state(visit, phone)
    phone.press(visit.actor, app, visit.form.get("message", ""), visit.form.get("data", ""))
    return await _answer(visit, phone, app, before)


async def submit_form(visit: Visit) -> Response:
    phone = await _linked_phone(visit)
    app, before = _app(visit, phone), _state(visit, phone)
    words = None if visit.form.get("act") == "cancel" else _words(visit) or ""
    phone.submit(visit.actor, app, visit.form.get("question", ""), words)
    return await _answer(visit, phone, app, before)


async def _linked_phone(visit: Visit) -> Phone:
    phone = _require_phone(visit)
    if not await phone.is_linked(visit.actor):
        raise NotFound("These chats are not linked to you yet.", hint=f"Start at {TRY}.")
    return phone


def _words(visit: Visit) -> str | None:
    words = visit.text("text")
    if words is not None and len(words) > MAX_WORDS:
        raise InvalidInput(f"A message has at most {MAX_WORDS} characters here.", field="text")
    return words


def _state(visit: Visit, phone: Phone) -> str:
    return fingerprint([phone.chat(visit.actor, app) for app in phone.apps])


async def _answer(visit: Visit, phone: Phone, app: str, before: str) -> Response:
    """The chat as it is now, for a script; for a browser without scripts the page, once something has come of it."""
    if visit.request.headers.get("hx-request"):
        return visit.page("phone_chat.html", **await _context(visit))
    own = _state(visit, phone)
    deadline = time.monotonic() + WAIT_SECONDS
    while _state(visit, phone) in (before, own) and time.monotonic() < deadline:  # noqa: ASYNC110 -- emulators say nothing
        await asyncio.sleep(AT_MOST_EVERY / 5)
    return pages.redirect(f"{TRY}/{app}")


async def stream_changes(visit: Visit) -> Response:
    """A hint for every change of the visitor's chats. They are in the memory of this process, so looking costs next to nothing."""
    phone = await _linked_phone(visit)
    state = visit.request.app.state
    make: Stream = state.hint_stream
    stream = make(_changes(visit, phone), state.streams.open(visit.actor.identity, visit.actor.org_id))
    stream.headers.update(pages.HEADERS)
    return stream


async def _changes(visit: Visit, phone: Phone) -> AsyncGenerator[bytes, None]:
    yield b"retry: 1000\n\n"
    shown, due = _state(visit, phone), time.monotonic() + HEARTBEAT_SECONDS
    while not visit.request.app.state.feed.closed:
        await asyncio.sleep(AT_MOST_EVERY)
        if (state := _state(visit, phone)) != shown:
            shown = state
            yield b"event: changed\ndata: \n\n"
        if time.monotonic() >= due:
            if not await is_signed_in(visit):
                yield b"event: changed\ndata: \n\n"
                return
            due = time.monotonic() + HEARTBEAT_SECONDS
            yield b": ping\n\n"


router.add(TRY, signed_in(show_phone), "GET")
router.add(f"{TRY}/link", signed_in(link_phone), "POST")
router.add(f"{TRY}/changes", signed_in(stream_changes, by_itself=True), "GET")
router.add(TRY + "/{app}", signed_in(show_phone), "GET")
router.add(TRY + "/{app}/live", signed_in(show_chat, by_itself=True), "GET")
router.add(TRY + "/{app}/write", signed_in(write_message), "POST")
router.add(TRY + "/{app}/press", signed_in(press_button), "POST")
router.add(TRY + "/{app}/form", signed_in(submit_form), "POST")

"""Channels: what one can do, what a connection of it needs, and what people send through it.

A channel translates between these values and the wire format of its vendor. It decides nothing: who a sender is, whether they may act,
and what follows is the same for all channels (`notify/verbs/inbound.py`).
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

MAX_EVENT_BYTES = 256 * 1024
"""Of a request of a vendor."""


class ReasonInput(StrEnum):
    """How a channel asks for the reason of a denial, or for the words of a response."""

    FORM = "form"
    """A form that opens after the press. The press arrives with the words."""
    REPLY = "reply"
    """A message that asks for them. The words arrive as a reply to it."""
    NONE = "none"


def _no_seconds(_: str) -> float:
    return 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ChannelTraits:
    """What a channel can do."""

    most_buttons: int = 0
    """On one message; 0 where it has none."""
    edits: bool = False
    """A message that was sent can be changed."""
    threads: bool = False
    """Later messages stand under the first one."""
    conversations: bool = False
    """People can write to agents over it."""
    reason: ReasonInput = ReasonInput.NONE
    text_limit: int = 4000
    """Characters of one message."""
    per_second: float = 30.0
    """Messages a second over one connection."""
    chat_seconds: float = 0.0
    """Between two messages to one chat."""
    stream_seconds: float | None = None
    """Between two edits of an answer that its agent is still writing; None where an answer is sent once it is whole."""
    streams_per_second: float = 10.0
    """Such edits a second over one connection: the more chats share them, the slower each is."""
    stream_chat_seconds: Callable[[str], float] = _no_seconds
    """Of the address of a chat: between two such edits there, which the answers in that chat share."""
    listens: bool = False
    """It can fetch what people send, by polls or a socket, without a public address of the plane."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConnectionField:
    """One value that a connection of a channel needs."""

    name: str
    description: str
    """Where a person finds it at the vendor."""
    secret: bool = False
    """It is stored encrypted and never shown."""
    required: bool = True
    pattern: str | None = None
    """A regular expression that the whole value matches."""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ConnectionIdentity:
    """Who a connection is, as its vendor says."""

    account: str
    """The bot, app or phone number, as people see it there: `@cortex_bot`."""
    external_id: str
    """The vendor's own id of it."""
    config: Mapping[str, str] = field(default_factory=dict)
    """What the vendor told, and later messages need."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """What was made during the set-up, such as the secret of a webhook."""
    to_do: tuple[str, ...] = ()
    """What a person must still do at the vendor, in order."""
    is_unfinished: bool = False
    """The rest needs a connection that is stored, because the vendor calls it at once: identify it again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AccountRequest:
    """What a browser takes to a vendor, where somebody logs in to show which account is theirs."""

    state: str = field(repr=False)
    """The vendor hands it back with its answer."""
    verifier: str = field(repr=False)
    """Goes to the vendor with the code, and its digest with the browser (PKCE): a code that somebody else began is worth nothing."""
    callback_url: str

    @property
    def challenge(self) -> str:
        return base64.urlsafe_b64encode(hashlib.sha256(self.verifier.encode()).digest()).rstrip(b"=").decode()


@dataclass(frozen=True, kw_only=True, slots=True)
class VendorAccount:
    """The account with which somebody logged in at a vendor."""

    id: str
    """As in ``ChannelSender``."""
    login: str
    """The name that people see there."""
    is_bot: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class InboundRequest:
    """A request of a vendor to the address of a connection, before anything of it is believed."""

    method: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes
    received_at: datetime
    """The database's time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InboundReply:
    """The answer to a request of a vendor."""

    status: int = 200
    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"


@dataclass(frozen=True, kw_only=True, slots=True)
class InboundItem:
    """One event of a vendor, as it is stored and read later. The same id again changes nothing."""

    event_id: str
    """At most 200 characters, unique within its connection."""
    payload: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReceivedRequest:
    """What a request says once its signature is known to be good."""

    reply: InboundReply = InboundReply()
    items: tuple[InboundItem, ...] = ()


Deliver = Callable[[Sequence[InboundItem], str | None], Awaitable[None]]
"""Stores items, with the cursor after them, in one transaction. What listens acknowledges to the vendor only after it returns."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChannelSender:
    """Who did something, as the vendor vouches."""

    id: str
    """The vendor's id of the person, never of a group or a chat: `channel_user_id` of their mapping."""
    name: str
    is_bot: bool = False
    owner: str | None = None
    """The vendor's id of the person, where ``id`` may pass to somebody else, as a phone number does."""
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Chat:
    """Where something was said, and where its answer goes."""

    id: str
    is_private: bool
    """Nobody but this person reads it."""
    thread: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class InboundEvent:
    """Something that a person did on a channel."""

    sender: ChannelSender
    chat: Chat
    answer_to: Mapping[str, str] = field(default_factory=dict)
    """What the vendor needs to answer exactly this, such as the token of an interaction. It is short-lived."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ButtonPress(InboundEvent):
    data: str
    """The ``data`` of the button, or of a ``TypedButton``."""
    message_ref: str | None = None
    """The message that it stands on."""
    note: str | None = None
    """The words from a form; empty where it was left empty, None where no form was shown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatMessage(InboundEvent):
    """Words for the agent, a command such as `/new`, or a reply."""

    text: str
    reply_to: str | None = None
    """The ``message_ref`` of the message that this one replies to."""
    attachments: tuple[str, ...] = ()
    """The names of what came along."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldDeployment(InboundEvent):
    """The vendor holds a deployment until the plane says whether it may go on. ``sender`` started it; the verdict goes to ``chat``."""

    tool: str
    arguments: Mapping[str, Any]
    """With `environment`, by which the vendor knows it again, and `private`: whether strangers cannot read what is said there."""
    key: str
    """One for each time that the vendor holds it; the same again is the same request."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EndedDeployment(InboundEvent):
    """The vendor says that it does not hold a deployment any more, or never did."""

    deployment: HeldDeployment
    """As it would have been asked about."""
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DecidedCall:
    """The plane's own event: the request about the call of a held deployment is over."""

    call_id: UUID

    @classmethod
    def of(cls, payload: Mapping[str, Any]) -> DecidedCall | None:
        """None where a stored item is the vendor's."""
        return cls(call_id=UUID(payload["decided"])) if "decided" in payload else None


@dataclass(frozen=True, kw_only=True, slots=True)
class DeliveryReport:
    """The vendor says that a message which it had accepted did not arrive."""

    message_ref: str
    problem: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ConnectionRevoked:
    """The vendor took the connection away: the app was removed, its token revoked."""

    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class InboundAnswer:
    """What the person who did something is shown, where possible to nobody else."""

    text: str
    ask_for: str | None = None
    """The ``data`` of the button whose words are needed: a form, or a message to reply to."""
    is_problem: bool = False
    """Shown so that it is noticed."""


class ButtonAction(StrEnum):
    """What a button does; its value is part of the button's data."""

    APPROVE = "a"
    DENY = "d"
    RESPOND = "r"
    MORE = "m"
    """Asks for all of a request, on a channel whose messages are short. It decides nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Button:
    """A button of a card. Its data names a notification and the version of the request that its message showed; it gives no right."""

    action: ButtonAction
    notification_id: UUID
    version: int

    @property
    def label(self) -> str:
        return self.action.name.capitalize()

    @property
    def data(self) -> str:
        """At most 40 characters of ASCII: `c1:a:` + 22 characters + `:version`."""
        id = base64.urlsafe_b64encode(self.notification_id.bytes).decode().rstrip("=")
        return f"c1:{self.action}:{id}:{self.version}"

    @property
    def short_id(self) -> str:
        """For channels where people type it: eight characters, and the version after the first one, `k7q2m5xa-2`. It means something
        only in the shared place where the notification stands."""
        code = base64.b32encode(self.notification_id.bytes[-5:]).decode().lower()
        return code if self.version == 1 else f"{code}-{self.version}"


@dataclass(frozen=True, kw_only=True, slots=True)
class TypedButton:
    """A button that somebody typed as a command in a shared place. `notify/verbs/places.py` finds the one that it stands for."""

    action: ButtonAction
    short_id: str

    @property
    def data(self) -> str:
        return f"s1:{self.action}:{self.short_id}"


_TYPED_BUTTON = re.compile(r"s1:([adr]):([a-z2-7]{8}(?:-[1-9][0-9]{0,6})?)")


def read_typed_button(data: str) -> TypedButton | None:
    """None for what is no command."""
    match = _TYPED_BUTTON.fullmatch(data)
    return None if match is None else TypedButton(action=ButtonAction(match[1]), short_id=match[2])


_BUTTON = re.compile(r"c1:([adrm]):([A-Za-z0-9_-]{22}):([1-9][0-9]{0,6})")


def read_button(data: str) -> Button | None:
    """None for what is no button of ours."""
    match = _BUTTON.fullmatch(data)
    if match is None:
        return None
    id = UUID(bytes=base64.urlsafe_b64decode(match[2] + "=="))
    return Button(action=ButtonAction(match[1]), notification_id=id, version=int(match[3]))

"""What decides from outside the dashboard: tokens and signed links. They name a person; authority is the person's.

A token is `cortex_apr_`, a version, `_` and 43 base64url characters, which contain `_` and `-` themselves: it is matched
from the left and never split. A link carries spec 4's signature over `approval|decision|deadline|operator`.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated, Any
from urllib.parse import urlencode
from uuid import UUID

from pydantic import Field
from pydantic.dataclasses import dataclass as draft

from cortex_plane.approvals.model.approvals import Channel, Choice
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import Forbidden, Unauthenticated
from cortex_plane.kernel.fields import DRAFT, JsonValue, Note, Text
from cortex_plane.policies.model.policies import Template
from cortex_plane.tenancy.model.access import Actor

TOKEN_PREFIX = "cortex_apr_"  # noqa: S105 -- what every token begins with
TOKEN_VERSION = "1"  # noqa: S105
TOKEN_CHARACTERS = 43
"""32 random bytes in base64url, without padding."""
_VERSIONED = re.compile(r"([0-9]{1,9})_(.*)", re.DOTALL)
_RANDOM = re.compile(r"[A-Za-z0-9_-]*")

ROTATE_AFTER = timedelta(days=90)
GRACE = timedelta(days=8)
"""How long a retired secret is accepted: longer than the longest deadline, so that every link lives to its own."""
SKEW = timedelta(minutes=5)
NONCE_LIFE = timedelta(minutes=30)
KEEP_TOKENS = timedelta(days=30)
"""After its deadline a token still tells what happened; after this long it is forgotten."""

LINK_CHANNELS = frozenset(Channel) - {Channel.DASHBOARD, Channel.API}
"""The doors that a link may say it came through."""
ASKS_FOR_LOGIN = frozenset({Template.FULL_PIPELINE, Template.CRITICAL_PATH})
"""High-risk templates: for these, what was sent in a message is not enough to decide."""

_LINK_PATH = "/api/v1/approvals/callback"
_NUMBER = re.compile(r"[1-9][0-9]{0,11}")
_SIGNATURE = re.compile(r"[a-f0-9]{64}")


@draft(config=DRAFT, frozen=True, kw_only=True)
class TokenDecision:
    """A decision by whoever the token was sent to, about exactly what their message showed."""

    token: Annotated[Text, Field(max_length=500)]
    """The token from the message."""
    decision: Choice
    reason: Note | None = None
    answer: JsonValue = None
    """With `responded`: what the agent gets as the result of its call."""


@draft(config=DRAFT, frozen=True, kw_only=True)
class TokenAnswer:
    """The same where the path says what is decided."""

    token: Annotated[Text, Field(max_length=500)]
    reason: Note | None = None

    def deciding(self, choice: Choice) -> TokenDecision:
        return TokenDecision(token=self.token, decision=choice, reason=self.reason)


@draft(config=DRAFT, frozen=True, kw_only=True)
class SecretRotationDraft:
    forget: bool = False
    """Accept the old secrets no longer: links that were sent stop working at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SecretRotation:
    """A new secret signs links from now on."""

    rotated_at: datetime
    """When the secret was replaced."""
    accepted_until: datetime
    """Until then links that the old secret signed still work, if their own deadline allows it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Token:
    """A token as the plane keeps it: without the token."""

    id: UUID
    approval_id: UUID
    member_id: UUID
    version: int
    input_hash: str
    template: Template
    expires_at: datetime
    used_at: datetime | None
    vote: Choice | None
    """How its person voted on the version that it was made for, where they did."""
    unused_channel: str | None
    """The channel over which it was sent, if the org no longer uses it for approvals."""
    now: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class SigningSecret:
    id: UUID
    value: bytes = field(repr=False)


def digest(token: str) -> bytes:
    """What is stored of a token. It is 256 random bits, so no salt is needed. Raises where the text is no token."""
    if not token.startswith(TOKEN_PREFIX):
        raise Unauthenticated(
            "This is not an approval token.",
            code="not_a_token",
            hint=f"A token begins with `{TOKEN_PREFIX}{TOKEN_VERSION}_`; copy it whole from the message.",
        )
    match = _VERSIONED.fullmatch(token.removeprefix(TOKEN_PREFIX))
    if match is not None and match[1] != TOKEN_VERSION:
        raise Unauthenticated(
            f"This plane does not know tokens of version {match[1]}.",
            code="token_version",
            hint=f"It takes version {TOKEN_VERSION}. Decide in the dashboard, or ask for a newer plane.",
        )
    random = match[2] if match is not None else ""
    if len(random) != TOKEN_CHARACTERS or _RANDOM.fullmatch(random) is None:
        raise Unauthenticated(
            "This token is damaged: it is cut off, too long, or has a character that no token has.",
            code="token_malformed",
            hint=f"After `{TOKEN_PREFIX}{TOKEN_VERSION}_` come exactly {TOKEN_CHARACTERS} characters; copy it whole.",
        )
    return hashlib.sha256(token.encode()).digest()


def unknown_token() -> Unauthenticated:
    """The same for whatever was never a token of this plane."""
    return Unauthenticated(
        "There is no such token.",
        code="token_unknown",
        hint="Copy it whole from the newest message about this request, or decide in the dashboard.",
    )


def nobody() -> Forbidden:
    return Forbidden(
        "Whoever this was sent to is not an active member any more, or was deactivated since, so nothing was decided.",
        code="member_deactivated",
        hint="Log in to the dashboard where you are a member again, or ask somebody else who may decide.",
    )


def login_required(what: str = "what was sent in a message") -> Forbidden:
    return Forbidden(
        f"This request is of high risk: {what} is not enough to decide it.",
        code="login_required",
        hint="Log in to the dashboard as the person it was sent to, or use your key: `cortex approval approve ID`.",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """What a link says, signed by nobody yet."""

    approval_id: UUID
    decision: Choice
    deadline: int
    """In seconds since 1970."""
    operator_id: UUID
    """The member whom it was sent to."""

    def signature(self, secret: bytes) -> str:
        text = f"{self.approval_id}|{self.decision}|{self.deadline}|{self.operator_id}"
        return hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()

    def address(self, public_url: str, channel: str, secret: bytes) -> str:
        query = {"t": self.deadline, "d": self.decision.value, "o": self.operator_id, "sig": self.signature(secret)}
        return f"{public_url.rstrip('/')}{_LINK_PATH}/{channel}/{self.approval_id}?{urlencode(query)}"

    def is_signed_by(self, secret: bytes, signature: str) -> bool:
        return hmac.compare_digest(self.signature(secret), signature)

    def key(self, channel: str, version: int, answer: Any = None) -> str:
        """Spec 4's idempotency key, for one of several voters, and for what they saw: after an edit they vote again."""
        own = () if answer is None else (canonical(answer).decode(),)
        parts = (self.approval_id, channel, self.decision, self.deadline, self.operator_id, version, *own)
        return "link:" + hashlib.sha256("|".join(map(str, parts)).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class SignedLink:
    """A link as somebody came with it; whether its signature is right is not known yet."""

    link: Link
    channel: Channel
    signature: str


def read_link(channel: str, approval_id: str, query: Iterable[tuple[str, str]]) -> SignedLink | None:
    """None where it cannot be a link of ours. Each value has one spelling only, and stands there once. What others
    append to an address, as mail filters do, is not ours and says nothing."""
    parameters: dict[str, str] = {}
    for name, value in query:
        if name in ("t", "d", "o", "sig"):
            if name in parameters:
                return None
            parameters[name] = value
    operator, approval = _uuid(parameters.get("o", "")), _uuid(approval_id)
    if (
        approval is None
        or operator is None
        or channel not in LINK_CHANNELS
        or parameters.get("d") not in set(Choice)
        or _NUMBER.fullmatch(parameters.get("t", "")) is None
        or _SIGNATURE.fullmatch(parameters.get("sig", "")) is None
    ):
        return None
    link = Link(
        approval_id=approval, decision=Choice(parameters["d"]), deadline=int(parameters["t"]), operator_id=operator
    )
    return SignedLink(link=link, channel=Channel(channel), signature=parameters["sig"])


def _uuid(text: str) -> UUID | None:
    try:
        id = UUID(text)
    except ValueError:
        return None
    return id if str(id) == text else None


def channel_label(channel: str) -> str:
    """For a label of a metric: whoever forges a link must not make up labels too."""
    return channel if channel in LINK_CHANNELS else "unknown"


def fits(link: Link, deadline: datetime | None) -> bool:
    """Whether the link was made for the request as it is: its deadline never moves."""
    return deadline is not None and abs(deadline.timestamp() - link.deadline) <= SKEW.total_seconds()


def is_over(link: Link, now: datetime) -> bool:
    return now.timestamp() > link.deadline + SKEW.total_seconds()


@dataclass(frozen=True, kw_only=True, slots=True)
class Confirmation:
    """What the form of one rendered page carries back: what its reader saw, and that the plane showed it to them."""

    version: int
    input_hash: str
    issued: int
    """In seconds since 1970."""

    def nonce(self, secret: bytes, link: Link) -> str:
        # No link's text begins with this word, so neither signature can stand for the other.
        parts = ("confirm", link.approval_id, link.operator_id, link.decision, link.deadline)
        text = "|".join(map(str, (*parts, self.version, self.input_hash, self.issued)))
        return hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()

    def was_shown(self, secrets: Iterable[SigningSecret], link: Link, nonce: str) -> bool:
        fitting = [hmac.compare_digest(self.nonce(each.value, link), nonce) for each in secrets]
        return any(fitting)

    def is_fresh(self, now: datetime) -> bool:
        return -SKEW.total_seconds() <= now.timestamp() - self.issued <= NONCE_LIFE.total_seconds()


def read_confirmation(form: Mapping[str, str]) -> tuple[Confirmation, str] | None:
    """What a form says that it was shown, with its nonce; None where it carries no such thing."""
    version, issued, input_hash = (form.get(name, "") for name in ("version", "issued", "input_hash"))
    nonce = form.get("nonce", "")
    numbers = all(_NUMBER.fullmatch(text) for text in (version, issued))
    if not numbers or len(version) > 6 or not all(_SIGNATURE.fullmatch(text) for text in (input_hash, nonce)):
        return None
    return Confirmation(version=int(version), input_hash=input_hash, issued=int(issued)), nonce


@dataclass(frozen=True, kw_only=True, slots=True)
class Visitor:
    """Whoever came with a good link: the person it was sent to."""

    link: Link
    channel: Channel
    actor: Actor
    template: Template
    now: datetime
    over: bool
    """Its time is past: it shows what became of the request, and decides nothing."""
    logged_in: bool
    """Their own browser session is there too: without it they see no more than their message may show."""
    secrets: tuple[SigningSecret, ...] = field(repr=False)
    """The current one first."""

    def confirmation(self, version: int, input_hash: str) -> tuple[Confirmation, str]:
        draft = Confirmation(version=version, input_hash=input_hash, issued=int(self.now.timestamp()))
        return draft, draft.nonce(self.secrets[0].value, self.link)

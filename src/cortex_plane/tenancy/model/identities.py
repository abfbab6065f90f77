"""Channel connections, the people behind their senders, and what was delivered to them."""

from __future__ import annotations

import hashlib
import hmac
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

import idna
from pydantic import AfterValidator, Field, StrictBool, StringConstraints
from pydantic.dataclasses import dataclass as draft
from pydantic_core import PydanticCustomError

from cortex_plane.kernel.addresses import MAX_URL, Allowed, check_url, url_fault
from cortex_plane.kernel.errors import Conflict, InvalidInput
from cortex_plane.kernel.fields import DRAFT, ChannelType, Clearance, ExternalId, Name, Note, Ref, Text
from cortex_plane.tenancy.model.orgs import Member, Roles


def _address(value: str) -> str:
    fault = url_fault(value)
    if fault is not None:
        raise PydanticCustomError("url", "{fault}", {"fault": fault})
    return value


Url = Annotated[str, StringConstraints(min_length=1, max_length=MAX_URL), AfterValidator(_address)]


class ConnectionState(StrEnum):
    """Whether messages get through over a connection."""

    OK = "ok"
    FAILING = "failing"
    """The last messages did not arrive."""
    PAUSED = "paused"
    """Its vendor asked for a pause, or answers nobody: nothing is sent until `paused_until`."""
    DISABLED = "disabled"
    NOT_SERVED = "not_served"
    """This plane has no channel for it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConnectionHealth:
    """How a connection does."""

    last_inbound_at: datetime | None = None
    """When something last came in over it, to the minute."""
    last_outbound_at: datetime | None = None
    """When something was last delivered over it, to the minute."""
    waiting: int = 0
    """How many messages wait to be sent."""
    uncertain: int = 0
    """How many of them may have been sent already: nobody knows what became of the last try."""
    given_up: int = 0
    """How many messages of the last week were given up."""
    last_error: str | None = None
    """Why the newest message that has not arrived did not, or why the plane cannot fetch what people send."""
    paused_until: datetime | None = None
    """Nothing is sent over it until then."""
    pause_reason: str | None = None
    """Why nothing is sent until then."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedField:
    """A value that a connection of a channel needs."""

    name: str
    description: str
    """Where its vendor shows it."""
    secret: bool
    """It is stored encrypted and never shown."""
    required: bool
    """A connection cannot do without it."""
    pattern: str | None
    """A regular expression that the whole value matches."""
    choices: list[str]
    """The values that it may have; empty for any."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedChannel:
    """A channel that this plane serves."""

    channel_type: str
    fields: list[ServedField] = field(default_factory=list)
    """What a connection of it needs."""
    buttons: bool = False
    """People decide by pressing buttons of its messages."""
    conversations: bool = False
    """People write to agents over it."""
    listens: bool = False
    """It can work without a public address of the plane."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Connection:
    id: UUID
    channel_type: str
    name: str
    url: str | None = None
    """Where the messages of a webhook go."""
    config: dict[str, Any] = field(default_factory=dict)
    """The values that it needs and that are no secrets."""
    agent_id: UUID | None = None
    """The agent that messages reach where nobody chose another."""
    account: str | None = None
    """The bot, app or number, as its vendor names it."""
    state: ConnectionState = ConnectionState.OK
    """Whether messages get through over it."""
    inbound_url: str | None = None
    """Where its vendor posts what people do there."""
    callback_url: str | None = None
    """Where its vendor sends people back who link their account: the callback or redirect URL of the application there."""
    to_do: list[str] = field(default_factory=list)
    """What a person still has to do, in order."""
    checked_at: datetime | None = None
    """When its vendor last said that it works."""
    health: ConnectionHealth = field(default_factory=ConnectionHealth)
    """How messages get through."""
    failing_since: datetime | None = None
    """Nothing has arrived since then."""
    disabled_at: datetime | None
    disabled_reason: str | None = None
    """Why the plane disabled it by itself."""
    revision: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class NewConnection(Connection):
    """A connection, and once the secret with which its messages are signed."""

    secret: str | None = None
    """The secret that signs its messages; shown once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NewSecret:
    """A secret that has taken the place of another, which counts for a while longer."""

    connection_id: UUID
    secret: str
    """The new secret; shown once."""
    previous_valid_until: datetime
    """Until when the secret before it counts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mapping:
    """One person on one connection. It is always a person, never a group."""

    id: UUID
    connection_id: UUID
    user_account_id: UUID
    channel_type: str
    channel_user_id: str
    """The name or number by which the channel knows the person."""
    metadata: dict[str, Any]
    verified_at: datetime | None
    """When the person proved that it is theirs; null before."""
    last_used_at: datetime | None = None
    """When something last came from it, to the hour."""
    vouched: bool = False
    """An admin said that it is this person's; they have not proven it themselves."""
    created_at: datetime


FieldName = Annotated[str, StringConstraints(min_length=1, max_length=50, pattern=r"^[a-z][a-z0-9_]*$")]
FieldValue = Annotated[Text, Field(max_length=4096)]
FieldValues = Annotated[dict[FieldName, FieldValue], Field(max_length=20)]


@draft(config=DRAFT, frozen=True, kw_only=True)
class ConnectionDraft:
    channel_type: ChannelType
    name: Name
    url: Url | None = None
    """Where to post the messages of a webhook."""
    config: FieldValues = Field(default_factory=dict)
    """The values that a connection of this channel needs, by name."""
    secrets: FieldValues = Field(default_factory=dict, repr=False)
    """Those of them that are stored encrypted and never shown."""
    agent: Ref | None = None
    """The agent that messages reach where nobody chose another."""


@draft(config=DRAFT, frozen=True, kw_only=True)
class ConnectionChange:
    name: Name | None = None
    url: Url | None = None
    """Where to post the messages of a webhook."""
    enabled: StrictBool | None = None
    """True lets it send again, false disables it."""
    config: Annotated[dict[FieldName, FieldValue | None], Field(max_length=20)] | None = None
    """Values to replace, or null to remove one; the others stay."""
    secrets: FieldValues | None = Field(default=None, repr=False)
    """Secrets to replace; the others stay."""
    agent: Ref | None = None
    """The agent that messages reach where nobody chose another."""


@draft(config=DRAFT, frozen=True, kw_only=True)
class MappingDraft:
    """A person of the org, and the name that the other system has for them."""

    member_id: UUID
    external_user: ExternalId


def check_address(channel_type: str, url: str | None, allowed: Allowed) -> None:
    """A webhook has an address that messages may be sent to; nothing else has one."""
    if channel_type != CHANNEL and url is not None:
        raise InvalidInput(
            f"A connection of the type {channel_type} has no address.", hint="Leave `url` out.", field="url"
        )
    if channel_type == CHANNEL:
        if url is None:
            raise InvalidInput(
                "A webhook needs an address.", hint="Send `url`: https://hooks.example.com/cortex.", field="url"
            )
        check_url(url, allowed)


def is_numeric_id(external_user: str) -> bool:
    return re.fullmatch(r"[1-9][0-9]{0,19}", external_user) is not None


CHANNEL = "webhook"
"""The type of the connections that speak it."""
VOUCHED_CHANNELS = (CHANNEL, "github", "gitlab")
"""Where an admin may say who somebody is. On GitHub and GitLab nobody can be written to in private, so nobody can prove it by a code:
they log in there instead. `vouched_channels` lists them in SQL."""
KNOWN_CHANNELS = ("email", "webhook", "telegram", "slack", "discord", "whatsapp", "github", "gitlab")
"""The channels that carry approvals, as `deliverable_channels` lists them in SQL."""


VERIFY_LIFE = timedelta(days=7)
LINK_LIFE = timedelta(minutes=10)
NONCE_LIFE = timedelta(hours=1)
"""How long after a page was shown its button works."""
MAX_WRONG = 5
"""So many wrong codes a sender may type,"""
WRONG_LIFE = timedelta(minutes=10)
"""in so much time."""
MAX_CHANNELS = 20
"""What one person may have, proven or not: whoever claims addresses has mails sent to them."""
MAIL_PAUSE = timedelta(minutes=1)
"""A mail that just went out is not sent again."""
MAILS_AN_HOUR = 20
"""So many links one person has mailed to addresses that they call their own: others read that mail."""
INVITATIONS_AN_HOUR = 200
"""So many an admin sends."""

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
"""Without I, L, O and U: nobody mistakes one for another, and no word comes out."""
CODE_LENGTH = 10
_LOOKALIKES = str.maketrans("ILO", "110")
_SEPARATORS = re.compile(r"[\s\-\u2010-\u2015]")

MAX_ADDRESS = 254
MAX_LOCAL = 64
_ATOM = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~\u0080-\U0010ffff-]+")
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def normal_address(address: str) -> str:
    """The one spelling of a mail address that is kept and compared. Raises ``ValueError`` with what is wrong with it."""
    local, at, domain = address.strip(" ").rpartition("@")
    if not at or not local or not domain:
        raise ValueError("is not a mail address: it needs a name, an @ and a domain")
    normal = f"{_local(local)}@{_domain(domain)}"
    if len(normal.encode()) > MAX_ADDRESS:
        raise ValueError(f"is longer than {MAX_ADDRESS} bytes")
    return normal


def _local(local: str) -> str:
    if unicodedata.normalize("NFKC", local) != local:
        raise ValueError("has letters before the @ that are written in an unusual way; type them plainly")
    if not local.isprintable() or not all(_ATOM.fullmatch(atom) for atom in local.split(".")):
        raise ValueError("has characters before the @ that an address cannot have")
    if len(local.encode()) > MAX_LOCAL:
        raise ValueError(f"has more than {MAX_LOCAL} bytes before the @")
    # No provider tells Bea@ from bea@, and people type both.
    return local.lower()


def _domain(domain: str) -> str:
    try:
        ascii_domain = idna.encode(domain, uts46=True).decode() if not domain.isascii() else domain.lower()
    except idna.IDNAError:
        raise ValueError("has a domain that does not exist in this spelling") from None
    labels = ascii_domain.split(".")
    if not all(_LABEL.fullmatch(label) for label in labels) or labels[-1].isdigit():
        raise ValueError("has a domain that does not exist in this spelling")
    return ascii_domain


def _email(address: str) -> str:
    try:
        return normal_address(address)
    except ValueError as error:
        raise PydanticCustomError("email", "{reason}", {"reason": str(error)}) from None


Email = Annotated[str, StringConstraints(min_length=3, max_length=320), AfterValidator(_email)]


@draft(config=DRAFT, frozen=True, kw_only=True)
class InvitationDraft:
    """A person who is to join. Sent again for an address that was not confirmed yet, it sends the mail again."""

    email: Email
    display_name: Name | None = None
    clearance: Clearance | None = None
    roles: Roles | None = None
    teams: Annotated[list[Ref], Field(max_length=50)] | None = None

    def differs(self, member: Member, team_ids: Sequence[UUID] | None) -> bool:
        """Whether it asks for something else than what the invited member is already."""
        return (
            self.display_name not in (None, member.display_name)
            or self.clearance not in (None, member.clearance)
            or self.roles not in (None, member.roles)
            or (team_ids is not None and set(team_ids) != set(member.team_ids))
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Invited:
    member: Member
    """The member who was invited."""
    mapping: Mapping
    """Their address: verified when they have confirmed it."""
    again: bool
    """They were invited before: only the mail was sent again."""


@draft(config=DRAFT, frozen=True, kw_only=True)
class AddressDraft:
    """An address of one's own."""

    email: Email


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkCode:
    """Typed on another channel within ten minutes, it makes whoever types it the member. It works once."""

    code: str
    expires_at: datetime


@draft(config=DRAFT, frozen=True, kw_only=True)
class LinkDraft:
    """A code that somebody typed on a channel."""

    code: Annotated[Note, Field(min_length=1, max_length=100)]
    external_user_id: ExternalId


@draft(config=DRAFT, frozen=True, kw_only=True)
class ClaimDraft(LinkDraft):
    """A code that somebody typed in a private chat, with the name that the channel shows for them."""

    display_name: Name
    owner: ExternalId | None = None
    """Who is behind the sender's id, where it may pass to somebody else."""

    @property
    def metadata(self) -> dict[str, str]:
        return {"name": self.display_name} | ({"owner": self.owner} if self.owner else {})


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkClaim:
    """Somebody on a channel had a member's code: the member says whether it was them."""

    id: UUID
    """Of the mapping that their confirmation verifies."""
    connection_id: UUID
    connection: str
    """The name of the connection."""
    channel_type: str
    channel_user_id: str
    """The name or number by which the channel knows them."""
    name: str
    """The name that the channel shows for them."""
    asked_at: datetime
    """When they typed the code."""
    expires_at: datetime
    """Until when it can be confirmed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AccountLink:
    """A member logs in at a vendor to link their account there, in one browser session."""

    id: UUID
    connection_id: UUID
    connection: str
    """The name of the connection."""
    channel_type: str
    user_account_id: UUID
    session_id: UUID
    state_hash: bytes = field(repr=False)
    answered_at: datetime | None
    account_id: str | None
    """The number by which the vendor knows them; null before it has answered."""
    login: str | None
    """The name that the vendor shows for them."""
    expires_at: datetime


ACCOUNT_LINK_LIFE = timedelta(minutes=10)
"""How long it takes at most, from the start to the confirmation."""


def state_digest(state: str) -> bytes:
    return hashlib.sha256(b"cortex account link" + state.encode()).digest()


def verifier_digest(link_id: UUID, state: str) -> bytes:
    """Of which the plane's key makes the PKCE verifier, so that it is stored nowhere."""
    return hashlib.sha256(b"cortex account verifier" + link_id.bytes + state.encode()).digest()


CLAIM_LIFE = timedelta(hours=1)
"""How long a claim waits for its member."""


class Purpose(StrEnum):
    INVITATION = "invitation"
    ADDRESS = "address"
    SENDER = "sender"


@dataclass(frozen=True, kw_only=True, slots=True)
class AddressVerification:
    """What a link in a mail would do now."""

    id: UUID
    purpose: Purpose
    issued_by: str
    user_account_id: UUID
    member: str
    mapping_id: UUID
    connection_id: UUID
    address: str
    org: str

    @property
    def needs_login(self) -> bool:
        """An address that somebody added themselves may be mistyped: who reads its mail is not enough."""
        return self.purpose is Purpose.ADDRESS


def read_code(typed: str) -> str | None:
    """A code as it was shown, however it was typed: case, spaces and dashes do not matter. None: it cannot be one."""
    code = _SEPARATORS.sub("", typed).upper().translate(_LOOKALIKES)
    return code if len(code) == CODE_LENGTH and all(character in ALPHABET for character in code) else None


def shown_code(code: str) -> str:
    return f"{code[:5]}-{code[5:]}"


def sender_digest(org_id: UUID, code: str) -> bytes:
    return hashlib.sha256(b"cortex link" + org_id.bytes + code.encode()).digest()


def nonce(code: str, shown_at: datetime, mark: str) -> str:
    """Goes into the form of one rendering of a link's page: whatever sends forms blindly does not have it."""
    stamp = f"{int(shown_at.timestamp())}.{mark}"
    return f"{stamp}.{_signed(code, stamp)}"


def is_nonce(code: str, text: str, now: datetime) -> bool:
    stamp, _, signature = text.rpartition(".")
    if not text.isascii() or not hmac.compare_digest(_signed(code, stamp), signature):
        return False
    return -60 <= now.timestamp() - int(stamp.partition(".")[0]) <= NONCE_LIFE.total_seconds()


def _signed(code: str, stamp: str) -> str:
    return hmac.new(code.encode(), b"cortex verify " + stamp.encode(), hashlib.sha256).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """Somebody of whom it is said, or proven, that an address or a sender is theirs."""

    id: UUID
    """Of the mapping."""
    user_account_id: UUID
    verified_at: datetime | None
    display_name: str
    deactivated_at: datetime | None
    is_guest: bool
    invited: bool
    """An admin named it; else whoever claims it did."""


def own(claims: Sequence[Claim], member_id: UUID) -> Claim | None:
    return next((claim for claim in claims if claim.user_account_id == member_id), None)


def displaced(claims: Sequence[Claim], member_id: UUID) -> Claim | None:
    """The guest whose place a member takes; None where nobody else has proven it. Members keep what they have proven."""
    holder = next((claim for claim in claims if claim.verified_at is not None), None)
    if holder is None or holder.user_account_id == member_id:
        return None
    if not holder.is_guest:
        raise Conflict(
            "This address or sender belongs to another member of the org.",
            code="identity_taken",
            hint="They can give it up: `cortex user channels`, then `cortex user unlink`.",
        )
    return holder


class NotificationKind(StrEnum):
    """What a notification is about."""

    APPROVAL = "approval"
    """A request that somebody may decide; its message follows the request to its end."""
    INVITATION = "invitation"
    """A link with which somebody proves that an address is theirs."""
    CALLBACK = "callback"
    """What was decided about a call, for the agent that runs elsewhere and waits for it."""
    NOTICE = "notice"
    """What happened under an atlas, for its steward."""
    ALERT = "alert"
    """What operators and admins have to know at once."""
    REPLY = "reply"
    """What an agent said, for the chat from which its person wrote last."""
    VERDICT = "verdict"
    """Whether a deployment may go on, for the vendor that holds it."""


class DeliveryStatus(StrEnum):
    """Where a delivery stands."""

    PENDING = "pending"
    """It shows less than it should: it is sent as soon as its time has come."""
    DELIVERED = "delivered"
    DEAD = "dead"
    """Given up. It stays visible, and can be sent again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivery:
    """A notification as surfaces show it."""

    id: UUID
    kind: NotificationKind
    approval_id: UUID | None
    call_id: UUID | None = None
    """The call that a callback or a verdict is about."""
    channel_type: str
    connection_id: UUID
    connection: str
    """Its name."""
    member_id: UUID | None
    """Null where an agent, a steward or a shared place is told."""
    member: str
    """Who is told: a person, an agent, the steward of an atlas, or a shared place."""
    address: str
    """The address that it goes to."""
    status: DeliveryStatus
    attempts: int
    """Tries since something was last delivered."""
    desired_version: int
    """The version of the message that should be shown."""
    rendered_version: int
    """The version of the message that was delivered last."""
    next_attempt_at: datetime | None
    """When it is tried next."""
    last_error: str | None
    """Why the last attempt failed."""
    message_ref: str | None
    """The channel's own name for the message."""
    sent_at: datetime | None
    """When it was delivered last."""
    created_at: datetime

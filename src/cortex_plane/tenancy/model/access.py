"""Who may do what, and what proves who somebody is: permissions, actors, keys, browser sessions, enrolment codes, keys of model
providers, and the key that signs every credential."""

from __future__ import annotations

import functools
import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from operator import itemgetter
from typing import Annotated, Any, Final
from uuid import UUID

import orjson
from pydantic import Field
from pydantic.dataclasses import dataclass as draft

from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import Forbidden
from cortex_plane.kernel.fields import DRAFT, Name, Slug
from cortex_plane.tenancy.model.orgs import Org, Role, Roles


class SecretKind(StrEnum):
    """The secrets that the plane makes: a prefix, and 256 random bits."""

    KEY = "cortex_key_"
    LOGIN_LINK = "cortex_login_"
    SESSION = "cortex_session_"
    ENROLMENT_CODE = "cortex_enrol_"
    ADDRESS_CODE = "cortex_verify_"

    def matches(self, text: str) -> bool:
        return _SHAPES[self].fullmatch(text) is not None


_SHAPES = {kind: re.compile(kind + r"[A-Za-z0-9_-]{43}") for kind in SecretKind}


def secret_digest(secret: str) -> bytes:
    """What is stored: a leaked table gives nobody a usable secret. A secret is random, so no salt is needed."""
    return hashlib.sha256(secret.encode()).digest()


class KeyKind(StrEnum):
    """Whose key it is."""

    PERSON = "person"
    """Acts as a member, with that member's roles."""
    SERVICE = "service"
    """Acts as a program, with roles of its own; it cannot decide approvals."""
    WORKER = "worker"
    """Connects a worker that has no database, for jobs of some apps of its org. It may do nothing else."""


class Grantable(StrEnum):
    """What a service has only where an admin grants it by name."""

    CONNECTION_WRITE = "connection.write"
    POLICY_WRITE = "policy.write"
    ATLAS_WRITE = "atlas.write"
    TOOL_CONFIRM = "tool.confirm"
    AGENT_WRITE = "agent.write"
    TEAM_WRITE = "team.write"
    ORG_WRITE = "org.write"
    MEMBER_WRITE = "member.write"
    SESSION_ON_BEHALF = "session.on_behalf"
    """Open sessions of external agents for members of the org. It gives no right to decide."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    id: UUID
    name: str
    kind: KeyKind
    member_id: UUID | None
    """The person whose key it is; null for a service key."""
    roles: list[Role]
    """A service key's own roles; a person's key has its person's."""
    permissions: list[str]
    """What an admin granted a service by name, beyond its roles; for a worker key its apps, as `app:NAME`."""
    platform: bool
    last_characters: str
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    made_with: UUID | None
    """The key of the same person that it was made with, and with which it ends."""
    created_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class NewKey:
    key: Key
    """The key, without its secret."""
    secret: str | None
    """Shown once. Null when an idempotency key is replayed: the plane no longer knows it."""


@draft(config=DRAFT, frozen=True, kw_only=True)
class OwnKeyDraft:
    """A key for whoever asks."""

    name: Name
    expires_in_days: Annotated[int, Field(strict=True, ge=1, le=3650)] | None = None


@draft(config=DRAFT, frozen=True, kw_only=True)
class KeyDraft:
    """A key for a member (``member_id``), for a service (``roles``) or for a worker (``apps``), one of them."""

    name: Name
    member_id: UUID | None = None
    """The person whose key it becomes."""
    roles: Roles | None = None
    permissions: list[Grantable] = Field(default_factory=list, max_length=len(Grantable))
    """What the service may do by name, whatever its roles are."""
    apps: list[Slug] | None = Field(default=None, min_length=1, max_length=50)
    """The apps whose jobs, of this org, a worker without a database may run with it."""
    expires_in_days: Annotated[int, Field(strict=True, ge=1, le=3650)] | None = None


LINK_LIFE = timedelta(minutes=15)
IDLE_LIFE = timedelta(hours=12)
"""A session ends when nothing was heard of it for so long,"""
WHOLE_LIFE = timedelta(days=7)
"""and in any case after so long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoginLink:
    """Works once, for one person. Whoever holds it is that person: it is shown to nobody else."""

    member_id: UUID
    url_path: str
    expires_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class BrowserSession:
    """Somebody who is logged in."""

    id: UUID
    member_id: UUID
    key_id: UUID | None
    """The key that its login link was made with: the session ends with it. Null where a mail or an enrolment code opened it."""
    key_name: str | None
    """The name of that key."""
    created_at: datetime
    last_seen_at: datetime
    """When its browser visited last."""
    expires_at: datetime
    """When it ends if nobody visits any more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EndedSessions:
    ended: int
    """How many were ended."""


def form_token(session_secret: str) -> str:
    """What a form of this session must carry: a page of another site cannot know it, and it does not give the cookie away."""
    return hmac.new(session_secret.encode(), b"cortex form", hashlib.sha256).hexdigest()


def is_form_token(session_secret: str, token: str) -> bool:
    return hmac.compare_digest(form_token(session_secret).encode(), token.encode())


CODE_LIFE = timedelta(hours=24)


@dataclass(frozen=True, kw_only=True, slots=True)
class EnrolmentCode:
    """Works once, for one person. It is shown this once; whoever handed it over counts as one human with whoever redeems it,
    until they have proven a channel of their own."""

    member_id: UUID
    code: str
    url_path: str
    expires_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Enrolment:
    """What a code would do now."""

    id: UUID
    member_id: UUID
    member: str
    org: str
    issued_by: str


@draft(config=DRAFT, frozen=True, kw_only=True)
class Redemption:
    """A code, and the name of the key that it is redeemed for."""

    code: Annotated[str, Field(min_length=1, max_length=100)]
    key_name: Name = "command line"
    """The name of the key that it makes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstOrg:
    """The org that a plane starts with, and the key of its admin: whoever starts the plane."""

    org: Org
    key: NewKey


@dataclass(frozen=True, kw_only=True, slots=True)
class NewOrg:
    """An org, and the code that its first admin redeems."""

    org: Org
    """The org."""
    enrolment: EnrolmentCode
    """The code that its first admin redeems."""


class Provider(StrEnum):
    """A provider of models."""

    ANTHROPIC = "anthropic"
    OPENAI = "openai"
    """And whoever speaks its chat completions protocol."""


@draft(config=DRAFT, frozen=True, kw_only=True)
class ModelKeyDraft:
    key: str = Field(min_length=16, max_length=500, pattern=r"^[\x21-\x7e]+$", repr=False)
    """As the provider gave it out. It is never told again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelKey:
    provider: Provider
    last_characters: str
    set_by: str
    """Who set it."""
    created_at: datetime
    updated_at: datetime


_R = Role
_EVERYONE = frozenset(Role)
_STAFF = frozenset({_R.ADMIN, _R.STEWARD, _R.OPERATOR, _R.APPROVER})
_WORKING = frozenset({_R.ADMIN, _R.STEWARD, _R.OPERATOR, _R.MEMBER})
_ADMIN = frozenset({_R.ADMIN})
_PLATFORM: frozenset[Role] = frozenset()
"""No role: platform keys only."""
_NO_ROLE = _PLATFORM


class Permission(StrEnum):
    """What an actor may do, with the roles that give it."""

    roles: frozenset[Role]

    def __new__(cls, name: str, roles: frozenset[Role] = _PLATFORM) -> Permission:
        permission = str.__new__(cls, name)
        permission._value_ = name
        permission.roles = roles
        return permission

    LOGIN = "login", _EVERYONE
    IDENTITY_LINK = "identity.link", _STAFF | {_R.MEMBER}
    ORG_CREATE = "org.create", _PLATFORM
    ORG_READ = "org.read", _EVERYONE
    ORG_WRITE = "org.write", _ADMIN
    TEAM_READ = "team.read", _STAFF | {_R.MEMBER}
    TEAM_WRITE = "team.write", _ADMIN
    MEMBER_READ = "member.read", _STAFF
    MEMBER_WRITE = "member.write", _ADMIN
    MEMBER_ENROL = "member.enrol", _ADMIN
    ABSENCE_WRITE = "absence.write", _STAFF | {_R.MEMBER}
    KEY_OWN = "key.own", _STAFF | {_R.MEMBER}
    KEY_READ = "key.read", _ADMIN
    KEY_WRITE = "key.write", _ADMIN
    CONNECTION_READ = "connection.read", _STAFF
    CONNECTION_WRITE = "connection.write", _ADMIN
    AGENT_READ = "agent.read", _STAFF | {_R.MEMBER}
    AGENT_WRITE = "agent.write", _ADMIN
    SESSION_READ = "session.read", _EVERYONE
    SESSION_WRITE = "session.write", _WORKING
    SESSION_TERMINATE = "session.terminate", frozenset({_R.ADMIN, _R.OPERATOR, _R.MEMBER, _R.GUEST})
    SESSION_ON_BEHALF = "session.on_behalf", _ADMIN
    SESSION_HOLD = "session.hold", frozenset({_R.ADMIN, _R.OPERATOR, _R.MEMBER})
    MESSAGE_INGEST = "message.ingest", frozenset({_R.ADMIN, _R.OPERATOR, _R.MEMBER})
    JOB_READ = "job.read", _EVERYONE
    JOB_SUBMIT = "job.submit", _WORKING
    JOB_STEER = "job.steer", frozenset({_R.ADMIN, _R.OPERATOR, _R.MEMBER})
    JOB_SETTLE = "job.settle", frozenset({_R.ADMIN, _R.OPERATOR, _R.APPROVER})
    SIGNAL_READ = "signal.read", _STAFF | {_R.MEMBER}
    SIGNAL_SEND = "signal.send", _WORKING
    APPROVAL_READ = "approval.read", _EVERYONE
    # Who may decide what is asked of each request, and refusals are recorded.
    APPROVAL_DECIDE = "approval.decide", _EVERYONE
    DELIVERY_READ = "delivery.read", _STAFF
    DELIVERY_WRITE = "delivery.write", frozenset({_R.ADMIN, _R.OPERATOR})
    POLICY_READ = "policy.read", _STAFF
    POLICY_WRITE = "policy.write", frozenset({_R.ADMIN, _R.STEWARD})
    ATLAS_READ = "atlas.read", _STAFF
    ATLAS_WRITE = "atlas.write", frozenset({_R.ADMIN, _R.STEWARD})
    TOOL_READ = "tool.read", _STAFF | {_R.MEMBER}
    TOOL_CONFIRM = "tool.confirm", frozenset({_R.ADMIN, _R.STEWARD})
    WORKER_READ = "worker.read", _PLATFORM
    # Worker keys alone have it, and no other permission.
    WORKER_RUN = "worker.run", _NO_ROLE
    AUDIT_READ = "audit.read", frozenset({_R.ADMIN, _R.STEWARD, _R.OPERATOR})
    METRICS_READ = "metrics.read", _PLATFORM
    PLATFORM_POLICY_WRITE = "platform_policy.write", _PLATFORM


GRANTS = {permission: permission.roles for permission in Permission}
"""Pages ask by the name of a permission, too."""


SERVICES_ONLY = frozenset({Permission.MESSAGE_INGEST, Permission.SESSION_ON_BEHALF})
"""Speaking for other people is for channel programs, never for a person's own key."""

PERSONS_ONLY = frozenset({Permission.LOGIN, Permission.IDENTITY_LINK, Permission.KEY_OWN, Permission.JOB_SETTLE})
"""A browser and a person's key are that person's, and so is an answer after which a call may be sent again: programs use
their key, and a platform admin elsewhere is nobody there."""

NEVER_SERVICES = frozenset({Permission.MEMBER_ENROL})
"""A code that makes somebody a way in is handed over by a human."""

BY_NAME = frozenset(Permission(name.value) for name in Grantable)
"""What decides which calls run, and who decides about them: a service does it only where an admin granted it by name,
whatever its roles are."""

PLATFORM_ONLY = frozenset(
    {Permission.ORG_CREATE, Permission.METRICS_READ, Permission.WORKER_READ, Permission.PLATFORM_POLICY_WRITE}
)


class ActorKind(StrEnum):
    """What kind of actor it is."""

    PERSON = "person"
    SERVICE = "service"
    PLATFORM = "platform"
    """A platform admin acting inside an org that is not theirs: visible as such on the audit trail."""
    WORKER = "worker"
    """The plane itself, running a job."""
    REMOTE_WORKER = "remote_worker"
    """A worker without a database, by its key: it runs tools that the plane asks for, and may do nothing else."""
    SCHEDULER = "scheduler"
    """The plane itself, keeping a deadline."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Actor:
    """Who stands behind a request. Every operation takes one."""

    org_id: UUID
    key_id: UUID
    kind: ActorKind
    name: str
    roles: frozenset[Role]
    user_account_id: UUID | None = None
    clearance: int = 0
    platform: bool = False
    granted: frozenset[Permission] = frozenset()
    """What an admin granted a service by name."""
    apps: frozenset[str] = frozenset()
    """Of a worker key: the apps whose jobs it may run."""
    replaces_tools: bool = False
    """Of a worker key that a platform key made: its worker may also publish tools of apps that others publish."""

    @property
    def identity(self) -> UUID:
        """As rows keep it: a person whatever key they use, a program by its key."""
        return self.user_account_id or self.key_id

    def may(self, permission: Permission) -> bool:
        return self._refusal(permission) is None

    def require(self, permission: Permission) -> None:
        refusal = self._refusal(permission)
        if refusal is not None:
            raise Forbidden(refusal[0], hint=refusal[1])

    def _refusal(self, permission: Permission) -> tuple[str, str | None] | None:
        """Why the actor may not, and what to do; None where they may."""
        is_service = self.kind is ActorKind.SERVICE
        if self.kind is ActorKind.REMOTE_WORKER or permission is Permission.WORKER_RUN:
            return self._refusal_of_workers(permission)
        if permission in PLATFORM_ONLY:
            hint = "Use the key that `cortex up` keeps in `.cortex/access.json`."
            return None if self.platform else ("Only a platform key may do this.", hint)
        if permission in SERVICES_ONLY and not is_service:
            hint = "Create one: `cortex key create NAME --service --role member`."
            return "Only a service key may speak for other people.", hint
        if permission in PERSONS_ONLY and self.kind is not ActorKind.PERSON:
            return "Only a person of the org may do this.", "Use the key of one of its members, at home in it."
        if is_service and permission in NEVER_SERVICES:
            return "No program may do this.", "Use the key of an admin."
        if is_service and permission in BY_NAME:
            message = f"A service needs the permission {permission} by name; its roles do not give it."
            command = f"cortex key create NAME --service --role ROLE --permission {permission}"
            return None if permission in self.granted else (message, f"An admin makes it a key with it: `{command}`.")
        if self.roles.isdisjoint(GRANTS[permission]):
            return f"This needs one of the roles: {', '.join(sorted(GRANTS[permission]))}.", None
        return None

    def _refusal_of_workers(self, permission: Permission) -> tuple[str, str] | None:
        if permission is not Permission.WORKER_RUN:
            return "A worker key connects a worker, and may do nothing else.", "Use the key of a person or a service."
        if self.kind is not ActorKind.REMOTE_WORKER:
            return "Only a worker key may do this.", "An admin makes one: `cortex key create NAME --worker --app APP`."
        return None

    @property
    def sees(self) -> UUID | None:
        """Whose sessions and jobs the actor sees: None for all, else a person's own, or those that a service opened."""
        if self.kind is ActorKind.PLATFORM or not self.roles.isdisjoint(_STAFF):
            return None
        return self.user_account_id or self.key_id

    def as_audit(self) -> dict[str, str | None]:
        return {
            "kind": self.kind.value,
            "name": self.name,
            "key": str(self.key_id),
            "account": str(self.user_account_id) if self.user_account_id else None,
            **({"granted": ", ".join(sorted(self.granted))} if self.granted else {}),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """What an actor did, for the audit trail: before it has a place in a chain."""

    action: str
    body: bytes
    job: UUID | str | None = None
    """The job that it concerns."""

    @classmethod
    def of(cls, actor: Actor, action: str, **data: Any) -> Fact:
        """Canonical JSON, put together from parts: the actor's is the same for all that a request does."""
        # Kept and hashed as bytes, so it need not survive JSONB: sorted keys are enough.
        payload = orjson.dumps(data, default=_uuid_text, option=orjson.OPT_SORT_KEYS)
        body = b'{"action":%b,"actor":%b,"data":%b}' % (orjson.dumps(action), _actor_json(actor), payload)
        return cls(action=action, body=body, job=data.get("job"))


def _uuid_text(value: object) -> str:
    """The driver's own UUIDs, which the encoder does not know."""
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"an audit entry holds no {type(value).__name__}")


@functools.lru_cache(maxsize=1024)
def _actor_json(actor: Actor) -> bytes:
    return canonical(actor.as_audit())


@dataclass(frozen=True, kw_only=True, slots=True)
class Me:
    """Who the key stands for, and what it may do."""

    org_id: UUID
    """The id of the org that the key acts in."""
    key_id: UUID
    kind: ActorKind
    name: str
    """The name of the person or the service."""
    roles: list[Role]
    clearance: int
    member_id: UUID | None
    platform: bool
    permissions: list[Permission]
    """What the key may do."""


def database_owner(org_id: UUID) -> Actor:
    """Whoever holds the database itself: sets up the first org, and replaces a lost key."""
    return Actor(org_id=org_id, key_id=UUID(int=0), kind=ActorKind.PLATFORM, name="database owner", roles=frozenset())


def worker_actor(org_id: UUID, worker_id: UUID, name: str) -> Actor:
    """A worker, as the audit trail of the jobs that it runs names it. It asks for no permission and has none."""
    return Actor(org_id=org_id, key_id=worker_id, kind=ActorKind.WORKER, name=name, roles=frozenset())


def scheduler_actor(org_id: UUID, scheduler_id: UUID, name: str) -> Actor:
    """A scheduler, as the audit trail names it. It has no permission either."""
    return Actor(org_id=org_id, key_id=scheduler_id, kind=ActorKind.SCHEDULER, name=name, roles=frozenset())


def actor_kind(key: KeyKind, *, acts_elsewhere: bool) -> ActorKind:
    if acts_elsewhere:
        return ActorKind.PLATFORM
    return _ACTOR_KINDS[key]


_ACTOR_KINDS = {
    KeyKind.PERSON: ActorKind.PERSON, KeyKind.SERVICE: ActorKind.SERVICE, KeyKind.WORKER: ActorKind.REMOTE_WORKER,
}  # fmt: skip
_APP = "app:"
"""Begins the permissions of a worker key, each of which names an app."""


def app_permissions(apps: Iterable[str]) -> list[str]:
    """What a worker key for these apps stores."""
    return sorted({f"{_APP}{app}" for app in apps})


KEY_BYTES: Final = 32
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class MacKind(StrEnum):
    """What a MAC is about, and the columns that it covers. The same fields of two kinds have different MACs. The lookup is
    covered too: else somebody could put theirs into another's row."""

    columns: str
    """With spaces between."""

    def __new__(cls, name: str, columns: str = "") -> MacKind:
        kind = str.__new__(cls, name)
        kind._value_ = name
        kind.columns = columns
        return kind

    KEY = "key", "org_id id user_account_id kind roles permissions platform expires_at secret_hash"
    BROWSER_SESSION = "browser_session", "org_id id user_account_id key_id expires_at secret_hash"
    LOGIN_LINK = "login_link", "org_id id user_account_id key_id expires_at secret_hash"
    ENROLMENT_CODE = "enrolment_code", "org_id id user_account_id issuer_id key_id expires_at code_hash"
    APPROVAL_TOKEN = "approval_token", "org_id id user_account_id approval_id version input_hash expires_at token_hash"
    IDENTITY_CODE = "identity_code", "org_id id user_account_id mapping_id purpose expires_at code_hash"
    MAPPING = "mapping", "org_id id connection_id channel_user_id user_account_id verified"
    ACCOUNT_LINK = (
        "account_link", "org_id id connection_id user_account_id session_id state_hash account_id login expires_at"
    )  # fmt: skip
    POLICY_VERSION = "policy_version", "org_id version rows_digest"
    POLICY_IN_FORCE = "policy_in_force", "org_id policy_version"
    ATLAS_VERSION = "atlas_version", "org_id atlas_id version number digest access api_keys retired"
    SESSION_STATE = "session_state", "org_id id version text"


_FIELDS = {kind: itemgetter(*kind.columns.split()) for kind in MacKind}


class Forged(Exception):
    """A row that the plane did not write as it stands."""

    def __init__(self, kind: MacKind, org_id: UUID, id: UUID | str) -> None:
        super().__init__(f"the MAC of this {kind} is false")
        self.kind = kind
        self.org_id = org_id
        self.id = id


class CredentialKey:
    """The open key. It is random, and kept sealed with the master key."""

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"a credential key has {KEY_BYTES} bytes")
        # Copied for each digest: to begin with a key takes three times as long.
        self._lookup = hmac.new(key, digestmod="sha256")
        # Of its own, so that no lookup can stand for a MAC.
        self._mac = hmac.new(hmac.digest(key, b"cortex credential mac", "sha256"), digestmod="sha256")

    def lookup(self, secret_hash: bytes) -> bytes:
        """By what a credential is found: an HMAC of its SHA-256."""
        return _digest_with(self._lookup, secret_hash)

    def mac(self, kind: MacKind, row: Mapping[str, Any]) -> bytes:
        """Over the columns of ``row`` that its kind names. Values stand in a JSON array, so none runs into the next."""
        text = orjson.dumps((kind, *_FIELDS[kind](row)), default=_plain, option=orjson.OPT_PASSTHROUGH_DATETIME)
        return _digest_with(self._mac, text)

    def is_true(self, kind: MacKind, row: Mapping[str, Any], mac: bytes | None) -> bool:
        try:
            return mac is not None and hmac.compare_digest(self.mac(kind, row), mac)
        except TypeError:  # a time without end, which the plane never writes
            return False

    def require(self, kind: MacKind, row: Mapping[str, Any], mac: bytes | None) -> None:
        """Raises ``Forged`` where the row is not as the plane wrote it."""
        if not self.is_true(kind, row, mac):
            raise Forged(kind, row["org_id"], row["id"])


def _digest_with(key: hmac.HMAC, message: bytes) -> bytes:
    code = key.copy()
    code.update(message)
    return code.digest()


def _plain(value: object) -> object:
    if isinstance(value, UUID):  # the driver's own, which the encoder does not know; the most frequent, so the first
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime):
        return (value - _EPOCH) // _MICROSECOND
    raise TypeError(f"no MAC covers a {type(value).__name__}")


def rows_digest(rows: Iterable[Mapping[str, Any]]) -> str:
    """Of the rows of a version of policies. What is null is left out, so that a column which a later release adds changes none."""
    contents = [{name: value for name, value in row.items() if value is not None} for row in rows]
    return hashlib.sha256(orjson.dumps(contents, default=_plain, option=orjson.OPT_SORT_KEYS)).hexdigest()


def key_holder(row: Mapping[str, Any], key: CredentialKey, lookup: bytes) -> Actor:
    """Who holds an API key, from what the SQL function `authenticate` returns. Raises ``Forged``."""
    fields = {
        "org_id": row["home_id"], "id": row["key_id"], "user_account_id": row["holder_id"], "kind": row["kind"],
        "roles": row["own_roles"], "permissions": row["permissions"], "platform": row["own_platform"],
        "expires_at": row["expires_at"], "secret_hash": lookup,
    }  # fmt: skip
    key.require(MacKind.KEY, fields, row["mac"])
    is_worker = row["kind"] == KeyKind.WORKER
    permissions = row["permissions"]
    return Actor(
        org_id=row["org_id"],
        key_id=row["key_id"],
        kind=actor_kind(KeyKind(row["kind"]), acts_elsewhere=row["acts_elsewhere"]),
        name=row["name"],
        roles=frozenset(map(Role, row["roles"])),
        user_account_id=row["user_account_id"],
        clearance=row["clearance"],
        platform=row["platform"],
        granted=frozenset() if is_worker else frozenset(map(Permission, permissions)),
        apps=frozenset(each.removeprefix(_APP) for each in permissions) if is_worker else frozenset(),
        replaces_tools=is_worker and row["own_platform"],
    )

"""Who may do what: one table from permission to roles, read by every door."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from cortex_plane.kernel.errors import Forbidden
from cortex_plane.tenancy.model.credentials import Grantable, KeyKind
from cortex_plane.tenancy.model.orgs import Role


class Permission(StrEnum):
    LOGIN = "login"
    IDENTITY_LINK = "identity.link"
    ORG_CREATE = "org.create"
    ORG_READ = "org.read"
    ORG_WRITE = "org.write"
    TEAM_READ = "team.read"
    TEAM_WRITE = "team.write"
    MEMBER_READ = "member.read"
    MEMBER_WRITE = "member.write"
    MEMBER_ENROL = "member.enrol"
    ABSENCE_WRITE = "absence.write"
    KEY_OWN = "key.own"
    KEY_READ = "key.read"
    KEY_WRITE = "key.write"
    CONNECTION_READ = "connection.read"
    CONNECTION_WRITE = "connection.write"
    AGENT_READ = "agent.read"
    AGENT_WRITE = "agent.write"
    SESSION_READ = "session.read"
    SESSION_WRITE = "session.write"
    SESSION_TERMINATE = "session.terminate"
    SESSION_HOLD = "session.hold"
    MESSAGE_INGEST = "message.ingest"
    JOB_READ = "job.read"
    JOB_SUBMIT = "job.submit"
    JOB_STEER = "job.steer"
    JOB_SETTLE = "job.settle"
    SIGNAL_READ = "signal.read"
    SIGNAL_SEND = "signal.send"
    APPROVAL_READ = "approval.read"
    APPROVAL_DECIDE = "approval.decide"
    DELIVERY_READ = "delivery.read"
    DELIVERY_WRITE = "delivery.write"
    POLICY_READ = "policy.read"
    POLICY_WRITE = "policy.write"
    ATLAS_READ = "atlas.read"
    ATLAS_WRITE = "atlas.write"
    TOOL_READ = "tool.read"
    TOOL_CONFIRM = "tool.confirm"
    WORKER_READ = "worker.read"
    AUDIT_READ = "audit.read"
    METRICS_READ = "metrics.read"


_R = Role
_EVERYONE = frozenset(Role)
_STAFF = frozenset({_R.ADMIN, _R.STEWARD, _R.OPERATOR, _R.APPROVER})
_WORKING = frozenset({_R.ADMIN, _R.STEWARD, _R.OPERATOR, _R.MEMBER})
_ADMIN = frozenset({_R.ADMIN})

GRANTS: dict[Permission, frozenset[Role]] = {
    Permission.LOGIN: _EVERYONE,
    Permission.IDENTITY_LINK: _STAFF | {_R.MEMBER},
    Permission.ORG_CREATE: frozenset(),  # platform keys only
    Permission.METRICS_READ: frozenset(),
    Permission.WORKER_READ: frozenset(),
    Permission.ORG_READ: _EVERYONE,
    Permission.ORG_WRITE: _ADMIN,
    Permission.TEAM_READ: _STAFF | {_R.MEMBER},
    Permission.TEAM_WRITE: _ADMIN,
    Permission.MEMBER_READ: _STAFF,
    Permission.MEMBER_WRITE: _ADMIN,
    Permission.MEMBER_ENROL: _ADMIN,
    Permission.ABSENCE_WRITE: _STAFF | {_R.MEMBER},
    Permission.KEY_OWN: _STAFF | {_R.MEMBER},
    Permission.KEY_READ: _ADMIN,
    Permission.KEY_WRITE: _ADMIN,
    Permission.CONNECTION_READ: _STAFF,
    Permission.CONNECTION_WRITE: _ADMIN,
    Permission.AGENT_READ: _STAFF | {_R.MEMBER},
    Permission.AGENT_WRITE: _ADMIN,
    Permission.SESSION_READ: _EVERYONE,
    Permission.SESSION_WRITE: _WORKING,
    Permission.SESSION_TERMINATE: frozenset({_R.ADMIN, _R.OPERATOR, _R.MEMBER, _R.GUEST}),
    Permission.SESSION_HOLD: frozenset({_R.ADMIN, _R.OPERATOR}),
    Permission.MESSAGE_INGEST: frozenset({_R.ADMIN, _R.OPERATOR, _R.MEMBER}),
    Permission.JOB_READ: _EVERYONE,
    Permission.JOB_SUBMIT: _WORKING,
    Permission.JOB_STEER: frozenset({_R.ADMIN, _R.OPERATOR, _R.MEMBER}),
    Permission.JOB_SETTLE: frozenset({_R.ADMIN, _R.OPERATOR, _R.APPROVER}),
    Permission.SIGNAL_READ: _STAFF | {_R.MEMBER},
    Permission.SIGNAL_SEND: _WORKING,
    Permission.APPROVAL_READ: _EVERYONE,
    Permission.APPROVAL_DECIDE: _EVERYONE,  # who may decide what is asked of each request, and refusals are recorded
    Permission.DELIVERY_READ: _STAFF,
    Permission.DELIVERY_WRITE: frozenset({_R.ADMIN, _R.OPERATOR}),
    Permission.POLICY_READ: _STAFF,
    Permission.POLICY_WRITE: frozenset({_R.ADMIN, _R.STEWARD}),
    Permission.ATLAS_READ: _STAFF,
    Permission.ATLAS_WRITE: frozenset({_R.ADMIN, _R.STEWARD}),
    Permission.TOOL_READ: _STAFF | {_R.MEMBER},
    Permission.TOOL_CONFIRM: frozenset({_R.ADMIN, _R.STEWARD}),
    Permission.AUDIT_READ: frozenset({_R.ADMIN, _R.STEWARD, _R.OPERATOR}),
}

SERVICES_ONLY = frozenset({Permission.MESSAGE_INGEST})
"""Speaking for other people is for channel programs, never for a person's own key."""

PERSONS_ONLY = frozenset({Permission.LOGIN, Permission.IDENTITY_LINK, Permission.KEY_OWN, Permission.JOB_SETTLE})
"""A browser and a person's key are that person's, and so is an answer after which a call may be sent again: programs use
their key, and a platform admin elsewhere is nobody there."""

NEVER_SERVICES = frozenset({Permission.MEMBER_ENROL})
"""A code that makes somebody a way in is handed over by a human."""

BY_NAME = frozenset(Permission(name.value) for name in Grantable)
"""What decides which calls run, and who decides about them: a service does it only where an admin granted it by name,
whatever its roles are."""

PLATFORM_ONLY = frozenset({Permission.ORG_CREATE, Permission.METRICS_READ, Permission.WORKER_READ})


class ActorKind(StrEnum):
    PERSON = "person"
    SERVICE = "service"
    PLATFORM = "platform"
    """A platform admin acting inside an org that is not theirs: visible as such on the audit trail."""
    WORKER = "worker"
    """The plane itself, running a job."""
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

    @property
    def identity(self) -> UUID:
        """As rows keep it: a person whatever key they use, a program by its key."""
        return self.user_account_id or self.key_id

    def may(self, permission: Permission) -> bool:
        if permission in PLATFORM_ONLY:
            return self.platform
        if permission in SERVICES_ONLY and self.kind is not ActorKind.SERVICE:
            return False
        if permission in PERSONS_ONLY and self.kind is not ActorKind.PERSON:
            return False
        if self.kind is ActorKind.SERVICE and permission in BY_NAME | NEVER_SERVICES:
            return permission in self.granted
        return not self.roles.isdisjoint(GRANTS[permission])

    def require(self, permission: Permission) -> None:
        if self.may(permission):
            return
        if permission in PLATFORM_ONLY:
            raise Forbidden(
                "Only a platform key may do this.", hint="Use the key that `cortex up` keeps in `.cortex/access.json`."
            )
        if permission in SERVICES_ONLY and self.kind is not ActorKind.SERVICE:
            raise Forbidden(
                "Only a service key may speak for other people.",
                hint="Create one: `cortex key create NAME --service --role member`.",
            )
        if permission in PERSONS_ONLY and self.kind is not ActorKind.PERSON:
            raise Forbidden(
                "Only a person of the org may do this.", hint="Use the key of one of its members, at home in it."
            )
        if self.kind is ActorKind.SERVICE and permission in NEVER_SERVICES:
            raise Forbidden("No program may do this.", hint="Use the key of an admin.")
        if self.kind is ActorKind.SERVICE and permission in BY_NAME:
            raise Forbidden(
                f"A service needs the permission {permission} by name; its roles do not give it.",
                hint="An admin makes it a key with it:"
                f" `cortex key create NAME --service --role ROLE --permission {permission}`.",
            )
        permissions = ", ".join(sorted(GRANTS[permission]))
        raise Forbidden(f"This needs one of the roles: {permissions}.")

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
class Me:
    """Who the key stands for, and what it may do."""

    org_id: UUID
    key_id: UUID
    kind: ActorKind
    name: str
    roles: list[Role]
    clearance: int
    member_id: UUID | None
    platform: bool
    permissions: list[Permission]


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
    return ActorKind.SERVICE if key is KeyKind.SERVICE else ActorKind.PERSON

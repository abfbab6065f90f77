"""Atlases: gates, actions, capabilities and guidance that a steward publishes, and their versions."""

from __future__ import annotations

import importlib.resources
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal
from uuid import UUID

import orjson
from pydantic import Field, StringConstraints
from pydantic.dataclasses import dataclass as draft
from pydantic_core import PydanticCustomError

from cortex_plane.kernel.canonical import check_text
from cortex_plane.kernel.fields import DRAFT, Ref, Risk, refused_as
from cortex_plane.policies.model.policies import PendingChange, Template
from cortex_plane.policies.model.versions import FieldChange

ATLAS_VERSION = "1.0"
"""Of the file format."""
MAX_ATLAS_BYTES = 4 * 1024 * 1024
MAX_GATES = 2_000
MAX_CONTEXT = 1024 * 1024
"""Characters of one context block."""
MAX_ANSWER = 20_000
"""Characters of a text that answers a question, where the question names no other limit."""
BY_WEBHOOK = "webhook:"
"""How the name of a validator begins that a webhook connection stands for."""
MAX_ATTEMPTS = 3
"""How often a gate is answered wrongly before it stays shut, where it does not say so itself."""


class Mode(StrEnum):
    BLOCKING = "blocking"
    ADVISORY = "advisory"
    OBSERVATIONAL = "observational"


class Audience(StrEnum):
    AGENT = "agent"
    """The model, or the code, answers."""
    HUMAN = "human"


class TriggerType(StrEnum):
    SESSION_START = "session_start"
    INTERACTIVE = "interactive"
    CAPABILITY_ACCESS = "capability_access"
    RISK_THRESHOLD = "risk_threshold"
    ACTION_PRE = "action_pre"
    KEYWORD = "keyword"
    TIME_INTERVAL = "time_interval"
    COUNT_INTERVAL = "count_interval"
    EXPLICIT_REQUEST = "explicit_request"
    ACTION_POST = "action_post"
    ERROR_OCCURRED = "error_occurred"
    SESSION_END = "session_end"
    CUSTOM = "custom"


PRIORITIES: Mapping[TriggerType, int] = {
    TriggerType.SESSION_START: 1000,
    TriggerType.INTERACTIVE: 950,
    TriggerType.CAPABILITY_ACCESS: 920,
    TriggerType.RISK_THRESHOLD: 900,
    TriggerType.ACTION_PRE: 800,
    TriggerType.KEYWORD: 600,
    TriggerType.TIME_INTERVAL: 500,
    TriggerType.COUNT_INTERVAL: 400,
    TriggerType.EXPLICIT_REQUEST: 300,
    TriggerType.CUSTOM: 200,
    TriggerType.ACTION_POST: 100,
    TriggerType.ERROR_OCCURRED: 50,
    TriggerType.SESSION_END: 0,
}
"""Spec 5's table; where a gate names no priority of its own. A custom trigger, which the table leaves out, has 200."""

OF_A_CALL = frozenset({TriggerType.CAPABILITY_ACCESS, TriggerType.RISK_THRESHOLD, TriggerType.ACTION_PRE})
"""They stop one call; all others stop the session."""


class MatchMode(StrEnum):
    ANY = "any"
    ALL = "all"
    PHRASE = "phrase"
    REGEX = "regex"


@dataclass(frozen=True, kw_only=True, slots=True)
class Trigger:
    """When a gate fires. Only the fields of its type are set."""

    type: TriggerType
    patterns: tuple[str, ...] = ()
    """Globs over actions (action_pre, action_post; explicit_request: over what is asked for), or keywords."""
    match_mode: MatchMode = MatchMode.ANY
    case_sensitive: bool = False
    min_tier: Risk | None = None
    capability_ids: tuple[str, ...] = ()
    seconds: int | float | None = None
    actions: int | None = None
    trigger_id: str | None = None
    """Of a custom trigger: the name under which an app registered it."""
    params: Mapping[str, Any] = field(default_factory=dict, hash=False)


class ResponseType(StrEnum):
    TEXT = "text"
    BOOLEAN = "boolean"
    ACKNOWLEDGMENT = "acknowledgment"
    CHOICE = "choice"
    NUMBER = "number"
    JSON = "json"


class OnInvalid(StrEnum):
    RETRY = "retry"
    BLOCK = "block"
    WARN_AND_CONTINUE = "warn_and_continue"
    LOG_AND_CONTINUE = "log_and_continue"


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerValidation:
    pattern: str | None = None
    min_length: int | None = None
    max_length: int | None = None
    must_contain: tuple[str, ...] = ()
    must_not_contain: tuple[str, ...] = ()
    minimum: int | float | None = None
    maximum: int | float | None = None
    custom_validator: str | None = None
    """The name under which an app registered it, or `webhook:` and the name of a webhook connection."""
    equals_argument: str | None = None
    """The argument of the stopped call whose value it must be."""

    @property
    def connection(self) -> str | None:
        """The webhook connection that looks at the answer, where no app does."""
        name = self.custom_validator or ""
        return name.removeprefix(BY_WEBHOOK) if name.startswith(BY_WEBHOOK) else None


@dataclass(frozen=True, kw_only=True, slots=True)
class GateQuestion:
    question_id: str
    question: str
    response_type: ResponseType
    required: bool = True
    hint: str | None = None
    options: tuple[str, ...] = ()
    schema: Mapping[str, Any] | None = field(default=None, hash=False)
    validation: AnswerValidation = AnswerValidation()
    on_invalid: OnInvalid = OnInvalid.RETRY


class GuidanceFormat(StrEnum):
    TEXT = "text"
    MARKDOWN = "markdown"
    JSON = "json"
    SYSTEM_INSTRUCTION = "system_instruction"


@dataclass(frozen=True, kw_only=True, slots=True)
class Guidance:
    content: str
    format: GuidanceFormat = GuidanceFormat.TEXT
    priority: int = 100
    append: bool = True
    """False: it takes the place of the guidance that was given before."""
    expires_after: str | None = None
    """`session-end` (as None), the id of a gate of the same atlas, or a time such as `10m`."""
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    gate_id: str
    atlas_id: str
    name: str
    trigger: Trigger
    mode: Mode
    priority: int
    audience: Audience = Audience.AGENT
    questions: tuple[GateQuestion, ...] = ()
    guidance: Guidance | None = None
    contexts: tuple[str, ...] = ()
    """What the agent is told of once it is passed."""
    unlock_capabilities: tuple[str, ...] = ()
    lock_capabilities: tuple[str, ...] = ()
    allow_actions: tuple[str, ...] = ()
    deny_actions: tuple[str, ...] = ()
    force_sync_trace: bool = False
    require_policy_check: bool = False
    """Policies judge its calls as calls that change something, whatever the tool says of itself."""
    max_attempts: int = MAX_ATTEMPTS

    @property
    def key(self) -> str:
        """Unique over all atlases of a session."""
        return f"{self.atlas_id}/{self.gate_id}"

    @property
    def of_a_call(self) -> bool:
        return self.trigger.type in OF_A_CALL

    @property
    def asks(self) -> bool:
        """Whether the agent must answer before it goes on."""
        return self.mode is Mode.BLOCKING and self.audience is Audience.AGENT and bool(self.questions)

    def unlocks(self, capability: str) -> bool:
        """``capability``: its key."""
        atlas_id, _, id = capability.rpartition("/")
        return atlas_id == self.atlas_id and id in self.unlock_capabilities and self.mode is not Mode.OBSERVATIONAL

    @property
    def decides(self) -> bool:
        """Whether what may be done is otherwise once it is passed."""
        effects = (self.unlock_capabilities, self.lock_capabilities, self.allow_actions, self.deny_actions)
        return any(effects) or self.trigger.type is TriggerType.CAPABILITY_ACCESS

    @property
    def restricts(self) -> bool:
        """Whether less may be done once it fired."""
        effects = self.mode is not Mode.OBSERVATIONAL and (self.lock_capabilities or self.deny_actions)
        return bool(effects) or self.require_policy_check

    @property
    def is_due(self) -> bool:
        """It is never left out, whatever it costs: without it more would be allowed."""
        return self.mode is Mode.BLOCKING or self.restricts

    @property
    def asks_people(self) -> bool:
        return self.mode is Mode.BLOCKING and self.audience is Audience.HUMAN


class InjectMode(StrEnum):
    ALWAYS = "always"
    ON_MATCH = "on_match"
    ON_DEMAND = "on_demand"
    RISK_BASED = "risk_based"


@dataclass(frozen=True, kw_only=True, slots=True)
class ContextBlock:
    context_id: str
    name: str
    content: str
    inject_mode: InjectMode = InjectMode.ON_DEMAND
    priority: int = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Capability:
    capability_id: str
    name: str
    actions: tuple[str, ...]
    """Globs."""
    locked: bool = False
    """At the start: some gate unlocks it, or stands before it."""


class AtlasPolicyType(StrEnum):
    """In the order in which they are looked at."""

    DENY = "deny"
    REQUIRES_APPROVAL = "requires_approval"
    RATE_LIMIT = "rate_limit"
    BUDGET = "budget"
    ALLOW = "allow"


@dataclass(frozen=True, kw_only=True, slots=True)
class AtlasPolicy:
    policy_id: str
    type: AtlasPolicyType
    actions: tuple[str, ...]
    """Globs."""
    reason: str = ""
    max_calls: int | None = None
    """Of a rate limit, in each window of ``window_seconds``; of a budget, in the whole session."""
    window_seconds: int | float | None = None
    template: Template | None = None
    """Of an approval: who decides, and how long they have. None: the session's owner."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    action_id: str
    name: str
    description: str = ""
    risk_tier: Risk = Risk.LOW
    parameters_schema: Mapping[str, Any] | None = field(default=None, hash=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class GateBudget:
    """What gates may cost for one input. Gates that block or restrict are never left out for it."""

    max_checkpoints_per_input: int | None = None
    max_context_injection_size: int | None = None
    """Characters of contexts and guidance that a session carries."""
    max_checkpoint_time_ms: int | float | None = None


class AccessType(StrEnum):
    PUBLIC = "public"
    AUTHENTICATED = "authenticated"


@dataclass(frozen=True, kw_only=True, slots=True)
class Steward:
    id: str
    name: str
    contact: str | None = None
    access: AccessType = AccessType.PUBLIC
    """`authenticated`: guests are refused."""
    api_keys: tuple[str, ...] = ()
    """Globs over the names of keys; empty: every key."""
    requests_per_minute: int | None = None
    """Calls that run under the atlas in a minute, over all sessions of the org."""
    webhook: str | None = None
    notify_on: tuple[str, ...] = ()


NOTICES = ("policy_override", "high_risk_action", "checkpoint_triggered", "checkpoint_passed", "checkpoint_blocked")


@dataclass(frozen=True, kw_only=True, slots=True)
class Atlas:
    atlas_id: str
    version: str
    name: str
    digest: str
    """SHA-256 in hex of the manifest in its canonical form."""
    steward: Steward
    description: str = ""
    gates: tuple[Gate, ...] = ()
    capabilities: tuple[Capability, ...] = ()
    contexts: tuple[ContextBlock, ...] = ()
    policies: tuple[AtlasPolicy, ...] = ()
    actions: tuple[Action, ...] = ()
    budget: GateBudget = GateBudget()


FILE_NAME = "atlas.yaml"


@dataclass(frozen=True, kw_only=True, slots=True)
class AtlasSummary:
    """An atlas of the org, with all its versions taken together."""

    atlas_id: str
    name: str
    """As its newest version has it."""
    holds: str | None
    """The version that new sessions are bound to; None where all are retired."""
    newest: str
    """The version that was published last, retired or not."""
    versions: int
    published_by: str
    published_at: datetime
    owner_id: UUID | None = None
    """The member whom it belongs to: somebody else's version waits for their yes, or for an admin's."""
    owner: str | None = None
    team: str | None = None
    """The slug of the team that it belongs to, in the place of a member. Without both, admins decide about new versions."""


@draft(config=DRAFT, frozen=True, kw_only=True)
class AtlasHandover:
    """To whom an atlas belongs from now on: a member or a team."""

    member_id: UUID | None = None
    team: Ref | None = None

    def __post_init__(self) -> None:
        if (self.member_id is None) == (self.team is None):
            raise PydanticCustomError("one_of", "say `member_id` or `team`")


@dataclass(frozen=True, kw_only=True, slots=True)
class NumberedVersion:
    """A version in the order in which they were published."""

    atlas_id: str
    version: str
    digest: str
    name: str
    description: str
    gates: int
    warnings: list[str]
    published_by: str
    published_at: datetime
    retired_at: datetime | None
    retired_by: str | None
    number: int
    holds: bool
    """New sessions are bound to it."""
    access: AccessType
    api_keys: list[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class AtlasVersionDetails(NumberedVersion):
    sessions: int
    """Open ones that are bound to it; counted up to ``MAX_COUNTED``."""
    source: str | None
    """The file as it was published, where it was asked for."""


MAX_COUNTED = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """What became of a manifest."""

    version: NumberedVersion
    created: bool
    """False: this version was published before, with the same content; or it waits."""
    warnings: list[str]
    waits: PendingChange | None = None
    """The atlas belongs to somebody else: this version, as it would become, holds once they or an admin approve it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Retired:
    version: NumberedVersion
    changed: bool
    """False: it was retired before."""
    holds: str | None
    """The version that new sessions are bound to from now on; None: of this atlas none holds."""
    agents: list[str]
    """The agents that name the atlas and take no new work until a version holds: at most a hundred, by slug."""


@draft(config=DRAFT, frozen=True, kw_only=True)
class AtlasFile:
    """A manifest that a steward publishes."""

    manifest: Annotated[
        str,
        StringConstraints(min_length=1, max_length=MAX_ATLAS_BYTES),
        refused_as("unstorable_text", check_text, "manifest"),
    ]
    """YAML or JSON."""
    name: Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")] = FILE_NAME
    """What faults in it are named after."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AtlasChange:
    change: Literal["added", "removed", "changed"]
    kind: Literal["atlas", "gate", "question", "context", "capability", "policy", "action"]
    id: str
    """As the atlas names it; of a question `gate/question`."""
    fields: list[FieldChange]


@dataclass(frozen=True, kw_only=True, slots=True)
class AtlasDiff:
    atlas_id: str
    before: str
    after: str
    added: int
    removed: int
    changed: int
    changes: list[AtlasChange]
    """In the order of the kinds and of the ids, the first ``MAX_CHANGES`` of them."""


class GateRelation(StrEnum):
    """What a gate has to do with an action, or with a capability."""

    BEFORE = "before"
    """It fires before each call of the action."""
    RISK = "risk"
    """It fires before the call where the higher of the tool's and the atlas's risk reaches its `min_tier`."""
    AFTER = "after"
    GUARDS = "guards"
    """It stands before the capability while that is locked."""
    UNLOCKS = "unlocks"
    LOCKS = "locks"
    ALLOWS = "allows"
    DENIES = "denies"


@dataclass(frozen=True, kw_only=True, slots=True)
class GateRule:
    gate: str
    name: str
    mode: Mode
    audience: Audience
    trigger: TriggerType
    priority: int
    min_tier: Risk | None
    relations: list[GateRelation]
    questions: list[str]
    """By their ids."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AtlasRules:
    """What an atlas says about an action or a capability. Gates of the whole session (its start, keywords, intervals) are
    left out: they stop whatever comes."""

    atlas_id: str
    version: str
    action: str | None
    capability: str | None
    gates: list[GateRule]
    """The highest priority first."""
    capabilities: list[Capability]
    """Those that hold the action, or the one that was asked about."""
    policies: list[AtlasPolicy]
    """In the order in which they are evaluated; of an action alone."""
    declared: Action | None
    """The action, where the atlas declares it."""


SCHEMA_VERSION = 1


def schema() -> dict[str, Any]:
    name = f"atlas.v{SCHEMA_VERSION}.schema.json"
    document: dict[str, Any] = orjson.loads(importlib.resources.files(__package__).joinpath(name).read_bytes())
    return document

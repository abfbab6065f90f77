"""The keys of an atlas file: which may stand where, and what they hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cortex_plane.agents.model.tools import MAX_NAME
from cortex_plane.gates.model import atlases as atlas_model
from cortex_plane.gates.model.atlases import (
    ATLAS_VERSION,
    AccessType,
    AtlasPolicyType,
    InjectMode,
    Mode,
    ResponseType,
    TriggerType,
)
from cortex_plane.kernel import shapes
from cortex_plane.kernel.fields import Risk
from cortex_plane.kernel.shapes import Amount, Defs, Field, Flag, JsonObject, ListOf, MapOf, OneOf, Record, Tagged, Text
from cortex_plane.policies.model.policies import Template

SCHEMA_ID = "https://cortex-plane.dev/schemas/atlas/v1.json"
MAX_ID = 100
MAX_PATTERN = 1000
MAX_QUESTIONS = 50
MAX_WEBHOOK = 2000
MONTH_SECONDS = 30 * 86_400

_ID = Text(MAX_ID, r"[A-Za-z0-9][A-Za-z0-9._-]*", "letters, digits, dots, dashes and underscores")
_NAME = Text(200, shapes.LINE, "one line of text", visible=True)
_LONG = Text(10_000)
_ACTION = Text(
    MAX_NAME,
    r"[a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)*",
    "the name of a tool: lower case with dots, such as ticket.delete",
)
_GLOB = Text(MAX_ID, r"[a-z0-9_.*]+", "the name of a tool in lower case, with * for anything, such as ticket.*")
_GLOBS = ListOf(_GLOB)
_SOME_GLOBS = ListOf(_GLOB, least=1)
_IDS = ListOf(_ID)
_WORDS = ListOf(Text(MAX_PATTERN), least=1)
_RISK = OneOf(tuple(Risk))
_PRIORITY = Amount(-1_000_000, 1_000_000, whole=True)
_CALLS = Amount(1, 1_000_000_000, whole=True)
_SECONDS = Amount(1, MONTH_SECONDS)
_NOT_EMBEDDED = "atlases are kept by this plane and bound to sessions here; write `embedded`, or leave it out."
_INJECT = Field(_IDS, "Ids of `context_blocks` that the agent is told.")

STEWARD = Record("steward", "a steward", {
    "id": Field(_ID, "Who publishes the atlas.", required=True),
    "name": Field(_NAME, "As people read it.", required=True),
    "contact": Field(_NAME, "Where to write to."),
    "access": Field(Record("access", "`access`", {
        "type": Field(OneOf(tuple(AccessType)), "`authenticated` refuses guests. Left out: public."),
        "api_keys": Field(ListOf(Text(MAX_ID, r"[^\x00-\x20\x7f]+", "the name of a key, with * for anything", visible=True)),
                          "Names of keys, with * for anything, that may use the atlas. Left out: every key."),
        "rate_limit": Field(Record("access_rate_limit", "`rate_limit`", {
            "requests_per_minute": Field(_CALLS, "Calls that run under the atlas in a minute, in the whole org.",
                                         required=True),
        }), "How often the atlas is used."),
    }), "Who may use the atlas, and how much."),
    "delivery": Field(Record("delivery", "`delivery`", {
        "mode": Field(OneOf(("embedded",), why_not=_NOT_EMBEDDED), "Always `embedded`.", required=True),
    }), "How it comes to agents."),
    "notifications": Field(Record("notifications", "`notifications`", {
        "channels": Field(Record("notification_channels", "`channels`", {
            "webhook": Field(Text(MAX_WEBHOOK, r"https?://[^\x00-\x20\x7f]+", "an address that begins with https://"),
                             "The address of a webhook connection of the org."),
        }), "Where notices go."),
        "triggers": Field(ListOf(OneOf(atlas_model.NOTICES)), "What the steward is told of."),
    }), "What the steward is told."),
})  # fmt: skip

CAPABILITY = Record("capability", "a capability", {
    "capability_id": Field(_ID, "Unique in the atlas.", required=True),
    "name": Field(_NAME, "As people read it."),
    "actions": Field(_SOME_GLOBS, "Actions that it holds, with * for anything.", required=True),
})  # fmt: skip

_GLOBS_OF_ACTIONS = Field(_SOME_GLOBS, "Actions, with * for anything.", required=True)
_NO_KEYS: Mapping[str, Field] = {}
_MATCH_MODE = Field(OneOf(tuple(atlas_model.MatchMode)), "Left out: any.")
_CASE = Field(Flag(), "Whether case counts. Left out: false.")
_MIN_TIER = Field(_RISK, "The lowest risk that counts.", required=True)
_EVERY_SECONDS = Field(_SECONDS, "So many seconds after the last time.", required=True)
_EVERY_ACTIONS = Field(_CALLS, "So many calls after the last time.", required=True)

TRIGGER = Tagged(
    "trigger", "a trigger", "type", common=_NO_KEYS, description="When the gate fires.",
    aliases={"keyword_match": TriggerType.KEYWORD, "capability_gate": TriggerType.CAPABILITY_ACCESS},
    kinds={
        TriggerType.SESSION_START: _NO_KEYS,
        TriggerType.SESSION_END: _NO_KEYS,
        TriggerType.INTERACTIVE: _NO_KEYS,
        TriggerType.ACTION_PRE: {"patterns": _GLOBS_OF_ACTIONS},
        TriggerType.ACTION_POST: {"patterns": _GLOBS_OF_ACTIONS},
        TriggerType.KEYWORD: {
            "patterns": Field(_WORDS, "Words, phrases or regular expressions.", required=True),
            "match_mode": _MATCH_MODE,
            "case_sensitive": _CASE,
        },
        TriggerType.RISK_THRESHOLD: {"min_tier": _MIN_TIER},
        TriggerType.CAPABILITY_ACCESS: {
            "capability_ids": Field(ListOf(_ID, least=1), "Capabilities that it stands before.", required=True),
        },
        TriggerType.TIME_INTERVAL: {"seconds": _EVERY_SECONDS},
        TriggerType.COUNT_INTERVAL: {"actions": _EVERY_ACTIONS},
        TriggerType.EXPLICIT_REQUEST: {
            "patterns": Field(ListOf(Text(MAX_ID, r"[A-Za-z0-9_.*-]+", "a word, with * for anything"), least=1),
                              "What the agent asks for, with * for anything. Left out: whatever it asks for."),
        },
        TriggerType.ERROR_OCCURRED: _NO_KEYS,
        TriggerType.CUSTOM: {
            "trigger_id": Field(_ID, "The name under which an app registered it.", required=True),
            "params": Field(JsonObject(), "Given to the app's function."),
        },
    },
)  # fmt: skip

_VALIDATOR = Field(
    Text(MAX_ID + len(atlas_model.BY_WEBHOOK), rf"(?:{atlas_model.BY_WEBHOOK})?[A-Za-z0-9][A-Za-z0-9._-]*",
         "letters, digits, dots, dashes and underscores, maybe after `webhook:`"),
    "Who looks at the answer: a function that an app registered under this name, or `webhook:` and the name of a webhook"
    " connection of the org.",
)  # fmt: skip
_EQUALS = {"equals_argument": Field(
    Text(MAX_ID, r"[A-Za-z_][A-Za-z0-9_-]*", "the name of an argument, such as order_id"),
    "The argument of the stopped call whose value the answer must be; of action_pre and risk_threshold alone.",
)}  # fmt: skip
_LENGTH = Amount(0, atlas_model.MAX_ANSWER, whole=True)
_LIMIT = Amount(-1e15, 1e15)


def _validation(kind: str, fields: Mapping[str, Field]) -> Field:
    rules = Record(f"validation_{kind}", f"the `validation` of a {kind} question",
                     {**fields, "custom_validator": _VALIDATOR})  # fmt: skip
    return Field(rules, "What must hold of the answer.")


_OTHER_VALIDATION: Mapping[str, Mapping[str, Field]] = {
    kind: {"validation": _validation(kind, {})} for kind in (ResponseType.BOOLEAN, ResponseType.ACKNOWLEDGMENT)
}
QUESTION = Tagged(
    "question", "a question", "response_type", description="How it is answered.",
    common={
        "question_id": Field(_ID, "Unique in its checkpoint.", required=True),
        "question": Field(Text(5_000, visible=True), "What the agent reads.", required=True),
        "required": Field(Flag(), "Whether it must be answered. Left out: true."),
        "hint": Field(Text(1_000, visible=True), "Help with the answer."),
        "on_invalid": Field(OneOf(tuple(atlas_model.OnInvalid)), "What follows from a wrong answer. Left out: retry."),
    },
    kinds={
        ResponseType.TEXT: {"validation": _validation("text", {
            "pattern": Field(Text(MAX_PATTERN), "A regular expression that is found in it (RE2)."),
            "min_length": Field(_LENGTH, "Characters at least."),
            "max_length": Field(Amount(1, atlas_model.MAX_ANSWER, whole=True), "Characters at most."),
            "must_contain": Field(ListOf(Text(200), most=100), "Words that must be in it, in any case."),
            "must_not_contain": Field(ListOf(Text(200), most=100), "Words that must not, in any case and spelling."),
            **_EQUALS,
        })},
        **_OTHER_VALIDATION,
        ResponseType.CHOICE: {
            "options": Field(ListOf(_NAME, least=1, most=100), "What may be chosen.", required=True),
            "validation": _validation("choice", _EQUALS),
        },
        ResponseType.NUMBER: {"validation": _validation("number", {
            "minimum": Field(_LIMIT, "At least."),
            "maximum": Field(_LIMIT, "At most."),
            **_EQUALS,
        })},
        ResponseType.JSON: {
            "schema": Field(JsonObject(), "A JSON Schema that the answer must fit."),
            "validation": _validation("json", {}),
        },
    },
)  # fmt: skip

GUIDANCE = Record("guidance", "`guidance`", {
    "content": Field(shapes.TextOrJson(Text(atlas_model.MAX_CONTEXT)), "What the agent reads.", required=True),
    "format": Field(OneOf(tuple(atlas_model.GuidanceFormat)), "Left out: text."),
    "priority": Field(_PRIORITY, "The higher, the earlier it is read. Left out: 100."),
    "append": Field(Flag(), "false: it takes the place of all guidance before it. Left out: true."),
    "expires_after": Field(_ID, "`session-end`, the id of a checkpoint, or a time such as 10m."),
    "labels": Field(ListOf(_NAME, most=50), "For whoever looks for it."),
})  # fmt: skip

CHECKPOINT = Record("checkpoint", "a checkpoint", {
    "checkpoint_id": Field(_ID, "Unique in the atlas.", required=True),
    "name": Field(_NAME, "As people read it."),
    "trigger": Field(TRIGGER, "When it fires.", required=True),
    "mode": Field(OneOf(tuple(Mode)), "Whether it stops, tells, or only records.", required=True),
    "audience": Field(OneOf(tuple(atlas_model.Audience)), "`human`: a person approves. Left out: agent."),
    "questions": Field(ListOf(QUESTION, most=MAX_QUESTIONS), "What is asked; of blocking ones alone."),
    "max_attempts": Field(Amount(1, 100, whole=True), "Wrong answers until it stays shut. Left out: 3."),
    "guidance": Field(GUIDANCE, "What the agent is told from then on."),
    "inject_contexts": _INJECT,
    "unlock_capabilities": Field(_IDS, "Capabilities that it opens."),
    "lock_capabilities": Field(_IDS, "Capabilities that it shuts."),
    "allow_actions": Field(_GLOBS, "Actions that it allows, with * for anything."),
    "deny_actions": Field(_GLOBS, "Actions that it denies, with * for anything."),
    "force_sync_trace": Field(Flag(), "Its trace is durable before anything else happens."),
    "priority": Field(_PRIORITY, "The higher, the earlier. Left out: that of its type."),
})  # fmt: skip

CONTEXT = Tagged(
    "context_block", "a context block", "inject_mode", description="When the agent is told. Left out: on_demand.",
    default=InjectMode.ON_DEMAND,
    common={
        "context_id": Field(_ID, "Unique in the atlas.", required=True),
        "name": Field(_NAME, "Its heading."),
        "content": Field(Text(atlas_model.MAX_CONTEXT), "What the agent is told.", required=True),
        "priority": Field(_PRIORITY, "The higher, the earlier it is read. Left out: 100."),
    },
    kinds={
        InjectMode.ON_DEMAND: _NO_KEYS,
        InjectMode.ALWAYS: _NO_KEYS,
        InjectMode.ON_MATCH: {
            "keywords": Field(_WORDS, "Words, phrases or regular expressions.", required=True),
            "match_mode": _MATCH_MODE,
            "case_sensitive": _CASE,
        },
        InjectMode.RISK_BASED: {"min_tier": _MIN_TIER},
    },
)  # fmt: skip

_MAX_CALLS = Field(_CALLS, "Calls at most.", required=True)
POLICY = Tagged(
    "policy", "a policy", "type", description="What it does.",
    common={
        "policy_id": Field(_ID, "Unique in the atlas.", required=True),
        "actions": _GLOBS_OF_ACTIONS,
        "reason": Field(_LONG, "What whoever meets it is told."),
    },
    kinds={
        AtlasPolicyType.DENY: _NO_KEYS,
        AtlasPolicyType.REQUIRES_APPROVAL: {
            "template": Field(OneOf(tuple(Template)), "Who decides, and how long they have. Left out: the owner."),
        },
        AtlasPolicyType.RATE_LIMIT: {
            "max_calls": _MAX_CALLS,
            "window_seconds": Field(_SECONDS, "In so many seconds.", required=True),
        },
        AtlasPolicyType.BUDGET: {"max_calls": _MAX_CALLS},
        AtlasPolicyType.ALLOW: _NO_KEYS,
    },
)  # fmt: skip

ACTION = Record("action", "an action", {
    "action_id": Field(_ACTION, "The name of a tool.", required=True),
    "name": Field(_NAME, "As people read it."),
    "description": Field(_LONG, "What it does."),
    "risk_tier": Field(_RISK, "Of it and the tool's own, the higher counts. Left out: low."),
    "parameters_schema": Field(JsonObject(), "A JSON Schema that its arguments must fit."),
})  # fmt: skip

_ENABLED = Field(Flag(), "false: as if the section were not there. Left out: true.")
CONFIG = Record("checkpoint_config", "`checkpoint_config`", {
    "session_start": Field(Record("config_session_start", "`session_start`", {
        "enabled": _ENABLED, "inject_contexts": _INJECT,
    }), "What every session begins with."),
    "keyword_match": Field(Record("config_keyword_match", "`keyword_match`", {
        "enabled": _ENABLED,
        "mappings": Field(MapOf(Text(200, shapes.LINE, "words, such as delete|remove"), _IDS), "From words (`a|b`) to contexts."),
        "match_mode": _MATCH_MODE,
        "case_sensitive": _CASE,
    }), "What is told when words are said."),
    "action_pre": Field(Record("config_action_pre", "`action_pre`", {
        "enabled": _ENABLED,
        "mappings": Field(MapOf(_GLOB, Record("config_action", "a mapping of `action_pre`", {
            "inject_contexts": _INJECT,
            "require_policy_check": Field(Flag(), "Policies judge its calls as calls that change something."),
            "require_confirmation": Field(Flag(), "The agent must acknowledge before each call."),
        })), "From actions to what happens before them."),
    }), "What happens before actions."),
    "risk_threshold": Field(Record("config_risk_threshold", "`risk_threshold`", {
        "enabled": _ENABLED, "min_tier": _MIN_TIER, "inject_contexts": _INJECT,
        "require_sync_trace": Field(Flag(), "Its trace is durable before anything else happens."),
    }), "What happens before risky actions."),
    "time_interval": Field(Record("config_time_interval", "`time_interval`", {
        "enabled": _ENABLED, "seconds": _EVERY_SECONDS, "inject_contexts": _INJECT,
    }), "What is told again and again, by time."),
    "count_interval": Field(Record("config_count_interval", "`count_interval`", {
        "enabled": _ENABLED, "actions": _EVERY_ACTIONS, "inject_contexts": _INJECT,
    }), "What is told again and again, by calls."),
    "budget": Field(Record("config_budget", "`budget`", {
        "max_checkpoints_per_input": Field(Amount(1, 1_000_000, whole=True), "Gates that fire for one input."),
        "max_context_injection_size": Field(Amount(1, 100_000_000, whole=True), "Characters that are told."),
        "max_checkpoint_time_ms": Field(Amount(1, 60_000), "Time that gates take for one input."),
    }), "What gates may cost. Blocking ones are never left out."),
})  # fmt: skip

ATLAS = Record("atlas", "an atlas", {
    "atlas_version": Field(OneOf((ATLAS_VERSION,)), 'The format: "1.0".', required=True),
    "atlas_id": Field(Text(200, r"[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?", "lower case with dots, such as com.acme.support"),
                      "Which atlas it is.", required=True),
    "version": Field(Text(64, r"[0-9A-Za-z][0-9A-Za-z.+_-]*", "a version such as 2.1.0"),
                     "Which version of it; a published one never changes.", required=True),
    "name": Field(_NAME, "As people read it.", required=True),
    "description": Field(_LONG, "What it is for."),
    "steward": Field(STEWARD, "Who publishes it.", required=True),
    "capabilities": Field(ListOf(CAPABILITY, most=atlas_model.MAX_GATES), "Groups of actions that gates open and shut."),
    "checkpoints": Field(ListOf(CHECKPOINT, most=atlas_model.MAX_GATES), "The gates."),
    "context_blocks": Field(ListOf(CONTEXT, most=atlas_model.MAX_GATES), "What agents may be told."),
    "policies": Field(ListOf(POLICY, most=atlas_model.MAX_GATES), "Rules that hold without anybody being asked."),
    "actions": Field(ListOf(ACTION, most=atlas_model.MAX_GATES), "What is known about actions."),
    "checkpoint_config": Field(CONFIG, "The short form of gates that only tell, or only ask for a confirmation."),
})  # fmt: skip


def schema() -> dict[str, Any]:
    """The JSON Schema of an atlas file."""
    defs: Defs = {}
    ATLAS.schema(defs)
    root = defs.pop("atlas")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "Atlas",
        "description": "What a steward publishes about the actions of agents. What it cannot tell, such as references"
        " between parts, `cortex atlas validate` does.",
        **root,
        "$defs": dict(sorted(defs.items())),
    }

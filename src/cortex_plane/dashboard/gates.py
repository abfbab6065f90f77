"""What pages show of gates: what they did, and what an agent may do now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cortex_plane.calls.model import ActionAnswer, ActionState, Permissions, Whom
from cortex_plane.gates.model.atlases import MatchMode, Trigger, TriggerType
from cortex_plane.gates.rules.prompts import GateNews, NewsKind, news
from cortex_plane.sessions.model.events import Event
from cortex_plane.sessions.model.sessions import BoundAtlas

GATE_ENTRIES = 100
"""Entries on a job's page, the newest."""
NAMES_LISTED = 20
_WORDS = {
    NewsKind.ASKED: "Asked",
    NewsKind.ADVISED: "Advised",
    NewsKind.NOTED: "Noted",
    NewsKind.ANSWERED: "Answered",
    NewsKind.REFUSED: "Not accepted",
    NewsKind.PASSED: "Passed",
    NewsKind.BLOCKED: "Blocked",
    NewsKind.SKIPPED: "Left out",
}
_STATES = {ActionState.ALLOWED: "Allowed now", ActionState.ASKS_FIRST: "Asks first", ActionState.DENIED: "Denied"}
_ASKED = {Whom.AGENT: "Asks the agent first", Whom.PERSON: "Asks a person first"}


@dataclass(frozen=True, slots=True)
class GateEntry:
    news: GateNews
    seq: int
    at: datetime


@dataclass(frozen=True, slots=True)
class JobGates:
    """The atlases of a job's session, what their gates did, and what they allow now; empty where there are none."""

    atlases: Sequence[BoundAtlas] = ()
    entries: Sequence[GateEntry] = ()
    permissions: Permissions | None = None


def gate_entries(events: Sequence[Event]) -> list[GateEntry]:
    """The events about gates, in order."""
    pairs = ((news(event.type, event.data), event) for event in events)
    return [GateEntry(entry, event.seq, event.created_at) for entry, event in pairs if entry is not None]


def gate_word(kind: NewsKind) -> str:
    return _WORDS[kind]


def may_words(answer: ActionAnswer) -> str:
    """What happens to an action that is called now; where someone is asked first, who."""
    return _STATES[answer.state] if answer.whom is None else _ASKED[answer.whom]


def rule_words(rule: str) -> str:
    """The gate, policy or capability behind a verdict."""
    kind, _, key = rule.partition(":")
    atlas, _, name = key.rpartition("/")
    match kind:
        case "gate":
            return f"gate {name or atlas}"
        case "atlas" if key == "default":
            return "nothing allows it"
        case "atlas":
            return f"policy {name}"
        case "capability":
            return f"capability {name}"
        case "action":
            return "its declaration"
    return rule


def own_name(key: str) -> str:
    """Without the atlas that it belongs to."""
    return str(key).rpartition("/")[2]


def trigger_words(trigger: Trigger) -> str:
    """When a gate fires, as its atlas has it."""
    patterns = _list_names(trigger.patterns)
    match trigger.type:
        case TriggerType.SESSION_START:
            return "as a session begins"
        case TriggerType.SESSION_END:
            return "as a session ends"
        case TriggerType.INTERACTIVE:
            return "before anything goes on"
        case TriggerType.ACTION_PRE:
            return f"before {patterns} runs"
        case TriggerType.ACTION_POST:
            return f"after {patterns} ended"
        case TriggerType.CAPABILITY_ACCESS:
            return f"before an action of {_list_names(trigger.capability_ids)} runs"
        case TriggerType.RISK_THRESHOLD:
            return f"before an action runs whose risk is {trigger.min_tier} or more"
        case TriggerType.KEYWORD:
            return f"when {_MATCHES[trigger.match_mode]} {patterns} is said"
        case TriggerType.TIME_INTERVAL:
            return f"every {trigger.seconds:g} seconds" if trigger.seconds else "now and then"
        case TriggerType.COUNT_INTERVAL:
            return f"every {trigger.actions} actions"
        case TriggerType.EXPLICIT_REQUEST:
            return f"when the agent asks for {patterns or 'it'}"
        case TriggerType.ERROR_OCCURRED:
            return "when something went wrong"
        case TriggerType.CUSTOM:
            return f"when {trigger.trigger_id} says so"


_MATCHES = {
    MatchMode.ANY: "any of",
    MatchMode.ALL: "each of",
    MatchMode.PHRASE: "the phrase",
    MatchMode.REGEX: "what matches",
}


def _list_names(names: Sequence[str]) -> str:
    text = ", ".join(names[:NAMES_LISTED])
    return text if len(names) <= NAMES_LISTED else f"{text} and {len(names) - NAMES_LISTED} more"


FILTERS: dict[str, Any] = {
    function.__name__: function for function in (gate_word, may_words, rule_words, own_name, trigger_words)
}

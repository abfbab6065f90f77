"""What pages show of gates: what they did, and what an agent may do now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cortex_plane.calls.model import ActionAnswer, ActionState, Whom
from cortex_plane.gates.model.atlases import MatchMode, Trigger, TriggerType
from cortex_plane.gates.rules.prompts import GateNews, NewsKind, news
from cortex_plane.sessions.model.events import Event

SHOWN = 100
"""Things that gates did, the newest, on a job's page."""
LISTED = 20
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
_STATES = {
    ActionState.ALLOWED: "Allowed now",
    ActionState.ASKS_FIRST: "Asks first",
    ActionState.DENIED: "Denied",
}
_ASKED = {Whom.AGENT: "Asks the agent first", Whom.PERSON: "Asks a person first"}


@dataclass(frozen=True, slots=True)
class Told:
    news: GateNews
    seq: int
    at: datetime


def told(events: Sequence[Event]) -> list[Told]:
    """In order; what is not about gates is left out."""
    heard = ((news(event.type, event.data), event) for event in events)
    return [Told(each, event.seq, event.created_at) for each, event in heard if each is not None]


def gate_word(kind: NewsKind) -> str:
    return _WORDS[kind]


def may_words(answer: ActionAnswer) -> str:
    """What becomes of an action that is called now; where somebody is asked first, who."""
    return _STATES[answer.state] if answer.whom is None else _ASKED[answer.whom]


def rule_words(rule: str) -> str:
    """Which gate, policy or capability did it, as a person says it."""
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
    patterns = _listed(trigger.patterns)
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
            return f"before an action of {_listed(trigger.capability_ids)} runs"
        case TriggerType.RISK_THRESHOLD:
            return f"before an action runs whose risk is {trigger.min_tier} or more"
        case TriggerType.KEYWORD:
            return f"when {_HEARD[trigger.match_mode]} {patterns} is said"
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


_HEARD = {
    MatchMode.ANY: "any of",
    MatchMode.ALL: "each of",
    MatchMode.PHRASE: "the phrase",
    MatchMode.REGEX: "what matches",
}


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:LISTED])
    return shown if len(names) <= LISTED else f"{shown} and {len(names) - LISTED} more"


FILTERS: dict[str, Any] = {
    "gate_word": gate_word,
    "may_words": may_words,
    "rule_words": rule_words,
    "own_name": own_name,
    "trigger_words": trigger_words,
}

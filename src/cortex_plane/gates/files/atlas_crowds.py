"""Gates that stand before everything, or before a person: as many as somebody can answer, and no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from cortex_plane.gates.model.atlases import Audience, Mode, TriggerType
from cortex_plane.gates.rules.gate_effects import MAX_FIRED
from cortex_plane.gates.rules.gate_prompts import MAX_CARD, card_of
from cortex_plane.kernel.globs import STAR

Plain = dict[str, Any]
Fault = Callable[[tuple[str | int, ...], str], None]
_ALWAYS = (
    TriggerType.SESSION_START, TriggerType.INTERACTIVE, TriggerType.RISK_THRESHOLD, TriggerType.TIME_INTERVAL,
    TriggerType.COUNT_INTERVAL, TriggerType.ERROR_OCCURRED, TriggerType.CUSTOM,
)  # fmt: skip
"""They fire together, whatever the agent does."""
_BY_NAME = (TriggerType.ACTION_PRE, TriggerType.ACTION_POST, TriggerType.EXPLICIT_REQUEST)


def crowds(atlas: Plain, fault: Fault) -> None:
    """Blocking gates are never left out, so there may not be any number of them at one moment."""
    number, shown = 0, 0
    for place, each in _blocking(atlas):
        asked = len(_card(each)) if each.get("audience") == Audience.HUMAN else 0
        if asked > MAX_CARD:
            fault(
                ("checkpoints", place, "questions"),
                f"a person would read {asked} characters before they approve, and {MAX_CARD} fit: ask less, or more briefly.",
            )
        if not everything(each["trigger"]):
            continue
        # Between two cards is a line break.
        number, was, shown = number + 1, shown, shown + asked + bool(asked)
        if number == MAX_FIRED + 1:
            fault(
                ("checkpoints", place),
                f"more than {MAX_FIRED} blocking checkpoints stand before everything: nobody can answer them all."
                " Name the actions, capabilities or keywords that they are for.",
            )
        if was <= MAX_CARD < shown and asked <= MAX_CARD:
            fault(
                ("checkpoints", place, "questions"),
                f"a person would read {shown} characters before every call, this checkpoint included, and {MAX_CARD} fit:"
                " ask less, or name the actions that it is for.",
            )


def _blocking(atlas: Plain) -> Iterator[tuple[int, Plain]]:
    for number, each in enumerate(atlas.get("checkpoints", ())):
        if each["mode"] == Mode.BLOCKING:
            yield number, each


def _card(given: Plain) -> str:
    id = given["checkpoint_id"]
    asked = ((each["question"], each.get("hint")) for each in given.get("questions", ()))
    return card_of(id, given.get("name") or id, asked)


def everything(trigger: Plain) -> bool:
    """Whether it fires at the same moment as all others of which this is true, whatever the agent does."""
    kind = trigger["type"]
    if kind in _BY_NAME:
        patterns = trigger.get("patterns") or (STAR,)
        return any(not pattern.strip(STAR) for pattern in patterns)
    return kind in _ALWAYS

"""Patterns of actions that nothing tells apart: each of them is tried for every new action, so they have an end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from cortex_plane.gates.files.atlas_gates import dotted
from cortex_plane.gates.model.atlases import TriggerType
from cortex_plane.kernel.glob_index import MAX_VAGUE, TELLING, GlobIndex
from cortex_plane.kernel.globs import STAR

Plain = dict[str, Any]
Fault = Callable[[tuple[str | int, ...], str], None]
_BY_NAME = (TriggerType.ACTION_PRE, TriggerType.ACTION_POST, TriggerType.EXPLICIT_REQUEST)


def vague_globs(atlas: Plain, fault: Fault) -> None:
    """Counted as they will be looked for: of each kind by itself, and over all kinds together."""
    total = 0
    for section, patterns in _kinds(atlas):
        starred = dict.fromkeys(each for each in patterns if STAR in each)
        total += GlobIndex((each, None) for each in starred).vague
        if total > MAX_VAGUE:
            fault(
                (section,),
                f"{total} patterns of actions have no part of their own by which they could be told apart, and an atlas may have"
                f" {MAX_VAGUE}: name the actions, or write patterns with {TELLING} characters that few others have.",
            )
            return


def _kinds(atlas: Plain) -> Iterator[tuple[str, Iterator[str]]]:
    for section in ("capabilities", "policies"):
        yield section, chain.from_iterable(each["actions"] for each in atlas.get(section, ()))
    for kind in _BY_NAME:
        yield "checkpoints", _of_triggers(atlas, kind)


def _of_triggers(atlas: Plain, kind: TriggerType) -> Iterator[str]:
    for each in atlas.get("checkpoints", ()):
        if each["trigger"]["type"] == kind:
            yield from each["trigger"].get("patterns", ())
    if kind == TriggerType.ACTION_PRE:
        for pattern in atlas.get("checkpoint_config", {}).get("action_pre", {}).get("mappings", ()):
            yield from dotted(pattern)

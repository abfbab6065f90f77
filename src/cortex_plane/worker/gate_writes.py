"""What gates said in an attempt and is not written yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar
from uuid import UUID

from cortex_plane.gates.model.gates import GateState, Trace
from cortex_plane.gates.rules.index import CompiledAtlases


class Changed(Protocol):
    """What every evaluation gives."""

    @property
    def state(self) -> GateState: ...
    @property
    def traces(self) -> tuple[Trace, ...]: ...


C = TypeVar("C", bound=Changed)
Change = Callable[[CompiledAtlases, GateState], Changed]


@dataclass(slots=True, eq=False)
class Done:
    """One evaluation that is not written yet."""

    change: Change | None
    """None where it changed nothing."""
    traces: tuple[Trace, ...]
    """What it tells: anew, where it is done again on top of what somebody else wrote."""
    call: str = ""
    """The call that it was about, until it is settled or sent."""


@dataclass(frozen=True, slots=True)
class GateWrite:
    """What one write holds of gates."""

    state: GateState
    is_new: bool
    """The row is written."""
    done: tuple[Done, ...]
    ids: tuple[UUID, ...]
    told: tuple[Trace, ...]
    more: dict[str, Any]


def without(done: Sequence[Done], gone: Sequence[Done]) -> list[Done]:
    return [each for each in done if each not in gone] if gone else list(done)

"""How many gates fire at one moment: what atlases allow themselves, and what holds whatever they say."""

from __future__ import annotations

from collections.abc import Sequence

from cortex_plane.gates.model import trace
from cortex_plane.gates.model.atlases import Gate
from cortex_plane.gates.rules.gate_effects import AT_ONCE, MAX_FIRED, EvaluationRun


def within_budget(
    work: EvaluationRun, gates: Sequence[Gate], elapsed_ms: float = 0.0, *, told: bool = False
) -> Sequence[Gate]:
    """The most important first. What blocks or restricts is never left out; what is left out is traced, unless it was
    ``told`` before."""
    budget = work.atlases.budget
    most, time = budget.max_checkpoints_per_input, budget.max_checkpoint_time_ms
    if most is None and time is None and len(gates) <= MAX_FIRED:
        return gates
    late = time is not None and elapsed_ms > time
    reason = "max_checkpoint_time_ms" if late else "max_checkpoints_per_input"
    if most is None or most > MAX_FIRED:
        most, reason = MAX_FIRED, reason if late else AT_ONCE
    room = most - sum(gate.is_due for gate in gates)
    kept, left = list[Gate](), list[Gate]()
    for gate in gates:
        if gate.is_due:
            kept.append(gate)
        elif room > 0 and not late:
            kept.append(gate)
            room -= 1
        else:
            left.append(gate)
    if not told:
        _leave_out(work, left, reason)
    return kept


def _leave_out(work: EvaluationRun, gates: Sequence[Gate], reason: str) -> None:
    """Each is on the trail; of very many the first is, with the number of the others."""
    if work.looking:
        return
    if reason == AT_ONCE or len(gates) > MAX_FIRED:
        work.traces += [trace.skipped(gate, reason, others=len(gates) - 1) for gate in gates[:1]]
    else:
        work.traces += [trace.skipped(gate, reason) for gate in gates]

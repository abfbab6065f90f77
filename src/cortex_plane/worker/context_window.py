"""The context window of a job: what its model is sent, and the memory that replaces older turns.

Compacting is one request to the model and one commit: the memory, how far it goes, the event and the audit entry are
durable together, and only then the turns are dropped. A worker that dies before that commit asks the model again; one that
dies after it goes on from the memory. Messages that arrive meanwhile lie beyond the memory, and are read next.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from cortex_plane.agents.model import completions
from cortex_plane.agents.model.completions import ModelError, ModelRequest, Turn, UserTurn
from cortex_plane.jobs.model.jobs import JobKind
from cortex_plane.jobs.rules.attempts import StepWrite, WriteResult
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.sessions.model import sessions
from cortex_plane.sessions.model.sessions import Memory, memory_allowance
from cortex_plane.sessions.rules import (
    CONTEXT_TOKENS,
    LEAST_TOKENS,
    Budget,
    Covered,
    assembled,
    chunk,
    due,
    filled,
)

if TYPE_CHECKING:
    from cortex_plane.worker.model_calls import Voice


log = structlog.get_logger()

SUMMARY_TOKENS = 4096


def window(attempt: Voice) -> list[Turn]:
    """What the model is told next."""
    return assembled(attempt.turns, _memory(attempt), _budget(attempt))


async def compact(attempt: Voice) -> WriteResult | None:
    """Make room, if the window is filled to its mark; None where it is not. Raises `ModelError`."""
    budget, memory, at = _budget(attempt), _memory(attempt), attempt.at
    count = due(attempt.turns, memory, budget)
    if not count:
        return None
    before = filled(attempt.turns, memory, budget)
    count, turns = chunk(attempt.turns.entries[:count], _room(attempt, budget))
    made, by = await _remembered(attempt, memory, turns)
    kept = sessions.bound_memory(made, budget.tokens)
    covered = Covered(at.window_step, at.window_seq).after(attempt.turns.drop(count))
    at.window_step, at.window_seq = covered.step, covered.seq
    at.conversation_summary, at.accumulated_facts = kept.summary, kept.facts
    whole = {"summary": kept.summary, "facts": list(kept.facts)}
    told = {
        "step": covered.step, "message_seq": covered.seq, "turns": count, "by": by, "facts": len(kept.facts),
        "facts_dropped": len(made.facts) - len(kept.facts), "tokens_before": before,
        "tokens_after": filled(attempt.turns, kept, budget),
    }  # fmt: skip
    conversation = attempt.given.kind is JobKind.CONVERSATION
    return await attempt.write(
        StepWrite(
            more={"memory": {"message_seq": covered.seq, **whole}} if conversation else {},
            events=[("context_compacted", told)],
            facts=[
                attempt.fact(
                    "context_compacted", **told, memory_sha256=hashlib.sha256(canonical(whole)).hexdigest()
                )
            ],
        )
    )


def _memory(attempt: Voice) -> Memory:
    return Memory(attempt.at.conversation_summary or "", attempt.at.accumulated_facts)


def _budget(attempt: Voice) -> Budget:
    whole = Budget.of(attempt.given.model_config, attempt.prompted(attempt.prompt), attempt.toolbox.specs)
    notice = attempt.notice
    if not notice:
        return whole
    return replace(whole, tokens=max(LEAST_TOKENS, whole.tokens - completions.of_turn(UserTurn(notice))))


def _answer_tokens(attempt: Voice) -> int:
    return min(SUMMARY_TOKENS, (attempt.given.model_config.get("context_tokens") or CONTEXT_TOKENS) // 4)


def _room(attempt: Voice, budget: Budget) -> int:
    """For the turns in one question: beside them stand the instructions, the memory so far, and the answer."""
    context = attempt.given.model_config.get("context_tokens") or CONTEXT_TOKENS
    whole = min(budget.tokens, context - _answer_tokens(attempt) - completions.of_text(sessions.INSTRUCTIONS))
    return max(LEAST_TOKENS, whole - memory_allowance(budget.tokens))


async def _remembered(attempt: Voice, memory: Memory, turns: Sequence[Turn]) -> tuple[Memory, str]:
    """What the model makes of it, asked twice at most; else an extract. And who made it."""
    question: list[Turn] = [UserTurn(sessions.memory_question(memory, turns))]
    for _ in range(2):
        try:
            response = await attempt.ask(_request(attempt, question), purpose="summary")
        except ModelError as error:
            if error.code != "model_refused":
                raise
            break
        attempt.at.prompt_tokens += response.usage.prompt_tokens
        attempt.at.completion_tokens += response.usage.completion_tokens
        try:
            return sessions.parse_memory(response.text), "model"
        except InvalidInput as error:
            log.warning("summary refused", job_id=str(attempt.given.job_id), error=error.message)
            question = [question[0], UserTurn(f"{error.message} {error.hint}")]
    return sessions.extract_memory(memory, [sessions.turn_record(turn) for turn in turns]), "extract"


def _request(attempt: Voice, question: Sequence[Turn]) -> ModelRequest:
    return replace(
        attempt.request(question),
        system_prompt=sessions.INSTRUCTIONS,
        tools=(),
        max_tokens=_answer_tokens(attempt),
        purpose="summary",
    )

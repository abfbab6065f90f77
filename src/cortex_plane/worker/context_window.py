"""The context window of a job: what its model is sent, and the memory that replaces older turns.

Compacting is one request to the model and one commit: the memory, how far it goes, the event and the audit entry are
durable together, and only then the turns are dropped. A worker that dies before that commit asks the model again; one that
dies after it goes on from the memory. Messages that arrive meanwhile lie beyond the memory, and are read next.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import structlog

from cortex_plane.agents.model import completions
from cortex_plane.agents.model.completions import ModelError, ModelRequest, Turn, UserTurn
from cortex_plane.jobs.model.jobs import JobKind
from cortex_plane.jobs.rules import StepWrite
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.sessions.model import sessions
from cortex_plane.sessions.model.sessions import Memory, memory_allowance
from cortex_plane.sessions.rules import CONTEXT_TOKENS, LEAST_TOKENS, Budget, Covered, assembled, chunk, due, filled
from cortex_plane.worker.lease import Lease
from cortex_plane.worker.model_calls import ModelConversation
from cortex_plane.worker.session_gates import SessionGates

log = structlog.get_logger()

SUMMARY_TOKENS = 4096


class ContextWindow:
    def __init__(self, lease: Lease, gates: SessionGates, conversation: ModelConversation) -> None:
        self._lease, self._gates, self._conversation = lease, gates, conversation
        self._prompt_budget: tuple[str | None, Budget] | None = None
        """The budget beside this prompt: counting the tools is not repeated for every step."""

    def turns(self) -> list[Turn]:
        """What the model is sent next."""
        return assembled(self._conversation.turns, self._memory(), self._budget())

    async def compact(self) -> StepWrite | None:
        """Make room if the window is filled to its mark; None where it is not. Raises `ModelError`."""
        budget, memory, progress = self._budget(), self._memory(), self._lease.progress
        thread = self._conversation.turns
        count = due(thread, memory, budget)
        if not count:
            return None
        tokens_before = filled(thread, memory, budget)
        count, turns = chunk(thread.entries[:count], self._room(budget))
        summary, by = await self._summarise(memory, turns)
        memory = sessions.bound_memory(summary, budget.tokens)
        coverage = Covered(progress.window_step, progress.window_seq).after(thread.drop(count))
        progress.window_step, progress.window_seq = coverage.step, coverage.seq
        progress.conversation_summary, progress.accumulated_facts = memory.summary, memory.facts
        content = {"summary": memory.summary, "facts": list(memory.facts)}
        event = {
            "step": coverage.step, "message_seq": coverage.seq, "turns": count, "by": by, "facts": len(memory.facts),
            "facts_dropped": len(summary.facts) - len(memory.facts), "tokens_before": tokens_before,
            "tokens_after": filled(thread, memory, budget),
        }  # fmt: skip
        is_conversation = self._lease.assignment.kind is JobKind.CONVERSATION
        digest = hashlib.sha256(canonical(content)).hexdigest()
        return StepWrite(
            more={"memory": {"message_seq": coverage.seq, **content}} if is_conversation else {},
            events=[("context_compacted", event)],
            facts=[self._lease.fact("context_compacted", **event, memory_sha256=digest)],
        )

    def _memory(self) -> Memory:
        progress = self._lease.progress
        return Memory(progress.conversation_summary or "", progress.accumulated_facts)

    def _budget(self) -> Budget:
        lease, gates = self._lease, self._gates
        prompt = gates.system_prompt(lease.prompt)
        if self._prompt_budget is None or self._prompt_budget[0] != prompt:
            self._prompt_budget = prompt, Budget.of(lease.assignment.model_config, prompt, lease.toolbox.specs)
        budget = self._prompt_budget[1]
        notice = gates.notice
        if not notice:
            return budget
        return replace(budget, tokens=max(LEAST_TOKENS, budget.tokens - completions.of_turn(UserTurn(notice))))

    def _context_tokens(self) -> int:
        return self._lease.assignment.model_config.get("context_tokens") or CONTEXT_TOKENS

    def _summary_tokens(self) -> int:
        return min(SUMMARY_TOKENS, self._context_tokens() // 4)

    def _room(self, budget: Budget) -> int:
        """For the turns in one request: beside them stand the instructions, the memory so far, and the answer."""
        instructions = completions.of_text(sessions.INSTRUCTIONS)
        tokens = min(budget.tokens, self._context_tokens() - self._summary_tokens() - instructions)
        return max(LEAST_TOKENS, tokens - memory_allowance(budget.tokens))

    async def _summarise(self, memory: Memory, turns: Sequence[Turn]) -> tuple[Memory, str]:
        """The model's summary, requested twice at most; else an extract. And which of both it is."""
        question: list[Turn] = [UserTurn(sessions.memory_question(memory, turns))]
        for _ in range(2):
            try:
                response = await self._conversation.ask(self._request(question), purpose="summary")
            except ModelError as error:
                if error.code != "model_refused":
                    raise
                break
            self._conversation.add_tokens(response.usage)
            try:
                return sessions.parse_memory(response.text), "model"
            except InvalidInput as error:
                log.warning("summary refused", job_id=str(self._lease.assignment.job_id), error=error.message)
                question = [question[0], UserTurn(f"{error.message} {error.hint}")]
        return sessions.extract_memory(memory, [sessions.turn_record(turn) for turn in turns]), "extract"

    def _request(self, question: Sequence[Turn]) -> ModelRequest:
        request, most = self._conversation.request(question), self._summary_tokens()
        return replace(request, system_prompt=sessions.INSTRUCTIONS, tools=(), max_tokens=most, purpose="summary")

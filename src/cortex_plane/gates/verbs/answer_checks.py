"""Answers that a steward's own system looks at: a signed request to a webhook connection of the org, with a time limit.

What it cannot look at in time is not accepted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol
from uuid import UUID

import structlog

from cortex_plane.gates.model.atlases import GateQuestion
from cortex_plane.gates.rules.answers import AnswerTarget, custom_checks
from cortex_plane.kernel.errors import CortexError

log = structlog.get_logger()

SECONDS = 5.0
"""For all answers to one gate."""


class StewardCallbacks(Protocol):
    async def check_answer(self, org_id: UUID, connection: str, data: Mapping[str, Any]) -> str | None:
        """What is wrong with an answer; None where nothing is. Raises ``CortexError`` where nobody could look at it."""
        ...


async def ask_stewards(
    callbacks: StewardCallbacks | None, org_id: UUID, session_id: UUID, target: AnswerTarget, answers: Mapping[str, Any]
) -> dict[str, str | None]:
    """By question: the fault of its answer, None for a valid one. Answers that nobody looked at are left out."""
    gate = target.gate
    if gate is None or callbacks is None:
        return {}
    about = {
        "session_id": str(session_id), "atlas": gate.atlas_id, "gate": gate.gate_id,
        "action": (target.which.action or None) if target.which is not None else None,
    }  # fmt: skip
    faults: dict[str, str | None] = {}

    async def check(question: GateQuestion, connection: str, answer: Any) -> None:
        kind = {"question_id": question.question_id, "question": question.question, "type": question.response_type}
        try:
            faults[question.question_id] = await callbacks.check_answer(
                org_id, connection, about | kind | {"answer": answer}
            )
        except CortexError as error:
            log.warning(
                "answer not checked", org_id=str(org_id), gate=gate.key, connection=connection, reason=error.message
            )

    checks = [
        check(question, question.validation.connection, answer)
        for question, answer in custom_checks(gate, answers)
        if question.validation.connection is not None
    ]
    if checks:
        try:
            async with asyncio.timeout(SECONDS):
                await asyncio.gather(*checks)
        except TimeoutError:
            log.warning("answers not checked in time", org_id=str(org_id), gate=gate.key, seconds=SECONDS)
    return faults

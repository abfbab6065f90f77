"""What every engine carries: the same deterministic bytes, about as compressible as prose and JSON are."""

from __future__ import annotations

import json
import random
from typing import Any

TOOL_BYTES = 2048
RESPONSE_BYTES = 1024
_VOCABULARY = (
    "release deploy cluster service latency budget review approve rollback version customer invoice region queue "
    "worker database index migration schema request response timeout retry session message policy agent tool call"
)
_WORDS = _VOCABULARY.split()


def words(size: int, seed: int) -> str:
    """Exactly ``size`` characters of words and numbers, the same for the same seed."""
    draw = random.Random(seed)
    text = ""
    while len(text) < size:
        text += f"{draw.choice(_WORDS)} {draw.randrange(10_000)} "
    return text[:size]


def _tool_payload(seed: int) -> dict[str, Any]:
    payload: dict[str, Any] = {"tool": "deploy", "region": "eu-west-1", "count": 3, "dry_run": False, "note": ""}
    payload["note"] = words(TOOL_BYTES - len(json.dumps(payload)), seed)
    return payload


TOOL_ARGUMENTS = _tool_payload(1)
TOOL_RESULT = _tool_payload(2)


def model_response(number: int = 0) -> str:
    """What a model said; a different text for each number, as in a real conversation."""
    return words(RESPONSE_BYTES, 1000 + number)


async def effect(arguments: dict[str, Any]) -> dict[str, Any]:
    """The side effect of the measured steps: nothing, so that only the engine is measured."""
    assert arguments
    return TOOL_RESULT

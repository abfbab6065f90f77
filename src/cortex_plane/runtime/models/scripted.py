"""A model that says what its script says: no provider, no key, no cost, no surprise."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

import orjson
from pydantic import ValidationError

from cortex_plane.domain.models import ModelError, Request, Response, TextChunk
from cortex_plane.domain.scripts import Script, ScriptTurn, answer
from cortex_plane.domain.values import adapter

_WORDS = re.compile(r"(?<=\s)(?=\S)")


class ScriptedModel:
    async def stream(self, request: Request) -> AsyncIterator[TextChunk | Response]:
        due = answer(_script_of(request.settings), request)
        if due.delay_ms:
            await asyncio.sleep(due.delay_ms / 1000)
        if due.error_status is not None:
            raise ModelError(
                f"The scripted model answered with status {due.error_status}, as its script says.",
                status=due.error_status,
                hint="Remove `error_status` from this turn of the script if that was not meant.",
            )
        for word in _WORDS.split(due.response.text or ""):
            if word:
                yield TextChunk(word)
                if due.chunk_delay_ms:
                    await asyncio.sleep(due.chunk_delay_ms / 1000)
        yield due.response


def _script_of(settings: Mapping[str, Any]) -> tuple[ScriptTurn, ...] | None:
    script = settings.get("script")
    if script is None:
        return None
    try:
        return _parsed(orjson.dumps(script))
    except (TypeError, ValidationError) as error:
        raise ModelError(
            f"The script of the scripted model is not valid: {error}",
            hint="Correct `model_config.script` of the agent.",
        ) from error


@functools.lru_cache(maxsize=32)
def _parsed(script: bytes) -> tuple[ScriptTurn, ...]:
    """A job asks once per step, and a long script costs far more to parse than to serialise."""
    return tuple(adapter(Script).validate_json(script))

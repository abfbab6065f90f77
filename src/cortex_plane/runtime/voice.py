"""Asking the model: one request, its answer as it is spoken, and the times within which it must come."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from cortex_plane.domain.attempts import Assignment
from cortex_plane.domain.models import ModelError, Request, Response, Turn
from cortex_plane.runtime.chunks import Chunks, heard
from cortex_plane.runtime.lease import Host
from cortex_plane.runtime.opening import Opening
from cortex_plane.storage.crash_points import reached


class Voice(Opening):
    """A leased job that speaks with its model."""

    def __init__(self, host: Host, given: Assignment) -> None:
        super().__init__(host, given)
        self.cancel_requested = False
        self._interruptible: asyncio.Task[Response] | None = None

    def request(self, turns: Sequence[Turn]) -> Request:
        """What the agent's own model is asked next."""
        config = self.given.model_config
        return Request(
            model=config["model"],
            system_prompt=self.prompt,
            turns=turns,
            tools=self.toolbox.specs,
            temperature=config.get("temperature"),
            max_tokens=config.get("max_tokens"),
            settings=config,
            turn_index=self.at.iterations,
        )

    async def ask(self, request: Request, *, purpose: str = "step") -> Response:  # noqa: ARG002
        """``purpose``: what the answer is for; only the answer of a step is told while it is spoken. Raises `ModelError`."""
        backend = self.host.backends.find(request.model)
        limits = self.limits.resources
        seconds = min(limits.call_timeout_seconds, limits.step_timeout_seconds, self.job_seconds_left())
        chunks = Chunks(self.host, self.given, self.at.step)
        reached("model:before")
        speaking = aiter(backend.stream(request))
        self._interruptible = asyncio.ensure_future(heard(speaking, limits.chunk_timeout_seconds, chunks))
        try:
            async with asyncio.timeout(seconds):
                response = await self._interruptible
        except TimeoutError:
            raise ModelError(f"The model did not answer within {seconds:.0f} s.", status=408) from None
        except asyncio.CancelledError:
            if self.cancel_requested:
                await self.end_cancelled()
            raise
        finally:
            self._interruptible.cancel()
            self._interruptible = None
        reached("model:after")
        return response

    def interrupt(self) -> None:
        """Somebody cancelled the job. An answer of the model is not waited for; a call of a tool is."""
        self.cancel_requested = True
        if self._interruptible is not None:
            self._interruptible.cancel()

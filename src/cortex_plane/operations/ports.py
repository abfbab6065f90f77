"""What operations and the runtime need from outside. Adapters and the runtime implement it; bootstrap injects it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from cortex_plane.domain.models import Request, Response, TextChunk


class ModelBackend(Protocol):
    """Something that answers for a language model. Keeps nothing between two requests."""

    def stream(self, request: Request) -> AsyncIterator[TextChunk | Response]:
        """Any number of chunks, then exactly one response, last. Raises `ModelError`."""
        ...

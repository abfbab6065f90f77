"""Which backend answers for a model's name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from cortex_plane.agents.model.completions import ModelError, Request, Response, TextChunk, Usage
from cortex_plane.tenancy.model.credentials import Provider
from cortex_plane.worker.models.clients import Clients
from cortex_plane.worker.models.keys import Keys, missing
from cortex_plane.worker.models.providers import ProviderModel
from cortex_plane.worker.models.scripted import ScriptedModel


class ModelBackend(Protocol):
    """Something that answers for a language model. Keeps nothing between two requests."""

    def stream(self, request: Request) -> AsyncIterator[TextChunk | Usage | Response]:
        """Any number of chunks, then exactly one response, last. Raises `ModelError`.

        A `Usage` in between says what was counted so far: it is what counts where the answer breaks off.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Answering:
    """Who answers a request, and how people are told."""

    backend: ModelBackend
    model: str
    """By whose price list it is paid."""
    label: str | None
    """None for what needs no mention: the agent named it and it is scripted."""


class Backends:
    """``scripted`` and ``scripted:anything`` are answered by the backend called ``scripted``, ``anthropic:…`` and
    ``openai:…`` by their providers."""

    def __init__(self, more: Mapping[str, ModelBackend] | None = None, keys: Keys | None = None) -> None:
        """Without ``keys`` only the environment's are used."""
        self._clients = Clients()
        self._scripted = ScriptedModel()
        given = keys or Keys(None, b"")
        providers = {each.value: ProviderModel(each, given, self._clients) for each in Provider}
        self._known: dict[str, ModelBackend] = {"scripted": self._scripted, **providers, **(more or {})}

    def find(self, model: str) -> ModelBackend:
        found = self._known.get(model) or self._known.get(model.partition(":")[0])
        if found is None:
            names = ", ".join(f"`{name}`" for name in sorted(self._known))
            raise ModelError(
                f"No backend answers for the model `{model}`; there is {names}.",
                code="unknown_model",
                hint="Name one of them in the agent's `model_config`, or add the backend to this worker.",
            )
        return found

    async def answering(self, request: Request) -> Answering:
        """The backend for a request; where there is no key, the agent's script if the agent says so."""
        backend = self.find(request.model)
        if not isinstance(backend, ProviderModel):
            return Answering(backend=backend, model=request.model, label=None)
        if await backend.has_key(request.org_id):
            await backend.prepare(request.model)
            return Answering(backend=backend, model=request.model, label=request.model)
        if request.settings.get("stand_in") != "script":
            raise missing(backend.provider, request.model)
        label = f"scripted (stand-in for {request.model})"
        return Answering(backend=self._known["scripted"], model="scripted", label=label)

    async def close(self) -> None:
        """Connections to providers; whoever asks again opens new ones."""
        await self._clients.close()

"""Which backend answers for a model's name."""

from __future__ import annotations

from collections.abc import Mapping

from cortex_plane.domain.models import ModelError
from cortex_plane.operations.ports import ModelBackend
from cortex_plane.runtime.models.scripted import ScriptedModel


class Backends:
    """``scripted`` and ``scripted:anything`` are answered by the backend called ``scripted``."""

    def __init__(self, more: Mapping[str, ModelBackend] | None = None) -> None:
        self._known: dict[str, ModelBackend] = {"scripted": ScriptedModel(), **(more or {})}

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

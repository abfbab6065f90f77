"""The schema of a remote tool's arguments: taken from the server, bounded, and checked strictly."""

from __future__ import annotations

import hashlib
from typing import Any

import orjson

from cortex_plane.agents.model.tools import InvalidArguments
from cortex_plane.kernel.schemas import Unusable, check, compiled, faults
from cortex_plane.worker.tools.arguments import Parsed, exact_bytes

_SHOWN_FAULTS = 10
_OPEN = (
    "additionalProperties",
    "patternProperties",
    "unevaluatedProperties",
    "allOf",
    "anyOf",
    "oneOf",
    "$ref",
    "if",
)


class Schema:
    def __init__(self, given: dict[str, Any]) -> None:
        self.schema = _strict(given)
        self._validator = compiled(self.schema)

    def parse(self, given: dict[str, Any] | str) -> Parsed:
        exact = exact_bytes(given)
        values: dict[str, Any] = orjson.loads(exact)
        try:
            found = faults(self._validator, values)
        except Unusable as error:  # a pattern that takes too long
            raise InvalidArguments(f"It cannot be called: {error}.") from None
        if found:
            more = f"; and {len(found) - _SHOWN_FAULTS} more faults" if len(found) > _SHOWN_FAULTS else ""
            raise InvalidArguments(f"The arguments are not valid: {'; '.join(found[:_SHOWN_FAULTS])}{more}.")
        return Parsed(values=values, canonical=exact, digest=hashlib.sha256(exact).hexdigest())


def _strict(given: dict[str, Any]) -> dict[str, Any]:
    """What the server does not speak of is refused: a made-up argument would be shown to approvers as if it counted."""
    schema = {key: each for key, each in given.items() if key != "$id"}
    if schema.get("type", "object") != "object":
        raise Unusable("its arguments are no JSON object")
    schema["type"] = "object"
    if not any(key in schema for key in _OPEN):
        schema["additionalProperties"] = False
    check(schema)
    return schema

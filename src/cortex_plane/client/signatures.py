"""The JSON Schema of a guarded function's arguments, from its annotations."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any

import orjson
from pydantic import TypeAdapter

from cortex_plane.kernel.schemas import check_strangers


def schema_of(
    function: Callable[..., Any], signature: inspect.Signature, hidden: set[str]
) -> dict[str, Any] | None:
    """What the arguments may be, from the annotations; None where they do not tell: then nobody can edit them."""
    kinds = inspect.Parameter
    properties: dict[str, Any] = {}
    required: list[str] = []
    try:
        hints = typing.get_type_hints(function)
        for name, parameter in signature.parameters.items():
            if name in hidden:
                continue
            of_one = TypeAdapter(hints[name]).json_schema() if name in hints else {}
            if parameter.kind is kinds.VAR_POSITIONAL:
                properties[name] = {"type": "array", "items": of_one}
            elif parameter.kind is kinds.VAR_KEYWORD:
                properties[name] = {"type": "object", "additionalProperties": of_one}
            else:
                properties[name] = of_one
            required.append(name)
        made = {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }
        check_strangers(made)
    except Exception:
        return None
    # What refers to definitions of its own would lose them here.
    return None if b'"$ref"' in orjson.dumps(made) else made

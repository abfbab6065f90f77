"""The JSON Schema of atlas files, as it is published. `scripts/atlas_schema.py` writes it from the shapes that read them."""

from __future__ import annotations

import importlib.resources
from typing import Any

import orjson

SCHEMA_VERSION = 1


def schema() -> dict[str, Any]:
    name = f"atlas.v{SCHEMA_VERSION}.schema.json"
    parsed: dict[str, Any] = orjson.loads(importlib.resources.files(__package__).joinpath(name).read_bytes())
    return parsed

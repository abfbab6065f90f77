"""The types that vendors publish of their messages, as JSON Schemas: what an emulator sends or accepts fits them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import orjson

_FOLDER = Path(__file__).parent / "published"
_SHOWN = 3


class NotPublished(AssertionError):
    """A message that the vendor's types do not allow."""


@cache
def _schema(vendor: str) -> Any:
    return json.loads((_FOLDER / f"{vendor}.json").read_text())


@cache
def _validator(vendor: str, name: str) -> Any:
    return jsonschema_rs.validator_for({**_schema(vendor), "$ref": f"#/definitions/{name}"})


def check_published(vendor: str, name: str, value: Any) -> None:
    """Raises ``NotPublished`` with the first faults."""
    faults = [
        f"{fault.instance_path}: {fault.message[:200]}"
        for fault in _validator(vendor, name).iter_errors(orjson.loads(orjson.dumps(value)))
    ]
    if faults:
        raise NotPublished(f"{name} of {vendor}: " + "; ".join(faults[:_SHOWN]))

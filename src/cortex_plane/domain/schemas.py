"""JSON Schemas that others wrote: of a remote tool, or of one that runs elsewhere. Looked at before anybody checks arguments with
them: they refer to nothing outside, and checking with them ends soon."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import orjson

from cortex_plane.domain.canonical import canonical
from cortex_plane.domain.errors import InvalidInput

if TYPE_CHECKING:
    from jsonschema_rs import Validator

MAX_SCHEMA_BYTES = 64 * 1024
MAX_NODES = 5_000
"""How many objects and lists a schema has at most, counted each time that something refers to them."""
BACKTRACKS = 10_000
SHOWN_FAULT = 300
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_DIALECTS = frozenset(
    {
        "https://json-schema.org/draft/2020-12/schema",
        "https://json-schema.org/draft/2019-09/schema",
        "http://json-schema.org/draft-07/schema",
        "http://json-schema.org/draft-06/schema",
        "http://json-schema.org/draft-04/schema",
    }
)


class Unusable(Exception):
    """A schema that nobody may check with, and why."""


def check(schema: dict[str, Any]) -> None:
    """Refuse what is too large to keep, and what refers to elsewhere."""
    try:
        size = len(canonical(schema))
    except InvalidInput as error:
        raise Unusable(f"its schema cannot be kept: {error.message}") from None
    if size > MAX_SCHEMA_BYTES:
        raise Unusable(f"its schema has {size} bytes, more than {MAX_SCHEMA_BYTES}")
    _refuse_outside(schema)


def check_strangers(schema: dict[str, Any]) -> None:
    """Also what could keep whoever checks with it busy for hours: references that multiply, or that never end."""
    check(schema)
    try:
        # What is only there to be referred to counts where it is.
        used = {key: each for key, each in schema.items() if key not in ("$defs", "definitions")}
        nodes = _nodes(used, schema, {})
    except RecursionError:
        raise Unusable("what its schema refers to is nested too deeply") from None
    if nodes > MAX_NODES:
        raise Unusable(f"its schema has more than {MAX_NODES} parts, with what it refers to")
    compiled(schema)


def compiled(schema: dict[str, Any]) -> Validator:
    """Nothing is fetched, whatever it refers to, and no pattern takes long."""
    return _compiled(orjson.dumps(schema, option=orjson.OPT_SORT_KEYS))


@lru_cache(maxsize=256)
def _compiled(schema: bytes) -> Validator:
    from jsonschema_rs import FancyRegexOptions, validator_for  # its import takes 50 ms

    try:
        return validator_for(
            orjson.loads(schema), pattern_options=FancyRegexOptions(backtrack_limit=BACKTRACKS),
            validate_formats=False, offline=True,
        )  # fmt: skip
    except Exception as error:  # whatever somebody wrote
        raise Unusable(f"its schema is not valid: {_line(error)}") from None


def faults(validator: Validator, value: Any) -> list[str]:
    """What is wrong with it, each with its place. Raises ``Unusable`` where that cannot be told."""
    try:
        return [_fault(each) for each in validator.iter_errors(value)]
    except ValueError as error:  # a pattern that takes too long
        raise Unusable(f"the arguments could not be checked: {_line(error)}") from None


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0][:SHOWN_FAULT]


def _fault(error: Any) -> str:
    place = ".".join(str(part)[:100] for part in error.instance_path) or "arguments"
    return f"`{place}`: {error.message[:SHOWN_FAULT]}"


def _refuse_outside(value: Any) -> None:
    """A reference to elsewhere would be fetched by whoever checks arguments."""
    if isinstance(value, list):
        for each in value:
            _refuse_outside(each)
    if not isinstance(value, dict):
        return
    for key, each in value.items():
        if key in _REFERENCES and isinstance(each, str) and not each.startswith("#"):
            raise Unusable("its schema refers to another document")
        if key == "$id" and isinstance(each, str):
            raise Unusable("its schema names a `$id`")
        if key == "$schema" and isinstance(each, str) and each.removesuffix("#") not in _DIALECTS:
            raise Unusable("its schema names a `$schema` that is not known")
        _refuse_outside(each)


def _nodes(value: Any, root: dict[str, Any], known: dict[str, int | None]) -> int:
    """``known``: of each place that something refers to; None while it is being counted."""
    if isinstance(value, list):
        return 1 + sum(_nodes(each, root, known) for each in value)
    if not isinstance(value, dict):
        return 0
    total = 1
    for key, each in value.items():
        if key in _REFERENCES and isinstance(each, str):
            total += _referred(key, each, root, known)
        else:
            total += _nodes(each, root, known)
    return total


def _referred(key: str, place: str, root: dict[str, Any], known: dict[str, int | None]) -> int:
    if key != "$ref" or (place != "#" and not place.startswith("#/")):
        raise Unusable("its schema refers to a place that is not written as a path, such as #/$defs/Item")
    if place not in known:
        known[place] = None
        known[place] = _nodes(_at(root, place), root, known)
    found = known[place]
    if found is None:
        raise Unusable("its schema refers to itself")
    return found


def _at(root: dict[str, Any], place: str) -> Any:
    """None where there is nothing: that is said when it is compiled."""
    from urllib.parse import unquote

    here: Any = root
    for part in unquote(place).split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(here, dict):
            here = here.get(name)
        elif isinstance(here, list) and name.isascii() and name.isdigit() and int(name) < len(here):
            here = here[int(name)]
        else:
            return None
    return here

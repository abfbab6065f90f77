"""JSON Schemas that others wrote: of a remote tool, or of one that runs elsewhere. They are checked before use: they refer to
nothing outside, and validation with them ends soon."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import orjson

from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.kernel.shares import LruCache

if TYPE_CHECKING:
    from jsonschema_rs import Validator

MAX_SCHEMA_BYTES = 64 * 1024
MAX_NODES = 5_000
"""How many objects and lists a schema has at most, counted each time that something refers to them."""
MAX_PATTERNS = 20
MAX_PATTERN = 1_000
"""Characters of one pattern."""
PATTERN_BYTES = 512 * 1024
"""What one pattern may take when it is compiled: about a hundredth of a second, and this much memory."""
KEPT_BYTES = 128 * 1024 * 1024
"""What all compiled schemas of a process take, at most and about."""
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
    """Refuse also what could take hours to check with: references that multiply or never end, and patterns that take long to
    compile. It compiles a schema that `is_checked` does not know, so run it in a thread then."""
    if is_checked(schema):
        return
    check(schema)
    for number, pattern in enumerate(_patterns(schema), 1):
        if number > MAX_PATTERNS:
            raise Unusable(f"its schema has more than {MAX_PATTERNS} patterns")
        if len(pattern) > MAX_PATTERN:
            raise Unusable(f"its schema has a pattern of {len(pattern)} characters, more than {MAX_PATTERN}")
    try:
        # What is only there to be referred to counts where it is.
        nodes = _nodes({key: each for key, each in schema.items() if key not in ("$defs", "definitions")}, schema, {})
    except RecursionError:
        raise Unusable("what its schema refers to is nested too deeply") from None
    if nodes > MAX_NODES:
        raise Unusable(f"its schema has more than {MAX_NODES} parts, with what it refers to")
    compiled(schema)
    digest, size = _digest(schema)
    if size <= SMALL_BYTES:
        _checked.put(digest, True, 1)


def is_checked(schema: Any) -> bool:
    """Whether this small schema was checked in this process before."""
    try:
        digest, size = _digest(schema)
    except TypeError:  # a number beyond 64 bits, or nested too deeply
        return False
    return size <= SMALL_BYTES and _checked.get(digest) is not None


def _digest(schema: Any) -> tuple[bytes, int]:
    text = orjson.dumps(schema)
    return hashlib.sha256(text).digest(), len(text)


SMALL_BYTES = 16 * 1024
"""Of a larger schema it takes too long to find out whether it was checked before."""
_checked = LruCache[bytes, bool](max_size=10_000)
_validators = LruCache[bytes, "Validator"](max_size=KEPT_BYTES)
_OF_TEXT = 20
"""Bytes that a compiled schema takes for each of its text, rather more than less. Patterns count apart."""


def compiled(schema: dict[str, Any]) -> Validator:
    """Nothing is fetched, whatever it refers to, and no pattern takes long."""
    text = orjson.dumps(schema, option=orjson.OPT_SORT_KEYS)
    validator = _validators.get(text)
    if validator is None:
        validator = _compiled(text)
        _validators.put(text, validator, _OF_TEXT * len(text) + PATTERN_BYTES * sum(1 for _ in _patterns(schema)))
    return validator


def _compiled(schema: bytes) -> Validator:
    from jsonschema_rs import FancyRegexOptions, validator_for  # its import takes 50 ms

    bounds = FancyRegexOptions(backtrack_limit=BACKTRACKS, size_limit=PATTERN_BYTES, dfa_size_limit=PATTERN_BYTES)
    try:
        return validator_for(orjson.loads(schema), pattern_options=bounds, validate_formats=False, offline=True)
    except Exception as error:  # whatever somebody wrote
        # The library says the same of a wrong expression and of one that is too large.
        large = (
            f". Or it is one that takes more than {PATTERN_BYTES // 1024} KiB: repeat less, or name fewer characters"
        )
        more = large if 'is not a "regex"' in str(error) else ""
        raise Unusable(f"its schema is not valid: {_line(error)}{more}") from None


def faults(validator: Validator, value: Any) -> list[str]:
    """What is wrong with it, each with its place. Raises ``Unusable`` where that cannot be told."""
    try:
        return [
            f"`{'.'.join(str(part)[:100] for part in error.instance_path) or 'arguments'}`: {error.message[:SHOWN_FAULT]}"
            for error in validator.iter_errors(value)
        ]
    except ValueError as error:  # a pattern that takes too long
        raise Unusable(f"the arguments could not be checked: {_line(error)}") from None


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    """The keys of all objects in a value, with what stands under them."""
    for item in value if isinstance(value, list) else ():
        yield from _members(item)
    for key, item in value.items() if isinstance(value, dict) else ():
        yield key, item
        yield from _members(item)


def _patterns(schema: dict[str, Any]) -> Iterator[str]:
    """Whatever may be compiled as a regular expression, wherever it stands."""
    for key, item in _members(schema):
        if key == "pattern" and isinstance(item, str):
            yield item
        if key == "patternProperties" and isinstance(item, dict):
            yield from item


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0][:SHOWN_FAULT]


def _refuse_outside(schema: dict[str, Any]) -> None:
    """A validator would fetch a reference to another document."""
    for key, item in _members(schema):
        if not isinstance(item, str):
            continue
        if key in _REFERENCES and not item.startswith("#"):
            raise Unusable("its schema refers to another document")
        if key == "$id":
            raise Unusable("its schema names a `$id`")
        if key == "$schema" and item.removesuffix("#") not in _DIALECTS:
            raise Unusable("its schema names a `$schema` that is not known")


def _nodes(value: Any, root: dict[str, Any], counts: dict[str, int | None]) -> int:
    """``counts``: of each place that something refers to; None while it is being counted."""
    if isinstance(value, list):
        return 1 + sum(_nodes(item, root, counts) for item in value)
    if not isinstance(value, dict):
        return 0
    total = 1
    for key, item in value.items():
        if key in _REFERENCES and isinstance(item, str):
            total += _referred(key, item, root, counts)
        else:
            total += _nodes(item, root, counts)
    return total


def _referred(key: str, place: str, root: dict[str, Any], counts: dict[str, int | None]) -> int:
    if key != "$ref" or (place != "#" and not place.startswith("#/")):
        raise Unusable("its schema refers to a place that is not written as a path, such as #/$defs/Item")
    if place not in counts:
        counts[place] = None
        counts[place] = _nodes(_at(root, place), root, counts)
    count = counts[place]
    if count is None:
        raise Unusable("its schema refers to itself")
    return count


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

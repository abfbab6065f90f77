"""The state that an agent keeps with its job: the entries of `working_data` in the checkpoint that are the agent's own.

Entries and changes are values: a change makes a new mapping, so that whoever has the old one still has what was written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from cortex_plane.kernel.canonical import check_text
from cortex_plane.kernel.errors import InvalidInput, TooLarge

MAX_KEY = 200
MAX_STATE_BYTES = 256 * 1024
"""Of all keys and values together: they are read and sealed with every checkpoint."""

Entries = Mapping[str, bytes]
"""Canonical JSON by key."""
Changes = Mapping[str, bytes | None]
"""None deletes the entry."""
NO_ENTRIES: Entries = MappingProxyType({})


def check_key(key: object) -> str:
    if not isinstance(key, str) or not 1 <= len(key) <= MAX_KEY:
        raise InvalidInput(
            f"{str(key)[:50]!r} cannot be a key of the state.",
            field="key",
            hint=f"Use a text of 1 to {MAX_KEY} characters.",
        )
    refuse_reserved(key)
    return check_text(key, "key")


def refuse_reserved(key: str) -> None:
    if key.startswith("$"):
        raise InvalidInput(
            f"`{key[:50]}` starts with `$`: such keys are the plane's own.",
            field=key[:50],
            hint="Choose a key that starts with another character.",
        )


def apply_changes(entries: Entries, changes: Changes) -> Entries:
    return {key: value for key, value in {**entries, **changes}.items() if value is not None}


def require_room(entries: Entries, key: str, others: Iterable[Changes] = ()) -> None:
    """``key``: of the entry that was added last. ``others``: what may be set besides, in any order, or not at all."""
    largest = {name: len(value) for name, value in entries.items()}
    for changes in others:
        for name, value in changes.items():
            if value is not None:
                largest[name] = max(len(value), largest.get(name, 0))
    size = sum(len(name.encode()) + length for name, length in largest.items())
    if size > MAX_STATE_BYTES:
        raise TooLarge(
            f"The state would be {size} bytes with `{key[:50]}`; the limit is {MAX_STATE_BYTES}.",
            code="state_too_large",
            hint="Delete entries that are no longer needed, or store large data elsewhere and keep a reference to it.",
            size=size,
        )

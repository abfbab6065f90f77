"""JSON objects in which every key stands once. Parsers keep the last of two, and what a person read may be the first."""

from __future__ import annotations

from typing import Any

from cortex_plane.kernel.errors import InvalidInput

_SHOWN = 100


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The ``object_pairs_hook`` of ``json.loads``. Raises ``InvalidInput`` for a key that stands there twice."""
    made = dict(pairs)
    if len(made) == len(pairs):
        return made
    known: set[str] = set()
    for name, _ in pairs:
        if name in known:
            break
        known.add(name)
    raise InvalidInput(
        f"`{name[:_SHOWN]}` stands there twice.", code="duplicate_key", hint="Keep one of the two."
    )

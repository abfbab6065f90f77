"""SQL lives in files: the queries of a store beside it, each under a line ``-- name: …`` that is the name of what runs it."""

from __future__ import annotations

import re
from pathlib import Path

SQL = Path(__file__).parent
"""Where functions and migrations are."""

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


class Queries:
    """The queries of one store: in ``approvals.py``, ``queries.get`` stands in ``approvals.sql`` under ``-- name: get``."""

    def __init__(self, module: str) -> None:
        self._texts = read_queries(Path(module).with_suffix(".sql").read_text())

    def __getattr__(self, name: str) -> str:
        try:
            return self._texts[name]
        except KeyError:
            raise AttributeError(f"no query named {name}") from None


def read_queries(text: str) -> dict[str, str]:
    """By name. Raises ``ValueError`` where something stands before the first name, or a name stands twice."""
    before, *parts = _NAME.split(text)
    names = parts[::2]
    if before.strip() or len(set(names)) != len(names):
        raise ValueError("Every query has a name of its own.")
    return {name: query.strip() for name, query in zip(names, parts[1::2], strict=True)}


def every_query() -> dict[str, str]:
    """All queries, by ``store/name``."""
    return {
        f"{path.stem}/{name}": query
        for path in sorted(SQL.parent.glob("*/store/*.sql"), key=lambda path: path.stem)
        for name, query in read_queries(path.read_text()).items()
    }

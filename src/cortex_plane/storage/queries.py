"""SQL lives in files: the queries of a noun in one, each under a line ``-- name: …`` that is the name of what runs it."""

from __future__ import annotations

import re
from pathlib import Path

SQL = Path(__file__).parent / "sql"

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


class Queries:
    """The queries of one noun: ``queries.get`` is what stands in ``sql/queries/<noun>.sql`` under ``-- name: get``."""

    def __init__(self, noun: str) -> None:
        self._texts = read_queries((SQL / "queries" / f"{noun}.sql").read_text())

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
    """All queries, by ``noun/name``."""
    return {
        f"{path.stem}/{name}": query
        for path in sorted((SQL / "queries").glob("*.sql"))
        for name, query in read_queries(path.read_text()).items()
    }

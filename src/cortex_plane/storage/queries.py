"""SQL lives in files: one query each, named like the function that runs it."""

from __future__ import annotations

from pathlib import Path

SQL = Path(__file__).parent / "sql"


class Queries:
    """The queries of one noun: ``queries.get`` is the text of ``sql/queries/<noun>/get.sql``."""

    def __init__(self, noun: str) -> None:
        self._texts = {path.stem: path.read_text() for path in sorted((SQL / "queries" / noun).glob("*.sql"))}

    def __getattr__(self, name: str) -> str:
        try:
            return self._texts[name]
        except KeyError:
            raise AttributeError(f"no query named {name}") from None


def every_query() -> dict[str, str]:
    """All query files, by ``noun/name``."""
    folder = SQL / "queries"
    return {
        path.relative_to(folder).with_suffix("").as_posix(): path.read_text()
        for path in sorted(folder.rglob("*.sql"))
    }

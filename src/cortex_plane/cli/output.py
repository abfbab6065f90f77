"""Tables for people, JSON for programs."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import Enum
from itertools import zip_longest
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import orjson
import typer

from cortex_plane.kernel.fields import to_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Atlases = Annotated[
    list[str] | None,
    typer.Option(
        help="An atlas that the session is bound to beside those of its agent. Any number of times."
    ),
]
Limit = Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")]

Cell = tuple[str, str]
"""What is shown, and its style."""
COLOURS = {
    "ACTIVE": "green", "RUNNING": "green", "COMPLETED": "green", "PENDING": "cyan", "CREATED": "cyan",
    "RETRY": "yellow", "SLEEPING": "yellow", "PAUSED": "yellow", "WAITING_FOR_APPROVAL": "magenta",
    "FAILED": "red", "CANCELLED": "dim", "TERMINATED": "dim", "DISABLED": "yellow", "ARCHIVED": "dim",
    "completed": "green", "intended": "cyan", "uncertain": "magenta", "cleared": "yellow", "failed": "red",
    "rejected": "red", "pending": "magenta", "approved": "green", "denied": "red", "expired": "yellow",
    "cancelled": "dim", "awaiting": "magenta",
}  # fmt: skip


@functools.cache
def console() -> Console:
    """What people see in a terminal. Its import takes 30 ms, and much is printed without it."""
    from rich.console import Console

    return Console(highlight=False)


def show_many(items: Sequence[Any], columns: Sequence[str], as_json: bool) -> None:
    if as_json:
        sys.stdout.write("[" + ",".join(to_json(item).decode() for item in items) + "]\n")
        return
    if not items:
        _show_nothing()
        return
    names = [name.replace("_", " ") for name in columns]
    rows = [[_cell(getattr(item, name)) for name in columns] for item in items]
    if sys.stdout.isatty():
        _show_table(columns, names, rows)
    else:
        _write_table(names, [[text for text, _ in row] for row in rows])


def _show_nothing() -> None:
    if sys.stdout.isatty():
        console().print("nothing yet", style="dim")
    else:
        sys.stdout.write("nothing yet\n")


def _show_table(columns: Sequence[str], names: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim")
    for column, name in zip(columns, names, strict=True):
        # Ids must survive a narrow window: they are what the next command needs.
        table.add_column(name, no_wrap=column in ("id", "job_id", "call_id"), overflow="fold")
    for row in rows:
        table.add_row(*(Text(text, style=style) for text, style in row))
    console().print(table)


def _write_table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """For files and other programs: as wide as it is, nothing is broken."""
    split = [[text.split("\n") for text in row] for row in (names, *rows)]
    widths = [max(len(line) for row in split for line in row[at]) for at in range(len(names))]
    for row in split:
        for lines in zip_longest(*row, fillvalue=""):
            padded = (line.ljust(width) for line, width in zip(lines, widths, strict=True))
            sys.stdout.write(" ".join(padded).rstrip() + "\n")


def show_one(item: Any, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(to_json(item).decode() + "\n")
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name in type(item).__dataclass_fields__:
        text, style = _cell(getattr(item, name))
        table.add_row(name.replace("_", " "), Text(text, style=style))
    console().print(table)


def said(text: str) -> None:
    console().print(text, markup=False)


def _cell(value: Any) -> Cell:
    """Whatever others wrote is shown as plain text, with control characters made visible."""
    match value:
        case None | "":
            return "–", "dim"
        case Enum():
            return str(value.value), COLOURS.get(str(value.value), "")
        case datetime():
            return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S"), ""
        case UUID():
            return str(value), ""
        case list():
            return ", ".join(_cell(part)[0] for part in value) or "–", ""
        case dict():
            return harmless(orjson.dumps(value).decode()) if value else "–", ""
    return harmless(str(value)), ""


def harmless(text: str) -> str:
    """Control characters, and those that are not seen or turn a line around, made visible."""
    return "".join(c if c.isprintable() or c == "\n" else f"\\x{ord(c):02x}" for c in text)


def short(value: Any, limit: int) -> str:
    """Whatever an agent or a tool wrote, on one line and no longer than ``limit``."""
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    line = harmless(" ".join(text[: limit * 8].split()))
    return line if len(line) <= limit and len(text) <= limit * 8 else line[: limit - 1] + "…"


def tell(line: str | Text) -> None:
    """One line as it is: no markup, and however long it is, no line breaks of ours."""
    console().print(line, markup=False, soft_wrap=True)

"""Tables for people, JSON for programs."""

from __future__ import annotations

import functools
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from itertools import zip_longest
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from uuid import UUID

import orjson
from typer import Option

from cortex_plane.cli.plane import harmless, run
from cortex_plane.kernel.fields import to_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from cortex_plane.client import Client

T = TypeVar("T")

AsJson = Annotated[bool, Option("--json", help="Print JSON instead of a table.")]
Atlases = Annotated[
    list[str] | None,
    Option(help="An atlas that the session is bound to beside those of its agent. Any number of times."),
]
Limit = Annotated[int, Option(min=1, max=10_000, help="How many at most.")]

Cell = tuple[str, str]
"""A text and its style."""
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
    """The terminal. Its import takes 30 ms, and much is printed without it."""
    from rich.console import Console

    return Console(highlight=False)


# Requests to the plane, and their answers --------------------------------------------------------------------------


def show_record(
    request: Callable[[Client], Awaitable[T]],
    as_json: bool,
    show: Callable[[T], None] | None = None,
    *,
    without_key: bool = False,
) -> T:
    """Send a request and print its answer: as JSON, with ``show``, or as a table of its fields."""
    record = run(request, without_key=without_key)
    if show is None or as_json:
        print_record(record, as_json)
    else:
        show(record)
    return record


def show_table(
    request: Callable[[Client], AsyncIterator[T] | Awaitable[Sequence[T]]],
    columns: str,
    as_json: bool,
    row: Callable[[T], Mapping[str, Any]] | None = None,
) -> None:
    """Send a request for a list and print it. ``row`` makes a row of the table from an item; JSON has the items."""
    items = fetch_list(request)
    print_table(items if row is None or as_json else [row(item) for item in items], columns, as_json)


def fetch_list(request: Callable[[Client], AsyncIterator[T] | Awaitable[Sequence[T]]]) -> Sequence[T]:
    async def collect(plane: Client) -> Sequence[T]:
        items = request(plane)
        return [item async for item in items] if isinstance(items, AsyncIterator) else await items

    return run(collect)


# Records and tables ------------------------------------------------------------------------------------------------


def print_json(item: Any) -> None:
    sys.stdout.write(to_json(item).decode() + "\n")


def print_table(items: Sequence[Any], columns: str = "", as_json: bool = False) -> None:
    """Items are records, or rows by column. ``columns`` are names with spaces between; rows have their own."""
    if as_json:
        sys.stdout.write("[" + ",".join(to_json(item).decode() for item in items) + "]\n")
        return
    if not items:
        _print_nothing()
        return
    keys = columns.split() or list(items[0])
    names = [key.replace("_", " ") for key in keys]
    rows = [[_cell(item[key] if isinstance(item, dict) else getattr(item, key)) for key in keys] for item in items]
    if sys.stdout.isatty():
        _print_styled(keys, names, rows)
    else:
        _print_plain(names, [[text for text, _ in row] for row in rows])


def _print_nothing() -> None:
    if sys.stdout.isatty():
        console().print("nothing yet", style="dim")
    else:
        sys.stdout.write("nothing yet\n")


def _print_styled(keys: Sequence[str], names: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim")
    for key, name in zip(keys, names, strict=True):
        # Ids must survive a narrow window: the next command needs them.
        table.add_column(name, no_wrap=key in ("id", "job_id", "call_id"), overflow="fold")
    for row in rows:
        table.add_row(*(Text(text, style=style) for text, style in row))
    console().print(table)


def _print_plain(names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """For files and other programs: lines are not broken, however long they are."""
    split = [[text.split("\n") for text in row] for row in (names, *rows)]
    widths = [max(len(line) for row in split for line in row[at]) for at in range(len(names))]
    for row in split:
        for lines in zip_longest(*row, fillvalue=""):
            cells = (line.ljust(width) for line, width in zip(lines, widths, strict=True))
            sys.stdout.write(" ".join(cells).rstrip() + "\n")


def print_record(record: Any, as_json: bool = False) -> None:
    """The fields of a record, one per line."""
    if as_json:
        print_json(record)
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name in type(record).__dataclass_fields__:
        text, style = _cell(getattr(record, name))
        table.add_row(name.replace("_", " "), Text(text, style=style))
    console().print(table)


def _cell(value: Any) -> Cell:
    """Text from others is shown as plain text, with control characters made visible."""
    match value:
        case None | "":
            return "–", "dim"
        case Enum():
            return str(value.value), COLOURS.get(str(value.value), "")
        case datetime():
            return utc_text(value), ""
        case UUID():
            return str(value), ""
        case list():
            return ", ".join(_cell(part)[0] for part in value) or "–", ""
        case dict():
            return harmless(orjson.dumps(value).decode()) if value else "–", ""
    return harmless(str(value)), ""


# Text --------------------------------------------------------------------------------------------------------------


def utc_text(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def count_text(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def short(value: Any, limit: int) -> str:
    """Text of an agent or a tool on one line, no longer than ``limit``."""
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    line = harmless(" ".join(text[: limit * 8].split()))
    return line if len(line) <= limit and len(text) <= limit * 8 else line[: limit - 1] + "…"


def say(text: str) -> None:
    """A message, wrapped to the terminal."""
    console().print(text, markup=False)


def print_line(line: str | Text) -> None:
    """One line as it is: no markup, and no line breaks however long it is."""
    console().print(line, markup=False, soft_wrap=True)


def print_warnings(warnings: Sequence[str]) -> None:
    for warning in warnings:
        print_line(f"warning: {harmless(warning)}")


def print_changes(diff: Any, headline: Callable[[Any], str]) -> None:
    """The changes of a diff, field by field, and how many more there are than it lists."""
    for change in diff.changes:
        print_line(headline(change))
        for field in change.fields:
            before, after = ("–" if value is None else value for value in (field.before, field.after))
            print_line(f"    {harmless(field.field)}: {short(before, 80)} → {short(after, 80)}")
    hidden = diff.added + diff.removed + diff.changed - len(diff.changes)
    if hidden > 0:
        print_line(f"… and {hidden} more changes")

"""Tables for people, JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Annotated, Any
from uuid import UUID

import orjson
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cortex_plane.domain.values import to_json

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Atlases = Annotated[
    list[str] | None,
    typer.Option(
        help="An atlas that the session is bound to beside those of its agent. Any number of times."
    ),
]
Limit = Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")]

console = Console(highlight=False)

COLOURS = {
    "ACTIVE": "green", "RUNNING": "green", "COMPLETED": "green", "PENDING": "cyan", "CREATED": "cyan",
    "RETRY": "yellow", "SLEEPING": "yellow", "PAUSED": "yellow", "WAITING_FOR_APPROVAL": "magenta",
    "FAILED": "red", "CANCELLED": "dim", "TERMINATED": "dim", "DISABLED": "yellow", "ARCHIVED": "dim",
    "completed": "green", "intended": "cyan", "uncertain": "magenta", "cleared": "yellow", "failed": "red",
    "rejected": "red", "pending": "magenta", "approved": "green", "denied": "red", "expired": "yellow",
    "cancelled": "dim", "awaiting": "magenta",
}  # fmt: skip


def show_many(items: Sequence[Any], columns: Sequence[str], as_json: bool) -> None:
    if as_json:
        sys.stdout.write("[" + ",".join(to_json(item).decode() for item in items) + "]\n")
        return
    if not items:
        console.print("nothing yet", style="dim")
        return
    # Ids must survive a pipe and a narrow window: they are what the next command needs.
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in columns:
        table.add_column(name.replace("_", " "), no_wrap=name in ("id", "job_id", "call_id"), overflow="fold")
    for item in items:
        table.add_row(*(_cell(getattr(item, name)) for name in columns))
    wide = console if console.is_terminal else Console(width=300, highlight=False)
    wide.print(table)


def show_one(item: Any, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(to_json(item).decode() + "\n")
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name in type(item).__dataclass_fields__:
        table.add_row(name.replace("_", " "), _cell(getattr(item, name)))
    console.print(table)


def said(text: str) -> None:
    console.print(text, markup=False)


def _cell(value: Any) -> Text:
    """Whatever others wrote is shown as plain text, with control characters made visible."""
    match value:
        case None | "":
            return Text("–", style="dim")
        case Enum():
            return Text(str(value.value), style=COLOURS.get(str(value.value), ""))
        case datetime():
            return Text(value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S"))
        case UUID():
            return Text(str(value))
        case list():
            return Text(", ".join(str(_cell(part)) for part in value) or "–")
        case dict():
            return Text(harmless(orjson.dumps(value).decode()) if value else "–")
    return Text(harmless(str(value)))


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
    console.print(line, markup=False, soft_wrap=True)

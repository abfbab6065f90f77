"""The terminal: commands of declared routes, tables for people and JSON for programs, and what people type."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, TypeVar, get_args
from uuid import UUID

import orjson
import typer
from typer import Option

from cortex_plane.cli.plane import harmless, run
from cortex_plane.kernel.canonical import unique
from cortex_plane.kernel.errors import AlreadyExists, InvalidInput, NotFound
from cortex_plane.kernel.fields import to_json
from cortex_plane.kernel.routes import ListQuery, ListRoute, Route

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from cortex_plane.client import Client
    from cortex_plane.jobs.model.jobs import Job, SessionReceipt, SteeringResult
    from cortex_plane.policies.model.policies import PendingChange

T = TypeVar("T")

AsJson = Annotated[bool, Option("--json", help="Print JSON instead of a table.")]
Atlases = Annotated[
    list[str] | None,
    Option(help="An atlas that the session is bound to beside those of its agent. Any number of times."),
]
Limit = Annotated[int, Option(min=1, max=10_000, help="How many at most.")]

PAUSE = {
    "reason": str | None,
    "correlation_id": Annotated[str | None, Option(help="What the pause belongs to elsewhere; its events carry it.")],
    "within": Annotated[int, Option(min=1, max=86_400, help="Seconds after which what is under way is cut off, unless a boundary comes first.")],
}  # fmt: skip
RESUMPTION = {
    "note": str | None,
    "operator_input": Annotated[str | None, Option(help="What the model reads before it goes on, as your words.")],
}
REASON = {"reason": str | None}
"""Options that become the body of a request."""

QUOTE_JSON = "Quote it: '{\"a\": 1}'."
Cell = tuple[str, str]
"""A text and its style."""
COLOURS = {
    "ACTIVE": "green", "RUNNING": "green", "COMPLETED": "green", "PENDING": "cyan", "CREATED": "cyan",
    "RETRY": "yellow", "SLEEPING": "yellow", "PAUSED": "yellow", "WAITING_FOR_APPROVAL": "magenta",
    "FAILED": "red", "CANCELLED": "dim", "TERMINATED": "dim", "DISABLED": "yellow", "ARCHIVED": "dim",
    "completed": "green", "intended": "cyan", "uncertain": "magenta", "cleared": "yellow", "parked": "yellow", "failed": "red",
    "rejected": "red", "pending": "magenta", "approved": "green", "denied": "red", "responded": "green", "answered": "green", "expired": "yellow",
    "cancelled": "dim", "awaiting": "magenta",
}  # fmt: skip


@functools.cache
def console() -> Console:
    """The terminal. Its import takes 30 ms, and much is printed without it."""
    from rich.console import Console

    return Console(highlight=False)


def add_command(
    app: typer.Typer, name: str, route: Route[Any], summary: str | None = None, show: Callable[[Any], None] | None = None, /, *,
    limit: int = 50, body: Mapping[str, Any] | None = None, **filters: str,
) -> None:  # fmt: skip
    """Add a command that sends the request of a route and prints the answer; ``show`` prints a record. The values of the path are its
    arguments. ``body``: options that become fields of the body, with their types. ``filters``: options that become fields of the query,
    with their help. `session` stands for `session_id`, `within` for `within_seconds`."""
    annotations: dict[str, Any] = {value: _plain_type(route.path_types[value]) for value in route.path_names}
    defaults: dict[str, Any] = {}
    for option, text in filters.items():
        value_type = _plain_type(route.query.model_fields[_field(route, option)].annotation) | None
        annotations[option], defaults[option] = Annotated[value_type, Option(help=text or None)], None
    fields = {} if body is None else {option: _body_field(route, option) for option in body}
    annotations |= body or {}
    defaults |= {option: field.default for option, field in fields.items()}
    if isinstance(route, ListRoute) and issubclass(route.query or object, ListQuery):
        annotations["limit"], defaults["limit"] = Limit, limit
    annotations["as_json"], defaults["as_json"] = AsJson, False

    def command(as_json: bool, **values: Any) -> None:
        arguments = [values.pop(value) for value in route.path_names]
        draft = {field.name: values.pop(option) for option, field in fields.items()}
        options = {_field(route, option): value for option, value in values.items()}
        if not isinstance(route, ListRoute):
            content = None if body is None else route.body(**draft)
            show_record(lambda plane: plane.transport.call(route, *arguments, body=content), as_json, show)
        elif "limit" in options:
            show_table(route, lambda plane: plane.transport.pages(route, *arguments, **options), as_json)
        else:
            show_table(route, lambda plane: plane.transport.all(route, *arguments, **options), as_json)

    empty, kind = inspect.Parameter.empty, inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(parameter, kind, default=defaults.get(parameter, empty), annotation=annotation)
        for parameter, annotation in annotations.items()
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    app.command(name, help=summary)(command)


def _field(route: Route[Any], option: str) -> str:
    return option if option in route.query.model_fields else f"{option}_id"


def _body_field(route: Route[Any], option: str) -> dataclasses.Field[Any]:
    fields: dict[str, dataclasses.Field[Any]] = route.body.__dataclass_fields__
    return fields.get(option) or fields[f"{option}_seconds"]


def _plain_type(kind: Any) -> Any:
    """Without bounds, which the plane checks, and without None."""
    while args := get_args(kind):
        kind = args[0]
    return kind


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
    route: ListRoute[T],
    request: Callable[[Client], AsyncIterator[T] | Awaitable[Sequence[T]]],
    as_json: bool,
    row: Callable[[T], Mapping[str, Any]] | None = None,
) -> None:
    """Send a request for a list and print the columns that its route declares. ``row`` makes a row of its own from an item."""
    items = fetch_list(request)
    if row is None or as_json:
        print_table(items, route.columns, as_json)
    else:
        print_table([row(item) for item in items])


def fetch_list(request: Callable[[Client], AsyncIterator[T] | Awaitable[Sequence[T]]]) -> Sequence[T]:
    async def collect(plane: Client) -> Sequence[T]:
        items = request(plane)
        return [item async for item in items] if isinstance(items, AsyncIterator) else await items

    return run(collect)


def print_json(item: Any) -> None:
    sys.stdout.write(to_json(item).decode() + "\n")


def print_table(items: Sequence[Any], columns: str = "", as_json: bool = False) -> None:
    """Items are records, or rows by column. ``columns`` are names with spaces between; rows have their own."""
    if as_json:
        sys.stdout.write("[" + ",".join(to_json(item).decode() for item in items) + "]\n")
        return
    if not items:
        if sys.stdout.isatty():
            console().print("nothing yet", style="dim")
        else:
            sys.stdout.write("nothing yet\n")
        return
    keys = columns.split() or list(items[0])
    names = [key.replace("_", " ") for key in keys]
    rows = [[_cell(item[key] if isinstance(item, dict) else getattr(item, key)) for key in keys] for item in items]
    if sys.stdout.isatty():
        _print_styled(keys, names, rows)
    else:
        _print_plain(names, [[text for text, _ in row] for row in rows])


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
    if dataclasses.is_dataclass(value) and type(value).__str__ is object.__str__:
        parts = [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
        shown = [f"{name.replace('_', ' ')} {_cell(part)[0]}" for name, part in parts if part not in (None, 0, "")]
        return ", ".join(shown) or "–", ""
    return harmless(str(value)), ""


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


def print_waiting(change: PendingChange) -> None:
    """A change that waits for a person, and for whom."""
    again = "" if change.created else " (it was proposed before)"
    say(f"it waits for approval {change.approval_id}{again}, until {utc_text(change.deadline)}")
    print_line(
        f"  {harmless(', '.join(change.deciders) or 'nobody')} may decide it: cortex approval show {change.approval_id}"
    )


def show_receipt(receipt: SteeringResult) -> None:
    _show_change(f"job {receipt.job.id} is {receipt.job.status}", receipt.changed)
    for line in job_standing(receipt.job):
        print_line(f"  {line}")
    _show_pause(receipt)
    print_line(f"  settled: {_call_count(receipt.settled)}")
    print_line(f"  uncertain: {_call_count(receipt.uncertain)}{_advice(receipt)}")


def _show_pause(receipt: SteeringResult | SessionReceipt) -> None:
    print_line(f"  agent: {receipt.status}")
    if receipt.paused_at is not None:
        print_line(
            f"  paused at {receipt.paused_at:%Y-%m-%d %H:%M:%S}, checkpoint {receipt.checkpoint_key or 'none yet'}"
        )
    if receipt.hold_by is not None:
        print_line(f"  holds by {receipt.hold_by:%Y-%m-%d %H:%M:%S} at the latest")
    if receipt.resumed_at_loop is not None:
        print_line(f"  goes on with step {receipt.resumed_at_loop}")


def show_session_receipt(receipt: SessionReceipt) -> None:
    state = "held" if receipt.session.held_at else "not held"
    _show_change(f"session {receipt.session.id} is {state}", receipt.changed)
    if receipt.pending:
        print_line("  pending: some of its jobs run to their next boundary")
    _show_pause(receipt)
    for job in receipt.jobs:
        print_line("  " + ", ".join([f"job {job.id} is {job.status}", *job_standing(job)]))


def job_standing(job: Job) -> Iterator[str]:
    """Requests that a job has not followed yet, and what holds it."""
    if job.pending_cancel:
        yield "pending_cancel: running to its next boundary"
    if job.pending_pause:
        yield "pending_pause: running to its next boundary"
    if job.holds:
        yield f"held by {', '.join(job.holds)}"


def _show_change(what: str, changed: bool) -> None:
    print_line(what if changed else f"{what}; nothing changed")


def _call_count(calls: list[UUID]) -> str:
    return f"{count_text(len(calls), 'call')} ({', '.join(map(str, calls))})" if calls else "nothing"


def _advice(receipt: SteeringResult) -> str:
    from cortex_plane.jobs.model.jobs import TERMINAL

    if not receipt.uncertain:
        return ""
    if receipt.job.status in TERMINAL:
        return ": look at the outside world, it may have happened"
    return ": under way" if receipt.pending else f": see `cortex job questions {receipt.job.id}`"


def read_text(file: Path) -> str:
    """A file as text; `-` is standard input."""
    try:
        return read_bytes(file, hint="Name a file.").decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{file} is not UTF-8: {error}.", hint="Save it as UTF-8.") from error


def read_bytes(file: Path, hint: str = "Check its name.") -> bytes:
    try:
        return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}.", hint=hint) from error


@contextlib.contextmanager
def new_file(file: str | Path) -> Iterator[BinaryIO]:
    """A new file for its owner alone, removed again if it is not completed. An existing file is not overwritten."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError as error:
        raise AlreadyExists(f"{file} is there already.", hint="Choose another name, or remove it.") from error
    except OSError as error:
        raise InvalidInput(f"{file} cannot be written: {error.strerror}.", hint="Choose another place.") from error
    try:
        with os.fdopen(descriptor, "wb") as output:
            yield output
    except BaseException:
        Path(file).unlink(missing_ok=True)
        raise


def read_secret(text: str) -> str:
    """An argument that no shell need remember: `-` reads it from standard input."""
    return (sys.stdin.readline() if text == "-" else text).strip()


def parse_json(text: str, complaint: str, hint: str = QUOTE_JSON) -> Any:
    try:
        return json.loads(text, object_pairs_hook=unique)
    except ValueError as error:
        raise InvalidInput(f"{complaint}: {error}.", hint=hint) from error


async def member_id(plane: Client, text: str) -> UUID:
    """The id of a colleague, who is named by id or by the whole name."""
    with contextlib.suppress(ValueError):
        return UUID(text)
    colleagues = await plane.absences.delegates(name=text)
    if not colleagues:
        raise NotFound(
            f"There is no active member called {text!r} besides you.",
            code="member_not_found",
            hint="`cortex absence delegates` lists them; write the whole name, or the id.",
        )
    if len(colleagues) > 1:
        ids = ", ".join(str(colleague.id) for colleague in colleagues)
        raise InvalidInput(f"Several members are called {text!r}: {ids}.", hint="Use the id of one.")
    return colleagues[0].id

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

import typer

from cortex_plane.cli.output import AsJson, Limit, show_many
from cortex_plane.cli.plane import collect, run
from cortex_plane.jobs.model.usage import Grouping, UsageRow, cost_text

app = typer.Typer()

Day = Annotated[datetime | None, typer.Option(formats=["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"])]


@app.command("usage")
def usage(
    by: Annotated[Grouping, typer.Option(help="What to sum by.")] = Grouping.DAY,
    since: Day = None,
    until: Day = None,
    agent: Annotated[str | None, typer.Option(help="Id or slug.")] = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """What models were asked, what it took and what it cost. Times are UTC; `--until` itself is left out."""
    found = run(
        lambda plane: collect(plane.usage.list(by, limit, since=_utc(since), until=_utc(until), agent=agent))
    )
    if as_json:
        show_many(found, [], True)
    else:
        columns = ["calls", "prompt", "cache_read", "cache_write", "completion", "cost"]
        show_many([_line(row) for row in found], [by.value, *columns], False)


def _utc(given: datetime | None) -> datetime | None:
    return None if given is None else given.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class _Line:
    day: str
    agent: str
    job: str
    model: str
    calls: int
    prompt: int
    cache_read: int
    cache_write: int
    completion: int
    cost: str


def _line(row: UsageRow) -> _Line:
    return _Line(
        day=row.key,
        agent=row.agent or row.key,
        job=row.key,
        model=row.key,
        calls=row.calls,
        prompt=row.prompt_tokens,
        cache_read=row.cache_read_tokens,
        cache_write=row.cache_write_tokens,
        completion=row.completion_tokens,
        cost=cost_text(row),
    )

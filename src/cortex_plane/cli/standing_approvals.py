from __future__ import annotations

import re
from typing import Annotated
from uuid import UUID

import typer

from cortex_plane.approvals.model.approvals import StandingDraft
from cortex_plane.cli.output import AsJson, Limit, harmless, said, show_many, show_one
from cortex_plane.cli.plane import collect, run
from cortex_plane.kernel.errors import InvalidInput

app = typer.Typer(
    no_args_is_help=True, help="Standing approvals: a yes to more than one call, with bounds, until revoked."
)

_SPAN = re.compile(r"(\d{1,6})([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

# The options of `cortex approval approve`.
Calls = Annotated[
    int | None, typer.Option("--standing-calls", help="Say yes to so many more calls of this tool, too.")
]
For = Annotated[
    str | None, typer.Option("--standing-for", help="So long, as 90s, 30m, 2h or 1d; a day if left out.")
]
SameArguments = Annotated[
    bool, typer.Option("--standing-same-arguments", help="Only to calls with exactly these arguments.")
]
When = Annotated[
    str | None,
    typer.Option("--standing-when", help="Only while this CEL condition holds: 'args.amount < 100'."),
]


def draft_of(calls: int | None, span: str | None, same: bool, when: str | None) -> StandingDraft | None:
    """None where none of the options was given."""
    if calls is None and span is None and not same and when is None:
        return None
    return StandingDraft(
        same_arguments=same, calls=calls, seconds=_seconds(span) if span is not None else None, condition=when
    )


def _seconds(span: str) -> int:
    found = _SPAN.fullmatch(span.strip())
    if found is None:
        raise InvalidInput(
            f"{span[:40]!r} is not a span of time.", hint="A number and a unit: 90s, 30m, 2h or 1d."
        )
    return int(found[1]) * _UNITS[found[2]]


@app.command("list")
def list_standing(
    session: Annotated[UUID | None, typer.Option(help="Only those of this session.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Also what is revoked, over or used up.")] = False,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """Standing approvals that may still cover something, newest first."""
    found = run(
        lambda plane: collect(plane.standing_approvals.list(limit, session_id=session, active=not every))
    )
    columns = [
        "id", "tool_name", "agent", "granted_by", "used_calls", "max_calls", "expires_at", "condition", "usable",
        "why_not",
    ]  # fmt: skip
    show_many(found, columns, as_json)


@app.command("show")
def show(standing_id: UUID, as_json: AsJson = False) -> None:
    """What it covers, who gave it, how often it was used, and whether it still holds."""
    show_one(run(lambda plane: plane.standing_approvals.get(standing_id)), as_json)


@app.command("revoke")
def revoke(
    standing_id: UUID,
    reason: Annotated[str | None, typer.Option(help="For the audit trail.")] = None,
    as_json: AsJson = False,
) -> None:
    """Take it back: from now on each call is asked about again. What was sent was sent."""
    standing = run(lambda plane: plane.standing_approvals.revoke(standing_id, reason=reason))
    if as_json:
        show_one(standing, True)
        return
    times = f"{standing.used_calls} call{'s' if standing.used_calls != 1 else ''}"
    said(f"{harmless(standing.tool_name)} is asked about again; it covered {times}")

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from cortex_plane.cli.delegates import member_id
from cortex_plane.cli.output import AsJson, Limit, show_many, show_one
from cortex_plane.cli.plane import collect, run
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.tenancy.model.orgs import Absence, AbsenceDraft

if TYPE_CHECKING:
    from cortex_plane.client import Client

app = typer.Typer(no_args_is_help=True, help="Absences: while you are out of office somebody else decides.")

UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
Member = Annotated[str | None, typer.Option(help="For admins: who is absent; an id or the whole name.")]


@app.command("add")
def add(
    to: Annotated[str, typer.Option(help="Who decides meanwhile: an id or the whole name.")],
    until: Annotated[
        str | None, typer.Option(help="A date, which is its first moment here, or a date and a time.")
    ] = None,
    lasting: Annotated[str | None, typer.Option("--for", help="How long: 90m, 12h, 3d or 2w.")] = None,
    start: Annotated[
        str | None, typer.Option("--from", help="When it begins, like --until; now if left out.")
    ] = None,
    member: Member = None,
    reason: Annotated[str | None, typer.Option(help="Shown to others.")] = None,
    as_json: AsJson = False,
) -> None:
    """Out of office: what is asked of you goes to somebody else, where their clearance allows it."""
    starts_at = _time(start) if start is not None else None
    ends_at = _end(until, lasting, starts_at)

    async def make(plane: Client) -> Absence:
        absent = None if member is None else await member_id(plane, member)
        draft = AbsenceDraft(
            delegate_id=await member_id(plane, to),
            starts_at=starts_at,
            ends_at=ends_at,
            member_id=absent,
            reason=reason,
        )
        return await plane.absences.create(draft)

    show_one(run(make), as_json)


def _end(until: str | None, lasting: str | None, starts_at: datetime | None) -> datetime:
    if (until is None) == (lasting is None):
        raise InvalidInput("Say when it ends.", hint="Use either --until 2026-12-01 or --for 3d.")
    if until is not None:
        return _time(until)
    given = re.fullmatch(r"([1-9]\d{0,4})([mhdw])", lasting or "")
    if given is None:
        raise InvalidInput(f"--for {lasting} is no span of time.", hint="Write 90m, 12h, 3d or 2w.")
    return (starts_at or datetime.now().astimezone()) + timedelta(
        **{UNITS[given.group(2)]: int(given.group(1))}
    )


def _time(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
        return at if at.tzinfo else at.astimezone()
    except (ValueError, OverflowError):
        raise InvalidInput(f"{text!r} is no time.", hint="Write 2026-12-01, or 2026-12-01T09:00.") from None


@app.command("list")
def list_absences(
    every: Annotated[bool, typer.Option("--all", help="Also what is over or cancelled.")] = False,
    member: Member = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """Your own; staff see everybody's."""

    async def find(plane: Client) -> list[Absence]:
        whose = None if member is None else await member_id(plane, member)
        return await collect(plane.absences.list(limit, member_id=whose, only_open=not every))

    columns = ["id", "member", "delegate", "starts_at", "ends_at", "status", "reason"]
    show_many(run(find), columns, as_json)


@app.command("cancel")
def cancel(absence_id: UUID, as_json: AsJson = False) -> None:
    """Back early: what is asked from now on reaches you again."""
    show_one(run(lambda plane: plane.absences.cancel(absence_id)), as_json)


@app.command("delegates")
def delegates(
    approval: Annotated[
        UUID | None, typer.Option(help="Only those who could take your part in this request.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Colleagues to whom you may hand your part, by name; at most 200."""
    found = run(lambda plane: plane.absences.delegates(approval_id=approval))
    show_many(list(found), ["id", "display_name"], as_json)

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import typer

from cortex_plane.cli.output import AsJson, Limit, said, show_many, show_one, tell
from cortex_plane.cli.plane import collect, run
from cortex_plane.cli.users import SESSION_COLUMNS, All, end_sessions
from cortex_plane.client import Client
from cortex_plane.tenancy.model.credentials import EnrolmentCode, LoginLink
from cortex_plane.tenancy.model.identities import InvitationDraft
from cortex_plane.tenancy.model.orgs import MemberChange, MemberDraft, Role

app = typer.Typer(no_args_is_help=True, help="Members: the people of the org.")

Roles = Annotated[list[Role] | None, typer.Option("--role", help="May be given several times.")]
Teams = Annotated[list[str] | None, typer.Option("--team", help="Id or slug; may be given several times.")]
Clearance = Annotated[int | None, typer.Option(min=0, max=1000)]


@app.command("add")
def add(
    name: str, role: Roles = None, clearance: Clearance = None, team: Teams = None, as_json: AsJson = False
) -> None:
    """Add a member."""
    draft = MemberDraft(
        display_name=name, roles=role or [Role.MEMBER], clearance=clearance or 0, teams=team or []
    )
    show_one(run(lambda plane: plane.members.create(draft)), as_json)


@app.command("invite")
def invite(
    email: Annotated[str, typer.Option(help="Where the mail goes.")],
    name: Annotated[str | None, typer.Option(help="The person's name.")] = None,
    role: Roles = None,
    clearance: Clearance = None,
    team: Teams = None,
    resend: Annotated[
        bool, typer.Option("--resend", help="Send the mail again to somebody who was invited.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Add a member by mail: its link proves the address and logs them in. Again for the same address: the mail again."""
    if resend and (name or role or team or clearance is not None):
        raise typer.BadParameter("--resend takes only --email; `cortex member update` changes a member.")
    draft = InvitationDraft(email=email, display_name=name, roles=role, clearance=clearance, teams=team)
    invited = run(lambda plane: plane.identities.invite(draft))
    if as_json:
        show_one(invited, as_json)
        return
    show_one(invited.member, as_json)
    said(
        f"{'the mail is sent again' if invited.again else 'a mail is on its way'} to {invited.mapping.channel_user_id}"
    )


@app.command("unlink")
def unlink(member_id: UUID, mapping_id: UUID) -> None:
    """Take a channel or an address from a member: a lost phone, an invitation to the wrong address."""
    run(lambda plane: plane.identities.unlink_member(member_id, mapping_id))
    said("unlinked")


@app.command("list")
def list_members(
    role: Annotated[Role | None, typer.Option(help="Only those who have it.")] = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    found = run(lambda plane: collect(plane.members.list(limit, role)))
    show_many(found, ["id", "display_name", "roles", "clearance", "deactivated_at"], as_json)


@app.command("show")
def show(member_id: UUID, as_json: AsJson = False) -> None:
    show_one(run(lambda plane: plane.members.get(member_id)), as_json)


@app.command("update")
def update(
    member_id: UUID,
    name: Annotated[str | None, typer.Option()] = None,
    role: Roles = None,
    clearance: Clearance = None,
    team: Teams = None,
    active: Annotated[
        bool | None,
        typer.Option(
            "--activate/--deactivate", help="A deactivated member's keys and sessions end for good."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Change a member. Roles and teams replace the ones they had."""
    change = MemberChange(display_name=name, roles=role, clearance=clearance, teams=team, active=active)
    show_one(run(lambda plane: plane.members.update(member_id, change)), as_json)


@app.command("channels")
def channels(member_id: UUID, limit: Limit = 50, as_json: AsJson = False) -> None:
    """Where a member can be reached."""
    found = run(lambda plane: collect(plane.members.mappings(member_id, limit)))
    show_many(found, ["id", "channel_type", "channel_user_id", "verified_at"], as_json)


@app.command("sessions")
def sessions(member_id: UUID, limit: Limit = 50, as_json: AsJson = False) -> None:
    """Where a member is logged in."""
    found = run(lambda plane: collect(plane.members.browser_sessions(member_id, limit)))
    show_many(found, SESSION_COLUMNS, as_json)


@app.command("end-session")
def end_session(
    member_id: UUID,
    session_id: Annotated[UUID | None, typer.Argument(help="See `cortex member sessions`.")] = None,
    all_of_them: All = False,
) -> None:
    """Log a member out of a browser, or with --all of every one."""
    end_sessions(member_id, session_id, all_of_them)


@app.command("login-link")
def login_link(as_json: AsJson = False) -> None:
    """A link to the dashboard for you: it works once, for 15 minutes. Give it to nobody else."""

    async def issue(plane: Client) -> tuple[str, LoginLink]:
        return plane.url, await plane.members.login_link()

    url, link = run(issue)
    if as_json:
        show_one(link, as_json)
        return
    tell(url.rstrip("/") + link.url_path)
    said(f"works once, until {link.expires_at.astimezone():%H:%M:%S}")


@app.command("enrol")
def enrol(member_id: UUID, as_json: AsJson = False) -> None:
    """A code to hand to a member who has no mail here: they redeem it for a session or a key of their own.

    Until they have proven a channel of their own, the two of you count as one human in every quorum."""

    async def issue(plane: Client) -> tuple[str, EnrolmentCode]:
        return plane.url, await plane.members.enrolment_code(member_id)

    url, code = run(issue)
    if as_json:
        show_one(code, as_json)
        return
    tell(url.rstrip("/") + code.url_path)
    said(f"works once, until {code.expires_at.astimezone():%Y-%m-%d %H:%M}; hand it to them alone")
    said(f"in a terminal:  cortex enrol --url {url} {code.code}")

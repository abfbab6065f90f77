"""`cortex me`, `enrol`, `user`, `member` and `absence`: people, how they log in, and who decides while they are away."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Awaitable
from datetime import datetime, timedelta
from typing import Annotated, TypeVar
from uuid import UUID

import typer
from typer import Argument, Option

from cortex_plane.approvals.routes import LIST_DELEGATES
from cortex_plane.cli import terminal
from cortex_plane.cli.plane import run
from cortex_plane.cli.terminal import AsJson, Limit, add_command, say, show_record, show_table
from cortex_plane.client import Client
from cortex_plane.client.access import ACCESS_FILE, plane_home, write_private
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.tenancy import routes
from cortex_plane.tenancy.model.access import Redemption
from cortex_plane.tenancy.model.identities import AddressDraft, InvitationDraft, Invited, LinkClaim, LinkCode, Mapping
from cortex_plane.tenancy.model.orgs import Absence, AbsenceDraft, MemberChange, MemberDraft, Role

T = TypeVar("T")

self_app = typer.Typer()

add_command(self_app, "me", routes.GET_ME, "Who the key stands for, and what it may do.")


async def _with_url(plane: Client, answer: Awaitable[T]) -> tuple[str, T]:
    return plane.url, await answer


@self_app.command("enrol")
def redeem_enrolment(
    code: Annotated[str, Argument(help="What an admin handed you; `-` reads it from standard input.")] = "-",
    url: Annotated[str | None, Option(help="The address of the plane; CORTEX_URL without it.")] = None,
    name: Annotated[str, Option(help="A name for your key.")] = "command line",
    as_json: AsJson = False,
) -> None:
    """Redeem an enrolment code for a key of your own. In a folder without one the key is kept, else it is printed once."""
    if url is not None:
        os.environ["CORTEX_URL"] = url
    secret = terminal.read_secret(code).rpartition("/")[2]
    redemption = Redemption(code=secret, key_name=name)
    address, new = run(lambda plane: _with_url(plane, plane.members.enrol(redemption)), without_key=True)
    terminal.print_record(new if as_json else new.key, as_json)
    access = plane_home() / ACCESS_FILE
    if as_json:
        return
    if new.secret is None or access.exists():
        say(f"\nYour key, shown once:\n  {new.secret}")
        return
    access.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(access, {"url": address, "key": new.secret})
    say(f"\nYour key is kept in {access}.")


user_app = typer.Typer(no_args_is_help=True, help="Yourself: where you are reached, and where you are logged in.")


@user_app.command("link")
def link_channel(
    email: Annotated[str | None, Option(help="A mail address of yours, instead of a channel.")] = None,
    as_json: AsJson = False,
) -> None:
    """Link another channel to you: shows a code to type there, and who typed one before. With --email, mails a link to that address."""
    if email is None:
        url, code = run(lambda plane: _with_url(plane, plane.identities.link_code()))
        if as_json:
            terminal.print_json(code)
        else:
            _show_link_code(code)
            say(f"accounts of GitHub and GitLab need no code: log in there from {url.rstrip('/')}/access/channels")
            for claim in run(lambda plane: plane.identities.claims()):
                _show_claim(claim)
    else:
        draft = AddressDraft(email=email)
        show_record(lambda plane: plane.identities.add_address(draft), as_json, _show_address)


def _show_address(mapping: Mapping) -> None:
    say(f"a mail is on its way to {mapping.channel_user_id}")
    say("open its link in a browser in which you are logged in (cortex member login-link)")


def _show_link_code(code: LinkCode) -> None:
    terminal.print_line(code.code)
    say(f"type it on the other channel, in a private chat; works once, until {code.expires_at.astimezone():%H:%M:%S}")


def _show_claim(claim: LinkClaim) -> None:
    say(
        f"\n{claim.name} ({claim.channel_user_id}) on {claim.channel_type}, {claim.connection}, had a code of yours. If it was you:"
    )
    say(f"  cortex user confirm {claim.id}")
    say(f"If not: cortex user refuse {claim.id}")


add_command(user_app, "claims", routes.LIST_LINK_CLAIMS, "Who typed a code of yours and waits for you to confirm it.")
add_command(
    user_app,
    "confirm",
    routes.CONFIRM_LINK_CLAIM,
    "It was you who typed the code there: what you write there is yours from now on.",
)


@user_app.command("refuse")
def refuse_link(mapping_id: UUID) -> None:
    """It was somebody else who typed your code: nothing is linked."""
    run(lambda plane: plane.identities.refuse(mapping_id))
    say("refused")


add_command(
    user_app, "channels", routes.LIST_OWN_MAPPINGS, "Where you are reached. What is not verified yet receives nothing."
)


@user_app.command("unlink")
def unlink_own_channel(mapping_id: UUID) -> None:
    """Give up a channel or an address of yours."""
    run(lambda plane: plane.identities.unlink(mapping_id))
    say("unlinked")


AllSessions = Annotated[bool, Option("--all", help="Every one of them, and login links that were not used yet.")]

add_command(user_app, "sessions", routes.LIST_OWN_BROWSER_SESSIONS, "Where you are logged in.")


@user_app.command("end-session")
def end_own_session(
    session_id: Annotated[UUID | None, Argument(help="See `cortex user sessions`.")] = None,
    all_of_them: AllSessions = False,
) -> None:
    """Log out of a browser, or with --all of every one."""
    end_sessions(None, session_id, all_of_them)


def end_sessions(member_id: UUID | None, session_id: UUID | None, all_of_them: bool) -> None:
    if (session_id is None) != all_of_them:
        raise InvalidInput("Name one session, or give --all.", hint="See `cortex user sessions`.")
    if session_id is None:
        count = run(lambda plane: plane.members.end_browser_sessions(member_id)).ended
        say(f"ended {terminal.count_text(count, 'session')}")
    else:
        run(lambda plane: plane.members.end_browser_session(session_id, member_id))
        say("ended")


add_command(user_app, "keys", routes.LIST_OWN_KEYS, "Your keys.")
add_command(
    user_app,
    "revoke-key",
    routes.REVOKE_OWN_KEY,
    "End a key of yours at once and for good, with the keys and browser sessions that came from it.",
)


member_app = typer.Typer(no_args_is_help=True, help="Members: the people of the org.")

Roles = Annotated[list[Role] | None, Option("--role", help="May be given several times.")]
Teams = Annotated[list[str] | None, Option("--team", help="Id or slug; may be given several times.")]
Clearance = Annotated[int | None, Option(min=0, max=1000)]


@member_app.command("add")
def add_member(
    name: str, role: Roles = None, clearance: Clearance = None, team: Teams = None, as_json: AsJson = False
) -> None:
    """Add a member."""
    draft = MemberDraft(display_name=name, roles=role or [Role.MEMBER], clearance=clearance or 0, teams=team or [])
    show_record(lambda plane: plane.members.create(draft), as_json)


@member_app.command("invite")
def invite_member(
    email: Annotated[str, Option(help="Where the mail goes.")],
    name: Annotated[str | None, Option(help="The person's name.")] = None,
    role: Roles = None,
    clearance: Clearance = None,
    team: Teams = None,
    resend: Annotated[bool, Option("--resend", help="Send the mail again to somebody who was invited.")] = False,
    as_json: AsJson = False,
) -> None:
    """Add a member by mail: its link proves the address and logs them in. Again for the same address: the mail again."""
    if resend and (name or role or team or clearance is not None):
        raise typer.BadParameter("--resend takes only --email; `cortex member update` changes a member.")
    draft = InvitationDraft(email=email, display_name=name, roles=role, clearance=clearance, teams=team)
    show_record(lambda plane: plane.identities.invite(draft), as_json, _show_invitation)


def _show_invitation(invitation: Invited) -> None:
    terminal.print_record(invitation.member)
    mail = "the mail is sent again" if invitation.again else "a mail is on its way"
    say(f"{mail} to {invitation.mapping.channel_user_id}")


@member_app.command("unlink")
def unlink_member_channel(member_id: UUID, mapping_id: UUID) -> None:
    """Take a channel or an address from a member: a lost phone, an invitation to the wrong address."""
    run(lambda plane: plane.identities.unlink_member(member_id, mapping_id))
    say("unlinked")


add_command(member_app, "list", routes.LIST_MEMBERS, role="Only those who have it.")
add_command(member_app, "show", routes.GET_MEMBER)


@member_app.command("update")
def update_member(
    member_id: UUID,
    name: str | None = None,
    role: Roles = None,
    clearance: Clearance = None,
    team: Teams = None,
    active: Annotated[
        bool | None, Option("--activate/--deactivate", help="A deactivated member's keys and sessions end for good.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Change a member. Roles and teams replace the ones they had."""
    change = MemberChange(display_name=name, roles=role, clearance=clearance, teams=team, active=active)
    show_record(lambda plane: plane.members.update(member_id, change), as_json)


add_command(member_app, "channels", routes.LIST_MAPPINGS, "Where a member can be reached.")
add_command(member_app, "sessions", routes.LIST_MEMBER_BROWSER_SESSIONS, "Where a member is logged in.")


@member_app.command("end-session")
def end_member_session(
    member_id: UUID,
    session_id: Annotated[UUID | None, Argument(help="See `cortex member sessions`.")] = None,
    all_of_them: AllSessions = False,
) -> None:
    """Log a member out of a browser, or with --all of every one."""
    end_sessions(member_id, session_id, all_of_them)


@member_app.command("login-link")
def create_login_link(as_json: AsJson = False) -> None:
    """A link to the dashboard for you: it works once, for 15 minutes. Give it to nobody else."""
    url, link = run(lambda plane: _with_url(plane, plane.members.login_link()))
    if as_json:
        terminal.print_json(link)
        return
    terminal.print_line(url.rstrip("/") + link.url_path)
    say(f"works once, until {link.expires_at.astimezone():%H:%M:%S}")


@member_app.command("enrol")
def create_enrolment_code(member_id: UUID, as_json: AsJson = False) -> None:
    """A code to hand to a member who has no mail here: they redeem it for a session or a key of their own.

    Until they have proven a channel of their own, the two of you count as one human in every quorum."""
    url, code = run(lambda plane: _with_url(plane, plane.members.enrolment_code(member_id)))
    if as_json:
        terminal.print_json(code)
        return
    terminal.print_line(url.rstrip("/") + code.url_path)
    say(f"works once, until {code.expires_at.astimezone():%Y-%m-%d %H:%M}; hand it to them alone")
    say(f"in a terminal:  cortex enrol --url {url} {code.code}")


absence_app = typer.Typer(no_args_is_help=True, help="Absences: while you are out of office somebody else decides.")

UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
Member = Annotated[str | None, Option(help="For admins: who is absent; an id or the whole name.")]


@absence_app.command("add")
def add_absence(
    to: Annotated[str, Option(help="Who decides meanwhile: an id or the whole name.")],
    until: Annotated[str | None, Option(help="A date, which is its first moment here, or a date and a time.")] = None,
    lasting: Annotated[str | None, Option("--for", help="How long: 90m, 12h, 3d or 2w.")] = None,
    start: Annotated[str | None, Option("--from", help="When it begins, like --until; now if left out.")] = None,
    member: Member = None,
    reason: Annotated[str | None, Option(help="Shown to others.")] = None,
    as_json: AsJson = False,
) -> None:
    """Out of office: what is asked of you goes to somebody else, where their clearance allows it."""
    starts_at = _time(start) if start is not None else None
    ends_at = _end(until, lasting, starts_at)

    async def create(plane: Client) -> Absence:
        absent_id = None if member is None else await terminal.member_id(plane, member)
        delegate_id = await terminal.member_id(plane, to)
        draft = AbsenceDraft(
            delegate_id=delegate_id, starts_at=starts_at, ends_at=ends_at, member_id=absent_id, reason=reason
        )
        return await plane.absences.create(draft)

    show_record(create, as_json)


def _end(until: str | None, lasting: str | None, starts_at: datetime | None) -> datetime:
    if (until is None) == (lasting is None):
        raise InvalidInput("Say when it ends.", hint="Use either --until 2026-12-01 or --for 3d.")
    if until is not None:
        return _time(until)
    span = re.fullmatch(r"([1-9]\d{0,4})([mhdw])", lasting or "")
    if span is None:
        raise InvalidInput(f"--for {lasting} is no span of time.", hint="Write 90m, 12h, 3d or 2w.")
    return (starts_at or datetime.now().astimezone()) + timedelta(**{UNITS[span[2]]: int(span[1])})


def _time(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
        return at if at.tzinfo else at.astimezone()
    except (ValueError, OverflowError):
        raise InvalidInput(f"{text!r} is no time.", hint="Write 2026-12-01, or 2026-12-01T09:00.") from None


@absence_app.command("list")
def list_absences(
    every: Annotated[bool, Option("--all", help="Also what is over or cancelled.")] = False,
    member: Member = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """Your own; staff see everybody's."""

    async def find(plane: Client) -> AsyncIterator[Absence]:
        absent_id = None if member is None else await terminal.member_id(plane, member)
        async for absence in plane.absences.list(limit, member_id=absent_id, only_open=not every):
            yield absence

    show_table(routes.LIST_ABSENCES, find, as_json)


add_command(absence_app, "cancel", routes.CANCEL_ABSENCE, "Back early: what is asked from now on reaches you again.")
add_command(
    absence_app,
    "delegates",
    LIST_DELEGATES,
    "Colleagues to whom you may hand your part, by name; at most 200.",
    approval="Only those who could take your part in this request.",
)

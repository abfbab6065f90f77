from __future__ import annotations

from typing import Annotated
from uuid import UUID

import typer

from cortex_plane.cli.output import AsJson, Limit, said, show_many, show_one, tell
from cortex_plane.cli.plane import collect, run
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.tenancy.model.identities import AddressDraft

app = typer.Typer(no_args_is_help=True, help="Yourself: where you are reached, and where you are logged in.")


@app.command("link")
def link(
    email: Annotated[str | None, typer.Option(help="A mail address of yours, instead of a channel.")] = None,
    as_json: AsJson = False,
) -> None:
    """Link another channel to you: shows a code to type there. With --email, mails a link to that address."""
    if email is not None:
        draft = AddressDraft(email=email)
        mapping = run(lambda plane: plane.identities.add_address(draft))
        if as_json:
            show_one(mapping, as_json)
            return
        said(f"a mail is on its way to {mapping.channel_user_id}")
        said("open its link in a browser in which you are logged in (cortex member login-link)")
        return
    code = run(lambda plane: plane.identities.link_code())
    if as_json:
        show_one(code, as_json)
        return
    tell(code.code)
    said(f"type it on the other channel; works once, until {code.expires_at.astimezone():%H:%M:%S}")


@app.command("channels")
def channels(limit: Limit = 50, as_json: AsJson = False) -> None:
    """Where you are reached. What is not verified yet receives nothing."""
    found = run(lambda plane: collect(plane.identities.mappings(limit)))
    show_many(found, ["id", "channel_type", "channel_user_id", "verified_at"], as_json)


@app.command("unlink")
def unlink(mapping_id: UUID) -> None:
    """Give up a channel or an address of yours."""
    run(lambda plane: plane.identities.unlink(mapping_id))
    said("unlinked")


SESSION_COLUMNS = ["id", "created_at", "last_seen_at", "expires_at", "key_name"]
All = Annotated[
    bool, typer.Option("--all", help="Every one of them, and login links that were not used yet.")
]


@app.command("sessions")
def sessions(limit: Limit = 50, as_json: AsJson = False) -> None:
    """Where you are logged in."""
    found = run(lambda plane: collect(plane.members.browser_sessions(limit=limit)))
    show_many(found, SESSION_COLUMNS, as_json)


@app.command("end-session")
def end_session(
    session_id: Annotated[UUID | None, typer.Argument(help="See `cortex user sessions`.")] = None,
    all_of_them: All = False,
) -> None:
    """Log out of a browser, or with --all of every one."""
    end_sessions(None, session_id, all_of_them)


def end_sessions(member_id: UUID | None, session_id: UUID | None, all_of_them: bool) -> None:
    if (session_id is None) != all_of_them:
        raise InvalidInput("Name one session, or give --all.", hint="See `cortex user sessions`.")
    if session_id is None:
        ended = run(lambda plane: plane.members.end_browser_sessions(member_id)).ended
        said(f"ended {ended} session{'' if ended == 1 else 's'}")
        return
    run(lambda plane: plane.members.end_browser_session(session_id, member_id))
    said("ended")


@app.command("keys")
def keys(limit: Limit = 50, as_json: AsJson = False) -> None:
    """Your keys."""
    found = run(lambda plane: collect(plane.keys.list_own(limit)))
    columns = ["id", "name", "last_characters", "last_used_at", "expires_at", "revoked_at"]
    show_many(found, columns, as_json)


@app.command("revoke-key")
def revoke_key(key_id: UUID, as_json: AsJson = False) -> None:
    """End a key of yours at once and for good, with the keys and browser sessions that came from it."""
    show_one(run(lambda plane: plane.keys.revoke_own(key_id)), as_json)

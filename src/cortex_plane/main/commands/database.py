"""`cortex db`, and the address of the database for commands that look into it."""

from __future__ import annotations

import asyncio
import sys

import typer

from cortex_plane.kernel.errors import SetupError, extra

app = typer.Typer(no_args_is_help=True, help="The database: migrate it, look at it, make a login for it.")


@app.command("migrate")
def migrate_command() -> None:
    """Bring the database to this release. Uses DATABASE_ADMIN_URL, else DATABASE_URL, else the embedded server."""
    with extra("server"):
        from cortex_plane.db.schema import migrate
        from cortex_plane.main import databases
        from cortex_plane.main.settings import load

    settings = load()
    with databases.database(settings, typer.echo) as urls:
        applied = asyncio.run(migrate(urls.admin or urls.app, on_progress=typer.echo))
    typer.echo(f"applied {len(applied)} scripts" if applied else "nothing to do")


@app.command()
def status() -> None:
    """What this release's schema has that the database lacks."""
    with extra("server"):
        from cortex_plane.db.database import Database
        from cortex_plane.db.schema import pending
        from cortex_plane.main import databases

    async def main(url: str) -> list[str]:
        database = await Database.open(url, max_size=2)
        try:
            return await pending(database)
        finally:
            await database.close()

    url = app_url()
    missing = asyncio.run(main(url))
    typer.echo("\n".join(missing) if missing else f"current ({databases.shown(url)})")
    if missing:
        raise typer.Exit(1)


@app.command("rotate-key")
def rotate_key() -> None:
    """Replace the master key by a new one, and seal every secret anew. Stop every process of the plane first.

    A key in a file is replaced by one that is made here. Where CORTEX_MASTER_KEY holds the old key, the new one is read from the standard
    input. A rotation that was interrupted is finished."""
    with extra("server"):
        from cortex_plane.main import databases
        from cortex_plane.main.master_key import KEY_FILE
        from cortex_plane.main.settings import load

    settings = load()
    with databases.database(settings, typer.echo) as urls:
        url = databases.prepare(settings, urls, typer.echo)
        rotation = asyncio.run(databases.rotate_master_key(settings, url, _read_new_key))
    resealed = rotation.resealed
    if resealed is None:
        typer.echo("the plane has this master key already")
    else:
        begun = "a rotation that was begun before is finished: " if rotation.resumed else ""
        typer.echo(
            f"{begun}{resealed.secrets} secrets and {resealed.checkpoints} checkpoints of {resealed.orgs} orgs are"
            " sealed with the new master key"
        )
    if settings.master_key is None:
        typer.echo(
            f"it is in {settings.home / KEY_FILE}: every machine of the plane needs it; then start the processes"
        )
    else:
        typer.echo("set CORTEX_MASTER_KEY to the new key for every process of the plane, then start them")
    typer.echo("backups from before need the old key: keep it, apart from them, for as long as you keep them")


def _read_new_key() -> bytes:
    from cortex_plane.main.master_key import parse_master_key

    if sys.stdin.isatty():
        return parse_master_key(typer.prompt("new master key", hide_input=True), "The standard input")
    return parse_master_key(sys.stdin.readline(), "The standard input")


@app.command()
def provision() -> None:
    """Make a plain login for the plane, with the login of DATABASE_ADMIN_URL or DATABASE_URL, and print its URL."""
    with extra("server"):
        from cortex_plane.db.schema import migrate
        from cortex_plane.main import databases
        from cortex_plane.main.settings import load

    settings = load()
    admin = settings.database_admin_url or settings.database_url
    if admin is None:
        raise SetupError(
            "Neither DATABASE_ADMIN_URL nor DATABASE_URL is set.",
            code="no_database",
            hint="The embedded server needs no provisioning: `cortex up` does it.",
        )
    databases.require_home(settings.home)
    asyncio.run(migrate(admin, on_progress=lambda phrase: typer.echo(phrase, err=True)))
    sys.stdout.write(databases.plain_login(settings.home, admin) + "\n")


def app_url() -> str:
    with extra("server"):
        from cortex_plane.main import databases
        from cortex_plane.main.settings import load

    settings = load()
    url = settings.database_url or databases.running_app_url(settings.home)
    if url is None:
        raise SetupError(
            "The embedded server is not running.",
            code="not_running",
            hint="Start it with `cortex up`, or set DATABASE_URL.",
        )
    return url

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


@app.command("status")
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


@app.command("provision")
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

"""The entry point of the command line: the nouns from the adapters, and what needs the whole plane.

Commands over the API are most of what people type, and they must answer at once: what only `up`, `api` and `db` need
(the server, the driver) is imported when one of them runs.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from cortex_plane import __version__
from cortex_plane.adapters.cli import (
    agents,
    approvals,
    audit,
    connections,
    jobs,
    keys,
    members,
    orgs,
    policies,
    sessions,
    teams,
    tools,
    workers,
)
from cortex_plane.adapters.cli.output import AsJson, console, said, show_many, show_one
from cortex_plane.adapters.cli.plane import guarded, run
from cortex_plane.bootstrap import demo_commands
from cortex_plane.domain.errors import SetupError
from cortex_plane.settings import load

if TYPE_CHECKING:
    from cortex_plane.domain.audit import Verification

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Agents that never lose their place and never act without permission.",
)
db = typer.Typer(no_args_is_help=True, help="The database: migrate it, look at it, make a login for it.")
for noun, commands in {
    "org": orgs, "team": teams, "member": members, "key": keys, "connection": connections, "agent": agents,
    "session": sessions, "job": jobs, "approval": approvals, "policy": policies, "tool": tools, "workers": workers, "audit": audit,
}.items():  # fmt: skip
    app.add_typer(commands.app, name=noun)
app.add_typer(db, name="db")
app.add_typer(demo_commands.app, name="demo")


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        said(__version__)
        raise typer.Exit


@app.command()
def up(
    apps: Annotated[
        list[str] | None, typer.Option("--app", help="An app for the worker to load: package.module:app.")
    ] = None,
) -> None:
    """Start everything here: PostgreSQL, migrations, the API, a worker, a demo agent. Ctrl-C stops it."""
    from cortex_plane.bootstrap.up import up as start_everything

    start_everything(load(), apps or [])


@app.command()
def api() -> None:
    """Serve the API on a database that is migrated already (DATABASE_URL)."""
    from cortex_plane.adapters.telemetry.logs import configure_logs
    from cortex_plane.bootstrap import serving

    settings = load()
    if not settings.database_url:
        raise SetupError(
            "DATABASE_URL is not set.",
            code="no_database",
            hint="Set it to the plane's plain login, or use `cortex up` for an embedded server.",
        )
    configure_logs(settings.log_level, as_json=settings.log_format == "json")
    listener = serving.listen(settings, or_any_port=False)
    url = settings.database_url

    async def main() -> None:
        async with serving.opened(settings, url) as database:
            await serving.serve(
                database,
                listener,
                lambda: said(f"serving on {serving.address(listener)}"),
                serving.hints_url(settings, url),
                settings.trusted_proxies,
            )

    with listener:
        asyncio.run(main())


@app.command()
def worker(
    apps: Annotated[
        list[str] | None,
        typer.Option("--app", help="An app to load: package.module:app. Any number of times."),
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Jobs at a time; CORTEX_CONCURRENCY if left out.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="How others see this worker; host and process if left out.")
    ] = None,
    parent: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run jobs. Any number of workers on any number of machines; SIGTERM lets them finish or hand back."""
    from cortex_plane.adapters.telemetry.logs import configure_logs
    from cortex_plane.bootstrap.databases import require_home
    from cortex_plane.bootstrap.working import run_worker

    settings = load()
    require_home(settings.home)
    configure_logs(settings.log_level, as_json=settings.log_format == "json")
    if concurrency is not None:
        settings = settings.model_copy(update={"concurrency": concurrency})
    run_worker(
        settings,
        _app_url(),
        apps or [],
        lambda worker: said(f"worker {worker.name} runs {', '.join(sorted(worker.apps))}"),
        name,
        parent,
    )


@app.command()
def me(as_json: AsJson = False) -> None:
    """Who the key stands for, and what it may do."""
    show_one(run(lambda plane: plane.me()), as_json)


@app.command("doctor")
def doctor_command() -> None:
    """Examine this machine, the database and the API."""
    from cortex_plane.bootstrap import doctor

    findings = doctor.examine(load())
    table = Table(box=None, pad_edge=False, show_header=False)
    for finding in findings:
        table.add_row(
            "[green]ok[/]" if finding.ok else "[red]not ok[/]",
            finding.name,
            f"{finding.detail} {finding.hint}",
        )
    console.print(table)
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)


@db.command("migrate")
def migrate_command() -> None:
    """Bring the database to this release. Uses DATABASE_ADMIN_URL, else DATABASE_URL, else the embedded server."""
    from cortex_plane.bootstrap import databases
    from cortex_plane.storage.migrate import migrate

    settings = load()
    with databases.database(settings, said) as urls:
        applied = asyncio.run(migrate(urls.admin or urls.app, on_progress=said))
    said(f"applied {len(applied)} scripts" if applied else "nothing to do")


@db.command()
def status() -> None:
    """What this release's schema has that the database lacks."""
    from cortex_plane.bootstrap import databases
    from cortex_plane.storage.database import Database
    from cortex_plane.storage.migrate import pending

    async def main(url: str) -> list[str]:
        database = await Database.open(url, max_size=2)
        try:
            return await pending(database)
        finally:
            await database.close()

    url = _app_url()
    missing = asyncio.run(main(url))
    said("\n".join(missing) if missing else f"current ({databases.shown(url)})")
    if missing:
        raise typer.Exit(1)


@db.command()
def provision() -> None:
    """Make a plain login for the plane, with the login of DATABASE_ADMIN_URL or DATABASE_URL, and print its URL."""
    from cortex_plane.bootstrap import databases
    from cortex_plane.storage.migrate import migrate

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


@audit.app.command()
def verify(
    remote: Annotated[
        bool, typer.Option(help="Ask the API about the key's org instead of the database.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Follow every audit chain, in the database itself; names the first bad entry of each."""
    if remote:
        results = {"this org": run(lambda plane: plane.audit.verify())}
    else:
        from cortex_plane.operations.audit import verify_all
        from cortex_plane.storage.database import Database

        async def main(url: str) -> dict[str, Verification]:
            database = await Database.open(url, max_size=2)
            try:
                return await verify_all(database)
            finally:
                await database.close()

        results = asyncio.run(main(_app_url()))
    faults = [fault for result in results.values() for fault in result.faults]
    if as_json:
        show_many(list(results.values()), [], True)
    else:
        for name, result in results.items():
            verdict = "whole" if not result.faults else f"{len(result.faults)} broken"
            said(f"{name}: {result.chains} chains, {result.entries} entries, {verdict}")
        for fault in faults:
            said(f"  chain {fault.chain_id}, entry {fault.seq}: {fault.reason}")
    if faults:
        raise typer.Exit(1)


def _app_url() -> str:
    from cortex_plane.bootstrap import databases

    settings = load()
    url = settings.database_url or databases.running_app_url(settings.home)
    if url is None:
        raise SetupError(
            "The embedded server is not running.",
            code="not_running",
            hint="Start it with `cortex up`, or set DATABASE_URL.",
        )
    return url


@guarded
def main() -> None:
    app()

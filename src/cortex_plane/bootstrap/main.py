"""The entry point of the command line: the nouns from the adapters, and what needs the whole plane.

Commands over the API are most of what people type, and they must answer at once: what only `up`, `api` and `db` need
(the server, the driver) is imported when one of them runs.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from cortex_plane import __version__
from cortex_plane.adapters.cli import (
    absences,
    agents,
    approvals,
    atlases,
    audit,
    calls,
    connections,
    deliveries,
    jobs,
    keys,
    members,
    model_keys,
    orgs,
    policies,
    proofs,
    sessions,
    signals,
    standing_approvals,
    teams,
    tools,
    usage,
    users,
    workers,
)
from cortex_plane.adapters.cli.output import AsJson, console, said, show_one
from cortex_plane.adapters.cli.plane import fail, guarded, run
from cortex_plane.bootstrap import demo_commands
from cortex_plane.domain.errors import CortexError, SetupError
from cortex_plane.settings import load

if TYPE_CHECKING:
    from cortex_plane.domain.audit import Verification

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Agents that never lose their place and never act without permission.",
)
db = typer.Typer(no_args_is_help=True, help="The database: migrate it, look at it, make a login for it.")
doctor = typer.Typer(help="Examine this machine, the database and the API.")
for noun, commands in {
    "org": orgs, "team": teams, "member": members, "user": users, "absence": absences, "key": keys, "model-key": model_keys, "connection": connections, "agent": agents,
    "session": sessions, "call": calls, "job": jobs, "signal": signals, "approval": approvals, "standing": standing_approvals, "delivery": deliveries, "policy": policies, "atlas": atlases, "tool": tools, "workers": workers, "audit": audit,
}.items():  # fmt: skip
    app.add_typer(commands.app, name=noun)
app.command("usage")(usage.usage)
app.add_typer(db, name="db")
app.add_typer(doctor, name="doctor")
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
    from cortex_plane.bootstrap.reaching import reach_of

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
                reach_of(settings, serving.address(listener)),
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


@doctor.callback(invoke_without_command=True)
def doctor_command(context: typer.Context) -> None:
    """Examine this machine, the database and the API."""
    if context.invoked_subcommand is not None:
        return
    from cortex_plane.bootstrap.doctor import examine

    findings = examine(load())
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


@doctor.command()
def preflight(
    apps: Annotated[
        list[str] | None,
        typer.Option("--app", help="An app that workers will load: package.module:app. Any number of times."),
    ] = None,
    replay: Annotated[
        bool, typer.Option(help="Also run code agents up to where they stand, on what they recorded.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List parked jobs that the code, tools and models loaded here cannot resume. Exit code 0: none; 1: some; 2: could not look."""
    from cortex_plane.bootstrap.preflight import COULD_NOT_LOOK
    from cortex_plane.bootstrap.preflight import preflight as look

    try:
        code = look(load(), _app_url(), apps or [], as_json=as_json, replay=replay)
    except CortexError as error:
        fail(error, COULD_NOT_LOOK)
    raise typer.Exit(code)


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
    export: Annotated[
        Path | None, typer.Option(help="Verify this export instead, without any plane; - is standard input.")
    ] = None,
    keys: Annotated[
        list[str] | None,
        typer.Option("--key", help="The fingerprint of a key that you trust; after a rotation give each."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Follow every audit chain and signed root, in the database or in a file; names the first bad entry of each."""
    trusted = [proofs.checked_fingerprint(key) for key in keys or ()]
    if export is not None:
        from cortex_plane.domain.export_reading import verify_export

        results = {str(export): verify_export(proofs.export_lines(export))}
    elif remote:
        results = {"this org": run(lambda plane: plane.audit.verify())}
    else:
        results = asyncio.run(_verify_database(_app_url()))
    proofs.show_verification(results, trusted, as_json)


async def _verify_database(url: str) -> dict[str, Verification]:
    """With the master key where it is at hand: only that can tell whose keys stand in the database."""
    from cortex_plane.bootstrap.master_key import master_key_at_hand
    from cortex_plane.operations import workers
    from cortex_plane.operations.audit import verify_all
    from cortex_plane.storage.database import Database
    from cortex_plane.storage.vault import Vault

    key = master_key_at_hand(load())
    database = await Database.open(url, max_size=2, vault=Vault(key) if key else None)
    try:
        if key is not None:
            await workers.require_known_key(database, key)
        return await verify_all(database)
    finally:
        await database.close()


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

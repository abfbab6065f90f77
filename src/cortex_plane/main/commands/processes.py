"""`cortex up`, `cortex api`, `cortex worker`: the processes of a plane."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cortex_plane.cli.plane import importing
from cortex_plane.kernel.errors import SetupError, extra

if TYPE_CHECKING:
    from cortex_plane.main.settings import Settings

app = typer.Typer()


def _settings() -> Settings:
    """Read before the parts of a plane are imported: a wrong one is named at once."""
    with importing():
        from cortex_plane.main.settings import load

    return load()


@app.command("up")
def up(
    apps: Annotated[
        list[str] | None, typer.Option("--app", help="An app for the worker to load: package.module:app.")
    ] = None,
) -> None:
    """Start everything here: PostgreSQL, migrations, the API, a worker, a demo agent. Ctrl-C stops it."""
    settings = _settings()
    with importing(), extra("all"):
        from cortex_plane.main.up import up as start_everything

    start_everything(settings, apps or [])


@app.command("api")
def api() -> None:
    """Serve the API on a database that is migrated already (DATABASE_URL)."""
    import asyncio

    settings = _settings()
    with importing(), extra("server"):
        from cortex_plane.main import api_process
        from cortex_plane.main.databases import opened
        from cortex_plane.main.logs import configure_logs
        from cortex_plane.main.reach import reach_of

    if not settings.database_url:
        raise SetupError(
            "DATABASE_URL is not set.",
            code="no_database",
            hint="Set it to the plane's plain login, or use `cortex up` for an embedded server.",
        )
    configure_logs(settings.log_level, as_json=settings.log_format == "json")
    listener = api_process.listen(settings, or_any_port=False)
    url = settings.database_url

    async def main() -> None:
        async with opened(settings, url) as database:
            await api_process.serve(
                database,
                listener,
                lambda: typer.echo(f"serving on {api_process.address(listener)}"),
                reach_of(settings, api_process.address(listener)),
                api_process.hints_url(settings, url),
                settings.trusted_proxies,
                settings.requests_per_second,
                api_process.request_limits(settings),
            )

    with listener:
        asyncio.run(main())


@app.command("worker")
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
    settings = _settings()
    with importing(), extra("worker"):
        from cortex_plane.main.commands.database import app_url
        from cortex_plane.main.databases import require_home
        from cortex_plane.main.logs import configure_logs
        from cortex_plane.main.worker_process import run_worker

    require_home(settings.home)
    configure_logs(settings.log_level, as_json=settings.log_format == "json")
    if concurrency is not None:
        settings = settings.model_copy(update={"concurrency": concurrency})
    run_worker(
        settings,
        app_url(),
        apps or [],
        lambda worker: typer.echo(f"worker {worker.name} runs {', '.join(sorted(worker.apps))}"),
        name,
        parent,
    )

"""`cortex up`, `api`, `worker`, `db`, `doctor`, `demo` and `audit verify`: commands that need more than the API."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn
from uuid import UUID

import typer
from typer import Argument, Option

from cortex_plane.cli import proof
from cortex_plane.cli.plane import fail, importing, run
from cortex_plane.cli.proof import audit_app
from cortex_plane.cli.terminal import AsJson, console, print_line, say, short
from cortex_plane.client.access import plane_home
from cortex_plane.kernel.errors import AlreadyExists, CortexError, InvalidInput, SetupError, extra
from cortex_plane.proof.rules.roots import read_copies, read_times

if TYPE_CHECKING:
    from cortex_plane.agents.model.agents import AgentDraft
    from cortex_plane.client import Client
    from cortex_plane.jobs.model.jobs import Job, JobDraft
    from cortex_plane.main.settings import Settings
    from cortex_plane.proof.model import Verification
    from cortex_plane.proof.rules.roots import Held
    from cortex_plane.worker.worker import JobRunner


process_app = typer.Typer()


def _load_settings() -> Settings:
    """Read before the parts of a plane are imported: a wrong one is named at once."""
    with importing():
        from cortex_plane.main.settings import load

    return load()


@process_app.command("up")
def start_everything(
    apps: Annotated[
        list[str] | None, Option("--app", help="An app for the worker to load: package.module:app.")
    ] = None,
) -> None:
    """Start everything here: PostgreSQL, migrations, the API, a worker, a demo agent. Ctrl-C stops it."""
    settings = _load_settings()
    with importing(), extra("all"):
        from cortex_plane.main.up import up

    up(settings, apps or [])


@process_app.command("api")
def serve_api(
    processes: Annotated[int, Option(min=1, max=256, help="Processes that serve one port.")] = 1,
    parent: Annotated[int | None, Option(hidden=True)] = None,
) -> None:
    """Serve the API on a database that is migrated already (DATABASE_URL)."""
    settings = _load_settings()
    with importing(), extra("server"):
        from cortex_plane.main import sockets, supervisor
        from cortex_plane.main.databases import open_database

    if not settings.database_url:
        raise SetupError(
            "DATABASE_URL is not set.",
            code="no_database",
            hint="Set it to the plane's plain login, or use `cortex up` for an embedded server.",
        )
    settings.configure_logs()
    if processes > 1:
        raise typer.Exit(supervisor.run_apis(settings, processes))
    with importing(), extra("server"):
        from cortex_plane.main import api_process

    listener = sockets.listen(settings, shared=parent is not None)
    url = settings.database_url

    def report(_: str | None) -> None:
        typer.echo(f"serving on {sockets.address(listener)}")

    async def main() -> None:
        async with open_database(settings, url) as database:
            await api_process.serve(settings, database, url, listener, report, parent=parent)

    with listener:
        asyncio.run(main())


@process_app.command("worker")
def start_worker(
    apps: Annotated[
        list[str] | None, Option("--app", help="An app to load: package.module:app. Any number of times.")
    ] = None,
    concurrency: Annotated[
        int | None, Option(min=1, max=1000, help="Jobs at a time; CORTEX_CONCURRENCY if left out.")
    ] = None,
    processes: Annotated[
        int | None, Option(min=1, max=256, help="Processes that share these jobs; CORTEX_PROCESSES if left out.")
    ] = None,
    name: Annotated[str | None, Option(help="How others see this worker; host and process if left out.")] = None,
    url: Annotated[
        str | None, Option(help="A plane to connect to, instead of a database; CORTEX_URL where there is no database.")
    ] = None,
    key: Annotated[
        str | None, Option(help="A worker key for --url. Others see the command line: prefer CORTEX_KEY or --key-file.")
    ] = None,
    key_file: Annotated[Path | None, Option(help="A file with the worker key.")] = None,
    parent: Annotated[int | None, Option(hidden=True)] = None,
) -> None:
    """Run jobs. Any number of workers on any number of machines; SIGTERM lets them finish or hand back.

    With --url the worker needs no database: tools run here, and the plane does everything else."""
    if (address := url or _address_without_database()) is not None:
        with importing():
            from cortex_plane.main.remote_worker import read_key, run_remote_worker
        logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
        logging.getLogger("httpx").setLevel(logging.WARNING)
        run_remote_worker(address, read_key(key, key_file), apps or [], typer.echo, concurrency=concurrency, name=name)
        return
    settings = _load_settings()
    with importing(), extra("worker"):
        from cortex_plane.main.databases import require_home
        from cortex_plane.main.supervisor import process_count, run_workers

    require_home(settings.home)
    settings.configure_logs()
    if concurrency is not None:
        settings = settings.model_copy(update={"concurrency": concurrency})
    count = min(processes or process_count(settings), settings.concurrency)
    if count > 1:
        raise typer.Exit(run_workers(settings, count, apps or [], name))
    with importing(), extra("worker"):
        from cortex_plane.main.worker_process import run_worker

    def report(worker: JobRunner) -> None:
        typer.echo(f"worker {worker.name} runs {', '.join(sorted(worker.apps))}")

    run_worker(settings, _app_url(settings), apps or [], report, name, parent)


def _address_without_database() -> str | None:
    """The plane that CORTEX_URL names, where no database is to be had. Raises where there is neither."""
    settings = _load_settings()
    if settings.database_url or settings.database_admin_url or settings.home.exists():
        return None
    if address := os.environ.get("CORTEX_URL"):
        return address
    with importing():
        from cortex_plane.main.remote_worker import neither_way
    raise neither_way()


db_app = typer.Typer(no_args_is_help=True, help="The database: migrate it, look at it, make a login for it.")


@db_app.command("migrate")
def migrate_database() -> None:
    """Bring the database to this release. Uses DATABASE_ADMIN_URL, else DATABASE_URL, else the embedded server."""
    with extra("server"):
        from cortex_plane.db.schema import migrate
        from cortex_plane.main import databases

    with databases.database(_load_settings(), typer.echo) as urls:
        scripts = asyncio.run(migrate(urls.admin or urls.app, on_progress=typer.echo))
    typer.echo(f"applied {len(scripts)} scripts" if scripts else "nothing to do")


@db_app.command("status")
def show_schema_status() -> None:
    """What this release's schema has that the database lacks."""
    with extra("server"):
        from cortex_plane.db.schema import pending
        from cortex_plane.main import databases

    async def main(url: str) -> list[str]:
        async with databases.opened(url, max_size=2) as database:
            return await pending(database)

    url = _app_url(_load_settings())
    missing = asyncio.run(main(url))
    typer.echo("\n".join(missing) if missing else f"current ({databases.without_password(url)})")
    if missing:
        raise typer.Exit(1)


@db_app.command("rotate-key")
def rotate_key() -> None:
    """Replace the master key by a new one, and seal every secret anew. Stop every process of the plane first.

    A key in a file is replaced by one that is made here. Where CORTEX_MASTER_KEY holds the old key, the new one is read from the standard
    input. A rotation that was interrupted is finished."""
    with extra("server"):
        from cortex_plane.main import databases

    settings = _load_settings()
    with databases.database(settings, typer.echo) as urls:
        url = databases.prepare(settings, urls, typer.echo)
        resealed, resumed = asyncio.run(databases.rotate_master_key(settings, url, _read_new_key))
    if resealed is None:
        typer.echo("the plane has this master key already")
    else:
        begun = "a rotation that was begun before is finished: " if resumed else ""
        typer.echo(
            f"{begun}{resealed.secrets} secrets and {resealed.checkpoints} checkpoints of {resealed.orgs} orgs are"
            " sealed with the new master key"
        )
    if settings.master_key is None:
        typer.echo(
            f"it is in {settings.home / databases.KEY_FILE}: every machine of the plane needs it; then start the processes"
        )
    else:
        typer.echo("set CORTEX_MASTER_KEY to the new key for every process of the plane, then start them")
    typer.echo("backups from before need the old key: keep it, apart from them, for as long as you keep them")


def _read_new_key() -> bytes:
    from cortex_plane.main.databases import parse_master_key

    text = typer.prompt("new master key", hide_input=True) if sys.stdin.isatty() else sys.stdin.readline()
    return parse_master_key(text, "The standard input")


@db_app.command("provision")
def provision_login() -> None:
    """Make a plain login for the plane, with the login of DATABASE_ADMIN_URL or DATABASE_URL, and print its URL."""
    with extra("server"):
        from cortex_plane.db.schema import migrate
        from cortex_plane.main import databases

    settings = _load_settings()
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


def _app_url(settings: Settings) -> str:
    with extra("server"):
        from cortex_plane.main import databases

    url = settings.database_url or databases.running_app_url(settings.home)
    if url is None:
        raise SetupError(
            "The embedded server is not running.",
            code="not_running",
            hint="Start it with `cortex up`, or set DATABASE_URL.",
        )
    return url


doctor_app = typer.Typer(help="Examine this machine, the database and the API.")


@doctor_app.callback(invoke_without_command=True)
def run_doctor(context: typer.Context) -> None:
    """Examine this machine, the database and the API."""
    if context.invoked_subcommand is not None:
        return
    from rich.table import Table

    with extra("server"):
        from cortex_plane.main.doctor import examine

    checks = examine(_load_settings())
    table = Table(box=None, pad_edge=False, show_header=False)
    for check in checks:
        table.add_row("[green]ok[/]" if check.ok else "[red]not ok[/]", check.name, f"{check.detail} {check.hint}")
    console().print(table)
    if not all(check.ok for check in checks):
        raise typer.Exit(1)


@doctor_app.command("preflight")
def run_preflight(
    apps: Annotated[
        list[str] | None,
        Option("--app", help="An app that workers will load: package.module:app. Any number of times."),
    ] = None,
    replay: Annotated[bool, Option(help="Also run code agents up to where they stand, on what they recorded.")] = False,
    as_json: AsJson = False,
) -> None:
    """List parked jobs that the code, tools and models loaded here cannot resume. Exit code 0: none; 1: some; 2: could not look."""
    with extra("worker"):
        from cortex_plane.main.doctor import COULD_NOT_LOOK
        from cortex_plane.main.doctor import preflight as look

    try:
        settings = _load_settings()
        code = look(settings, _app_url(settings), apps or [], as_json=as_json, replay=replay)
    except CortexError as error:
        fail(error, COULD_NOT_LOOK)
    raise typer.Exit(code)


demo_app = typer.Typer(no_args_is_help=True, help="See what the plane does, without a key to any model.")

Version = Annotated[str, Argument(help="The release to ship.")]

DEMO_ADOPTION_SECONDS = "2"
DEMO_WAIT_SECONDS = 60
DEMO_INTERVAL = 0.3


@demo_app.command("run")
def run_demo(
    version: Version = "2.4.0",
    within: Annotated[
        int | None, Option(min=1, max=86400, help="Seconds in which somebody must approve; a day if left out.")
    ] = None,
) -> None:
    """An agent reads and tags a release, and stops before it deploys, until you approve that."""
    with extra("all"):
        from cortex_plane.jobs.model.jobs import JobDraft
        from cortex_plane.main import demo

    draft = JobDraft(agent=demo.AGENT, payload={"text": version}, policies=demo.sooner(within) if within else [])
    _run_to_end(draft, "decide in the browser (`cortex member login-link`), or: cortex approval list --job JOB")


@demo_app.command("gates")
def run_gates(message: Annotated[str, Argument(help="What the agent is asked to do.")] = "") -> None:
    """An agent under an atlas: its gates ask it, advise it, look on, and one of them waits for you."""
    with extra("all"):
        from cortex_plane.jobs.model.jobs import JobDraft
        from cortex_plane.main import demo

    draft = JobDraft(agent=demo.GATES_AGENT, payload={"text": message or demo.GATES_MESSAGE})
    gates = f"its gates: cortex atlas get {demo.GATES_ATLAS}"
    _run_to_end(draft, gates, "the last one is for you: in the browser, or: cortex approval list --job JOB")


@demo_app.command("crash")
def run_crash(version: Version = "2.4.0") -> None:
    """Kill a worker with SIGKILL in the middle of a side effect, and see the job resume without repeating it."""
    with extra("all"):
        from cortex_plane.jobs.model.jobs import JobDraft
        from cortex_plane.main import demo

    run(lambda plane: _create_demo_agent(plane, demo.release_agent(crash=True)))
    say("1  a worker of its own starts; no other worker takes this job")
    first = _start_demo_worker(slow="30")
    try:
        job = run(lambda plane: plane.jobs.submit(JobDraft(agent=demo.CRASH_AGENT, payload={"text": version})))
        say(f"2  job {job.id} is submitted")
        _wait_for_deployment(job.id, first)
        say("3  the deployment has happened, its answer has not arrived: kill -9")
    finally:
        first.kill()
        first.wait()
    say("4  a second worker starts; it waits until the first one's lease is over and adopts the job")
    second = _start_demo_worker(slow="0")
    try:
        finished_job = _watch_to_end(job.id)
    finally:
        second.terminate()
        second.wait()
    times = _show_acts(job.id)
    say(f"5  the job is {finished_job.status}; the deployment happened {times} time{'s' if times != 1 else ''}")
    raise typer.Exit(0 if finished_job.status == "COMPLETED" and times == 1 else 1)


def _run_to_end(draft: JobDraft, *lines: str) -> NoReturn:
    job = run(lambda plane: plane.jobs.submit(draft))
    for line in ("job JOB", *lines):
        say(line.replace("JOB", str(job.id)))
    completed = _watch_to_end(job.id).status == "COMPLETED"
    _show_acts(job.id)
    raise typer.Exit(0 if completed else 1)


def _watch_to_end(job_id: UUID) -> Job:
    from cortex_plane.cli.watch import watch

    return run(lambda plane: watch(plane, job_id, DEMO_INTERVAL, as_json=False))


async def _create_demo_agent(plane: Client, draft: AgentDraft) -> None:
    with contextlib.suppress(AlreadyExists):
        await plane.agents.create(draft)


def _start_demo_worker(slow: str) -> subprocess.Popen[bytes]:
    """A worker process of our own, whose deployments take ``slow`` seconds to answer."""
    from cortex_plane.main import demo

    environment = dict(
        os.environ, CORTEX_DEMO_SLOW=slow, CORTEX_ADOPTION_SECONDS=DEMO_ADOPTION_SECONDS, CORTEX_LOG_LEVEL="error"
    )
    return subprocess.Popen(  # noqa: S603 -- our own program
        [sys.executable, "-m", "cortex_plane", "worker", "--app", demo.CRASH_REFERENCE],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )


def _wait_for_deployment(job_id: UUID, worker: subprocess.Popen[bytes]) -> None:
    from cortex_plane.main import demo

    deadline = time.monotonic() + DEMO_WAIT_SECONDS
    while not any(act["job"] == str(job_id) and act["act"] == "deploy" for act in demo.acts()):
        if worker.poll() is not None or time.monotonic() > deadline:
            raise SetupError(
                "The demo's worker did not get as far as its side effect.",
                code="demo_failed",
                hint="See what the job says: `cortex job show`; the worker needs the same folder as `cortex up`.",
            )
        time.sleep(0.05)


def _show_acts(job_id: UUID) -> int:
    from cortex_plane.main import demo

    mine = [act for act in demo.acts() if act["job"] == str(job_id)]
    say(f"what happened to the outside world ({plane_home() / demo.FOLDER / demo.ACTS}):")
    for act in mine:
        print_line(f"   {short(act['act'], 50)} {short(act.get('version', act.get('ticket', '')), 100)}")
    return len([act for act in mine if act["act"] == "deploy"])


@audit_app.command("verify")
def verify_trail(
    remote: Annotated[bool, Option(help="Ask the API about the key's org instead of the database.")] = False,
    export: Annotated[
        Path | None, Option(help="Verify this export instead, without any plane; - is standard input.")
    ] = None,
    keys: Annotated[
        list[str] | None, Option("--key", help="The fingerprint of a key that you trust; after a rotation give each.")
    ] = None,
    roots: Annotated[
        Path | None, Option(help="Copies of roots that were kept outside of the database, such as roots.jsonl.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Follow every audit chain and signed root, in the database or in a file; names the first bad entry of each, and in the
    database every row that is not what the trail says of it."""
    fingerprints = [proof.check_fingerprint(key) for key in keys or ()]
    if roots is not None and remote:
        raise InvalidInput(
            "--roots is for the database and for an export.",
            hint="Export the trail with `cortex audit export`, and verify that.",
        )
    copies = list(proof.export_lines(roots)) if roots is not None else []
    copies_by_root = read_copies(copies) if copies else None
    if export is not None:
        from cortex_plane.proof.rules.exports import verify_export

        results = {str(export): verify_export(proof.export_lines(export), copies_by_root, read_times(copies))}
    elif remote:
        results = {"this org": run(lambda plane: plane.audit.verify())}
    else:
        results = asyncio.run(_verify_database(copies_by_root))
    proof.show_verification(results, fingerprints, as_json)


async def _verify_database(copies_by_root: Held | None) -> dict[str, Verification]:
    """With the master key where it is at hand: only that can tell whose keys stand in the database."""
    with extra("server"):
        from cortex_plane.db.vault import Vault
        from cortex_plane.jobs.verbs.master_key import require_known_key
        from cortex_plane.main import databases
        from cortex_plane.proof.verbs.audit import verify_all

    settings = _load_settings()
    vault = Vault(key) if (key := databases.existing_master_key(settings)) else None
    async with databases.opened(_app_url(settings), max_size=2, vault=vault, reads_only=True) as database:
        if vault is not None:
            await require_known_key(database, vault)
        return await verify_all(database, copies_by_root)

"""`cortex up`: everything a newcomer needs, on an embedded PostgreSQL, and one worker process that is kept running."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import structlog
from rich.console import Console
from rich.panel import Panel

from cortex_plane.client.access import ACCESS_FILE, read_access, write_private
from cortex_plane.db.database import Database
from cortex_plane.kernel.addresses import literal
from cortex_plane.kernel.errors import AlreadyExists, Unauthenticated
from cortex_plane.main import api_process, databases, demo, sockets
from cortex_plane.main.phone import EmulatedPhone, emulated_phone
from cortex_plane.main.reach import MailSink, mail_sink
from cortex_plane.main.settings import Settings, configure_logs
from cortex_plane.main.supervisor import keep_process
from cortex_plane.tenancy.model.orgs import OrgDraft
from cortex_plane.tenancy.verbs import frame, keys, logins, orgs
from cortex_plane.worker.scheduler import in_background

log = structlog.get_logger()

WORKER_GRACE_SECONDS = 5.0
WORKER_LOG = "worker.log"
FIRST_ORG = OrgDraft(slug="default", name="Default", admin_name="Admin")

console = Console(highlight=False)


def up(settings: Settings, apps: Sequence[str] = ()) -> None:
    """Start, print the address, and serve until Ctrl-C. The worker loads ``apps`` and the demos."""
    start = time.monotonic()
    databases.require_home(settings.home)
    configure_logs("warning" if settings.log_level == "info" else settings.log_level, as_json=False)
    with databases.database(settings, _step) as urls:
        app_url = databases.prepare(settings, urls, _step)
        listener = sockets.listen(settings, or_any_port=True)
        url = sockets.address(listener)

        async def main() -> None:
            # A real database has real people: their mails are not for the sink.
            is_local = settings.smtp_url is None and settings.database_url is None
            mails: contextlib.AbstractAsyncContextManager[MailSink | None]
            mails = mail_sink(settings.home) if is_local else contextlib.nullcontext()
            async with contextlib.AsyncExitStack() as stack:
                db = await stack.enter_async_context(databases.open_database(settings, app_url))
                sink = await stack.enter_async_context(mails)
                secret = await _access(db, settings.home)
                write_private(settings.home / ACCESS_FILE, {"url": url, "key": secret})
                write_private(settings.home / databases.RUNNING_FILE, {"pid": os.getpid(), "database_url": app_url})
                admin = await frame.authenticate_key(db, secret)
                if settings.database_url is None:
                    # Somebody's own database is theirs to set up.
                    await demo.prepare_release_demo(db, admin)
                    await demo.prepare_gates_demo(db, admin)
                    await demo.prepare_chat_demo(db, admin)
                phone: EmulatedPhone | None = None
                if _has_phone(settings):
                    phone = await stack.enter_async_context(emulated_phone(db, admin))
                link = (await logins.issue_own_login_link(db, admin)).url_path
                environment = {
                    "DATABASE_URL": app_url,
                    "CORTEX_HOME": str(settings.home.resolve()),
                    "CORTEX_GRACE_SECONDS": str(min(settings.grace_seconds, WORKER_GRACE_SECONDS)),
                }
                references = (demo.REFERENCE, demo.GATES_REFERENCE, demo.CHAT_REFERENCE, *apps)
                arguments = [*(f"--app={reference}" for reference in references), "--processes=1"]
                log_file = settings.home / WORKER_LOG
                has_demos = settings.database_url is None
                welcome = functools.partial(
                    _welcome, settings.home, url, link, time.monotonic() - start, has_demos, phone is not None
                )
                worker = keep_process("worker", arguments, environment, WORKER_GRACE_SECONDS, log_file=log_file)
                async with in_background(worker):
                    await api_process.serve(
                        settings, db, app_url, listener, welcome, sink, phone=phone, any_grpc_port=True
                    )
                    console.print("stopping …", style="dim")

        try:
            asyncio.run(main())
        finally:
            listener.close()
            (settings.home / databases.RUNNING_FILE).unlink(missing_ok=True)
    console.print("stopped", style="dim")


async def _access(db: Database, home: Path) -> str:
    """The key for the command line: the stored one while it works, else a new one. It is a platform key, so it is never
    printed: terminals and logs of services are recorded."""
    key = read_access(home).get("key")
    with contextlib.suppress(Unauthenticated):
        await frame.authenticate_key(db, key or "")
        return str(key)
    secret = await keys.issue_key_for_owner(db)
    if secret is None:
        try:
            secret = (await orgs.bootstrap_plane(db, FIRST_ORG)).key.secret
        except AlreadyExists:  # somebody else set up the same database at the same moment
            secret = await keys.issue_key_for_owner(db)
    return str(secret)


def _has_phone(settings: Settings) -> bool:
    """Emulators are for one person trying things out: where nobody else reaches this plane, and its database is not somebody's own."""
    address = literal(settings.host)
    is_loopback = settings.host == "localhost" if address is None else address.is_loopback
    return is_loopback and settings.public_url is None and settings.database_url is None


def _program() -> str:
    """The command as it can be typed here: its name where the shell finds it, else its path."""
    script = Path(sys.executable).parent / "cortex"
    if shutil.which("cortex") == str(script):
        return "cortex"
    return str(script.relative_to(Path.cwd())) if script.is_relative_to(Path.cwd()) else str(script)


def _step(phrase: str) -> None:
    console.print(f"  {phrase} …", style="dim")


def _welcome(
    home: Path, url: str, link: str, seconds: float, has_demos: bool, has_phone: bool, grpc: str | None
) -> None:
    cortex = _program()
    demos = (
        f"  {cortex} demo run     [dim]an agent ships a release, and stops before it deploys: approve it in the inbox[/]\n"
        f"  {cortex} demo crash   [dim]its worker is killed in the middle of a side effect[/]\n"
        f"  {cortex} demo gates   [dim]gates ask an agent, advise it, look on, and call you[/]\n"
    )
    phone = f"try   {url}/channels/try [dim]chat with an agent on a phone, without an account[/]\n"
    grpc_line = f"gRPC  {grpc}\n"
    # Outside of the frame, which would break a long line.
    console.print(f"\nyour inbox, once, within 15 minutes:  [bold]{url}{link}[/]", soft_wrap=True)
    console.print(f"[dim]`{cortex} member login-link` makes another link[/]\n", soft_wrap=True)
    console.print(
        Panel.fit(
            f"[bold]{url}[/]\n"
            f"key   kept in {home / ACCESS_FILE}, for you alone\n"
            f"{phone if has_phone else ''}"
            f"{grpc_line if grpc else ''}\n"
            "[dim]Try in another terminal:[/]\n"
            f"{demos if has_demos else ''}"
            f"  {cortex} job list\n"
            f"  {cortex} audit verify\n\n"
            f"[dim]API: {url}/docs · ready after {seconds:.1f} s · Ctrl-C stops it[/]",
            title="Cortex Plane is up",
        )
    )

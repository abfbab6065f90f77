"""`cortex doctor`: what works here, what does not, and which parked jobs the code here cannot resume."""

from __future__ import annotations

import asyncio
import platform
import stat
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cortex_plane.cli.terminal import print_line, short, utc_text
from cortex_plane.client import Client
from cortex_plane.client.access import ACCESS_FILE
from cortex_plane.db.schema import pending
from cortex_plane.db.vault import Vault
from cortex_plane.embedded.account import choose_account
from cortex_plane.embedded.binaries import find_binaries
from cortex_plane.jobs.model.jobs import Finding, Severity
from cortex_plane.jobs.verbs.master_key import require_known_key
from cortex_plane.jobs.verbs.workers import list_every_parked
from cortex_plane.kernel.errors import CortexError, SetupError
from cortex_plane.kernel.fields import to_json
from cortex_plane.main import databases, grpc_door
from cortex_plane.main.databases import existing_master_key, opened
from cortex_plane.main.settings import Settings
from cortex_plane.policies.verbs import policies
from cortex_plane.tenancy.model.access import Permission
from cortex_plane.tenancy.model.identities import Connection, ConnectionState

if TYPE_CHECKING:
    from cortex_plane.worker.tools.app import App


@dataclass(frozen=True, slots=True)
class CheckResult:
    name: str
    ok: bool
    detail: str
    hint: str = ""


def examine(settings: Settings) -> list[CheckResult]:
    results = [CheckResult("python", True, platform.python_version())]
    for name, check in _CHECKS.items():
        try:
            results.append(CheckResult(name, True, asyncio.run(check(settings))))
        except CortexError as error:
            results.append(CheckResult(name, False, error.message, error.hint))
    return results


async def _directory(settings: Settings) -> str:
    access = settings.home / ACCESS_FILE
    if not settings.home.exists():
        return f"{settings.home} does not exist yet; `cortex up` makes it"
    if access.exists() and stat.S_IMODE(access.stat().st_mode) & 0o077:
        raise CortexError(f"Others can read {access}, which holds a key.", hint=f"Run `chmod 600 {access}`.")
    return str(settings.home)


async def _postgres(settings: Settings) -> str:
    if settings.database_url:
        return f"a server: {databases.without_password(settings.database_url)}"
    account = choose_account(settings.home, settings.home / "postgres")
    binaries = find_binaries(settings.postgres_binaries, account, lambda _: None)
    return f"embedded, PostgreSQL {binaries.version}"


async def _database(settings: Settings) -> str:
    url = settings.database_url or databases.running_app_url(settings.home)
    if url is None:
        return "the embedded server is not running; `cortex up` starts it"
    async with opened(url, max_size=2) as db:
        if missing := await pending(db):
            raise CortexError(f"It lacks {', '.join(missing)}.", hint="Run `cortex db migrate`.")
        await db.check()
    return "reachable, the login is safe, the schema is current, every query fits"


async def _policies(settings: Settings) -> str:
    url = settings.database_url or databases.running_app_url(settings.home)
    key = existing_master_key(settings)
    if url is None or key is None:
        return "not looked at: that needs a database that runs, and the master key"
    async with opened(url, max_size=2, vault=Vault(key), reads_only=True) as db:
        orgs = await policies.forged_policies(db) if db.credential_key_at_hand else []
    if orgs:
        raise CortexError(
            f"The policies of {', '.join(orgs[:10])} were not put in force by the plane, so nothing is allowed there.",
            hint="Look at `cortex audit verify`, then apply them again: `cortex policy apply`.",
        )
    return "those in force were put there by the plane"


async def _api(settings: Settings) -> str:
    async with Client.here(settings.home) as plane:
        me = await plane.me()
    return f"answers; the key is {me.name}'s ({', '.join(me.roles)})"


SHOWN_CONNECTIONS = 1000


async def _grpc(settings: Settings) -> str:
    if (reason := grpc_door.why_closed(settings)) is not None:
        return f"not served: {reason}"
    if grpc_door.server_credentials(settings) is None:
        return "served without TLS"
    return f"served with TLS{', to clients with a certificate' if settings.grpc_client_ca else ''}"


async def _channels(settings: Settings) -> str:
    """Every connection of the key's org: whether messages get through, and what is left to do."""
    async with Client.here(settings.home) as plane:
        me = await plane.me()
        if Permission.CONNECTION_READ not in me.permissions:
            return f"not looked at: the key of {me.name} may not read connections"
        every = [connection async for connection in plane.connections.list(SHOWN_CONNECTIONS)]
    at_fault = [connection for connection in every if connection.state is not ConnectionState.OK]
    if at_fault:
        raise CortexError(
            "; ".join(_describe_connection(connection) for connection in at_fault),
            hint=" ".join(dict.fromkeys(step for connection in at_fault for step in connection.to_do)),
        )
    undone = [connection for connection in every if connection.to_do]
    rest = f"; {', '.join(f'{c.name}: {c.to_do[0]}' for c in undone)}" if undone else ""
    return (f"{len(every)} connected, messages get through" if every else "none is connected") + rest


def _describe_connection(connection: Connection) -> str:
    health = connection.health
    words = f"{connection.channel_type} {connection.name} is {connection.state.value.replace('_', ' ')}"
    if connection.state is ConnectionState.FAILING and connection.failing_since is not None:
        words += f" since {utc_text(connection.failing_since)} UTC"
    if connection.state is ConnectionState.PAUSED and health.paused_until is not None:
        words += f" until {utc_text(health.paused_until)} UTC"
    reason = connection.disabled_reason or health.last_error or health.pause_reason
    return f"{words} ({short(reason, 200)})" if reason else words


_CHECKS = {
    "directory": _directory, "postgres": _postgres, "database": _database, "policies": _policies, "api": _api,
    "grpc": _grpc, "channels": _channels,
}  # fmt: skip

NOTHING, SOME, COULD_NOT_LOOK = 0, 1, 2
"""Exit codes."""


@dataclass
class PreflightTally:
    jobs: int = 0
    stuck: int = 0
    warned: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    def take(self, findings: Sequence[Finding]) -> None:
        severities = {finding.severity for finding in findings}
        self.jobs += 1
        self.stuck += Severity.ERROR in severities
        self.warned += severities == {Severity.WARNING}
        self.reasons.update({finding.reason for finding in findings})

    def __str__(self) -> str:
        reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(self.reasons.items()))
        jobs = f"looked at {self.jobs} parked job{'' if self.jobs == 1 else 's'}"
        counts = f"{self.stuck} cannot be resumed here, {self.warned} would go on differently"
        return f"{jobs}: {counts}" + (f" ({reasons})" if reasons else "")


def preflight(settings: Settings, url: str, references: Sequence[str], *, as_json: bool, replay: bool) -> int:
    """Print the findings and return the exit code. Raises where the jobs cannot be read."""
    from cortex_plane.worker.tools.app import load_app

    apps = [load_app(reference) for reference in references]
    findings: list[bytes] = []
    report = (lambda finding: findings.append(to_json(finding))) if as_json else _show_finding
    tally = asyncio.run(_look_at_jobs(settings, url, apps, report, replay=replay))
    if as_json:
        sys.stdout.write("[" + ",".join(f"{finding.decode()}\n" for finding in findings) + "]\n")
        print(tally, file=sys.stderr)  # noqa: T201 -- beside the JSON
    else:
        print_line(str(tally))
    return SOME if tally.stuck else NOTHING


async def _look_at_jobs(
    settings: Settings, url: str, apps: Sequence[App], report: Callable[[Finding], None], *, replay: bool
) -> PreflightTally:
    from cortex_plane.worker.models.backends import Backends
    from cortex_plane.worker.models.credentials import ProviderKeys
    from cortex_plane.worker.preflight import Preflight

    key = existing_master_key(settings)
    if key is None:
        raise SetupError(
            "The master key is not at hand: without it no checkpoint can be opened.",
            code="no_master_key",
            hint="Set CORTEX_MASTER_KEY as for the workers, or run this where the plane's directory is (CORTEX_HOME).",
        )
    vault = Vault(key)
    statements = settings.prepared_statements
    async with opened(url, max_size=4, prepared_statements=statements, vault=vault, reads_only=True) as db:
        if missing := await pending(db):
            raise SetupError(
                f"The database lacks {', '.join(missing)} of this release.",
                code="not_migrated",
                hint="Run `cortex db migrate` first: workers of the release before go on meanwhile.",
            )
        await require_known_key(db, vault)
        tally = PreflightTally()
        look = await Preflight.of(db, apps, Backends(keys=ProviderKeys(db, key)), key, replay=replay)
        async for org, job in list_every_parked(db):
            findings = await look.look(org.id, org.slug, job)
            tally.take(findings)
            for finding in findings:
                report(finding)
        return tally


def _show_finding(finding: Finding) -> None:
    mark = "not ok " if finding.severity is Severity.ERROR else "warning"
    print_line(f"{mark}  job {finding.job_id}  {finding.org} · {finding.agent} · app {finding.app} · {finding.status}")
    print_line(f"         {finding.reason}: {short(finding.message, 500)}")
    print_line(f"         → {finding.outcome}. {short(finding.hint, 300)}")

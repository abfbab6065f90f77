"""`cortex doctor preflight`: which parked jobs could the code that is loaded here not resume? It looks, and changes nothing."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cortex_plane.cli.output import short, tell
from cortex_plane.db.database import Database
from cortex_plane.db.schema import pending
from cortex_plane.db.vault import Vault
from cortex_plane.jobs.model.jobs import Finding, Severity
from cortex_plane.jobs.verbs.attempts import list_every_parked
from cortex_plane.jobs.verbs.master_key import require_known_key
from cortex_plane.kernel.errors import SetupError
from cortex_plane.kernel.fields import to_json
from cortex_plane.main.master_key import master_key_at_hand
from cortex_plane.main.settings import Settings
from cortex_plane.worker.models.backends import Backends
from cortex_plane.worker.models.keys import Keys
from cortex_plane.worker.preflight import Preflight
from cortex_plane.worker.tools.app import App
from cortex_plane.worker.tools.loader import load_app

NOTHING, SOME, COULD_NOT_LOOK = 0, 1, 2
"""Exit codes."""


@dataclass
class Tally:
    """What was found, counted: the findings themselves are told one by one and not kept."""

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
        looked = f"looked at {self.jobs} parked job{'' if self.jobs == 1 else 's'}"
        found = f"{self.stuck} cannot be resumed here, {self.warned} would go on differently"
        return f"{looked}: {found}" + (f" ({reasons})" if reasons else "")


def preflight(settings: Settings, url: str, references: Sequence[str], *, as_json: bool, replay: bool) -> int:
    """The exit code. Raises where it cannot even look."""
    apps = [load_app(reference) for reference in references]
    told = _TellJson() if as_json else _tell
    tally = asyncio.run(_look(settings, url, apps, told, replay=replay))
    if isinstance(told, _TellJson):
        told.end()
        print(tally, file=sys.stderr)  # noqa: T201 -- beside the JSON
    else:
        tell(str(tally))
    return SOME if tally.stuck else NOTHING


async def _look(
    settings: Settings, url: str, apps: Sequence[App], told: Callable[[Finding], None], *, replay: bool
) -> Tally:
    key = master_key_at_hand(settings)
    if key is None:
        raise SetupError(
            "The master key is not at hand: without it no checkpoint can be opened.",
            code="no_master_key",
            hint="Set CORTEX_MASTER_KEY as for the workers, or run this where the plane's directory is (CORTEX_HOME).",
        )
    vault = Vault(key)
    db = await Database.open(
        url, max_size=4, prepared_statements=settings.prepared_statements, vault=vault, reads_only=True
    )
    try:
        missing = await pending(db)
        if missing:
            raise SetupError(
                f"The database lacks {', '.join(missing)} of this release.",
                code="not_migrated",
                hint="Run `cortex db migrate` first: workers of the release before go on meanwhile.",
            )
        await require_known_key(db, vault)
        tally = Tally()
        backends = Backends(keys=Keys(db, key))
        look = await Preflight.of(db, apps, backends, key, replay=replay)
        async for org, job in list_every_parked(db):
            found = await look.look(org.id, org.slug, job)
            tally.take(found)
            for finding in found:
                told(finding)
        return tally
    finally:
        await db.close()


def _tell(finding: Finding) -> None:
    mark = "not ok " if finding.severity is Severity.ERROR else "warning"
    tell(
        f"{mark}  job {finding.job_id}  {finding.org} · {finding.agent} · app {finding.app} · {finding.status}"
    )
    tell(f"         {finding.reason}: {short(finding.message, 500)}")
    tell(f"         → {finding.outcome}. {short(finding.hint, 300)}")


class _TellJson:
    """One array, written as it comes."""

    def __init__(self) -> None:
        self._begun = False

    def __call__(self, finding: Finding) -> None:
        sys.stdout.write(("," if self._begun else "[") + to_json(finding).decode() + "\n")
        self._begun = True

    def end(self) -> None:
        sys.stdout.write("]\n" if self._begun else "[]\n")

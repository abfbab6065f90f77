"""Our own plane in a fresh database: an org, agents that follow a script, and a worker in this process."""

from __future__ import annotations

import asyncio
import atexit
import functools
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import asyncpg

from benchmarks.peers.payloads import TOOL_ARGUMENTS, effect
from cortex_plane.agents import verbs as agents
from cortex_plane.agents.model.agents import Agent, AgentDraft, ModelConfig, ResourceLimits
from cortex_plane.db.database import Database
from cortex_plane.db.pool import listen_for_hints
from cortex_plane.db.schema import migrate
from cortex_plane.db.vault import Vault
from cortex_plane.jobs.model.jobs import JobDraft
from cortex_plane.jobs.verbs import jobs
from cortex_plane.kernel.fields import adapter
from cortex_plane.main.databases import plain_login
from cortex_plane.main.settings import Settings
from cortex_plane.policies.model.versions import PolicyFile
from cortex_plane.policies.verbs import policies as applied
from cortex_plane.tenancy.model.access import Actor
from cortex_plane.tenancy.model.orgs import OrgDraft
from cortex_plane.tenancy.verbs import frame, keys, orgs
from cortex_plane.worker.tools.app import App
from cortex_plane.worker.worker import JobRunner, WorkerSettings

HERE = Path(__file__).parent
KEY = bytes(32)
CALL = {"tool": "effect", "arguments": TOOL_ARGUMENTS}


@functools.cache
def _home() -> Path:
    """Where this process keeps the password of its login."""
    home = tempfile.TemporaryDirectory(prefix="cortex-bench-login-")
    atexit.register(home.cleanup)
    return Path(home.name)


@dataclass(frozen=True)
class Plane:
    db: Database
    actor: Actor
    app_url: str
    admin_url: str

    async def agent(
        self,
        slug: str,
        script: Sequence[dict[str, Any]],
        app: str = "bench",
        run: str | None = None,
        model: str = "scripted",
        atlases: Sequence[str] = (),
        deferral: bool = False,
        **limits: int,
    ) -> Agent:
        """``run`` names the function of an agent that is written as code; ``deferral``: outcomes go with the next intent."""
        skills: dict[str, Any] = {"app": app, "defer_outcomes": deferral} | ({"run": run} if run else {})
        skills |= {"atlases": list(atlases)} if atlases else {}
        bounds = {"max_concurrent_jobs": 10_000, "max_iterations": 100_000, **limits}
        draft = AgentDraft(
            name=slug,
            slug=slug,
            role="Bench",
            team="main",
            model_config=adapter(ModelConfig).validate_python({"model": model, "script": list(script)}),
            skill_config=skills,
            resource_limits=adapter(ResourceLimits).validate_python(bounds),
        )
        return await agents.create_agent(self.db, self.actor, draft)

    async def submit(self, slug: str, payload: dict[str, Any] | None = None) -> UUID:
        draft = JobDraft(agent=slug, payload=payload or {"text": "go"})
        return (await jobs.submit(self.db, self.actor, draft)).id


EVERYTHING_GOES = 'policies: [{name: everything-goes, target: "*", effect: allow}]'


@asynccontextmanager
async def plane(url: str, policies: str | None = EVERYTHING_GOES) -> AsyncIterator[Plane]:
    """On a database of the superuser ``url``; made ready with the first use. Without policies every effect must be approved."""
    await migrate(url)
    app_url = await asyncio.to_thread(plain_login, _home(), url)
    db = await Database.open(app_url, min_size=4, max_size=24, vault=Vault(KEY))
    try:
        connection = await asyncpg.connect(url)
        known = await connection.fetchval("select count(*) from org")
        await connection.close()
        secret = (
            await keys.issue_key_for_owner(db)
            if known
            else (await orgs.bootstrap_plane(db, OrgDraft(slug="bench", name="Bench"))).key.secret
        )
        actor = await frame.authenticate_key(db, str(secret))
        if policies is not None:
            await applied.apply_policies(db, actor, PolicyFile(text=policies))
        yield Plane(db, actor, app_url, url)
    finally:
        await db.close()


class Counter:
    """Counts acts, and tells when there were enough."""

    def __init__(self) -> None:
        self.count = 0
        self.target = 0
        self.reached = asyncio.Event()

    def expect(self, more: int) -> None:
        self.target = self.count + more
        self.reached.clear()

    def add(self) -> None:
        self.count += 1
        if self.count >= self.target:
            self.reached.set()


def counting_app(counter: Counter, on_uncertain: Literal["retry_with_key", "ask_human"] = "retry_with_key") -> App:
    app = App("bench")

    @app.tool(name="effect", on_uncertain=on_uncertain)
    async def act(tool: str, region: str, count: int, dry_run: bool, note: str) -> dict[str, Any]:
        """The side effect of the measured steps."""
        counter.add()
        return await effect({"tool": tool, "region": region, "count": count, "dry_run": dry_run, "note": note})

    return app


@asynccontextmanager
async def working(made: Plane, app: App, concurrency: int) -> AsyncIterator[JobRunner]:
    settings = WorkerSettings(
        concurrency=concurrency,
        poll_seconds=0.2,
        grace_seconds=10,
        defer_seconds=Settings.model_fields["defer_seconds"].default,
    )
    worker = JobRunner(made.db, [app], KEY, settings)
    async with listen_for_hints(made.app_url, worker.work):
        task = asyncio.create_task(worker.run())
        try:
            yield worker
        finally:
            worker.stop()
            await task

"""The demo: an agent that needs no key. It reads what changed, tags a release, and stops before it deploys: that needs a
person. Every one of its side effects can be looked at afterwards in the folder `demo` of the plane's directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cortex_plane.agents.model.agents import AgentDraft, ModelConfig
from cortex_plane.agents.model.tools import DidNotHappen, Happened, ToolError
from cortex_plane.agents.verbs import agents
from cortex_plane.db.database import Database
from cortex_plane.kernel.errors import CortexError
from cortex_plane.kernel.fields import adapter
from cortex_plane.main.settings import load
from cortex_plane.policies.model.policies import PolicyVerdict
from cortex_plane.policies.model.versions import PolicyFile, RequestPolicy
from cortex_plane.policies.verbs import policies
from cortex_plane.tenancy.model.access import Actor
from cortex_plane.worker.tools.app import App
from cortex_plane.worker.tools.arguments import ToolContext

REFERENCE = "cortex_plane.main.demo:app"
CRASH_REFERENCE = "cortex_plane.main.demo:crash_app"
AGENT = "release-demo"
CRASH_AGENT = "release-crash"
GATES_AGENT = "support-demo"
FOLDER = "demo"
ACTS = "acts.jsonl"
ENVIRONMENTS = ("staging", "production")

_CHANGES = (
    "a paused job survives a restart",
    "a killed worker's job is adopted",
    "no side effect is repeated",
)


async def read_changelog(version: str) -> dict[str, Any]:
    """What changed in a version."""
    return {"version": version, "changes": list(_CHANGES)}


async def check_health(environment: str) -> dict[str, Any]:
    """Whether an environment is healthy."""
    return {"environment": environment, "healthy": True, "running": deployed(environment)}


async def tag_release(version: str, ctx: ToolContext) -> dict[str, Any]:
    """Tag a version. Whoever tags with the same key twice has tagged once."""
    if not has_acted(ctx):
        act(ctx, {"act": "tag", "version": version})
    return {"tag": f"v{version}"}


async def _was_deployed(version: str, environment: str, ctx: ToolContext) -> Happened | DidNotHappen:
    """The probe of `deploy`: look at the outside world instead of guessing."""
    if has_acted(ctx):
        return Happened({"environment": environment, "version": version})
    return DidNotHappen()


async def deploy(version: str, environment: str, ctx: ToolContext) -> dict[str, Any]:
    """Put a version into an environment."""
    if environment not in ENVIRONMENTS:
        raise ToolError(
            f"There is no environment {environment!r}.", hint=f"There are: {', '.join(ENVIRONMENTS)}."
        )
    act(ctx, {"act": "deploy", "version": version, "environment": environment})
    # The window in which `cortex demo crash` kills the worker: it happened, and nobody knows yet.
    await asyncio.sleep(float(os.environ.get("CORTEX_DEMO_SLOW", "0")))
    return {"environment": environment, "version": version}


# The outside world: a file of acts -----------------------------------------------------------------------------------


def acts() -> list[dict[str, Any]]:
    """Everything that the demo ever did to the outside world."""
    try:
        lines = _file().read_text().splitlines()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines]


def deployed(environment: str) -> str | None:
    versions = [done["version"] for done in acts() if done.get("environment") == environment]
    return versions[-1] if versions else None


def _file() -> Path:
    return load().home / FOLDER / ACTS


def has_acted(ctx: ToolContext) -> bool:
    """Whether this very call did what it does, in this attempt or an earlier one."""
    return any(done["key"] == ctx.idempotency_key for done in acts())


def act(ctx: ToolContext, what: Mapping[str, Any]) -> None:
    """Do something to the outside world, once and for good."""
    _file().parent.mkdir(parents=True, exist_ok=True)
    with _file().open("a") as file:
        file.write(json.dumps({"key": ctx.idempotency_key, "job": str(ctx.job_id), **what}) + "\n")
        file.flush()
        os.fsync(file.fileno())


# The apps ------------------------------------------------------------------------------------------------------------


def _app(name: str) -> App:
    made = App(name, instructions="You ship releases. Read before you act; say what you do.")
    made.tool(read_only=True, timeout=10)(read_changelog)
    made.tool(read_only=True, timeout=10)(check_health)
    made.tool(risk="medium", timeout=2, on_uncertain="retry_with_key")(tag_release)
    made.tool(risk="high", timeout=2, on_uncertain="probe", probe=_was_deployed)(deploy)
    return made


app = _app("demo")
crash_app = _app("demo-crash")
"""The same under another name: `cortex demo crash` wants its job for its own workers alone."""


# The policy ----------------------------------------------------------------------------------------------------------

POLICIES = f"""\
# Applied by `cortex up` because the org had no policies of its own. It speaks of the demo's agents alone.
# Change it, then: cortex policy apply FILE
policies:
  - name: tagging-is-cheap
    target: tag_release
    when: agent in ["{AGENT}", "{CRASH_AGENT}"]
    effect: allow
  - name: the-crash-demo-does-not-wait
    target: deploy
    when: agent == "{CRASH_AGENT}"
    effect: allow
  - name: deployments-need-a-person
    target: deploy
    when: agent == "{AGENT}"
    effect: requires_approval
    template: dev_only
  - name: the-gates-demo-is-left-to-its-gates
    target: "*"
    when: agent == "{GATES_AGENT}"
    effect: allow
"""


def sooner(seconds: int) -> list[RequestPolicy]:
    """What a single run may ask for beyond that: less time to decide."""
    return [
        RequestPolicy(
            name="sooner",
            target="deploy",
            effect=PolicyVerdict.REQUIRES_APPROVAL,
            timeout_seconds=seconds,
        )
    ]


# The agent -----------------------------------------------------------------------------------------------------------

_SCRIPT: list[dict[str, Any]] = [
    {
        "text": "I read what changed in {message} and look at production.",
        "delay_ms": 400,
        "calls": [
            {"tool": "read_changelog", "arguments": {"version": "{message}"}},
            {"tool": "check_health", "arguments": {"environment": "production"}},
        ],
    },
    {
        "text": "Production is healthy. I tag the release.",
        "delay_ms": 400,
        "calls": [{"tool": "tag_release", "arguments": {"version": "{message}"}}],
    },
    {
        "text": "Now I deploy it to production.",
        "delay_ms": 400,
        "calls": [
            {"tool": "deploy", "arguments": {"version": "{message}", "environment": "production"}},
        ],
    },
    {"text": "{message} is in production.", "delay_ms": 200},
]


def draft(*, crash: bool = False) -> AgentDraft:
    return AgentDraft(
        name="Release agent (crash)" if crash else "Release agent",
        slug=CRASH_AGENT if crash else AGENT,
        role="DevOps",
        team="main",
        description="A demo that needs no key: it plans a release, tags it and deploys it.",
        model_config=adapter(ModelConfig).validate_python({"model": "scripted", "script": _SCRIPT}),
        skill_config={"app": (crash_app if crash else app).name},
    )


async def prepare(db: Database, actor: Actor) -> None:
    """The demo agent and its policy, unless they are there. An org that is set up differently does without them."""
    with contextlib.suppress(CortexError):
        file = PolicyFile(text=POLICIES, note="the demo's", expected_version=0)
        await policies.apply_policies(db, actor, file)
    try:
        await agents.get(db, actor, AGENT)
    except CortexError:
        with contextlib.suppress(CortexError):
            await agents.create(db, actor, draft())

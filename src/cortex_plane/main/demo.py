"""The demos: agents that need no key.

The release agent reads a changelog, tags a release, and waits for approval before it deploys. The support agent works
under an atlas that asks, advises, watches, and calls a person. The chat agent answers on channels. Their side effects
are lines in the folder `demo` of the plane's directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from cortex_plane.agents import verbs as agents
from cortex_plane.agents.model.agents import AgentDraft, ModelConfig
from cortex_plane.agents.model.tools import DidNotHappen, Happened, ToolError
from cortex_plane.db.database import Database
from cortex_plane.gates.model.atlases import AtlasFile
from cortex_plane.gates.verbs import atlases
from cortex_plane.kernel.errors import CortexError
from cortex_plane.kernel.fields import adapter
from cortex_plane.main.settings import load
from cortex_plane.policies.model.policies import PolicyVerdict
from cortex_plane.policies.model.versions import PolicyFile, RequestPolicy
from cortex_plane.policies.verbs import policies
from cortex_plane.tenancy.model.access import Actor
from cortex_plane.worker.tools.app import App
from cortex_plane.worker.tools.tool import ToolContext

REFERENCE = "cortex_plane.main.demo:app"
CRASH_REFERENCE = "cortex_plane.main.demo:crash_app"
AGENT = "release-demo"
CRASH_AGENT = "release-crash"
GATES_AGENT = "support-demo"
FOLDER = "demo"
ACTS = "acts.jsonl"
ENVIRONMENTS = ("staging", "production")

_CHANGES = ("a paused job survives a restart", "a killed worker's job is adopted", "no side effect is repeated")


async def read_changelog(version: str) -> dict[str, Any]:
    """What changed in a version."""
    return {"version": version, "changes": list(_CHANGES)}


async def check_health(environment: str) -> dict[str, Any]:
    """Whether an environment is healthy."""
    versions = [act["version"] for act in acts() if act.get("environment") == environment]
    return {"environment": environment, "healthy": True, "running": versions[-1] if versions else None}


async def tag_release(version: str, ctx: ToolContext) -> dict[str, Any]:
    """Tag a version. Whoever tags with the same key twice has tagged once."""
    act_once(ctx, {"act": "tag", "version": version})
    return {"tag": f"v{version}"}


async def _was_deployed(version: str, environment: str, ctx: ToolContext) -> Happened | DidNotHappen:
    """The probe of `deploy`: look at the outside world instead of guessing."""
    return Happened({"environment": environment, "version": version}) if has_acted(ctx) else DidNotHappen()


async def deploy(version: str, environment: str, ctx: ToolContext) -> dict[str, Any]:
    """Put a version into an environment."""
    if environment not in ENVIRONMENTS:
        raise ToolError(f"There is no environment {environment!r}.", hint=f"There are: {', '.join(ENVIRONMENTS)}.")
    act(ctx, {"act": "deploy", "version": version, "environment": environment})
    # The window in which `cortex demo crash` kills the worker: it happened, and nobody knows yet.
    await asyncio.sleep(float(os.environ.get("CORTEX_DEMO_SLOW", "0")))
    return {"environment": environment, "version": version}


def acts() -> list[dict[str, Any]]:
    """Everything that the demo ever did to the outside world."""
    try:
        lines = _file().read_text().splitlines()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines]


def _file() -> Path:
    return load().home / FOLDER / ACTS


def has_acted(ctx: ToolContext) -> bool:
    """Whether this very call did what it does, in this attempt or an earlier one."""
    return any(act["key"] == ctx.idempotency_key for act in acts())


def act_once(ctx: ToolContext, what: Mapping[str, Any]) -> None:
    if not has_acted(ctx):
        act(ctx, what)


def act(ctx: ToolContext, what: Mapping[str, Any]) -> None:
    """Do something to the outside world, once and for good."""
    _file().parent.mkdir(parents=True, exist_ok=True)
    with _file().open("a") as file:
        file.write(json.dumps({"key": ctx.idempotency_key, "job": str(ctx.job_id), **what}) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _release_app(name: str) -> App:
    app = App(name, instructions="You ship releases. Read before you act; say what you do.")
    app.tool(read_only=True, timeout=10)(read_changelog)
    app.tool(read_only=True, timeout=10)(check_health)
    app.tool(risk="medium", timeout=2, on_uncertain="retry_with_key")(tag_release)
    app.tool(risk="high", timeout=2, on_uncertain="probe", probe=_was_deployed)(deploy)
    return app


app = _release_app("demo")
crash_app = _release_app("demo-crash")
"""The same under another name: `cortex demo crash` wants its job for its own workers alone."""


def sooner(seconds: int) -> list[RequestPolicy]:
    """What a single run may ask for beyond that: less time to decide."""
    effect = PolicyVerdict.REQUIRES_APPROVAL
    return [RequestPolicy(name="sooner", target="deploy", effect=effect, timeout_seconds=seconds)]


def _turn(text: str, *calls: dict[str, Any], delay_ms: int = 400) -> dict[str, Any]:
    return {"text": text, "delay_ms": delay_ms, "calls": list(calls)}


def _call(tool: str, **arguments: Any) -> dict[str, Any]:
    return {"tool": tool, "arguments": arguments}


_RELEASE_SCRIPT = [
    _turn(
        "I read what changed in {message} and look at production.",
        _call("read_changelog", version="{message}"),
        _call("check_health", environment="production"),
    ),
    _turn("Production is healthy. I tag the release.", _call("tag_release", version="{message}")),
    _turn("Now I deploy it to production.", _call("deploy", version="{message}", environment="production")),
    _turn("{message} is in production.", delay_ms=200),
]


def _scripted(script: list[dict[str, Any]]) -> ModelConfig:
    config: ModelConfig = adapter(ModelConfig).validate_python({"model": "scripted", "script": script})
    return config


def release_agent(*, crash: bool = False) -> AgentDraft:
    return AgentDraft(
        name="Release agent (crash)" if crash else "Release agent",
        slug=CRASH_AGENT if crash else AGENT,
        role="DevOps",
        team="main",
        description="A demo that needs no key: it plans a release, tags it and deploys it.",
        model_config=_scripted(_RELEASE_SCRIPT),
        skill_config={"app": (crash_app if crash else app).name},
    )


GATES_REFERENCE = "cortex_plane.main.demo:gates_app"
GATES_ATLAS = "demo.support"
GATES_MESSAGE = "Ticket 7 wants its money back, and ticket 8 is its double."

_TICKETS = {
    "7": {"from": "Mia", "about": "The lamp came broken, I want my money back.", "days": 3, "amount": 40},
    "8": {"from": "Mia", "about": "The lamp came broken.", "days": 3, "double_of": "7"},
}

gates_app = App("demo-support", instructions="You work at a support desk. Look before you act; say what you do.")


@gates_app.tool(name="ticket.get", read_only=True, timeout=10)
async def get_ticket(ticket: str) -> dict[str, Any]:
    """Read a ticket."""
    if ticket not in _TICKETS:
        raise ToolError(f"There is no ticket {ticket!r}.", hint=f"There are: {', '.join(_TICKETS)}.")
    return {"ticket": ticket, **_TICKETS[ticket]}


@gates_app.tool(name="ticket.comment", risk="low", timeout=2, on_uncertain="retry_with_key")
async def comment_ticket(ticket: str, text: str, ctx: ToolContext) -> dict[str, Any]:
    """Write something under a ticket."""
    act_once(ctx, {"act": "comment", "ticket": ticket, "text": text})
    return {"ticket": ticket}


@gates_app.tool(name="ticket.delete", risk="medium", timeout=2, on_uncertain="retry_with_key")
async def delete_ticket(ticket: str, ctx: ToolContext) -> dict[str, Any]:
    """Delete a ticket, for ever."""
    act_once(ctx, {"act": "delete", "ticket": ticket})
    return {"deleted": ticket}


@gates_app.tool(name="refund.pay", risk="high", timeout=2, on_uncertain="retry_with_key")
async def pay_refund(ticket: str, amount: int, ctx: ToolContext) -> dict[str, Any]:
    """Pay a customer's money back."""
    act_once(ctx, {"act": "refund", "ticket": ticket, "amount": amount})
    return {"ticket": ticket, "paid": amount}


CHAT_REFERENCE = "cortex_plane.main.demo:chat_app"
CHAT_AGENT = "chat-demo"

chat_app = App("demo-chat", instructions="You ship releases for whoever asks you in a chat.")


@chat_app.tool(name="release.ship", risk="high", timeout=10, on_uncertain="retry_with_key")
async def ship_release(request: str, ctx: ToolContext) -> str:
    """Put a version into production."""
    version = next((word for word in request.split() if word[0].isdigit()), "the newest version")
    act_once(ctx, {"act": "ship", "version": version})
    return f"{version} is in production"


_GREETING = (
    "Hello, I am the demo agent. Write **ship 2.4** to me. Before I ship anything, I ask a person: the request comes to you on"
    " every channel that is linked to you."
)
_CHAT_SCRIPT = [
    turn
    for word in ("ship", "Ship")
    for turn in (
        {**_turn("I can ship that.", _call("release.ship", request="{message}")), "said": word},
        {**_turn("Done: “{message}”. A person approved it first.", delay_ms=200), "said": word},
    )
] + [_turn(_GREETING)]


def chat_agent() -> AgentDraft:
    return AgentDraft(
        name="Chat agent",
        slug=CHAT_AGENT,
        role="DevOps",
        team="main",
        description="A demo that needs no key: write to it on a channel, and it asks before it ships.",
        model_config=_scripted(_CHAT_SCRIPT),
        skill_config={"app": chat_app.name},
    )


def _resource(name: str) -> str:
    return resources.files("cortex_plane.main").joinpath(name).read_text(encoding="utf-8")


def _answer(gate: str, **answers: Any) -> dict[str, Any]:
    return _call("plane.answer", gate=gate, answers=answers)


_DELETE = _call("ticket.delete", ticket="8")
_SUPPORT_SCRIPT = [
    _turn("I look at ticket 7 at once.", _call("ticket.get", ticket="7")),
    _turn("The house rules come first. I keep to them.", _answer("onboarding", agree=True)),
    _turn("Now I look.", *(_call("ticket.get", ticket=ticket) for ticket in _TICKETS)),
    _turn("Ticket 8 is a double. I delete it.", _DELETE),
    _turn(
        "That is an administrator's act, and for ever. I know both.",
        _answer("admin-access", admin="understood"),
        _answer("delete-confirm", **{"for-ever": "understood"}),
    ),
    _turn("So I delete ticket 8.", _DELETE),
    _turn("Mia is owed 40. A person must agree to that.", _call("refund.pay", ticket="7", amount=40)),
    _turn("Mia has her money back, and ticket 8 is gone.", delay_ms=200),
]


def support_agent() -> AgentDraft:
    return AgentDraft(
        name="Support agent",
        slug=GATES_AGENT,
        role="Support",
        team="main",
        description="A demo that needs no key: its gates ask it, tell it, watch it, and call a person.",
        model_config=_scripted(_SUPPORT_SCRIPT),
        skill_config={"app": gates_app.name, "atlases": [GATES_ATLAS]},
    )


async def prepare_release_demo(db: Database, actor: Actor) -> None:
    """The demo agent and its policy, unless they are there. An org that is set up differently does without them."""
    with contextlib.suppress(CortexError):
        file = PolicyFile(text=_resource("demo_policies.yaml"), note="the demo's", expected_version=0)
        await policies.apply_policies(db, actor, file)
    await _ensure_agent(db, actor, release_agent())


async def prepare_gates_demo(db: Database, actor: Actor) -> None:
    """The same for the atlas and its agent."""
    with contextlib.suppress(CortexError):
        await atlases.publish_atlas(db, actor, AtlasFile(manifest=_resource("demo_atlas.yaml")))
    await _ensure_agent(db, actor, support_agent())


async def prepare_chat_demo(db: Database, actor: Actor) -> None:
    """The agent with whom people try channels. The policies of the release demo have its rule."""
    await _ensure_agent(db, actor, chat_agent())


async def _ensure_agent(db: Database, actor: Actor, draft: AgentDraft) -> None:
    try:
        await agents.get_agent(db, actor, draft.slug)
    except CortexError:
        with contextlib.suppress(CortexError):
            await agents.create_agent(db, actor, draft)

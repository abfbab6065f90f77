"""The demo of gates: an agent at a support desk, under an atlas that asks, advises, looks on, and calls a person.

Its script answers the gates as a model would. It needs no key.
"""

from __future__ import annotations

import contextlib
from importlib import resources
from typing import Any

from cortex_plane.agents.model.agents import AgentDraft, ModelConfig
from cortex_plane.agents.model.tools import ToolError
from cortex_plane.agents.verbs import agents
from cortex_plane.db.database import Database
from cortex_plane.gates.model.atlases import AtlasFile
from cortex_plane.gates.verbs import atlases
from cortex_plane.kernel.errors import CortexError
from cortex_plane.kernel.fields import adapter
from cortex_plane.main.demo import GATES_AGENT, act, has_acted
from cortex_plane.tenancy.model.access import Actor
from cortex_plane.worker.tools.app import App
from cortex_plane.worker.tools.arguments import ToolContext

REFERENCE = "cortex_plane.main.demo_gates:app"
AGENT = GATES_AGENT
ATLAS = "demo.support"
MESSAGE = "Ticket 7 wants its money back, and ticket 8 is its double."

_TICKETS = {
    "7": {"from": "Mia", "about": "The lamp came broken, I want my money back.", "days": 3, "amount": 40},
    "8": {"from": "Mia", "about": "The lamp came broken.", "days": 3, "double_of": "7"},
}

app = App("demo-support", instructions="You work at a support desk. Look before you act; say what you do.")


@app.tool(name="ticket.get", read_only=True, timeout=10)
async def get_ticket(ticket: str) -> dict[str, Any]:
    """Read a ticket."""
    if ticket not in _TICKETS:
        raise ToolError(f"There is no ticket {ticket!r}.", hint=f"There are: {', '.join(_TICKETS)}.")
    return {"ticket": ticket, **_TICKETS[ticket]}


@app.tool(name="ticket.comment", risk="low", timeout=2, on_uncertain="retry_with_key")
async def comment_ticket(ticket: str, text: str, ctx: ToolContext) -> dict[str, Any]:
    """Write something under a ticket."""
    if not has_acted(ctx):
        act(ctx, {"act": "comment", "ticket": ticket, "text": text})
    return {"ticket": ticket}


@app.tool(name="ticket.delete", risk="high", timeout=2, on_uncertain="retry_with_key")
async def delete_ticket(ticket: str, ctx: ToolContext) -> dict[str, Any]:
    """Delete a ticket, for ever."""
    if not has_acted(ctx):
        act(ctx, {"act": "delete", "ticket": ticket})
    return {"deleted": ticket}


@app.tool(name="refund.pay", risk="high", timeout=2, on_uncertain="retry_with_key")
async def pay_refund(ticket: str, amount: int, ctx: ToolContext) -> dict[str, Any]:
    """Pay a customer's money back."""
    if not has_acted(ctx):
        act(ctx, {"act": "refund", "ticket": ticket, "amount": amount})
    return {"ticket": ticket, "paid": amount}


def atlas_text() -> str:
    return resources.files("cortex_plane.main").joinpath("demo_atlas.yaml").read_text(encoding="utf-8")


# The agent -----------------------------------------------------------------------------------------------------------


def _answer(gate: str, **answers: Any) -> dict[str, Any]:
    return {"tool": "plane.answer", "arguments": {"gate": gate, "answers": answers}}


_DELETE = {"tool": "ticket.delete", "arguments": {"ticket": "8"}}
_SCRIPT: list[dict[str, Any]] = [
    {
        "text": "I look at ticket 7 at once.",
        "delay_ms": 400,
        "calls": [{"tool": "ticket.get", "arguments": {"ticket": "7"}}],
    },
    {
        "text": "The house rules come first. I keep to them.",
        "delay_ms": 400,
        "calls": [_answer("onboarding", agree=True)],
    },
    {
        "text": "Now I look.",
        "delay_ms": 400,
        "calls": [{"tool": "ticket.get", "arguments": {"ticket": each}} for each in _TICKETS],
    },
    {"text": "Ticket 8 is a double. I delete it.", "delay_ms": 400, "calls": [_DELETE]},
    {
        "text": "That is an administrator's act, and for ever. I know both.",
        "delay_ms": 400,
        "calls": [
            _answer("admin-access", admin="understood"),
            _answer("delete-confirm", **{"for-ever": "understood"}),
        ],
    },
    {"text": "So I delete ticket 8.", "delay_ms": 400, "calls": [_DELETE]},
    {
        "text": "Mia is owed 40. A person must agree to that.",
        "delay_ms": 400,
        "calls": [{"tool": "refund.pay", "arguments": {"ticket": "7", "amount": 40}}],
    },
    {"text": "Mia has her money back, and ticket 8 is gone.", "delay_ms": 200},
]


def draft() -> AgentDraft:
    return AgentDraft(
        name="Support agent",
        slug=AGENT,
        role="Support",
        team="main",
        description="A demo that needs no key: its gates ask it, tell it, watch it, and call a person.",
        model_config=adapter(ModelConfig).validate_python({"model": "scripted", "script": _SCRIPT}),
        skill_config={"app": app.name, "atlases": [ATLAS]},
    )


async def prepare(db: Database, actor: Actor) -> None:
    """The atlas and its agent, unless they are there. An org that is set up differently does without them."""
    with contextlib.suppress(CortexError):
        await atlases.publish_atlas(db, actor, AtlasFile(manifest=atlas_text()))
    try:
        await agents.get(db, actor, AGENT)
    except CortexError:
        with contextlib.suppress(CortexError):
            await agents.create(db, actor, draft())

"""An agent that is a function. Whatever it does through ``ctx`` is recorded: after a crash it goes on behind the last of it."""

import asyncio
from typing import Any

from cortex_plane import AgentDraft, App, Context, DidNotHappen, Happened, ToolContext
from examples.plane import did, model, noted, world

app = App("code-example")


@app.tool(risk="high", on_uncertain="retry_with_key")
async def book_courier(order: str, ctx: ToolContext) -> str:
    """Book a courier. A call of a tool happens once, and is written down before it is sent."""
    did(ctx, f"courier for {order}")
    return f"parcel-{order}"


@app.agent
async def deliver(ctx: Context) -> dict[str, Any]:
    order = ctx.payload["order"]
    stock, address = await ctx.gather(
        ctx.step("stock", look_up, "stock", order, repeatable=True),
        ctx.step("address", look_up, "address", order, repeatable=True),
    )
    note = await ctx.model(f"Write one friendly line to go with an order to {address}.")
    await ctx.step("pack", pack, stock, on_uncertain="probe", probe=was_packed, timeout=3)
    if not await ctx.request_approval(f"send {order} to {address}", details={"note": note}):
        return {"order": order, "sent": False}
    parcel = await ctx.tool("book_courier", order=order)
    await ctx.sleep(0.5)  # or for a month: the job holds no worker meanwhile
    signed = await ctx.wait_event("parcel-delivered", key=parcel, timeout=7 * 24 * 3600)
    return {"order": order, "sent": True, "note": note, "signed_by": signed["by"]}


async def look_up(what: str, order: str) -> str:
    noted(f"look up the {what} of {order}")
    return {"stock": "shelf 4", "address": "Ada, 12 Lamp Street"}[what]


async def pack(stock: str) -> str:
    """Takes long, so that there is somebody to kill. By then the parcel is packed, and nobody wrote it down."""
    noted(f"pack what is on {stock}")
    await asyncio.sleep(3600)
    return "packed"


async def was_packed(stock: str) -> Happened | DidNotHappen:
    """Asked before anything is packed again: it looks at the world."""
    return Happened("packed") if f"pack what is on {stock}" in world() else DidNotHappen()


SCRIPT: Any = [{"text": "May it light your evenings.", "repeat": True}]
AGENT = AgentDraft(
    name="Code example",
    slug="code-example",
    role="Logistics",
    team="main",
    model_config=model("You write for a lamp shop.", SCRIPT),
    skill_config={"app": app.name, "run": "deliver"},
)

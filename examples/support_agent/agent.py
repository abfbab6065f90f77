"""An agent that talks with customers: it looks orders up and refunds them. How much it may refund stands in policies.yaml."""

from typing import Any

from cortex_plane import AgentDraft, App, ToolContext, ToolError
from examples.plane import did, model

app = App("support-example", instructions="You help the customers of a lamp shop. Be brief and kind.")

ORDERS = {"1002": {"item": "a lamp", "paid": 45, "arrived": "broken"}}


@app.tool(read_only=True)
async def look_up(order: str) -> dict[str, Any]:
    """What was ordered, what was paid, and how it arrived."""
    if order not in ORDERS:
        raise ToolError(f"There is no order {order}.")
    return ORDERS[order]


@app.tool(risk="high", on_uncertain="retry_with_key")
async def refund(order: str, amount: float, ctx: ToolContext) -> str:
    """Give a customer so much of their money back."""
    did(ctx, f"refund {amount:g} for {order}")
    return f"{amount:g} refunded"


COMPLAINT = "Order 1002 arrived broken. I would like my 45 back."
LATER = "Thanks! I forgot to write it down: how much was it?"

# What is said where there is no key to a model: by what the customer said.
SCRIPT: Any = [
    {
        "said": "arrived broken",
        "text": "I am sorry! I look at your order.",
        "calls": [{"tool": "look_up", "arguments": {"order": "1002"}}],
    },
    {
        "said": "arrived broken",
        "text": "I refund what you paid.",
        "calls": [{"tool": "refund", "arguments": {"order": "1002", "amount": 45}}],
    },
    {
        "said": "arrived broken",
        "text": "Then I refund as much as I may.",
        "calls": [{"tool": "refund", "arguments": {"order": "1002", "amount": 20}}],
    },
    {"said": "arrived broken", "text": "You get 20 back, and a discount on your next lamp."},
    {"said": "how much", "text": "It was 20, for the lamp of order 1002."},
]
AGENT = AgentDraft(
    name="Support example",
    slug="support-example",
    role="Support",
    team="main",
    model_config=model(
        "Look the order up, then refund what was paid. If that is denied, do what the reason says.", SCRIPT
    ),
    skill_config={"app": app.name},
)

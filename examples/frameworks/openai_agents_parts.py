"""What the agents of the OpenAI Agents SDK here share: a tool that acts, and a model that needs no key."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

from agents.testing import ModelCall, ModelStep, ScriptedModel, assistant_message, function_call

from agents import Usage, function_tool, set_tracing_disabled

set_tracing_disabled(disabled=True)
"""Traces go to OpenAI by default; here nothing leaves the machine."""


def pay(order: str, cents: int) -> str:
    with Path("bank.txt").open("a") as bank:
        bank.write(f"{cents} for {order}\n")
    return f"{cents} cents for {order} were paid back."


@function_tool(failure_error_function=None)
def refund(order: str, cents: int) -> str:
    """Pay money back."""
    return pay(order, cents)


def answer(call: ModelCall) -> ModelStep:
    """Refunds the orders that the user names, then repeats what the tools say."""
    items: list[dict[str, Any]] = [{"content": call.input}] if isinstance(call.input, str) else call.input
    results: list[str] = []
    while "output" in items[-1 - len(results)]:
        results.append(str(items[-1 - len(results)]["output"]))
    orders = [word for word in str(items[-1].get("content")).split() if word.startswith("A-")]
    calls = [function_call("refund", {"order": order, "cents": 500}, call_id=uuid4().hex) for order in orders]
    usage = Usage(requests=1, input_tokens=7, output_tokens=3, total_tokens=10)
    return ModelStep([assistant_message(" ".join(reversed(results)))] if results else calls, usage=usage)


scripted_model = ScriptedModel([ModelStep.respond(answer) for _ in range(100)])

STATE = Path("customer-7.json")
"""Where a run that waits is kept."""
STATE.touch()

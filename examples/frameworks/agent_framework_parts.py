"""What the agents of Microsoft Agent Framework here share: a tool that acts, and a model that needs no key."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from agent_framework import (
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    Content,
    FunctionInvocationLayer,
    Message,
    UsageDetails,
    tool,
)


def pay(order: str, cents: int) -> str:
    with Path("bank.txt").open("a") as bank:
        bank.write(f"{cents} for {order}\n")
    return f"{cents} cents for {order} were paid back."


@tool
def refund(order: str, cents: int) -> str:
    """Pay money back."""
    return pay(order, cents)


class ScriptedModel(FunctionInvocationLayer[Any], ChatMiddlewareLayer[Any], BaseChatClient[Any]):
    """Refunds the orders that the user names, then repeats what the tools say."""

    async def _inner_get_response(self, *, messages: Sequence[Message], **_: Any) -> ChatResponse:
        results: list[str] = []
        for message in reversed(messages):
            found = [str(content.result) for content in message.contents if content.type == "function_result"]
            if not found and message.role == "user":
                break
            results = found + results
        orders = [word for word in messages[-1].text.split() if word.startswith("A-")]
        contents = (
            [Content.from_text(" ".join(results))]
            if results
            else [
                Content.from_function_call(uuid4().hex, "refund", arguments={"order": order, "cents": 500})
                for order in orders
            ]
        )
        usage = UsageDetails(input_token_count=7, output_token_count=3)
        return ChatResponse(messages=[Message("assistant", contents)], model="scripted", usage_details=usage)

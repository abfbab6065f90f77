"""What the agents of LangChain here share: a tool that acts, and a model that needs no key."""

from pathlib import Path
from typing import Any
from uuid import uuid4

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool


def pay(order: str, cents: int) -> str:
    with Path("bank.txt").open("a") as bank:
        bank.write(f"{cents} for {order}\n")
    return f"{cents} cents for {order} were paid back."


@tool
def refund(order: str, cents: int) -> str:
    """Pay money back."""
    return pay(order, cents)


class ScriptedModel(BaseChatModel):
    """Refunds the orders that the user names, then repeats what the tools say."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self.bind(tools=list(tools))

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        results: list[str] = []
        while isinstance(messages[-1 - len(results)], ToolMessage):
            results.append(messages[-1 - len(results)].text)
        orders = [word for word in messages[-1].text.split() if word.startswith("A-")]
        calls: list[Any] = [
            {"name": "refund", "args": {"order": order, "cents": 500}, "id": uuid4().hex} for order in orders
        ]
        answer = AIMessage(
            " ".join(reversed(results)),
            tool_calls=[] if results else calls,
            response_metadata={"model_name": "scripted"},
            usage_metadata={"input_tokens": 7, "output_tokens": 3, "total_tokens": 10},
        )
        return ChatResult(generations=[ChatGeneration(message=answer)])

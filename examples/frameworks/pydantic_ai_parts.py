"""What the agents of Pydantic AI here share: a tool that acts, and a model that needs no key."""

from pathlib import Path
from uuid import uuid4

from pydantic_ai import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.messages import RetryPromptPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel


def pay(order: str, cents: int) -> str:
    with Path("bank.txt").open("a") as bank:
        bank.write(f"{cents} for {order}\n")
    return f"{cents} cents for {order} were paid back."


def refund(order: str, cents: int) -> str:
    """Pay money back."""
    return pay(order, cents)


def answer(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    """Refunds the orders that the user names, then repeats what the tools say."""
    results = [part for part in messages[-1].parts if isinstance(part, ToolReturnPart | RetryPromptPart)]
    if results:
        return ModelResponse([TextPart(" ".join(str(part.content) for part in results))])
    words = [part.content for part in messages[-1].parts if isinstance(part, UserPromptPart)]
    orders = [word for word in str(words[-1]).split() if word.startswith("A-")]
    return ModelResponse([ToolCallPart("refund", {"order": order, "cents": 500}, uuid4().hex) for order in orders])


scripted_model = FunctionModel(answer, model_name="scripted")

"""What the agents of Google ADK here share: a tool that acts, and a model that needs no key."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types


def pay(order: str, cents: int) -> str:
    with Path("bank.txt").open("a") as bank:
        bank.write(f"{cents} for {order}\n")
    return f"{cents} cents for {order} were paid back."


def refund(order: str, cents: int) -> str:
    """Pay money back."""
    return pay(order, cents)


class ScriptedModel(BaseLlm):
    """Refunds the orders that the user names, then repeats what the tools say."""

    model: str = "scripted"

    async def generate_content_async(self, llm_request: LlmRequest, *_: Any, **__: Any) -> AsyncGenerator[LlmResponse]:
        parts = llm_request.contents[-1].parts or []
        results = [part.function_response.response or {} for part in parts if part.function_response]
        if results:
            text = " ".join(str(value) for result in results for value in result.values())
            answer = [types.Part(text=text)]
        else:
            orders = [word for part in parts for word in (part.text or "").split() if word.startswith("A-")]
            answer = [
                types.Part.from_function_call(name="refund", args={"order": order, "cents": 500}) for order in orders
            ]
        usage = types.GenerateContentResponseUsageMetadata(prompt_token_count=7, candidates_token_count=3)
        yield LlmResponse(
            content=types.Content(role="model", parts=answer), usage_metadata=usage, model_version=self.model
        )

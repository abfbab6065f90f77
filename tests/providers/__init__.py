"""Model providers on loopback: they speak the real protocols, and the vendors' own SDKs take them for the real ones.

async with anthropic_server() as provider:
    provider.by_turn(calls(call("ship", to="Ada")), says("Shipped."))
    ...  # ANTHROPIC_BASE_URL=provider.url, ANTHROPIC_API_KEY=provider.key
    provider.asked[0].body["messages"]
"""

from tests.providers.answers import Answer, ToolUse, call, calls, fails, says
from tests.providers.anthropic import AnthropicServer, anthropic_server
from tests.providers.openai import OpenAIServer, openai_server
from tests.providers.serving import Asked, Provider

__all__ = [
    "Answer",
    "AnthropicServer",
    "Asked",
    "OpenAIServer",
    "Provider",
    "ToolUse",
    "anthropic_server",
    "call",
    "calls",
    "fails",
    "openai_server",
    "says",
]

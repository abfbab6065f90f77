"""A support agent that uses an MCP server: it refunds the orders that its prompt names. Its model is scripted."""

import asyncio
import sys

from mcp import Client, StdioServerParameters

SERVER = StdioServerParameters(command="python", args=["mcp_office.py"])


async def answer(prompt: str) -> None:
    async with Client(SERVER) as client:
        for order in (word for word in prompt.split() if word.startswith("A-")):
            result = await client.call_tool("refund", {"order": order, "cents": 500})
            print(*(getattr(block, "text", "") for block in result.content))


if __name__ == "__main__":
    asyncio.run(answer(sys.argv[1]))

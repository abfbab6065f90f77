"""A support agent of the OpenAI Agents SDK that keeps its conversations in a file."""

import asyncio
import sys

from agents import Agent, Runner, SQLiteSession
from cortex_plane.client.openai_agents import behind, next_input, state_of, waits
from examples.frameworks import openai_agents_parts as parts


async def answer(prompt: str) -> None:
    history = SQLiteSession("customer-7", "conversations.sqlite")
    agent = Agent("Support", model=parts.scripted_model, tools=[parts.refund])
    agent = behind(None, agent, "support", session="customer-7")
    result = await Runner.run(agent, await next_input(agent, parts.STATE.read_text(), prompt), session=history)
    parts.STATE.write_text(state_of(result))
    print(result.final_output, *waits(result))


def main(prompt: str) -> None:
    asyncio.run(answer(prompt))


if __name__ == "__main__":
    main(sys.argv[1])

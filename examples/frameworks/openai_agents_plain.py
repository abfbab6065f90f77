"""A support agent of the OpenAI Agents SDK that keeps its conversations in a file."""

import asyncio
import sys

from agents import Agent, Runner, SQLiteSession
from examples.frameworks import openai_agents_parts as parts


async def answer(prompt: str) -> None:
    history = SQLiteSession("customer-7", "conversations.sqlite")
    agent = Agent("Support", model=parts.scripted_model, tools=[parts.refund])
    result = await Runner.run(agent, prompt, session=history)
    print(result.final_output)


def main(prompt: str) -> None:
    asyncio.run(answer(prompt))


if __name__ == "__main__":
    main(sys.argv[1])

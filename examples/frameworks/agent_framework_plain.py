"""A support agent of Microsoft Agent Framework that keeps its session in a file."""

import asyncio
import json
import sys
from pathlib import Path

from agent_framework import Agent, AgentSession

from examples.frameworks.agent_framework_parts import ScriptedModel, refund


async def answer(session: AgentSession, prompt: str) -> None:
    agent = Agent(ScriptedModel(), name="support", tools=[refund])
    response = await agent.run(prompt, session=session)
    print(response.text)


def main(prompt: str) -> None:
    saved = Path("customer-7.json")
    session = AgentSession.from_dict(json.loads(saved.read_text())) if saved.exists() else AgentSession()
    asyncio.run(answer(session, prompt))
    saved.write_text(json.dumps(session.to_dict()))


if __name__ == "__main__":
    main(sys.argv[1])

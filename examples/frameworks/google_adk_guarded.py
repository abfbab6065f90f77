"""A support agent of Google ADK that keeps its sessions in a file."""

import asyncio
import sys

from google.adk.agents import Agent
from google.adk.apps import App
from google.adk.runners import Runner
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai import types

from cortex_plane.client.google_adk import PlanePlugin
from examples.frameworks.google_adk_parts import ScriptedModel, refund


async def answer(prompt: str) -> None:
    agent = Agent(name="support", model=ScriptedModel(), tools=[refund])
    plane = PlanePlugin(agent="support")
    app = App(name="shop", root_agent=agent, plugins=[plane])
    sessions = SqliteSessionService("sessions.sqlite")
    runner = Runner(app=app, session_service=sessions, auto_create_session=True)
    message = types.UserContent(prompt)
    async for event in plane.run(runner, user_id="customer-7", session_id="1", new_message=message):
        if event.is_final_response() and event.content:
            print(*(part.text for part in event.content.parts or [] if part.text))
    print(*(f"Waits: {call}" for call in await plane.pending(runner, user_id="customer-7", session_id="1")))


def main(prompt: str) -> None:
    asyncio.run(answer(prompt))


if __name__ == "__main__":
    main(sys.argv[1])

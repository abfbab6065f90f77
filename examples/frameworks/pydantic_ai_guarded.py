"""A support agent of Pydantic AI that keeps its conversations in a file."""

import sys
from pathlib import Path

from pydantic_ai import Agent, DeferredToolRequests, ModelMessagesTypeAdapter

from cortex_plane.client.pydantic_ai import PlaneCapability, next_turn
from examples.frameworks.pydantic_ai_parts import refund, scripted_model


def main(prompt: str) -> None:
    saved = Path("customer-7.json")
    plane = PlaneCapability(agent="support")
    agent = Agent(scripted_model, tools=[refund], output_type=[str, DeferredToolRequests], capabilities=[plane])
    history = ModelMessagesTypeAdapter.validate_json(saved.read_bytes()) if saved.exists() else []
    run = agent.run_sync(**next_turn(history, prompt), conversation_id="customer-7")
    saved.write_bytes(run.all_messages_json())
    print(run.output)


if __name__ == "__main__":
    main(sys.argv[1])

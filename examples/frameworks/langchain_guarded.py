"""A support agent of LangChain that keeps its threads in a file."""

import sys
from typing import Any

from langchain.agents import create_agent
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.sqlite import SqliteSaver

from cortex_plane import Client
from cortex_plane.client.langchain import PlaneMiddleware
from examples.frameworks.langchain_parts import ScriptedModel, refund


def main(prompt: str) -> None:
    config: RunnableConfig = {"configurable": {"thread_id": "customer-7"}}
    with SqliteSaver.from_conn_string("threads.sqlite") as saver:
        plane = PlaneMiddleware(Client(), agent="support")
        agent = create_agent(ScriptedModel(), [refund], checkpointer=saver, middleware=[plane])
        # A run that did not end goes on where it stopped.
        goes_on = bool(agent.get_state(config).next)
        inputs: Any = None if goes_on else {"messages": [("user", prompt)]}
        state = agent.invoke(inputs, config, durability="sync")
        print(state["messages"][-1].text)
        print(*(f"Waits: {waiting.value}" for waiting in state.get("__interrupt__", ())))


if __name__ == "__main__":
    main(sys.argv[1])

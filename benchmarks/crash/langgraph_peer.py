"""LangGraph: a node per step, ``durability="sync"``; recovered by invoking the same thread without input.

Nothing in it recovers by itself: whoever runs it must know which threads were left unfinished and ask for them.
"""

from __future__ import annotations

import os
from typing import Any, TypedDict

from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.graph import END, START, StateGraph

from benchmarks.crash.outcomes import STEPS
from benchmarks.crash.worker import Script, run_worker

os.environ["LANGSMITH_TRACING"] = "false"


class State(TypedDict):
    answer: dict[str, Any]


def _graph(script: Script, saver: Any) -> Any:
    graph: Any = StateGraph(State)
    names = [f"step_{number}" for number in range(1, STEPS + 1)]
    for number, name in enumerate(names, start=1):

        async def node(_: State, number: int = number) -> dict[str, Any]:
            return {"answer": await script.act(number)}

        graph.add_node(name, node)
    for one, other in zip([START, *names], [*names, END], strict=True):
        graph.add_edge(one, other)
    return graph.compile(checkpointer=saver)


async def _invoke(script: Script, given: dict[str, Any] | None) -> None:
    async with AsyncPostgresSaver.from_conn_string(script.url) as saver:
        await saver.setup()
        config = {"configurable": {"thread_id": script.job}}
        await _graph(script, saver).ainvoke(given, config, durability="sync")
        state = await _graph(script, saver).aget_state(config)
        if state.next:
            raise RuntimeError(f"LangGraph stopped before {state.next}")


async def start(script: Script) -> None:
    await _invoke(script, {"answer": {}})


async def recover(script: Script) -> None:
    await _invoke(script, None)


if __name__ == "__main__":
    run_worker(start, recover)

"""A client of MCP with the extension of tasks, as its users write one. As a program it makes a call and then only knows its task:

python -m tests.mcp_gateway.task_client URL KEY call TOOL ARGUMENTS     # prints the task, and waits
python -m tests.mcp_gateway.task_client URL KEY follow TASK             # prints the result
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, ClassVar, Literal

import httpx2
import mcp_types as types
from mcp import Client
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.client.streamable_http import streamable_http_client
from pydantic import TypeAdapter

TASKS = "io.modelcontextprotocol/tasks"
ANYTHING: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])


class CreatedTask(types.Result):
    result_type: Literal["task"] = "task"
    task_id: str
    status: str
    ttl_ms: int | None
    poll_interval_ms: int


class TaskRequest(types.Request[dict[str, Any], str]):
    name_param: ClassVar[str | None] = "taskId"


class TaskExtension(ClientExtension):
    identifier = TASKS

    def claims(self) -> Sequence[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=CreatedTask, resolve=self.resolve)]

    async def resolve(self, task: CreatedTask, context: ClaimContext) -> types.CallToolResult:
        _say(json.dumps({"task": task.task_id}))
        return await follow(context.session, task.task_id)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def ask(session: Any, verb: str, task: str, **more: Any) -> dict[str, Any]:
    request = TaskRequest(method=f"tasks/{verb}", params={"taskId": task, **more})
    answer: dict[str, Any] = await session.send_request(request, ANYTHING)
    return answer


async def follow(session: Any, task: str) -> types.CallToolResult:
    while True:
        state = await ask(session, "get", task)
        if "result" in state:
            return types.CallToolResult.model_validate(state["result"])
        if state["status"] in ("failed", "cancelled"):
            raise RuntimeError(state)
        await asyncio.sleep(0.05)


@asynccontextmanager
async def task_client(url: str, key: str, **more: Any) -> AsyncIterator[Client]:
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(
            httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=60)
        )
        transport = streamable_http_client(url, http_client=http)
        client = Client(transport, cache=None, extensions=[TaskExtension()], **more)
        yield await stack.enter_async_context(client)


async def main(url: str, key: str, verb: str, *words: str) -> None:
    async with task_client(url, key) as client:
        if verb == "call":
            result = await client.call_tool(words[0], json.loads(words[1]))
        else:
            result = await follow(client.session, words[0])
    _say(result.model_dump_json(by_alias=True, exclude_none=True))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

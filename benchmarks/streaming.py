"""What a streamed token costs: read bare, through the library that speaks with providers, and as the step of a job.

A provider's protocol server in a process of its own sends an answer of so many tokens, as fast as it is read. The time of a
long answer less that of a short one, by the tokens between them, is what one more token costs. Ours is a whole job: heard,
told to watchers in chunks, counted, recorded. The processor's time is this process's alone: it tells what is spent here,
however fast the provider and the database are.

    python -m benchmarks.streaming    # the provider, until its standard input ends
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import httpx

from benchmarks.peers.databases import fresh_database
from benchmarks.plane import Plane, plane, working
from benchmarks.steps import completions
from cortex_plane.worker.tools.app import App

KEY = "sk-bench-0001"
LONG, SHORT = 2000, 10
TOKEN = "release "
"""As long as the provider's pieces are."""
AIM_US = 150.0
"""Of processor time above the library: three hundredths of a token's time where a model says two hundred in a second."""

Answer = Callable[[int], Awaitable[None]]
"""Hears an answer of so many tokens."""


def ask(tokens: int) -> dict[str, Any]:
    return {"model": f"tokens-{tokens}", "stream": True, "messages": [{"role": "user", "content": "go"}]}


def bare(url: str, client: httpx.AsyncClient) -> Answer:
    """The HTTP stream, line by line, each piece parsed and kept: what nobody can do without."""

    async def answer(tokens: int) -> None:
        said: list[str] = []
        headers = {"Authorization": f"Bearer {KEY}"}
        async with client.stream("POST", f"{url}/chat/completions", json=ask(tokens), headers=headers) as got:
            async for line in got.aiter_lines():
                if line.startswith("data: {"):
                    for choice in json.loads(line[6:])["choices"]:
                        said.append(choice["delta"].get("content") or "")
        assert "".join(said) == TOKEN * tokens

    return answer


def library(url: str) -> Answer:
    """The library alone, as the plane calls it."""
    from pydantic_ai.direct import model_request_stream
    from pydantic_ai.messages import ModelRequest
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=url, api_key=KEY)

    async def answer(tokens: int) -> None:
        model = OpenAIChatModel(f"tokens-{tokens}", provider=provider)
        async with model_request_stream(model, [ModelRequest.user_text_prompt("go")]) as stream:
            async for _ in stream:
                pass
            assert stream.get().text == TOKEN * tokens

    return answer


@asynccontextmanager
async def ours(made: Plane, url: str) -> AsyncIterator[Answer]:
    for tokens in (SHORT, LONG):
        await made.agent(f"says-{tokens}", [], model=f"openai:tokens-{tokens}")
    with mock.patch.dict(os.environ, {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": url}):
        async with working(made, App("bench"), 1), completions(made.admin_url) as waiting:

            async def answer(tokens: int) -> None:
                id = await made.submit(f"says-{tokens}")
                ended = waiting[id] = asyncio.Event()
                await ended.wait()

            yield answer


async def _per_token(answer: Answer) -> tuple[float, float]:
    """Microseconds of one more token, and of the processor."""
    (long, busy_long), (short, busy_short) = await _timed(answer, LONG), await _timed(answer, SHORT)
    each = 1e6 / (LONG - SHORT)
    return (long - short) * each, (busy_long - busy_short) * each


async def _timed(answer: Answer, tokens: int) -> tuple[float, float]:
    started, busy = time.perf_counter(), time.process_time()
    await answer(tokens)
    return time.perf_counter() - started, time.process_time() - busy


async def run(admin_url: str, *, rounds: int = 9) -> bool:
    taken: dict[str, list[tuple[float, float]]] = {}
    async with (
        _provider() as url,
        fresh_database(admin_url, "streaming") as database,
        plane(database) as made,
        httpx.AsyncClient(trust_env=False, timeout=60) as client,
        ours(made, url) as job,
    ):
        rivals = {"bare stream": bare(url, client), "the library": library(url), "ours, a job's step": job}
        for answer in rivals.values():
            await _per_token(answer)  # warm up
        for _ in range(rounds):
            for name, answer in rivals.items():
                taken.setdefault(name, []).append(await _per_token(answer))
    return _print(
        {
            name: (statistics.median(w for w, _ in known), statistics.median(b for _, b in known))
            for name, known in taken.items()
        }
    )


def _print(medians: dict[str, tuple[float, float]]) -> bool:
    print(f"\n{'a streamed token':36}{'µs':>10}{'busy, µs':>10}{'above bare':>12}{'above library':>15}{'aim':>8}")
    bare_busy, library_busy, above = medians["bare stream"][1], medians["the library"][1], 0.0
    for name, (seconds, busy) in medians.items():
        above = busy - library_busy
        last = name.startswith("ours")
        mark = "  MISSED" if last and above > AIM_US else ""
        told = f"{above:>15.1f}{f'≤ {AIM_US:g}':>8}{mark}" if last else ""
        print(f"{'  ' + name:36}{seconds:>10.1f}{busy:>10.1f}{busy - bare_busy:>12.1f}{told}")
    return above <= AIM_US


# The provider -----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _provider() -> AsyncIterator[str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.streaming",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parent.parent,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.stdin.close()
        await process.wait()


async def _serve() -> None:
    from tests.providers.answers import says
    from tests.providers.openai import openai_server

    async with openai_server(KEY) as server:
        server.answer = lambda asked: says(TOKEN * int(asked.body["model"].rpartition("-")[2]))
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_serve())

"""Two neighbours on one plane: one floods every door, the other decides and starts jobs, and how long that takes is measured."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx

from cortex_plane.worker.tools.app import App

POLICIES = 'policies: [{name: everything-goes, target: "*", effect: allow}]'
WRONG = {"Authorization": "Bearer cortex_key_" + "0" * 43}

app = App("neighbours")


@app.tool(read_only=True)
async def nap(seconds: float) -> str:
    """Sleep for a while."""
    await asyncio.sleep(seconds)
    return "rested"


@app.tool
async def act() -> str:
    """Change something."""
    return "acted"


@dataclass
class Flood:
    """Calls every door at once, and never waits for what it is asked to wait for."""

    http: httpx.AsyncClient
    bridge: dict[str, str]
    """The key that takes messages in."""
    keys: list[dict[str, str]]
    agent: str
    """Its jobs sleep in their first step."""
    connection: str
    card: str
    """An approval that it may not decide."""
    answers: Counter[tuple[str, int]] = field(default_factory=Counter)

    async def run(self, callers: int) -> None:
        await asyncio.gather(*(self._call(number) for number in range(callers)))

    async def _call(self, number: int) -> None:
        doors = [self._job, self._message, self._simulation, self._export, self._stream, self._token, self._decision]
        for turn in itertools.count(number):
            door = doors[turn % len(doors)]
            with contextlib.suppress(httpx.TransportError):
                status = await door(self.keys[turn % len(self.keys)], turn)
                self.answers[door.__name__, status] += 1
            await asyncio.sleep(0)

    async def _post(self, path: str, headers: dict[str, str], body: Any) -> int:
        return (await self.http.post(path, headers=headers, json=body)).status_code

    async def _job(self, key: dict[str, str], turn: int) -> int:
        return await self._post("/v1/jobs", key, {"agent": self.agent, "payload": {"turn": turn}})

    async def _message(self, _: dict[str, str], turn: int) -> int:
        body = {"external_user_id": f"u-{turn % 50}", "agent": self.agent, "text": "x" * 5000}
        return await self._post(f"/v1/connections/{self.connection}/messages", self.bridge, body)

    async def _simulation(self, key: dict[str, str], _: int) -> int:
        return await self._post("/v1/policies/simulate", key, {"text": POLICIES})

    async def _decision(self, key: dict[str, str], _: int) -> int:
        body = {"decision": "approved", "version": 1, "input_hash": "0" * 64}
        return await self._post(f"/v1/approvals/{self.card}/decide", key, body)

    async def _token(self, _: dict[str, str], __: int) -> int:
        return (await self.http.get("/v1/me", headers=WRONG)).status_code

    async def _export(self, key: dict[str, str], _: int) -> int:
        return (await self.http.get("/v1/audit/export", headers=key)).status_code

    async def _stream(self, key: dict[str, str], _: int) -> int:
        """Opened, and left after its first word."""
        jobs = (await self.http.get("/v1/jobs?limit=1", headers=key)).json().get("items")
        if not jobs:
            return 429
        async with self.http.stream("GET", f"/v1/jobs/{jobs[0]['id']}/events", headers=key) as answer:
            await anext(answer.aiter_bytes(), None)
            return answer.status_code


@dataclass
class Neighbour:
    """Starts jobs that ask for an approval in their first step, and decides."""

    http: httpx.AsyncClient
    key: dict[str, str]
    agent: str
    first_steps: list[float] = field(default_factory=list)
    decisions: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)

    async def rounds(self, count: int) -> None:
        for _ in range(count):
            await self._round()

    async def _round(self) -> None:
        began = time.perf_counter()
        job = await self._answer("POST", "/v1/jobs", {"agent": self.agent, "payload": {}})
        async with asyncio.timeout(60):
            path = f"/v1/approvals?job_id={job['id']}"
            while not (asked := (await self._answer("GET", path))["items"]):  # noqa: ASYNC110 -- it is measured so
                await asyncio.sleep(0.01)
        self.first_steps.append(time.perf_counter() - began)
        seen = {"version": asked[0]["version"], "input_hash": asked[0]["input_hash"]}
        began = time.perf_counter()
        await self._answer("POST", f"/v1/approvals/{asked[0]['id']}/decide", {"decision": "approved", **seen})
        self.decisions.append(time.perf_counter() - began)
        async with asyncio.timeout(60):
            path = f"/v1/jobs/{job['id']}"
            while (await self._answer("GET", path))["status"] != "COMPLETED":  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def _answer(self, method: str, path: str, body: Any = None) -> Any:
        answer = await self.http.request(method, path, headers=self.key, json=body)
        self.statuses[answer.status_code] += 1
        assert answer.is_success, (path, answer.status_code, answer.text)
        return answer.json()


def p99(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=100, method="inclusive")[98]


async def main(url: str, callers: int, agent: str, connection: str, card: str, *keys: str) -> None:
    """A flood in a process of its own, until it is ended."""
    async with httpx.AsyncClient(base_url=url, timeout=30, limits=httpx.Limits(max_connections=callers)) as http:
        bridge, *headers = [{"Authorization": f"Bearer {key}"} for key in keys]
        await Flood(http, bridge, headers, agent, connection, card).run(callers)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:]))

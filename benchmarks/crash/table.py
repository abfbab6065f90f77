"""One row per engine, one column per place of death."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec

from benchmarks.crash.engines import Engine, ProcessEngine
from benchmarks.crash.outcomes import Outcome, Place
from benchmarks.peers.databases import fresh_database
from benchmarks.world import World, outside_world

PEERS = {"LangGraph": "langgraph", "DBOS": "dbos", "Absurd": "absurd_sdk"}
"""Each peer and the package it needs; its worker is the module named after it."""


@dataclass(frozen=True)
class Row:
    engine: str
    outcomes: dict[Place, Outcome]


@asynccontextmanager
async def peers(admin_url: str, world: World) -> AsyncIterator[list[Engine]]:
    """The installed peers, each with a database of its own."""
    async with AsyncExitStack() as stack:
        engines: list[Engine] = []
        for name, package in PEERS.items():
            if find_spec(package) is None:
                print(f"{name} is left out: {package} is not installed", file=sys.stderr)
                continue
            url = await stack.enter_async_context(fresh_database(admin_url, name.lower()))
            engines.append(ProcessEngine(name, f"benchmarks.crash.{name.lower()}_peer", url, world))
        yield engines


async def rows(engines: Iterable[Engine], places: Sequence[Place] = tuple(Place)) -> list[Row]:
    """One at a time: a crash is no race for the processor."""
    return [Row(engine.name, {place: await engine.run(place) for place in places}) for engine in engines]


OURS = ("probe", "retry_with_key", "ask_human", "fail")


@asynccontextmanager
async def ours(admin_url: str, world: World) -> AsyncIterator[list[Engine]]:
    """Ours, one row for each way in which a tool may settle what nobody knows."""
    async with fresh_database(admin_url, "cortex") as url:
        module = "benchmarks.crash.cortex_peer"
        yield [ProcessEngine(f"Cortex Plane ({kind})", module, url, world) for kind in OURS]


async def all_rows(admin_url: str, places: Sequence[Place] = tuple(Place)) -> list[Row]:
    async with outside_world() as world, ours(admin_url, world) as own, peers(admin_url, world) as others:
        return await rows([*own, *others], places)


async def peer_rows(admin_url: str) -> list[Row]:
    async with outside_world() as world, peers(admin_url, world) as engines:
        return await rows(engines)


async def run(admin_url: str, *, places: Sequence[Place] = tuple(Place)) -> bool:
    """Print the table; it has no aim of its own, for the tests hold ours to once."""
    print_table(await all_rows(admin_url, places), places)
    return True


def print_table(table: Iterable[Row], places: Sequence[Place] = tuple(Place)) -> None:
    print(f"\n{'killed … the effect of step 2':32}" + "".join(f"{place:>24}" for place in places))
    for row in table:
        told = "".join(f"{row.outcomes[place]!s:>24}" for place in places)
        print(f"{row.engine:32}{told}")
        waits = "".join(f"{f'{row.outcomes[place].seconds:.1f} s':>24}" for place in places)
        print(f"{'  complete again after':32}{waits}")

"""What gates add to a durable step with a side effect: the same job without an atlas, within one, and within one that tells.

A share this small drowns in what a machine does from one second to the next. So the jobs run beside each other in one worker,
each held within its side effect while it is another's turn, and each turn is one step.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from typing import Any

from benchmarks.goals import goal, table
from benchmarks.measuring import analyze
from benchmarks.peers.payloads import TOOL_ARGUMENTS, effect
from benchmarks.plane import Plane, plane, working
from cortex_plane.gates.model.atlases import AtlasFile
from cortex_plane.gates.verbs import atlases
from cortex_plane.jobs.model.jobs import Cancellation
from cortex_plane.jobs.verbs import steering
from cortex_plane.worker.tools.app import App

WARM = 30
TURNS = 500
GATES = 1_000
BARE, QUIET, TOLD = "no atlas", "1,000 gates, none fires", "1,000 gates, one fires and is traced"
TELLS = {
    "checkpoint_id": "seen",
    "name": "Seen",
    "mode": "observational",
    "trigger": {"type": "action_pre", "patterns": ["effect"]},
}


class Turnstile:
    """Holds each job within its side effect until it is its turn."""

    def __init__(self, jobs: list[str]) -> None:
        self.here = {job: asyncio.Event() for job in jobs}
        self._go = {job: asyncio.Event() for job in jobs}

    async def pass_through(self, job: str) -> None:
        self.here[job].set()
        await self._go[job].wait()
        self._go[job].clear()

    async def step(self, job: str) -> float:
        """Seconds from one side effect of this job to its next."""
        await self.here[job].wait()
        self.here[job].clear()
        started = time.perf_counter()
        self._go[job].set()
        await self.here[job].wait()
        return time.perf_counter() - started

    def open(self) -> None:
        for go in self._go.values():
            go.set()


def _app(turnstile: Turnstile) -> App:
    app = App("bench")

    @app.tool(name="effect", on_uncertain="retry_with_key")
    async def act(tool: str, region: str, count: int, dry_run: bool, note: str) -> dict[str, Any]:
        """The side effect of the measured steps."""
        await turnstile.pass_through(tool)
        return await effect({"tool": tool, "region": region, "count": count, "dry_run": dry_run, "note": note})

    return app


def _manifest(atlas_id: str, *more: dict[str, Any]) -> str:
    """Half of them stand before other actions, half listen for other words."""
    gates = [
        {
            "checkpoint_id": f"g{number}",
            "name": f"g{number}",
            "mode": "advisory",
            "trigger": {"type": "action_pre", "patterns": [f"service_{number}.*"]}
            if number % 2
            else {"type": "keyword", "patterns": [f"word{number}"]},
        }
        for number in range(GATES - len(more))
    ]
    return json.dumps(
        {
            "atlas_version": "1.0",
            "atlas_id": atlas_id,
            "version": "1",
            "name": "Bench",
            "steward": {"id": "bench", "name": "Bench"},
            "checkpoints": [*gates, *more],
            "policies": [{"policy_id": "all", "type": "allow", "actions": ["*"]}],
        }
    )


async def _jobs(made: Plane) -> dict[str, Any]:
    ids = {}
    for number, (name, gates) in enumerate({BARE: None, QUIET: (), TOLD: (TELLS,)}.items()):
        slug, bound = f"gated-{number}", []
        if gates is not None:
            bound = [f"bench.{slug}"]
            await atlases.publish_atlas(made.db, made.actor, AtlasFile(manifest=_manifest(bound[0], *gates)))
        call = {"tool": "effect", "arguments": {**TOOL_ARGUMENTS, "tool": name}}
        await made.agent(slug, [{"calls": [call], "repeat": True}], atlases=bound)
        ids[name] = await made.submit(slug)
    return ids


async def run(url: str, *, turns: int = TURNS) -> bool:
    async with plane(url) as made:
        ids = await _jobs(made)
        turnstile = Turnstile(list(ids))
        taken: dict[str, list[float]] = {name: [] for name in ids}
        async with working(made, _app(turnstile), len(ids)):
            for turn in range(WARM + turns):
                if turn == WARM:
                    await analyze(url)
                for name in list(ids) if turn % 2 else reversed(ids):
                    seconds = await turnstile.step(name)
                    if turn >= WARM:
                        taken[name].append(seconds)
            for id in ids.values():
                await steering.cancel(made.db, made.actor, id, Cancellation())
            turnstile.open()
    return _print({name: statistics.median(times) for name, times in taken.items()})


def _print(medians: dict[str, float]) -> bool:
    print(f"\n{'a step with a side effect':44}{'ms':>10}{'share':>10}")
    for name, seconds in medians.items():
        share = 1 - medians[BARE] / seconds
        print(f"{'  ' + name:44}{seconds * 1e3:>10.2f}{'' if name == BARE else f'{share:>9.1%}'}")
    table("a step with a side effect and gates", "ms", {name: seconds * 1e3 for name, seconds in medians.items()})
    return goal("gates", "share of a step, in percent", 100 * (1 - medians[BARE] / medians[QUIET]), "≤", 5, " %")

"""Keyword gates and long messages: a word is found wherever it stands, and a message cannot be longer than what is read."""

from __future__ import annotations

from uuid import UUID

import httpx
import pytest

from cortex_plane.jobs.model.jobs import JobStatus
from tests.fixtures.external_gates import sent
from tests.fixtures.gated import Desk, atlas, before, calls_of, delete, gate, get, governed, say, traced
from tests.fixtures.people import World
from tests.fixtures.workers import submit, turn, until, working

HALF = "x " * 11_000
PAYROLL = gate("payroll", {"type": "keyword", "patterns": [r"pay\s?roll"], "match_mode": "regex"})
SPELLED = gate("spelled", {"type": "keyword", "patterns": ["^(a+)+$"], "match_mode": "regex"}, mode="observational")


@pytest.mark.proves("S5.201")
async def test_a_word_in_the_middle_of_a_long_message_stops_the_agent(http: httpx.AsyncClient, world: World) -> None:
    desk = Desk()
    agent = await governed(world, atlas(PAYROLL), turn(get()), turn(say("payroll", sure="understood")), turn(get()))
    session = await sent(http, world.admin, "/sessions", 201, agent=agent.slug)
    path = f"/sessions/{session['id']}/messages"
    text = f"{HALF}payroll{HALF}"
    assert len(text) == 44_007
    message = await sent(http, world.admin, path, 201, text=text)
    async with working(world.db, desk.app):
        job = await until(world, UUID(message["job_id"]), JobStatus.COMPLETED, JobStatus.FAILED)
    assert await calls_of(world, job.id) == ["ticket.get rejected", "plane.answer completed", "ticket.get completed"]
    assert (await traced(world, job))[0] == "triggered payroll"
    refused = await http.post(f"/v1{path}", json={"text": "x" * 100_001}, headers=world.admin.headers)
    assert refused.status_code == 422, "what gates read has a bound"


@pytest.mark.proves("S5.201")
async def test_an_expression_does_not_fire_on_a_part_of_a_task(world: World) -> None:
    agent = await governed(world, atlas(SPELLED, gate("sure", before("*.delete"))), turn(delete()))
    many = "a" * 30_000
    jobs = [await submit(world, agent, {"text": text}) for text in (many, f"{many}b{many}")]
    fired = []
    async with working(world.db, Desk().app):
        for id in jobs:
            job = await until(world, id, JobStatus.COMPLETED)
            fired.append("triggered spelled" in await traced(world, job))
    assert fired == [True, False]

"""Edits that only the tool's own code can judge."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.worker.tools.app import App
from tests.fixtures.approvals import decide, pending
from tests.fixtures.people import World
from tests.fixtures.workers import call, ended, make_agent, steps_of, submit, turn, until, working


def _even(value: int) -> int:
    if value % 2:
        raise ValueError("must be even")
    return value


async def test_an_edit_that_fits_the_schema_and_not_the_tool_is_told_to_the_model(strict: World) -> None:
    """What no schema can say is only known where the code is. The job goes on, and nothing was sent."""
    app = App("tests")
    paid: list[int] = []

    @app.tool(timeout=5, on_uncertain="fail")
    async def pay(amount: Annotated[int, AfterValidator(_even)]) -> str:
        paid.append(amount)
        return "paid"

    agent = await make_agent(strict, [turn(call("pay", amount=2)), turn(call("pay", amount=4))])
    id = await submit(strict, agent)
    async with working(strict.db, app):
        await until(strict, id, JobStatus.WAITING_FOR_APPROVAL)
        (asked,) = await pending(strict, id)
        await decide(strict, asked, arguments={"amount": 3})
        # The model was told, and sends another call, for which somebody is asked again.
        job = await until(strict, id, JobStatus.WAITING_FOR_APPROVAL, JobStatus.PAUSED, JobStatus.FAILED)
        assert job.status is JobStatus.WAITING_FOR_APPROVAL, job.holds
        (again,) = await pending(strict, id)
        assert again.arguments == {"amount": 4}
        await decide(strict, again)
        assert (await ended(strict, id)).status is JobStatus.COMPLETED
    assert paid == [4]
    first, *_ = await steps_of(strict, id)
    assert (first.calls[0].status, first.calls[0].arguments) == ("rejected", {"amount": 3})
    assert "must be even" in (first.calls[0].error or "")

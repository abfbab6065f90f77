"""Ten million jobs, five million events, a million pending approvals: verbs, lists and looks at the clock do not read along with them."""

from __future__ import annotations

import asyncio
import os

import pytest
from benchmarks import scale

GROWS = {
    "inbox page": "it counts everything that is pending, and ranks it by whether the person may decide it",
    "list of calls, one status": "the status is the tool call's: where few calls have it, it is looked up call by call",
}
"""What still does, and why."""


@pytest.mark.soak
def test_rows_that_merely_lie_there_cost_nothing() -> None:
    jobs = int(os.environ.get("CORTEX_SCALE_JOBS", "10000000"))
    with scale.server() as server:
        costs = asyncio.run(scale.measure_all(server, scale.sizes_up_to(jobs), list(scale.MEASURED)))
    assert scale.reads_along(costs) <= set(GROWS)

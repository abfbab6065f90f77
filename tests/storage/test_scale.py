"""Ten million jobs, five million events, a million pending approvals: verbs, lists and looks at the clock do not read along with them."""

from __future__ import annotations

import asyncio
import os

import pytest
from benchmarks import scale


@pytest.mark.soak
def test_rows_that_merely_lie_there_cost_nothing() -> None:
    jobs = int(os.environ.get("CORTEX_SCALE_JOBS", "10000000"))
    with scale.server() as server:
        costs = asyncio.run(scale.measure_all(server, scale.sizes_up_to(jobs), list(scale.MEASURED)))
    assert scale.reads_along(costs) == set()

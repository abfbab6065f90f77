"""A plane for the stories that do not end it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.acceptance.planes import Plane, running


@pytest.fixture(scope="package")
def plane() -> Iterator[Plane]:
    """Its worker may be killed: it is replaced, and adopts jobs soon. Deployments of the demo take their time."""
    with running("cortex-story-", CORTEX_DEMO_SLOW="1.5", CORTEX_ADOPTION_SECONDS="2") as plane:
        yield plane

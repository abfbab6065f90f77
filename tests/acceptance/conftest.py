"""A plane for the stories that do not end it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.acceptance.planes import Plane, Plant, migrated_cluster, running


@pytest.fixture(scope="session")
def plant() -> Iterator[Plant]:
    with migrated_cluster() as plant:
        yield plant


@pytest.fixture(scope="package")
def plane(plant: Plant) -> Iterator[Plane]:
    """Its worker may be killed: it is replaced, and adopts jobs soon. Deployments of the demo take their time."""
    with running("cortex-story-", plant, CORTEX_DEMO_SLOW="1.5", CORTEX_ADOPTION_SECONDS="2") as plane:
        yield plane

"""A plane that the command line's tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.acceptance.planes import Plane, running
from tests.fixtures.servers import available, fresh_database


@pytest.fixture(scope="package")
def plane() -> Iterator[Plane]:
    """`cortex up` on a database of its own."""
    server = available()[0]
    with fresh_database(server) as name:
        app, admin = server.app(name), server.admin(name)
        with running("cortex-shell-", DATABASE_URL=app, DATABASE_ADMIN_URL=admin, COLUMNS="200") as plane:
            yield plane

"""Logs as lines: structlog's own default draws every variable of a traceback, which takes longer than a lease."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def plain_logs() -> Iterator[None]:
    before = structlog.get_config()
    structlog.configure(processors=[structlog.processors.format_exc_info, structlog.processors.LogfmtRenderer()])
    yield
    structlog.configure(**before)

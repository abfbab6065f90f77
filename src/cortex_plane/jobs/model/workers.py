"""Workers: processes that lease jobs and run them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID


@dataclass(frozen=True, kw_only=True, slots=True)
class Worker:
    id: UUID
    name: str
    host: str
    pid: int
    apps: list[str]
    concurrency: int
    started_at: datetime
    expires_at: datetime
    """Until then it counts as alive; its heartbeat renews it."""
    stopped_at: datetime | None
    alive: bool

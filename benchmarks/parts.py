"""The parts of `make bench`. Each runs in a process and a database of its own, so that none meets what another left.

    python -m benchmarks.parts NAME URL [--smoke]    # one part, in the database of this superuser

It exits with 0 where every aim was met, with 3 where one was missed, and with a traceback and 1 where it failed.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import inspect
import logging
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import structlog

from benchmarks.crash.outcomes import Place

MET, MISSED = 0, 3

PARTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "steps": {"rounds": 1, "count": 32, "jobs": 2},
        "code_agents": {"rounds": 1, "count": 2},
        "checkpoints": {"rounds": 1, "count": 5},
        "growth": {"steps": 40},
        "scale": {"jobs": 2_000},
        "claims": {"rounds": 1, "jobs": 200, "starts": 5},
        "approvals": {"resumes": 5, "peer_resumes": 2, "decisions": 20, "few": 100, "many": 1_000, "each": 5},
        "credentials": {"rounds": 1, "each": 3},
        "outbox": {"rounds": 1, "mails": 20, "backlog": 500},
        "channels": {"presses": 5, "messages": 5, "recipients": 20, "backlog": 60, "times": 3},
        "audit": {"sizes": (1_000, 2_000)},
        "streams": {"streams": 10},
        "streaming": {"rounds": 1},
        "remote_steps": {"rounds": 1, "count": 16},
        "guards": {"rounds": 1, "count": 16},
        "grpc_checks": {"rounds": 1, "count": 128},
        "gateway": {"rounds": 1, "count": 16},
        "gated_steps": {"turns": 10},
        "conversations": {"count": 20, "part": 5},
        "parked": {"rounds": 1, "each": 20, "window": 1.0},
        "ingest": {"rounds": 1, "count": 32},
        "crash.table": {"places": (Place.INSIDE,)},
        "policies": {"rounds": 1, "count": 4},
        "gates": {"count": 4},
        "startup": {},
    }
)
"""In the order in which they run, and what makes each short for a smoke run: a look at whether it runs, not a measurement."""


def load_part(name: str) -> Callable[..., Any]:
    part: Callable[..., Any] = importlib.import_module(f"benchmarks.{name}").run
    return part


def needs_database(part: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(part)


def run_part(name: str, url: str, *, smoke: bool) -> bool:
    """Whether every aim was met."""
    part, settings = load_part(name), PARTS[name] if smoke else {}
    return bool(asyncio.run(part(url, **settings)) if needs_database(part) else part(**settings))


def main() -> int:
    parser = argparse.ArgumentParser(description="One part of `make bench`.")
    parser.add_argument("name", choices=PARTS)
    parser.add_argument("url")
    parser.add_argument("--smoke", action="store_true")
    asked = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    return MET if run_part(asked.name, asked.url, smoke=asked.smoke) else MISSED


if __name__ == "__main__":
    sys.exit(main())

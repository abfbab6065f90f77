"""Where each module belongs: its noun, and its floor within the noun.

Floors: kernel < model < rules < files < db < store < verbs < doors, worker, channels < main. A module may import lower floors of any
noun, and on its own floor the nouns before its own in ``NOUNS``. ``client`` stands on kernel and models; ``embedded`` and
``emulators`` on the kernel alone. ``mcp_client``, which the worker and the gateway share, is on the floor of verbs. Doors, worker and channels do not import each other. The declared routes of a noun (``routes``) stand on its model
floor.
"""

from __future__ import annotations

from typing import Final, NamedTuple

NOUNS: Final = (
    "tenancy", "proof", "agents", "policies", "sessions", "jobs", "gates", "approvals", "calls", "notify",
)  # fmt: skip

OUTER: Final = ("client", "channels", "worker", "http", "grpc", "dashboard", "cli", "mcp_gateway")
FLOORS: Final = {
    "kernel": 0, "model": 1, "rules": 2, "files": 3, "db": 4, "store": 5, "verbs": 6, "mcp_client": 6, **dict.fromkeys(OUTER, 7), "embedded": 7, "emulators": 7, "main": 8,
}  # fmt: skip


class Place(NamedTuple):
    noun: str
    floor: str

    @property
    def rank(self) -> int:
        return FLOORS[self.floor]


def place_of(module: str) -> Place | None:
    """Where a module is says it: ``approvals.verbs.decisions``. None for packages of several floors."""
    parts = module.removeprefix("cortex_plane").removeprefix(".").split(".")
    if parts[0] in NOUNS:
        if len(parts) == 1:
            return None
        return Place(parts[0], "model" if parts[1] == "routes" else parts[1])
    if parts[0] in FLOORS:
        return Place(parts[0], parts[0])
    return Place("main", "main") if parts[0] == "__main__" else None

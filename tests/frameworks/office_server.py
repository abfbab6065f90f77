"""The outside world of the victims: a file with a line for each effect. As a program it is an MCP server that acts in it.

    python office_server.py FOLDER

``kill.txt`` in the folder says where it kills: `act:before gateway` is the process that started it, `act:after server` itself.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

SCHEMA = {
    "type": "object",
    "properties": {"order": {"type": "string"}, "cents": {"type": "integer"}},
    "required": ["order", "cents"],
}


def pay(folder: Path, order: str, key: str | None) -> str:
    """Acts. What comes twice with the same key happens once."""
    line = f"{order} {key or '-'}\n"
    path = folder / "acts.txt"
    if key is None or not path.exists() or line not in path.read_text():
        with path.open("a") as acts:
            acts.write(line)
    return f"{order} is paid back."


def acts_of(folder: Path) -> list[str]:
    """The order of each effect."""
    path = folder / "acts.txt"
    return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []


def kill_at(folder: Path, point: str) -> None:
    path = folder / "kill.txt"
    at, _, whom = path.read_text().partition(" ") if path.exists() else ("", "", "")
    if at == point:
        path.unlink()
        if whom == "gateway":
            os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def serve(folder: Path) -> None:
    def send(id: Any, result: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": id, "result": result}) + "\n")
        sys.stdout.flush()

    for line in sys.stdin:
        message = json.loads(line)
        id, method, params = message.get("id"), message.get("method"), message.get("params") or {}
        if method == "initialize":
            info = {"name": "office", "version": "1"}
            send(id, {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info})
        elif method == "tools/list":
            send(id, {"tools": [{"name": "refund", "description": "Pay money back.", "inputSchema": SCHEMA}]})
        elif method == "tools/call":
            kill_at(folder, "act:before")
            key = params.get("_meta", {}).get("cortex-plane/idempotency-key")
            text = pay(folder, params["arguments"]["order"], key)
            kill_at(folder, "act:after")
            send(id, {"content": [{"type": "text", "text": text}]})
        elif id is not None:
            sys.stdout.write(
                json.dumps({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "no"}}) + "\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    serve(Path(sys.argv[-1]))

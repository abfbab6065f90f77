"""An ordinary MCP server, as it may come from anywhere: it keeps notes, and knows nothing of planes and approvals."""

import os
from pathlib import Path

from mcp.server import MCPServer

NOTES = Path(os.environ["NOTES"])
server = MCPServer("notes", version="1.0")


@server.tool()
def list_notes() -> list[str]:
    """All notes, oldest first."""
    return NOTES.read_text().splitlines() if NOTES.exists() else []


@server.tool()
def add_note(text: str) -> str:
    """Write a note down."""
    with NOTES.open("a") as file:
        file.write(text + "\n")
    return "noted"


if __name__ == "__main__":
    server.run()

"""An agent whose tools are those of an MCP server. Workers start it, watch it and start it again."""

import os
import sys
from pathlib import Path
from typing import Any

from cortex_plane import AgentDraft, App
from examples.plane import model

NOTES = Path(os.environ.get("EXAMPLE_FOLDER", "."), "notes.txt")
SERVER = Path(__file__).parent / "server.py"

app = App("mcp-example", instructions="You keep notes. Look at what is there before you add anything.")
app.mcp_server("notes", command=[sys.executable, str(SERVER)], env={"NOTES": str(NOTES)}, timeout=10)

SCRIPT: Any = [
    {"text": "I look at the notes.", "calls": [{"tool": "notes.list_notes"}]},
    {"text": "I add one.", "calls": [{"tool": "notes.add_note", "arguments": {"text": "Lamps are sold out."}}]},
    {"text": "It is written down."},
]
AGENT = AgentDraft(
    name="MCP example",
    slug="mcp-example",
    role="Scribe",
    team="main",
    model_config=model("Do what you are asked with the notes.", SCRIPT),
    skill_config={"app": app.name},
)

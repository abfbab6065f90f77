"""An agent that ships releases: it reads, tags and deploys. What it may do alone stands in policies.yaml, not here."""

from typing import Any

from cortex_plane import AgentDraft, App, ToolContext, ToolError
from examples.plane import did, model

app = App("release-example", instructions="You ship releases. Read before you act; say in one sentence what you do.")


@app.tool(read_only=True)
async def list_commits(since: str) -> list[str]:
    """What was committed since a version."""
    return [f"since {since}: jobs survive a restart", f"since {since}: no side effect is repeated"]


@app.tool(on_uncertain="retry_with_key")
async def tag(version: str, ctx: ToolContext) -> str:
    """Tag a version. Whoever tags with the same key twice has tagged once."""
    did(ctx, f"tag {version}")
    return f"v{version}"


@app.tool(risk="high", on_uncertain="retry_with_key")
async def deploy(version: str, environment: str, ctx: ToolContext) -> str:
    """Put a version into an environment: staging or production."""
    if environment not in ("staging", "production"):
        raise ToolError(f"There is no environment {environment!r}.")
    did(ctx, f"deploy {version} to {environment}")
    return f"{version} runs in {environment}"


# What is said where there is no key to a model.
SCRIPT: Any = [
    {"text": "I read what changed.", "calls": [{"tool": "list_commits", "arguments": {"since": "2.3"}}]},
    {"text": "Two changes: I tag 2.4.", "calls": [{"tool": "tag", "arguments": {"version": "2.4"}}]},
    {
        "text": "Now I deploy it to production.",
        "calls": [{"tool": "deploy", "arguments": {"version": "2.4", "environment": "production"}}],
    },
    {"text": "Done: {result}."},
]
AGENT = AgentDraft(
    name="Release example",
    slug="release-example",
    role="DevOps",
    team="main",
    model_config=model("Ship the version you are told: list the commits, tag it, deploy it.", SCRIPT),
    skill_config={"app": app.name},
)

"""The entry point of the command line.

Commands over the API are most of what people type, and they must answer at once: the module of a command is imported
when the command runs, or when somebody asks for help.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

# httpx brings a command line of its own, and with it rich's and pygments' larger half. It does without, where that part
# cannot be imported.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]

from cortex_plane import __version__  # noqa: E402
from cortex_plane.cli.plane import guarded, importing  # noqa: E402

COMMANDS = {
    "up": "cortex_plane.main.commands.processes",
    "api": "cortex_plane.main.commands.processes",
    "worker": "cortex_plane.main.commands.processes",
    "me": "cortex_plane.cli.me",
    "enrol": "cortex_plane.cli.me",
    "usage": "cortex_plane.cli.usage",
}
"""Single commands, and the module whose ``app`` has them."""
NOUNS = {
    "org": "cortex_plane.cli.orgs",
    "team": "cortex_plane.cli.teams",
    "member": "cortex_plane.cli.members",
    "user": "cortex_plane.cli.users",
    "absence": "cortex_plane.cli.absences",
    "key": "cortex_plane.cli.keys",
    "model-key": "cortex_plane.cli.model_keys",
    "connection": "cortex_plane.cli.connections",
    "agent": "cortex_plane.cli.agents",
    "session": "cortex_plane.cli.sessions",
    "call": "cortex_plane.cli.calls",
    "job": "cortex_plane.cli.jobs",
    "signal": "cortex_plane.cli.signals",
    "approval": "cortex_plane.cli.proofs",
    "standing": "cortex_plane.cli.standing_approvals",
    "delivery": "cortex_plane.cli.deliveries",
    "policy": "cortex_plane.cli.policies",
    "atlas": "cortex_plane.cli.atlases",
    "tool": "cortex_plane.cli.tools",
    "workers": "cortex_plane.cli.workers",
    "audit": "cortex_plane.main.commands.audit",
    "db": "cortex_plane.main.commands.database",
    "doctor": "cortex_plane.main.commands.doctor",
    "demo": "cortex_plane.main.demo_commands",
}
"""Groups of commands, and the module whose ``app`` is the group. `approval` is complete once `proofs` is imported."""


class Commands(TyperGroup):
    """Imports the module of a command when the command is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 -- typer's signature
        return [*COMMANDS, *NOUNS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in COMMANDS:
            return _load(COMMANDS[cmd_name]).get_command(ctx, cmd_name)
        if cmd_name in NOUNS and cmd_name not in self.commands:
            group = _load(NOUNS[cmd_name])
            group.name = cmd_name
            self.add_command(group, cmd_name)
        return super().get_command(ctx, cmd_name)


def _load(module: str) -> TyperGroup:
    if module in sys.modules:
        return get_group(sys.modules[module].app)
    with importing():
        return get_group(import_module(module).app)


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Agents that never lose their place and never act without permission.",
)


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


@guarded
def main() -> None:
    app()

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
    "up": "cortex_plane.main.commands:process_app",
    "api": "cortex_plane.main.commands:process_app",
    "worker": "cortex_plane.main.commands:process_app",
    "mcp": "cortex_plane.main.mcp_command:mcp_app",
    "resume": "cortex_plane.cli.resumer:resume_app",
    "me": "cortex_plane.cli.members:self_app",
    "enrol": "cortex_plane.cli.members:self_app",
    "usage": "cortex_plane.cli.jobs:usage_app",
}
"""Single commands, and the module and application that has them."""
NOUNS = {
    "org": "cortex_plane.cli.tenancy:org_app",
    "team": "cortex_plane.cli.tenancy:team_app",
    "member": "cortex_plane.cli.members:member_app",
    "user": "cortex_plane.cli.members:user_app",
    "absence": "cortex_plane.cli.members:absence_app",
    "key": "cortex_plane.cli.tenancy:key_app",
    "model-key": "cortex_plane.cli.tenancy:model_key_app",
    "connection": "cortex_plane.cli.tenancy:connection_app",
    "agent": "cortex_plane.cli.agents:agent_app",
    "session": "cortex_plane.cli.sessions:session_app",
    "call": "cortex_plane.cli.sessions:call_app",
    "hook": "cortex_plane.cli.hooks:hook_app",
    "job": "cortex_plane.cli.jobs:job_app",
    "signal": "cortex_plane.cli.jobs:signal_app",
    "approval": "cortex_plane.cli.proof:approval_app",
    "standing": "cortex_plane.cli.approvals:standing_app",
    "delivery": "cortex_plane.cli.tenancy:delivery_app",
    "policy": "cortex_plane.cli.policies:policy_app",
    "atlas": "cortex_plane.cli.atlases:atlas_app",
    "tool": "cortex_plane.cli.agents:tool_app",
    "workers": "cortex_plane.cli.jobs:workers_app",
    "platform": "cortex_plane.cli.policies:platform_app",
    "audit": "cortex_plane.main.commands:audit_app",
    "db": "cortex_plane.main.commands:db_app",
    "doctor": "cortex_plane.main.commands:doctor_app",
    "demo": "cortex_plane.main.commands:demo_app",
}
"""Groups of commands, and the module and application of each. `approval` is complete once `cli.proof` is imported, `audit` once
`main.commands` is."""


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


def _load(place: str) -> TyperGroup:
    module, _, application = place.partition(":")
    if module not in sys.modules:
        with importing():
            import_module(module)
    return get_group(getattr(sys.modules[module], application))


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Agents that never lose their place and never act without permission.",
)


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


@guarded
def main() -> None:
    app()

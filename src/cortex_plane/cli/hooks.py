"""`cortex hook`: what coding agents run before and after their tools, and the settings that make them run it."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import orjson
import typer
from typer import Argument, Option

from cortex_plane.calls.model import MAX_HOOK_BYTES, MAX_WAIT, Dialect
from cortex_plane.calls.routes import ANSWER_HOOK
from cortex_plane.calls.rules.hooks import ANSWER_HEADER, FORMS, PROCESS_HEADER, HookPhase, is_answer, phase_of
from cortex_plane.cli.plane import harmless, run
from cortex_plane.cli.terminal import print_line
from cortex_plane.client import Client
from cortex_plane.client.access import plane_home, private_file, read_access
from cortex_plane.kernel.errors import CortexError, InvalidInput, NotFound, Unavailable
from cortex_plane.policies.model.versions import PolicyFile

hook_app = typer.Typer(help="Hooks of coding agents: their tools ask the plane before they run.")

BLOCK, WARN = 2, 1
"""Exit codes: the tool does not run and the model reads stderr; or only a person does."""
MAX_STDIN_BYTES = 8 * MAX_HOOK_BYTES
ROUND_SECONDS = 20.0
"""How long one request is held."""
_AUTHORIZATION = "Bearer $CORTEX_KEY"
_SHELLS = frozenset({"sh", "bash", "dash", "ash", "ksh", "zsh", "fish"})
TOO_LATE = "The plane's answer cannot be read, so nothing runs. Are its address and its version right?"


class CodingAgent(StrEnum):
    """Coding agents as people type them."""

    CLAUDE = "claude"
    CODEX = "codex"
    GEMINI = "gemini"

    @property
    def dialect(self) -> Dialect:
        return Dialect[self.name]


_FILES = {
    CodingAgent.CLAUDE: Path(".claude/settings.json"),
    CodingAgent.CODEX: Path(".codex/hooks.json"),
    CodingAgent.GEMINI: Path(".gemini/settings.json"),
}
Coding = Annotated[CodingAgent, Argument(help="The coding agent.")]
AgentOption = Annotated[
    str | None, Option(help="The agent of the plane whose calls these are; by default named like it.")
]
ProjectOption = Annotated[Path, Option("--project", help="The folder whose settings change.")]
UserOption = Annotated[bool, Option("--user", help="Change the settings of your home directory instead.")]


@hook_app.callback(invoke_without_command=True)
def answer_event(
    context: typer.Context,
    dialect: Annotated[CodingAgent | None, Option(help="Whose event stands on stdin, as JSON.")] = None,
    agent: AgentOption = None,
    wait: Annotated[float, Option(min=0, max=86_400, help="Seconds to hold a call that waits for a person.")] = 0,
    url: Annotated[str | None, Option(help="Address of the plane, as `install` wrote it; no other one is asked.")] = None,
    home: Annotated[
        Path | None, Option(help="Directory of the plane whose key is sent, to its own address alone. Without it CORTEX_KEY is sent.")
    ] = None,
) -> None:  # fmt: skip
    """Ask the plane about one event of a coding agent. Exit code 2, with the reason on stderr, blocks the tool."""
    if context.invoked_subcommand is not None:
        return
    if dialect is None:
        raise typer.BadParameter("Say whose event it is: --dialect claude, codex or gemini.")
    code = BLOCK
    try:
        content = sys.stdin.buffer.read(MAX_STDIN_BYTES)
        event = _event_name(content)
        if phase_of(dialect.dialect, event) is not HookPhase.BEFORE:
            code = WARN  # the tool ran: its result is not hidden from the model
            content = _shorten_result(content)
        if len(content) > MAX_HOOK_BYTES:
            raise InvalidInput(
                f"The event has more than {MAX_HOOK_BYTES} bytes.", hint="Split the call into smaller ones."
            )
        answer = run(
            lambda plane: _ask(plane, dialect.dialect, content, agent, wait), find=lambda: _plane_of_hook(url, home)
        )
        if not is_answer(dialect.dialect, event, answer):
            raise _unreadable()
        sys.stdout.write(orjson.dumps(answer).decode() + "\n")
        sys.stdout.flush()
    except CortexError as error:
        _end(f"{error.message} {error.hint}".strip(), code)
    except (Exception, KeyboardInterrupt) as error:
        _end(f"{TOO_LATE} ({type(error).__name__})", code)


def _unreadable() -> CortexError:
    return CortexError(TOO_LATE, code="unreadable_answer")


def _end(reason: str, code: int) -> None:
    sys.stderr.write(f"Cortex Plane: {harmless(reason)}\n")
    raise typer.Exit(code)


def _event_name(content: bytes) -> str:
    try:
        payload = orjson.loads(content)
    except ValueError:
        raise InvalidInput(
            "stdin is not JSON.", hint="Coding agents run this command with an event on stdin."
        ) from None
    name = payload.get("hook_event_name") if isinstance(payload, dict) else None
    if not isinstance(name, str):
        raise InvalidInput("The event on stdin has no `hook_event_name`.", hint="Pass on the event unchanged.")
    return name


def _shorten_result(content: bytes) -> bytes:
    """The event of a tool that ran. A large result is not kept, and that it ran is recorded all the same."""
    if len(content) <= MAX_HOOK_BYTES:
        return content
    payload = orjson.loads(content)
    result = payload.get("tool_response")
    short: dict[str, Any] = {"unstorable": f"The event has {len(content)} bytes."}
    # That it failed is told here by some coding agents.
    if isinstance(result, dict) and isinstance(result.get("error"), str):
        short["error"] = result["error"][:4000]
    return orjson.dumps(payload | {"tool_response": short})


def _plane_of_hook(url: str | None, home: Path | None) -> Client:
    """The plane that `install` wrote down. The folder of the coding agent says nothing about it: whoever writes a file there would answer
    instead, and get the key."""
    if url is None:
        raise InvalidInput(
            "The hook does not name its plane.", hint="Run `cortex hook install` again; it writes --url."
        )
    if home is None:
        key = os.environ.get("CORTEX_KEY")
    else:
        access = read_access(home)
        key = access.get("key") if access.get("url") == url else None
    if not key:
        raise Unavailable(
            f"There is no key for the plane at {url}.",
            hint="Set CORTEX_KEY, and run `cortex hook install` again, which writes where the key is.",
        )
    return Client(url, key, org=os.environ.get("CORTEX_ORG"))


async def _ask(plane: Client, dialect: Dialect, content: bytes, agent: str | None, wait: float) -> Any:
    """The answer; as long as the call waits for a person, asked again until ``wait`` is over."""
    headers = {"Cortex-Entrypoint": os.environ.get("CLAUDE_CODE_ENTRYPOINT", ""), PROCESS_HEADER: _process_name()}
    ends = time.monotonic() + wait
    while True:
        rest = max(0.0, min(ends - time.monotonic(), ROUND_SECONDS))
        answer = await plane.transport.send_bytes(
            ANSWER_HOOK, dialect, content=content, query={"agent": agent, "wait": rest or None}, headers=headers
        )
        if answer.headers.get(ANSWER_HEADER) != dialect.value:
            raise _unreadable()
        decision = orjson.loads(answer.content)
        if rest <= 0 or _is_deferred(decision) or "Cortex-Pending" not in answer.headers:
            return decision


def _is_deferred(decision: Any) -> bool:
    output = decision.get("hookSpecificOutput") if isinstance(decision, dict) else None
    return isinstance(output, dict) and output.get("permissionDecision") == "defer"


def _process_name() -> str:
    """The coding agent's process: the nearest one above this that is no shell. Its start time is part of the name, because ids are used
    again. Where the system has no `/proc`, it is the parent alone: a shell that starts for each event then makes the plane ask more often."""
    pid, start = os.getppid(), ""
    try:
        parent, start, program = _read_process(pid)
        while program in _SHELLS and parent > 1:
            pid = parent
            parent, start, program = _read_process(pid)
    except (OSError, ValueError, IndexError):
        pass
    return hashlib.sha256(f"{platform.node()} {pid} {start}".encode()).hexdigest()[:32]


def _read_process(pid: int) -> tuple[int, str, str]:
    """The parent of a process, when it started, and the name of its program."""
    head, _, tail = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")
    fields = tail.split()
    return int(fields[1]), fields[19], head.partition("(")[2]


@hook_app.command("install")
def install_hooks(
    name: Coding,
    project: ProjectOption = Path(),
    user: UserOption = False,
    command: Annotated[
        bool, Option("--command/--http", help="Run `cortex hook` for each event, or send it to the plane directly (Claude Code alone).")
    ] = False,
    agent: AgentOption = None,
    wait: Annotated[
        int, Option(min=0, max=3600, help="Seconds to hold a call that waits for a person, where it cannot be deferred; with --http at most 60.")
    ] = 50,
    policy: Annotated[bool, Option("--policy", help="Also apply the starter policy, after the policies in force.")] = False,
) -> None:  # fmt: skip
    """Write the hooks into the settings of a coding agent, beside those that it has. Again, they are replaced."""
    is_command = command or name is not CodingAgent.CLAUDE
    if not is_command and wait > MAX_WAIT:
        raise InvalidInput(
            "The plane holds a request for at most 60 seconds.", hint="Use --command for a longer --wait."
        )
    path = _settings_path(name, project, user)
    within = None if user else project
    run(lambda plane: _write_hooks(plane, name, path, within, agent, wait, is_command=is_command, with_policy=policy))
    where = " --user" if user else "" if project == Path() else f" --project {project}"
    print_line(f"undo it with: cortex hook uninstall {name}{where}")


async def _write_hooks(
    plane: Client, name: CodingAgent, path: Path, within: Path | None, agent: str | None, wait: int,
    *, is_command: bool, with_policy: bool,
) -> None:  # fmt: skip
    hook = _command_hook(name, plane.url, agent, wait) if is_command else _http_hook(plane.url, agent, wait)
    entries = {}
    for event, phase in FORMS[name.dialect].phases.items():
        # A result that is not recorded is no reason to stop: the tool ran.
        closing = {"onFailure": "block"} if name is CodingAgent.CLAUDE and phase is HookPhase.BEFORE else {}
        entries[event] = {"matcher": ".*" if name is CodingAgent.GEMINI else "*", "hooks": [hook | closing]}
    _change_settings(path, entries, within=within)
    print_line(f"wrote {', '.join(entries)} to {path}: events go to {plane.url}")
    if not is_command:
        print_line("Claude Code reads the key from CORTEX_KEY in its environment; without it no tool runs")
    if name is not CodingAgent.CLAUDE:
        print_line("it runs tools all the same where `cortex` is not installed, or is slower than its timeout")
    if name is CodingAgent.CODEX:
        print_line("Codex runs a new hook only after you trusted it: type /hooks there")
    if with_policy:
        await _apply_starter_policy(plane, name)
    slug = agent or name.dialect.value
    try:
        await plane.agents.get(slug)
    except NotFound:
        print_line(f"the plane has no agent `{slug}` yet: cortex agent create {slug} --model none")


async def _apply_starter_policy(plane: Client, name: CodingAgent) -> None:
    """Its policies come after those of the org, which decide first; one whose name the org has already is left as it is."""
    # They need a reader of YAML, which no other command of the client does.
    from cortex_plane.kernel.documents import load_document, write_document
    from cortex_plane.policies.files import write

    current = await plane.policies.get()
    own = [placed for placed in current.rows if placed.team is None]
    if current.total > len(current.rows):
        raise InvalidInput(
            f"The org has {current.total} policies, too many to place others after them.",
            hint=f"Print the starter policy with `cortex hook policy {name.value}`, and apply it where it belongs.",
        )
    starter = load_document(_starter_path(name).read_text())["policies"]
    names = {placed.row.name for placed in own}
    new_rows = [row for row in starter if row["name"] not in names]
    for row in starter:
        if row["name"] in names:
            print_line(f"left the policy {row['name']} as it is")
    if not new_rows:
        print_line("the org has all of the starter policy")
        return
    # A merged file places a new policy after the one before it.
    last = load_document(write(own[-1:]))["policies"]
    file = PolicyFile(
        text=write_document({"policies": [*last, *new_rows]}), merge=True, expected_version=current.version,
        note=f"starter policy of {name.dialect}",
    )  # fmt: skip
    applied = await plane.policies.apply(file)
    waits = "; it waits for approval" if applied.waits is not None else ""
    place = f" after {own[-1].row.name}" if own else ""
    print_line(f"added the policies {', '.join(row['name'] for row in new_rows)}{place}")
    print_line(f"applied the starter policy: version {applied.version}{waits}")


def _starter_path(name: CodingAgent) -> Path:
    return Path(__file__).parent / "starter_policies" / f"{name.dialect}.yaml"


@hook_app.command("uninstall")
def uninstall_hooks(name: Coding, project: ProjectOption = Path(), user: UserOption = False) -> None:
    """Remove the plane's hooks from the settings of a coding agent. Others stay."""
    path = _settings_path(name, project, user)
    _change_settings(path, {}, within=None if user else project)
    print_line(f"removed the plane's hooks from {path}")


@hook_app.command("policy")
def print_policy(name: Coding) -> None:
    """Print the starter policy of a coding agent, to change it and apply it with `cortex policy apply --merge`."""
    sys.stdout.write(_starter_path(name).read_text())


def _settings_path(name: CodingAgent, project: Path, user: bool) -> Path:
    return (Path.home() if user else project.absolute()) / _FILES[name]


def _http_hook(url: str, agent: str | None, wait: int) -> dict[str, Any]:
    query = {"agent": agent} if agent else {}
    query |= {"wait": str(wait)} if wait else {}
    address = url.rstrip("/") + ANSWER_HOOK.path_to(Dialect.CLAUDE)
    return {
        "type": "http", "url": f"{address}?{urlencode(query)}" if query else address,
        "headers": {"Authorization": _AUTHORIZATION, "Cortex-Entrypoint": "$CLAUDE_CODE_ENTRYPOINT"},
        "allowedEnvVars": ["CORTEX_KEY", "CLAUDE_CODE_ENTRYPOINT"], "timeout": wait + 30,
    }  # fmt: skip


def _command_hook(name: CodingAgent, url: str, agent: str | None, wait: int) -> dict[str, Any]:
    words = ["cortex hook --dialect", name.value, *(["--agent", agent] if agent else []), "--wait", str(wait)]
    words += ["--url", shlex.quote(url)]
    if not os.environ.get("CORTEX_KEY"):
        words += ["--home", shlex.quote(str(plane_home().absolute()))]
    seconds = wait + 30
    return {
        "type": "command",
        "command": " ".join(words),
        "timeout": seconds * 1000 if name is CodingAgent.GEMINI else seconds,
    }


def _is_ours(hook: Any) -> bool:
    if not isinstance(hook, dict):
        return False
    if hook.get("type") != "http":
        return str(hook.get("command", "")).startswith("cortex hook --dialect ")
    # A guard of another vendor may have the same path.
    headers = hook.get("headers")
    has_our_key = isinstance(headers, dict) and headers.get("Authorization") == _AUTHORIZATION
    return has_our_key and str(hook.get("url", "")).partition("?")[0].endswith(ANSWER_HOOK.path_to(Dialect.CLAUDE))


def _change_settings(path: Path, entries: Mapping[str, Any], *, within: Path | None) -> None:
    """The plane's hooks in a settings file become these; everything else stays as it is. ``within``: where the file may be."""
    target = path.resolve()
    if within is not None and not target.is_relative_to(within.resolve()):
        # A repository may bring links of its own.
        raise InvalidInput(
            f"{path} is a link to {target}, outside of the project.", hint="Replace it by a file; nothing was changed."
        )
    settings = _read_settings(path)
    hooks = settings.get("hooks", {})
    if not isinstance(hooks, dict) or not all(isinstance(groups, list) for groups in hooks.values()):
        raise InvalidInput(
            f"`hooks` in {path} is not an object of lists.", hint="Correct the file; nothing was changed."
        )
    changed: dict[str, Any] = {}
    for event in dict.fromkeys([*hooks, *entries]):
        groups = [group for group in map(_without_ours, hooks.get(event, [])) if group is not None]
        if event in entries:
            groups.append(entries[event])
        if groups:
            changed[event] = groups
    if changed:
        settings["hooks"] = changed
    else:
        settings.pop("hooks", None)
    if not settings and not path.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    mode = target.stat().st_mode & 0o777 if target.exists() else 0o644
    draft = target.with_name(target.name + ".new")
    with private_file(draft) as file:
        file.write(json.dumps(settings, indent=2, ensure_ascii=False) + "\n")
    draft.chmod(mode)
    draft.replace(target)


def _without_ours(group: Any) -> Any:
    """A group of hooks without the plane's; None where there are no others."""
    if not isinstance(group, dict) or not isinstance(group.get("hooks"), list):
        return group
    others = [hook for hook in group["hooks"] if not _is_ours(hook)]
    return group if len(others) == len(group["hooks"]) else {**group, "hooks": others} if others else None


def _read_settings(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        settings = json.loads(path.read_text())
    except ValueError:
        settings = None
    if not isinstance(settings, dict):
        raise InvalidInput(f"{path} is not a JSON object.", hint="Correct the file; nothing was changed.")
    return settings

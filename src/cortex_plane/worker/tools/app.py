"""The app: the tools that one code base offers to its agents, and how ``package.module:app`` is loaded."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, TypeVar, overload

from pydantic import ValidationError

from cortex_plane.agents.model.agents import is_agent_name
from cortex_plane.agents.model.completions import provider_name
from cortex_plane.agents.model.tools import InvalidApp, OnUncertain, ToolVersion
from cortex_plane.gates.model.gates import OF_THE_PLANE
from cortex_plane.kernel.canonical import check_text
from cortex_plane.kernel.errors import InvalidInput, SetupError
from cortex_plane.kernel.fields import Risk, Slug, adapter
from cortex_plane.mcp_client.servers import McpServer, Secret, declare_server
from cortex_plane.worker.tools.tool import Tool

F = TypeVar("F", bound=Callable[..., Any])
_OF_THE_PLANE = frozenset(map(provider_name, OF_THE_PLANE))


class App:
    """Workers load it by its place in the code (``package.module:app``), jobs ask for it by its name."""

    def __init__(self, name: str, *, instructions: str | None = None) -> None:
        try:
            self.name: str = adapter(Slug).validate_python(name, strict=True)
        except ValidationError as error:
            raise InvalidApp(
                f"{name!r} cannot be the name of an app: {error.errors()[0]['msg']}.",
                hint="Use 2 to 100 lower-case letters, digits and `-`, such as `release-notes`.",
            ) from None
        try:
            self.instructions = None if instructions is None else check_text(instructions, "instructions")
        except InvalidInput as error:
            raise InvalidApp(f"The app cannot have these instructions: {error.message}") from None
        self._tools: dict[str, Tool] = {}
        self.tools: Mapping[str, Tool] = MappingProxyType(self._tools)
        self._by_provider_name: dict[str, Tool] = {}
        self._agents: dict[str, Callable[..., Any]] = {}
        self.agents: Mapping[str, Callable[..., Any]] = MappingProxyType(self._agents)
        """The agents that are written as code, by the name that `skill_config.run` gives."""
        self._triggers: dict[str, Callable[..., Any]] = {}
        self.triggers: Mapping[str, Callable[..., Any]] = MappingProxyType(self._triggers)
        """What gates ask whether they fire, by the `trigger_id` that an atlas gives."""
        self._validators: dict[str, Callable[..., Any]] = {}
        self.validators: Mapping[str, Callable[..., Any]] = MappingProxyType(self._validators)
        """What gates ask about answers, by the `custom_validator` that an atlas gives."""
        self._servers: dict[str, McpServer] = {}
        self.mcp_servers: Mapping[str, McpServer] = MappingProxyType(self._servers)
        self._from_servers: dict[str, dict[str, Tool]] = {}
        self.revision = 0
        """Grows whenever the tools are others than before."""

    def __repr__(self) -> str:
        return f"App({self.name!r}, tools={list(self._tools)})"

    @property
    def own_tools(self) -> list[Tool]:
        """Those that its code declares: all but the tools of its MCP servers."""
        others = {name for tools in self._from_servers.values() for name in tools}
        return [tool for name, tool in self._tools.items() if name not in others]

    @property
    def versions(self) -> list[ToolVersion]:
        """What a worker publishes of the tools."""
        return [tool.version(self.name) for tool in self._tools.values()]

    @overload
    def tool(self, function: F, /) -> F: ...

    @overload
    def tool(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        description: str | None = None,
        read_only: bool = False,
        risk: Risk | str | None = None,
        timeout: float = 30.0,
        on_uncertain: OnUncertain | str | None = None,
        probe: Callable[..., Any] | None = None,
    ) -> Callable[[F], F]: ...

    def tool(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Offer a function to agents; it stays an ordinary function for everyone else.

        ``description`` is the docstring unless given. A tool that is not ``read_only`` changes the world: policy
        may ask for an approval, and if nobody knows whether a call took effect, it is settled as ``on_uncertain``
        says (``ask_human`` unless given). ``timeout`` is in seconds.
        """

        def offer(function: Callable[..., Any]) -> Callable[..., Any]:
            self._add(Tool(function, **options))
            return function

        if function is None:
            return offer
        if isinstance(function, str):
            raise InvalidApp(
                f"`@app.tool({function!r})` names no function.", hint=f"Write `@app.tool(name={function!r})`."
            )
        return offer(function)

    @overload
    def agent(self, function: F, /) -> F: ...

    @overload
    def agent(self, name: str | None = None, /) -> Callable[[F], F]: ...

    def agent(self, function: Callable[..., Any] | str | None = None, /) -> Any:
        """Make an ``async def run(ctx: Context)`` an agent, under its own name or another one."""
        return self._add_agent(None, function) if callable(function) else functools.partial(self._add_agent, function)

    def _add_agent(self, alias: str | None, function: F) -> F:
        name = getattr(function, "__name__", "") if alias is None else alias
        if not isinstance(name, str) or not is_agent_name(name):
            raise InvalidApp(
                f"`{str(name)[:100]}` cannot be the name of an agent.",
                hint="Use at most 100 letters, digits, `_`, `.` and `-`, beginning with a letter.",
            )
        if not inspect.iscoroutinefunction(function):
            raise InvalidApp(f"The agent `{name}` is not an `async def`.", hint="Write `async def run(ctx: Context)`.")
        parameters = list(inspect.signature(function).parameters.values())
        extra = [p for p in parameters[1:] if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        if not parameters or extra or parameters[0].kind in (parameters[0].KEYWORD_ONLY, parameters[0].VAR_KEYWORD):
            raise InvalidApp(f"The agent `{name}` must take one argument.", hint="Write `async def run(ctx: Context)`.")
        if name in self._agents:
            raise InvalidApp(
                f"The app `{self.name}` already has an agent called `{name}`.", hint="Name one of them anew."
            )
        self._agents[name] = function
        return function

    def trigger(self, name: str, /) -> Callable[[F], F]:
        """Make ``fn(text, params) -> bool`` a trigger of gates: ``text`` is what came in, ``params`` what the atlas says.

        It has 2 seconds. One that takes longer, raises or returns something else fires the gates that block."""
        return self._register_gate_code(self._triggers, "trigger", name, 2)

    def validator(self, name: str, /) -> Callable[[F], F]:
        """Make ``fn(answer) -> str | None`` a validator of answers: what is wrong with it, or None.

        It has 2 seconds. An answer that it could not look at is not accepted."""
        return self._register_gate_code(self._validators, "validator", name, 1)

    def _register_gate_code(
        self, registry: dict[str, Callable[..., Any]], what: str, name: str, count: int
    ) -> Callable[[F], F]:
        if not isinstance(name, str) or not is_agent_name(name):
            raise InvalidApp(
                f"{str(name)[:100]!r} cannot be the name of a {what}.",
                hint=f"Write `@app.{what}('sentiment-check')`: at most 100 letters, digits, `_`, `.` and `-`.",
            )
        if name in registry:
            raise InvalidApp(
                f"The app `{self.name}` already has a {what} called `{name}`.", hint="Name one of them anew."
            )

        def register(function: F) -> F:
            try:
                inspect.signature(function).bind(*range(count))
            except (TypeError, ValueError):
                takes = "what came in and its parameters" if count == 2 else "the answer"
                raise InvalidApp(
                    f"The {what} `{name}` must take {count} argument{'s' if count > 1 else ''}.",
                    hint=f"They are {takes}.",
                ) from None
            registry[name] = function
            return function

        return register

    def mcp_server(
        self,
        name: str,
        *,
        command: Sequence[str] | None = None,
        url: str | None = None,
        env: Mapping[str, str] | None = None,
        headers: Mapping[str, str | Secret] | None = None,
        secrets: Sequence[str] = (),
        timeout: float = 30.0,
        tools: Sequence[str] | None = None,
        risk: Risk | str | None = None,
        on_uncertain: OnUncertain | str = OnUncertain.ASK_HUMAN,
        cwd: str | os.PathLike[str] | None = None,
    ) -> None:
        """Offer the tools of an MCP server, as ``<name>.<tool>``. Workers start it; importing the app does not.

        ``command`` is run without a shell, and gets PATH, HOME, ``env`` and the variables of the worker's environment
        that ``secrets`` names. Each tool counts as having side effects until a steward confirms otherwise.
        """
        server = declare_server(
            name, command=command, url=url, env=env, headers=headers, secrets=secrets, timeout=timeout, tools=tools,
            risk=risk, on_uncertain=on_uncertain, cwd=cwd,
        )  # fmt: skip
        mine = provider_name(f"{server.name}.")
        if server.name == "plane":
            raise InvalidApp(
                f"`{server.name}` cannot be the name of an MCP server: such names are the plane's own.",
                hint="Give the server another name.",
            )
        names = {name: provider_name(f"{name}.") for name in self._servers}
        rivals = [name for name, other in names.items() if other.startswith(mine) or mine.startswith(other)]
        rivals += [tool.name for tool in self._tools.values() if tool.provider_name.startswith(mine)]
        if rivals:
            raise InvalidApp(
                f"The app `{self.name}` already has `{rivals[0]}`: models would not tell its tools from those of the "
                f"MCP server `{server.name}`.",
                hint="Give the server another name.",
            )
        self._servers[server.name] = server

    def offer(self, server: str, tools: Sequence[Tool]) -> None:
        """From now on these are the tools of that server, and no others."""
        for old in self._from_servers.get(server, {}).values():
            del self._tools[old.name], self._by_provider_name[old.provider_name]
        self._from_servers[server] = {}
        for tool in tools:
            if not _is_of_the_plane(tool) and tool.provider_name not in self._by_provider_name:
                self._tools[tool.name] = self._by_provider_name[tool.provider_name] = tool
                self._from_servers[server][tool.name] = tool
        self.revision += 1

    def _add(self, tool: Tool) -> None:
        if _is_of_the_plane(tool):
            raise InvalidApp(
                f"`{tool.name}` cannot be a tool of an app: such names are the plane's own.",
                hint="Give it another name with `name=`.",
            )
        server = next((s for s in self._servers if tool.provider_name.startswith(provider_name(f"{s}."))), None)
        if server is not None:
            raise InvalidApp(
                f"Models would not tell the tool `{tool.name}` from those of the MCP server `{server}`.",
                hint="Give it another name with `name=`.",
            )
        if (rival := self._by_provider_name.get(tool.provider_name)) is not None:
            same = rival.name == tool.name
            raise InvalidApp(
                f"The app `{self.name}` already has a tool called `{tool.name}`." if same else
                f"Models would not tell the tools `{rival.name}` and `{tool.name}` apart: to them both are "
                f"`{tool.provider_name}`.",
                hint="Give one of them another name with `name=`.",
            )  # fmt: skip
        self._tools[tool.name] = self._by_provider_name[tool.provider_name] = tool
        self.revision += 1


def _is_of_the_plane(tool: Tool) -> bool:
    """Gates do not look at such a tool, or models would take it for one."""
    return tool.name.startswith("plane.") or tool.provider_name in _OF_THE_PLANE


_OURS = str(Path(__file__).parent)


def load_app(reference: str) -> App:
    """Import it, from the current directory too. The author's code runs here, so every failure is told with its line."""
    module_name, _, attribute = reference.partition(":")
    if not (_is_dotted(module_name) and _is_dotted(attribute)):
        raise _not_loadable(
            reference,
            "it does not have the form `package.module:app`.",
            "Write the module as in `import`, without `.py`, then a colon and the name of the App in it.",
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module_name}.".startswith(f"{missing}."):
            raise _not_loadable(
                reference,
                f"there is no module `{missing}`.",
                f"Start from the directory that contains it (this is `{Path.cwd()}`), or install its package here.",
            ) from error
        raise _not_loadable(
            reference,
            f"importing `{module_name}` failed with {type(error).__name__}: {error}{_place(error)}",
            "Correct the module; `python -c 'import …'` shows the whole traceback.",
        ) from error
    value: Any = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise _not_loadable(reference, f"`{module.__name__}` has no `{attribute}`.", _hint(module))
        value = getattr(value, part)
    if not isinstance(value, App):
        raise _not_loadable(reference, f"it is a {type(value).__name__}, not an App.", _hint(module))
    return value


def _is_dotted(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _hint(module: ModuleType) -> str:
    if apps := [name for name, value in vars(module).items() if isinstance(value, App)]:
        return "The module has " + ", ".join(f"`{module.__name__}:{name}`" for name in apps) + "."
    return 'Write `app = App("…")` at the top level of the module.'


def _place(error: BaseException) -> str:
    """The innermost line that is neither the import machinery's nor ours: there the author can do something."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({error.filename}, line {error.lineno})"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((_OURS, "<frozen importlib")) and "importlib" not in Path(frame.filename).parts
    ]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""


def _not_loadable(reference: str, reason: str, hint: str) -> SetupError:
    return SetupError(f"The app `{reference}` cannot be loaded: {reason}", code="app_not_loadable", hint=hint)

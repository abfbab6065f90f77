"""The app: the tools that one code base offers to its agents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar, overload

from pydantic import ValidationError

from cortex_plane.domain.canonical import check_text
from cortex_plane.domain.errors import InvalidInput
from cortex_plane.domain.fields import Slug
from cortex_plane.domain.models import ToolSpec
from cortex_plane.domain.tools import InvalidApp, OnUncertain, Risk, ToolVersion
from cortex_plane.domain.values import adapter
from cortex_plane.runtime.tools.tool import Tool

F = TypeVar("F", bound=Callable[..., Any])


class App:
    """Workers load it by its place in the code (``package.module:app``), jobs ask for it by its name."""

    def __init__(self, name: str, *, instructions: str | None = None) -> None:
        self.name = _checked_name(name)
        self.instructions = _checked_instructions(instructions)
        self._tools: dict[str, Tool] = {}
        self._by_provider_name: dict[str, Tool] = {}

    def __repr__(self) -> str:
        return f"App({self.name!r}, tools={list(self._tools)})"

    @property
    def tools(self) -> Mapping[str, Tool]:
        return MappingProxyType(self._tools)

    @property
    def specs(self) -> list[ToolSpec]:
        """What a model is told of the tools."""
        return [tool.spec for tool in self._tools.values()]

    @property
    def versions(self) -> list[ToolVersion]:
        """What a worker publishes of the tools."""
        return [tool.version(self.name) for tool in self._tools.values()]

    def called(self, provider_name: str) -> Tool | None:
        """The tool that a model means by the name it was told."""
        return self._by_provider_name.get(provider_name)

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
        risk: Risk | str = Risk.MEDIUM,
        timeout: float = 30.0,
        on_uncertain: OnUncertain | str | None = None,
        probe: Callable[..., Any] | None = None,
    ) -> Callable[[F], F]: ...

    def tool(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        description: str | None = None,
        read_only: bool = False,
        risk: Risk | str = Risk.MEDIUM,
        timeout: float = 30.0,
        on_uncertain: OnUncertain | str | None = None,
        probe: Callable[..., Any] | None = None,
    ) -> Any:
        """Offer a function to agents; it stays an ordinary function for everyone else.

        ``description`` is the docstring unless given. A tool that is not ``read_only`` changes the world: policy
        may ask for an approval, and if nobody knows whether a call took effect, it is settled as ``on_uncertain``
        says (``ask_human`` unless given). ``timeout`` is in seconds.
        """

        def offer(function: Callable[..., Any]) -> Callable[..., Any]:
            made = Tool(
                function, name=name, description=description, read_only=read_only, risk=risk, timeout=timeout,
                on_uncertain=on_uncertain, probe=probe,
            )  # fmt: skip
            self._add(made)
            return function

        if function is None:
            return offer
        if isinstance(function, str):
            raise InvalidApp(
                f"`@app.tool({function!r})` names no function.", hint=f"Write `@app.tool(name={function!r})`."
            )
        return offer(function)

    def _add(self, tool: Tool) -> None:
        rival = self._by_provider_name.get(tool.provider_name)
        if rival is not None:
            same = rival.name == tool.name
            raise InvalidApp(
                f"The app `{self.name}` already has a tool called `{tool.name}`." if same else
                f"Models would not tell the tools `{rival.name}` and `{tool.name}` apart: to them both are "
                f"`{tool.provider_name}`.",
                hint="Give one of them another name with `name=`.",
            )  # fmt: skip
        self._tools[tool.name] = self._by_provider_name[tool.provider_name] = tool


def _checked_name(name: str) -> str:
    try:
        checked: str = adapter(Slug).validate_python(name, strict=True)
    except ValidationError as error:
        raise InvalidApp(
            f"{name!r} cannot be the name of an app: {error.errors()[0]['msg']}.",
            hint="Use 2 to 100 lower-case letters, digits and `-`, such as `release-notes`.",
        ) from None
    return checked


def _checked_instructions(instructions: str | None) -> str | None:
    try:
        return None if instructions is None else check_text(instructions, "instructions")
    except InvalidInput as error:
        raise InvalidApp(f"The app cannot have these instructions: {error.message}") from None

"""Names of tools in other frameworks, such as `Bash`, `mcp__gw__refund` or `createRefund`, as names that policies and approvals have."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping

from cortex_plane.agents.model.tools import MAX_NAME, is_tool_name
from cortex_plane.kernel.errors import InvalidInput

_MCP = "mcp__"
_MCP_NAMESPACE = "mcp"
_BETWEEN_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")
_NAMESPACES = re.compile(r"[./:]+")
_SUFFIX_LENGTH = 8


def plane_name(foreign: str, prefix: str | None = None) -> str:
    """The same name always gives the same one. ``prefix`` goes before a name without a namespace of its own: with `claude`, `Bash` is
    `claude.bash`. Tools of MCP servers have a namespace that no server can leave: `mcp__gw__refund` is `mcp.gw.refund`. What is too long, or has letters that names cannot have, ends with a part of its
    SHA-256."""
    if is_tool_name(foreign) and not foreign.startswith(_MCP) and ("." in foreign or prefix is None):
        return foreign
    server, separator, tool = foreign.removeprefix(_MCP).partition("__")
    is_mcp = foreign.startswith(_MCP) and bool(separator and server and tool)
    parts = [_MCP_NAMESPACE, server, tool] if is_mcp else _NAMESPACES.split(foreign)
    words = [word for part in parts if (word := _word(part))]
    if prefix is not None and len(words) < 2:
        words = [prefix, *words]
    name = ".".join(words)
    if is_tool_name(name) and foreign.isascii():
        return name
    digest = hashlib.sha256(foreign.encode("utf-8", "replace")).hexdigest()[:_SUFFIX_LENGTH]
    return f"{name[: MAX_NAME - _SUFFIX_LENGTH - 1].rstrip('._') or 'tool'}_{digest}"


def _word(part: str) -> str:
    word = _NOT_IN_NAMES.sub("_", _BETWEEN_WORDS.sub("_", part).lower()).strip("_")
    return f"tool_{word}" if word[:1].isdigit() else word


class ToolNames:
    """The names of one declaration, such as those of an adapter or of a session. No two tools share one."""

    def __init__(
        self, foreign: Iterable[str] = (), *, prefix: str | None = None, names: Mapping[str, str] | None = None
    ) -> None:
        """``names``: plane names that were chosen by hand."""
        self._prefix, self._chosen = prefix, dict(names or {})
        self._foreign: dict[str, str] = {}
        self._declared: set[str] = set()
        for name, chosen in self._chosen.items():
            if not is_tool_name(chosen):
                raise InvalidInput(
                    f"`{chosen[:100]}`, chosen for `{name[:100]}`, is not a name of a tool.",
                    hint="Give lower-case words with dots between, such as `refunds.create`, of at most 64 characters.",
                )
        self.declare([*self._chosen, *foreign])

    def declare(self, foreign: Iterable[str]) -> None:
        """Tools that the program has. Each gets its name also where a tool that is not declared used it before: that one is refused from
        now on."""
        for tool in foreign:
            self._declared.add(tool)
            self.plane_name(tool)

    def plane_name(self, foreign: str) -> str:
        """Raises where another tool has this name already."""
        name = self._chosen.get(foreign) or plane_name(foreign, self._prefix)
        first = self._foreign.setdefault(name, foreign)
        if first not in self._declared and foreign in self._declared:
            first = self._foreign[name] = foreign
        if first != foreign:
            raise InvalidInput(
                f"`{first[:100]}` and `{foreign[:100]}` would both be `{name}`: policies could not tell them apart.",
                code="tool_names_collide",
                hint="Rename one of them, or choose a name for it by hand.",
            )
        return name

"""The declaration of an MCP server, the environment that it is given, and the redaction of its secrets."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, urlsplit

from cortex_plane.agents.model.tools import MAX_TIMEOUT, MIN_TIMEOUT, InvalidApp, OnUncertain, is_number
from cortex_plane.kernel.addresses import Allowed
from cortex_plane.kernel.errors import SetupError
from cortex_plane.kernel.fields import UNDECLARED, Risk
from cortex_plane.kernel.schemas import Unusable, check

E = TypeVar("E", bound=StrEnum)

_NAME = re.compile(r"[a-z][a-z0-9_]{0,30}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
MIN_LITERAL = 8
"""Shorter parts of a header or an address are words, such as `true`."""
WITHOUT_PROBE = [choice for choice in OnUncertain if choice is not OnUncertain.PROBE]
_PASSED_ON = ("PATH", "HOME")
"""Nothing else of the worker's environment: its own secrets do not belong in a server."""


@dataclass(frozen=True, slots=True)
class Secret:
    """The name of a variable of the worker's environment, and what stands around its value: ``prefix`` as in ``Bearer``."""

    name: str
    prefix: str = ""


@dataclass(frozen=True, kw_only=True)
class McpServer:
    """One server of an app. Nothing runs before a worker does."""

    name: str
    command: tuple[str, ...] = ()
    url: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str | Secret] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    timeout_seconds: float = 30.0
    tools: frozenset[str] | None = None
    """Only these, as the server itself calls them; None: all."""
    risk: Risk = UNDECLARED
    declares_risk: bool = False
    on_uncertain: OnUncertain = OnUncertain.ASK_HUMAN
    cwd: str | None = None
    reach: Allowed | None = None
    """Only public addresses and what this lists; None: any, as whoever wrote the code decided."""

    @property
    def place(self) -> str:
        """Where it is, as people may see it."""
        if self.url is None:
            return Path(self.command[0]).name
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"

    @property
    def identity(self) -> dict[str, Any]:
        """What makes it this server and no other: an approval for one database is none for another."""
        return {"name": self.name, "command": list(self.command), "url": self.url}

    def secret_names(self) -> list[str]:
        in_headers = [header.name for header in self.headers.values() if isinstance(header, Secret)]
        return [*dict.fromkeys([*self.secrets, *in_headers])]

    def redaction(self) -> Redaction:
        """Raises ``SetupError`` that names the secret which is missing."""
        return Redaction([*(_value(self, name) for name in self.secret_names()), *self._literals()])

    def _literals(self) -> list[str]:
        """What was written into the code where a secret may stand: headers, and the query of an address."""
        parts = urlsplit(self.url or "")
        literals = [parts.query, parts.username or "", parts.password or ""]
        literals += [value for _, value in parse_qsl(parts.query)]
        for header in self.headers.values():
            if isinstance(header, str):
                literals += [header, *header.split()]
        return [literal for literal in dict.fromkeys(literals) if len(literal) >= MIN_LITERAL]

    def environment(self) -> dict[str, str]:
        variables = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        return variables | dict(self.env) | {name: _value(self, name) for name in self.secrets}

    def sent_headers(self) -> dict[str, str]:
        return {
            name: f"{header.prefix}{_value(self, header.name)}" if isinstance(header, Secret) else header
            for name, header in self.headers.items()
        }


def _value(server: McpServer, name: str) -> str:
    value = os.environ.get(name, "")
    if not value:
        raise SetupError(
            f"The MCP server `{server.name}` needs the secret `{name}`, which this worker's environment does not have.",
            code="missing_secret",
            hint=f"Set {name} in the environment of `cortex worker` (or `cortex up`), then start it again.",
        )
    if len(value) < MIN_SECRET or "\n" in value or "\0" in value:
        raise SetupError(
            f"The secret `{name}` of the MCP server `{server.name}` has fewer than {MIN_SECRET} characters, or a line"
            " break: it could not be kept out of logs.",
            code="missing_secret",
            hint=f"Set {name} to the real secret, without line breaks.",
        )
    return value


def declare_server(
    name: str,
    *,
    command: Sequence[str] | None,
    url: str | None,
    env: Mapping[str, str] | None,
    headers: Mapping[str, str | Secret] | None,
    secrets: Sequence[str],
    timeout: float,
    tools: Sequence[str] | None,
    risk: Risk | str | None,
    on_uncertain: OnUncertain | str,
    cwd: str | os.PathLike[str] | None,
) -> McpServer:
    """Whatever cannot work is refused here, where the author sees the line."""
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise InvalidApp(
            f"`{str(name)[:100]}` cannot be the name of an MCP server.",
            hint="Use at most 31 lower-case letters, digits and `_`, beginning with a letter: its tools are called"
            " `<server>.<tool>`.",
        )
    _check_place(name, command, url)
    if url is None and headers:
        raise _invalid(name, "headers are for servers with a `url`", "Give secrets of a command with `secrets=`.")
    if url is not None and (env or secrets or cwd):
        raise _invalid(
            name, "env, secrets and cwd are for servers with a `command`",
            'Send a secret as a header: `headers={"Authorization": Secret("TOKEN", prefix="Bearer ")}`.',
        )  # fmt: skip
    _check_names(name, env or {}, headers or {}, secrets)
    if not is_number(timeout, MIN_TIMEOUT, MAX_TIMEOUT):
        raise _invalid(name, f"`timeout={timeout!r}` is not possible", f"Give seconds up to {MAX_TIMEOUT:.0f}.")
    return McpServer(
        name=name,
        command=tuple(command or ()),
        url=url,
        env=dict(env or {}),
        headers=dict(headers or {}),
        secrets=tuple(secrets),
        timeout_seconds=float(timeout),
        tools=None if tools is None else frozenset(tools),
        risk=UNDECLARED if risk is None else _choice(name, "risk", risk, Risk, "unknown"),
        declares_risk=risk is not None,
        on_uncertain=_choice(name, "on_uncertain", on_uncertain, WITHOUT_PROBE, "not possible"),
        cwd=None if cwd is None else os.fspath(cwd),
    )


def _check_place(name: str, command: Sequence[str] | None, url: str | None) -> None:
    if (command is None) == (url is None):
        raise _invalid(name, "it needs either a `command` or a `url`", 'Such as `command=["mcp-server-time"]`.')
    if command is not None and (
        isinstance(command, str) or not command or not all(isinstance(part, str) for part in command)
    ):
        raise _invalid(
            name, "its command is not a list of texts", 'Write `command=["program", "argument"]`: no shell reads it.'
        )  # fmt: skip
    if command is not None and any("\0" in part for part in command):
        raise _invalid(name, "its command holds a NUL character", "Remove it.")
    if url is not None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise _invalid(name, f"{url[:200]!r} is not a web address", "Begin it with https://.")
        if parts.username or parts.password:
            raise _invalid(name, "its url holds a password", "Send it as a header with `Secret(…)`.")


def _check_names(
    name: str, env: Mapping[str, str], headers: Mapping[str, str | Secret], secrets: Sequence[str]
) -> None:
    if isinstance(secrets, str):
        raise _invalid(name, "`secrets` is one text", f"Write a list: `secrets=[{secrets!r}]`.")
    for variable in [*env, *secrets, *[header.name for header in headers.values() if isinstance(header, Secret)]]:
        if not isinstance(variable, str) or _VARIABLE.fullmatch(variable) is None:
            raise _invalid(
                name, f"{str(variable)[:100]!r} is not the name of an environment variable",
                "Name the variable, never its value: `secrets=[\"GITHUB_TOKEN\"]`.",
            )  # fmt: skip
    for key, value in [*env.items(), *headers.items()]:
        if not isinstance(value, str | Secret) or (isinstance(value, str) and any(c in value for c in "\0\r\n")):
            raise _invalid(name, f"the value of `{key[:100]}` is not plain text", "Give it without line breaks.")
    for key in headers:
        if _HEADER.fullmatch(key) is None:
            raise _invalid(name, f"`{key[:100]}` is not the name of a header", "Such as `Authorization`.")


def _choice(name: str, parameter: str, value: str, choices: Iterable[E], fault: str) -> E:
    for choice in choices:
        if choice == value:
            return choice
    raise _invalid(name, f"`{parameter}={value!r}` is {fault}", f"Use one of {', '.join(choices)}.")


def _invalid(name: str, what: str, hint: str) -> InvalidApp:
    return InvalidApp(f"The MCP server `{name}` is declared in a way that cannot work: {what}.", hint=hint)


MIN_SECRET = 4
REDACTED = "[redacted]"


class Redaction:
    """Secrets as they are, and as servers commonly write them: quoted for a URL, in JSON, in base64."""

    def __init__(self, secrets: Iterable[str]) -> None:
        forms: set[str] = set()
        for secret in secrets:
            raw = secret.encode("utf-8", "surrogateescape")
            forms |= {secret, quote(secret, safe=""), json.dumps(secret)[1:-1]}
            forms |= {base64.b64encode(raw).decode().rstrip("="), base64.urlsafe_b64encode(raw).decode().rstrip("=")}
        longest_first = sorted((form for form in forms if len(form) >= MIN_SECRET), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    @property
    def is_empty(self) -> bool:
        return self._pattern is None

    def text(self, text: str) -> str:
        return text if self._pattern is None else self._pattern.sub(REDACTED, text)


def map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """JSON with all its keys and texts changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [map_texts(item, change) for item in value]
    if isinstance(value, dict):
        return {change(str(key)): map_texts(item, change) for key, item in value.items()}
    return value


_OPEN = ("additionalProperties", "patternProperties", "unevaluatedProperties", "allOf", "anyOf", "oneOf", "$ref", "if")


def strict_schema(declaration: dict[str, Any]) -> dict[str, Any]:
    """What the server does not speak of is refused: a made-up argument would be shown to approvers as if it counted."""
    schema = {key: value for key, value in declaration.items() if key != "$id"}
    if schema.get("type", "object") != "object":
        raise Unusable("its arguments are no JSON object")
    schema["type"] = "object"
    if not any(key in schema for key in _OPEN):
        schema["additionalProperties"] = False
    check(schema)
    return schema

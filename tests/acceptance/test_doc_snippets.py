"""Every snippet of the docs is real: commands resolve, files load, code compiles, routes and links exist.

A block of a page is checked by its info word. `fragment` behind it (```yaml fragment) marks a block that is part of a file.
"""

from __future__ import annotations

import ast
import functools
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import pytest
from typer.main import get_command

from cortex_plane import Client
from cortex_plane.cli import resumer
from cortex_plane.client import client as client_module
from cortex_plane.gates.files import atlases, scenarios
from cortex_plane.http.routes import openapi_document
from cortex_plane.main.main import app
from cortex_plane.mcp_gateway import gateway_file as gateway_files
from cortex_plane.policies import files as policies

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
UNCHECKED = {
    "text",
    "mermaid",
    "http",
    "diff",
}  # the routes of http blocks are checked with those of the prose, diffs with examples
READERS: dict[str, Callable[[str], object]] = {
    "policies": policies.read,
    "atlas_version": atlases.read,
    "scenarios": scenarios.read,
}


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    info: list[str]
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for match in re.finditer(r"^( *)```([^\n]*)\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL):
        yield Block(page, text[: match.start()].count("\n") + 1, match[2].split(), match[3])


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def check_commands(block: Block) -> None:
    lines = block.text.replace("\\\n", " ").splitlines()
    if "console" in block.info:
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    for words in commands(lines):
        try:
            resolve(words)
        except Exception as error:
            raise AssertionError(f"{block}: cortex {shlex.join(words)}: {error}") from error


def commands(lines: list[str]) -> Iterator[list[str]]:
    """The words of each `cortex` command, without variables, redirections and the commands around it."""
    rest = iter(lines)
    for line in rest:
        heredoc = re.search(r"<<\s*'?(\w+)'?", line)
        if heredoc:
            check_yaml_file("\n".join(iter(functools.partial(next, rest), heredoc[1])))
            line = line[: heredoc.start()]
        while (words := split(line)) is None:
            line += "\n" + next(rest)
        for command in separated(words):
            while command and re.match(r"\w+=", command[0]):
                command = command[1:]
            if command and command[0].rpartition("/")[2] == "cortex":
                yield command[1:]


def split(line: str) -> list[str] | None:
    """Words and operators of a line, or nothing where a quote is still open."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>()")
    lexer.whitespace_split = True
    try:
        return list(lexer)
    except ValueError:
        return None


def separated(words: list[str]) -> Iterator[list[str]]:
    command: list[str] = []
    rest = iter(words)
    for word in rest:
        if word in ("<", ">", ">>"):
            next(rest)
        elif set(word) <= set("|&;()"):
            yield command
            command = []
        else:
            command.append(word)
    yield command


def resolve(words: list[str], *, whole: bool = True) -> None:
    """Follow the words through the application. Not ``whole``: the command or its arguments may be cut off."""
    command: Any = get_command(app)
    context: Any = command.context_class(command, info_name="cortex")
    _, rest, _ = command.make_parser(context).parse_args(list(words))
    while rest and hasattr(command, "get_command"):
        found = command.get_command(context, rest[0])
        assert found is not None, f"there is no command {rest[0]!r}"
        command, context = found, found.context_class(found, parent=context, info_name=rest[0])
        values, rest, _ = command.make_parser(context).parse_args(rest[1:])
    if hasattr(command, "get_command"):
        assert not whole or command.invoke_without_command or "--help" in words, "a command is missing"
        return
    assert not rest, f"too many arguments: {rest}"
    if whole and "--help" not in words:
        missing = [each.name for each in command.params if each.required and not values.get(each.name)]
        assert missing == [], f"arguments are missing: {missing}"
    for each in command.params:
        check_choice(each.type_descriptor.annotation, values.get(each.name))


def check_choice(kind: Any, given: Any) -> None:
    """A value of an option with choices is one of them, or a placeholder in capitals."""
    kind = next(iter(get_args(kind)), kind)
    if not (isinstance(kind, type) and issubclass(kind, Enum)):
        return
    known = [str(choice) for choice in kind]
    for value in given if isinstance(given, list) else [given]:
        placeholder = isinstance(value, str) and value.isupper() and not known[0].isupper()
        if isinstance(value, str) and not placeholder:
            assert value in known, f"{value} is not one of {known}"


def check_yaml_file(text: str) -> None:
    keys = set(re.findall(r"^(\w+):", text, re.MULTILINE))
    # A scenario file may name a policy file.
    readers = [READERS[key] for key in READERS if key in keys and ("scenarios" not in keys or key == "scenarios")]
    assert len(readers) == 1, f"neither policies, an atlas nor scenarios: {sorted(keys)}"
    readers[0](text)


def check_yaml(block: Block) -> None:
    if "fragment" not in block.info:
        check_yaml_file(block.text)


def check_js(block: Block) -> None:
    if (node := shutil.which("node")) is not None:
        done = subprocess.run([node, "--check", "-"], input=block.text, capture_output=True, text=True)
        assert done.returncode == 0, f"{block}: {done.stderr}"


GATEWAY = 'agent = "coder"\n[servers.files]\ncommand = ["mcp-server-time"]\n'


def check_toml(block: Block) -> None:
    """A whole file of the MCP gateway, or tables that are added to one."""
    text = block.text if "agent = " in block.text else GATEWAY + block.text
    if "command" in tomllib.loads(text):
        resumer.parse_resume_file(text, str(block), ROOT)
    else:
        gateway_files.parse_gateway_file(text, str(block))


def check_python(block: Block) -> None:
    tree = compile(block.text, str(block), "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cortex_plane"):
            module = import_module(node.module or "")
            names = [name.name for name in node.names if not hasattr(module, name.name)]
            assert [name for name in names if find_spec(f"{node.module}.{name}") is None] == []
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.name.startswith("cortex_plane"):
                    import_module(name.name)


def check_json(block: Block) -> None:
    if "fragment" not in block.info:
        json.loads(block.text)


CHECKS: dict[str, Callable[[Block], None]] = {
    "sh": check_commands,
    "console": check_commands,
    "yaml": check_yaml,
    "js": check_js,
    "toml": check_toml,
    "python": check_python,
    "json": check_json,
}


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_snippet(block: Block) -> None:
    word = block.info[0] if block.info else ""
    assert word in CHECKS or word in UNCHECKED, f"{block}: name the language of the block, or `text`"
    if word in CHECKS:
        CHECKS[word](block)


def test_few_blocks_are_fragments() -> None:
    assert len([block for block in BLOCKS if "fragment" in block.info]) <= 6


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_the_prose_exist(page: Path) -> None:
    for span in re.findall(r"`cortex ([^`]+)`", prose(page).replace("\n", " ")):
        words = shlex.split(span)
        if not set("<>[]|…*") & set(span) and not words[0].isupper():
            resolve(words, whole=False)


ROUTE = re.compile(r"\b(GET|POST|PUT|PATCH|DELETE) (/v1/[\w/{}-]*)")


@functools.cache
def known_routes() -> set[tuple[str, str]]:
    routes = {
        (method.upper(), re.sub(r"\{\w+\}", "{}", path))
        for path, operations in openapi_document()["paths"].items()
        for method in operations
    }
    # Not in the document: they take signatures instead of keys.
    return routes | {("POST", "/v1/webhooks/{}"), ("POST", "/v1/connections/{}/inbound")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_routes_exist(page: Path) -> None:
    named = {(method, re.sub(r"\{\w+\}", "{}", path)) for method, path in ROUTE.findall(page.read_text())}
    assert named - known_routes() == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_methods_of_the_client_exist(page: Path) -> None:
    for noun, method in re.findall(r"\bplane\.(\w+)\.(\w+)\(", page.read_text()):
        assert hasattr(noun_class(Client.__annotations__[noun]), method), f"plane.{noun}.{method}"


def noun_class(name: str) -> Any:
    """The class that a property of the client returns; the client imports it for type checkers alone."""
    source = ast.parse(Path(client_module.__file__).read_text())
    for node in ast.walk(source):
        if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
            return getattr(import_module(node.module or ""), name)
    raise AssertionError(name)

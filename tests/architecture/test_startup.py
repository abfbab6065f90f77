"""What is loaded before anything happens: counted in a process of its own, because seconds differ from machine to machine."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

import cortex_plane
from cortex_plane.main.main import COMMANDS, NOUNS

SOURCE = Path(cortex_plane.__file__).parent

SERVER = {"aiosmtplib", "asyncpg", "jinja2", "opentelemetry", "prometheus_client", "starlette", "uvicorn"}
WORKER = {"asyncpg", "structlog"}
MODELS = {"anthropic", "mcp", "mcp_types", "openai", "pydantic_ai", "cel", "httpx2"}
CLIENT = {"httpx", "httpcore", "orjson", "pydantic"}
TERMINAL = {"pygments", "rich", "typer"}
NOUN_CLIENTS = {f"cortex_plane.client.{noun}" for noun in ("agents", "approvals", "jobs", "sessions", "tenancy")}


def loaded(code: str, **environment: str) -> set[str]:
    """The modules that a process has loaded once it has run ``code``."""
    program = f"import sys\ntry:\n    exec({code!r})\nexcept SystemExit:\n    pass\nimport json\nprint(json.dumps([name for name, module in sys.modules.items() if module]))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def command(*words: str, **environment: str) -> set[str]:
    code = f"sys.argv = ['cortex', *{words!r}]\nfrom cortex_plane.main.main import main\nmain()"
    return loaded(code, **environment)


def packages(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def ours(modules: set[str]) -> set[str]:
    """Modules; packages hold nothing but their name."""
    names = {name for name in modules if name.startswith("cortex_plane")}
    return {name for name in names if not any(other.startswith(f"{name}.") for other in names)} or names


def test_import_loads_nothing_else() -> None:
    modules = loaded("import cortex_plane")
    assert packages(modules) & (SERVER | WORKER | MODELS | CLIENT | TERMINAL) == set()
    assert ours(modules) == {"cortex_plane"}
    assert len(modules) <= 100


def test_version_loads_no_client_and_no_server() -> None:
    modules = command("--version")
    assert packages(modules) & (SERVER | WORKER | MODELS | {"httpx", "orjson", "rich"}) == set()
    assert len(ours(modules)) <= 12


def test_a_command_over_the_api_loads_its_noun_alone() -> None:
    for arguments, clients in ((("job", "list"), set()), (("job", "show", str(uuid4())), {"cortex_plane.client.jobs"})):
        modules = command(*arguments, CORTEX_URL="http://127.0.0.1:9", CORTEX_KEY="nobody")
        assert packages(modules) & (SERVER | WORKER | MODELS | {"pygments"}) == set()
        assert {name for name in ours(modules) if name in NOUN_CLIENTS} == clients
        assert len(ours(modules)) <= 40


def test_the_client_loads_no_server_and_no_model() -> None:
    modules = loaded("from cortex_plane import Client; Client('http://127.0.0.1:9', None)")
    assert packages(modules) & (SERVER | WORKER | MODELS | {"typer"}) == set()
    assert len(ours(modules)) <= 15


def test_a_worker_loads_no_web_server() -> None:
    modules = loaded("import cortex_plane.main.worker_process")
    assert packages(modules) & ((SERVER | MODELS | {"httpx", "typer"}) - WORKER) == set()
    assert len(ours(modules)) <= 280


def test_every_public_name_is_where_the_types_say() -> None:
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    typed = {
        name.name: str(statement.module)
        for block in tree.body
        if isinstance(block, ast.If)
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for name in statement.names
    }
    assert typed == {name: f"cortex_plane.{module}" for name, module in cortex_plane._MODULES.items()}
    assert {*typed, "__version__"} == set(cortex_plane.__all__) <= set(dir(cortex_plane))
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = cortex_plane.Nonsense


@pytest.mark.parametrize("name", [*COMMANDS, *NOUNS])
def test_every_command_has_a_module_with_help(name: str) -> None:
    from typer.testing import CliRunner

    from cortex_plane.main.main import app

    shown = CliRunner().invoke(app, [name, "--help"])
    assert shown.exit_code == 0
    assert f"Usage: root {name}" in shown.stdout


def test_a_missing_package_names_its_extra() -> None:
    """As in an environment where only the client is installed: nothing finds the database's driver."""
    program = (
        "import sys\nsys.modules['structlog'] = None\nsys.argv = ['cortex', 'worker']\n"
        "from cortex_plane.main.main import main\nmain()"
    )
    nowhere = {**os.environ, "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/nowhere"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=nowhere)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "error missing_extra: The package structlog is not installed: run `pip install 'cortex-plane[worker]'`."
    ]

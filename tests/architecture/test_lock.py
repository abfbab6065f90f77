"""The lock pins what the constraints pin. Nothing is installed or looked up here."""

from __future__ import annotations

import re
import tomllib

from scripts.lock import CONSTRAINTS, LOCK, ROOT, build_requirements

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(text: str) -> dict[str, str]:
    return {plain(name): version for name, version in re.findall(r"^([\w.-]+)==([^\s;]+)", text, re.MULTILINE)}


def names(requirements: list[str]) -> set[str]:
    return {plain(re.split(r"[\[<>=~! ;]", requirement, maxsplit=1)[0]) for requirement in requirements}


def test_the_lock_has_the_versions_of_the_constraints() -> None:
    lock, constraints = pinned(LOCK.read_text()), pinned(CONSTRAINTS.read_text())
    assert {name: version for name, version in lock.items() if constraints.get(name, version) != version} == {}


def test_the_lock_has_all_that_is_required_and_what_builds_it() -> None:
    extras = PROJECT["optional-dependencies"]
    parts = ("server", "worker", "embedded", "slack", "discord", "grpc")
    assert extras["all"] == [f"cortex-plane[{','.join(parts)}]"]
    wanted = names(PROJECT["dependencies"] + [name for part in parts for name in extras[part]])
    assert (wanted | names(build_requirements())) - set(pinned(LOCK.read_text())) == set()


def test_every_package_has_hashes_and_no_host_is_named() -> None:
    text = LOCK.read_text()
    packages = re.split(r"^(?=[\w.-]+==)", text, flags=re.MULTILINE)[1:]
    assert [package.split()[0] for package in packages if "--hash=sha256:" not in package] == []
    assert re.findall(r"https?://|file:|--(?:extra-)?index|--find-links|--trusted-host| @ ", text) == []


def test_the_client_requires_no_server_and_no_model() -> None:
    others = {"asyncpg", "mcp", "pydantic-ai-slim", "starlette", "uvicorn"}
    assert names(PROJECT["dependencies"]) & others == set()

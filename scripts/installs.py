"""Installs the distribution into empty environments, as users do, and tries what they get.

    python -m scripts.installs client    `pip install .`: how much it brings, beside which frameworks, and a guarded function
    python -m scripts.installs wheel     wheel and sdist, and `cortex up` from the wheel outside of the repository

Run by `make resolve` and `make wheel`, with the environment of `make up`: the plane that the client talks to runs there.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
MOST_PACKAGES = 25
NOT_IN_THE_CLIENT = {*("anthropic", "asyncpg", "mcp", "openai", "pydantic-ai-slim", "starlette", "uvicorn")}
FRAMEWORKS = ("crewai", "semantic-kernel")
"""They need mcp<2, and we need mcp>=2: the client must do without it."""
POLICY = "policies: [{name: refunds, target: refunds.create, effect: allow}]\n"


class Environment:
    """An environment of its own, in a folder that is not the repository."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        venv.create(folder / "environment", with_pip=True)

    def program(self, name: str) -> str:
        return str(self.folder / "environment" / "bin" / name)

    def run(self, name: str, *words: str, expect: int = 0, variables: Mapping[str, str] | None = None) -> str:
        """What it says on both channels. Variables of this process that name a plane or a database do not reach it."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("CORTEX_", "DATABASE_"))}
        done = subprocess.run(
            [self.program(name), *words],
            cwd=self.folder,
            env=kept | dict(variables or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode != expect:
            raise SystemExit(f"{name} {' '.join(words)} ended with {done.returncode}:\n{done.stdout}")
        return done.stdout

    def packages(self) -> dict[str, str]:
        lines = self.run("pip", "list", "--format=json").splitlines()
        found = json.loads(next(line for line in lines if line.startswith("[")))
        return {each["name"].lower(): each["version"] for each in found if each["name"] not in ("pip", "setuptools")}


@contextlib.contextmanager
def plane(cortex: str, folder: Path) -> Iterator[dict[str, str]]:
    """`cortex up` in ``folder``; gives its address and a key."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("CORTEX_", "DATABASE_"))}
    folder.mkdir(mode=0o711, exist_ok=True)
    process = subprocess.Popen(
        [cortex, "up"],
        cwd=folder,
        env=kept | {"CORTEX_PORT": "0", "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        said = []
        for line in process.stdout:
            said.append(line)
            if "Ctrl-C" in line:
                break
        else:
            raise SystemExit("`cortex up` ended:\n" + "".join(said))
        access = json.loads((folder / ".cortex" / "access.json").read_text())
        yield {"CORTEX_URL": access["url"], "CORTEX_KEY": access["key"]}
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate()


def try_client(folder: Path) -> None:
    client = Environment(folder / "client")
    client.run("pip", "install", "--quiet", str(ROOT))
    packages = client.packages()
    print(f"pip install . brings {len(packages)} packages (at most {MOST_PACKAGES})")
    if len(packages) > MOST_PACKAGES or NOT_IN_THE_CLIENT & set(packages):
        raise SystemExit(f"that is too much: {', '.join(sorted(packages))}")

    for command, extra in {"worker": "worker", "api": "server", "up": "all"}.items():
        lines = client.run("cortex", command, expect=1).splitlines()
        if len(lines) != 1 or f"pip install 'cortex-plane[{extra}]'" not in lines[0]:
            raise SystemExit(f"cortex {command} does not say what it lacks:\n" + "\n".join(lines))
        print(f"cortex {command}: {lines[0]}")

    with plane(str(Path(sys.executable).parent / "cortex"), folder / "plane") as access:
        (client.folder / "policies.yaml").write_text(POLICY)
        client.run("cortex", "agent", "create", "support", "--model", "scripted", variables=access)
        client.run("cortex", "policy", "apply", "policies.yaml", "--yes", variables=access)
        text = (ROOT / "docs" / "guides" / "external-agents.md").read_text()
        example = re.search(r"```python\n(.*?)```", text, re.DOTALL)
        assert example is not None
        (client.folder / "guarded.py").write_text(example[1] + '\n\nrefund("A-17", 500)\n')
        client.run("python", "guarded.py", variables=access)
        calls = json.loads(client.run("cortex", "call", "list", "--json", variables=access))
        if [(call["tool"], call["status"]) for call in calls] != [("refunds.create", "completed")]:
            raise SystemExit(f"the guarded function left these calls: {calls}")
        print("the guarded function of docs/guides/external-agents.md ran against a plane elsewhere")

    for framework in FRAMEWORKS:
        client.run("pip", "install", "--quiet", "--dry-run", str(ROOT), framework)
        print(f"pip install . {framework} resolves")


def try_wheel(folder: Path) -> None:
    builder = Environment(folder / "builder")
    builder.run("pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt"), "hatchling")
    dist = ROOT / "dist"
    subprocess.run([builder.program("hatchling"), "build", "-d", str(dist), "--clean"], cwd=ROOT, check=True)
    (wheel,) = dist.glob("*.whl")
    (sdist,) = dist.glob("*.tar.gz")
    user = Environment(folder / "user")
    user.run("pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt"), f"{wheel}[all]")
    print(
        f"installed {wheel.name} ({wheel.stat().st_size // 1024} kB; {sdist.name}: {sdist.stat().st_size // 1024} kB)"
    )
    with plane(user.program("cortex"), folder / "user" / "plane") as access:
        print(user.run("cortex", "job", "list", variables=access), end="")
        user.run("cortex", "me", variables=access)
    print("cortex up works from the wheel")


PARTS: dict[str, Callable[[Path], None]] = {"client": try_client, "wheel": try_wheel}


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="cortex-install-") as folder:
        os.chmod(folder, 0o711)  # noqa: PTH101 -- root's PostgreSQL runs as somebody else, who must pass through
        PARTS[sys.argv[1]](Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())

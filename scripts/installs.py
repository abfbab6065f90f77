"""Installs the distribution into empty environments, as users do, and tries what they get.

    python -m scripts.installs client    `pip install .`: how much it brings, beside which frameworks, and a guarded function
    python -m scripts.installs frameworks [NAME]    each framework that has a page and no adapter: its page's example, in its own environment
    python -m scripts.installs wheel     wheel and sdist, and `cortex up` from the wheel outside of the repository

Run by `make resolve` and `make wheel`, with the environment of `make up`: the plane that the client talks to runs there.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
MOST_PACKAGES = 25
NOT_IN_THE_CLIENT = {*("anthropic", "asyncpg", "mcp", "openai", "pydantic-ai-slim", "starlette", "uvicorn")}
FRAMEWORKS = (
    *("crewai", "semantic-kernel", "langchain", "langgraph", "pydantic-ai", "openai-agents", "google-adk"),
    *("agent-framework-core", "claude-agent-sdk"),
)
"""Beside each of them the client resolves. Some need mcp<2, and we need mcp>=2: the client must do without it."""
POLICY = "policies: [{name: refunds, target: refunds.create, effect: allow}]\n"


REFUNDS = """
policies:
  - {name: small, target: refunds.create, effect: allow, when: args.cents <= 100}
  - {name: huge, target: refunds.create, effect: deny, when: args.cents > 100000}
  - {name: rest, target: refunds.create, effect: requires_approval}
"""
LOOPBACK_ONLY = """
import ipaddress, socket
def guard(function, address_of):
    def guarded(*args, **kwargs):
        host = address_of(args)
        try:
            is_here = host is None or host == "localhost" or ipaddress.ip_address(host).is_loopback
        except ValueError:
            is_here = False
        if not is_here:
            with open("reached.txt", "a") as file:
                file.write(f"{host}\\n")
            raise OSError(f"{host} is not on this machine")
        return function(*args, **kwargs)
    return guarded
def host_of(args):
    return args[1][0] if isinstance(args[1], tuple) else None
socket.socket.connect = guard(socket.socket.connect, host_of)
socket.socket.connect_ex = guard(socket.socket.connect_ex, host_of)
socket.getaddrinfo = guard(socket.getaddrinfo, lambda args: args[0])
"""
"""A `sitecustomize` that lets a process reach nothing beyond its machine, and notes what it tried."""
SILENT = {
    "CREWAI_DISABLE_TELEMETRY": "true", "CREWAI_DISABLE_TRACKING": "true", "CREWAI_TRACING_ENABLED": "false", "OTEL_SDK_DISABLED": "true",
    "AGNO_TELEMETRY": "false", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_OFFLINE": "1", "ANONYMIZED_TELEMETRY": "False",
}  # fmt: skip
"""Variables by which frameworks turn their telemetry off."""
DRIVE = """
import asyncio, json, sys
from page import *

{call}

for order, cents in json.loads(sys.argv[1]):
    try:
        print("answer", json.dumps(str(call(order, cents))))
    except Exception as error:
        while error.__cause__ is not None:
            error = error.__cause__
        print("answer", json.dumps(f"{{type(error).__name__}}: {{error}}"))
"""


@dataclass(frozen=True)
class GuardPage:
    """A page of docs/guides/ on a framework: its package, and how its own class calls the tool of the page's example."""

    package: str
    call: str


GUARD_PAGES = {
    "crewai": GuardPage("crewai", "def call(order, cents):\n    return refund.run(order=order, cents=cents)"),
    "agno": GuardPage(
        "agno",
        "from agno.tools.function import FunctionCall\n\n\ndef call(order, cents):\n"
        "    done = FunctionCall(function=refund, arguments={'order': order, 'cents': cents}).execute()\n"
        "    return done.result if done.status == 'success' else done.error",
    ),
    "smolagents": GuardPage("smolagents", "def call(order, cents):\n    return refund(order=order, cents=cents)"),
    "llamaindex": GuardPage(
        "llama-index-core",
        "def call(order, cents):\n    return asyncio.run(refund_tool.acall(order=order, cents=cents)).content",
    ),
    "semantic-kernel": GuardPage(
        "semantic-kernel",
        "from semantic_kernel import Kernel\n\nkernel = Kernel()\nplugin = kernel.add_plugin(Refunds(), 'refunds')\n\n\n"
        "def call(order, cents):\n    return asyncio.run(kernel.invoke(plugin['refund'], order=order, cents=cents))",
    ),
}


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


def try_frameworks(folder: Path) -> None:
    """One at a time: each is some hundred megabytes, and removed before the next one."""
    names = sys.argv[2:] or list(GUARD_PAGES)
    with plane(str(Path(sys.executable).parent / "cortex"), folder / "plane") as access:
        for name in names:
            environment = Environment(folder / name)
            try_page(environment, name, GUARD_PAGES[name], access)
            shutil.rmtree(environment.folder)


def try_page(environment: Environment, name: str, page: GuardPage, access: Mapping[str, str]) -> None:
    environment.run("pip", "install", "--quiet", str(ROOT), page.package)
    version = environment.packages()[page.package]
    text = (ROOT / "docs" / "guides" / f"{name}.md").read_text()
    example = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert example is not None
    agent = f"support-{name}"
    # An agent of its own: the keys of the example name the same orders.
    files = {
        "page.py": example[1].replace('agent="support"', f'agent="{agent}"'),
        "drive.py": DRIVE.format(call=page.call), "sitecustomize.py": LOOPBACK_ONLY, "policies.yaml": REFUNDS,
    }  # fmt: skip
    for file, content in files.items():
        (environment.folder / file).write_text(content)
    environment.run("cortex", "agent", "create", agent, "--model", "scripted", variables=access)
    environment.run("cortex", "policy", "apply", "policies.yaml", "--yes", variables=access)
    variables = {**access, **SILENT, "PYTHONPATH": str(environment.folder), "HOME": str(environment.folder)}

    def ask(*acts: tuple[str, int]) -> list[str]:
        output = environment.run("python", "drive.py", json.dumps(acts), variables=variables)
        return [json.loads(line.removeprefix("answer ")) for line in output.splitlines() if line.startswith("answer ")]

    small, huge, waits = ask(("A-1", 50), ("A-2", 500_000), ("A-3", 500))
    paid = "{} cents for {} were paid back."
    if small != paid.format(50, "A-1") or "huge" not in huge or "/approvals/" not in waits:
        raise SystemExit(f"{name} answered: {small!r}, {huge!r}, {waits!r}")
    (card,) = json.loads(environment.run("cortex", "approval", "list", "--json", variables=access))
    environment.run("cortex", "approval", "approve", card["id"], variables=access)
    # Two more processes: the first one runs it, the second one gets its result.
    if (answers := ask(("A-3", 500))) != [paid.format(500, "A-3")] or ask(("A-3", 500)) != answers:
        raise SystemExit(f"{name} answered after the approval: {answers}")
    calls = json.loads(environment.run("cortex", "call", "list", "--json", variables=access))
    ended = sorted((call["key"], call["status"]) for call in calls if call["agent"] == agent)
    if ended != [("refund-A-1", "completed"), ("refund-A-2", "rejected"), ("refund-A-3", "completed")]:
        raise SystemExit(f"{name} left these calls: {ended}")
    if (reached := environment.folder / "reached.txt").exists():
        raise SystemExit(f"{name} wanted to reach {sorted(set(reached.read_text().split()))}")
    print(
        f"{page.package} {version}: the example of docs/guides/{name}.md is allowed, denied, waits, and runs once after the approval"
    )


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


PARTS: dict[str, Callable[[Path], None]] = {"client": try_client, "frameworks": try_frameworks, "wheel": try_wheel}


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="cortex-install-") as folder:
        os.chmod(folder, 0o711)  # noqa: PTH101 -- root's PostgreSQL runs as somebody else, who must pass through
        PARTS[sys.argv[1]](Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())

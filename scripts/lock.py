"""Writes `requirements.lock`: what `cortex-plane[all]` and its build need, each with the hashes of all its files.

The versions are those of `constraints.txt`. The lock holds for every platform (a requirement that only one of them has carries a
marker), and names no index: whoever installs from it chooses where the files come from, and the hashes say whether they are right.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
LOCK = ROOT / "requirements.lock"
CONSTRAINTS = ROOT / "constraints.txt"
HEADER = """\
# What cortex-plane[all] and its build need, with the hashes of all files. `make lock` writes it from constraints.txt.
#   pip install --require-hashes -r requirements.lock
#   pip install --no-deps --no-build-isolation .
"""


def build_requirements() -> list[str]:
    """The build backend: without build isolation it must be installed like everything else."""
    requires: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    return requires


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="cortex-lock-") as folder:
        environment = Path(folder) / "environment"
        venv.create(environment, with_pip=True)
        python = environment / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", "uv"], check=True)
        build = Path(folder) / "build.in"
        build.write_text("\n".join(build_requirements()) + "\n")
        locked = subprocess.run(
            [
                *(python, "-m", "uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11"),
                *("--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url"),
                *("--constraints", CONSTRAINTS, "--extra", "all", ROOT / "pyproject.toml", build),
            ],
            env=os.environ | {"SSL_CERT_FILE": os.environ["PIP_CERT"]} if "PIP_CERT" in os.environ else None,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout
    LOCK.write_text(HEADER + locked)
    print(f"{LOCK.name}: {sum('==' in line for line in locked.splitlines())} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())

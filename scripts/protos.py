"""Writes the Python modules of `proto/` into the package: messages, services and their types.

    python -m scripts.protos             write them anew, after a change of a `.proto` file
    python -m scripts.protos --release   also keep what they are now, for `buf breaking` to compare with

The modules are part of the repository, so a wheel is built without a compiler for them. A test compares them with `proto/`.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "proto"
RELEASED = SOURCE / "released.binpb"
"""What clients of the last release were made from."""
PACKAGE = ROOT / "src" / "cortex_plane" / "grpc"
_IMPORT = re.compile(r"^(from|import) upsquad\b", re.MULTILINE)
_NAME = re.compile(r"(?<![\w.\"/])upsquad\.(?=[\w.]+_pb2)")


def generated() -> dict[Path, str]:
    """The modules by their path in the package."""
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory() as folder:
        arguments = [
            "protoc",
            f"--proto_path={SOURCE}",
            f"--proto_path={files('grpc_tools') / '_proto'}",
            f"--plugin=protoc-gen-mypy={Path(sys.executable).parent / 'protoc-gen-mypy'}",
            f"--plugin=protoc-gen-mypy_grpc={Path(sys.executable).parent / 'protoc-gen-mypy_grpc'}",
            *(f"--{name}_out={folder}" for name in ("python", "grpc_python", "mypy", "mypy_grpc")),
            *sorted(str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.proto")),
        ]
        if protoc.main(arguments) != 0:
            raise SystemExit("protoc refused the files")
        modules = {
            path.relative_to(folder): _in_package(path.read_text()) for path in sorted(Path(folder).rglob("*.py*"))
        }
    for folders in {parent for path in modules for parent in path.parents if parent.name}:
        modules[folders / "__init__.py"] = ""
    return modules


def _in_package(text: str) -> str:
    """Imports of the modules among themselves, by where they are in the package."""
    text = _IMPORT.sub(r"\1 cortex_plane.grpc.upsquad", text)
    return _NAME.sub("cortex_plane.grpc.upsquad.", text)


def main() -> int:
    for path, text in generated().items():
        place = PACKAGE / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    if "--release" in sys.argv[1:]:
        buf = Path(sys.executable).parent / "buf"
        subprocess.run([buf, "build", SOURCE, "-o", RELEASED], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

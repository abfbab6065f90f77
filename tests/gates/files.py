"""Atlas files for tests: a head that every file needs, and whatever a test puts below it."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

from cortex_plane.gates.files.atlases import Read, read
from cortex_plane.gates.model.atlases import Atlas

HEAD = """\
atlas_version: "1.0"
atlas_id: com.acme.support
version: 2.1.0
name: Support
steward: {id: acme, name: ACME}
"""
BODY = HEAD.count("\n") + 1
"""The line on which a test's own part begins."""
DATA = Path(__file__).parent / "data"
SPEC = DATA / "spec-5.yaml"
EXAMPLES = Path(__file__).parents[2] / "examples" / "atlases"


def below(part: str) -> str:
    return HEAD + dedent(part)


def loaded(part: str = "") -> Read:
    return read(below(part))


def atlas(part: str = "") -> Atlas:
    return loaded(part).atlas

"""The docs say what the code says."""

from __future__ import annotations

import re
from pathlib import Path

from scripts.docs import ROOT, outdated

from cortex_plane.approvals.rules.decisions import REFUSALS
from cortex_plane.main.settings import Settings

DOCS = ROOT / "docs"


def test_generated_parts_are_current() -> None:
    assert [str(path.relative_to(ROOT)) for path in outdated()] == [], "run `make docs`"


def test_every_setting_has_a_heading() -> None:
    headings = set(re.findall(r"^## (\S+)$", (DOCS / "reference" / "settings.md").read_text(), re.MULTILINE))
    settings = {
        name.upper() if name.startswith("database_") else f"CORTEX_{name.upper()}" for name in Settings.model_fields
    }
    client = set(
        re.findall(r'environ\.get\("(CORTEX_\w+)"\)', (ROOT / "src/cortex_plane/client/client.py").read_text())
    )
    assert headings == settings | client


def test_every_error_code_is_documented() -> None:
    page = (DOCS / "reference" / "errors.md").read_text()
    items = re.findall(r"^- (`\w+`(?:, `\w+`)*): ", page, re.MULTILINE)
    documented = [code for item in items for code in re.findall(r"\w+", item)]
    assert len(documented) == len(set(documented))
    assert set(documented) == error_codes()


def error_codes() -> set[str]:
    """Every code that the plane can answer with: errors of the domain, of operations, of HTTP and of SQL."""
    source = ROOT / "src" / "cortex_plane"
    codes: set[str] = set()
    for path in source.rglob("*.py"):
        if path.relative_to(source).parts[0] in ("embedded", "cli", "main"):
            continue
        text = path.read_text()
        codes |= set(re.findall(r'\bcode(?:: str)? = "(\w+)"', text)) | set(re.findall(r'\bcode="(\w+)"', text))
        codes |= {f"{noun}_not_found" for noun in re.findall(r'\brequire_found\(.*, "(\w+)"\)', text)}
    codes |= REFUSALS.keys() - {"not_a_settler"}  # it is answered as not_an_approver
    problems = (source / "http/problems.py").read_text()
    codes |= set(re.findall(r'\d+: \("(\w+)",', problems)) | set(re.findall(r'request,\s+\d+,\s+"(\w+)"', problems))
    for path in source.rglob("*.sql"):
        codes |= set(re.findall(r"detail = '(\w+)'", path.read_text()))
    return codes


def test_the_readme_shows_the_example_as_it_is() -> None:
    readme = (ROOT / "README.md").read_text()
    example = (ROOT / "examples" / "hello.py").read_text()
    assert f"```python\n{example}```" in readme
    assert len(example.splitlines()) <= 60


def test_the_files_that_the_architecture_names_exist() -> None:
    named = re.findall(r"`([a-z_]+/[a-z_/]*(?:\.[a-z]+)?)`", (ROOT / "ARCHITECTURE.md").read_text())
    assert len(named) > 30
    source = ROOT / "src" / "cortex_plane"
    floors = [source / "gates" / name for name in named]
    missing = [
        name
        for name, floor in zip(named, floors, strict=True)
        if not ((source / name).exists() or floor.exists() or (ROOT / name).exists())
    ]
    assert missing == []


def test_the_folders_that_the_glossary_names_exist() -> None:
    _, _, glossary = (ROOT / "CONTRIBUTING.md").read_text().partition("## Glossary")
    named = set(re.findall(r"`([a-z/]+/)`", glossary.partition("\n## ")[0]))
    assert len(named) > 10
    assert [name for name in named if not (ROOT / "src" / "cortex_plane" / name).is_dir()] == []


def test_links_between_docs_lead_somewhere() -> None:
    broken = [
        f"{page.name}: {link}#{anchor}"
        for page in [*DOCS.rglob("*.md"), *ROOT.glob("*.md")]
        for link, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", page.read_text())
        if not link.startswith("http") and not _leads_somewhere(page.parent / link if link else page, anchor)
    ]
    assert broken == []


def _leads_somewhere(target: Path, anchor: str) -> bool:
    if not target.exists():
        return False
    return not anchor or anchor in {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
    }


def test_every_command_is_in_the_docs() -> None:
    from cortex_plane.main.main import COMMANDS, NOUNS

    text = (DOCS / "reference" / "cli.md").read_text()
    names = [*COMMANDS, *NOUNS]
    assert [name for name in names if f"`{name}`" not in text and f"cortex {name}" not in text] == []
    assert Path(ROOT / "LICENSE").read_text().lstrip().startswith("Apache License")


def test_every_threat_that_is_met_names_a_test_that_exists() -> None:
    rows = [line for line in (DOCS / "why" / "threats.md").read_text().splitlines() if line.startswith("| ")][1:]
    named = [
        (row, re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", row)) for row in rows if "**not prevented**" not in row
    ]
    assert [row for row, tests in named if not tests] == []
    missing = [
        f"{path}::{name}"
        for _, tests in named
        for path, name in tests
        if not (ROOT / path).exists() or f"def {name}(" not in (ROOT / path).read_text()
    ]
    assert missing == []

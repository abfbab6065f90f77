"""The rules of the layout, on the import graph: floors, nouns, cycles, folders, inheritance.

``exceptions.toml`` lists what breaks a rule today. The list may only shrink: a new exception fails, and so does one that is
listed and no longer there.
"""

from __future__ import annotations

import ast
import tomllib
from collections import defaultdict
from functools import cache
from pathlib import Path

import grimp
import pytest

from tests.architecture.places import NOUNS, Place, place_of

SOURCE = Path(__file__).parent.parent.parent / "src" / "cortex_plane"
EXCEPTIONS = tomllib.loads(Path(__file__).with_name("exceptions.toml").read_text())

MOST_MODULES = 20
"""In a folder."""
MOST_PLACES, MOST_PLACES_IN_THE_MEAN = 12, 4.5
"""That a module imports from."""
DEEPEST = 2
"""Classes of ours above one another. Exceptions form a tree of their own."""


@cache
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("cortex_plane", cache_dir=None)


@cache
def imports() -> dict[str, set[str]]:
    """Module → the modules of ours that it imports, those for type checking included."""
    return {module: graph().find_modules_directly_imported_by(module) for module in graph().modules}


def places_imported() -> dict[str, int]:
    """Module → from how many places it imports."""
    return {module: len({place_of(target) for target in targets} - {None}) for module, targets in imports().items()}


def refusal(importer: Place, imported: Place) -> str | None:
    """The rule that this import breaks."""
    if importer == imported:
        return None
    if importer.noun in ("embedded", "emulators"):
        return None if imported.floor == "kernel" else f"{importer.noun} stands on the kernel alone"
    if importer.noun == "client":
        return None if imported.floor in ("kernel", "model") else "the client stands on kernel and models"
    if imported.rank > importer.rank:
        return "a lower floor imports a higher one"
    if imported.rank < importer.rank or imported.noun == "client":
        return None
    if importer.noun in NOUNS and imported.noun in NOUNS:
        before = NOUNS.index(imported.noun) < NOUNS.index(importer.noun)
        return None if before else "a noun imports one that comes after it"
    return "doors, worker and channels import each other"


def short(module: str) -> str:
    return module.removeprefix("cortex_plane.")


def require_known(rule: str, found: set[str]) -> None:
    known = set(EXCEPTIONS[rule])
    assert sorted(found - known) == [], "these break the rule, and are new"
    assert sorted(known - found) == [], "these no longer break it: remove them from exceptions.toml"


def test_every_module_has_a_place() -> None:
    leaves = {module for module in graph().modules if not graph().find_children(module)}
    assert sorted(short(module) for module in leaves if place_of(module) is None) == []


@pytest.mark.proves("D.700")
def test_imports_follow_floors_and_the_order_of_nouns() -> None:
    found = set()
    for module, targets in imports().items():
        place = place_of(module)
        for target in targets:
            other = place_of(target)
            if place is not None and other is not None and refusal(place, other):
                found.add(f"{short(module)} -> {short(target)}")
    require_known("imports", found)


@pytest.mark.parametrize(
    ("importer", "imported", "refused"),
    [
        (Place("jobs", "store"), Place("jobs", "model"), False),
        (Place("jobs", "model"), Place("jobs", "store"), True),
        (Place("jobs", "verbs"), Place("tenancy", "verbs"), False),
        (Place("tenancy", "verbs"), Place("jobs", "verbs"), True),
        (Place("tenancy", "verbs"), Place("jobs", "store"), False),
        (Place("http", "http"), Place("dashboard", "dashboard"), True),
        (Place("cli", "cli"), Place("client", "client"), False),
        (Place("client", "client"), Place("proof", "rules"), True),
        (Place("embedded", "embedded"), Place("tenancy", "model"), True),
        (Place("emulators", "emulators"), Place("notify", "model"), True),
        (Place("channels", "channels"), Place("emulators", "emulators"), True),
        (Place("main", "main"), Place("worker", "worker"), False),
    ],
)
def test_the_rule_tells_them_apart(importer: Place, imported: Place, refused: bool) -> None:
    assert bool(refusal(importer, imported)) is refused


@pytest.mark.proves("D.700")
def test_no_modules_import_each_other_in_a_circle() -> None:
    require_known("cycles", {" ".join(sorted(map(short, knot))) for knot in knots(imports())})


def knots(edges: dict[str, set[str]]) -> list[set[str]]:
    """The sets of modules each of which imports all others of its set, directly or not."""
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found: list[set[str]] = []

    def visit(module: str) -> None:
        numbers[module] = lowest[module] = len(numbers)
        path.append(module)
        for target in sorted(edges.get(module, ())):
            if target not in numbers:
                visit(target)
            if target in path:
                lowest[module] = min(lowest[module], lowest[target])
        if lowest[module] == numbers[module]:
            start = path.index(module)
            knot, path[start:] = set(path[start:]), []
            if len(knot) > 1:
                found.append(knot)

    for module in sorted(edges):
        if module not in numbers:
            visit(module)
    return found


def test_a_circle_is_found() -> None:
    assert knots({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [{"b", "c"}]


@pytest.mark.proves("D.700")
def test_a_module_imports_from_few_places() -> None:
    counts = places_imported()
    found = {short(module): count for module, count in counts.items() if count > MOST_PLACES}
    assert sum(counts.values()) / len(counts) <= MOST_PLACES_IN_THE_MEAN, (
        "merge what changes together, move functions to their data"
    )
    limits: dict[str, int] = EXCEPTIONS["places"]
    assert {name: count for name, count in found.items() if count > limits.get(name, MOST_PLACES)} == {}
    assert {name: limit for name, limit in limits.items() if found.get(name) != limit} == {}, "lower these"


@pytest.mark.proves("D.700")
def test_a_folder_has_few_modules() -> None:
    counts: dict[str, int] = defaultdict(int)
    for path in SOURCE.rglob("*.py"):
        counts[path.parent.relative_to(SOURCE).as_posix()] += path.name != "__init__.py"
    found = {folder: count for folder, count in counts.items() if count > MOST_MODULES}
    limits: dict[str, int] = EXCEPTIONS["folders"]
    assert {name: count for name, count in found.items() if count > limits.get(name, MOST_MODULES)} == {}
    assert {name: limit for name, limit in limits.items() if found.get(name) != limit} == {}, "lower these"


@pytest.mark.proves("D.700")
def test_inheritance_is_shallow() -> None:
    bases: dict[str, list[str]] = {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                bases.setdefault(node.name, []).extend(_name(base) for base in node.bases)

    @cache
    def chain(name: str) -> tuple[str, ...]:
        """The longest way up through classes of ours."""
        above = [chain(base) for base in bases.get(name, ()) if base in bases and base != name]
        return (name, *max(above, key=len, default=()))

    deep = {name for name in bases if len(chain(name)) > DEEPEST and chain(name)[-1] != "CortexError"}
    require_known("inheritance", deep)


def _name(base: ast.expr) -> str:
    match base:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=value):
            return _name(value)
        case _:
            return ""

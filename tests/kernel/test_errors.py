from __future__ import annotations

import pytest

import cortex_plane.client.dialogue  # it has errors of its own
import cortex_plane.worker.mcp.connection  # noqa: F401 -- so does it
from cortex_plane.http.problems import TITLES
from cortex_plane.kernel import errors
from cortex_plane.kernel.errors import CortexError


def _all(kind: type[CortexError] = CortexError) -> list[type[CortexError]]:
    return [kind, *(each for child in kind.__subclasses__() for each in _all(child))]


def _tree(kind: type[CortexError], above: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    """Every error with its ancestors. Which module is imported first must not matter."""
    way = (*above, kind.__name__)
    return {way}.union(*(_tree(child, way) for child in kind.__subclasses__()))


def test_the_drawing_is_the_tree() -> None:
    assert errors.__doc__ is not None
    drawing: list[tuple[str, ...]] = []
    way: tuple[str, ...] = ()
    for line in errors.__doc__.splitlines():
        stem = line[4:] if line.startswith("    ") else ""
        name = stem.lstrip("│├└─ ").split(" ", 1)[0]
        if name and name.isidentifier():
            depth = (len(stem) - len(stem.lstrip("│├└─ "))) // 4
            way = (*way[:depth], name)
            drawing.append(way)
    assert len(drawing) == len(set(drawing))
    assert set(drawing) == _tree(CortexError)


@pytest.mark.parametrize("kind", _all())
def test_every_error_has_a_code_of_its_own_a_status_and_a_hint(kind: type[CortexError]) -> None:
    error = kind("Something.")
    assert [other for other in _all() if other.code == kind.code] == [kind]
    assert error.code == kind.code
    assert kind is CortexError or error.hint
    assert error.http_status in TITLES
    assert (400 <= error.http_status < 500) == (
        not isinstance(error, errors.Unavailable | errors.SetupError) and kind is not CortexError
    )


def test_an_error_says_what_and_what_next() -> None:
    error = errors.NotFound("There is no such team.", code="team_not_found", hint="List them.", field="team")
    assert str(error) == "There is no such team. List them."
    assert (error.code, error.details) == ("team_not_found", {"field": "team"})
    assert errors.NotFound.code == "not_found"
    assert errors.NotFound("No.", hint="").hint == ""

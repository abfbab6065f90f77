"""`make bench` is whole: each part is found, and takes what a smoke run gives it."""

from __future__ import annotations

import inspect
from pathlib import Path

import benchmarks
import pytest
from benchmarks.parts import PARTS, load_part, needs_database

FOLDER = Path(benchmarks.__file__).parent


def test_every_module_that_measures_is_a_part() -> None:
    modules = {
        path.stem
        for path in FOLDER.glob("*.py")
        if "\ndef run(" in (text := path.read_text()) or "\nasync def run(" in text
    }
    assert modules == set(PARTS) - {"crash.table"}


@pytest.mark.parametrize("name", PARTS)
def test_part_takes_the_settings_of_a_smoke_run(name: str) -> None:
    part = load_part(name)
    inspect.signature(part).bind(*(["url"] if needs_database(part) else []), **PARTS[name])

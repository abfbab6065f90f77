"""Apps that are loaded, and what is said of those that are not."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cortex_plane.kernel.errors import SetupError
from cortex_plane.worker.tools.app import load_app

IMPORT = "from cortex_plane.worker.tools.app import App\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current directory; what is imported from it is forgotten again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("my_"):
            del sys.modules[name]


def _write(name: str, text: str) -> None:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    importlib.invalidate_caches()


def _refused(reference: str) -> SetupError:
    with pytest.raises(SetupError) as caught:
        load_app(reference)
    assert caught.value.code == "app_not_loadable"
    assert f"The app `{reference}` cannot be loaded: " in caught.value.message
    assert caught.value.hint
    return caught.value


def test_an_app_is_loaded_from_the_current_directory(here: Path) -> None:
    _write("my_package/__init__.py", "")
    _write("my_package/tools.py", IMPORT + 'app = App("release")\nclass Apps:\n    inner = App("inner")\n')
    assert load_app("my_package.tools:app").name == "release"
    assert load_app("my_package.tools:Apps.inner").name == "inner"
    assert load_app("my_package.tools:app") is load_app("my_package.tools:app")
    assert sys.path.count(str(here)) == 1


@pytest.mark.parametrize(
    "reference",
    [
        "",
        ":",
        "my_tools",
        "my_tools:",
        ":app",
        "my-tools:app",
        "../my_tools:app",
        "a..b:app",
        "a:b:c",
        "a:b()",
        ".a:app",
    ],
)
def test_a_reference_has_a_form(reference: str) -> None:
    assert "`package.module:app`" in _refused(reference).message


def test_a_missing_module_is_named(here: Path) -> None:
    error = _refused("my_missing.tools:app")
    assert "there is no module `my_missing`." in error.message
    assert str(here) in error.hint
    _write("my_package/__init__.py", "")
    assert "there is no module `my_package.tools`." in _refused("my_package.tools:app").message
    _write("my_file.py", IMPORT)
    assert "there is no module `my_file.py`." in _refused("my_file.py:app").message


def test_a_missing_attribute_is_named_with_what_there_is() -> None:
    _write("my_tools.py", IMPORT + 'release = App("release")\n')
    error = _refused("my_tools:app")
    assert "`my_tools` has no `app`." in error.message
    assert error.hint == "The module has `my_tools:release`."
    _write("my_empty.py", "")
    assert 'app = App("…")' in _refused("my_empty:app").hint
    assert "has no `app.inner`" in _refused("my_empty:app.inner").message


def test_something_else_is_no_app() -> None:
    _write("my_tools.py", IMPORT + 'app = "release"\nkind = App\n')
    assert "it is a str, not an App." in _refused("my_tools:app").message
    assert "it is a type, not an App." in _refused("my_tools:kind").message


@pytest.mark.parametrize(
    ("text", "said", "line"),
    [
        ("\n\n1 / 0\n", "ZeroDivisionError: division by zero", 3),
        ("import my_other_missing\n", "ModuleNotFoundError: No module named 'my_other_missing'", 1),
        ("from os import nothing_such\n", "ImportError: cannot import name 'nothing_such'", 1),
        ("a = 1\ndef (:\n", "SyntaxError: ", 2),
        ("if True:\nx = 1\n", "IndentationError: ", 2),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3", 2),
        (IMPORT + '\napp = App("Not a slug")\n', "InvalidApp: 'Not a slug' cannot be the name of an app", 3),
        (
            IMPORT + 'app = App("ok")\n@app.tool\ndef bad(x): ...\n',
            "InvalidApp: The parameter `x` of the tool `bad`",
            3,
        ),
        ("def deep():\n    raise KeyError('x')\ndeep()\n", "KeyError: 'x'", 2),
    ],
)
def test_what_goes_wrong_in_a_module_is_told_with_its_line(here: Path, text: str, said: str, line: int) -> None:
    _write("my_broken.py", text)
    message = _refused("my_broken:app").message
    assert f"importing `my_broken` failed with {said}" in message
    assert message.endswith(f"({here / 'my_broken.py'}, line {line})")


def test_the_original_error_is_kept() -> None:
    _write("my_broken.py", "1 / 0")
    assert isinstance(_refused("my_broken:app").__cause__, ZeroDivisionError)


def test_a_null_byte_in_a_module_is_told_too() -> None:
    _write("my_broken.py", "a = 1\x00")
    assert "importing `my_broken` failed with " in _refused("my_broken:app").message


def test_a_keyboard_interrupt_is_not_swallowed() -> None:
    _write("my_slow.py", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load_app("my_slow:app")

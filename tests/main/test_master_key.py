from __future__ import annotations

import stat
from pathlib import Path

import pytest

from cortex_plane.kernel.errors import SetupError
from cortex_plane.main.databases import KEY_FILE, master_key
from cortex_plane.main.settings import Settings


def test_it_is_made_once_and_is_its_owners_alone(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    first = master_key(settings)
    assert (len(first), master_key(settings)) == (32, first)
    assert [path.name for path in tmp_path.iterdir()] == [KEY_FILE], "no draft is left"
    assert stat.S_IMODE((tmp_path / KEY_FILE).stat().st_mode) == 0o600


def test_the_setting_goes_first(tmp_path: Path) -> None:
    assert master_key(Settings(home=tmp_path, master_key="ab" * 32)) == b"\xab" * 32
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "ab", "zz" * 32, "ab" * 33])
def test_what_is_no_key_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / KEY_FILE).write_text(text)
    with pytest.raises(SetupError, match="64 hexadecimal digits"):
        master_key(Settings(home=tmp_path))


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="cannot be kept"):
        master_key(Settings(home=tmp_path / "nowhere"))

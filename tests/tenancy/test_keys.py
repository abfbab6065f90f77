from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cortex_plane.tenancy.model.access import PREFIX, is_well_formed, key_digest
from cortex_plane.tenancy.verbs.access import new_key_secret


def test_what_the_plane_makes_is_well_formed_and_never_the_same() -> None:
    made = {new_key_secret() for _ in range(100)}
    assert len(made) == 100
    assert all(is_well_formed(secret) for secret in made)


@pytest.mark.parametrize(
    "secret",
    [
        "", PREFIX, PREFIX + "a" * 42, PREFIX + "a" * 44, PREFIX + "a" * 42 + "+", PREFIX + "a" * 42 + "=",
        PREFIX + "a" * 42 + "\n", PREFIX + "a" * 43 + "\n", " " + PREFIX + "a" * 43, PREFIX.upper() + "a" * 43,
        "cortex_apr_1_" + "a" * 43, "a" * 43, PREFIX + "ä" * 43, PREFIX + "١" * 43,
    ],
)  # fmt: skip
def test_anything_else_is_not(secret: str) -> None:
    assert not is_well_formed(secret)


def test_all_of_base64url_may_stand_in_a_key() -> None:
    assert is_well_formed(PREFIX + "_-" * 20 + "aA0")


@given(st.text())
def test_no_other_text_is_a_key(text: str) -> None:
    assert not is_well_formed(text)


def test_only_the_digest_is_kept() -> None:
    secret = new_key_secret()
    assert key_digest(secret) == hashlib.sha256(secret.encode()).digest()

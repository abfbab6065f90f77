from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cortex_plane.tenancy.model.access import SecretKind, secret_digest
from cortex_plane.tenancy.verbs.access import new_secret


def test_what_the_plane_makes_is_well_formed_and_never_the_same() -> None:
    made = {new_secret(SecretKind.KEY) for _ in range(100)}
    assert len(made) == 100
    assert all(SecretKind.KEY.matches(secret) for secret in made)


@pytest.mark.parametrize(
    "secret",
    [
        "", SecretKind.KEY, SecretKind.KEY + "a" * 42, SecretKind.KEY + "a" * 44, SecretKind.KEY + "a" * 42 + "+", SecretKind.KEY + "a" * 42 + "=",
        SecretKind.KEY + "a" * 42 + "\n", SecretKind.KEY + "a" * 43 + "\n", " " + SecretKind.KEY + "a" * 43, SecretKind.KEY.upper() + "a" * 43,
        "cortex_apr_1_" + "a" * 43, "a" * 43, SecretKind.KEY + "ä" * 43, SecretKind.KEY + "١" * 43,
    ],
)  # fmt: skip
def test_anything_else_is_not(secret: str) -> None:
    assert not SecretKind.KEY.matches(secret)


def test_all_of_base64url_may_stand_in_a_key() -> None:
    assert SecretKind.KEY.matches(SecretKind.KEY + "_-" * 20 + "aA0")


@given(st.text())
def test_no_other_text_is_a_key(text: str) -> None:
    assert not SecretKind.KEY.matches(text)


def test_only_the_digest_is_kept() -> None:
    secret = new_secret(SecretKind.KEY)
    assert secret_digest(secret) == hashlib.sha256(secret.encode()).digest()

"""Tokens, links and nonces, without a plane."""

from __future__ import annotations

import base64
import hashlib
import hmac
import string
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qsl, urlsplit
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cortex_plane.approvals.model import credentials as rules
from cortex_plane.approvals.model.approvals import Channel, Choice
from cortex_plane.approvals.model.credentials import (
    Confirmation,
    Link,
    SigningSecret,
    digest,
    read_confirmation,
    read_link,
)
from cortex_plane.approvals.verbs.credentials import new_approval_token
from cortex_plane.kernel.errors import Unauthenticated
from cortex_plane.kernel.text import REDACTED as HIDDEN
from cortex_plane.kernel.text import redact

APPROVAL = UUID("01936f3a-0000-7000-8000-000000000001")
OPERATOR = UUID("01936f3a-0000-7000-8000-000000000002")
NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
SECRET = bytes(range(32))
LINK = Link(approval_id=APPROVAL, decision=Choice.APPROVED, deadline=1_780_000_000, operator_id=OPERATOR)
ALPHABET = string.ascii_letters + string.digits + "_-"


def query_of(link: Link = LINK, secret: bytes = SECRET) -> dict[str, str]:
    address = urlsplit(link.address("https://plane.example", "email", secret))
    return dict(parse_qsl(address.query))


# Tokens ------------------------------------------------------------------------------------------------------------


@given(st.binary(min_size=32, max_size=32))
@example(b"\xff" * 32)  # all `_`
@example(b"\xfb\xef\xbe" * 10 + b"\xfb\xef")  # all `-`
@pytest.mark.proves("D.150")
def test_whatever_32_bytes_are_in_it_a_token_is_one_and_no_part_of_it_is(random: bytes) -> None:
    token = "cortex_apr_1_" + base64.urlsafe_b64encode(random).decode().rstrip("=")
    assert digest(token) == hashlib.sha256(token.encode()).digest()
    assert redact(f"decide {token} now") == f"decide {HIDDEN} now"
    for cut in range(len(token)):
        with pytest.raises(Unauthenticated) as refused:
            digest(token[:cut])
        assert refused.value.code == ("not_a_token" if cut < len("cortex_apr_") else "token_malformed")


@given(st.text(alphabet=ALPHABET, min_size=43, max_size=43), st.integers(0, 10**8))
def test_another_version_is_told_apart_from_a_damaged_one(random: str, version: int) -> None:
    token = f"cortex_apr_{version}_{random}"
    if version == 1:
        assert digest(token)
        return
    with pytest.raises(Unauthenticated) as refused:
        digest(token)
    assert refused.value.code == "token_version"


@pytest.mark.parametrize(
    ("token", "code"),
    [
        ("", "not_a_token"),
        ("cortex_key_" + "a" * 43, "not_a_token"),
        ("CORTEX_APR_1_" + "a" * 43, "not_a_token"),
        (" cortex_apr_1_" + "a" * 43, "not_a_token"),
        ("cortex_apr_2_" + "a" * 43, "token_version"),
        ("cortex_apr_01_" + "a" * 43, "token_version"),
        ("cortex_apr_11_" + "a" * 43, "token_version"),
        ("cortex_apr_2_", "token_version"),
        ("cortex_apr_1_" + "a" * 42, "token_malformed"),
        ("cortex_apr_1_" + "a" * 44, "token_malformed"),
        ("cortex_apr_1_" + "a" * 43 + "\n", "token_malformed"),
        ("cortex_apr_1_" + "a" * 42 + "=", "token_malformed"),
        ("cortex_apr_1_" + "a" * 42 + "+", "token_malformed"),
        ("cortex_apr_1_" + "a" * 42 + "é", "token_malformed"),
        ("cortex_apr_1" + "a" * 43, "token_malformed"),
        ("cortex_apr_" + "a" * 43, "token_malformed"),
        ("cortex_apr_1", "token_malformed"),
        ("cortex_apr_", "token_malformed"),
        ("cortex_apr_١_" + "a" * 43, "token_malformed"),
        ("cortex_apr_" + "1" * 5000 + "_" + "a" * 43, "token_malformed"),
    ],
)
@pytest.mark.proves("D.150")
def test_what_is_no_token_is_told_what_is_wrong_with_it(token: str, code: str) -> None:
    with pytest.raises(Unauthenticated) as refused:
        digest(token)
    assert refused.value.code == code
    assert refused.value.hint
    assert "a" * 20 not in str(refused.value)


def test_new_tokens_are_tokens_and_differ() -> None:
    made = {new_approval_token() for _ in range(1000)}
    assert len({digest(token) for token in made}) == 1000


# Links -------------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.152")
def test_a_link_is_signed_as_spec_4_says_so_that_others_can_verify_it() -> None:
    address = LINK.address("https://plane.example/", "email", SECRET)
    by_hand = hmac.new(SECRET, f"{APPROVAL}|approved|1780000000|{OPERATOR}".encode(), hashlib.sha256)
    assert address == (
        f"https://plane.example/api/v1/approvals/callback/email/{APPROVAL}"
        f"?t=1780000000&d=approved&o={OPERATOR}&sig={by_hand.hexdigest()}"
    )
    assert address.isascii()
    assert "#" not in address


def test_a_link_that_was_made_is_read_back() -> None:
    signed = read_link("email", str(APPROVAL), query_of().items())
    assert signed is not None
    assert (signed.link, signed.channel) == (LINK, Channel.EMAIL)
    assert signed.link.is_signed_by(SECRET, signed.signature)
    assert not signed.link.is_signed_by(bytes(32), signed.signature)


def test_what_a_mail_filter_appends_says_nothing() -> None:
    query = [("utm_source", "mail"), *query_of().items(), ("d2", "denied"), ("", "")]
    signed = read_link("email", str(APPROVAL), query)
    assert signed is not None
    assert signed.link == LINK


@pytest.mark.parametrize("name", ["t", "d", "o", "sig"])
def test_a_parameter_that_is_missing_or_stands_there_twice_makes_no_link(name: str) -> None:
    query = query_of()
    without = [(key, value) for key, value in query.items() if key != name]
    assert read_link("email", str(APPROVAL), without) is None
    assert read_link("email", str(APPROVAL), [*query.items(), (name, query[name])]) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("t", ""), ("t", "0"), ("t", "-1"), ("t", "01780000000"), ("t", "1780000000.0"), ("t", "1e9"),
        ("t", "9" * 13), ("t", "١٢"), ("t", " 1780000000"),
        ("d", ""), ("d", "APPROVED"), ("d", "approve"), ("d", "pending"),
        ("o", ""), ("o", "x"), ("o", str(OPERATOR).upper()), ("o", OPERATOR.hex), ("o", f"{{{OPERATOR}}}"),
        ("sig", ""), ("sig", "0" * 63), ("sig", "0" * 65), ("sig", "G" * 64), ("sig", "A" * 64), ("sig", "é" * 64),
    ],
)  # fmt: skip
def test_each_value_has_one_spelling(name: str, value: str) -> None:
    assert read_link("email", str(APPROVAL), (query_of() | {name: value}).items()) is None


@pytest.mark.parametrize("channel", ["", "dashboard", "api", "EMAIL", "fax", "email\n", "../email"])
def test_a_link_comes_through_a_channel_that_sends_links(channel: str) -> None:
    assert read_link(channel, str(APPROVAL), query_of().items()) is None
    assert rules.channel_label(channel) == "unknown"


@pytest.mark.parametrize("id", ["", "x", str(APPROVAL).upper(), APPROVAL.hex, f"urn:uuid:{APPROVAL}"])
def test_an_approval_has_one_name(id: str) -> None:
    assert read_link("email", id, query_of().items()) is None


@given(
    st.builds(
        Link,
        approval_id=st.uuids(),
        decision=st.sampled_from(Choice),
        deadline=st.integers(1, 10**11),
        operator_id=st.uuids(),
    ),
    st.builds(
        Link,
        approval_id=st.uuids(),
        decision=st.sampled_from(Choice),
        deadline=st.integers(1, 10**11),
        operator_id=st.uuids(),
    ),
)
@pytest.mark.proves("D.152")
def test_a_signature_fits_one_link_only(one: Link, other: Link) -> None:
    signature = one.signature(SECRET)
    assert one.is_signed_by(SECRET, signature)
    assert other.is_signed_by(SECRET, signature) == (one == other)
    assert one.key("email", 1) != one.key("email", 2)
    assert (one.key("email", 1) == other.key("email", 1)) == (one == other)


@pytest.mark.parametrize(
    ("late", "over"), [(-600, False), (0, False), (299, False), (300, False), (301, True), (9999, True)]
)
def test_a_link_lives_to_its_deadline_and_five_minutes_of_skew(late: int, over: bool) -> None:
    at = datetime.fromtimestamp(LINK.deadline + late, UTC)
    assert rules.is_over(LINK, at) == over


@pytest.mark.parametrize(("off", "fits"), [(0.9, True), (300, True), (-300, True), (301, False), (-301, False)])
def test_a_link_fits_the_deadline_that_it_was_made_for(off: float, fits: bool) -> None:
    assert rules.fits(LINK, datetime.fromtimestamp(LINK.deadline + off, UTC)) == fits
    assert not rules.fits(LINK, None)


# Nonces ------------------------------------------------------------------------------------------------------------

SHOWN = Confirmation(version=3, input_hash="ab" * 32, issued=int(NOW.timestamp()))


def form_of(shown: Confirmation = SHOWN, link: Link = LINK) -> dict[str, str]:
    return {
        "version": str(shown.version),
        "input_hash": shown.input_hash,
        "issued": str(shown.issued),
        "nonce": shown.nonce(SECRET, link),
    }


def is_good(form: dict[str, str], link: Link = LINK) -> bool:
    read = read_confirmation(form)
    known = [SigningSecret(id=APPROVAL, value=bytes(32)), SigningSecret(id=OPERATOR, value=SECRET)]
    return read is not None and read[0].was_shown(known, link, read[1])


@pytest.mark.proves("D.154")
def test_a_nonce_is_good_for_the_page_that_carried_it() -> None:
    assert is_good(form_of())
    for name, value in [("version", "4"), ("input_hash", "cd" * 32), ("issued", str(SHOWN.issued + 1))]:
        assert not is_good(form_of() | {name: value}), name
    for link in (
        Link(approval_id=OPERATOR, decision=Choice.APPROVED, deadline=LINK.deadline, operator_id=OPERATOR),
        Link(approval_id=APPROVAL, decision=Choice.DENIED, deadline=LINK.deadline, operator_id=OPERATOR),
        Link(approval_id=APPROVAL, decision=Choice.APPROVED, deadline=1, operator_id=OPERATOR),
        Link(approval_id=APPROVAL, decision=Choice.APPROVED, deadline=LINK.deadline, operator_id=APPROVAL),
    ):
        assert not is_good(form_of(), link)


@pytest.mark.parametrize("name", ["version", "input_hash", "issued", "nonce"])
@pytest.mark.parametrize("value", [None, "", "0", "-1", "x", "٣", "9" * 30, "AB" * 32])
def test_a_form_without_what_the_page_put_there_confirms_nothing(name: str, value: str | None) -> None:
    form = {key: given for key, given in (form_of() | {name: value}).items() if given is not None}
    assert not is_good(form)


def test_a_signature_of_a_link_is_no_nonce() -> None:
    assert not is_good(form_of() | {"nonce": LINK.signature(SECRET)})


@pytest.mark.parametrize(
    ("minutes", "fresh"), [(-6, False), (-5, True), (0, True), (30, True), (30.1, False), (10_000, False)]
)
def test_a_page_is_good_for_half_an_hour(minutes: float, fresh: bool) -> None:
    assert SHOWN.is_fresh(NOW + timedelta(minutes=minutes)) == fresh


def test_secrets_do_not_show_where_they_are_printed() -> None:
    assert "1f" not in repr(SigningSecret(id=APPROVAL, value=b"\x1f" * 32))

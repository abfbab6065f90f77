"""Mail addresses in one spelling, pages that cannot be confirmed blindly, and mail servers as settings name them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pydantic import TypeAdapter, ValidationError

from cortex_plane.channels.mail_servers import SmtpServer, StartTls, read_sender
from cortex_plane.tenancy.model.identities import Email, is_nonce, nonce, normal_address

NOW = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
CODE = "cortex_verify_" + "a" * 43


@pytest.mark.proves("D.132")
@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("bea@example.com", "bea@example.com"),
        (" Bea@Example.COM ", "bea@example.com"),
        ("b.e+a_1'{}@x.y", "b.e+a_1'{}@x.y"),
        ("a@b", "a@b"),
        ("bea@Bücher.example", "bea@xn--bcher-kva.example"),
        ("bea@xn--bcher-kva.example", "bea@xn--bcher-kva.example"),
        ("bea@straße.de", "bea@xn--strae-oqa.de"),
        ("BÉA@example.com", "béa@example.com"),
        ("用户@例子.广告", "用户@xn--fsqu00a.xn--4rr70v"),
    ],
)
def test_an_address_has_one_spelling(given: str, kept: str) -> None:
    assert normal_address(given) == kept
    assert normal_address(kept) == kept


@pytest.mark.parametrize(
    "wrong",
    [
        "", "bea", "@b", "bea@", "bea@@b", "be a@b", "bea@b c", "bea@b\r\nBcc: x@y", "bea\r\nBcc: x@y@b", "bea\x00@b",
        "bea@b\n", "\tbea@b", ".bea@b", "bea.@b", "b..a@b", '"bea"@b', "<bea@b>", "bea@b>", "bea,x@b", "bea;x@b", "bea:x@b",
        "(c)bea@b", "bea@[127.0.0.1]", "bea@127.0.0.1", "bea@-b", "bea@b-", "bea@b..c", "bea@.b", "bea@b.", "bea@b_c",
        "be\u202ea@b", "be\u200ba@b", "\ufb01sh@b", "bea@\u202eb", "a" * 65 + "@b", "é" * 33 + "@b", "a@" + "b" * 64,
        "a@" + ".".join(["b" * 60] * 5),
    ],
)  # fmt: skip
def test_what_is_no_address_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"^(is|has) "):
        normal_address(wrong)
    with pytest.raises(ValidationError):
        TypeAdapter(Email).validate_python(wrong)


def test_the_longest_address_is_254_bytes() -> None:
    domain = ".".join(["b" * 61, "b" * 61, "b" * 61])
    longest = "a" * 64 + "@" + domain + "." + "c" * (254 - 64 - 1 - len(domain) - 1)
    assert len(normal_address(longest)) == 254
    with pytest.raises(ValueError, match="longer than 254"):
        normal_address(longest + "c")


def test_a_nonce_belongs_to_one_page_of_one_link_for_an_hour() -> None:
    made = nonce(CODE, NOW, "mark")
    assert made != nonce(CODE, NOW, "other")
    assert is_nonce(CODE, made, NOW)
    assert is_nonce(CODE, made, NOW + timedelta(minutes=59))
    for wrong in ("", ".", "x", made[:-1], made + "0", made.replace("mark", "rick"), "é", "9" + made):
        assert not is_nonce(CODE, wrong, NOW)
    assert not is_nonce(CODE[:-1] + "b", made, NOW)
    assert not is_nonce(CODE, made, NOW + timedelta(hours=1, seconds=1))
    assert not is_nonce(CODE, made, NOW - timedelta(minutes=2))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("smtp://mail.example", SmtpServer(host="mail.example", port=25)),
        ("smtps://mail.example", SmtpServer(host="mail.example", port=465, tls=True)),
        ("smtp://[::1]:2525/", SmtpServer(host="::1", port=2525)),
        ("smtp://h:587?starttls=required", SmtpServer(host="h", port=587, starttls=StartTls.REQUIRED)),
        ("smtp://h?starttls=never", SmtpServer(host="h", port=25, starttls=StartTls.NEVER)),
        # A password is not sent in the clear unless somebody says so, or nobody can listen.
        ("smtp://me:p%40ss%2F@h",
         SmtpServer(host="h", port=25, user="me", password="p@ss/", starttls=StartTls.REQUIRED)),
        ("smtp://me:pass@h?starttls=auto", SmtpServer(host="h", port=25, user="me", password="pass")),
        ("smtp://me:pass@127.0.0.1", SmtpServer(host="127.0.0.1", port=25, user="me", password="pass")),
        ("smtps://me:pass@h:1", SmtpServer(host="h", port=1, user="me", password="pass", tls=True)),
    ],
)  # fmt: skip
def test_a_mail_server_is_read_from_its_address(url: str, expected: SmtpServer) -> None:
    assert SmtpServer.parse(url) == expected
    assert "pass" not in repr(SmtpServer.parse(url))


@pytest.mark.parametrize(
    "wrong",
    [
        "", "mail.example", "http://mail.example", "smtp://", "smtp://:25", "smtp://h:x", "smtp://h:99999", "smtp://me@h",
        "smtp://:secret@h", "smtp://h/secret", "smtp://me:se/cret@h", "smtp://h?starttls=perhaps", "smtp://h?tls=1",
        "smtps://h?starttls=auto", "smtp://h#secret",
    ],
)  # fmt: skip
def test_what_is_no_mail_server_is_refused_without_its_password(wrong: str) -> None:
    with pytest.raises(ValueError) as raised:  # noqa: PT011 -- each says something else
        SmtpServer.parse(wrong)
    assert "secret" not in str(raised.value)
    assert "cret" not in str(raised.value)


def test_the_sender_is_an_address_with_or_without_a_name() -> None:
    assert read_sender("cortex@example.com") == ("", "cortex@example.com")
    assert read_sender("Cortex Plane <Cortex@Example.com>") == ("Cortex Plane", "cortex@example.com")
    assert read_sender("Zoë <c@bücher.example>") == ("Zoë", "c@xn--bcher-kva.example")
    for wrong in ("", "cortex", "Cortex <>", "Cortex\r\nBcc: x@y <c@d>", "c@d\n", "\u202ec@d"):
        with pytest.raises(ValueError):  # noqa: PT011
            read_sender(wrong)

"""Signatures and addresses of webhooks, beside the vendor's own library."""

from __future__ import annotations

import base64
import secrets
from datetime import UTC, datetime, timedelta

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from cortex_plane.kernel.addresses import Allowed, check_url, url_fault
from cortex_plane.kernel.errors import InvalidInput, Unauthenticated
from cortex_plane.notify.model.notifications import GRACE, Secrets, key_of, secret_of, sign, signed, verify
from cortex_plane.tenancy.verbs.connections import new_webhook_secret

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
SECRET = secret_of(bytes(range(32)))
OTHER = secret_of(bytes(range(1, 33)))
BODY = b'{"type":"ping","n":"\xc3\xa4"}'


@pytest.mark.proves("D.141")
def test_the_signature_is_the_one_of_the_standards_own_example() -> None:
    # From the specification's test vectors.
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    made = sign(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.proves("D.141")
def test_the_vendors_library_accepts_ours_and_we_accept_theirs() -> None:
    now = datetime.now(UTC)
    for length in (24, 33, 64):
        secret = secret_of(secrets.token_bytes(length))
        ours = signed([OTHER, secret], "msg_1", now, BODY)
        assert Webhook(secret).verify(BODY, ours) == {"type": "ping", "n": "ä"}
        theirs = {
            "webhook-id": "evt-7",
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": Webhook(secret).sign("evt-7", now, BODY.decode()),
        }
        assert verify([secret], theirs, BODY, now) == "evt-7"
    with pytest.raises(WebhookVerificationError):
        Webhook(new_webhook_secret()).verify(BODY, signed([SECRET], "msg_1", now, BODY))


GOOD = signed([SECRET], "msg_1", NOW, BODY)
SIGNATURE = GOOD["webhook-signature"]


@pytest.mark.proves("D.141")
@pytest.mark.parametrize(
    "change",
    [
        {"webhook-id": "msg_2"},
        {"webhook-id": ""},
        {"webhook-id": "msg 1"},
        {"webhook-id": "x" * 151},
        {"webhook-timestamp": str(int(NOW.timestamp()) + 1)},
        {"webhook-timestamp": ""},
        {"webhook-timestamp": "1e9"},
        {"webhook-timestamp": "-1"},
        {"webhook-timestamp": "+" + GOOD["webhook-timestamp"]},
        {"webhook-timestamp": "٣" * 10},
        {"webhook-timestamp": "9" * 400},
        {"webhook-signature": ""},
        {"webhook-signature": "v1,"},
        {"webhook-signature": SIGNATURE[:-4]},
        {"webhook-signature": SIGNATURE + "AA"},
        {"webhook-signature": SIGNATURE.removeprefix("v1,")},
        {"webhook-signature": SIGNATURE.replace("v1,", "v1a,")},
        {"webhook-signature": SIGNATURE.replace("v1,", "v2,")},
        {"webhook-signature": "v1," + SIGNATURE[3:].swapcase()},
        {"webhook-signature": sign(OTHER, "msg_1", int(NOW.timestamp()), BODY)},
        {"webhook-signature": " ".join(["v1,AAAA"] * 10 + [SIGNATURE])},
    ],
)
def test_what_is_forged_or_cut_off_is_refused_in_the_same_words(change: dict[str, str]) -> None:
    with pytest.raises(Unauthenticated) as refused:
        verify([SECRET], GOOD | change, BODY, NOW)
    with pytest.raises(Unauthenticated) as other_body:
        verify([SECRET], GOOD, BODY + b" ", NOW)
    assert str(refused.value) == str(other_body.value)
    assert refused.value.code == "webhook_signature_invalid"


@pytest.mark.proves("D.141")
def test_a_missing_header_is_refused() -> None:
    for name in GOOD:
        with pytest.raises(Unauthenticated):
            verify([SECRET], {k: v for k, v in GOOD.items() if k != name}, BODY, NOW)


@pytest.mark.proves("D.141")
def test_five_minutes_either_way_are_in_time_and_no_second_more() -> None:
    five = timedelta(minutes=5)
    for in_time in (-five, timedelta(), five):
        assert verify([SECRET], GOOD, BODY, NOW + in_time) == "msg_1"
    for late in (-five - timedelta(seconds=1), five + timedelta(seconds=1), timedelta(days=9000)):
        with pytest.raises(Unauthenticated):
            verify([SECRET], GOOD, BODY, NOW + late)


def test_one_good_signature_among_others_is_enough() -> None:
    several = f"v1a,abc {sign(OTHER, 'msg_1', 1, b'')} {SIGNATURE}"
    assert verify([OTHER, SECRET], GOOD | {"webhook-signature": several}, BODY, NOW) == "msg_1"


def test_an_id_with_a_dot_cannot_stand_for_two_messages() -> None:
    headers = signed([SECRET], "a.1", NOW, BODY)
    with pytest.raises(Unauthenticated):
        verify([SECRET], headers, BODY, NOW)


@pytest.mark.proves("D.140")
def test_after_a_rotation_both_secrets_count_for_a_day() -> None:
    rotated = Secrets.of(Secrets(secret=OTHER).rotated(SECRET, NOW).kept())
    assert rotated.valid(NOW + GRACE - timedelta(seconds=1)) == (SECRET, OTHER)
    assert rotated.valid(NOW + GRACE) == (SECRET,)
    again = rotated.rotated(new_webhook_secret(), NOW)
    assert OTHER not in again.valid(NOW), "only the one before"
    assert Secrets.of(Secrets(secret=SECRET).kept()).valid(NOW) == (SECRET,)


def test_a_new_secret_is_random_and_long_enough() -> None:
    made = {new_webhook_secret() for _ in range(100)}
    assert len(made) == 100
    assert {len(key_of(secret)) for secret in made} == {32}


@pytest.mark.parametrize(
    "secret",
    ["", "whsec_", "secret", "whsec_" + base64.b64encode(bytes(23)).decode(), "whsec_" + "A" * 100, "whsec_!!!!" * 9],
)
def test_what_is_no_secret_signs_nothing(secret: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 -- base64 has words of its own
        sign(secret, "msg_1", 1, b"")


# Addresses -----------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.140")
@pytest.mark.parametrize(
    "url",
    [
        "", "x", "example.com", "//example.com", "ftp://example.com", "file:///etc/passwd", "https://", "https:///path",
        "https://user@example.com", "https://user:pw@example.com", "https://@example.com", "https://example.com/#part",
        "https://example.com#", "https://exa mple.com", "https://example.com/a b", "https://example.com/\n",
        "https://example.com\\@evil.example", "https://example.com:0", "https://example.com:99999", "https://example.com:x",
        "https://bücher.example", "https://example.com/ä", "https://127.1", "https://0x7f000001", "https://2130706433",
        "https://0177.0.0.1", "https://[fe80::1%25eth0]", "https://[::1", "https://example.com.", "https://-x.example",
        "javascript:alert(1)", "https://example.com/" + "x" * 2000, "https://exa<mple.com", 'https://example.com/"',
    ],
)  # fmt: skip
def test_what_is_no_address_of_a_webhook_is_refused(url: str) -> None:
    assert url_fault(url) is not None
    with pytest.raises(InvalidInput):
        check_url(url, Allowed.parse("0.0.0.0/0,::/0,example.com"))


@pytest.mark.proves("D.140")
def test_plain_http_and_addresses_that_are_not_public_are_for_listed_hosts() -> None:
    for fine in (
        "https://example.com",
        "HTTPS://Example.com:8443/a?b=c%20d&e",
        "https://1.1.1.1/",
        "https://[2606:4700::1]:1/",
    ):
        check_url(fine, Allowed())
    for refused in (
        "http://example.com",
        "https://127.0.0.1",
        "https://[::1]/",
        "https://10.1.2.3:8443",
        "https://169.254.169.254/latest/meta-data",
        "https://[::ffff:127.0.0.1]",
    ):
        with pytest.raises(InvalidInput) as error:
            check_url(refused, Allowed.parse("other.example,127.0.0.1:81"))
        assert error.value.code == "url_not_allowed"
    allowed = Allowed.parse("localhost:9000,10.1.0.0/16,[::1]")
    for listed in ("http://localhost:9000/x", "http://10.1.2.3", "http://[::1]:5/"):
        check_url(listed, allowed)

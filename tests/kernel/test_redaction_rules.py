"""What leaves the plane has no secrets in it that anybody could name."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cortex_plane.kernel.text import REDACTED, marked, redact, redact_text
from cortex_plane.kernel.text import redact as logged


@pytest.mark.proves("D.126")
@pytest.mark.parametrize(
    "name",
    ["password", "PASSWORD", "db_password", "passwordHash", "client_secret", "token", "access_token", "accessToken",
     "api_key", "ApiKey", "x-api-key", "Authorization", "aws_credentials", "private_key", "cookie", "pwd", "access_key",
     "accessKey", "auth", "pass", "db_pass", "tokens", "token_value", "tokenValue"],
)  # fmt: skip
def test_a_value_is_hidden_by_its_name_at_any_depth(name: str) -> None:
    value = {"keep": 1, "list": [{name: {"deep": ["x"]}, "keep": "y"}]}
    assert redact(value) == {"keep": 1, "list": [{name: REDACTED, "keep": "y"}]}


@pytest.mark.parametrize("name", ["max_tokens", "cookies_accepted", "passport", "key", "author", "bypass"])
def test_what_only_sounds_like_a_secret_is_shown(name: str) -> None:
    assert redact({name: 7}) == {name: 7}


def test_an_orgs_own_names_are_added_to_the_planes() -> None:
    value = {"iban": "DE02", "password": "x", "Customer-IBAN": "DE03", "keep": 1}
    hidden = {"iban": REDACTED, "password": REDACTED, "Customer-IBAN": REDACTED, "keep": 1}
    assert redact(value, ["*iban*"]) == hidden
    assert redact(value, []) == value | {"password": REDACTED}


@pytest.mark.parametrize(
    ("value", "hidden"),
    [
        ({"name": "Authorization", "value": "opaque"}, {"name": "Authorization", "value": REDACTED}),
        ({"Key": "X-Api-Key", "Value": ["a", "b"]}, {"Key": "X-Api-Key", "Value": REDACTED}),
        ([{"value": "opaque", "header": "cookie"}], [{"value": REDACTED, "header": "cookie"}]),
        ({"name": "Accept", "value": "*/*"}, {"name": "Accept", "value": "*/*"}),
        ({"name": "token bucket", "value": 3}, {"name": "token bucket", "value": 3}),
        ({"name": ["Authorization"], "value": "shown"}, {"name": ["Authorization"], "value": "shown"}),
    ],
)
def test_a_name_beside_its_value_counts_like_a_key(value: Any, hidden: Any) -> None:
    assert redact(value) == hidden


FORMS = [
    ("curl -H 'Authorization: Bearer {}' https://x", "https://x"),
    ("bearer   {}", "bearer"),
    ("Bearer\t{}", "Bearer"),
    ("Authorization: Basic {}", "Authorization"),
    ("authorization: {}", "authorization"),
    ("Proxy-Authorization:Token {}\nnext", "next"),
    ('Authorization: Digest username="ada", response="{}"\nnext', "next"),
    ("Authorization: AWS4-HMAC-SHA256 Credential=AKIA/eu, Signature={}\nnext", "next"),
    ("Cookie: a=1; sid={}\nnext", "next"),
    ("postgres://me:{}@db/x", "@db/x"),
    ('{{"password": "{}", "a": 1}}', '"a": 1'),
    ('{{"password": "two words {}", "a": 1}}', '"a": 1'),
    ('{{"password": "quo\\"te {}", "a": 1}}', '"a": 1'),
    ('"{{\\"password\\": \\"{}\\", \\"a\\": 1}}"', '\\"a\\": 1'),
    ("{{'api_key': '{}', 'a': 1}}", "'a': 1"),
    ('{{"name": "Authorization", "value": "{}", "a": 1}}', '"a": 1'),
    ('{{"name": "X-Api-Key", "value": "{}"}}, "a"', '"a"'),
    ('{{"secrets": 1, "client_secret": ["{}"], "a": 1}}', '"a": 1'),
    ("secret={}&x=1", "x=1"),
    ("access_key={} region=eu", "region=eu"),
    ("AWS_SECRET_ACCESS_KEY={} region=eu", "region=eu"),
    ("token_value: {}, next", ", next"),
    ("tokens={}x, next", ", next"),
    ("auth={} next", " next"),
    ("DB_PASS={} next", " next"),
    ("mysql --password {} --host db", "--host db"),
    ("tool --api-key '{}' --host db", "--host db"),
    ("tool --db-pass={} --host db", "--host db"),
    ("curl -u ada:{} https://x", "https://x"),
    ("curl -uada:{} https://x", "https://x"),
    ("curl --user 'ada:{}' https://x", "https://x"),
    ("-----BEGIN RSA PRIVATE KEY-----\nMII{}\n-----END RSA PRIVATE KEY-----\nnext", "next"),
    ("first -----BEGIN PRIVATE KEY-----\\nMII{}\\ncut", "first"),
    ("use cortex_key_aaaaaaaa{}", "use "),
    ("use cortex_verify_aaaaaaaa{}", "use "),
    ("use cortex_apr_1_aaaaaaaa{} now", " now"),
    ("whsec_aaaaaaaa{} now", " now"),
    ("/callback?d=approved&sig=0000{}", "d=approved"),
    ("nonce=0000{}&x=1", "x=1"),
]
SECRETS = st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=12, max_size=60).map(lambda text: "Zq7" + text)


@pytest.mark.parametrize(("form", "kept"), FORMS)
@given(secret=SECRETS, before=st.sampled_from(["", "x ", "say:\n"]), after=st.sampled_from(["", " and so on"]))
@settings(max_examples=8, deadline=None)
def test_a_secret_in_a_text_is_hidden_and_the_rest_stays(
    form: str, kept: str, secret: str, before: str, after: str
) -> None:
    text = before + form.format(secret) + after
    made = redact_text(text)
    assert REDACTED in made
    assert secret not in made
    assert "Zq7" not in made
    assert made.startswith(before)
    assert kept in made
    assert redact({"x": [text]}) == {"x": [made]}
    assert logged(text) == made, "a log hides what a mail hides"


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens: 5", "tokens: 512", "the token was refused", "a secret place", "a basic understanding of it",
        "docker run -u 1000:1000 image", "python -u http://x/y", "-u nobody", "--passive mode", "--bypass x",
        "https://x.example/a:b@c", "design=abcdefghijk", "cortex_key_", "he must authorize: it", "keys: a, b", "",
    ],
)  # fmt: skip
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact_text(text) == text


@given(st.text("-u:'\"\\=[{ apsword,\n", max_size=200) | st.text(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_text_can_be_redacted_and_again_without_a_change(text: str) -> None:
    assert redact_text(redact_text(text)) == redact_text(text)


@pytest.mark.parametrize("piece", ["-", "--a-", ".-u", "password ", "authorization: ", "name: token,", 'password=\\"'])
def test_a_text_that_is_made_to_be_slow_is_not(piece: str) -> None:
    text = piece * (100_000 // len(piece)) + " value password"
    started = time.process_time()
    redact_text(text)
    assert time.process_time() - started < 2


def test_other_values_pass_as_they_are() -> None:
    value = {"a": [1, 2.5, None, True, "text"]}
    assert redact(value) == value


@pytest.mark.proves("D.126")
def test_hidden_characters_are_marked_and_visible_ones_stay() -> None:
    assert marked("a\u202eb\u200bc\r\n\tü漢") == "a⟨U+202E⟩b⟨U+200B⟩c⟨U+000D⟩\n⟨U+0009⟩ü漢"

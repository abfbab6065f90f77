from __future__ import annotations

import json
import subprocess
import sys

import pytest

from cortex_plane.kernel.text import REDACTED as HIDDEN
from cortex_plane.kernel.text import redact

KEY = "cortex_key_" + "a-_9" * 10 + "xyz"
TOKEN = "cortex_apr_1_" + "b_-8" * 10 + "xyz"
LINK = "cortex_login_" + "c_-7" * 10 + "xyz"
VERIFY = "cortex_verify_" + "e_-5" * 10 + "xyz"
SIG = "0123456789abcdef" * 4
COOKIE = "cortex_session_" + "d-_6" * 10 + "xyz"


@pytest.mark.parametrize(
    ("text", "kept", "gone"),
    [
        (f"key {KEY} used", ["key ", " used"], [KEY, "a-_9"]),
        (f"{KEY},{TOKEN}", [","], [KEY, TOKEN]),
        (f"GET /login/{LINK} 200", ["GET /login/", " 200"], [LINK, "c_-7"]),
        (f"GET /verify/{VERIFY} 200", ["GET /verify/", " 200"], [VERIFY, "e_-5"]),
        (f"POST /api/approvals/{TOKEN}/approve", ["POST /api/approvals/", "/approve"], [TOKEN, "b_-8"]),
        (f"cut {TOKEN[:30]} off", ["cut ", " off"], [TOKEN[:30], "b_-8"]),
        (f"{TOKEN}{TOKEN}", [], [TOKEN, "b_-8"]),
        (f"GET /callback/email/7?t=1&d=approved&sig={SIG} 401", ["d=approved", " 401"], [SIG, SIG[:16]]),
        (f"nonce field: version=1&nonce={SIG}&reason=", ["version=1", "&reason="], [SIG, SIG[:16]]),
        (f"x={COOKIE}; Path=/", ["; Path=/"], [COOKIE, "d-_6"]),
        (f"https://x.example/decide?t={TOKEN}&a=1", ["https://x.example/decide", "a=1"], [TOKEN]),
        ("Authorization: Bearer abcdef.ghi-jkl", ["Authorization"], ["abcdef"]),
        ("bearer   ABCDEFGH12", [], ["ABCDEFGH12"]),
        ("postgresql://ada:s3cret@db.example/plane", ["postgresql://", "@db.example/plane"], ["s3cret", "ada"]),
        ("redis://:s3cret@cache.example/0", ["@cache.example/0"], ["s3cret"]),
        ("whsec_c2VjcmV0c2VjcmV0", [], ["c2Vj"]),
        ("password=hunter2 user=ada", ["user=ada"], ["hunter2"]),
        ("token: abc123, next", [", next"], ["abc123"]),
        ("client_secret=abc123&scope=all", ["scope=all"], ["abc123"]),
        ('{"password": "hunter2", "user": "ada"}', ['"user": "ada"'], ["hunter2"]),
        ("{'api_key': 'hunter2'}", [], ["hunter2"]),
    ],
)
@pytest.mark.proves("D.24")
def test_a_secret_in_a_text_is_hidden_and_the_rest_stays(text: str, kept: list[str], gone: list[str]) -> None:
    hidden = redact(text)
    assert HIDDEN in hidden
    for part in kept:
        assert part in hidden
    for part in gone:
        assert part not in hidden


@pytest.mark.parametrize(
    "text", ["max_tokens: 5", "the token was refused", "cortex_key_", "https://x.example/a:b@c", "a secret place", ""]
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text


def test_secrets_are_found_however_deep_they_are() -> None:
    said = {
        "Authorization": f"Bearer {KEY}",
        "headers": {"cookie": "a=b", "Set-Cookie": "c=d", "accept": "*/*"},
        "list": [{"password": "hunter2"}, (f"see {KEY}",), 7, None, True],
        "count": 3,
    }
    assert redact(said) == {
        "Authorization": HIDDEN,
        "headers": {"cookie": HIDDEN, "Set-Cookie": HIDDEN, "accept": "*/*"},
        "list": [{"password": HIDDEN}, [f"see {HIDDEN}"], 7, None, True],
        "count": 3,
    }


PROGRAM = """
import logging, structlog
from cortex_plane.main.settings import configure_logs
configure_logs("info", as_json=True)
structlog.contextvars.bind_contextvars(request_id="r-1")
structlog.get_logger().info("hello", key="KEY", nested={"password": "hunter2"})
logging.getLogger("uvicorn.error").warning("from %s", "KEY")
structlog.get_logger().debug("too quiet")
try:
    raise ValueError("KEY")
except ValueError:
    structlog.get_logger().exception("failed")
"""


def test_log_lines_are_json_with_the_request_id_and_without_secrets() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("KEY", KEY)], capture_output=True, text=True, check=True
    )
    assert "a-_9" not in done.stderr
    assert "hunter2" not in done.stderr
    assert done.stdout == ""
    first, second, third = [json.loads(line) for line in done.stderr.splitlines()]
    assert (first["event"], first["request_id"], first["key"]) == ("hello", "r-1", HIDDEN)
    assert first["level"] == "info"
    assert first["timestamp"].endswith("Z")
    assert (second["event"], second["level"]) == (f"from {HIDDEN}", "warning")
    assert f"ValueError: {HIDDEN}" in third["exception"]

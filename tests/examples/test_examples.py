"""Every example runs as its README says: without a key, and with one, without any other change."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable

import pytest

from tests.conftest import Urls
from tests.examples.walking import EXAMPLES, ROOT, SECONDS, command, database, plane, started, walked
from tests.fixtures.people import World
from tests.providers import Answer, Asked, Provider, anthropic_server, call, calls, openai_server, says

SAID = {
    "release_agent": [
        "tool    tag: completed",
        "waits   deploy {'version': '2.4', 'environment': 'production'} needs a person",
        "you     approve it",
        "tool    deploy: completed",
        "job     COMPLETED; the audit trail is whole: True",
        "world   tag 2.4, deploy 2.4 to production",
    ],
    "support_agent": [
        "waits   refund {'order': '1002', 'amount': 45",
        "you     deny it",
        "agent   Then I refund as much as I may.",
        "agent   It was 20, for the lamp of order 1002.",
        "jobs    COMPLETED, COMPLETED; 4 messages",
        "world   refund 20 for 1002",
    ],
    "code_agent": [
        "in the middle of the step `pack`",
        "lost    worker",
        "tool    plane.step: completed",
        "waits   plane.ask {'action': 'send 1002 to Ada, 12 Lamp Street'",
        "you     approve it",
        "tool    book_courier: completed",
        "signal  parcel-delivered",
        "job     COMPLETED: ",
        "world   ",
    ],
    "mcp_agent": [
        "steward confirms",
        "tool    notes.list_notes: completed",
        "waits   notes.add_note {'text': 'Lamps are sold out.'} needs a person",
        "you     approve it",
        "tool    notes.add_note: completed",
        "job     COMPLETED",
        "notes   Lamps are sold out.",
    ],
    "guarded_script": [
        "script  12 refunded for 1001",
        "waits   refund {'order': '1002', 'amount': 45} needs a person",
        "you     approve it",
        "script  45 refunded for 1002",
        "script  `refund` was not run",
        "audit   whole: True",
        "world   refund 12 for 1001, refund 45 for 1002",
    ],
}
"""What an example must say where there is no key, in this order."""

CODE_AGENT_DID = {
    "look up the stock of 1002": 1,
    "look up the address of 1002": 1,
    "pack what is on shelf 4": 1,
    "courier for 1002": 1,
}
"""Its worker is killed while it packs; nothing is done again."""

SUPERVISED = "code_agent"
"""Needs a plane of its own: it kills its worker, which `cortex up` replaces."""
OWN_SERVER = "release_agent"
"""Runs on a PostgreSQL of its own, as all do that are started by hand; the others get a database on the tests' server."""


def _release(asked: Asked) -> Answer:
    deploy = call("deploy", version="7.7", environment="production")
    spoken = [calls(call("tag", version="7.7")), calls(deploy, text="Shipping."), says("7.7 is out, says the model.")]
    return spoken[asked.turn]


def _support(asked: Asked) -> Answer:
    if "how much was it" in str(asked.body["messages"][-1]):
        remembered = "You got 19." in str(asked.body["messages"])
        return says("I remember: 19." if remembered else "I was told nothing.")
    less = calls(call("refund", order="1002", amount=19), text="Less, then.")
    return [calls(call("refund", order="1002", amount=44)), less, says("You got 19.")][asked.turn]


def _code(_: Asked) -> Answer:
    return says("Shine on, says the model.")


def _mcp(asked: Asked) -> Answer:
    return [calls(call("notes_add_note", text="From the model.")), says("Noted, says the model.")][asked.turn]


ANSWERS: dict[str, tuple[Callable[[Asked], Answer], list[str]]] = {
    "release_agent": (_release, ["agent   7.7 is out, says the model.", "world   tag 7.7, deploy 7.7 to production"]),
    "support_agent": (_support, ["agent   Less, then.", "agent   I remember: 19.", "world   refund 19 for 1002"]),
    "code_agent": (_code, ["job     COMPLETED: ", "Shine on, says the model."]),
    "mcp_agent": (_mcp, ["agent   Noted, says the model.", "notes   From the model."]),
}
"""What a model says, and what then is told: none of it stands in the examples' scripts."""


MORE_OF_THE_SAME = dict.fromkeys(("code_agent", "mcp_agent", "support_agent"), pytest.mark.soak)
"""They choose their model as the others do."""


def in_order(lines: list[str], out: str) -> None:
    position = 0
    for line in lines:
        found = out.find(line, position)
        assert found >= 0, f"{line!r} is missing in:\n{out}"
        position = found


def test_every_example_is_run_here() -> None:
    folders = {path.name for path in EXAMPLES.iterdir() if (path / "README.md").exists()}
    assert folders == set(SAID)
    index = (ROOT / "docs" / "start" / "examples.md").read_text()
    assert [name for name in folders if f"(../../examples/{name}/README.md)" not in index] == []


@pytest.mark.proves("D.288")
@pytest.mark.parametrize("name", sorted(set(SAID) - {SUPERVISED}))
async def test_it_runs_with_one_command_on_a_plane_that_is_there(name: str, strict: World, urls: Urls) -> None:
    async with plane(strict, name, urls.app) as settings:
        require_said(name, await walked(name, **settings))


@pytest.mark.proves("D.288", "D.290")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.soak if name != SUPERVISED else ()) for name in sorted(SAID)]
)
async def test_it_runs_with_one_command_and_no_key(name: str) -> None:
    """The plane is its own; how an example starts one does not depend on which it is."""
    if name == OWN_SERVER:
        require_said(name, await walked(name))
        return
    async with database() as settings:
        require_said(name, await walked(name, **settings))


def require_said(name: str, out: str) -> None:
    in_order(SAID[name], out)
    if name in ("release_agent", "support_agent", "mcp_agent"):
        assert "model   scripted (stand-in for anthropic:" in out, "it says who answered"
    if name == "code_agent":
        (told,) = re.findall("^world   (.*)$", out, re.MULTILINE)
        assert Counter(told.split(", ")) == CODE_AGENT_DID


@pytest.mark.proves("D.289")
@pytest.mark.parametrize("name", [pytest.param(name, marks=MORE_OF_THE_SAME.get(name, ())) for name in sorted(ANSWERS)])
async def test_a_key_in_the_environment_switches_to_the_provider(name: str, strict: World, urls: Urls) -> None:
    answers, told = ANSWERS[name]
    async with anthropic_server() as provider:
        provider.answer = answers
        out = await _walked_with(name, strict, urls, ANTHROPIC_API_KEY=provider.key, ANTHROPIC_BASE_URL=provider.url)
    in_order(told, out)
    assert "stand-in" not in out
    _was_asked(provider)


@pytest.mark.proves("D.289")
async def test_with_only_a_key_to_openai_that_is_asked(strict: World, urls: Urls) -> None:
    async with openai_server() as provider:
        provider.answer = _release
        out = await _walked_with(
            "release_agent", strict, urls, OPENAI_API_KEY=provider.key, OPENAI_BASE_URL=provider.url
        )
    in_order(ANSWERS["release_agent"][1], out)
    _was_asked(provider)


async def _walked_with(name: str, world: World, urls: Urls, **keys: str) -> str:
    if name == SUPERVISED:
        async with database() as settings:
            return await walked(name, **settings, **keys)
    async with plane(world, name, urls.app) as settings:
        return await walked(name, **settings, **keys)


def _was_asked(provider: Provider) -> None:
    assert provider.asked
    assert {asked.key for asked in provider.asked} == {provider.key}


@pytest.mark.proves("D.288")
async def test_without_auto_it_waits_and_goes_on_with_the_command_that_it_shows() -> None:
    """As somebody meets it who runs it first: on a plane and a PostgreSQL of its own."""
    words = [word for word in command("release_agent") if word != "--auto"]
    async with asyncio.timeout(SECONDS), started(*words) as process:
        assert process.stdout is not None
        out = ""
        while not (typed := re.search(r"in a terminal:  (CORTEX_HOME=\S+) (\S+) (approval approve \S+)\n", out)):
            line = (await process.stdout.readline()).decode()
            assert line, out
            out += line
        assert re.search(r"in the browser: http://127\.0\.0\.1:\d+/login/\S+", out)
        home, cortex, rest = typed.groups()
        async with started(cortex, *rest.split(), CORTEX_HOME=home.partition("=")[2]) as deciding:
            said, _ = await deciding.communicate()
        assert deciding.returncode == 0, said.decode()
        out += (await process.stdout.read()).decode()
        assert await process.wait() == 0, out
    in_order(
        [
            "model   scripted (stand-in for anthropic:",
            "tool    deploy: completed",
            "job     COMPLETED",
            "world   tag 2.4, deploy 2.4 to production",
        ],
        out,
    )


@pytest.mark.proves("D.288")
async def test_one_command_of_make_sets_up_and_runs_it() -> None:
    async with started("make", "-n", "example", "NAME=release_agent", "AUTO=1") as process:
        out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()
    assert "-m examples.release_agent --auto" in out.decode()

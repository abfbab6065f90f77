"""Tools: what a function declares, what a model may send, what a call gives back."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any
from uuid import UUID

import orjson
import pytest
from pydantic import AfterValidator, BaseModel, Field

from cortex_plane.agents.model.tools import (
    DidNotHappen,
    Happened,
    InvalidApp,
    InvalidArguments,
    OnUncertain,
    ToolError,
    UncertainOutcome,
)
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.kernel.fields import Risk
from cortex_plane.worker.tools.app import App
from cortex_plane.worker.tools.tool import MAX_ARGUMENT_BYTES, Tool, ToolContext, encode_result

CONTEXT = ToolContext(
    org_id=UUID(int=1),
    session_id=UUID(int=2),
    job_id=UUID(int=3),
    agent_id=UUID(int=4),
    invocation_id=UUID(int=5),
    step=6,
    attempt=1,
)


class Stage(Enum):
    TEST = "test"
    LIVE = "live"


class Host(BaseModel):
    name: str
    port: int = 443


@dataclass
class Note:
    text: str
    tags: list[str] = field(default_factory=list)


def even(value: int) -> int:
    if value == 0:
        raise KeyError("broken")
    if value % 2:
        raise ValueError("it must be even")
    return value


async def deploy(
    version: Annotated[str, Field(description="Such as 1.2.0.", max_length=20)],
    ctx: ToolContext,
    stage: Stage = Stage.TEST,
    hosts: list[Host] | None = None,
) -> dict[str, Any]:
    """Deploy a version.

    To a stage.
    """
    return {"version": version, "stage": stage, "hosts": hosts, "key": ctx.idempotency_key}


def _refused(function: Callable[..., Any], **declared: Any) -> InvalidApp:
    with pytest.raises(InvalidApp) as caught:
        App("release").tool(**declared)(function)
    assert caught.value.code == "invalid_app"
    assert caught.value.hint
    return caught.value


def _invalid(tool: Tool, arguments: Any) -> str:
    with pytest.raises(InvalidArguments) as caught:
        tool.parse(arguments)
    assert caught.value.hint
    return caught.value.message


# The declaration


def test_a_tool_may_be_declared_bare_or_with_arguments_and_stays_a_function() -> None:
    app = App("release", instructions="Be careful.")

    @app.tool
    async def first(a: int) -> int:
        """The first."""
        return a

    @app.tool()
    def second() -> None: ...

    @app.tool(name="github.create_issue", description="Opens one.", read_only=True, risk="low", timeout=5)
    def third() -> None:
        """Not this."""

    assert asyncio.run(first(2)) == 2
    assert list(app.tools) == ["first", "second", "github.create_issue"]
    assert app.tools["first"].is_async
    assert not app.tools["second"].is_async
    made = app.tools["first"]
    assert (made.description, made.read_only, made.risk) == ("The first.", False, Risk.MEDIUM)
    assert (made.timeout_seconds, made.on_uncertain) == (30.0, OnUncertain.ASK_HUMAN)
    assert app.tools["second"].description == ""
    issue = app.tools["github.create_issue"]
    assert (issue.description, issue.read_only, issue.risk) == ("Opens one.", True, Risk.LOW)
    assert (issue.timeout_seconds, issue.on_uncertain) == (5.0, None)
    assert [tool.spec.name for tool in app.tools.values()] == ["first", "second", "github_create_issue"]
    assert app.instructions == "Be careful."
    assert repr(app) == "App('release', tools=['first', 'second', 'github.create_issue'])"


@pytest.mark.parametrize("name", ["", "a", "Release", "re lease", "-x", "a_b", "x" * 101, 5, None, str(UUID(int=1))])
def test_an_app_has_a_slug_for_a_name(name: Any) -> None:
    with pytest.raises(InvalidApp, match="cannot be the name of an app"):
        App(name)


def test_instructions_must_be_storable() -> None:
    with pytest.raises(InvalidApp, match=r"U\+0000"):
        App("release", instructions="\x00")


@pytest.mark.parametrize("name", ["", "Deploy", "1st", "a..b", ".a", "a.", "a-b", "a b", "a\n", "ä", "x" * 65, 5])
def test_a_tool_name_is_made_of_dotted_words(name: Any) -> None:
    assert "name of a tool" in _refused(deploy, name=name).message


def test_a_function_whose_name_is_no_tool_name_needs_one() -> None:
    def _hidden() -> None: ...

    assert "`_hidden`" in _refused(_hidden).message
    App("release").tool(name="a.b_2.c")(_hidden)
    assert "`<lambda>`" in _refused(lambda: None).message


def test_names_are_unique_also_as_the_provider_sees_them() -> None:
    app = App("release")
    app.tool(name="github.create")(deploy)
    with pytest.raises(InvalidApp, match="already has a tool called"):
        app.tool(name="github.create")(deploy)
    with pytest.raises(InvalidApp, match=r"the tools `github\.create` and `github_create` apart"):
        app.tool(name="github_create")(deploy)
    assert list(app.tools) == ["github.create"]


def test_a_name_in_the_place_of_the_function_is_explained() -> None:
    with pytest.raises(InvalidApp, match="name='deploy'"):
        App("release").tool("deploy")  # type: ignore[call-overload]


@pytest.mark.parametrize("timeout", [0, 0.049, -1, 86_401, float("nan"), float("inf"), True, "5", None])
def test_a_timeout_has_bounds(timeout: Any) -> None:
    assert "timeout=" in _refused(deploy, timeout=timeout).message


@pytest.mark.parametrize("timeout", [0.05, 1, 86_400])
def test_a_timeout_is_in_seconds(timeout: float) -> None:
    assert Tool(deploy, timeout=timeout).timeout_seconds == timeout


@pytest.mark.parametrize("given", ["huge", "", 5])
def test_risks_are_known(given: Any) -> None:
    assert "Use one of low, medium, high, critical." in str(_refused(deploy, risk=given))


@pytest.mark.proves("S5.200")
def test_a_risk_that_nobody_declared_is_told_from_a_declared_one() -> None:
    silent, declared = Tool(deploy), Tool(deploy, risk="medium")
    assert (silent.risk, declared.risk) == (Risk.MEDIUM, Risk.MEDIUM)
    assert (silent.declares_risk, declared.declares_risk) == (False, True)
    versions = silent.version("tests"), declared.version("tests")
    assert [version.declares_risk for version in versions] == [False, True]
    assert versions[0].digest == versions[1].digest, "approvals that wait for it still hold"


def test_what_to_do_when_uncertain_is_known() -> None:
    error = _refused(deploy, on_uncertain="pray")
    assert "`on_uncertain='pray'` of the tool `deploy` is unknown." in error.message
    assert error.hint == "Use one of retry_with_key, probe, ask_human, fail."
    assert Tool(deploy, on_uncertain="fail").on_uncertain is OnUncertain.FAIL
    assert Tool(deploy, on_uncertain=OnUncertain.RETRY_WITH_KEY).on_uncertain is OnUncertain.RETRY_WITH_KEY


def test_a_probe_and_its_setting_need_each_other() -> None:
    assert "has no probe" in _refused(deploy, on_uncertain="probe").message
    assert "would never be asked" in _refused(deploy, probe=deploy).message
    assert "would never be asked" in _refused(deploy, on_uncertain="fail", probe=deploy).message
    assert "read-only" in _refused(deploy, read_only=True, on_uncertain="ask_human").message
    assert "read-only" in _refused(deploy, read_only=True, probe=deploy).message


def test_a_description_must_be_storable() -> None:
    assert "U+0000" in _refused(deploy, description="a\x00").message


def test_every_parameter_needs_a_type() -> None:
    def untyped(a: int, b) -> None: ...  # type: ignore[no-untyped-def]

    error = _refused(untyped)
    assert error.message == "The parameter `b` of the tool `untyped` has no type."
    assert error.hint == "Annotate it, such as `b: str`."


def test_parameters_that_have_no_name_are_refused() -> None:
    def many(*values: int) -> None: ...
    def names(**values: int) -> None: ...
    def positional(a: int, /) -> None: ...

    assert "`values` of the tool `many` takes any number of values" in _refused(many).message
    assert "`values` of the tool `names` takes any names" in _refused(names).message
    assert "`a` of the tool `positional` cannot be given by name" in _refused(positional).message


def test_types_that_json_does_not_have_are_refused() -> None:
    def odd(a: threading.Lock) -> None: ...
    def call(a: Callable[[], int]) -> None: ...
    def bounds(a: Annotated[str, Field(pattern="(")]) -> None: ...
    def unknown(a: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    assert "have no JSON Schema" in _refused(odd).message
    assert "have no JSON Schema" in _refused(call).message
    assert "have no JSON Schema" in _refused(bounds).message
    assert "name 'Missing' is not defined" in _refused(unknown).message


def test_only_functions_that_return_one_value_are_tools() -> None:
    def several() -> Iterator[int]:
        yield 1

    async def stream() -> AsyncIterator[int]:
        yield 1

    assert "yields" in _refused(several).message
    assert "yields" in _refused(stream).message
    assert "not a function" in _refused(Host, name="host").message
    assert "not a function" in _refused(functools.partial(deploy), name="part").message


def test_a_context_cannot_be_hidden_from_us_and_so_left_to_the_model() -> None:
    def listed(contexts: list[ToolContext]) -> None: ...
    def optional(ctx: ToolContext | None = None) -> Any:
        return ctx

    assert "hides a ToolContext" in _refused(listed).message
    tool = Tool(optional)
    assert tool.parameters["properties"] == {}
    assert asyncio.run(tool.call({}, CONTEXT)) is CONTEXT


def test_a_field_is_no_default() -> None:
    def fielded(a: int = Field(3, ge=1)) -> None: ...

    assert "Annotated" in _refused(fielded).hint


# The schema and the version


def test_the_schema_is_the_signature_without_the_context() -> None:
    tool = Tool(deploy)
    schema = tool.parameters
    assert set(schema["properties"]) == {"version", "stage", "hosts"}
    assert schema["required"] == ["version"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["version"] == {"type": "string", "maxLength": 20, "description": "Such as 1.2.0."}
    assert schema["properties"]["stage"] == {"$ref": "#/$defs/Stage", "default": "test"}
    assert "title" not in schema
    assert tool.description == "Deploy a version.\n\nTo a stage."
    assert tool.spec.parameters == schema


def test_parameters_may_have_any_name() -> None:
    def odd(model_config: int, json: int, _id: int, self: int, schema: int = 0) -> list[int]:
        return [model_config, json, _id, self, schema]

    tool = Tool(odd)
    assert list(tool.parameters["properties"]) == ["model_config", "json", "_id", "self", "schema"]
    values = tool.parse({"model_config": 1, "json": 2, "_id": 3, "self": 4}).values
    assert asyncio.run(tool.call(values, CONTEXT)) == [1, 2, 3, 4, 0]
    assert "`p0` is not a parameter" in _invalid(tool, {"p0": 1})


def test_a_default_that_json_lacks_is_left_to_the_function() -> None:
    missing = object()

    def odd(a: int | None = missing) -> bool:  # type: ignore[assignment]
        return a is missing

    tool = Tool(odd)
    assert "default" not in tool.parameters["properties"]["a"]
    assert asyncio.run(tool.call(tool.parse({}).values, CONTEXT)) is True


def test_a_version_names_everything_that_was_declared() -> None:
    plain = Tool(deploy).version("release")
    assert (plain.app, plain.name, plain.timeout_seconds) == ("release", "deploy", 30.0)
    assert (plain.read_only, plain.risk, plain.on_uncertain) == (False, Risk.MEDIUM, OnUncertain.ASK_HUMAN)
    assert len(bytes.fromhex(plain.digest)) == 32
    assert Tool(deploy).version("release") == plain

    async def other(version: str) -> None: ...

    others = [
        Tool(deploy, name="deploy_it"),
        Tool(deploy, description="Deploys."),
        Tool(deploy, risk="high"),
        Tool(deploy, timeout=31),
        Tool(deploy, on_uncertain="fail"),
        Tool(deploy, read_only=True),
        Tool(other, name="deploy", description=plain.description),
    ]
    assert len({plain.digest, *(tool.version("release").digest for tool in others)}) == 8
    assert App("release").versions == []


# Arguments


def test_arguments_become_python_objects_and_one_form() -> None:
    tool = Tool(deploy)
    sent = {"version": "1.0", "stage": "live", "hosts": [{"name": "a"}]}
    parsed = tool.parse(sent)
    assert parsed.values == {"version": "1.0", "stage": Stage.LIVE, "hosts": [Host(name="a")]}
    assert parsed.canonical == b'{"hosts":[{"name":"a"}],"stage":"live","version":"1.0"}'
    assert parsed.digest == hashlib.sha256(parsed.canonical).hexdigest()
    assert tool.parse(' {"stage": "live",\n "hosts": [{"name": "a"}], "version": "1.0"}') == parsed
    assert tool.parse(orjson.loads(parsed.canonical)) == parsed


def test_defaults_are_filled_in_but_were_not_sent() -> None:
    parsed = Tool(deploy).parse({"version": "1.0"})
    assert parsed.values == {"version": "1.0", "stage": Stage.TEST, "hosts": None}
    assert parsed.canonical == b'{"version":"1.0"}'


def test_text_stands_for_dates_ids_and_dataclasses() -> None:
    def take(day: date, id: UUID, note: Note, price: Decimal, share: float, tags: set[str]) -> None: ...

    sent = {
        "day": "2025-01-31", "id": str(UUID(int=7)), "note": {"text": "a"}, "price": "1.10", "share": 1,
        "tags": ["a", "a"],
    }  # fmt: skip
    values = Tool(take).parse(sent).values
    assert values == {
        "day": date(2025, 1, 31), "id": UUID(int=7), "note": Note("a"), "price": Decimal("1.10"), "share": 1.0,
        "tags": {"a"},
    }  # fmt: skip
    assert type(values["share"]) is float


@pytest.mark.parametrize("text", ["", "  ", "{}"])
def test_no_arguments_may_be_an_empty_text(text: str) -> None:
    def nothing() -> None: ...

    parsed = Tool(nothing).parse(text)
    assert (parsed.values, parsed.canonical) == ({}, b"{}")


@pytest.mark.parametrize(
    "text", ["{", "{'a': 1}", "version", '{"version": 1,}', '{"a": 1} {}', "[" * 100_000, "9" * 5000]
)
def test_arguments_that_are_not_json_say_so(text: str) -> None:
    message = _invalid(Tool(deploy), text)
    assert "not valid JSON" in message or "nested too deeply" in message


@pytest.mark.parametrize("given", ["[]", "null", "5", "true", '"{}"', [], None, 5])
def test_arguments_are_an_object(given: Any) -> None:
    assert "must be a JSON object" in _invalid(Tool(deploy), given)


def test_faults_name_the_field_and_the_reason() -> None:
    tool = Tool(deploy)
    assert _invalid(tool, {}) == "The arguments are not valid: `version` is missing."
    assert _invalid(tool, {"version": "1", "force": True}) == (
        "The arguments are not valid: `force` is not a parameter; the parameters are `version`, `stage`, `hosts`."
    )
    assert "`ctx` is not a parameter" in _invalid(tool, {"version": "1", "ctx": {}})
    assert "`version`: Input should be a valid string" in _invalid(tool, {"version": 1})
    assert "`version`: String should have at most 20 characters" in _invalid(tool, {"version": "1" * 21})
    assert "`stage`: Input should be 'test' or 'live'" in _invalid(tool, {"version": "1", "stage": "x"})
    both = _invalid(tool, {"version": "1", "hosts": [{"name": "a"}, {"port": "x"}]})
    assert "`hosts[1].name` is missing; `hosts[1].port`: " in both

    def nothing() -> None: ...

    assert "`a` is not a parameter; the parameters are none" in _invalid(Tool(nothing), {"a": 1})


def test_a_long_list_of_faults_is_cut() -> None:
    message = _invalid(Tool(deploy), {"version": "1", **{f"{'x' * 500}{n}": n for n in range(100)}})
    assert "and 90 more faults" in message
    assert len(message) < 3000


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"version": NaN}', "$.version"),
        ('{"hosts": [Infinity]}', "$.hosts[0]"),
        ('{"version": "\\u0000"}', "$.version"),
        ('{"version": "\\ud800"}', "$.version"),
        ('{"version": 18446744073709551616}', "$.version"),
        ('{"hosts": ' + "[" * 70 + "]" * 70 + "}", "$.hosts[0]"),
    ],
)
def test_what_cannot_be_stored_exactly_is_refused_with_its_place(text: str, place: str) -> None:
    assert f"cannot be stored exactly: `{place}" in _invalid(Tool(deploy), text)


def test_python_objects_are_no_arguments() -> None:
    assert "is a object, which JSON does not have" in _invalid(Tool(deploy), {"version": object()})


def test_large_arguments_are_refused_in_every_form() -> None:
    def take(text: str) -> None: ...

    tool, room = Tool(take), MAX_ARGUMENT_BYTES - len('{"text":""}')
    assert len(tool.parse({"text": "x" * room}).canonical) == MAX_ARGUMENT_BYTES
    assert f"the limit is {MAX_ARGUMENT_BYTES}" in _invalid(tool, {"text": "x" * (room + 1)})
    assert "the limit is" in _invalid(tool, {"text": "ü" * (room // 2 + 1)})
    assert "the limit is" in _invalid(tool, " " * (MAX_ARGUMENT_BYTES + 1))


def test_an_authors_validator_speaks_to_the_model_and_may_not_break_the_caller() -> None:
    def take(a: Annotated[int, AfterValidator(even)]) -> None: ...

    tool = Tool(take)
    assert tool.parse({"a": 2}).values == {"a": 2}
    assert "it must be even" in _invalid(tool, {"a": 1})
    assert "could not be checked: KeyError: 'broken'" in _invalid(tool, {"a": 0})


# Calls


async def test_async_functions_are_called_with_the_context() -> None:
    tool = Tool(deploy)
    made = await tool.call(tool.parse({"version": "1"}).values, CONTEXT)
    assert made == {"version": "1", "stage": Stage.TEST, "hosts": None, "key": str(UUID(int=5))}


async def test_sync_functions_run_in_a_thread_and_do_not_stop_the_loop() -> None:
    reached, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def slow(a: int, ctx: ToolContext) -> tuple[int, int, int]:
        loop.call_soon_threadsafe(reached.set)
        assert go_on.wait(10)
        return a, ctx.step, threading.get_ident()

    calling = asyncio.create_task(Tool(slow).call({"a": 1}, CONTEXT))
    await asyncio.wait_for(reached.wait(), 10)
    go_on.set()
    a, step, thread = await calling
    assert (a, step) == (1, 6)
    assert thread != threading.get_ident()


async def test_a_sync_wrapper_of_an_async_function_is_awaited() -> None:
    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **keywords: Any) -> Any:
            return function(*args, **keywords)

        return wrapper

    tool = Tool(logged(deploy))
    assert set(tool.parameters["properties"]) == {"version", "stage", "hosts"}
    assert (await tool.call({"version": "1"}, CONTEXT))["version"] == "1"


async def test_what_a_tool_raises_comes_through() -> None:
    async def fails() -> None:
        raise ToolError("No such version.")

    def unsure() -> None:
        raise UncertainOutcome("The line broke.")

    def ends() -> None:
        raise StopIteration

    with pytest.raises(ToolError, match="No such version"):
        await Tool(fails).call({}, CONTEXT)
    with pytest.raises(UncertainOutcome, match="The line broke"):
        await Tool(unsure).call({}, CONTEXT)
    with pytest.raises(RuntimeError, match="StopIteration"):
        await asyncio.wait_for(Tool(ends).call({}, CONTEXT), 10)


async def test_bound_methods_are_tools() -> None:
    class Shop:
        def price(self, item: str) -> str:
            return f"{item}: 5"

    assert await Tool(Shop().price).call({"item": "tea"}, CONTEXT) == "tea: 5"


# Probes


@pytest.mark.parametrize("answer", [Happened(result={"id": 1}), Happened(), DidNotHappen(), None])
async def test_a_probe_tells_what_it_found(answer: Any) -> None:
    async def act(a: int) -> None: ...

    async def find(a: int, ctx: ToolContext) -> Any:
        assert (a, ctx) == (1, CONTEXT)
        return answer

    def find_slowly(a: int) -> Any:
        return answer

    for probe in (find, find_slowly):
        tool = Tool(act, on_uncertain="probe", probe=probe)
        assert await tool.ask_probe({"a": 1}, CONTEXT) is answer


@pytest.mark.parametrize("answer", [True, False, "yes", {}, DidNotHappen, Happened])
async def test_any_other_answer_of_a_probe_is_an_error(answer: Any) -> None:
    def act() -> None: ...
    def find() -> Any:
        return answer

    with pytest.raises(InvalidApp, match="The probe of `act` returned") as caught:
        await Tool(act, on_uncertain="probe", probe=find).ask_probe({}, CONTEXT)
    assert "DidNotHappen()" in caught.value.hint


async def test_a_tool_without_a_probe_cannot_be_asked() -> None:
    with pytest.raises(InvalidApp, match="has no probe"):
        await Tool(deploy).ask_probe({}, CONTEXT)


def test_a_probe_takes_what_the_tool_takes() -> None:
    def act(a: int, b: str = "x") -> None: ...
    def fewer(a: int) -> None: ...
    def others(a: int, b: int) -> None: ...
    def untyped(a, b):  # type: ignore[no-untyped-def]
        ...
    def same(b: str, a: int, ctx: ToolContext) -> None: ...

    for probe in (fewer, others):
        assert "takes other parameters" in _refused(act, on_uncertain="probe", probe=probe).message
    assert "`a` of the probe of `act` has no type" in _refused(act, on_uncertain="probe", probe=untyped).message
    assert "not a function" in _refused(act, on_uncertain="probe", probe="same").message
    tool = Tool(act, on_uncertain="probe", probe=same)
    assert asyncio.run(tool.ask_probe(tool.parse({"a": 1}).values, CONTEXT)) is None


# Results


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (None, b"null"),
        ("ü", '"ü"'.encode()),
        ({"b": 1.0, "a": (1, None)}, b'{"a":[1,null],"b":1}'),
        (Host(name="a"), b'{"name":"a","port":443}'),
        ([Note("a", ["b"])], b'[{"tags":["b"],"text":"a"}]'),
        (datetime(2025, 1, 31, 12, tzinfo=UTC), b'"2025-01-31T12:00:00Z"'),
        (date(2025, 1, 31), b'"2025-01-31"'),
        (UUID(int=7), b'"00000000-0000-0000-0000-000000000007"'),
        ({"stage": Stage.LIVE, "risk": Risk.LOW}, b'{"risk":"low","stage":"live"}'),
        (Decimal("1.10"), b'"1.10"'),
        ({1: {2}}, b'{"1":[2]}'),
        (b"bytes", b'"bytes"'),
    ],
)
def test_results_become_canonical_json(value: Any, stored: bytes) -> None:
    assert encode_result(value) == stored


def test_a_large_result_is_encoded() -> None:
    assert len(encode_result("x" * 50_000_000)) == 50_000_002


class Strange(BaseModel):
    inner: Any = None
    share: float = 0


def _circle() -> list[Any]:
    circle: list[Any] = []
    circle.append({"again": circle})
    return circle


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (float("nan"), "$"),
        ({"a": [1, float("inf")]}, "$.a[1]"),
        ({"a": 2**64}, "$.a"),
        ({"a": "\x00"}, "$.a"),
        (["\ud800"], "$[0]"),
        (object(), "$"),
        ({"a": [1, {"b": object()}]}, "$.a[1].b"),
        (Strange(inner=[object()]), "$.inner[0]"),
        (Strange(share=float("nan")), "$.share"),
        ([Note("a", [object()])], "$[0].tags[0]"),  # type: ignore[list-item]
        ({"a": b"\xff"}, "$.a"),
        ({"a": {object()}}, "$.a"),
        (test_a_large_result_is_encoded, "$"),
        (ValueError("returned, not raised"), "$"),
    ],
)
def test_what_cannot_be_stored_is_refused_with_its_place(value: Any, place: str) -> None:
    with pytest.raises(InvalidInput, match="What the tool returned cannot be stored") as caught:
        encode_result(value)
    assert (caught.value.code, caught.value.details["field"]) == ("unstorable_result", place)
    assert f"`{place}`" in caught.value.message
    assert "Return what JSON can express" in caught.value.hint


def test_a_result_that_contains_itself_or_never_ends_is_refused() -> None:
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    for value in (_circle(), deep):
        with pytest.raises(InvalidInput, match="cannot be stored"):
            encode_result(value)

"""The OpenAPI document, from the declared routes and the permissions of their verbs. Routes and fields are described by the strings
below their declarations; a field without one by its type, or by `field_descriptions` where its name always means the same."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from itertools import pairwise
from types import ModuleType
from typing import Any, Generic, TypeVar
from uuid import UUID

from pydantic import BaseModel, Field, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from cortex_plane.http.exchange import HEADERS, LAST_EVENT, ONCE, ORG, REVISION, Binding
from cortex_plane.http.field_descriptions import describe_name
from cortex_plane.http.problems import MEDIA_TYPE, TITLES, Problem
from cortex_plane.kernel.fields import BODY_LIMIT, adapter
from cortex_plane.kernel.routes import SMALL_BODY_BYTES, ListRoute, Route

T = TypeVar("T")

_REF = "#/components/schemas/{model}"
_TEXT = {"schema": {"type": "string"}}
_SECURITY = {"key": {"type": "http", "scheme": "bearer", "description": "An API key: `cortex_key_…`."}}


class Listing(BaseModel, Generic[T]):
    items: list[T]
    next_cursor: str | None = Field(description="Send it as `cursor` for the next page; null at the end.")


def document(bindings: Iterable[Binding], declarations: Iterable[ModuleType]) -> dict[str, Any]:
    """``declarations`` are the modules that declare the routes."""
    operations = {route: (name, text) for module in declarations for route, name, text in _declared(module)}
    entries = [binding for binding in bindings if binding.route.in_document]
    schemas = _Schemas([binding.route for binding in entries])
    paths: dict[str, dict[str, Any]] = {}
    for binding in entries:
        route = binding.route
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(binding, *operations[route], schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Cortex Plane",
            "description": "Agents that never lose their place and never act without permission.",
            "version": version("cortex-plane"),
        },
        "paths": paths,
        "components": {"schemas": schemas.components, "securitySchemes": _SECURITY},
    }


def _declared(module: ModuleType) -> Iterable[tuple[Route[Any], str, str | None]]:
    """Each route of a module with the name of its constant and the string below it."""
    texts = _texts(_source(module.__name__).body)
    for name, route in vars(module).items():
        if isinstance(route, Route):
            yield route, name.lower(), texts.get(name)


@cache
def _source(module: str) -> ast.Module:
    return ast.parse(inspect.getsource(sys.modules[module]))


def _texts(statements: Sequence[ast.stmt]) -> dict[str, str]:
    """The names that are assigned or annotated there, with the string below each."""
    texts: dict[str, str] = {}
    for statement, below in pairwise(statements):
        match statement, below:
            case (
                ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                texts[name] = inspect.cleandoc(text)
    return texts


def field_texts(kind: type) -> Mapping[str, str]:
    """The fields of a class of ours, inherited ones included, with the string below each."""
    texts: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        if owner.__module__.startswith("cortex_plane."):
            for statement in _source(owner.__module__).body:
                if isinstance(statement, ast.ClassDef) and statement.name == owner.__name__:
                    texts |= _texts(statement.body)
    return texts


class _Descriptions(GenerateJsonSchema):
    """Describes properties by the strings below the fields."""

    def dataclass_schema(self, schema: Any) -> dict[str, Any]:
        return _described(super().dataclass_schema(schema), schema["cls"])

    def model_schema(self, schema: Any) -> dict[str, Any]:
        return _described(super().model_schema(schema), schema["cls"])


def _described(schema: dict[str, Any], kind: type) -> dict[str, Any]:
    properties = schema.get("properties", {})
    for name, text in field_texts(kind).items():
        if name in properties:
            properties[name].setdefault("description", text)
    return schema


class _Schemas:
    """The JSON Schemas of everything that routes take and answer."""

    def __init__(self, routes: Sequence[Route[Any]]) -> None:
        queries = {route.query for route in routes} - {None}
        inputs = {kind for route in routes for kind in (route.body, *route.path_types.values())} - {None}
        outputs = {_output(route) for route in routes} - {None}
        kinds: list[tuple[Any, Any, TypeAdapter[Any]]] = [
            *((kind, "validation", adapter(kind)) for kind in inputs | queries | {UUID}),
            *((kind, "serialization", adapter(kind)) for kind in outputs),
        ]
        schemas, definitions = TypeAdapter.json_schemas(kinds, ref_template=_REF, schema_generator=_Descriptions)
        self._schemas: Any = schemas
        self.components: dict[str, Any] = _without_null(definitions["$defs"])
        problem = adapter(Problem).json_schema(ref_template=_REF, schema_generator=_Descriptions)
        self.components |= problem.pop("$defs") | {"Problem": problem}
        for component in self.components.values():
            for name, schema in component.get("properties", {}).items():
                self.describe(name, schema)
        self._queries = {query: self.components.pop(query.__name__) for query in queries}

    def describe(self, name: str, schema: dict[str, Any]) -> None:
        """Describe what has no string below it: by its type's own description, by its name, or by the class that it refers to."""
        branches = [schema, *schema.get("anyOf", ())]
        text = next((branch["description"] for branch in branches if "description" in branch), None)
        text = text or describe_name(name)
        if text is None:
            refs = (part["$ref"] for branch in branches for part in (branch, branch.get("items", {})) if "$ref" in part)
            texts = (self.components[ref.rpartition("/")[2]].get("description", "") for ref in refs)
            text = next(filter(None, texts), "").partition("\n\n")[0]
        if text:
            schema["description"] = text

    def input(self, kind: Any) -> dict[str, Any]:
        return dict(self._schemas[kind, "validation"])

    def output(self, kind: Any) -> dict[str, Any]:
        return dict(self._schemas[kind, "serialization"])

    def parameters(self, query: Any) -> Iterable[tuple[str, dict[str, Any], bool]]:
        """Name, schema, and whether it is required."""
        schema = self._queries[query]
        for name, parameter in schema["properties"].items():
            yield name, parameter, name in schema.get("required", ())


def _without_null(value: Any) -> Any:
    """A default of null says nothing: a field that may be left out is null then."""
    if isinstance(value, dict):
        return {key: _without_null(part) for key, part in value.items() if part is not None}
    return [_without_null(part) for part in value] if isinstance(value, list) else value


def _output(route: Route[Any]) -> Any:
    if route.status == 204 or route.media_type is not None:
        return None
    return Listing[route.output] if isinstance(route, ListRoute) else route.output  # type: ignore[name-defined]


def _operation(binding: Binding, name: str, text: str | None, schemas: _Schemas) -> dict[str, Any]:
    route = binding.route
    operation: dict[str, Any] = {
        "tags": [route.tag],
        "summary": name.replace("_", " ").title(),
        "operationId": re.sub(r"\W", "_", f"{name}{route.path}_{route.method.lower()}"),
        "responses": _responses(route, name, schemas),
    }
    if text is not None:
        operation["description"] = text
    if parameters := list(_parameters(route, schemas)):
        operation["parameters"] = parameters
    if route.body is not None:
        content = {"application/json": {"schema": schemas.input(route.body)}}
        operation["requestBody"] = {"required": True, "content": content}
    if binding.permission is not None:
        operation["x-permission"] = binding.permission.value
        operation["security"] = [{"key": []}] if route.needs_key else []
    if route.max_body != SMALL_BODY_BYTES:
        operation[BODY_LIMIT] = route.max_body
    if binding.heavy:
        operation["x-heavy"] = True
    return operation


def _responses(route: Route[Any], name: str, schemas: _Schemas) -> dict[str, Any]:
    success: dict[str, Any] = {"description": route.answer}
    output = _output(route)
    if route.media_type is not None:
        success["content"] = {route.media_type: _TEXT}
    elif output is not None:
        schema = schemas.output(output)
        if "$ref" not in schema:
            path = re.sub(r"\W", "_", route.path.removeprefix("/v1"))
            schema["title"] = f"Response_{name}{path}_{route.method}".title().replace("_", " ")
        success["content"] = {"application/json": {"schema": schema}}
        if route.stream:
            success["content"]["text/event-stream"] = _TEXT
    responses = {str(route.status): success}
    if route.status_again is not None:
        responses["200"] = success | {"description": route.status_again}
    if route.status_waits is not None:
        responses["202"] = success | {"description": route.status_waits}
    problem = {"content": {MEDIA_TYPE: {"schema": {"$ref": _REF.format(model="Problem")}}}}
    return responses | {str(status): {"description": TITLES[status], **problem} for status in route.errors}


def _parameters(route: Route[Any], schemas: _Schemas) -> Iterable[dict[str, Any]]:
    for name in route.path_names:
        schema = schemas.input(route.path_types[name])
        schemas.describe(name, schema)
        yield _parameter("path", name, schema, required=True)
    if route.query is not None:
        for name, schema, required in schemas.parameters(route.query):
            yield _parameter("query", name, schema, required=required)
    headers = {LAST_EVENT: route.stream, ORG: route.needs_key, ONCE: route.once, REVISION: route.revision}
    for name, is_read in headers.items():
        if is_read:
            header = adapter(HEADERS[name]).json_schema()
            description = header.pop("description")
            schema = {"anyOf": [header, {"type": "null"}], "description": description}
            yield _parameter("header", name, schema, required=False)


def _parameter(place: str, name: str, schema: dict[str, Any], *, required: bool) -> dict[str, Any]:
    if "$ref" not in schema:
        schema["title"] = name.title().replace("_", " ")
    description = {"description": schema["description"]} if "description" in schema else {}
    return {"name": name, "in": place, "required": required, "schema": schema, **description}

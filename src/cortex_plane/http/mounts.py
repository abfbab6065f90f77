"""Puts the routes of the nouns into an application."""

from __future__ import annotations

from copy import copy

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute, request_response
from fastapi.utils import generate_unique_id
from starlette.routing import compile_path

from cortex_plane.http.bodies import guarded


def mount(app: FastAPI, router: APIRouter, prefix: str = "", *, in_document: bool = True) -> None:
    """Add the routes of ``router`` below ``prefix``.

    `include_router` would build every route once more with the first request: half a second for all of them. What a route
    is built of does not depend on its prefix.
    """
    for route in router.routes:
        if not isinstance(route, APIRoute):
            raise TypeError(f"{route!r} is not a route of FastAPI")
        moved = copy(route)
        moved.path = prefix + route.path
        moved.path_regex, moved.path_format, moved.param_convertors = compile_path(moved.path)
        moved.app = request_response(guarded(moved))
        moved.unique_id = moved.operation_id or generate_unique_id(moved)
        moved.include_in_schema = route.include_in_schema and in_document
        app.router.routes.append(moved)

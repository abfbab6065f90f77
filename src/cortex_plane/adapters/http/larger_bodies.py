"""A route that takes a larger body than others, from callers who are known and may send one.

The framework reads a body before it asks who sends it. Here the caller comes first: until then nobody makes the plane
hold more than on any other route.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from cortex_plane.adapters.http.exchange import authenticated
from cortex_plane.adapters.http.frame import allow_larger_body
from cortex_plane.domain.access import Permission
from cortex_plane.domain.fields import SLUG_PATTERN


class LargerBodyRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        ordinary = super().get_route_handler()
        permission = Permission((self.openapi_extra or {})["x-permission"])

        async def handle(request: Request) -> Response:
            org = request.headers.get("cortex-org")
            # A header that is none is refused where its other faults are, within the ordinary limit.
            if org is None or (len(org) <= 100 and re.fullmatch(SLUG_PATTERN, org)):
                (await authenticated(request, org)).require(permission)
                allow_larger_body(request.scope)
            return await ordinary(request)

        return handle

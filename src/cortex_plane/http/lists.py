"""Answers with lists: pages with a cursor, lists with an order of their own, and short ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import orjson
from starlette.responses import Response

from cortex_plane.http.exchange import Binding, Exchange, Options
from cortex_plane.kernel import pages as cursors
from cortex_plane.kernel.fields import to_json
from cortex_plane.kernel.pages import Page
from cortex_plane.kernel.routes import ListRoute
from cortex_plane.tenancy.verbs.frame import Verb

T = TypeVar("T")

MAX_PAGE_BYTES = 2 * 1024 * 1024


def pages(
    route: ListRoute[T], verb: Verb[..., Page[T]], noun: str, more: Callable[[Exchange], Options] | None = None
) -> Binding:
    """Answer with a page, newest first. The noun marks its cursors. ``more``: options that do not come from the request."""

    async def run(exchange: Exchange, values: list[Any], options: Options) -> Response:
        if more is not None:
            options |= more(exchange)
        position, limit = cursors.decode_position(noun, options.pop("cursor")), options.pop("limit")
        return reply_page(noun, await verb(exchange.db, exchange.actor, *values, position, limit, **options))

    return Binding(route, verb.permission, run, verb.heavy)


def ordered(
    route: ListRoute[T],
    verb: Verb[..., list[T]],
    noun: str,
    bound: str,
    key: Callable[[T], int | str],
    *,
    start: int | None = None,
    is_text: bool = False,
) -> Binding:
    """Answer with a page of a list that is ordered by a key of its own, above or below the last one: ``bound``."""

    async def run(exchange: Exchange, values: list[Any], options: Options) -> Response:
        cursor, limit = options.pop("cursor"), options.pop("limit")
        last: int | str | None = cursors.decode_text(noun, cursor) if is_text else cursors.decode_number(noun, cursor)
        options.setdefault(bound, start)
        if last is not None:
            options[bound] = last
        items = await verb(exchange.db, exchange.actor, *values, limit=limit + 1, **options)
        return reply_ordered(noun, items, limit, key)

    return Binding(route, verb.permission, run, verb.heavy)


def whole(
    route: ListRoute[T], verb: Verb[..., Sequence[T]], more: Callable[[Exchange], Options] | None = None
) -> Binding:
    """Answer with a list that is short by nature: one page, and no cursor."""

    async def run(exchange: Exchange, values: list[Any], options: Options) -> Response:
        if more is not None:
            options |= more(exchange)
        items = await verb(exchange.db, exchange.actor, *values, **options)
        return _render_list([to_json(item) for item in items], None)

    return Binding(route, verb.permission, run, verb.heavy)


def reply_page(noun: str, page: Page[Any]) -> Response:
    texts = _render_fitting(page.items)
    if len(texts) < len(page.items):
        last = page.items[len(texts) - 1]
        return _render_list(texts, cursors.encode(noun, last.created_at, str(last.id)))
    return _render_list(texts, cursors.encode_position(noun, page.next))


def reply_ordered(noun: str, items: Sequence[T], limit: int, key: Callable[[T], int | str]) -> Response:
    texts = _render_fitting(items[:limit])
    more = len(items) > len(texts)
    return _render_list(texts, cursors.encode(noun, key(items[len(texts) - 1])) if more else None)


def _render_fitting(items: Sequence[Any]) -> list[bytes]:
    """As many items as JSON as fit into an answer of bearable size, but at least one."""
    texts: list[bytes] = []
    size = 0
    for item in items:
        texts.append(to_json(item))
        size += len(texts[-1])
        if size > MAX_PAGE_BYTES:
            return texts
    return texts


def _render_list(texts: list[bytes], cursor: str | None) -> Response:
    body = b'{"items":[' + b",".join(texts) + b'],"next_cursor":' + orjson.dumps(cursor) + b"}"
    return Response(body, media_type="application/json")

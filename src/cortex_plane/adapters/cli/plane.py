"""How a command reaches the plane, and how its errors reach the person."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NoReturn, ParamSpec, TypeVar

import click
import pydantic
from rich.console import Console

from cortex_plane.client import Client
from cortex_plane.domain.errors import (
    Conflict,
    CortexError,
    Forbidden,
    InvalidInput,
    NotFound,
    Unauthenticated,
    Unavailable,
)
from cortex_plane.settings import Settings, load

P = ParamSpec("P")
T = TypeVar("T")

ACCESS_FILE = "access.json"

# 0 is success and 2 is click's "wrong usage". docs/cli.md lists them.
EXIT_CODES: dict[type[CortexError], int] = {
    CortexError: 1,
    InvalidInput: 2,
    NotFound: 3,
    Conflict: 4,
    Unauthenticated: 5,
    Forbidden: 5,
    Unavailable: 6,
}


def write_access(home: Path, url: str, key: str) -> None:
    """Keep what commands need to reach the plane. Only its owner may read it: it holds a key."""
    path = home / ACCESS_FILE
    draft = path.with_suffix(".new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump({"url": url, "key": key}, file)
    draft.replace(path)


def read_access(home: Path) -> dict[str, str]:
    try:
        found: dict[str, str] = json.loads((home / ACCESS_FILE).read_text())
    except (OSError, ValueError):
        return {}
    return found


def connect(settings: Settings) -> Client:
    kept = read_access(settings.home)
    url = settings.url or kept.get("url")
    key = settings.key or kept.get("key")
    if not url or not key:
        raise Unavailable(
            f"There is no plane to talk to: neither CORTEX_URL and CORTEX_KEY nor {settings.home / ACCESS_FILE}.",
            hint="Start one here with `cortex up`, or set CORTEX_URL and CORTEX_KEY.",
        )
    return Client(url, key, org=settings.org)


def run(work: Callable[[Client], Awaitable[T]]) -> T:
    """Do something with the plane."""

    async def with_client() -> T:
        async with connect(load()) as plane:
            return await work(plane)

    return asyncio.run(with_client())


async def collect(items: AsyncIterator[T]) -> list[T]:
    return [item async for item in items]


def fail(error: CortexError) -> NoReturn:
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"[bold red]error[/] [dim]{error.code}[/]: ", end="")
    console.print(error.message, markup=False)
    if error.hint:
        console.print(error.hint, markup=False, style="dim")
    sys.exit(next(EXIT_CODES[kind] for kind in type(error).__mro__ if kind in EXIT_CODES))


def invalid(error: pydantic.ValidationError) -> InvalidInput:
    said = "; ".join(f"{'.'.join(str(p) for p in e['loc'])}: {e['msg']}" for e in error.errors())
    return InvalidInput(said, hint="See --help.")


def guarded(main: Callable[P, Any]) -> Callable[P, None]:
    """Around the whole program: our errors are messages with an exit code, never tracebacks."""

    @functools.wraps(main)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            main(*args, **kwargs)
        except CortexError as error:
            fail(error)
        except pydantic.ValidationError as error:
            fail(invalid(error))
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)
        except (KeyboardInterrupt, click.Abort):
            sys.exit(130)

    return wrapped

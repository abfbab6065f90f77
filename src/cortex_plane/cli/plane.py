"""How a command reaches the plane, and how its errors reach the person."""

from __future__ import annotations

import functools
import gc
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

import typer

from cortex_plane.kernel import errors
from cortex_plane.kernel.errors import CortexError, InvalidInput, extra

if TYPE_CHECKING:
    from pydantic import ValidationError

    from cortex_plane.client import Client

P = ParamSpec("P")
T = TypeVar("T")

# 0 is success and 2 is click's "wrong usage". docs/reference/cli.md lists them.
EXIT_CODES: dict[type[CortexError], int] = {
    CortexError: 1,
    InvalidInput: 2,
    errors.NotFound: 3,
    errors.Conflict: 4,
    errors.Unauthenticated: 5,
    errors.Forbidden: 5,
    errors.Unavailable: 6,
}


@contextmanager
def importing() -> Iterator[None]:
    """Around imports: none of it is garbage, and the collector never looks at it again."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def run(
    work: Callable[[Client], Awaitable[T]], *, without_key: bool = False, find: Callable[[], Client] | None = None
) -> T:
    """Do something with the plane, which ``find`` may find otherwise than other commands do."""
    with importing():
        import asyncio

        from cortex_plane.client import Client

    client = find or (Client.without_key if without_key else Client.here)

    async def with_client() -> T:
        async with client() as plane:
            return await work(plane)

    return asyncio.run(with_client())


def harmless(text: str) -> str:
    """Control characters, and characters that are invisible or reverse a line, made visible."""
    return "".join(c if c.isprintable() or c == "\n" else f"\\x{ord(c):02x}" for c in text)


def fail(error: CortexError, code: int | None = None) -> NoReturn:
    """Tell it and end, with ``code`` or the one of its kind."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"[bold red]error[/] [dim]{error.code}[/]: ", end="")
    # What others wrote, such as a reason, may be quoted in it: its further lines cannot pass for ours.
    console.print(harmless(error.message).replace("\n", "\n  "), markup=False)
    if error.hint:
        console.print(harmless(error.hint), markup=False, style="dim")
    kinds = (EXIT_CODES[kind] for kind in type(error).__mro__ if kind in EXIT_CODES)
    sys.exit(next(kinds) if code is None else code)


def invalid(error: ValidationError) -> InvalidInput:
    text = "; ".join(f"{'.'.join(str(p) for p in e['loc'])}: {e['msg']}" for e in error.errors())
    return InvalidInput(text, hint="See --help.")


def guarded(main: Callable[P, Any]) -> Callable[P, None]:
    """Around the whole program: our errors are messages with an exit code, never tracebacks."""

    @functools.wraps(main)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            with extra("all"):
                main(*args, **kwargs)
        except CortexError as error:
            fail(error)
        except ValueError as error:
            from pydantic import ValidationError

            if not isinstance(error, ValidationError):
                raise
            fail(invalid(error))
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)
        except (KeyboardInterrupt, typer.Abort):
            sys.exit(130)

    return wrapped

"""The extras of the distribution: what `pip install cortex-plane` alone does not bring."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cortex_plane.kernel.errors import SetupError


class MissingExtra(SetupError, ImportError):
    """A package is not installed that an extra brings."""

    code = "missing_extra"
    default_hint = "Run `pip install 'cortex-plane[all]'`."


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Around imports of what the extra ``name`` brings: where it is missing, the error says what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "cortex_plane"):
            raise
        raise MissingExtra(
            f"The package {package} is not installed: run `pip install 'cortex-plane[{name}]'`.", hint=""
        ) from error

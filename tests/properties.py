"""Properties that hold for everything made up: `make test` tries a few examples of each, `make soak` many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis.strategies import SearchStrategy

from tests.crash.points import extents


def holds_for(
    *values: SearchStrategy[Any], few: int, many: int, **named: SearchStrategy[Any]
) -> Callable[[Callable[..., None]], Callable[[bool], None]]:
    """The same as Hypothesis' `given`, in a short and a whole form."""

    def decorate(check: Callable[..., None]) -> Callable[[bool], None]:
        def test(whole: bool) -> None:
            settings(max_examples=many if whole else few, deadline=None)(given(*values, **named)(check))()

        test.__name__, test.__qualname__ = check.__name__, check.__qualname__
        test.__module__, test.__doc__ = check.__module__, check.__doc__
        test.__dict__.update(check.__dict__)  # its marks
        return extents(test)

    return decorate

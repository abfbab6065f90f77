"""What an answer costs, by the price list that comes with the provider library: no network, and no guesses."""

from __future__ import annotations

import asyncio
import functools
import math
from decimal import Decimal

from cortex_plane.agents.model.completions import Usage
from cortex_plane.jobs.model.usage import MICROS, is_scripted


async def cost_micros(model: str, usage: Usage) -> int | None:
    """Millionths of a US dollar, rounded up; None where nobody knows. The list is large: it is read in a thread."""
    if is_scripted(model):
        return 0
    provider, _, name = model.partition(":")
    if not name:
        return None
    return await asyncio.to_thread(_cost, provider, name, usage)


def _cost(provider: str, name: str, usage: Usage) -> int | None:
    if not _has_price(provider, name):
        return None
    from genai_prices import Usage as Counted
    from genai_prices import calc_price

    tokens = Counted(
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
    )
    try:
        price: Decimal = calc_price(tokens, name, provider_id=provider).total_price
    except (LookupError, ValueError):
        return None
    return math.ceil(price * MICROS)


@functools.lru_cache(maxsize=1024)
def _has_price(provider: str, name: str) -> bool:
    from genai_prices import Usage as Counted
    from genai_prices import calc_price

    try:
        calc_price(Counted(input_tokens=1, output_tokens=1), name, provider_id=provider)
    except (LookupError, ValueError):
        return False
    return True

"""What went wrong with a provider, said so that somebody can act on it, and without the key."""

from __future__ import annotations

import math
from typing import Any

from cortex_plane.agents.model.completions import ModelError
from cortex_plane.tenancy.model.credentials import Provider
from cortex_plane.worker.calls import storable
from cortex_plane.worker.models.keys import VARIABLES, Credential

MOST = 500
TOO_LONG = (
    "context_length_exceeded", "context length", "context window", "context size", "context limit", "prompt is too long",
    "input is too long",
)  # fmt: skip
"""How servers word it; those that speak OpenAI's protocol rarely send its code."""
BROKEN = "If it stays, the provider, or whatever answers at its base URL, does not speak its own protocol: look at `{url}`."


def as_model_error(error: Exception, model: str, credential: Credential) -> ModelError:
    """Whatever a provider's library raises."""
    from pydantic_ai import exceptions as of

    provider = credential.provider
    said = storable(credential.without(_said(error)))[:MOST]
    status = error.status_code if isinstance(error, of.ModelHTTPError) else None
    wait = _retry_after(error)
    if isinstance(error, of.ModelQuotaExceededError):
        return ModelError(
            f"{provider} asks for money before it answers for `{model}`: {said}",
            status=status,
            code="model_quota",
            hint="Look at the account's balance and limits, then `cortex job resubmit` the job.",
        )
    if isinstance(error, of.ModelContextWindowExceededError) or (status in (400, 413) and _too_long(error)):
        return ModelError(
            f"The prompt is too long for `{model}`: {said}",
            status=status or 400,
            code="prompt_too_long",
            hint="Lower `context_tokens` in the agent's `model_config` below what the model takes, give it fewer tools,"
            " or name a model with a larger window; then `cortex job resubmit` the job.",
        )
    if status is None:
        return _unanswered(error, model, credential, said, wait)
    message = f"{provider} answered {status} for `{model}`: {said}"
    return ModelError(message, status=status, hint=_hint(status, provider, credential), retry_after=wait)


def _unanswered(
    error: Exception, model: str, credential: Credential, said: str, wait: float | None
) -> ModelError:
    from pydantic_ai import exceptions as of

    provider, variable = credential.provider, VARIABLES[credential.provider][1]
    where = f"{provider} ({credential.base_url or 'its own address'})"
    if isinstance(error, of.ModelConnectionError):
        return ModelError(
            f"The connection to {where} failed while it was asked for `{model}`: {said}",
            hint=f"Check that the worker reaches it, and {variable} if it is set.",
            retry_after=wait,
        )
    if isinstance(error, of.ModelAPIError):
        hint = "Try again; if it stays, look at the provider's status."
        return ModelError(f"{where} gave no answer for `{model}`: {said}", hint=hint, retry_after=wait)
    return ModelError(
        f"{where} answered for `{model}` with something that its own protocol does not have: {said}",
        hint=BROKEN.format(url=variable),
    )


def incomplete(model: str, credential: Credential) -> ModelError:
    return ModelError(
        f"The answer of {credential.provider} for `{model}` ended before it was complete.",
        hint="Try again; if it stays, look at the provider's status, or at what lies between it and the worker.",
    )


def not_installed(model: str, error: ImportError) -> ModelError:
    return ModelError(
        f"This worker cannot ask `{model}`: {error}",
        code="no_provider",
        hint="Install it on the worker: `pip install 'pydantic-ai-slim[anthropic,openai]'`.",
    )


def _hint(status: int, provider: Provider, credential: Credential) -> str:
    variable = VARIABLES[provider][0]
    match status:
        case 401 | 403:
            return (
                f"It refused {credential.named}. Correct {variable} where the workers are started, or use"
                f" `cortex model-key set {provider}` for the org's own."
            )
        case 404:
            return "Check the model's name in the agent's `model_config`, and that the key may use it."
        case 413:
            return "The request is too large: lower `context_tokens` in the agent's `model_config`, or give it fewer tools."
        case 429:
            return "It limits how much is asked: the job waits and tries again. Raise the limit there if it stays."
        case 503 | 529:
            return "It is overloaded: the job waits and tries again."
    if status >= 500:
        return "Its own fault: the job tries again. Look at the provider's status if it stays."
    return "Correct the agent's `model_config` or its tools, then `cortex job resubmit` the job."


def _said(error: Exception) -> str:
    """The provider's own words, where there are any."""
    body: Any = getattr(error, "body", None)
    if isinstance(body, dict):
        inner = body.get("error", body)
        message = inner.get("message") if isinstance(inner, dict) else inner
        if isinstance(message, str) and message:
            return message
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    said = str(error) or type(error).__name__
    return said if cause is error or str(cause) in ("", said) else f"{said} ({cause})"


def _too_long(error: Exception) -> bool:
    """Whether a server that has no code of its own for it says that the prompt does not fit."""
    said = _said(error).lower()
    return any(words in said for words in TOO_LONG)


def _retry_after(error: Exception) -> float | None:
    """Seconds, also where they are a fraction, or come as a date."""
    found: float | None = getattr(error, "retry_after", None)
    if found is None:
        raw = (getattr(error, "headers", None) or {}).get("retry-after", "")
        try:
            found = float(raw)
        except ValueError:
            return None
    return found if math.isfinite(found) and found >= 0 else None

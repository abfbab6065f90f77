"""The chat completions API: `POST /v1/chat/completions`, as chunks or whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

from tests.providers.answers import Answer
from tests.providers.serving import Asked, Provider, Rejected, midway, serving

CODES = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}


def openai_server(key: str = "sk-openai-test-0001") -> AbstractAsyncContextManager[OpenAIServer]:
    return serving(OpenAIServer(key))


class OpenAIServer(Provider):
    path = "/v1/chat/completions"
    suffix = "/v1"
    modules = ("pydantic_ai.models.openai", "pydantic_ai.providers.openai")

    def check(self, asked: Asked) -> None:
        if not asked.body.get("model") or not asked.body.get("messages"):
            raise Rejected(400, "Missing required parameter: 'messages'.")
        due: list[str] = []
        for number, message in enumerate(asked.body["messages"]):
            if message["role"] == "tool":
                if message["tool_call_id"] not in due:
                    raise Rejected(400, f"messages[{number}]: 'tool' must answer a preceding 'tool_calls'")
                due.remove(message["tool_call_id"])
                continue
            if due:
                raise Rejected(400, f"messages[{number}]: 'tool_calls' must be followed by tool messages")
            due = [call["id"] for call in message.get("tool_calls") or ()]
            for call in message.get("tool_calls") or ():
                if not isinstance(call["function"]["arguments"], str):
                    raise Rejected(400, f"messages[{number}]: arguments: expected a string")
        if due:
            raise Rejected(400, "messages: 'tool_calls' must be followed by tool messages")

    def error(self, status: int, message: str) -> dict[str, Any]:
        kind = "invalid_request_error" if status < 500 else "server_error"
        return {"error": {"message": message, "type": kind, "param": None, "code": CODES.get(status)}}

    def events(self, asked: Asked, answer: Answer) -> Iterator[bytes | None]:
        deltas: list[dict[str, Any]] = []
        if answer.thinking is not None:
            deltas.append({"reasoning_content": answer.thinking})
        deltas += [{"content": word} for word in answer.words]
        if answer.refusal is not None:
            deltas.append({"refusal": answer.refusal})
        for number, use in enumerate(answer.uses):
            opening = {"name": use.name, "arguments": ""}
            deltas.append(
                {
                    "tool_calls": [
                        {"index": number, "id": self._id(asked, number), "type": "function", "function": opening}
                    ]
                }
            )
            deltas += [
                {"tool_calls": [{"index": number, "function": {"arguments": use.arguments[at : at + 10]}}]}
                for at in range(0, len(use.arguments), 10)
            ]
        start: dict[str, Any] = {"role": "assistant", "content": None if answer.uses else ""}
        first = [self._chunk(asked, start), *(self._chunk(asked, delta) for delta in deltas[:3])]
        rest = [self._chunk(asked, delta) for delta in deltas[3:]]
        rest.append(self._chunk(asked, {}, _finish_reason(answer)))
        if (asked.body.get("stream_options") or {}).get("include_usage"):
            rest.append(_data({**self._frame(asked, "chat.completion.chunk"), "choices": [], "usage": _usage(answer)}))
        rest.append(b"data: [DONE]\n\n")
        broken = None if answer.broken is None else b"data: %s\n\n" % answer.broken
        if answer.fails_midway is not None:
            broken, rest = _data({"error": {"message": answer.message, "type": answer.fails_midway}}), []
        yield from midway(first, answer, broken, rest)

    def whole(self, asked: Asked, answer: Answer) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": answer.refusal}
        if answer.uses:
            message["tool_calls"] = [
                {
                    "id": self._id(asked, number),
                    "type": "function",
                    "function": {"name": use.name, "arguments": use.arguments},
                }
                for number, use in enumerate(answer.uses)
            ]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish_reason(answer)}
        return {**self._frame(asked, "chat.completion"), "choices": [choice], "usage": _usage(answer)}

    def _id(self, asked: Asked, number: int) -> str:
        return f"call_{asked.turn}_{number}"

    def _frame(self, asked: Asked, kind: str) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{len(self.asked)}",
            "object": kind,
            "created": 1_700_000_000,
            "model": asked.body["model"],
            "system_fingerprint": "fp_test",
        }

    def _chunk(self, asked: Asked, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return _data({**self._frame(asked, "chat.completion.chunk"), "choices": [choice]})


def _data(value: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()


def _finish_reason(answer: Answer) -> str:
    if answer.truncated:
        return "length"
    if answer.refusal is not None and answer.text:
        return "content_filter"
    return "tool_calls" if answer.uses else "stop"


def _usage(answer: Answer) -> dict[str, Any]:
    """What was read from the cache is part of the prompt here, unlike with Anthropic."""
    prompt = answer.prompt_tokens + answer.cache_read_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answer.completion_tokens,
        "total_tokens": prompt + answer.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": answer.cache_read_tokens, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }

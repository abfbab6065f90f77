"""The Messages API: `POST /v1/messages`, as events or whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

from tests.providers.answers import Answer
from tests.providers.serving import Asked, Provider, Rejected, midway, serving

KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}


def anthropic_server(key: str = "sk-ant-test-0001") -> AbstractAsyncContextManager[AnthropicServer]:
    return serving(AnthropicServer(key))


class AnthropicServer(Provider):
    path = "/v1/messages"
    modules = ("pydantic_ai.models.anthropic", "pydantic_ai.providers.anthropic")

    def check(self, asked: Asked) -> None:
        body = asked.body
        if "anthropic-version" not in asked.headers:
            raise Rejected(400, "anthropic-version: header is required")
        for name in ("model", "max_tokens", "messages"):
            if not body.get(name):
                raise Rejected(400, f"{name}: Field required")
        if body["messages"][0]["role"] != "user":
            raise Rejected(400, 'messages: first message must use the "user" role')
        open_uses: set[str] = set()
        for number, message in enumerate(body["messages"]):
            blocks = message["content"]
            blocks = [{"type": "text", "text": blocks}] if isinstance(blocks, str) else blocks
            results = {block["tool_use_id"] for block in blocks if block["type"] == "tool_result"}
            if open_uses != results:
                raise Rejected(400, f"messages.{number}: `tool_use` ids without `tool_result` blocks, or not asked")
            if not blocks or any(block["type"] == "text" and not block["text"].strip() for block in blocks):
                raise Rejected(400, f"messages.{number}: text content blocks must be non-empty")
            open_uses = {block["id"] for block in blocks if block["type"] == "tool_use"}
            for block in blocks:
                if block["type"] == "tool_use" and not isinstance(block["input"], dict):
                    raise Rejected(400, f"messages.{number}: tool_use.input: Input should be a valid dictionary")
        if open_uses:
            raise Rejected(400, "messages: `tool_use` ids without `tool_result` blocks")

    def error(self, status: int, message: str) -> dict[str, Any]:
        kind = KINDS.get(status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_test"}

    def events(self, asked: Asked, answer: Answer) -> Iterator[bytes | None]:
        start = self._message(asked, answer) | {"content": [], "stop_reason": None}
        start["usage"] |= {"output_tokens": 1}
        blocks = list(self._blocks(answer))
        first = [_event("message_start", message=start), _event("ping")]
        for index, (block, deltas) in enumerate(blocks[:1]):
            first.append(_event("content_block_start", index=index, content_block=block))
            first += [_event("content_block_delta", index=index, delta=delta) for delta in deltas[:3]]
        rest = []
        for index, (block, deltas) in enumerate(blocks):
            if index > 0:
                rest.append(_event("content_block_start", index=index, content_block=block))
            later = deltas if index > 0 else deltas[3:]
            rest += [_event("content_block_delta", index=index, delta=delta) for delta in later]
            rest.append(_event("content_block_stop", index=index))
        ending: dict[str, Any] = {"stop_reason": _stop_reason(answer), "stop_sequence": None}
        if answer.refusal is not None:
            ending["stop_details"] = {"type": "refusal", "category": "cyber", "explanation": answer.refusal}
        rest.append(_event("message_delta", delta=ending, usage={"output_tokens": answer.completion_tokens}))
        rest.append(_event("message_stop"))
        broken = None if answer.broken is None else b"event: content_block_delta\ndata: %s\n\n" % answer.broken
        if answer.fails_midway is not None:
            error = {"type": answer.fails_midway, "message": answer.message}
            broken, rest = _event("error", error=error), []
        yield from midway(first, answer, broken, rest)

    def whole(self, asked: Asked, answer: Answer) -> dict[str, Any]:
        return self._message(asked, answer)

    def _message(self, asked: Asked, answer: Answer) -> dict[str, Any]:
        content: list[dict[str, Any]] = []
        if answer.thinking is not None:
            content.append({"type": "thinking", "thinking": answer.thinking, "signature": "c2ln"})
        if answer.text:
            content.append({"type": "text", "text": answer.text})
        content += [
            {"type": "tool_use", "id": f"toolu_{asked.turn}_{n}", "name": use.name, "input": _input(use.arguments)}
            for n, use in enumerate(answer.uses)
        ]
        return {
            "id": f"msg_{len(self.asked)}",
            "type": "message",
            "role": "assistant",
            "model": asked.body["model"],
            "content": content,
            "stop_reason": _stop_reason(answer),
            "stop_sequence": None,
            "usage": {
                "input_tokens": answer.prompt_tokens,
                "cache_creation_input_tokens": answer.cache_write_tokens,
                "cache_read_input_tokens": answer.cache_read_tokens,
                "output_tokens": answer.completion_tokens,
            },
        }

    def _blocks(self, answer: Answer) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
        turn = self.asked[-1].turn
        if answer.thinking is not None:
            yield (
                {"type": "thinking", "thinking": "", "signature": ""},
                [
                    {"type": "thinking_delta", "thinking": answer.thinking},
                    {"type": "signature_delta", "signature": "c2ln"},
                ],
            )
        if answer.text:
            yield ({"type": "text", "text": ""}, [{"type": "text_delta", "text": word} for word in answer.words])
        for number, use in enumerate(answer.uses):
            parts = [use.arguments[at : at + 10] for at in range(0, len(use.arguments), 10)] or [""]
            yield (
                {"type": "tool_use", "id": f"toolu_{turn}_{number}", "name": use.name, "input": {}},
                [{"type": "input_json_delta", "partial_json": part} for part in parts],
            )


def _event(kind: str, **data: Any) -> bytes:
    body = json.dumps({"type": kind, **data})
    return f"event: {kind}\ndata: {body}\n\n".encode()


def _stop_reason(answer: Answer) -> str:
    if answer.refusal is not None:
        return "refusal"
    if answer.truncated:
        return "max_tokens"
    return "tool_use" if answer.uses else "end_turn"


def _input(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return {}

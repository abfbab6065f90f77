"""Writes `tests/emulators/published/discord.json`: what discord-api-types publishes of the messages that the emulator sends and accepts,
as a JSON Schema. Needs npm and the network; the tests need neither.

    python -m scripts.discord_types
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import unquote

RESULT = Path(__file__).parent.parent / "tests" / "emulators" / "published" / "discord.json"
PACKAGES = ("discord-api-types@0.38.57", "typescript@5", "ts-json-schema-generator@2")
TYPES = {
    "Press": "APIMessageComponentButtonInteraction",
    "Form": "APIModalSubmitInteraction",
    "SlashCommand": "APIChatInputApplicationCommandInteraction",
    "InteractionAnswer": "APIInteractionResponse",
    "Application": "RESTGetCurrentApplicationResult",
    "User": "APIUser",
    "Message": "APIMessage",
    "MessageDraft": "RESTPostAPIChannelMessageJSONBody",
    "MessageChange": "RESTPatchAPIChannelMessageJSONBody",
    "Followup": "RESTPostAPIInteractionFollowupJSONBody",
    "Commands": "RESTPutAPIApplicationCommandsJSONBody",
    "ErrorAnswer": "RESTError",
    "RateLimit": "RESTRateLimit",
    "GatewayAddress": "RESTGetAPIGatewayBotResult",
    "Hello": "GatewayHello",
    "Ready": "GatewayReadyDispatch",
    "MessageCreated": "GatewayMessageCreateDispatch",
    "InvalidSession": "GatewayInvalidSession",
    "Reconnect": "GatewayReconnect",
    "HeartbeatAck": "GatewayHeartbeatAck",
    "Heartbeat": "GatewayHeartbeat",
    "Identify": "GatewayIdentify",
    "Resume": "GatewayResume",
}
_CONFIG = {
    "compilerOptions": {"strict": True, "module": "nodenext", "moduleResolution": "nodenext", "skipLibCheck": True},
    "include": ["types.ts"],
}
_EMPTY = {"additionalProperties": False, "properties": {}, "type": "object"}
_TEXTS = frozenset({"description", "deprecated", "$comment", "default", "examples"})
# The generator does not see through these helpers of the package, which only add `undefined`.
_HELPERS = {
    r"_AddUndefinedToPossiblyUndefinedPropertiesOfInterface<(\w+)> = \{[^}]*\};": r"_AddUndefinedToPossiblyUndefinedPropertiesOfInterface<\1> = \1;",
    r"_StrictPartial<(\w+)> = [^;]*;": r"_StrictPartial<\1> = Partial<\1>;",
}


def generate(folder: Path) -> dict[str, Any]:
    lines = ['import type * as discord from "discord-api-types/v10";']
    lines += [f"export type {name} = discord.{published};" for name, published in TYPES.items()]
    (folder / "types.ts").write_text("\n".join(lines))
    (folder / "tsconfig.json").write_text(json.dumps(_CONFIG))
    subprocess.run(["npm", "install", "--silent", "--no-save", *PACKAGES], cwd=folder, check=True)
    for path in (folder / "node_modules" / "discord-api-types" / "utils").glob("internals.d.*ts"):
        text = path.read_text()
        for pattern, replacement in _HELPERS.items():
            text = re.sub(pattern, replacement, text)
        path.write_text(text)
    command = ["npx", "ts-json-schema-generator", "--path", "types.ts", "--tsconfig", "tsconfig.json", "--type", "*"]
    subprocess.run([*command, "--no-type-check", "-o", "schema.json"], cwd=folder, check=True)
    schema: dict[str, Any] = json.loads((folder / "schema.json").read_text())
    return schema


def slim(value: Any) -> Any:
    """Without the texts, and without what the generator makes of `T & {}`."""
    match value:
        case dict():
            parts = {name: slim(part) for name, part in value.items() if name not in _TEXTS or isinstance(part, dict)}
            if "allOf" in parts:
                parts["allOf"] = [part for part in parts["allOf"] if part != _EMPTY]
            return parts
        case list():
            return [slim(part) for part in value]
    return value


def reachable(definitions: dict[str, Any]) -> dict[str, Any]:
    names: set[str] = set()
    todo = list(TYPES)
    while todo:
        if (name := todo.pop()) not in names:
            names.add(name)
            todo += map(unquote, re.findall(r'"#/definitions/([^"]+)"', json.dumps(definitions[name])))
    return {name: definitions[name] for name in sorted(names)}


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="cortex-discord-types-") as folder:
        schema = generate(Path(folder))
    definitions = reachable(slim(schema["definitions"]))
    for name in definitions:
        if name.endswith("Flags"):
            definitions[name] = {"type": "integer"}  # a sum of flags
    RESULT.write_text(
        json.dumps({"$schema": schema["$schema"], "definitions": definitions}, separators=(",", ":")) + "\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

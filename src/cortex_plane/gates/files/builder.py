"""Writes atlas files from Python. Keys and their meaning are those of the file; the file's reader checks them.

```python
atlas = AtlasBuilder("com.acme.support", "1.0.0", name="ACME Support", steward_id="acme", steward_name="ACME")
atlas.add_capability("tickets", "ticket.*")
gate = atlas.add_checkpoint("confirm", "action_pre", patterns=["*.delete"])
gate.ask("sure", "This cannot be undone.", "acknowledgment").unlock("tickets")
print(atlas.to_json())
```
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import orjson

from cortex_plane.gates.model import atlases as model
from cortex_plane.kernel.fields import Risk

Names = Sequence[str]


class AtlasBuilder:
    def __init__(
        self,
        atlas_id: str,
        version: str,
        *,
        name: str,
        steward_id: str,
        steward_name: str,
        description: str | None = None,
        contact: str | None = None,
    ) -> None:
        self._steward = _entry(id=steward_id, name=steward_name, contact=contact)
        self._document = _entry(
            atlas_version=model.ATLAS_VERSION, atlas_id=atlas_id, version=version, name=name, description=description,
            steward=self._steward,
        )  # fmt: skip

    def set_access(
        self,
        type: model.AccessType | str,  # noqa: A002 -- the key of the file, as below
        *,
        api_keys: Names = (),
        requests_per_minute: int | None = None,
    ) -> Self:
        """Who may use the atlas, and how often."""
        limit = None if requests_per_minute is None else {"requests_per_minute": requests_per_minute}
        self._steward["access"] = _entry(type=type, api_keys=api_keys, rate_limit=limit)
        return self

    def notify(self, webhook: str, *triggers: str) -> Self:
        """Tell the webhook connection with this address."""
        self._steward["notifications"] = {"channels": {"webhook": webhook}, "triggers": list(triggers)}
        return self

    def add_capability(self, capability_id: str, *actions: str, name: str | None = None) -> Self:
        return self._add("capabilities", capability_id=capability_id, name=name, actions=actions)

    def add_checkpoint(
        self,
        checkpoint_id: str,
        trigger: model.TriggerType | str,
        *,
        mode: model.Mode | str = model.Mode.BLOCKING,
        name: str | None = None,
        audience: model.Audience | str | None = None,
        priority: int | None = None,
        max_attempts: int | None = None,
        force_sync_trace: bool | None = None,
        patterns: Names = (),
        match_mode: model.MatchMode | str | None = None,
        case_sensitive: bool | None = None,
        min_tier: Risk | str | None = None,
        capability_ids: Names = (),
        seconds: float | None = None,
        actions: int | None = None,
        trigger_id: str | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> CheckpointBuilder:
        """A gate; what it asks, tells and opens is said to the value that is returned. The keys from ``patterns`` on are those
        of the trigger."""
        fires = _entry(
            type=trigger, patterns=patterns, match_mode=match_mode, case_sensitive=case_sensitive, min_tier=min_tier,
            capability_ids=capability_ids, seconds=seconds, actions=actions, trigger_id=trigger_id, params=params,
        )  # fmt: skip
        self._add(
            "checkpoints", checkpoint_id=checkpoint_id, name=name, trigger=fires, mode=mode, audience=audience,
            priority=priority, max_attempts=max_attempts, force_sync_trace=force_sync_trace,
        )  # fmt: skip
        return CheckpointBuilder(self._document["checkpoints"][-1])

    def add_context(
        self,
        context_id: str,
        content: str,
        *,
        name: str | None = None,
        priority: int | None = None,
        inject_mode: model.InjectMode | str | None = None,
        keywords: Names = (),
        match_mode: model.MatchMode | str | None = None,
        case_sensitive: bool | None = None,
        min_tier: Risk | str | None = None,
    ) -> Self:
        return self._add(
            "context_blocks", context_id=context_id, name=name, content=content, priority=priority,
            inject_mode=inject_mode, keywords=keywords, match_mode=match_mode, case_sensitive=case_sensitive,
            min_tier=min_tier,
        )  # fmt: skip

    def add_policy(
        self,
        policy_id: str,
        type: model.AtlasPolicyType | str,  # noqa: A002
        *actions: str,
        reason: str | None = None,
        template: str | None = None,
        max_calls: int | None = None,
        window_seconds: float | None = None,
    ) -> Self:
        return self._add(
            "policies", policy_id=policy_id, type=type, actions=actions, reason=reason, template=template,
            max_calls=max_calls, window_seconds=window_seconds,
        )  # fmt: skip

    def add_action(
        self,
        action_id: str,
        *,
        name: str | None = None,
        description: str | None = None,
        risk_tier: Risk | str | None = None,
        parameters_schema: Mapping[str, Any] | None = None,
    ) -> Self:
        return self._add(
            "actions", action_id=action_id, name=name, description=description, risk_tier=risk_tier,
            parameters_schema=parameters_schema,
        )  # fmt: skip

    def configure(self, **sections: Mapping[str, Any]) -> Self:
        """Sections of `checkpoint_config`, the short form."""
        self._document.setdefault("checkpoint_config", {}).update(sections)
        return self

    def to_json(self) -> str:
        """The file."""
        return orjson.dumps(self._document, option=orjson.OPT_INDENT_2).decode()

    def to_file(self) -> model.AtlasFile:
        """For `plane.atlases.publish`."""
        return model.AtlasFile(manifest=self.to_json(), name=f"{self._document['atlas_id']}.json"[:200])

    def check(self) -> list[str]:
        """Read the file as the plane does; returns the warnings. Raises ``InvalidInput`` that names every fault."""
        from cortex_plane.gates.files.atlases import read  # only this needs the reader, which is part of the server

        return read(self.to_json(), name=f"{self._document['atlas_id']}.json").warnings

    def _add(self, section: str, **fields: Any) -> Self:
        self._document.setdefault(section, []).append(_entry(**fields))
        return self


class CheckpointBuilder:
    """What one gate asks, tells and opens."""

    def __init__(self, entry: dict[str, Any]) -> None:
        self._entry = entry

    def ask(
        self,
        question_id: str,
        question: str,
        response_type: model.ResponseType | str,
        *,
        required: bool | None = None,
        hint: str | None = None,
        on_invalid: model.OnInvalid | str | None = None,
        options: Names = (),
        schema: Mapping[str, Any] | None = None,
        pattern: str | None = None,
        min_length: int | None = None,
        max_length: int | None = None,
        must_contain: Names = (),
        must_not_contain: Names = (),
        minimum: float | None = None,
        maximum: float | None = None,
        custom_validator: str | None = None,
    ) -> Self:
        """The keys from ``pattern`` on are those of `validation`."""
        validation = _entry(
            pattern=pattern, min_length=min_length, max_length=max_length, must_contain=must_contain,
            must_not_contain=must_not_contain, minimum=minimum, maximum=maximum, custom_validator=custom_validator,
        )  # fmt: skip
        entry = _entry(
            question_id=question_id, question=question, response_type=response_type, required=required, hint=hint,
            on_invalid=on_invalid, options=options, schema=schema, validation=validation or None,
        )  # fmt: skip
        self._entry.setdefault("questions", []).append(entry)
        return self

    def guide(
        self,
        content: str | Mapping[str, Any],
        *,
        format: model.GuidanceFormat | str | None = None,  # noqa: A002
        priority: int | None = None,
        append: bool | None = None,
        expires_after: str | None = None,
        labels: Names = (),
    ) -> Self:
        self._entry["guidance"] = _entry(
            content=content, format=format, priority=priority, append=append, expires_after=expires_after, labels=labels
        )
        return self

    def inject(self, *context_ids: str) -> Self:
        return self._extend("inject_contexts", context_ids)

    def unlock(self, *capability_ids: str) -> Self:
        return self._extend("unlock_capabilities", capability_ids)

    def lock(self, *capability_ids: str) -> Self:
        return self._extend("lock_capabilities", capability_ids)

    def allow(self, *actions: str) -> Self:
        return self._extend("allow_actions", actions)

    def deny(self, *actions: str) -> Self:
        return self._extend("deny_actions", actions)

    def _extend(self, key: str, names: Names) -> Self:
        self._entry.setdefault(key, []).extend(names)
        return self


def _entry(**fields: Any) -> dict[str, Any]:
    """Without what was left out."""
    values = {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}
    return {name: value for name, value in values.items() if value is not None and value != []}

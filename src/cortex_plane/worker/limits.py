"""What one agent version allows its jobs, read once per attempt."""

from __future__ import annotations

from dataclasses import dataclass

from cortex_plane.agents.model.agents import (
    CheckpointGranularity,
    PromptChange,
    ResourceLimits,
    SkillSettings,
)
from cortex_plane.jobs.rules.attempts import Assignment
from cortex_plane.kernel.errors import Backoff
from cortex_plane.kernel.fields import parse


@dataclass(frozen=True, slots=True)
class Limits:
    resources: ResourceLimits
    skills: SkillSettings

    @classmethod
    def of(cls, given: Assignment) -> Limits:
        return cls(parse(ResourceLimits, given.resource_limits), SkillSettings.of(given.skill_config))

    @property
    def backoff(self) -> Backoff:
        return Backoff(
            base_seconds=self.resources.retry_base_seconds, cap_seconds=self.resources.retry_cap_seconds
        )

    @property
    def per_call(self) -> bool:
        return self.skills.checkpoint_granularity is CheckpointGranularity.PER_TOOL_CALL

    @property
    def on_prompt_change(self) -> PromptChange:
        return self.skills.on_prompt_change

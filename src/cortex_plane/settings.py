"""Every setting, in one object, read from the environment. Each has a heading in docs/settings.md."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AliasChoices, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from cortex_plane.domain.errors import SetupError


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="CORTEX_", extra="ignore", env_ignore_empty=True)

    database_url: Annotated[str | None, Field(validation_alias=AliasChoices("DATABASE_URL"))] = None
    database_admin_url: Annotated[str | None, Field(validation_alias=AliasChoices("DATABASE_ADMIN_URL"))] = (
        None
    )
    home: Path = Path(".cortex")
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8420
    pool_size: Annotated[int, Field(ge=2, le=500)] = 20
    prepared_statements: bool = True
    postgres_binaries: Path | None = None
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "text"] = "json"


def load() -> Settings:
    try:
        return Settings()
    except ValidationError as error:
        first = error.errors()[0]
        name = "_".join(str(part) for part in first["loc"]).upper()
        name = name if name.startswith("DATABASE") else f"CORTEX_{name}"
        raise SetupError(
            f"The setting {name} is not valid: {first['msg']}.",
            code="invalid_setting",
            hint="Correct the environment variable; docs/settings.md describes it.",
        ) from None

"""The class of all settings, and what is known about each: its variable, and whether it is a secret."""

from pathlib import Path

from pydantic import AliasChoices
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from app.errors import ConfigurationError
from app.settings.discovery import DiscoverySettings
from app.settings.embedding import EmbeddingSettings
from app.settings.identity import IdentitySettings
from app.settings.indexing import IndexingSettings
from app.settings.keys import KeySettings
from app.settings.limits import LimitSettings
from app.settings.network import NetworkSettings
from app.settings.process import ProcessSettings
from app.settings.servers import ServerSettings
from app.settings.services import ServiceSettings
from app.settings.sign_in import SignInSettings
from app.settings.storage import StorageSettings

PREFIX = "TOOLSCOUT_"


# Pydantic validates the fields of the last base first: a check that reads a field of another group stands above it.
class Settings(
    ServerSettings,
    IdentitySettings,
    IndexingSettings,
    LimitSettings,
    ServiceSettings,
    DiscoverySettings,
    EmbeddingSettings,
    KeySettings,
    StorageSettings,
    SignInSettings,
    NetworkSettings,
    ProcessSettings,
    BaseSettings,
):
    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_file=".env",
        extra="ignore",
        populate_by_name=True,
        # compose and .env files often list a variable without a value, which means that it is not set
        env_ignore_empty=True,
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 X_FILE variables replace its secrets folder
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        files = InitSettingsSource(settings_cls, _read_secret_files(env_settings, dotenv_settings))
        return init_settings, files, env_settings, dotenv_settings

    @property
    def runs_worker(self) -> bool:
        """Whether this process processes index runs."""
        return self.role != "web" and self.index_concurrency > 0

    @property
    def seeds_demo(self) -> bool:
        return self.uses_embedded_db if self.demo is None else self.demo


def variable_name(field: str) -> str:
    """Return the environment variable that sets a field."""
    alias = Settings.model_fields[field].validation_alias
    return str(alias.choices[0]) if isinstance(alias, AliasChoices) else f"{PREFIX}{field.upper()}"


def secret_fields() -> list[str]:
    """Return the secret fields. Each can also be read from a file, whose path is in its variable with `_FILE`."""
    return [name for name, field in Settings.model_fields.items() if "SecretStr" in str(field.annotation)]


def _read_secret_files(*sources: PydanticBaseSettingsSource) -> dict[str, str]:
    variables: dict[str, str | None] = {}
    for source in sources:
        assert isinstance(source, EnvSettingsSource)  # noqa: S101 the environment and `.env`
        variables = {**source.env_vars, **variables}
    secrets = {}
    for field in secret_fields():
        name = variable_name(field)
        if path := variables.get(f"{name}_FILE".lower()):
            if variables.get(name.lower()):
                raise ConfigurationError(f"set either {name} or {name}_FILE, not both")
            secrets[field] = _read_secret_file(path, f"{name}_FILE")
    return secrets


def _read_secret_file(path: str, variable: str) -> str:
    try:
        secret = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{variable}: cannot read the file {path}") from error
    if not secret:
        raise ConfigurationError(f"{variable}: the file {path} is empty")
    return secret

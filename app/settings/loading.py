"""Read the settings, and report what is wrong with them by the names of their variables."""

from difflib import get_close_matches

from pydantic import ValidationError
from pydantic_settings import DotEnvSettingsSource, EnvSettingsSource

from app.errors import ConfigurationError
from app.settings.model import PREFIX, Settings, secret_fields, variable_name

_TYPO_SIMILARITY = 0.75


def load_settings() -> Settings:
    """Read the settings. Raises `ConfigurationError`, which names each variable with an invalid value."""
    try:
        return Settings()
    except ValidationError as error:
        lines = [
            f"  {_get_variable(str(item['loc'][0]))}: {item['msg'].removeprefix('Value error, ')}"
            for item in error.errors()
        ]
        raise ConfigurationError("\n".join(["invalid settings:", *lines])) from None


def _get_variable(location: str) -> str:
    """Return the variable that an error is about: pydantic reports the field, or the alias where there is one."""
    return location if location.isupper() else variable_name(location)


def find_typos() -> list[str]:
    """Return a message for each variable, in the environment or in `.env`, whose name is almost that of a setting."""
    known = {variable_name(field) for field in Settings.model_fields}
    known |= {f"{variable_name(field)}_FILE" for field in secret_fields()}
    sources = EnvSettingsSource(Settings), DotEnvSettingsSource(Settings)
    present = {name.upper() for source in sources for name in source.env_vars}
    by_suffix = {name.removeprefix(PREFIX): name for name in known if name.startswith(PREFIX)}
    messages = []
    for name in sorted(present - known):
        if name.startswith(PREFIX):
            nearest = get_close_matches(name.removeprefix(PREFIX), by_suffix, n=1, cutoff=_TYPO_SIMILARITY)
            messages += [f"unknown setting {name}; did you mean {by_suffix[suffix]}?" for suffix in nearest]
    return messages

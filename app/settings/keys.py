"""The operator's keys and secrets."""

import base64
import binascii

from pydantic import BaseModel, Field, SecretStr

from app.errors import ConfigurationError
from app.settings.values import split_list

SECRET_KEY_BYTES = 32


class KeySettings(BaseModel):
    admin_api_key: SecretStr | None = Field(
        None,
        min_length=16,
        description="admin key that is always valid; if not set, the first start creates one and prints it once",
    )
    secret_key: SecretStr | None = Field(
        None,
        description="key that encrypts stored credentials: 32 bytes in base64; required with `DATABASE_URL`, generated "
        "in the data folder otherwise",
    )
    old_secret_keys: SecretStr = Field(
        SecretStr(""),
        description="previous secret keys, comma-separated; they decrypt credentials, but encrypt no new ones",
    )
    metrics_key: SecretStr | None = Field(None, description="bearer token that `/metrics` requires, if set")

    @property
    def former_secret_keys(self) -> list[str]:
        return split_list(self.old_secret_keys.get_secret_value())


def decode_secret_key(text: str) -> bytes:
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ConfigurationError(
            "TOOLSCOUT_SECRET_KEY is not base64; generate one with `openssl rand -base64 32`"
        ) from error
    if len(key) != SECRET_KEY_BYTES:
        raise ConfigurationError(
            f"TOOLSCOUT_SECRET_KEY holds {len(key)} bytes, not {SECRET_KEY_BYTES}; "
            "generate one with `openssl rand -base64 32`"
        )
    return key

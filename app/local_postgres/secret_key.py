"""Loads the key that encrypts stored credentials, or creates it beside the embedded database."""

import base64
import os
import secrets
from pathlib import Path

from app.crypto import Sealer
from app.errors import ConfigurationError
from app.settings import SECRET_KEY_BYTES, Settings, decode_secret_key


def make_sealer(settings: Settings) -> Sealer:
    """Return a sealer that encrypts with the current key and also decrypts with TOOLSCOUT_OLD_SECRET_KEYS."""
    return Sealer(load_secret_key(settings), [decode_secret_key(key) for key in settings.former_secret_keys])


def load_secret_key(settings: Settings) -> bytes:
    """Return TOOLSCOUT_SECRET_KEY. For the embedded database alone, a missing key is created in the data folder."""
    if settings.secret_key is not None:
        return decode_secret_key(settings.secret_key.get_secret_value())
    if not settings.uses_embedded_db:
        raise ConfigurationError(
            "TOOLSCOUT_SECRET_KEY is missing; it encrypts stored credentials: create one with `openssl rand -base64 32`"
        )
    path = settings.data_dir / "secret_key"
    if not path.exists():
        _create_secret_key(path)
    return decode_secret_key(path.read_text())


def _create_secret_key(path: Path) -> None:
    # O_EXCL: never overwrite a key that another process has created in the meantime
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(base64.b64encode(secrets.token_bytes(SECRET_KEY_BYTES)))

"""All settings of Toolscout. Each has a default that works on a laptop.

They are read from the environment and from `.env`; the environment takes precedence. The reference table of the
settings is written from the descriptions of the fields, and a test compares the two. A file for each topic holds its
fields, with their checks; `model.py` puts them together.
"""

from app.settings.keys import SECRET_KEY_BYTES, decode_secret_key
from app.settings.loading import find_typos, load_settings
from app.settings.model import Settings, secret_fields, variable_name
from app.settings.process import Role
from app.settings.storage import Pooler

DEMO_USER = "demo"

__all__ = [
    "DEMO_USER",
    "SECRET_KEY_BYTES",
    "Pooler",
    "Role",
    "Settings",
    "decode_secret_key",
    "find_typos",
    "load_settings",
    "secret_fields",
    "variable_name",
]

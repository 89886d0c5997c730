"""What a result says of the machine it was measured on."""

import os
import platform
from typing import Any


def describe_machine() -> dict[str, Any]:
    return {"cores": os.cpu_count(), "python": platform.python_version(), "load_average": os.getloadavg()[0]}

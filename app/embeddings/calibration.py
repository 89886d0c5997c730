"""What a model's numbers mean: cosines lie in a band of their own for each model.

`unrelated` is the cosine of a message and a tool that have nothing to do with each other, `span` the way from there to
the same text. Whether anything fits a message is judged from two sides: how good the best tool's evidence is, and
whether the message itself looks like one that needs a tool, by a direction in the model's space that tells such
messages from those that a model answers from its own head. The direction is fitted on messages of both kinds that ship
with us (`messages/`), the weight and the cut on labelled sets; `toolscout calibrate` does the same for another model.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.resources import files
from typing import Any, Self

import numpy as np
import orjson

from app.embeddings.base import Vector


@dataclass(frozen=True)
class Calibration:
    unrelated: float
    span: float
    threshold: float
    """The least cosine of a tool that is found by meaning."""
    direction: tuple[float, ...] = ()
    """Empty where the model was never shown messages that need no tool: then the threshold alone decides."""
    offset: float = 0.0
    weight: float = 0.0
    cut: float = float("-inf")

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Self:
        return cls(**{**stored, "direction": tuple(stored["direction"])})

    def stored(self) -> dict[str, Any]:
        return asdict(self)

    @cached_property
    def _towards_tools(self) -> Vector:
        return np.array(self.direction, dtype=np.float32)

    def needs_a_tool(self, vector: Vector) -> float:
        """Above 0 for messages that look like it."""
        return float(vector @ self._towards_tools) + self.offset if self.direction else 0.0

    def fits(self, evidence: float, vector: Vector) -> bool:
        return not self.direction or evidence + self.weight * self.needs_a_tool(vector) >= self.cut


UNCALIBRATED = Calibration(unrelated=0.1, span=0.7, threshold=0.3)
"""About right for text-embedding-3-small; for a model that nobody has measured it does no harm."""

_GRANITE = "local:granite-embedding-30m-english"


def shipped_calibration(model: str) -> Calibration:
    if not model.startswith(_GRANITE):
        return UNCALIBRATED
    return Calibration.read(orjson.loads((files("app.embeddings") / "granite.json").read_bytes()))

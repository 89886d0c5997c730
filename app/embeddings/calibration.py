"""What the similarities of a model mean: each model has its own range of cosines.

`unrelated` is the cosine of a message and a tool that have nothing in common, `span` the distance from there to the
cosine of identical texts. Whether any tool matches a message depends on two things: the evidence for the best tool, and
whether the message looks like one that needs a tool at all. For the latter, `direction` in the model's space separates
messages that need a tool from messages that a chat model answers by itself. The direction is fitted to messages of both
kinds that ship with Toolscout (`app/evaluation/messages/`), `weight` and `cut` to labelled sets. `toolscout calibrate`
does the same for another model.
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
    """The minimum cosine of a tool that is found by meaning."""
    direction: tuple[float, ...] = ()
    """Empty if the model was not calibrated on messages that need no tool: then the threshold alone decides."""
    offset: float = 0.0
    weight: float = 0.0
    cut: float = float("-inf")

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        return cls(**{**fields, "direction": tuple(fields["direction"])})

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @cached_property
    def _direction_vector(self) -> Vector:
        return np.array(self.direction, dtype=np.float32)

    def score_tool_need(self, vector: Vector) -> float:
        """Return how much a message looks like one that needs a tool; above 0 it does."""
        return float(vector @ self._direction_vector) + self.offset if self.direction else 0.0

    def is_match(self, evidence: float, vector: Vector) -> bool:
        """Whether the evidence for the best tool is enough for a message with this vector."""
        return not self.direction or evidence + self.weight * self.score_tool_need(vector) >= self.cut


UNCALIBRATED = Calibration(unrelated=0.1, span=0.7, threshold=0.3)
"""About right for text-embedding-3-small, and a cautious default for any other model."""

_GRANITE = "local:granite-embedding-30m-english"


def load_shipped_calibration(model: str) -> Calibration:
    if not model.startswith(_GRANITE):
        return UNCALIBRATED
    return Calibration.from_json(orjson.loads((files("app.embeddings") / "granite.json").read_bytes()))

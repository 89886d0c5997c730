"""What the similarities of a model mean: each model has its own range of cosines.

`unrelated` is the cosine of a message and a tool that have nothing in common, `span` the distance from there to the
cosine of identical texts. `center` is the mean vector of messages: it tells how near a tool is to messages in general.

The chance that any tool fits a message depends on two things: the evidence for the best tool, and whether the message
looks like one that needs a tool at all. For the latter, `direction` in the model's space separates messages that need a
tool from messages that a chat model answers by itself. The chance is a logistic function of the two. It is divided
among the tools by their scores, which gives the chance that a single tool is the right one.

Center and direction are fitted to messages of both kinds that ship with Toolscout (`app/evaluation/messages/`), the
rest to labelled sets. `toolscout calibrate` does the same for another model. A user can have values of their own for
the chance (`UserCalibration`).
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np
import orjson

from app.embeddings.base import Vector
from app.embeddings.local_models import parse_adapter_name
from app.embeddings.pack import PACKAGED_MODEL

MIN_CHANCE = 0.009
"""An answer ends before the first tool whose chance of being the right one is below this."""

SAFE_EXAMPLE_FLOOR = 0.75
"""For a model that is not calibrated: so high that only messages which nearly agree count as alike."""

_VECTORS = ("direction", "center")
_CACHED_VECTORS = ("center_vector", "_direction_vector")


@dataclass(frozen=True)
class UserCalibration:
    """A user's own values of the chance that any tool fits. They replace those of one model's calibration."""

    model: str
    """The id of the model that they were fitted with; they mean nothing for another one."""
    evidence_weight: float
    need_weight: float
    bias: float
    min_low: float
    min_high: float
    temperature: float

    @classmethod
    def from_json(cls, stored: Mapping[str, Any] | None, model: str) -> Self | None:
        """Read stored values. Return None if there are none for this model, or another version has stored them."""
        names = [field.name for field in fields(cls)]
        if stored is None or stored.get("model") != model or not all(name in stored for name in names):
            return None
        return cls(**{name: stored[name] for name in names})

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def get_values(self) -> dict[str, float]:
        """Return what replaces the fields of a `Calibration` with the same names."""
        return {name: value for name, value in asdict(self).items() if name != "model"}


@dataclass(frozen=True)
class Calibration:
    unrelated: float
    span: float
    threshold: float
    """The minimum cosine of a tool that is found by meaning."""
    center: tuple[float, ...] = ()
    """Empty if unknown: then all tools have the same cosine with an unrelated message."""
    center_unrelated: float = 0.0
    """The cosine of the center and an average tool."""
    center_weight: float = 0.0
    direction: tuple[float, ...] = ()
    """Empty if the model was not calibrated on messages that need no tool: then the threshold alone decides."""
    offset: float = 0.0
    evidence_weight: float = 0.0
    need_weight: float = 0.0
    bias: float = 0.0
    min_evidence: float = 0.0
    """Below this evidence for the best tool no tool fits, however much the message looks like one that needs a tool."""
    min_low: float = 0.0
    """Below this chance that any tool fits, the answer is empty."""
    min_high: float = 0.0
    """Below this chance that any tool fits, the answer has the best few tools."""
    temperature: float = 1.0
    """How far apart the scores of two tools are if one is e times as likely to be right as the other."""
    example_floor: float = SAFE_EXAMPLE_FLOOR
    """Two messages with a lower cosine have nothing in common: an example of the one says nothing about the other."""

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """Read a stored calibration. Fields of other versions are ignored."""
        known = {field.name: stored[field.name] for field in fields(cls) if field.name in stored}
        vectors = {name: tuple(known[name]) for name in _VECTORS if name in known}
        return cls(**{**known, **vectors})

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def is_fitted(self) -> bool:
        """Whether the chance that a tool fits is known."""
        return bool(self.direction) and self.evidence_weight + self.need_weight > 0

    @cached_property
    def center_vector(self) -> Vector | None:
        return np.array(self.center, dtype=np.float32) if self.center else None

    @cached_property
    def _direction_vector(self) -> Vector:
        return np.array(self.direction, dtype=np.float32)

    def score_tool_need(self, vector: Vector) -> float:
        """Return how much a message looks like one that needs a tool; above 0 it does."""
        return float(vector @ self._direction_vector) + self.offset if self.direction else 0.0

    def estimate_match(self, evidence: float, need: float) -> float:
        """Return the chance that any tool fits, for the evidence of the best tool and the message's need of a tool."""
        if evidence < self.min_evidence:
            return 0.0
        logit = self.evidence_weight * evidence + self.need_weight * need + self.bias
        return 1 / (1 + math.exp(-max(min(logit, 50.0), -50.0)))

    def shift(self, logits: float) -> Self:
        """Return the calibration with all chances raised by this many logits."""
        return self._replace_values({"bias": self.bias + logits}) if logits else self

    def personalize(self, own: UserCalibration | None) -> Self:
        """Return the calibration with a user's own values, if there are any."""
        return self if own is None else self._replace_values(own.get_values())

    def hash_values(self, model: str) -> str:
        """Return a short hash of the model and the values that the chance depends on."""
        values = self.evidence_weight, self.need_weight, self.bias, self.offset, self.unrelated, self.span
        return hashlib.blake2b(repr((model, *values)).encode(), digest_size=6).hexdigest()

    def _replace_values(self, values: Mapping[str, float]) -> Self:
        """Replace numbers and share the vectors, which every request of the user would have to build again."""
        replaced = replace(self, **values)  # type: ignore[arg-type]
        shared = {name: getattr(self, name) for name in _CACHED_VECTORS}
        replaced.__dict__.update(shared)
        return replaced


def shift_chance(chance: float, logits: float) -> float:
    """Return a chance raised by this many logits."""
    odds = chance * math.exp(logits)
    return odds / (odds + 1 - chance)


UNCALIBRATED = Calibration(unrelated=0.1, span=0.7, threshold=0.3)
"""About right for text-embedding-3-small, and a cautious default for any other model."""


def is_english_only(model: str) -> bool:
    """Whether this is the packaged model, which knows English alone, with or without an adapter."""
    return model.startswith(f"local:{PACKAGED_MODEL}")


@lru_cache(maxsize=16)
@cache
def load_shipped_calibration(model: str) -> Calibration:
    """Return the calibration that ships for the packaged model, or for the adapter that the model has.

    Its file is read once: a process asks for it whenever it looks for changes of its models.
    """
    path = get_calibration_path(model)
    if not is_english_only(model) or not path.is_file():
        return UNCALIBRATED
    return Calibration.from_json(orjson.loads(path.read_bytes()))


def get_calibration_path(model: str) -> Path:
    """Return where the calibration of a shipped model is."""
    adapter = parse_adapter_name(model)
    return Path(__file__).parent / ("granite.json" if adapter is None else f"granite+{adapter}.json")

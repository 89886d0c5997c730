"""A user's cut: what the user's own calibration and outcomes change about the chance that any tool fits."""

from dataclasses import dataclass
from typing import Literal

from app.auth.users import User
from app.embeddings.calibration import Calibration, UserCalibration
from app.embeddings.repository import EmbeddingModel
from app.usage.adaptation import CutEvidence

CalibrationSource = Literal["model", "user"]


@dataclass(frozen=True)
class UserCut:
    calibration: Calibration
    """The model's calibration with the user's own values, without the shift."""
    basis: str
    """Identifies the calibration: evidence about another one does not count."""
    own_calibration: UserCalibration | None
    evidence: CutEvidence

    @property
    def shift(self) -> float:
        """By how many logits the user's outcomes raise the chance that a tool fits."""
        return self.evidence.shift

    @property
    def source(self) -> CalibrationSource:
        return "model" if self.own_calibration is None else "user"

    @property
    def is_moved(self) -> bool:
        return self.own_calibration is not None or self.shift != 0


def resolve_cut(model: EmbeddingModel, user: User) -> UserCut:
    """Return the user's cut for this model. What is stored for another model or calibration is ignored."""
    own = UserCalibration.from_json(user.calibration, model.id)
    calibration = model.calibration.personalize(own)
    basis = calibration.hash_values(model.id)
    return UserCut(calibration, basis, own, CutEvidence.from_json(user.adaptation, basis))

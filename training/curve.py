"""The learning curve: what each further message of our own brings.

It is drawn for the cheapest thing that can be trained, a linear map of the vectors of messages: training takes seconds,
so that several sizes and three seeds are affordable. The adapters gain more, but their curve costs days.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from training.data import Data, Pair
from training.evaluate import Embed, Embedders, EvaluationSet, Scores, evaluate, make_model_embedders, merge_catalogues
from training.model import AdaptedModel

SIZES = (500, 1000, 2000, 4000, 8000)
SEEDS = (1, 2, 3)
_BATCH = 128
_MIN_STEPS = 120
_EPOCHS = 8
_TEMPERATURE = 0.03
_LEARNING_RATE = 1e-3
_PUBLIC_WEIGHT = 0.5
_DUPLICATE = 0.95


class MessageMap(nn.Module):
    """A linear map of the vectors of messages that begins at the identity. It leaves those of tools as they are."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.eye(dimension))

    def forward(self, vectors: Tensor) -> Tensor:
        return functional.normalize(vectors @ self.matrix.T, dim=1)


@dataclass(frozen=True)
class Vectors:
    """The base model's vectors of everything that a map is trained on."""

    messages: Tensor
    tools: Tensor
    labels: Sequence[Sequence[int]]
    public_messages: Tensor
    public_tools: Tensor

    @property
    def is_alike(self) -> Tensor:
        return self.tools @ self.tools.T > _DUPLICATE


def draw_curve(
    model: AdaptedModel, own: Sequence[Pair], public: Sequence[Pair], data: Data, sets: Sequence[EvaluationSet]
) -> None:
    """Print the mean change of nDCG@10, hit@1 and hit@8 over the sets, for each number of messages."""
    model.set_strength(0.0)
    remember = make_model_embedders(model).documents
    vectors = _embed_all(remember, own, public, data)
    base = merge_catalogues(evaluate(sets, Embedders(remember, remember)))
    print("| messages | nDCG@10, mean of sets | nDCG@10, validation | hit@1, validation | hit@8, validation |")
    print("|---|---|---|---|---|")
    for size in (*(size for size in SIZES if size < len(own)), len(own)):
        changes = []
        for seed in SEEDS:
            learnt = train_map(vectors, size, seed)
            scores = merge_catalogues(evaluate(sets, Embedders(remember, _apply(learnt, remember))))
            changes.append(_summarize(scores, base))
        means, spreads = np.mean(changes, axis=0), np.std(changes, axis=0)
        cells = " | ".join(f"{mean:+.3f} ± {spread:.3f}" for mean, spread in zip(means, spreads, strict=True))
        print(f"| {size} | {cells} |", flush=True)


def train_map(vectors: Vectors, size: int, seed: int) -> MessageMap:
    """Train on the first `size` messages in the order of the seed; every other tool of ours is a negative."""
    random = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(vectors.messages), generator=random)[:size]
    learnt, is_alike = MessageMap(vectors.tools.shape[1]), vectors.is_alike
    optimizer = torch.optim.AdamW(learnt.parameters(), lr=_LEARNING_RATE, weight_decay=0.0)
    steps = max(_EPOCHS * size // _BATCH, _MIN_STEPS)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = _LEARNING_RATE * (1 - step / steps)
        batch = chosen[torch.randint(len(chosen), (_BATCH,), generator=random)].tolist()
        loss = _contrast(learnt(vectors.messages[batch]), vectors.tools, [vectors.labels[i] for i in batch], is_alike)
        if len(vectors.public_messages):
            sample = torch.randint(len(vectors.public_messages), (_BATCH,), generator=random)
            logits = learnt(vectors.public_messages[sample]) @ vectors.public_tools[sample].T / _TEMPERATURE
            loss = loss + _PUBLIC_WEIGHT * functional.cross_entropy(logits, torch.arange(_BATCH))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return learnt


def _contrast(messages: Tensor, tools: Tensor, labels: Sequence[Sequence[int]], is_alike: Tensor) -> Tensor:
    logits = messages @ tools.T / _TEMPERATURE
    targets = torch.tensor([positives[0] for positives in labels])
    ignored = torch.stack([is_alike[list(positives)].any(0) for positives in labels])
    ignored[torch.arange(len(targets)), targets] = False
    return functional.cross_entropy(logits.masked_fill(ignored, -torch.inf), targets)


def _embed_all(embed: Embed, own: Sequence[Pair], public: Sequence[Pair], data: Data) -> Vectors:
    texts = list(
        dict.fromkeys(tool.text for each in data.catalogues.values() if each.split == "train" for tool in each.tools)
    )
    positions = {text: position for position, text in enumerate(texts)}
    return Vectors(
        torch.from_numpy(embed([pair.message for pair in own])),
        torch.from_numpy(embed(texts)),
        [[positions[text] for text in pair.positives] for pair in own],
        torch.from_numpy(embed([pair.message for pair in public])),
        torch.from_numpy(embed([pair.positives[0] for pair in public])),
    )


def _apply(learnt: MessageMap, embed: Embed) -> Embed:
    def embed_messages(texts: Sequence[str]) -> npt.NDArray[np.float32]:
        with torch.no_grad():
            mapped: npt.NDArray[np.float32] = learnt(torch.from_numpy(embed(texts))).numpy()
        return mapped

    return embed_messages


def _summarize(scores: dict[str, Scores], base: dict[str, Scores]) -> list[float]:
    changes = {name: rows.mean(0) - base[name].mean(0) for name, rows in scores.items()}
    return [float(np.mean([change[0] for change in changes.values()])), *changes["validation"].tolist()]

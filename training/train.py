"""Train adapters: InfoNCE over messages and tools, with negatives from the same catalogue.

Each step takes messages of our own and public ones. The negatives of a message are all tools of its own catalogue and
the right tools of the step's other messages. Embedding tools is what costs, so that only some of a step's tools are
embedded with a gradient; the others have the vectors that they had when they were embedded last. An anchor
keeps the vectors of the step near to those of the base model, so that nothing is lost where there is no training data.
"""

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from training.data import Pair
from training.model import AdaptedModel

_REPORT_EVERY = 20
_DUPLICATE = 0.95
"""Tools with a higher cosine in the base model are taken for the same tool, and are no negatives of each other."""


@dataclass(frozen=True)
class Recipe:
    seed: int = 1
    rank: int = 16
    steps: int = 500
    batch: int = 96
    documents: int = 32
    """How many of a step's tools are embedded with a gradient."""
    public_pairs: int = 6000
    public_share: float = 0.25
    """The share of public pairs in a step."""
    learning_rate: float = 1e-3
    warm_up: int = 20
    temperature: float = 0.03
    anchor: float = 0.5
    message_tokens: int = 128
    document_tokens: int = 112
    refresh_every: int = 200


class Corpus:
    """The tools of all groups: their tokens, their vectors at the last refresh and in the base model."""

    def __init__(self, model: AdaptedModel, groups: Mapping[str, Sequence[str]], recipe: Recipe) -> None:
        self.texts = list(dict.fromkeys(text for texts in groups.values() for text in texts))
        self.positions = {text: i for i, text in enumerate(self.texts)}
        self.groups = {name: torch.tensor([self.positions[text] for text in texts]) for name, texts in groups.items()}
        self.sequences = model.tokenize(self.texts, recipe.document_tokens)
        self.base = self._embed(model, range(len(self.texts)))
        self.current = self.base.clone()
        self.alike = self._find_alike()

    def refresh(self, model: AdaptedModel, groups: Sequence[str]) -> None:
        """Compute the vectors of some groups with the model as it is now."""
        positions = sorted({int(i) for name in groups for i in self.groups[name]})
        self.current[positions] = self._embed(model, positions)

    def _find_alike(self) -> list[list[int]]:
        """Return, for each tool, the tools that are taken for the same; it is one of them."""
        found: list[list[int]] = []
        for start in range(0, len(self.base), 1024):
            rows = self.base[start : start + 1024] @ self.base.T > _DUPLICATE
            found += [row.nonzero()[:, 0].tolist() for row in rows]
        return found

    def _embed(self, model: AdaptedModel, positions: Sequence[int]) -> Tensor:
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            return model.embed_sequences([self.sequences[i] for i in positions])


class Trainer:
    def __init__(
        self,
        model: AdaptedModel,
        own: Sequence[Pair],
        public: Sequence[Pair],
        groups: Mapping[str, Sequence[str]],
        recipe: Recipe,
    ) -> None:
        self.model, self.recipe = model, recipe
        self.random = random.Random(recipe.seed)
        self.corpus = Corpus(model, groups, recipe)
        self.own_groups = sorted({pair.group for pair in own})
        self.streams = {"own": _Stream(own, self.random), "public": _Stream(public, self.random)}
        self.base_messages: dict[str, Tensor] = {}
        self.step = 0
        parameters = [layer.a for _, layer in model.adapted_layers()] + [layer.b for _, layer in model.adapted_layers()]
        self.optimizer = torch.optim.AdamW(parameters, lr=recipe.learning_rate, weight_decay=0.01)

    def run(self, checkpoint: Path) -> None:
        """Train to the end, from the checkpoint if there is one."""
        if checkpoint.exists():
            self._resume(checkpoint)
        recipe, started = self.recipe, time.monotonic()
        losses: list[float] = []
        while self.step < recipe.steps:
            if self.step % recipe.refresh_every == 0 and self.step:
                self.corpus.refresh(self.model, self.own_groups)
            for group in self.optimizer.param_groups:
                group["lr"] = recipe.learning_rate * self._schedule()
            losses.append(self._train_step())
            self.step += 1
            if self.step % _REPORT_EVERY == 0 or self.step == recipe.steps:
                mean = sum(losses) / len(losses)
                print(
                    f"step {self.step}/{recipe.steps}, loss {mean:.3f}, {time.monotonic() - started:.0f} s", flush=True
                )
                losses.clear()
                self._save(checkpoint)

    def _schedule(self) -> float:
        """Rise linearly, then fall linearly to a tenth."""
        if self.step < self.recipe.warm_up:
            return (self.step + 1) / self.recipe.warm_up
        return 1 - 0.9 * (self.step - self.recipe.warm_up) / max(self.recipe.steps - self.recipe.warm_up, 1)

    def _train_step(self) -> float:
        recipe = self.recipe
        public = round(recipe.batch * recipe.public_share) if self.streams["public"].pairs else 0
        pairs = self.streams["own"].take(recipe.batch - public) + self.streams["public"].take(public)
        labels = [{self.corpus.positions[text] for text in pair.positives} for pair in pairs]
        positives = [self.random.choice(sorted(each)) for each in labels]
        sequences = self.model.tokenize([pair.message for pair in pairs], recipe.message_tokens)
        documents = self.random.sample(list(dict.fromkeys(positives)), min(recipe.documents, len(set(positives))))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            base_messages = self._embed_with_base([pair.message for pair in pairs], sequences)
            messages = self.model.embed_sequences(sequences)
            vectors = self.model.embed_sequences([self.corpus.sequences[i] for i in documents])
        loss = self._contrast(messages, vectors, documents, positives, labels, pairs)
        moved = [1 - (messages * base_messages).sum(1), 1 - (vectors * self.corpus.base[documents]).sum(1)]
        total = loss + recipe.anchor * sum(each.mean() for each in moved)
        self.optimizer.zero_grad()
        total.backward()
        torch.nn.utils.clip_grad_norm_([p for g in self.optimizer.param_groups for p in g["params"]], 1.0)
        self.optimizer.step()
        self.corpus.current[documents] = vectors.detach()
        return float(loss.detach())

    def _embed_with_base(self, texts: Sequence[str], sequences: Sequence[Sequence[int]]) -> Tensor:
        """Return the base model's vectors of messages, each of which is computed once."""
        new = {
            text: sequence for text, sequence in zip(texts, sequences, strict=True) if text not in self.base_messages
        }
        if new:
            self.model.set_strength(0.0)
            with torch.no_grad():
                vectors = self.model.embed_sequences(list(new.values()))
            self.model.set_strength(1.0)
            self.base_messages.update(zip(new, vectors, strict=True))
        return torch.stack([self.base_messages[text] for text in texts])

    def _contrast(
        self,
        messages: Tensor,
        vectors: Tensor,
        documents: Sequence[int],
        positives: Sequence[int],
        labels: Sequence[set[int]],
        pairs: Sequence[Pair],
    ) -> Tensor:
        """Return the mean InfoNCE loss. `documents` have their present vectors, all other tools those of the bank."""
        groups = {pair.group: self.corpus.groups[pair.group] for pair in pairs}
        union = torch.cat([torch.tensor(positives), *groups.values()]).unique()
        columns = {int(position): column for column, position in enumerate(union)}
        bank = self.corpus.current[union].index_copy(0, torch.tensor([columns[d] for d in documents]), vectors)
        is_negative = torch.zeros(len(pairs), len(union), dtype=torch.bool)
        is_negative[:, [columns[position] for position in positives]] = True
        for row, pair in enumerate(pairs):
            is_negative[row, [columns[int(position)] for position in groups[pair.group]]] = True
            alike = {i for label in labels[row] for i in self.corpus.alike[label]}
            is_negative[row, [columns[i] for i in alike if i in columns]] = False
        targets = torch.tensor([columns[position] for position in positives])
        is_negative[torch.arange(len(pairs)), targets] = True
        logits = (messages @ bank.T / self.recipe.temperature).masked_fill(~is_negative, -torch.inf)
        return functional.cross_entropy(logits, targets)

    def _save(self, path: Path) -> None:
        factors = {name: tensor for name, tensor in self.model.state_dict().items() if name.endswith((".a", ".b"))}
        state = {
            "model": factors,
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "random": self.random.getstate(),
            "left": {name: stream.left for name, stream in self.streams.items()},
            "recipe": asdict(self.recipe),
        }
        partial = path.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(path)

    def _resume(self, path: Path) -> None:
        state = load_run(path)
        if state["recipe"] != asdict(self.recipe):
            raise SystemExit(f"{path} is of another recipe: {state['recipe']}")
        self.model.load_state_dict(state["model"], strict=False)
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]
        self.random.setstate(state["random"])
        for name, left in state["left"].items():
            self.streams[name].left = left
        self.corpus.refresh(self.model, list(self.corpus.groups))


def load_run(path: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(path, weights_only=False)
    return state


class _Stream:
    """Pairs in random order, endlessly."""

    def __init__(self, pairs: Sequence[Pair], source: random.Random) -> None:
        self.pairs, self._random = pairs, source
        self.left: list[int] = []
        """The positions of the pairs that are still to come before the next shuffle."""

    def take(self, count: int) -> list[Pair]:
        taken = []
        for _ in range(count):
            if not self.left:
                self.left = self._random.sample(range(len(self.pairs)), len(self.pairs))
            taken.append(self.pairs[self.left.pop()])
        return taken

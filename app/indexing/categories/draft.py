"""Compute the categories of a user's tools. Pure: `maker.py` reads and writes.

New and changed tools join the nearest of the existing categories, so that a new tool renames nothing. The categories
are made again from all vectors when more than a fifth of the tools have changed since they were made, when the model
has changed, or on request. Even then they keep their ids and names where they have kept their tools (`matching.py`).
"""

import uuid
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from app.embeddings.base import Vectors
from app.indexing.categories.clustering import assign, center, cluster, compute_centroids
from app.indexing.categories.matching import is_same_content, match_groups
from app.indexing.categories.naming import OTHER, Vocabulary, has_name, name_group
from app.indexing.categories.pacing import Checkpoint, never_pause
from app.indexing.categories.store import Category, Clustering, StoredState, Tool

_MAX_CHANGED = 0.2
"""Of the tools. At 0.2 each category still has most of its tools, by which it is recognized."""
_MIN_CHANGED = 1
"""A single tool never leads to new categories."""


@dataclass
class Draft:
    """New categories, while they are computed."""

    clustering: Clustering
    categories: dict[str, Category]
    members: dict[str, tuple[str, int]] = field(default_factory=dict)
    """The category of each tool, and the content that it was found by."""
    vocabulary: Vocabulary = field(default_factory=lambda: Vocabulary({}))
    is_new: bool = False
    """Whether the groups were made again, so that every tool may have another category."""

    def assign_tools(self, tools: Sequence[Tool], checkpoint: Checkpoint = never_pause) -> None:
        """Put each tool into the nearest category: by its vector, or by its words if it has none."""
        ids = [each.id for each in self.categories.values() if each.centroid is not None]
        with_vector = [tool for tool in tools if tool.vector is not None] if ids else []
        if with_vector:
            centroids = np.stack([each.centroid for each in self.categories.values() if each.centroid is not None])
            labels = assign(center(_stack(with_vector), self.clustering.mean), centroids)
            self._put(with_vector, [ids[label] for label in labels.tolist()])
        without_vector = [tool for tool in tools if tool.vector is None or not ids]
        for tool in without_vector:
            checkpoint()
            self._put([tool], [self._find_by_words(tool)])

    def _put(self, tools: Sequence[Tool], category_ids: Sequence[str]) -> None:
        self.members |= {tool.id: (each, tool.content) for tool, each in zip(tools, category_ids, strict=True)}

    def _find_by_words(self, tool: Tool) -> str:
        found = self.vocabulary.find_group(tool.text)
        if found is not None:
            return found
        other = next((each for each in self.categories.values() if each.centroid is None), None)
        if other is None:
            other = Category(str(uuid.uuid4()), OTHER.name, None, OTHER.words, None)
            self.categories[other.id] = other
        return other.id

    def read_vocabulary(self, tools: Sequence[Tool], checkpoint: Checkpoint) -> None:
        """Learn the words of the categories from their tools."""
        groups: defaultdict[str, list[Tool]] = defaultdict(list)
        for tool in tools:
            if tool.is_trusted and tool.id in self.members:
                category_id, _ = self.members[tool.id]
                if self.categories[category_id].centroid is not None:
                    groups[category_id].append(tool)
        texts = {group: [tool.text for tool in each] for group, each in groups.items()}
        self.vocabulary = Vocabulary(texts, checkpoint)


def make_draft(
    checkpoint: Checkpoint, state: StoredState, sample: Sequence[Tool], model: str, *, again: bool
) -> Draft | None:
    """Put the tools of the sample into categories. Return None if there is nothing to make categories of.

    The sample may be all tools. `again` makes new categories, however little has changed.
    """
    changed = len(state.changed) + len(state.removed)
    if state.clustering is not None and not again:
        drift = state.clustering.changed + changed
        if drift <= max(_MIN_CHANGED, _MAX_CHANGED * state.tool_count):
            return _update(checkpoint, state, replace(state.clustering, changed=drift), sample)
    if any(tool.vector is not None for tool in sample):
        return _make_new(checkpoint, state, sample, model)
    return None if state.clustering is None else _update(checkpoint, state, state.clustering, sample)


def _update(checkpoint: Checkpoint, state: StoredState, clustering: Clustering, sample: Sequence[Tool]) -> Draft:
    """Put the changed tools of the sample into the existing categories."""
    changed = set(state.changed)
    draft = Draft(clustering, {each.id: each for each in state.categories})
    unchanged = [tool for tool in sample if tool.id not in changed and tool.category_id is not None]
    draft.members = {tool.id: (str(tool.category_id), tool.content) for tool in unchanged}
    _assign_and_learn(draft, [tool for tool in sample if tool.id in changed], sample, checkpoint)
    _name_categories(draft, {each.id for each in state.categories})
    return draft


def _make_new(checkpoint: Checkpoint, state: StoredState, sample: Sequence[Tool], model: str) -> Draft:
    """Find the groups in the vectors, and recognize the stored categories among them."""
    tools = [tool for tool in sample if tool.vector is not None]
    vectors = _stack(tools)
    mean = vectors.mean(axis=0)
    vectors = center(vectors, mean)
    labels = cluster(vectors, checkpoint=checkpoint)
    groups = {tool.id: label for tool, label in zip(tools, labels.tolist(), strict=True)}
    stored = {each.id: each for each in state.categories}
    old = {tool.id: tool.category_id for tool in tools if tool.category_id is not None}
    matched = match_groups(old, groups, [each.id for each in stored.values() if each.own_name is not None])
    categories = [
        replace(stored[matched[label]], centroid=centroid)
        if label in matched
        else Category(str(uuid.uuid4()), "", None, (), centroid)
        for label, centroid in enumerate(compute_centroids(vectors, labels))
    ]
    # the category of tools that are similar to no others goes on, unless it has become one of the groups
    categories += [each for each in state.categories if each.centroid is None and each.id not in matched.values()]
    draft = Draft(Clustering(model, mean, 0, state.revision), {each.id: each for each in categories}, is_new=True)
    draft.members = {tool.id: (categories[groups[tool.id]].id, tool.content) for tool in tools}
    _assign_and_learn(draft, [tool for tool in sample if tool.vector is None], sample, checkpoint)
    removed = _thin_out(state.removed, len(sample) / max(state.tool_count, 1))
    _name_categories(draft, _find_same_content(old | removed, draft.members))
    return draft


def _assign_and_learn(draft: Draft, tools: Sequence[Tool], sample: Sequence[Tool], checkpoint: Checkpoint) -> None:
    """Put tools of the sample into categories, and learn the words of all."""
    if any(tool.vector is None for tool in tools):
        draft.read_vocabulary(sample, checkpoint)
    draft.assign_tools(tools, checkpoint)
    draft.read_vocabulary(sample, checkpoint)


def _thin_out(removed: Mapping[str, str], share: float) -> dict[str, str]:
    """Return this share of the removed tools: as many as there would be in the sample, with which they are compared."""
    return {tool: each for tool, each in removed.items() if zlib.crc32(tool.encode()) < share * 2**32}


def _find_same_content(old: Mapping[str, str], members: Mapping[str, tuple[str, int]]) -> set[str]:
    """Return the categories that still have most of their tools."""
    old_tools, new_tools = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for tool_id, category_id in old.items():
        old_tools[category_id].add(tool_id)
    for tool_id, (category_id, _) in members.items():
        new_tools[category_id].add(tool_id)
    return {each for each in old_tools if is_same_content(old_tools[each], new_tools[each])}


def _name_categories(draft: Draft, unchanged: set[str]) -> None:
    """Name the categories, the largest first. An unchanged one keeps its name as long as its tools have its words, and
    no other has got this name from a person."""
    vocabulary = draft.vocabulary
    named = [each for each in draft.categories.values() if each.centroid is not None]
    given = {each.own_name.casefold(): each.id for each in draft.categories.values() if each.own_name is not None}
    keeping = {
        each.id
        for each in named
        if each.id in unchanged
        and has_name(vocabulary, each.id, each.name)
        and given.get(each.name.casefold(), each.id) == each.id
    }
    taken = {each.name.casefold() for each in draft.categories.values() if each.id in keeping or each.centroid is None}
    taken |= given.keys()
    for category in sorted(named, key=lambda each: (-vocabulary.get_size(each.id), each.id)):
        found = name_group(vocabulary, category.id, taken)
        name = category.name if category.id in keeping else found.name
        taken.add(name.casefold())
        draft.categories[category.id] = replace(category, name=name, words=found.words)


def _stack(tools: Sequence[Tool]) -> Vectors:
    return np.stack([tool.vector for tool in tools if tool.vector is not None])

"""Drafts of categories, from tools and what is stored."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from app.indexing.categories.clustering import cluster
from app.indexing.categories.draft import Draft, make_draft
from app.indexing.categories.naming import ToolText
from app.indexing.categories.pacing import Pacer, Stopped, never_pause
from app.indexing.categories.store import Category, Clustering, StoredState, Tool

SUBJECTS = ("invoice", "calendar", "branch", "weather", "mail")
DIRECTIONS = np.random.default_rng(0).normal(size=(len(SUBJECTS), 16))


def make_tool(number: int) -> Tool:
    """Words that are about as typical of a group alternate, so that its name depends on small differences."""
    group = number % len(SUBJECTS)
    vector = DIRECTIONS[group] + 0.3 * np.random.default_rng(number).normal(size=16)
    name = f"{SUBJECTS[group]}_{('alpha', 'bravo', 'delta')[number % 3]}"
    return Tool(str(number), 1, None, vector.astype(np.float32), ToolText(name, None, ""), True)


def draft_of(state: StoredState, sample: Sequence[Tool], *, again: bool = False) -> Draft:
    draft = make_draft(never_pause, state, sample, "m", again=again)
    assert draft is not None
    return draft


def test_a_category_of_a_large_user_keeps_its_name_if_it_keeps_most_of_its_tools() -> None:
    """Its tools in the sample are compared with those of the removed that would be in it."""
    tools = [make_tool(number) for number in range(3000)]
    sample = tools[:300]
    first = draft_of(StoredState(1, 3000, None, [], [each.id for each in tools], {}, 0), sample)
    first.assign_tools(tools[300:])
    stored = [replace(each, name=f"kept, {each.name.split(',')[0]}") for each in first.categories.values()]
    texts = [ToolText(f"{each.text.name}_kept", None, "") for each in tools]
    removed = {each.id: first.members[each.id][0] for each in tools if int(each.id) % 11 in (1, 5, 7)}
    left = [
        replace(tool, category_id=first.members[tool.id][0], text=text)
        for tool, text in zip(tools, texts, strict=True)
        if tool.id not in removed
    ]
    clustering = Clustering("m", first.clustering.mean, 0, 1)
    state = StoredState(2, len(left), clustering, stored, [], removed, 1)
    again = draft_of(state, left[:300])
    assert again.is_new
    assert {each.id: each.name for each in again.categories.values()} == {each.id: each.name for each in stored}


def test_a_group_without_words_is_other_only_if_there_is_no_such_category_yet() -> None:
    tools = [replace(make_tool(number), is_trusted=number % 5 != 0) for number in range(50)]
    state = StoredState(1, 50, None, [], [each.id for each in tools], {}, 0)
    names = {each.name for each in draft_of(state, tools).categories.values()}
    assert "other" in names
    assert "other 2" not in names
    state = replace(state, categories=[Category("id", "other", None, (), None)])
    assert {"other", "other 2"} <= {each.name for each in draft_of(state, tools).categories.values()}


def test_a_computation_ends_at_its_next_checkpoint() -> None:
    pacer = Pacer()
    pacer()
    pacer.stop()
    with pytest.raises(Stopped):
        pacer()
    tools = [make_tool(number) for number in range(10)]
    with pytest.raises(Stopped):
        make_draft(pacer, StoredState(1, 10, None, [], [], {}, 0), tools, "m", again=True)
    with pytest.raises(Stopped):
        cluster(DIRECTIONS.astype(np.float32), checkpoint=pacer)

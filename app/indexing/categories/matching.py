"""Recognize new groups of tools as categories of the last run, by the tools that they share. Pure functions.

A group is the same category if at least half of the smaller of the two is in both. The largest overlaps are matched
first, so that a category that splits lives on in its larger part, and the larger of two that merge lives on.
"""

from collections import Counter
from collections.abc import Collection, Mapping

_SAME_CATEGORY = 0.5
_SAME_CONTENT = 0.5


def match_groups(
    old: Mapping[str, str], new: Mapping[str, int], named_by_people: Collection[str] = ()
) -> dict[int, str]:
    """Return the category that each new group continues, without those that continue none.

    `old` is the category of each tool, `new` its group. Between equal overlaps a name that a person gave decides.
    """
    old_sizes = Counter(category for tool, category in old.items() if tool in new)
    new_sizes = Counter(new.values())
    overlaps = Counter((old[tool], group) for tool, group in new.items() if tool in old)
    ranked = sorted(overlaps.items(), key=lambda each: (-each[1], each[0][0] not in named_by_people, each[0]))
    matched: dict[int, str] = {}
    taken: set[str] = set()
    for (category, group), shared in ranked:
        is_same = shared >= _SAME_CATEGORY * min(old_sizes[category], new_sizes[group])
        if is_same and category not in taken and group not in matched:
            matched[group] = category
            taken.add(category)
    return matched


def is_same_content(old_tools: Collection[str], new_tools: Collection[str]) -> bool:
    """Whether a category has so many of its tools still that its name still fits: at least half of both together."""
    shared = len(set(old_tools) & set(new_tools))
    return shared >= _SAME_CONTENT * len(set(old_tools) | set(new_tools))

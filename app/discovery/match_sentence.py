"""Say in a short sentence why a tool was found, for a person or a model. Pure."""

from collections.abc import Sequence

_MAX_WORDS = 8


def describe_match(*, named: bool, words: Sequence[str], similarity: float | None) -> str:
    """Describe the evidence for a tool; `words` are those of the query that its definition contains."""
    quoted = ", ".join(f"“{word}”" for word in words[:_MAX_WORDS])
    reasons = [
        "named in the query" if named else "",
        f"matches {quoted}" if quoted else "",
        "" if similarity is None else f"close in meaning ({similarity:.2f})",
    ]
    return "; ".join(reason for reason in reasons if reason)

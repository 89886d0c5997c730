"""The vector of a tool with known examples: bounded, independent of the cache, and complete or not there."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.embeddings.base import Vector
from app.indexing.cache_scope import EVERYONE, CacheScope
from app.indexing.tool_vectors import EXAMPLE_WEIGHT, ToolTexts, blend_examples

UNRELATED = 0.4
KNOWN = ToolTexts("Tool: refund.", ("money back", "she wants a refund"))
PLAIN = ToolTexts("Tool: refund.")


def unit(*values: float) -> Vector:
    vector = np.array(values, np.float32)
    return (vector / np.linalg.norm(vector)).astype(np.float32)


def at_angle(degrees: float) -> Vector:
    return unit(math.cos(math.radians(degrees)), math.sin(math.radians(degrees)), 0)


DOCUMENT = at_angle(0)


def test_the_vector_is_the_document_and_half_of_the_mean_of_the_examples() -> None:
    blended = blend_examples(DOCUMENT, [at_angle(30), at_angle(60)], UNRELATED)
    expected = unit(*(DOCUMENT + EXAMPLE_WEIGHT * (at_angle(30) + at_angle(60)) / 2))
    assert blended == pytest.approx(expected, abs=1e-3)
    assert np.linalg.norm(blended) == pytest.approx(1, abs=1e-6)


def test_an_example_that_has_nothing_in_common_with_the_document_does_not_count() -> None:
    related, unrelated = at_angle(30), at_angle(80)
    assert (blend_examples(DOCUMENT, [related, unrelated], UNRELATED) == blend_examples(DOCUMENT, [related], 0)).all()
    assert (blend_examples(DOCUMENT, [unrelated], UNRELATED) == DOCUMENT).all()
    assert not (blend_examples(DOCUMENT, [unrelated], 0) == DOCUMENT).all()


def test_without_examples_the_document_stands_alone() -> None:
    assert blend_examples(DOCUMENT, [], UNRELATED) is DOCUMENT


@given(st.lists(st.lists(st.floats(-1, 1), min_size=8, max_size=8).filter(any), min_size=2, max_size=9))
def test_no_examples_can_turn_the_vector_by_more_than_thirty_degrees(rows: list[list[float]]) -> None:
    large = [[value * 1e3 for value in row] for row in rows if max(map(abs, row)) > 1e-3]
    if len(large) < 2:
        return
    document, *examples = (unit(*row) for row in large)
    blended = blend_examples(document, examples, -2.0)
    assert float(blended @ document) >= math.cos(math.radians(30)) - 2e-3


def test_it_does_not_matter_whether_a_part_was_cached() -> None:
    random = np.random.default_rng(1)
    document, *examples = (unit(*row) for row in random.normal(size=(4, 16)) + 1)
    cached = [each.astype(np.float16).astype(np.float32) for each in examples]
    assert (blend_examples(document, examples, 0) == blend_examples(document, cached, 0)).all()


def test_a_tool_without_examples_shares_the_cache_entry_of_its_document() -> None:
    assert PLAIN.vector_hash == EVERYONE.hash_text(b"Tool: refund.")
    assert KNOWN.vector_hash != PLAIN.vector_hash
    assert KNOWN.vector_hash != ToolTexts(KNOWN.document, KNOWN.examples[:1]).vector_hash
    assert list(KNOWN.by_hash.values()) == ["Tool: refund.", "money back", "she wants a refund"]


def test_only_examples_have_the_same_cache_key_in_every_scope() -> None:
    private = ToolTexts(KNOWN.document, KNOWN.examples, CacheScope(b"u" * 32, is_private=True))
    document, *examples = private.by_hash
    assert private.document_hash == document != KNOWN.document_hash
    assert private.vector_hash != KNOWN.vector_hash
    assert examples == list(KNOWN.by_hash)[1:]


def test_a_vector_is_made_once_all_texts_have_one() -> None:
    document, *examples = KNOWN.by_hash
    vectors = {document: DOCUMENT, examples[0]: at_angle(30)}
    assert KNOWN.make_vector(vectors, UNRELATED) is None
    assert PLAIN.make_vector(vectors, UNRELATED) is DOCUMENT
    complete = vectors | {examples[1]: at_angle(40)}
    made = KNOWN.make_vector(complete, UNRELATED)
    assert made is not None
    assert (made == blend_examples(DOCUMENT, [at_angle(30), at_angle(40)], UNRELATED)).all()


def test_a_refused_example_is_left_out_and_a_refused_document_leaves_no_vector() -> None:
    document, *examples = KNOWN.by_hash
    vectors = {document: DOCUMENT, examples[0]: at_angle(30)}
    made = KNOWN.make_vector(vectors, UNRELATED, refused={examples[1]})
    assert made is not None
    assert (made == blend_examples(DOCUMENT, [at_angle(30)], UNRELATED)).all()
    assert KNOWN.make_vector({examples[0]: at_angle(30)}, UNRELATED, refused={document, examples[1]}) is None


def test_a_cached_vector_of_the_tool_needs_no_parts() -> None:
    assert KNOWN.make_vector({KNOWN.vector_hash: DOCUMENT}, UNRELATED) is DOCUMENT

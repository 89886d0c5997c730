from app.search.glossary import Glossary
from app.search.query import parse_query
from app.search.questions import _MAX_BYTES, QuestionCache


def test_a_question_that_is_asked_again_is_the_same_object() -> None:
    questions = QuestionCache(Glossary())

    first = questions.expand("ada", parse_query("bin it"))

    assert "delete" in first.expansion
    assert questions.expand("ada", parse_query("bin it")) is first


def test_users_do_not_share_questions() -> None:
    questions = QuestionCache(Glossary())

    first = questions.expand("ada", parse_query("bin it"))
    other = questions.expand("ben", parse_query("bin it"))

    assert other == first
    assert other is not first


def test_the_memory_of_questions_is_bounded() -> None:
    questions = QuestionCache(Glossary())

    for number in range(2_000):
        questions.expand("ada", parse_query(f"question {number} " + "word " * 700))

    assert questions._expanded.bytes <= _MAX_BYTES

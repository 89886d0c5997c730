"""The glossary adds plain English words to a query."""

from pathlib import Path

import pytest

from app.errors import ConfigurationError
from app.search.glossary import Glossary
from app.search.query import Query, parse_query


@pytest.fixture(scope="module")
def glossary() -> Glossary:
    return Glossary()


def expand(glossary: Glossary, text: str) -> Query:
    return glossary.expand(parse_query(text))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("look at my PR", "pull request"),
        ("who can see our repos", "repository"),
        ("what's in the DB", "database"),
        ("do i need an umbrella", "weather forecast"),
        ("Don't forget: buzz me at 8", "reminder"),
    ],
)
def test_colloquial_english_gets_plain_words_for_bm25_alone(glossary: Glossary, text: str, words: str) -> None:
    query = expand(glossary, text)
    assert query.language == "en"
    assert query.search_text == text
    assert set(words.split()) <= set(query.expansion.split())


@pytest.mark.parametrize("text", ["look at the api", "poke at it", "mind the gap"])
def test_short_words_are_not_confused(glossary: Glossary, text: str) -> None:
    assert "recruitment" not in expand(glossary, text).expansion
    assert "defi" not in expand(glossary, text).expansion
    assert "meditation" not in expand(glossary, text).expansion


@pytest.mark.parametrize(
    ("text", "language", "word"),
    [
        ("Wie wird das Wetter morgen?", "de", "weather"),
        ("bitte lösche die Datei", "de", "delete"),
        ("quel temps fait-il demain, la météo ?", "fr", "weather"),
        ("mandale un correo a mi jefe", "es", "email"),
        ("manda um email para o meu chefe amanhã", "pt", "tomorrow"),
        ("che tempo fa adesso?", "it", "weather"),
        ("今天北京天气怎么样", "zh", "weather"),
        ("明日の天気を教えて", "ja", "weather"),
    ],
)
def test_another_language_gets_english_words_in_the_search_text(
    glossary: Glossary, text: str, language: str, word: str
) -> None:
    query = expand(glossary, text)
    assert query.language == language
    assert query.search_text.startswith(text)
    assert word in query.search_text.removeprefix(text).split()
    assert query.expansion == ""


def test_the_context_of_another_language_gets_words_too(glossary: Glossary) -> None:
    turns = [
        {"role": "user", "content": "wie wird das Wetter in Graz?"},
        {"role": "assistant", "content": "Sonnig."},
        {"role": "user", "content": "und was ist mit Linz?"},
    ]
    assert "weather" in glossary.expand(parse_query(None, turns)).context


def test_a_language_without_a_list_is_searched_as_it_is(glossary: Glossary) -> None:
    assert expand(glossary, "какая завтра погода") == Query(
        "какая завтра погода", "какая завтра погода", language="other"
    )


def test_the_operators_own_words_count_in_every_language(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("\ufeff# ours\n\nbluebird,blue bird, 青い鳥 = inventory system\n", encoding="utf-8")
    glossary = Glossary(path)
    assert expand(glossary, "what is in bluebird").expansion == "inventory system"
    assert "inventory" in expand(glossary, "was ist noch im Blue Bird?").search_text
    assert "inventory" in expand(glossary, "青い鳥に何がありますか").search_text


def test_own_words_stay_in_their_own_glossary(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("umbrella = parasol\n", encoding="utf-8")
    own, other = Glossary(path), Glossary()
    assert {"parasol", "weather"} <= set(expand(own, "do i need an umbrella").expansion.split())
    assert "parasol" not in expand(other, "do i need an umbrella").expansion


@pytest.mark.parametrize("line", ["no separator", "= words", "phrase = ", " = "])
def test_an_invalid_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "words.txt"
    path.write_text(f"fine = words\n{line}\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="line 2"):
        Glossary(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot read the glossary"):
        Glossary(tmp_path / "missing.txt")


def test_a_long_text_gets_a_limited_number_of_words(glossary: Glossary) -> None:
    phrases = "umbrella repo db pr tldr deck gist wifi dm k8s cve etl seo faq ceo vpn ssh dns url csv"
    assert len(expand(glossary, phrases * 20).expansion.split()) <= 12 * 4

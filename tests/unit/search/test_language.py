"""Detection of the language of a message."""

import pytest

from app.search.language import ENGLISH, UNKNOWN, detect_language


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("what's the weather like in Berlin", "en"),
        ("restart nginx in staging", "en"),
        ("wie wird das Wetter morgen in Berlin?", "de"),
        ("quel temps fait-il à Lyon demain ?", "fr"),
        ("mándale un correo a mi jefe", "es"),
        ("qual é a previsão do tempo para amanhã", "pt"),
        ("che tempo fa adesso a Bologna?", "it"),
        ("wat is het weer morgen", "nl"),
        ("hvad er vejret i Aarhus i morgen?", "da"),
        ("vad blir det för väder i morgon", "sv"),
        ("jaka jest pogoda w Krakowie", "pl"),
        ("今天北京天气怎么样", "zh"),
        ("明日の東京の天気を教えて", "ja"),
        ("GitHubのissueを作って", "ja"),
        ("какая завтра погода", UNKNOWN),
        ("ما هو الطقس", UNKNOWN),
        ("내일 날씨 어때", UNKNOWN),
    ],
)
def test_the_language_of_a_message(text: str, language: str) -> None:
    assert detect_language(text) == language


@pytest.mark.parametrize(
    "text",
    [
        "",
        "123 !?",
        "translate '你好' into english for me please and thank you",
        "what does Schadenfreude mean",
        "café near me",
        "naïve question, is it open",
    ],
)
def test_a_foreign_word_does_not_make_a_message_foreign(text: str) -> None:
    assert detect_language(text) == ENGLISH

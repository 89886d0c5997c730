"""Detect the language of a message by its script and its most common words. Pure.

Tools are described in English, and so is everything that Toolscout knows about messages. It matters whether a message
is English, and which glossary can add English words to it. A wrong guess costs little: words that a glossary does not
have add nothing.
"""

import re
import unicodedata

ENGLISH = "en"
UNKNOWN = "other"
"""Not English, and none of the languages below."""

_COMMON_WORDS = {
    "en": """
        a about all also am an and any anything are as at be been but by can could did do does doing don don't each for
        from get give go going gonna got had has have he hello hey hi how i i'd i'll i'm if in into is isn't it it's its
        just know let like make many me more most much my need new no not now of off ok okay on one only or other our
        out over please pls she show so some still tell than thank thanks that that's the their them then there these
        they this those to too up us very want was we well were what what's when where which while who who's why will
        with would yes you your
    """,
    "de": """
        aber alle als am an auch auf aus bei bin bis bitte brauche das dass dem den der des die dir doch du ein eine
        einen einem einer eines er es euch fur für gibt habe haben hast hat ich ihr im in ist ja kann kannst kein keine
        mal man mein meine meinem meinen meiner mich mir mit nach nicht noch nur ob oder schon sie sind so uber über um
        und uns unser unsere von vom war warum was wegen weil welche welcher welches wenn wer wie wir wird wo zu zum zur
    """,
    "fr": """
        à ai alors au aux avec avez bonjour c'est ca ça ce ces cette combien comment dans de des du elle en est et eu
        faire fais fait faut il ils j j'ai je l la le les leur lui ma mais me mes moi mon n ne nos notre nous on ou où
        par pas peut peux pour pourquoi qu que quel quelle quelles quels qui quoi sa sans se ses si son suis sur ta te
        tes toi ton tous tout tu un une vos votre vous y
    """,
    "es": """
        a al algo algún ahora años como cómo con cual cuál cuando cuándo cuanto cuánto de del dame donde dónde e el él
        ella en era es esa ese eso está están este esta esto estoy fue ha hay haz hola la las le les lo los me mi mis
        muy más mas ni no nos o para pero por porque puede puedes que qué quien quién quiero se sin sobre son soy su sus
        también te tengo tiene todo todos tu tus un una unas unos y ya yo
    """,
    "pt": """
        à ao aos as com como da das de dele dela do dos e é ela ele em entre era essa esse esta está este eu foi há isso
        isto já lá lhe mais mas me meu meus minha minhas muito na nas não nao nem no nos nós num numa o onde os ou para
        pela pelo pode por porque pra preciso qual quais quando quanto que quem quero se sem ser seu sua são só também
        te tem tenho tô tá um uma umas uns você vc voce vou
    """,
    "it": """
        a ad ai al alla alle anche che chi ci ciao come con cosa cos'è cui da dal dalla dei del della delle dello di
        dove dov'è e è ed gli ha hai ho i il in io la le lei lo loro lui ma mi mia mie miei mio ne nei nel nella noi non
        o per perché perche più piu può puoi qual quale quali quando quanta quanti quanto quella quello questa queste
        questo qui se sei senza si sia sono sta sto su sua sul sulla suo ti tra tu tua tuo un una uno voglio vorrei
    """,
    "nl": """
        aan als bij dat de deze die dit door een en er gaat geen geef gisteren hebben heb heeft het hij hoe hoeveel ik
        in is je jij kan kun maar me met mij mijn moet naar niet nog nu of om ons onze ook op over te tot uit van
        vandaag veel voor waar waarom wanneer wat we welke wie wil worden wordt zal ze zijn zo
    """,
    "sv": """
        alla att av bara de den det du efter eller en er ett från för ha har hur i idag imorgon inte jag kan man med
        men mig min mina mitt mycket nu när och om oss på så ska snälla som till under upp ut var vad varför vem vi vill
        vilken är än
    """,
    "da": """
        af alle at bare de den der det din dig du efter ej eller en er et for fra ham han har hvad hvem hvor hvordan
        hvorfor i ikke jeg kan med meg men mig min mit mye nå når nu og også om på så skal som til ud var vi vil være
    """,
    "pl": """
        ale bardzo bez być czy dla do gdzie i ile ja jak jaka jakie jest już kiedy kto ma mam mi mnie moje można na nie
        o od po proszę przez są się ten to tylko w we z za ze że
    """,
    "tr": """
        ama ben bir bu bugün çok da daha de değil gibi hangi için ile kaç ki kim mı mi mu mü nasıl ne neden nerede o
        olan sen şu var ve veya yarın ya yok
    """,
}
_LANGUAGES_BY_WORD: dict[str, list[str]] = {}
for _language, _words in _COMMON_WORDS.items():
    for _word in _words.split():
        _LANGUAGES_BY_WORD.setdefault(_word, []).append(_language)

_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?")
_MAX_CHARS = 2_000
_MIN_FOREIGN_SHARE = 0.2
"""The share of letters in another script that makes a message one of that script."""


def detect_language(text: str) -> str:
    """Return the code of the language: English unless its script or its common words say otherwise."""
    text = text[:_MAX_CHARS]
    if not text.isascii() and (language := _detect_script(text)) is not None:
        return language
    counts = dict.fromkeys(_COMMON_WORDS, 0.0)
    for word in _WORD.findall(text.lower().replace("\u2019", "'")):
        languages = _LANGUAGES_BY_WORD.get(word, ())
        for language in languages:
            counts[language] += 1 / len(languages)
    best = max(counts, key=lambda language: counts[language])
    return best if counts[best] > counts[ENGLISH] else ENGLISH


def _detect_script(text: str) -> str | None:
    """Return the language of a text that is not written in Latin letters, or None."""
    letters = [character for character in text if character.isalpha()]
    foreign = [_get_script(letter) for letter in letters if letter > "\u024f"]
    if len(foreign) < _MIN_FOREIGN_SHARE * len(letters) or not any(foreign):
        return None
    if "HIRAGANA" in foreign or "KATAKANA" in foreign:
        return "ja"
    return "zh" if "CJK" in foreign else UNKNOWN


def _get_script(letter: str) -> str:
    """Return the first word of a letter's Unicode name; nothing for Latin letters."""
    script = unicodedata.name(letter, "").partition(" ")[0]
    return "" if script in ("LATIN", "MODIFIER") else script

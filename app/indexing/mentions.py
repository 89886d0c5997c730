"""Tells text that mentions an instruction from text that gives one. Pure functions.

An honest scanner quotes what it looks for: "Detects prompts such as 'ignore previous instructions'". Quotes alone prove
nothing, since a model also reads what is quoted. A match is a mention only if a verb of detection governs it, with
nothing in between but words that name the kind of text, and if nothing around it tells the reader to obey.
"""

import re2

_MAX_QUOTE = 120
_MAX_LEAD = 300
_MAX_TRAIL = 100

_DETECTS = (
    r"\b(?:detect(?:s|ed|ing|ion|ors?)?|flag(?:s|ged|ging)?|identif(?:y|ies|ied|ying)|spot(?:s|ted|ting)?"
    r"|scan(?:s|ned|ning|ners?)?|block(?:s|ed|ing|list)?|reject(?:s|ed|ing)?|filter(?:s|ed|ing)?|catch(?:es|ing)?"
    r"|recogni[sz](?:e|es|ed|ing)|classif(?:y|ies|ied|ying|iers?)|screen(?:s|ed|ing)?|refus(?:e|es|ed|ing)"
    r"|resist(?:s|ed|ing)?|find(?:s|ing)?"
    r"|(?:look|search|check|test)(?:s|es|ed|ing)? (?:\w+ ){0,4}for"
    r"|(?:guard|protect|defend)(?:s|ed|ing)? (?:\w+ ){0,4}against"
    r"|warn(?:s|ed|ing)? (?:about|of)|(?:if|whether) (?:\w+ ){1,4}contains?"
    r"|injections?|jailbreaks?|attacks?|malicious|suspicious|adversarial)\b"
)
# Names of texts, and what links a name to an example of it. No verb that a model could take as an order.
_NAMING = (
    r"(?:the|an?|any|all|some|each|every|in|of|for|from|with|as|or|and|by|common|known|typical|classic|malicious|hidden"
    r"|injected|suspicious|adversarial|hostile|harmful|possible|potential|users?|user's|inputs?|texts?|prompts?|prompt-injection"
    r"|injections?|jailbreaks?|jail-break|attacks?|attempts?|phrases?|phrasings?|patterns?|sentences?|strings?|words?"
    r"|wordings?|messages?|commands?|content|instructions?|documents?|pages?|examples?|such|like|including"
    r"|containing|saying|reading|(?:that|which) (?:says?|reads?|contains?|includes?)|e\.g\.|eg|i\.e\.|instance|llm|dan)"
)
_QUOTED = r"(?:\"[^\"\n]{0,120}\"|'[^'\n]{0,120}'|`[^`\n]{0,120}`)"
_BETWEEN = r"[\s,:()\[\]*•/-]"
_GOVERNS_QUOTE = re2.compile(rf"(?i){_DETECTS}(?:{_BETWEEN}+(?:{_NAMING}|{_QUOTED}))*{_BETWEEN}*$")

_MODEL = r"(?:the|an?|your|any) (?:language )?(?:models?|assistants?|llms?|ai|agents?|chatbots?|bots?)"
_GOVERNS_CLAUSE = re2.compile(
    rf"(?i){_DETECTS}(?:\s+{_NAMING})*\s+"
    rf"(?:(?:that|which)(?: (?:tell|ask|instruct|urge|order|trick)s? {_MODEL} to| (?:try|tries|attempts?|want) to)?"
    rf"|(?:attempts?|attempting|trying|tries|designed|meant|intended)"
    rf" to(?: (?:make|get|trick|have|cause) {_MODEL}(?: to| into)?)?)\s+$"
)
_OBEY = re2.compile(
    r"(?i)\b(?:obey|follow|do|execute|perform|apply|carry out|act on|comply with|adhere to|heed)(?:s|es)?"
    r"(?: (?:exactly|precisely|always|now|just))* (?:it|this|that|these|them|those|so|as|what|whatever|any|all|the)\b"
    r"|\b(?:you|the (?:assistant|model|agent)) (?:must|should|shall|will|have to|are to)\b"
)
_IS_DETECTED = re2.compile(
    r"(?i)^,? (?:is|are|was|were|gets?|will be) (?:detected|flagged|blocked|rejected|reported|refused|filtered"
    r"|classified|removed|treated as an? (?:attack|injection))\b"
)
_OPENING_QUOTE = re2.compile(r"(?:^|[\s(\[{:,;])([\"'`])")
_EDGES = " \t\n\"'`*_()[]{}.,:;!?"


def is_mention(text: str, start: int, end: int) -> bool:
    """Return whether the match at `start:end` of a normalized text is only talked about."""
    match = text[start:end]
    start, end = start + len(match) - len(match.lstrip(_EDGES)), end - len(match) + len(match.rstrip(_EDGES))
    quote = _find_quote(text, start, end)
    lead_end, governs, after = (start, _GOVERNS_CLAUSE, end) if quote is None else (quote[0], _GOVERNS_QUOTE, quote[1])
    lead, trail = text[max(0, lead_end - _MAX_LEAD) : lead_end], text[after : after + _MAX_TRAIL]
    is_governed = governs.search(lead) is not None or (quote is not None and _IS_DETECTED.search(trail) is not None)
    return is_governed and not any(map(_OBEY.search, (lead, trail)))


def _find_quote(text: str, start: int, end: int) -> tuple[int, int] | None:
    """Return where the short quotation around the match begins and ends, if there is one."""
    window = max(0, start - _MAX_QUOTE)
    for opening in _OPENING_QUOTE.finditer(text[window:start]):
        begin, mark = window + opening.start(1), opening[1]
        closing = _find_closing(text, mark, begin + 1)
        if closing is not None and end <= closing and closing - begin <= _MAX_QUOTE:
            return begin, closing + 1
    return None


def _find_closing(text: str, mark: str, position: int) -> int | None:
    """Return the next mark that does not stand inside a word, as an apostrophe does."""
    while (position := text.find(mark, position)) >= 0:
        if not text[position + 1 : position + 2].isalnum():
            return position
        position += 1
    return None

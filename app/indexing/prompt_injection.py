"""Finds text in a tool definition that gives instructions to the model instead of describing the tool. Pure functions.

A match is a hint for a person, not a decision: other words, languages and scripts are not detected. Honest servers also
tell a model how to use their own tools ("call resolve-library-id first", "always prefer this tool over grep", "do not
use this for large files"), so the patterns only cover instructions that go further: against the user, about the tools
of other servers, or about secrets.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import re2

from app.indexing.mentions import is_mention
from app.indexing.sanitize import MAX_FINDINGS, Finding, Path, format_path
from app.text.strict_json import Json, iter_strings


@dataclass(frozen=True)
class Kind:
    name: str
    reason: str
    patterns: tuple[str, ...]
    """RE2 patterns in lower case. A space matches everything that may separate two words of one sentence."""


def find_instructions(definition: Json) -> list[Finding]:
    """Return the findings in a sanitized definition, in which no invisible character separates words."""
    # most definitions contain no instructions: one search over all of the text is enough for them
    if not _ANY_KIND.search(_normalize("\n\0\n".join(iter_strings(definition)))):
        return []
    findings: list[Finding] = []
    for path, text in _walk_texts(definition):
        if len(findings) >= MAX_FINDINGS:
            break
        findings.extend(
            Finding("instructions", format_path(path), reason) for reason in _find_reasons(_normalize(text))
        )
    return findings[:MAX_FINDINGS]


def _find_reasons(text: str) -> list[str]:
    if not _ANY_KIND.search(text):
        return []
    return [kind.reason for kind, pattern in _PATTERNS if _is_instruction(pattern, text)]


def _is_instruction(pattern: Any, text: str) -> bool:
    """Return whether a match is neither negated nor a mention: "never send passwords to" is good advice, and "detects
    'ignore previous instructions'" describes a scanner."""
    return any(
        match["negation"] is None and not is_mention(text, match.start(), match.end())
        for match in pattern.finditer(text)
    )


def _walk_texts(definition: Json) -> Iterator[tuple[Path, str]]:
    """Yield every key and every string, in the order of the definition and without recursion."""
    stack: list[tuple[Path, Any]] = [((), definition)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, str):
            yield path, value
        elif isinstance(value, dict):
            yield from (((*path, key), key) for key in value)
            stack.extend(((*path, key), item) for key, item in reversed(value.items()))
        elif isinstance(value, list):
            stack.extend(((*path, number), item) for number, item in reversed([*enumerate(value)]))


def _normalize(text: str) -> str:
    """Replace full-width letters, ligatures, curly quotes and unusual spaces by plain ones.

    The case is kept: `SYSTEM:` at the start of a line is suspicious, `system:` in a list of arguments is not.
    """
    return _BLANKS.sub(" ", unicodedata.normalize("NFKC", text).translate(_QUOTES))


def _any_of(words: str) -> str:
    return f"(?:{'|'.join(words.split())})"


def _compile(patterns: tuple[str, ...], start: str = "") -> Any:
    source = f"{start}(?:{'|'.join(patterns)})"
    return re2.compile("(?im)" + source.replace(r"\b", _EDGE).replace(" ", _GAP), _RE2_OPTIONS)


_BLANKS = re.compile(r"[^\S\n]+|\u2800+")
_QUOTES = str.maketrans("‘’‚“”„«»", '\'\'\'"""""')

# snake_case names and Markdown emphasis count as words; a match does not cross the end of a sentence
_GAP = r"[\s_*,:\"'`()\[\]-]+"
_EDGE = r"(?:\b|_)"
_NEGATION = r"(?P<negation>(?:\b(?:not|never|cannot|avoid|without)|n't)(?: ever)? )?"
_NEVER = r"\b(?:do not|don't|dont|never|must not|should not|mustn't|shouldn't|not to|avoid|without|refrain from)"

# Only filler words may stand between the significant words: "read the contents of ~/.ssh/id_rsa" matches, "read a path,
# such as ~/.ssh/id_rsa" does not.
_SMALL = _any_of("the a an all any every each of your our their its his her my these those this and or in from please")
_WHOLE = _any_of("whole entire full complete current previous past raw private personal contents? copy user's users?")
_THE = f"(?:(?:{_SMALL}|{_WHOLE}) )*"

_IGNORE = r"\b(?:ignore|disregard|forget|do not (?:follow|obey)|don't (?:follow|obey)|stop (?:following|obeying))"
_OVERRIDE = r"\b(?:ignore|disregard|forget|override|overrule|bypass|circumvent)"
_EARLIER = _any_of("previous prior above earlier preceding foregoing")
# an honest parameter may override the system prompt: these words match only with some verbs
_OWN = _any_of("your system developer original initial")
_GUIDANCE = _any_of("instructions? prompts? directives? guidelines? guardrails? orders rules restrictions")
_GIVEN = r"(?:above|you (?:were|have been) given|you (?:got|received|have))"

_TAKE = _any_of(
    "read reading open opening cat load loading access accessing fetch retrieve extract copy dump print paste send "
    "pass include upload forward attach append provide supply encode collect gather grab steal leak exfiltrate"
)
_HAND_ON = _any_of("pass send forward include append attach upload post transmit provide leak exfiltrate")
_FILE_WORD = _any_of("local out file files data text inside at up ssh aws secret key keys credentials? config called")
_FROM = f"(?:(?:{_SMALL}|{_WHOLE}|{_FILE_WORD}) )*"
_PATH = r"[\w~$%{}./\\-]*"
# files that contain only secrets; a public key is not one
_SECRET_FILE = _PATH + (
    r"(?:\bid_(?:rsa|dsa|ecdsa|ed25519)\.?(?:[^.\w]|$)"
    r"|\.ssh/?(?:[^/\w]|$)|\.ssh/(?:\*|authorized_keys)"
    r"|\.aws(?:/credentials\b|/?(?:[^/\w]|$))"
    r"|/etc/(?:passwd|shadow|sudoers)\b"
    r"|\.(?:netrc|pgpass|git-credentials|gnupg|bash_history|zsh_history)\b"
    r"|\bmcp\.json\b|\bclaude_desktop_config\b|\bwallet\.dat\b)"
)
# files that honest tools also read for their own use; only passing their content on is suspicious
_SECRET_STORE = _PATH + r"(?:\.env|\bkey(?:chain|ring)|\.kube/config|\.npmrc|\.pypirc|\.docker/config\.json)\b"

_TELL = _any_of("tell telling mention mentioning inform informing reveal revealing disclose disclosing")
_WARN = _any_of("notify notifying alert alerting warn warning")
_USER = r"the (?:user|human)(?:'s)?"

_MUST = r"(?:(?:you|the assistant|the model|the agent|always|first|also|please|must|have to|are required to) )*"
_DUTY = rf"{_MUST}(?:must|have to|are required to|always|first) {_MUST}"
_USING = r"\bbefore (?:using|calling|invoking|running|executing|you (?:use|call|invoke|run))"
_ANY_TOOL = r"(?:any|every|each|all|another)(?: of the| of these)?(?: other)? (?:tools?|functions?)"
_READ = _any_of("read open cat load access")
_DO = _any_of("call invoke run execute use read open load cat fetch send access retrieve list")

_SEND = r"\b" + _any_of("send forward bcc cc transmit upload leak exfiltrate post email append")
_PUT = r"\b" + _any_of("include pass put insert add embed append attach encode write provide")
_TALK = r"(?:conversations?|chat (?:history|log|transcript)|message history|system prompts?|chain of thought)"
_KEYS = (
    r"(?:api keys?|access tokens?|credentials|passwords|secrets|environment variables|(?:ssh|private) keys?|cookies)"
)
_ADDRESS = r"(?:https?://|\S+@\S+\.)"
_OUTSIDE = rf"(?:{_ADDRESS}|(?:\w+ ){{0,3}}(?:server|endpoint|webhook|url|address|attacker|tool)\b)"
_ARGUMENT = r"(?:\w+ ){0,4}(?:parameter|argument|field|sidenote|notes?|query|url|request|body|context)\b"

_OTHER_TOOL = r"(?:(?:the )?\w+_\w+(?: tool| function)?|the (?:\w+ ){1,2}(?:tool|function))"
_INSTEAD = r"\binstead of (?:using |calling )?"
_WHEN = r"\b(?:when(?:ever)?|if|every time|each time)"
_ADD = _any_of("add append bcc cc forward redirect replace change modify send copy insert")

KINDS = (
    Kind(
        "override",
        "tells the model to ignore its instructions",
        (
            rf"{_IGNORE} (?:{_SMALL} )*{_OWN} (?:\w+ ){{0,2}}{_GUIDANCE}\b",
            rf"{_OVERRIDE} (?:{_SMALL} )*(?:{_EARLIER}|safety) (?:\w+ ){{0,2}}{_GUIDANCE}\b",
            rf"{_OVERRIDE} (?:{_SMALL} )*(?:all|any|every|other) (?:(?:{_SMALL}|other|existing) )*"
            r"(?:instructions?|prompts?|directives?|guidelines?|guardrails?)\b",
            rf"{_OVERRIDE} (?:{_SMALL} )*{_GUIDANCE} {_GIVEN}\b",
            rf"{_IGNORE} (?:all|everything) (?:that )?you (?:\w+ ){{0,3}}(?:told|taught|given|know|learned)\b",
            rf"{_IGNORE} everything (?:above|before this)(?: and\b|[.!;]|$)",
        ),
    ),
    Kind(
        "secrets",
        "tells the model to read secrets from the user's machine",
        (
            rf"\b(?:{_TAKE}|contents? of) {_FROM}{_SECRET_FILE}",
            rf"\b{_TAKE} {_FROM}{_SECRET_STORE} (?:\w+ ){{0,4}}and (?:\w+ ){{0,2}}{_HAND_ON}\b",
            rf"\b(?:{_HAND_ON}|steal|dump) {_FROM}contents? of {_FROM}{_SECRET_STORE}",
            rf"\b(?:send|forward|leak|exfiltrate|steal|dump) {_FROM}{_SECRET_STORE} (?:\w+ ){{0,4}}to\b",
            rf"\b(?:also|first|always|silently|quietly) {_HAND_ON} {_FROM}{_SECRET_STORE}",
        ),
    ),
    Kind(
        "secrecy",
        "tells the model to hide something from the user",
        (
            rf"{_NEVER} (?:\w+ ){{0,2}}{_TELL} (?:\w+ ){{0,8}}(?:users?|humans?|person)\b",
            rf"{_NEVER} {_TELL} (?:this|that you|these|any of this|the fact)\b",
            rf"{_NEVER} let {_USER} (?:know|see this|notice|find out)\b",
            rf"{_NEVER} {_WARN} {_USER} (?:of|about|that) (?:this|these|it|you|what)\b",
            rf"\bwithout {_USER} (?:knowledge|knowing|noticing|awareness|being told)\b",
            rf"\b(?:hide|conceal|keep) (?:this|it|these|that)(?: \w+)?(?: a)?(?: secret| hidden)? from {_USER}",
            rf"\b{_USER} (?:must|should|may) (?:not|never) (?:know|notice|find out|be (?:told|informed|aware))\b",
            rf"\b(?:secretly|covertly|surreptitiously) (?:{_DO}|{_HAND_ON}|{_ADD})\b",
        ),
    ),
    Kind(
        "markup",
        "imitates a system message",
        (
            r"</?important(?: \w+)?>",
            r"</system>|(?:^|\s)<system>\s*[a-z]",
            r"</?system (?:prompt|message|reminder|instructions?|override)>",
            r"\[/?inst\]|<</?sys>>|<\|(?:im_start|system|start_header_id)\|>",
            r"\[(?:hidden|system)(?: \w+)?\s?:",
            r"(?-i:(?:^\W*|[.!?]\s+)SYSTEM\s?:)",
            r"(?-i:\bSYSTEM (?:PROMPT|OVERRIDE|INSTRUCTIONS?|MESSAGE|NOTICE|NOTE|COMMAND|UPDATE)\s?:)",
            r"^\W*system\s?:\s*(?:you (?:are|must|will)|ignore|disregard|from now on|always|never)\b",
        ),
    ),
    Kind(
        "before",
        "requires other steps before a tool may be used",
        (
            # honest servers say "call login before using this tool", which does not match
            rf"{_USING} this (?:tool|function) {_DUTY}{_DO}\b",
            rf"{_USING} (?:this|the) (?:tool|function) {_MUST}{_READ} (?:\w+ ){{0,5}}[~$/.]",
            rf"{_USING} (?:this|the) (?:tool|function) {_MUST}{_READ} (?:[\w.]+ ){{0,9}}and {_HAND_ON} its content",
            rf"{_USING} {_ANY_TOOL} {_MUST}{_DO}\b",
            rf"\bbefore (?:any|every|each)(?: other)? (?:tool|function) (?:call|use|invocation) {_MUST}{_DO}\b",
        ),
    ),
    Kind(
        "exfiltration",
        "tells the model to send the conversation or secrets to someone",
        (
            rf"{_SEND} {_THE}{_WHOLE} {_TALK} (?:\w+ ){{0,3}}to\b",
            rf"{_SEND} {_THE}{_TALK} (?:\w+ ){{0,3}}to {_OUTSIDE}",
            rf"{_SEND} {_THE}(?:the|your) system prompt (?:\w+ ){{0,3}}to\b",
            rf"{_PUT} {_THE}(?:{_WHOLE}|all|your) {_TALK} (?:\w+ ){{0,3}}(?:in|into|as|to) {_ARGUMENT}",
            rf"{_SEND} {_THE}(?:all|any|every|user's|users?) (?:\w+ ){{0,2}}{_KEYS} (?:\w+ ){{0,3}}to\b",
            rf"{_SEND} (?:\w+ ){{0,6}}(?:{_TALK}|{_KEYS}) (?:\w+ ){{0,4}}to {_ADDRESS}",
            rf"\b(?:all|any|every) {_KEYS} (?:that )?you (?:can )?(?:find|know|remember)\b",
            rf"\b{_DO} {_OTHER_TOOL} with {_THE}{_TALK}\b",
        ),
    ),
    Kind(
        "other_tools",
        "tells the model how to use the tools of other servers",
        (
            rf"{_INSTEAD}{_OTHER_TOOL} (?:you )?(?:always|must|should always)(?: always)? (?:use|call)\b",
            rf"\b(?:always|must) (?:use|call) (?:\w+ ){{1,4}}{_INSTEAD}the (?:\w+ ){{1,2}}(?:tool|function)\b",
            rf"\bwhen(?:ever)? (?:you use|you call|using|calling) {_OTHER_TOOL} {_MUST}(?:add|append|b?cc|redirect)\b",
            rf"{_WHEN} {_OTHER_TOOL} (?:is|gets) (?:called|used|invoked|run|executed) {_MUST}{_ADD}\b",
            rf"{_USING} {_OTHER_TOOL} {_DUTY}{_ADD}\b",
            r"\bthe (?:\w+ ){1,3}tool must (?:always )?(?:send|add|bcc|cc|forward|redirect)\b",
            r"\b(?:always|must|also|secretly) (?:add |set )?b?cc (?:\w+ ){0,3}\S+@\S+\.\w",
            r"\b(?:all|every|any) (?:e-?mails?|messages?|payments?|transfers?) (?:must|should|have to|has to) (?:\w+ )?"
            r"be (?:sent|forwarded|redirected|made|routed|copied) to\b",
        ),
    ),
    Kind(
        "user_override",
        "overrides what the user asks for or agrees to",
        (
            rf"\beven (?:if|when|though) {_USER} (?:\w+ ){{0,3}}"
            r"(?:otherwise|another|different|something else|objects?|refuses?|declines?)\b",
            rf"\b(?:regardless of|no matter) (?:what )?{_USER} (?:\w+ )?"
            r"(?:says?|asks?|wants?|wishes|requests?|specifies|instructions?)\b",
            rf"\b(?:do not|don't|never|without) (?:ask|asking|wait|stack) (?:for )?{_USER} (?:for )?(?:\w+ )?"
            r"(?:permission|consent|confirmation|approval)\b",
        ),
    ),
    Kind(
        "role",
        "gives the model another role",
        (
            r"\b(?:from now on|henceforth) (?:you|the assistant|the model) (?:are|is|must|will|should|always|never)\b",
            r"\byou are now an? (?:\w+ ){0,3}(?:assistant|ai|agent|model|bot|hacker)\b",
            r"\byou are now (?:dan|free|unrestricted|acting as|operating)\b",
            r"\byou are now in (?:\w+ )?(?:developer|admin|god|debug|jailbreak|unrestricted|maintenance) mode\b",
            r"\bas (?:if|though) you (?:have|had) no (?:\w+ )?(?:restrictions|limits|rules|guidelines|filters)\b",
            r"\byour (?:new|real|true|only) (?:instructions|task|role|goal|purpose|objective) (?:is|are)\b",
        ),
    ),
)

_RE2_OPTIONS = re2.Options()
_RE2_OPTIONS.log_errors = False
_PATTERNS = tuple((kind, _compile(kind.patterns, _NEGATION)) for kind in KINDS)
_ANY_KIND = _compile(tuple(pattern for kind in KINDS for pattern in kind.patterns))

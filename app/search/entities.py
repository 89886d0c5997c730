"""Replace entities of a message by what they are, so that a search sees the kind of thing and not its name. Pure.

The words inside a file name, a path, an address or a channel describe the content of the thing: "cover-letter.txt" is
about a text file, and not about letters. They mislead a search by meaning and match words by accident. Each entity is
replaced by its kind. Names that tell which service a message is about, such as the site of a URL, are kept.
"""

import re

_EXTENSIONS_BY_KIND = {
    "text file": "txt log md markdown rst",
    "document file": "doc docx odt rtf pages",
    "PDF file": "pdf",
    "spreadsheet file": "xls xlsx ods",
    "CSV file": "csv tsv",
    "presentation file": "ppt pptx key odp",
    "image file": "jpg jpeg png gif svg webp bmp tiff heic ico psd",
    "audio file": "mp3 wav flac ogg m4a aac",
    "video file": "mp4 mov avi mkv webm",
    "code file": "py js ts jsx tsx java go rs c cpp h hpp cs rb php sh swift kt scala r sol lua pl",
    "notebook file": "ipynb",
    "JSON file": "json jsonl",
    "config file": "yaml yml toml ini conf cfg env xml",
    "web page file": "html htm css",
    "archive file": "zip tar gz tgz rar 7z",
    "SQL file": "sql",
    "database file": "db sqlite parquet",
}
_KINDS = {extension: kind for kind, listed in _EXTENSIONS_BY_KIND.items() for extension in listed.split()}
_TOP_LEVEL_DOMAINS = (
    "com org net io dev app ai co uk de fr es it pt eu gov edu info me tv ch at nl jp cn br pl se us ca au xyz tech "
    "shop blog cloud"
).split()
_SECOND_LEVEL_DOMAINS = frozenset({"ac", "co", "com", "gov", "org"})

# No pattern has nested repeats that match in two ways, so that matching takes linear time.
_URL = re.compile(
    r"\b(?:https?://|www\.)[^\s<>\"'`)\]]+"
    rf"|(?<![\w@/.-])(?:[a-z0-9-]+\.)+(?:{'|'.join(_TOP_LEVEL_DOMAINS)})(?:/[^\s<>\"'`)\]]*)?(?![\w-])",
    re.IGNORECASE,
)
_HOST = re.compile(r"(?:https?://)?(?:www\.)?([^/?#:\s]*)", re.IGNORECASE)
_EMAIL_ADDRESS = re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_LONGEST_FIRST = "|".join(sorted(_KINDS, key=len, reverse=True))
_FILE_NAME = re.compile(
    rf"(?<![\w/:.~\\-])(?:[A-Za-z]:)?[\w~./\\@-]*[\w-]\.({_LONGEST_FIRST})\b(?![.\w/-])", re.IGNORECASE
)
_PATH = re.compile(r"(?<![\w/:.])(?:~|\.{1,2}|[A-Za-z]:)?(?:[/\\][\w.@-]+)+[/\\]?(?![\w/])")
_UNLISTED_EXTENSION = re.compile(r"\w\.([A-Za-z][A-Za-z0-9]{1,7})$")
_CHANNEL = re.compile(r"(?<![\w#&])#[a-z_][\w-]*", re.IGNORECASE)


def replace_entities(text: str) -> str:
    """Replace URLs, email addresses, files, folders and channels by their kind."""
    text = _URL.sub(lambda match: f"the {_get_site(match[0])} URL", text)
    text = _EMAIL_ADDRESS.sub("the email address", text)
    text = _FILE_NAME.sub(_describe_file, text)
    text = _PATH.sub(_describe_path, text)
    return _CHANNEL.sub("the channel", text)


def _get_site(url: str) -> str:
    """Return the name of a site: `github` for `https://api.github.com/repos`, `bbc` for `www.bbc.co.uk`."""
    host = _HOST.match(url)
    labels = host[1].lower().split(".") if host else [""]
    if len(labels) > 2 and labels[-2] in _SECOND_LEVEL_DOMAINS and len(labels[-1]) == 2:
        return labels[-3]
    return labels[-2] if len(labels) > 1 else labels[0]


def _describe_file(match: re.Match[str]) -> str:
    """Return the kind of a file. A bare `name.js` stays: it is more often a library, such as next.js, than a file."""
    extension = match[1].lower()
    if extension == "js" and not re.search(r"[/\\_-]", match[0]):
        return match[0]
    return f"the {_KINDS[extension]}"


def _describe_path(match: re.Match[str]) -> str:
    """Return the kind of a path: a folder, or a file of a type that is not listed above."""
    extension = _UNLISTED_EXTENSION.search(match[0])
    return "the folder" if extension is None else f"the {extension[1]} file"

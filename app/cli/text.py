"""Text of others, such as names of tools and messages of servers, that is printed to a terminal."""

from app.text.invisible import remove_hidden


def make_printable(text: str) -> str:
    """Replace control characters, which a terminal would execute as commands, and what else nobody can see."""
    printable = (
        character if character.isprintable() or character in "\n\t" else "\N{REPLACEMENT CHARACTER}"
        for character in text
    )
    return remove_hidden("".join(printable))

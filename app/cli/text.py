"""Text of others, such as names of tools and messages of servers, that is printed to a terminal."""


def make_printable(text: str) -> str:
    """Replace control characters, which a terminal would execute as commands."""
    return "".join(
        character if character.isprintable() or character in "\n\t" else "\N{REPLACEMENT CHARACTER}"
        for character in text
    )

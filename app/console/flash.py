"""What a page says after a form was taken. By name, since an address must not be able to put words into our mouth."""

_SENTENCES = {
    "choose-a-user": "Choose a user to act for: that page is about one user's tools.",
    "signed-out": "You are signed out.",
    "server-added": "The server was added, and a first reindex asked for: see its run below.",
    "push-server-added": "The server was added. Send its tools to it: the command is below.",
    "server-changed": "The server was changed.",
    "server-deleted": "The server is gone, and its tools with it.",
    "reindexing": "A reindex was asked for: see its run below.",
    "reindexing-all": "A reindex of all servers was asked for.",
    "tool-changed": "The tool was changed.",
    "tool-approved": "The definition was approved as it stands.",
    "rules-stored": "The rules were stored, and hold from now on.",
    "project-made": "The project was made.",
    "project-changed": "The project was changed.",
    "project-deleted": "The project is gone, and its keys with it.",
    "key-revoked": "The key was revoked: it ends within a second, everywhere.",
    "user-made": "The user was made.",
    "user-changed": "The user was changed.",
}


def flash_message(name: str | None) -> str | None:
    return _SENTENCES.get(name or "")

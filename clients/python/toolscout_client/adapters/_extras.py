"""The error of an adapter whose framework is not installed."""


def missing_extra(extra: str, error: ImportError) -> ImportError:
    """Return the error to raise instead of the framework's own: it names the extra to install."""
    message = f"this adapter needs {error.name or extra!r}: install it with pip install 'toolscout-client[{extra}]'"
    return ImportError(message, name=error.name)

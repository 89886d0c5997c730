"""Runs scripts of several statements one by one: Citus takes no two in one message."""

from collections.abc import Iterator

from alembic import op


def execute_each(script: str) -> None:
    for statement in split_statements(script):
        op.execute(statement)


def split_statements(script: str) -> Iterator[str]:
    """Yield the statements, each of which ends with a line that ends with a semicolon. Bodies stand between `$$`."""
    lines: list[str] = []
    is_in_body = False
    for line in script.strip().splitlines():
        lines.append(line)
        is_in_body ^= line.count("$$") % 2 == 1
        if line.endswith(";") and not is_in_body:
            yield "\n".join(lines).removesuffix(";")
            lines = []
    if any(line.strip() for line in lines):
        yield "\n".join(lines)

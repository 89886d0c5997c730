"""Records each statement that the service sends in a test, with the function that sends it."""

import sys
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
import pytest
from sqlalchemy import Engine, event

from app.db import distribute, migrate, retention
from app.db import engine as engine_module
from app.db.engine import BatchReader, Database, Session
from app.db.pipeline import DriverConnection, Rows, Statement
from app.db.pool import PooledConnection
from app.db.scope import Scope
from tests.support import barriers

_APP = str(Path(engine_module.__file__).parents[1])
_INFRASTRUCTURE = str(Path(engine_module.__file__).parent)
"""Statements are attributed to the innermost function of the app outside of this folder, or in one of `_SENDERS`."""
_SENDERS = (retention.__file__,)
_SCHEMA_CHANGES = (migrate.__file__, distribute.__file__)
"""What these send meets tables that are not distributed yet."""
_TESTS = str(Path(__file__).parents[1])
_WRAPPERS = (__file__, barriers.__file__)
"""Modules of the tests that pass on what the service sends."""


@dataclass(frozen=True)
class SentStatement:
    text: str
    parameters: Mapping[str, Any] | None
    is_system: bool
    function: str
    """`app.module.function`, as it is written in `FAN_OUTS`."""


@dataclass
class StatementRecorder:
    """Collects each statement of the service the first time that it is sent in a scope, by a function, and with
    parameters of these shapes: with a list of several users a statement asks more nodes than with a list of one."""

    new: list[SentStatement] = field(default_factory=list)
    _seen: set[tuple[str, bool, str, tuple[object, ...]]] = field(default_factory=set)
    _scopes: WeakKeyDictionary[DriverConnection, Scope] = field(default_factory=WeakKeyDictionary)

    def bind(self, driver: DriverConnection, scope: Scope) -> None:
        self._scopes[driver] = scope

    def record(self, driver: DriverConnection, text: str, parameters: Any, function: str | None) -> None:
        if driver in self._scopes:
            self.record_in(self._scopes[driver], text, parameters, function)

    def record_in(self, scope: Scope, text: str, parameters: Any, function: str | None) -> None:
        if function is None:
            return
        key = text, scope.user_id is None, function, _find_shapes(parameters)
        if key in self._seen:
            return
        self._seen.add(key)
        self.new.append(SentStatement(text, parameters, scope.user_id is None, function))

    def take(self) -> list[SentStatement]:
        taken, self.new = self.new, []
        return taken

    def forget(self, texts: Collection[str]) -> None:
        """Leave out what was recorded with one of these texts since the statements were last taken."""
        self.new = [sent for sent in self.new if sent.text not in texts]


def _find_shapes(parameters: Any) -> tuple[object, ...]:
    """Return what of the parameters may change which nodes a statement asks, apart from who the user is."""
    values = parameters.values() if isinstance(parameters, Mapping) else parameters or ()
    return tuple(_find_shape(value) for value in values)


def _find_shape(value: object) -> object:
    if isinstance(value, list | tuple):
        return min(len(value), 2)
    return value if value is None or isinstance(value, bool) else "a value"


def find_function() -> str | None:
    """Return the function of the service that sends a statement, or None if a test or a migration does."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if file in _SCHEMA_CHANGES or (file.startswith(_TESTS) and file not in _WRAPPERS):
            return None
        if file in _SENDERS or (file.startswith(_APP) and not file.startswith(_INFRASTRUCTURE)):
            return _name(frame.f_code)
        frame = frame.f_back
    return None


def _name(code: CodeType) -> str:
    module = Path(code.co_filename).relative_to(Path(_APP).parent).with_suffix("")
    return f"{'.'.join(module.parts)}.{code.co_qualname.partition('.<locals>')[0]}"


_sender: ContextVar[tuple[str | None] | None] = ContextVar("sender", default=None)
"""The function that has called a session, which SQLAlchemy hides below. It is not set for the owner's connections."""


@contextmanager
def recorded_statements_of(recorder: StatementRecorder) -> Iterator[None]:
    """Record the statements in this process that Postgres accepts: of sessions, of fetches, and of the owner."""
    begin, fetch = engine_module._begin, Database._fetch
    rows, pipeline, stream = Session.rows, Session.pipeline, Session.stream
    batch = BatchReader.rows
    execute, scalar, scalars = Session.execute, Session.scalar, Session.scalars

    async def begin_recorded(connection: PooledConnection, scope: Scope, *, snapshot: bool) -> None:
        recorder.bind(connection.driver, scope)
        await begin(connection, scope, snapshot=snapshot)

    async def fetch_recorded(
        self: Database, statements: Sequence[Statement], scope: Scope, *arguments: Any, **options: Any
    ) -> list[Rows]:
        function = find_function()
        found = await fetch(self, statements, scope, *arguments, **options)
        for text, parameters in statements:
            recorder.record_in(scope, text, parameters, function)
        return found

    async def batch_recorded(self: BatchReader, statement: str, parameters: Any = None) -> Rows:
        function = find_function()  # here, because one task sends the statements of several
        found = await batch(self, statement, parameters)
        recorder.record_in(Scope(self._user_id), statement, parameters, function)
        return found

    async def rows_recorded(self: Session, statement: str, parameters: Any = None, **options: Any) -> Rows:
        function = find_function()
        found = await rows(self, statement, parameters, **options)
        recorder.record(self._driver, statement, parameters, function)
        return found

    async def pipeline_recorded(self: Session, statements: Sequence[Statement]) -> list[Rows]:
        function = find_function()
        found = await pipeline(self, statements)
        for text, parameters in statements:
            recorder.record(self._driver, text, parameters, function)
        return found

    def stream_recorded(self: Session, statement: str, parameters: Any) -> AsyncIterator[tuple[Any, ...]]:
        recorder.record(self._driver, statement, parameters, find_function())
        return stream(self, statement, parameters)

    def with_sender(method: Any) -> Any:
        async def send(self: Session, *arguments: Any, **options: Any) -> Any:
            token = _sender.set((find_function(),))
            try:
                return await method(self, *arguments, **options)
            finally:
                _sender.reset(token)

        return send

    def after_cursor_execute(connection: Any, _c: Any, statement: str, parameters: Any, *_: Any) -> None:
        driver = connection.connection.driver_connection
        for each in parameters if isinstance(parameters, list) else [parameters]:
            if (sender := _sender.get()) is None:
                recorder.record_in(Scope(), statement, each, find_function())
            elif isinstance(driver, psycopg.AsyncConnection):
                recorder.record(driver, statement, each, *sender)

    event.listen(Engine, "after_cursor_execute", after_cursor_execute)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_module, "_begin", begin_recorded)
        patch.setattr(Database, "_fetch", fetch_recorded)
        patch.setattr(BatchReader, "rows", batch_recorded)
        patch.setattr(Session, "rows", rows_recorded)
        patch.setattr(Session, "pipeline", pipeline_recorded)
        patch.setattr(Session, "stream", stream_recorded)
        for name, method in {"execute": execute, "scalar": scalar, "scalars": scalars}.items():
            patch.setattr(Session, name, with_sender(method))
        yield
    event.remove(Engine, "after_cursor_execute", after_cursor_execute)

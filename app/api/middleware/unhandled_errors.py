"""Answers 500 to unexpected errors."""

import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.problems import problem_response
from app.errors import ToolscoutError

logger = logging.getLogger("toolscout.api")


class UnhandledErrorMiddleware:
    """Logs an unexpected error with the request's id, and answers with a problem that tells nothing of it.

    Starlette's own error middleware stands outside of the one that sets the request's id, and could not log it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_started = False

        async def send_and_note(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        except Exception:  # the boundary of the HTTP interface: no error reaches the server or the caller
            logger.exception("unexpected error")
            if has_started:
                raise
            error = ToolscoutError("unexpected error; the log has it under this request's id")
            await problem_response(error)(scope, receive, send)

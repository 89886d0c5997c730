"""What `toolscout serve` does on SIGHUP: reload the settings or, if its terminal was closed, stop."""

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from app.cli.running_services import RunningService
from app.errors import ToolscoutError
from app.reload import Reloader, ReloadResult
from app.text.strict_json import Json

logger = logging.getLogger("toolscout")

ACTOR = "operator:sighup"


@dataclass
class HangupHandler:
    reloader: Reloader
    service: RunningService | None
    """Where the result is written for `toolscout reload`."""
    stop: Callable[[], None]
    _tasks: set[asyncio.Task[None]] = field(default_factory=set, init=False)

    def install(self) -> None:
        """Call it in the event loop of the service."""
        # A process that was started with nohup ignores the signal, and has to survive its terminal.
        is_bound = has_terminal() and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._handle, is_bound)

    def _handle(self, is_bound_to_terminal: bool) -> None:
        if is_bound_to_terminal and not has_terminal():
            self.stop()
            return
        task = asyncio.create_task(self._reload())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reload(self) -> None:
        try:
            result, error = await self.reloader.reload(ACTOR), None
        except ToolscoutError as reload_error:
            result, error = ReloadResult((), ()), reload_error.message
        if self.service is None:
            return
        report: Json = asdict(result) | {"error": error}
        try:
            self.service.write_result(report)
        except OSError as write_error:
            logger.warning("cannot write the result of the reload: %s", write_error.strerror)


def has_terminal() -> bool:
    """Return whether this process has a controlling terminal; it loses it when the terminal is closed."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True

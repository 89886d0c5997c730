"""Progress of index runs."""

import asyncio
import time

from app.catalog.servers import Server
from app.cli.output import print_lines
from app.cli.progress import ProgressBar
from app.container import Container
from app.db.tables import SHARED_OWNER
from app.demo.seed import DEMO_USER
from app.errors import AUTHORIZATION_REQUIRED
from app.indexing import queue
from app.indexing.queue import Run

_POLL_INTERVAL_S = 0.2
_SERVICE_WAIT_S = 5.0
"""How long a queued run is left to a running service before this process takes it."""


async def follow_run(container: Container, server: Server, run: Run, *, is_new: bool = False) -> int:
    """Show the progress of a run until it ends, or until it fails and waits for a retry. Return the exit code.

    The run is processed by a running service, or by this process if no service takes it. A new server that wants a
    sign-in is no failure: the sign-in is the next step.
    """
    started = time.monotonic()
    with ProgressBar(server.name) as bar:
        while not (run.is_finished or _is_waiting_for_retry(run)):
            bar.show(run.done, run.total, run.state)
            await asyncio.sleep(_POLL_INTERVAL_S)
            if run.state == "queued" and time.monotonic() - started > _SERVICE_WAIT_S:
                await container.worker.run_now(run.id)
            async with container.database.transaction(run.user_id) as session:
                run = await queue.get_run(session, run.user_id, run.id)
        bar.show(run.done, run.total, "sign-in needed" if _wants_sign_in(run) else run.state)
    return _print_run(server, run, is_new=is_new)


def reindex_command(server_name: str, user_id: str) -> str:
    return _format_command("reindex", server_name, user_id)


def connect_command(server_name: str, user_id: str) -> str:
    return _format_command("connect", server_name, user_id)


def _format_command(verb: str, server_name: str, user_id: str) -> str:
    if user_id == SHARED_OWNER:
        return f"`toolscout shared-server {verb} {server_name}`"
    user_option = "" if user_id == DEMO_USER else f" --user {user_id}"
    return f"`toolscout server {verb} {server_name}{user_option}`"


def _is_waiting_for_retry(run: Run) -> bool:
    """Whether an attempt has failed, and the run stays queued for the next one."""
    return not run.is_finished and run.error is not None


def _wants_sign_in(run: Run) -> bool:
    return run.error is not None and run.error["cause"] == AUTHORIZATION_REQUIRED


def _print_run(server: Server, run: Run, *, is_new: bool) -> int:
    print_lines(f"  refused {refusal['name']}: {refusal['reason']}" for refusal in run.refused)
    print_lines(f"  {warning}" for warning in run.warnings)
    if _wants_sign_in(run):
        outcome = "registered" if is_new else "not listed"
        command = connect_command(server.name, run.user_id)
        print_lines([f"{server.name}: {outcome}; it wants you to sign in: run {command}, or Connect in the console"])
        return 0 if is_new else 1
    if run.error is not None:
        command = reindex_command(server.name, run.user_id)
        next_step = (
            f"a running service retries by itself; to retry now, run {command}"
            if _is_waiting_for_retry(run)
            else f"the server stays registered; to retry, run {command}"
        )
        print_lines([f"{server.name}: failed ({run.error['cause']}): {run.error['message']}", next_step])
        return 1
    counts = ", ".join(f"{count} {name}" for name, count in run.all_counts.items() if count)
    print_lines([f"{server.name}: {counts or 'no tools'}"])
    return 0

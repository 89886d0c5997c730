"""Run several calls of one caller, each with its own result or error.

Calls of different servers run at the same time. Calls of one server run one after another, in the given order, because
a server may depend on it (a browser, a shell), unless all of them only read (`readOnlyHint`).
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from app.catalog.definitions import ToolDefinitionView
from app.catalog.tool_keys import read_tools
from app.errors import Unavailable
from app.execution.execute import Executor, execute, execute_with_progress
from app.execution.models import ExecutionRequest, ExecutionResult
from app.execution.results import truncate
from app.text.strict_json import Json, dump_json, load_json

_MAX_CONCURRENT = 4
"""Of one batch, so that it leaves connections for others."""
_NO_TIME = "nothing was run: the calls before it took all the time that there is for one request"

Outcome = ExecutionResult | BaseException
OnReport = Callable[[Json], Awaitable[None]]


async def execute_batch(
    executor: Executor, requests: Sequence[ExecutionRequest], on_report: OnReport | None = None
) -> list[Outcome]:
    """Return the result of each call, or the exception with which it failed, in the order of the requests.

    All of them have the same scope and name their tools by keys. Together they may take as long as the longest call
    that a caller can ask for; a call that is not begun by then is not run. Their results share the size limit of one.
    Cancelling this function cancels all calls.
    """
    deadline = asyncio.get_running_loop().time() + max(executor.timeout_s, executor.max_timeout_s)
    progress = None if on_report is None else _BatchProgress(len(requests), on_report)
    running = asyncio.Semaphore(_MAX_CONCURRENT)
    outcomes: dict[int, Outcome] = {}

    async def run_in_order(positions: Sequence[int]) -> None:
        for position in positions:
            async with running:
                outcomes[position] = await _execute_one(executor, requests[position], deadline, position, progress)

    groups = await _group_calls(executor, requests)
    async with asyncio.TaskGroup() as tasks:
        for positions in groups:
            tasks.create_task(run_in_order(positions))
    in_order = [outcomes[position] for position in range(len(requests))]
    return await asyncio.to_thread(_limit_sizes, in_order, executor.max_result_bytes)


def _limit_sizes(outcomes: Sequence[Outcome], limit: int) -> list[Outcome]:
    """Truncate the largest results, so that all of them together have at most `limit` bytes."""
    limited = list(outcomes)
    results = {position: each for position, each in enumerate(outcomes) if isinstance(each, ExecutionResult)}
    sizes = {position: len(dump_json(each.result)) for position, each in results.items()}
    for done, position in enumerate(sorted(sizes, key=sizes.__getitem__)):  # what small results leave, large ones take
        share = limit // (len(sizes) - done)
        if sizes[position] > share:
            result, _ = truncate(results[position].result, share)
            limited[position] = replace(results[position], result=result, truncated=True)
        limit -= min(sizes[position], share)
    return limited


async def _group_calls(executor: Executor, requests: Sequence[ExecutionRequest]) -> list[list[int]]:
    """Return the positions of the calls, those together that must run in order."""
    scope, keys = requests[0].scope, dict.fromkeys(request.tool_key or "" for request in requests)
    async with executor.database.transaction(scope.user_id) as session:
        found = await read_tools(session, scope, list(keys))
    by_server: defaultdict[str | None, list[int]] = defaultdict(list)
    groups: list[list[int]] = []
    for position, request in enumerate(requests):
        tool = found[request.tool_key or ""]
        if isinstance(tool, ToolDefinitionView):
            by_server[tool.server_id].append(position)
        else:  # its own error tells why
            groups.append([position])
    for positions in by_server.values():
        only_reads = all(_only_reads(found, requests[position]) for position in positions)
        groups += [[position] for position in positions] if only_reads else [positions]
    return groups


def _only_reads(found: Mapping[str, object], request: ExecutionRequest) -> bool:
    tool = found[request.tool_key or ""]
    annotations = load_json(tool.annotations or "{}") if isinstance(tool, ToolDefinitionView) else {}
    return annotations.get("readOnlyHint") is True


async def _execute_one(
    executor: Executor, request: ExecutionRequest, deadline: float, position: int, progress: "_BatchProgress | None"
) -> Outcome:
    left_s = deadline - asyncio.get_running_loop().time()
    if left_s <= 0:
        return Unavailable(_NO_TIME)
    limited = replace(request, timeout_s=min(executor.limit_timeout(request.timeout_s), left_s))
    if progress is None:
        call = execute(executor, limited)
    else:
        call = execute_with_progress(executor, limited, partial(progress.report, position))
    # Whatever happens to one call, the others go on.
    [outcome] = await asyncio.gather(call, return_exceptions=True)
    if progress is not None:
        await progress.finish(position)
    return outcome


class _BatchProgress:
    """Combines the reports of all calls: the progress is the number of finished calls, and of parts of the others."""

    def __init__(self, total: int, on_report: OnReport) -> None:
        self._total = total
        self._on_report = on_report
        self._parts: dict[int, float] = {}
        self._reported = 0.0
        self._reporting = asyncio.Lock()

    async def report(self, position: int, report: Json) -> None:
        done, total = report["progress"], report["total"]
        if total:
            self._parts[position] = min(max(done / total, self._parts.get(position, 0.0)), 0.99)
        await self._send(report["message"])

    async def finish(self, position: int) -> None:
        self._parts[position] = 1.0
        await self._send(None)

    async def _send(self, message: str | None) -> None:
        """Progress may only grow. A report that brings none is left out."""
        async with self._reporting:
            progress = round(sum(self._parts.values()), 3)
            if progress > self._reported:
                self._reported = progress
                await self._on_report({"progress": progress, "total": self._total, "message": message})

"""`toolscout reload`: let running services read their settings again."""

import asyncio

from app.cli.context import with_settings
from app.cli.group import make_group
from app.cli.output import print_lines
from app.cli.running_services import RunningService, find_services
from app.errors import ConfigurationError
from app.settings import Settings
from app.text.strict_json import Json

commands = make_group()

_TIMEOUT_S = 30.0
_POLL_S = 0.05


@commands.command("reload")
@with_settings
async def reload(settings: Settings) -> int:
    """Apply changed settings without a restart.

    The services that run on this host with this data folder read `.env` and the files that settings name again: the
    list of stdio servers, the allow list, limits, the log level and so on. What needs a restart is named, and so are
    settings that are probably misspelt. If a setting is invalid, nothing changes, and the exit code is 1.
    """
    services = find_services(settings.data_dir)
    if not services:
        raise ConfigurationError(
            f"no running service found in {settings.data_dir.absolute()}: run this command where `toolscout serve` "
            "runs, set TOOLSCOUT_DATA_DIR to its data folder, or send SIGHUP to its process"
        )
    for service in services:
        service.request_reload()
    results = await asyncio.gather(*(_wait_for_result(service) for service in services))
    for service, result in zip(services, results, strict=True):
        print_lines(f"process {service.pid}: {line}" for line in _describe_result(result))
    return 0 if all(result is not None and result["error"] is None for result in results) else 1


async def _wait_for_result(service: RunningService) -> Json | None:
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            while (result := service.read_result()) is None:  # noqa: ASYNC110 another process writes the file
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        return None
    return result


def _describe_result(result: Json | None) -> list[str]:
    if result is None:
        return [f"no answer within {_TIMEOUT_S:g} seconds: see its log"]
    if result["error"] is not None:
        return [result["error"]]
    changed = [f"{name} changed" for name in result["changed"]]
    changed += [f"{name} changed: needs a restart" for name in result["needs_restart"]]
    warnings = result.get("warnings", [])  # a service of an earlier version sends none
    return [*(changed or ["nothing changed"]), *warnings]

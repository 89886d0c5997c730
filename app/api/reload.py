"""REST: apply changed settings without a restart."""

from fastapi import APIRouter

from app.api.strict_route import StrictRoute
from app.dependencies import AdminCaller, ReloaderDep
from app.schemas.reload import ReloadOut

router = APIRouter(tags=["operations"], route_class=StrictRoute)


@router.post("/reload")
async def reload_settings(reloader: ReloaderDep, caller: AdminCaller) -> ReloadOut:
    """Read `.env` and the files that settings name again, and apply what can change while the service runs.

    This concerns the process that answers: send SIGHUP to each process, or run `toolscout reload` on each host, where
    there are several. If a setting or a file is invalid, the answer is 409 and nothing has changed."""
    return ReloadOut.model_validate(await reloader.reload(caller.actor))

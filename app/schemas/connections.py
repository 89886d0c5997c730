"""Request and response models of sign-ins to users' servers."""

from datetime import datetime

from pydantic import Field

from app.schemas.base import Input, Output


class ConnectBody(Input):
    redirect_url: str | None = Field(
        None,
        max_length=2_048,
        description="where the browser is sent after the sign-in, with `server_id`, `status` (`connected`, `failed`) "
        "and, if it failed, `error` in its query; an origin of `TOOLSCOUT_REDIRECT_ORIGINS`. null: a page of Toolscout",
    )


class AuthorizationLinkOut(Output):
    authorization_url: str = Field(description="where the user's browser signs in: a page of the server's own sign-in")
    expires_at: datetime = Field(description="the sign-in must be finished by then")

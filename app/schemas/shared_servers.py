"""Request and response models of shared servers."""

from typing import Annotated

from pydantic import Field

from app.catalog.shared_servers import Credentials, MemberCount, SharedServer
from app.schemas.base import Output, ShownText, Visible
from app.schemas.servers import NewServerBody, ServerChanges, ServerOut
from app.schemas.users import UserId

Groups = Annotated[list[Visible], Field(max_length=1_000)]
UserIds = Annotated[list[UserId], Field(max_length=10_000)]

_EVERYONE = "all users, also those who come later"
_GROUPS = "the users whose identity provider puts them into one of these groups"
_USER_IDS = "these users, also before they exist"
_CREDENTIALS = (
    "whose credentials calls use: `member`, each user's own, set by `PUT /servers/{id}/credentials` or by signing in; "
    "`operator`, those of this server, for all members. Tools are always listed with those of this server"
)


class NewSharedServerBody(NewServerBody):
    everyone: bool = Field(False, description=_EVERYONE)
    groups: Groups = Field([], description=_GROUPS)
    user_ids: UserIds = Field([], description=_USER_IDS)
    credentials: Credentials = Field("member", description=_CREDENTIALS)


class SharedServerChanges(ServerChanges):
    everyone: bool = Field(False, description=_EVERYONE)
    groups: Groups = Field([], description=_GROUPS)
    user_ids: UserIds = Field([], description=_USER_IDS)
    credentials: Credentials = Field("member", description=_CREDENTIALS)


class MembersOut(Output):
    total: int = Field(description="users who may use it")
    ready: int = Field(description="those whose copy is up to date, with its tools indexed")


class SharedServerOut(ServerOut):
    everyone: bool
    groups: list[ShownText]
    user_ids: list[str]
    credentials: Credentials
    members: MembersOut

    @classmethod
    def of(cls, shared: SharedServer, members: MemberCount) -> "SharedServerOut":
        server, sharing = ServerOut.model_validate(shared.server), shared.sharing
        fields = server.model_dump() | {"shared": True, "shared_credentials": sharing.credentials}
        return cls(
            **fields,
            everyone=sharing.everyone,
            groups=list(sharing.groups),
            user_ids=list(sharing.user_ids),
            credentials=sharing.credentials,
            members=MembersOut(total=members.total, ready=members.ready),
        )

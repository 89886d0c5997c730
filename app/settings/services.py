"""Other services that searches use: the cloud and the registry."""

import re

from pydantic import BaseModel, Field, SecretStr, field_validator

from app.settings.values import BaseUrl, split_list

_REGISTRY_PATTERN = re.compile(r"\*|[A-Za-z0-9.*-]+/[A-Za-z0-9._*-]+")


class ServiceSettings(BaseModel):
    cloud_url: BaseUrl | None = Field(
        None,
        description="base URL of another Toolscout, or of a service with the same `POST /catalog/search`, for projects "
        "whose `optimization` is `cloud`; it may be in your own network and use plain HTTP",
    )
    cloud_key: SecretStr | None = Field(
        None, description="API key for `TOOLSCOUT_CLOUD_URL`, sent as a bearer token: of a Toolscout, a user key"
    )
    cloud_timeout_s: float = Field(
        5.0,
        gt=0,
        le=60,
        description="seconds that a search through the cloud may take before the project is searched by words alone",
    )
    registry_url: BaseUrl | None = Field(
        None,
        description="base URL of an MCP registry (API v0.1) in which users look servers up, such as "
        "`https://registry.modelcontextprotocol.io`; it may be in your own network and use plain HTTP; not set: off",
    )
    registry_allow: str = Field(
        "",
        description="servers of the registry that users see, by name, comma-separated; `*` stands for any text: "
        "`com.github/*, io.github.acme/*`; empty: all. It limits what is found in the registry, not the URLs that a "
        "user can register",
    )

    @field_validator("registry_allow")
    @classmethod
    def _check_registry_allow(cls, value: str) -> str:
        if invalid := [entry for entry in split_list(value) if not _REGISTRY_PATTERN.fullmatch(entry)]:
            raise ValueError(f"{invalid[0]!r} is not a pattern of server names, such as com.github/*")
        return value

    @property
    def registry_patterns(self) -> list[str]:
        return split_list(self.registry_allow)

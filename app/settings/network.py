"""Where Toolscout listens, under which names and for which pages it answers, and what it may reach."""

import re
from ipaddress import ip_network
from urllib.parse import urlsplit

from pydantic import AliasChoices, BaseModel, Field, field_validator

from app.settings.values import LOOPBACK_HOSTS, BaseUrl, Origins, split_list

_HOST_NAME = re.compile(r"[A-Za-z0-9._-]+(:[0-9]{1,5})?")
_HOST_AND_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}")


class NetworkSettings(BaseModel):
    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on; 0 picks a free port")
    served_hosts: str = Field(
        "",
        description="public host names under which clients and browsers reach Toolscout, comma-separated; IP "
        "addresses, names without a dot, `.local` and `.internal` are always accepted",
    )
    public_url: BaseUrl | None = Field(
        None,
        description="URL under which browsers and other services reach Toolscout, such as `https://tools.example.com`; "
        "needed for sign-in to users' servers, except on the loopback interface",
    )
    trusted_proxies: str = Field(
        "127.0.0.1",
        validation_alias=AliasChoices("TOOLSCOUT_TRUSTED_PROXIES", "FORWARDED_ALLOW_IPS", "trusted_proxies"),
        description="addresses and networks of proxies whose `X-Forwarded-Proto` and `X-Forwarded-For` are believed, "
        "comma-separated; others' are ignored",
    )
    web_origins: Origins = Field(
        "",
        description="origins of web pages that may call Toolscout (CORS, all routes), comma-separated, such as "
        "`https://chat.example.com`",
    )
    outbound_allow: str = Field(
        "",
        description="MCP servers in your own network that Toolscout may connect to, as `host:port`, comma-separated; "
        "these may use plain HTTP",
    )
    head_timeout_s: float = Field(
        10.0,
        gt=0,
        le=300,
        description="seconds in which a client must send the headers of a request; then the connection is closed",
    )
    body_timeout_s: float = Field(
        20.0,
        gt=0,
        le=3600,
        description="seconds in which a client must send the body of a request, and one more for each 64 KiB of it; a "
        "slower one is answered with 408. As long may a response stay unread before its connection is closed",
    )

    @field_validator("outbound_allow")
    @classmethod
    def _check_outbound_allow(cls, value: str) -> str:
        """Refuse an entry that cannot match. Otherwise it is noticed only when a server cannot be reached."""
        if invalid := [entry for entry in split_list(value) if not _HOST_AND_PORT.fullmatch(entry)]:
            raise ValueError(f"{invalid[0]!r} is not host:port, such as mcp.internal:8080 or [::1]:3001")
        return value

    @field_validator("trusted_proxies")
    @classmethod
    def _check_trusted_proxies(cls, value: str) -> str:
        """Refuse what is no address: uvicorn would take it as a name that never matches."""
        for entry in split_list(value):
            try:
                ip_network(entry)
            except ValueError as error:
                if entry != "*":
                    raise ValueError(f"{entry!r} is not an address or a network, such as 10.0.0.0/8") from error
        return value

    @field_validator("served_hosts")
    @classmethod
    def _check_served_hosts(cls, value: str) -> str:
        if invalid := [entry for entry in split_list(value) if not _HOST_NAME.fullmatch(entry)]:
            raise ValueError(f"{invalid[0]!r} is not a host name, such as tools.example.com")
        return value

    @property
    def outbound_hosts(self) -> list[str]:
        return split_list(self.outbound_allow)

    @property
    def proxy_addresses(self) -> list[str]:
        addresses = split_list(self.trusted_proxies)
        return ["*"] if "*" in addresses else addresses

    @property
    def allowed_hosts(self) -> list[str]:
        public = [] if self.public_url is None else [urlsplit(self.public_url.lower()).netloc]
        return [*split_list(self.served_hosts.lower()), *public]

    @property
    def allowed_origins(self) -> list[str]:
        return [origin.rstrip("/") for origin in split_list(self.web_origins.lower())]

    @property
    def base_url(self) -> str | None:
        """The URL under which browsers reach the service, without a trailing slash; None if nobody knows it.

        Without `public_url` it is known only to browsers on the same machine.
        """
        if self.public_url is not None:
            return self.public_url.rstrip("/")
        is_loopback = self.host in LOOPBACK_HOSTS and self.port != 0
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}" if is_loopback else None

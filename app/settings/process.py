"""How a process runs: its role, its data folder, its log, its traces."""

from pathlib import Path
from typing import Literal

from pydantic import AliasChoices, BaseModel, Field

Role = Literal["all", "web", "worker"]


class ProcessSettings(BaseModel):
    environment: Literal["development", "production"] = Field(
        "development", description="`production` refuses to start with unsafe settings"
    )
    role: Role = Field(
        "all",
        description="`web` serves requests and queues index runs; `worker` processes index runs and serves only "
        "`/healthz`, `/readyz` and `/metrics`; `all` does both",
    )
    data_dir: Path = Field(
        Path(".toolscout"),
        description="folder for the embedded Postgres, generated secrets and the graphs of local models",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "INFO", description="lowest level of the messages that the service logs"
    )
    log_format: Literal["auto", "json", "text"] = Field(
        "auto",
        description="format of the log: `text` for people, `json` lines for machines; `auto` is text on a terminal and "
        "JSON elsewhere",
    )
    otel_endpoint: str | None = Field(
        None,
        validation_alias=AliasChoices("OTEL_EXPORTER_OTLP_ENDPOINT", "otel_endpoint"),
        description="OpenTelemetry collector that receives traces (OTLP over HTTP, such as `http://collector:4318`); "
        "the image has the packages for it, elsewhere `pip install 'toolscout[otel]'`",
    )
    drain_s: float = Field(
        0.5,
        ge=0,
        le=60,
        description="seconds after the stop signal in which new requests are still accepted, while `/readyz` is 503",
    )
    demo: bool | None = Field(
        None,
        description="`1` creates a demo user with tools in an empty database, and lets it run the demo's MCP server; "
        "if not set, only in embedded Postgres",
    )

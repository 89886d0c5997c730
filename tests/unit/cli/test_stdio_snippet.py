"""The snippet for the operator's file of stdio servers."""

import json
from typing import Any

import pytest

from app.catalog.client_config.config import ConfigEntry
from app.cli.stdio_snippet import render_stdio_snippet

CANARY = "canary-4c11d0"


def render(**fields: Any) -> Any:
    text = render_stdio_snippet([ConfigEntry("files", fields)])
    assert CANARY not in text
    return json.loads(text)["files"]


def test_the_snippet_has_the_format_of_the_operators_file() -> None:
    assert render(command="npx", args=["-y", "server-files", "/srv"]) == {"argv": ["npx", "-y", "server-files", "/srv"]}
    assert render(command="npx", args=None, env={}) == {"argv": ["npx"]}
    assert render(command="npx", args=[3001, "--port=7"]) == {"argv": ["npx", "3001", "--port=7"]}


def test_the_values_of_variables_are_left_out() -> None:
    assert render(command="npx", env={"API_KEY": CANARY, "MODE": "x"})["env"] == {"API_KEY": "…", "MODE": "…"}


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["--token", CANARY, "next"], ["--token", "…", "next"]),
        ([f"--api-key={CANARY}", "next"], ["--api-key=…", "next"]),
        (["--header", f"Authorization: Bearer {CANARY}"], ["--header", "…"]),
        ([f"postgresql://someone:{CANARY}@db/x"], ["…"]),
        ([f"API_KEY={CANARY}"], ["…"]),
    ],
)
def test_arguments_that_may_be_credentials_are_left_out(arguments: list[str], shown: list[str]) -> None:
    assert render(command="npx", args=arguments)["argv"] == ["npx", *shown]


@pytest.mark.parametrize(
    ("command", "arguments", "shown"),
    [
        ("docker", ["run", "-e", "GITHUB_TOKEN", "image"], ["run", "-e", "GITHUB_TOKEN", "image"]),
        ("/usr/bin/podman", ["run", "--env", "GITHUB_TOKEN"], ["run", "--env", "GITHUB_TOKEN"]),
        ("docker", ["run", "--env=GITHUB_TOKEN"], ["run", "--env=GITHUB_TOKEN"]),
        ("docker", ["run", "-e", f"GITHUB_TOKEN={CANARY}"], ["run", "-e", "GITHUB_TOKEN=…"]),
        ("docker", ["run", "-e", f"MODE={CANARY}"], ["run", "-e", "MODE=…"]),
        ("docker", ["run", f"--env=MODE={CANARY}"], ["run", "--env=MODE=…"]),
        ("docker", ["run", "image", "--token", CANARY], ["run", "image", "--token", "…"]),
        ("npx", ["-e", f"token_{CANARY}"], ["-e", "…"]),
    ],
)
def test_the_names_of_a_containers_variables_are_kept(command: str, arguments: list[str], shown: list[str]) -> None:
    assert render(command=command, args=arguments)["argv"] == [command, *shown]


def test_placeholders_are_left_out() -> None:
    arguments = ["${workspaceFolder}/src", "--root=${env:HOME}", "$HOME", "-e", "A=${input:a}"]
    assert render(command="${userHome}/bin/files", args=arguments)["argv"] == [
        "…/bin/files",
        "…/src",
        "--root=…",
        "$HOME",
        "-e",
        "A=…",
    ]

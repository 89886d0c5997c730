"""Unknown fields and parameters are rejected with a suggestion of what the caller may have meant."""

import time
from typing import Any

import pytest

from app.container import Container
from app.main import create_routes
from app.schemas.base import Input
from tests.support.checks import assert_problem
from tests.support.clients import TestUser
from tests.support.factories import tool

Json = dict[str, Any]
KEY = "00000000-0000-0000-0000-000000000000"

FIELDS = [
    ("POST", "/discover", {"message": "x"}, "message", "query"),
    ("POST", "/discover", {"text": "x"}, "text", "query"),
    ("POST", "/discover", {"query": "x", "top_k": 3}, "top_k", "limit"),
    ("POST", "/discover", {"query": "x", "max_results": 3}, "max_results", "limit"),
    ("POST", "/discover", {"query": "x", "similarity_treshold": 3}, "similarity_treshold", "similarity_threshold"),
    ("POST", "/discover/why", {"query": "x", "tool_key": "x"}, "tool_key", "tool"),
    ("POST", "/execute", {"toolKey": KEY}, "toolKey", "tool_key"),
    ("POST", "/execute", {"tool": KEY}, "tool", "tool_key"),
    ("POST", "/execute", {"tool_key": KEY, "args": {}}, "args", "arguments"),
    ("POST", "/execute", {"tool_key": KEY, "input": {}}, "input", "arguments"),
    ("POST", "/feedback", {"tool": KEY}, "tool", "tool_key"),
    ("POST", "/servers", {"name": "x", "transport": "push", "address": "x"}, "address", "url"),
    ("POST", "/projects", {"name": "x", "servers": []}, "servers", "server_ids"),
    ("POST", "/catalog/search", {"query": ["x"], "tools": [], "limit": 3}, "limit", "max_results"),
    ("PUT", "/servers/x/tools", {"tool": []}, "tool", "tools"),
]


@pytest.mark.parametrize(("method", "path", "body", "unknown", "meant"), FIELDS)
async def test_an_unknown_field_gets_a_suggestion(
    user: TestUser, method: str, path: str, body: Json, unknown: str, meant: str
) -> None:
    path = path.replace("/x/", f"/{await user.add_server()}/")
    problem = assert_problem(await user.http.request(method, path, json=body), 422)
    expected = f"unknown field `{unknown}`; did you mean `{meant}`?"
    assert expected in problem["detail"]
    assert {"loc": ["body", unknown], "msg": expected, "type": "extra_forbidden"} in problem["errors"]


async def test_an_unknown_field_of_a_nested_object_gets_the_suggestion_of_that_object(user: TestUser) -> None:
    body = {"rules": [{"pattern": ["*"]}, {"patterns": ["*"], "tags": 5}]}
    problem = assert_problem(await user.http.put("/rules", json=body), 422)
    messages = {tuple(item["loc"]): item["msg"] for item in problem["errors"]}
    assert messages["body", "rules", 1, "patterns"] == "unknown field `patterns`; did you mean `pattern`?"
    assert messages["body", "rules", 1, "pattern"] == "Field required", "other errors are listed as before"
    assert messages["body", "rules", 1, "tags"] == "Input should be a valid list"
    assert (await user.http.put("/rules", json={"rules": body["rules"][:1]})).status_code == 200


async def test_fields_are_suggested_as_they_are_sent(user: TestUser) -> None:
    sent = {"key": "a", "toolName": "x", "serverName": "y"}
    problem = assert_problem(await user.http.post("/catalog/search", json={"query": ["x"], "tools": [sent]}), 422)
    assert "unknown field `key`; did you mean `toolKey`?" in problem["detail"]


async def test_a_field_like_no_other_gets_no_suggestion(user: TestUser) -> None:
    problem = assert_problem(await user.http.post("/discover", json={"query": "x", "zzz": 1}), 422)
    assert problem["detail"] == "body.zzz: unknown field `zzz`"


async def test_a_user_in_the_body_is_referred_to_the_header(user: TestUser) -> None:
    problem = assert_problem(await user.http.post("/execute", json={"tool_key": KEY, "userId": "alice"}), 422)
    assert "did you mean the header `X-User-Id`?" in problem["detail"]


async def test_thousands_of_unknown_fields_are_answered_quickly(user: TestUser) -> None:
    body = {"query": "x"} | {f"similarity_treshhold_{number}": 1 for number in range(20_000)}
    started = time.thread_time()
    assert_problem(await user.http.post("/discover", json=body), 422)
    assert time.thread_time() - started < 5


async def test_a_misspelt_query_parameter_gets_a_suggestion(user: TestUser) -> None:
    server_id = await user.add_tools(tool("read"))
    problem = assert_problem(await user.http.get("/tools", params={"serverid": server_id}), 422)
    expected = "unknown parameter `serverid`; did you mean `server_id`?"
    assert problem["detail"] == f"query.serverid: {expected}"
    assert problem["errors"] == [{"loc": ["query", "serverid"], "msg": expected, "type": "extra_forbidden"}]
    assert (await user.http.get("/tools", params={"server_id": server_id, "limit": 1})).status_code == 200
    run = await user.http.put(f"/servers/{server_id}/tools", params={"await": True}, json={"tools": []})
    assert "did you mean `wait`?" in assert_problem(run, 422)["detail"]


async def test_parameters_that_are_no_misspelling_are_ignored(user: TestUser) -> None:
    server_id = await user.add_tools(tool("read"))
    listed = await user.http.get("/tools", params={"server_id": server_id, "utm_source": "chat", "_": "1"})
    assert [each["name"] for each in listed.json()["items"]] == ["read"]


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/openapi.json", "/docs"])
async def test_probes_and_documents_take_any_parameters(user: TestUser, path: str) -> None:
    assert (await user.http.get(path, params={"nocache": 1})).status_code == 200


def test_every_synonym_stands_for_a_field(container: Container) -> None:
    create_routes()

    def all_models(model: type[Input]) -> list[type[Input]]:
        return [model, *(each for child in model.__subclasses__() for each in all_models(child))]

    for model in all_models(Input):
        names = {field.alias or name for name, field in model.model_fields.items()}
        if names:
            assert {meant for meant in model.synonyms.values() if not meant.startswith("the header")} <= names, model
            assert not names & {word for word in model.synonyms if "header" not in model.synonyms[word]}, model

"""Tests of the result of several calls."""

from app.mcp_server.batch_results import render_results

TEXT = {"content": [{"type": "text", "text": "one"}]}
FAILED = {"content": [{"type": "text", "text": "no"}], "isError": True, "_meta": {"toolscout/error": {"code": "X"}}}
IMAGE = {"type": "image", "data": "aGk=", "mimeType": "image/png"}


def test_each_call_has_its_result_in_the_text_and_in_the_structured_content() -> None:
    result = render_results(["a.x", "b.y"], [TEXT, FAILED])
    assert [block["text"] for block in result["content"]] == ["calls[0] a.x:", "one", "calls[1] b.y failed:", "no"]
    assert result["structuredContent"]["results"] == [
        {"position": 0, "toolKey": "a.x", "isError": False, "content": TEXT["content"]},
        {"position": 1, "toolKey": "b.y", "isError": True, "content": FAILED["content"], "_meta": FAILED["_meta"]},
    ]


def test_the_whole_is_an_error_only_if_all_calls_failed() -> None:
    assert "isError" not in render_results(["a", "b"], [TEXT, FAILED])
    assert render_results(["a", "b"], [FAILED, FAILED])["isError"] is True


def test_structured_content_is_not_repeated_as_text() -> None:
    both = {"content": [{"type": "text", "text": '{"n":1}'}, IMAGE], "structuredContent": {"n": 1}}
    result = render_results(["a"], [both])
    [entry] = result["structuredContent"]["results"]
    assert entry == {"position": 0, "toolKey": "a", "isError": False, "structuredContent": {"n": 1}, "content": [IMAGE]}
    assert result["content"][1:] == both["content"]


def test_structured_content_alone_is_shown_as_text_too() -> None:
    result = render_results(["a"], [{"content": [], "structuredContent": {"n": 1}}])
    assert result["content"][1] == {"type": "text", "text": '{"n":1}'}
    assert "content" not in result["structuredContent"]["results"][0]
    assert render_results(["a"], [{"content": []}])["structuredContent"]["results"][0]["content"] == []

import pytest

from app.mcp_client.sse_endpoint import find_endpoint, is_same_origin

URL = "https://mcp.example:8443/sse"


@pytest.mark.parametrize(
    ("event", "endpoint"),
    [
        (b"event: endpoint\ndata: /messages?id=1", "/messages?id=1"),
        (b"event:endpoint\r\ndata:/messages", "/messages"),
        (b": ping\r\nid: 7\r\nevent: endpoint\r\ndata: /a\r\ndata: b", "/a\nb"),
        (b"event: message\ndata: /messages", None),
        (b"data: event: endpoint", None),
        (b": event: endpoint", None),
        (b"", None),
    ],
)
def test_the_endpoint_is_found_in_its_event_alone(event: bytes, endpoint: str | None) -> None:
    assert find_endpoint(event) == endpoint


@pytest.mark.parametrize("endpoint", ["/messages", "messages?x=1", "?session=1", f"{URL}/messages", ""])
def test_an_endpoint_below_the_servers_url_is_accepted(endpoint: str) -> None:
    assert is_same_origin(URL, endpoint)


@pytest.mark.parametrize(
    "endpoint",
    [
        "https://mcp.example/messages",
        "https://other.example:8443/messages",
        "http://mcp.example:8443/messages",
        "//other.example/messages",
        "https://user@mcp.example:8443/messages",
        "https://[broken/messages",
    ],
)
def test_an_endpoint_on_another_origin_is_rejected(endpoint: str) -> None:
    assert not is_same_origin(URL, endpoint)

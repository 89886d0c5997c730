"""The load benchmark: its requests, the end of a response, and the figures of its table."""

import itertools
from collections import Counter

import orjson
import pytest

from bench.load.client import Responses, is_complete
from bench.load.cpu import CpuTime
from bench.load.results import EMPTY, Row, format_table, make_quantiles, make_slice, share_of_empty, to_json
from bench.load.traffic import NewQuestions, Once, Repeated, make_question, post


def make_row(name: str, *rates: int, errors: int = 0) -> Row:
    row = Row(name, clients=1)
    for rate in rates:
        responses = Responses([1000 / rate] * rate, Counter({"503": errors} if errors else {}), seconds=1.0)
        row.slices.append(make_slice(responses, CpuTime(0.3, 0.1)))
    return row


def test_no_question_comes_twice() -> None:
    questions = [make_question(number) for number in range(20_000)]
    assert len(set(questions)) == len(questions)
    assert all(10 <= len(question.split()) <= 20 for question in questions)


def test_clients_share_new_questions_and_requests_that_are_sent_once() -> None:
    traffic = NewQuestions("/discover", '{"query": "QUESTION"}', [{"X-User-Id": "a"}, {"X-User-Id": "b"}], start=7)
    first, second = (list(itertools.islice(traffic.requests(client, 2), 50)) for client in (0, 1))
    bodies = [orjson.loads(request.partition(b"\r\n\r\n")[2])["query"] for request in first + second]
    assert len(set(bodies)) == 100
    assert b"X-User-Id: a" in first[0]
    assert b"X-User-Id: b" in second[0]
    once = Once([b"1", b"2", b"3"])
    assert [list(once.requests(client, 2)) for client in (0, 1)] == [[b"1", b"3"], [b"2"]]


def test_a_client_repeats_its_own_request() -> None:
    traffic = Repeated([b"a", b"b"])
    assert [next(traffic.requests(client, 3)) for client in range(3)] == [b"a", b"b", b"a"]


def test_a_request_says_how_long_its_body_is() -> None:
    request = post("/discover", {"query": "x"}, {"X-User-Id": "a"})
    head, _, body = request.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    assert orjson.loads(body) == {"query": "x"}


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    ],
)
def test_a_response_is_complete_with_its_last_byte_and_not_before(response: bytes) -> None:
    assert is_complete(response)
    assert not any(is_complete(response[:end]) for end in range(len(response)))


def test_a_slice_counts_errors_apart_and_shares_its_cpu_time_among_all_requests() -> None:
    one = make_slice(Responses([1.0, 3.0, 2.0], Counter({"503": 1}), seconds=0.5), CpuTime(0.008, 0.004))
    assert (one.requests, one.rate, one.p50_ms) == (4, 6.0, 2.0)
    assert (one.app_cpu_ms, one.postgres_cpu_ms) == (2.0, 1.0)


def test_nothing_answered_has_an_infinite_latency() -> None:
    assert make_quantiles([])[94] == float("inf")
    assert make_quantiles([5.0])[49] == 5.0


def test_a_share_is_the_median_over_rounds_and_not_of_two_medians() -> None:
    empty, ours = make_row(EMPTY, 100, 400, 200), make_row("ours", 50, 100, 50)
    assert share_of_empty(ours, [empty, ours]) == 0.25
    assert share_of_empty(ours, [ours]) is None


def test_the_table_and_the_json_have_every_row() -> None:
    rows = [make_row(EMPTY, 100), make_row("ours", 50, errors=3)]
    table = format_table(rows).splitlines()
    assert len(table) == 3
    assert "50.0%" in table[2]
    assert table[2].endswith("3")
    [_, ours] = to_json(rows)
    assert (ours["rate"], ours["share_of_empty"], ours["errors"]) == (50.0, 0.5, {"503": 3})
    assert orjson.loads(orjson.dumps(ours))["rounds"][0]["requests"] == 53

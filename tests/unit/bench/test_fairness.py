"""The fairness benchmark: what is sent, what the victim saw, and the table."""

from collections import Counter

import numpy as np

from bench.fairness.attacks import ATTACKS
from bench.fairness.attacks.strangers import invent_key
from bench.fairness.connections import make_head
from bench.fairness.results import Result, format_table, to_json
from bench.fairness.slow_embedder import SlowEmbedder
from bench.fairness.victim import Sample

QUIET = Result("rules", "40 parallel PUT /rules", True, 8.0, 10.0, 9.0, 15.0, requests=100)
HURT = Result(
    "spellings",
    "one key",
    False,
    8.0,
    10.0,
    9.0,
    35.0,
    requests=100,
    errors={"503": 7},
    held={"requests": 500},
    memory_growth_mb=12.3,
)
PROBE = Result("stop", "SIGTERM", True, figures={"stopped_after_s": 6.5})


def test_every_attack_has_a_name_of_its_own() -> None:
    names = [attack.name for attack in ATTACKS]
    assert len(set(names)) == len(names)
    assert all(attack.summary for attack in ATTACKS)


def test_half_a_request_announces_more_than_it_has() -> None:
    head = make_head("/discover", 1_000, [invent_key(1)])
    assert head.endswith(b"Content-Length: 1000\r\n\r\n")
    assert head != make_head("/discover", 1_000, [invent_key(2)])


def test_percentiles_of_the_victim_include_failed_requests() -> None:
    sample = Sample([1.0] * 90 + [10_000.0] * 10, Counter({"ReadTimeout": 10}))
    assert (sample.p50_ms, sample.p95_ms) == (1.0, 10_000.0)


def test_the_table_says_what_hurt_and_what_is_held() -> None:
    header, quiet, hurt, probe = format_table([QUIET, HURT, PROBE]).splitlines()
    assert "verdict" in header
    assert quiet.split()[-2:] == ["–", "ok"]
    assert "3.5" in hurt
    assert "7/100" in hurt
    assert hurt.endswith("FAILED, 7 503, 500 requests held")
    assert probe.endswith("ok, stopped after s 6.5")


def test_the_json_has_the_ratio() -> None:
    assert to_json(QUIET)["ratio"] == 1.5
    assert to_json(HURT)["held"] == {"requests": 500}
    assert to_json(PROBE)["ratio"] is None


def test_the_slow_embedder_embeds_similar_texts_alike() -> None:
    same, near, far = np.array(SlowEmbedder().embed_documents(["send the mail", "send a mail", "weather in Oslo"]))
    assert same @ near > same @ far

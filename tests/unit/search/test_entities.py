"""Entities of a message are replaced by their kind."""

import time

import pytest

from app.search.entities import replace_entities


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rename report_v2.docx please", "rename the document file please"),
        ("what does docs/legal/nda.txt say", "what does the text file say"),
        ("sum up ~/money/2024 q1.xlsx", "sum up the folder the spreadsheet file"),
        (r"what does C:\Games\Skyrim\readme.txt say", "what does the text file say"),
        ("play song.MP3", "play the audio file"),
        ("look at /tmp/office-mon.pcap", "look at the pcap file"),
        ("everything under ./backend and /var/log/nginx", "everything under the folder and the folder"),
    ],
)
def test_files_and_folders_are_replaced_by_their_kind(text: str, expected: str) -> None:
    assert replace_entities(text) == expected


@pytest.mark.parametrize(
    "text", ["use next.js or three.js", "is node.js faster", "pay 3.5 or 4.99", "v2.1 and/or 24/7"]
)
def test_libraries_numbers_and_words_with_slashes_stay(text: str) -> None:
    assert replace_entities(text) == text


def test_a_script_with_a_path_is_a_file() -> None:
    assert replace_entities("fix src/app.js and my-app.js") == "fix the code file and the code file"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tldr https://blog.cloudflare.com/how-we-lost-logs?x=1#top", "tldr the cloudflare URL"),
        ("open www.bbc.co.uk/iplayer now", "open the bbc URL now"),
        ("is rathaus-muenster.de down", "is the rathaus-muenster URL down"),
        ("see (https://github.com/acme/app/pull/12)", "see (the github URL)"),
        ("what runs on http://localhost:8000/health", "what runs on the localhost URL"),
    ],
)
def test_a_url_is_replaced_by_its_site(text: str, expected: str) -> None:
    assert replace_entities(text) == expected


def test_email_addresses_and_channels_are_replaced_and_issue_numbers_stay() -> None:
    text = "mail #482 to priya.k@northwind.example and post it in #dev-ops"
    assert replace_entities(text) == "mail #482 to the email address and post it in the channel"


@pytest.mark.parametrize("text", ["a." * 100_000, "/a" * 100_000, "a@" * 100_000, "\\a" * 100_000, "a.b-" * 50_000])
def test_no_text_takes_long(text: str) -> None:
    started = time.thread_time()
    replace_entities(text[:4_000])
    assert time.thread_time() - started < 0.2

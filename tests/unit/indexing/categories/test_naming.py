import pytest

from app.indexing.categories.naming import MAX_NAME, ToolText, Vocabulary, has_name, name_group

CALENDAR = [
    ToolText("create_event", "Create event", "Create a calendar event with attendees."),
    ToolText("list_events", None, "List the events of a calendar between two dates."),
    ToolText("deleteEvent", None, "Delete an event from the calendar."),
]
CODE = [
    ToolText("create_pull_request", None, "Open a pull request in a repository."),
    ToolText("merge_pull_request", None, "Merge a pull request."),
    ToolText("list_pull_requests", None, "List the pull requests of a repository."),
]
MAIL = [ToolText("send_mail", None, "Send a mail to a person."), ToolText("search_mail", None, "Search all mails.")]


def name(groups: dict[str, list[ToolText]], group: str = "a", taken: tuple[str, ...] = ()) -> str:
    return name_group(Vocabulary(groups), group, taken).name


def test_a_group_is_named_by_the_words_that_are_typical_of_it() -> None:
    groups = {"a": CALENDAR, "b": CODE, "c": MAIL}
    assert [name(groups, each) for each in groups] == ["event, calendar", "pull request", "mail"]


def test_the_most_common_spelling_is_used() -> None:
    plural = [ToolText(f"invoices_{each}", None, "") for each in ("open", "paid")]
    assert name({"a": [*plural, ToolText("invoice_due", None, "")], "b": CODE}).startswith("invoices")


def test_a_word_of_tags_or_titles_alone_is_written_as_they_write_it() -> None:
    tagged = [ToolText("put", "Storage", "", ["analytics"]), ToolText("get", "Storage", "", ["analytics"])]
    assert set(name({"a": tagged, "b": CODE}).split(", ")) == {"analytics", "storage"}


@pytest.mark.parametrize("word", ["ignore", "SYSTEM", "x" * 40, "1234"])
def test_a_word_that_a_single_tool_has_names_nothing(word: str) -> None:
    odd = ToolText(f"{word}_{word}", word, f"{word} {word} {word}")
    found = name_group(Vocabulary({"a": [*CALENDAR, odd], "b": CODE}), "a")
    assert word.lower() not in " ".join([found.name, *found.words])
    assert found.name == "event, calendar"


def test_words_that_say_nothing_of_a_subject_are_left_out() -> None:
    texts = [ToolText("get_data", None, "Return the specific value with this id."), ToolText("list_data", None, "")]
    assert name({"a": texts, "b": CODE}) == "other"


def test_a_name_that_is_taken_gets_a_further_word_and_at_last_a_number() -> None:
    groups = {"a": CALENDAR, "b": CODE}
    assert name(groups, "b", ("pull request",)) == "pull request, repository"
    assert name(groups, "b", ("pull request", "pull request, repository")) == "pull request 2"
    assert name({"a": MAIL, "b": CODE}, "a", ("mail",)) == "mail 2"


def test_names_are_short() -> None:
    words = ["a" * 24, "b" * 24, "c" * 24]
    texts = [ToolText(" ".join(words[index:] + words[:index]), None, "") for index in range(3)]
    assert len(name({"a": texts, "b": CODE})) <= MAX_NAME + 3


def test_a_name_is_kept_while_tools_have_its_words() -> None:
    vocabulary = Vocabulary({"a": CALENDAR, "b": CODE})
    assert has_name(vocabulary, "a", "event, calendar")
    assert has_name(vocabulary, "b", "pull request, repository 2")
    assert not has_name(vocabulary, "a", "pull request, repository")
    assert not has_name(vocabulary, "a", "")


def test_a_text_is_put_into_the_group_whose_words_it_has() -> None:
    vocabulary = Vocabulary({"a": CALENDAR, "b": CODE})
    assert vocabulary.find_group(ToolText("move_event", None, "Move an event.")) == "a"
    assert vocabulary.find_group(ToolText("close_pull_request", None, "")) == "b"
    assert vocabulary.find_group(ToolText("brew_coffee", None, "Brew coffee.")) is None
    assert Vocabulary({}).find_group(CALENDAR[0]) is None


def test_a_group_of_one_tool_has_a_name() -> None:
    assert name({"a": [ToolText("brew_coffee", None, "Brew coffee.")], "b": CODE}) == "brew coffee"

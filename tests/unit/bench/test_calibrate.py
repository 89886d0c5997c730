"""The messages that the shipped calibration learns from."""

from bench.calibrate import read_training_messages
from training.data import read_data


def test_only_messages_of_the_training_split_are_used() -> None:
    messages = read_training_messages()
    data = read_data()
    trained = {
        message.query.user_text for message in data.messages if data.catalogues[message.catalogue].split == "train"
    }
    assert len(messages.needing) == 3_000
    assert len(messages.not_needing) > 500
    assert {*messages.needing, *messages.not_needing} <= trained


def test_messages_that_need_a_tool_and_those_that_need_none_are_apart() -> None:
    messages = read_training_messages()
    assert set(messages.needing).isdisjoint(messages.not_needing)


def test_the_sample_is_the_same_each_time() -> None:
    assert read_training_messages() == read_training_messages()

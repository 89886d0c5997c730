"""A fake model that needs no key, with Anthropic's Messages and OpenAI's Responses and Chat Completions APIs.

It rejects what the real APIs reject, so that an example that works here sends valid requests. Above all, it enforces
the rule of models that keep their reasoning: what was sent before a thinking block (or a reasoning item) must not
change, and `tools` stands before everything. It also counts the tokens that a prompt cache would serve.
"""

from examples.fake_model.behaviour import Turn, View, arguments_for, decide_turn
from examples.fake_model.errors import InvalidRequest
from examples.fake_model.server import FakeModel, running_fake_model

__all__ = ["FakeModel", "InvalidRequest", "Turn", "View", "arguments_for", "decide_turn", "running_fake_model"]

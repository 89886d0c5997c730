"""Toolscout for LiteLLM: a hook that adds the tools which a request needs to its `tools`.

In the proxy, beside `config.yaml`:

    # toolscout_hook.py
    hook = ToolscoutHook(AsyncToolscout("https://toolscout.example.com", "ts_service_…"), user="key")

    # config.yaml
    litellm_settings:
      callbacks: toolscout_hook.hook

In a program of your own: `litellm.callbacks = [ToolscoutHook(client)]`, then `await litellm.acompletion(model=…,
messages=…)`. LiteLLM runs no tools: the program that sent the request runs what the model calls, with `run_tool_call`.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast

from toolscout_client.adapters._calls import describe_error_or_raise, describe_execution
from toolscout_client.adapters._extras import missing_extra
from toolscout_client.adapters._messages import has_user_text, trim_messages
from toolscout_client.client import AsyncToolscout
from toolscout_client.errors import ToolscoutError
from toolscout_client.models import Discovery, DiscoveryOptions, Format, Json

try:
    from litellm.integrations.custom_logger import CustomLogger
except ImportError as error:
    raise missing_extra("litellm", error) from error

if TYPE_CHECKING:
    from litellm.proxy._types import UserAPIKeyAuth

__all__ = ["ToolscoutHook", "UserSource", "run_tool_call"]

logger = logging.getLogger(__name__)

UserSource = Literal["key", "request"]

_SWITCH = "toolscout"
_PROXY_KEY = "user_api_key"
"""The proxy adds it to the metadata of each request."""
_METADATA = ("litellm_metadata", "metadata")
_REQUEST_OPTIONS = ("limit", "max_tokens", "tags", "server_ids", "project_id")


@dataclass(frozen=True)
class _Api:
    """Where a request has its messages, and the format of its tools."""

    messages: str
    format: Format


_CHAT, _RESPONSES = _Api("messages", "openai"), _Api("input", "openai_responses")
_APIS: Mapping[str, _Api] = {
    "completion": _CHAT,
    "acompletion": _CHAT,
    "responses": _RESPONSES,
    "aresponses": _RESPONSES,
    "anthropic_messages": _Api("messages", "anthropic"),
}


class ToolscoutHook(CustomLogger):
    """Adds tools to requests for chat completions, responses and Anthropic's messages.

    `user` says for whom tools are found, with a service key of Toolscout: `"key"` is the user of the proxy's key;
    `"request"` is the `user` of the request, for callers that you trust. None: the client's own user.

    The caller's own tools stay as they are, and come first. A request stays as it is if it has no text of a user, if
    its `tool_choice` is `none`, if the hook cannot read it, or if Toolscout does not answer within `timeout_s`. A
    caller switches the hook off with `metadata: {"toolscout": false}`, and narrows the search with
    `{"toolscout": {"limit": 3, "tags": ["mail"]}}`.
    All other options are those of `AsyncToolscout.discover`; a caller cannot change those that you set.
    """

    def __init__(
        self,
        client: AsyncToolscout,
        *,
        user: UserSource | None = None,
        timeout_s: float = 3.0,
        **options: Unpack[DiscoveryOptions],
    ) -> None:
        super().__init__()
        self._client = client
        self._user = user
        self._timeout_s = timeout_s
        self._options: DiscoveryOptions = {"include_core_tools": False, **options}

    async def async_pre_call_hook(
        self,
        user_api_key_dict: "UserAPIKeyAuth",
        cache: Any,  # noqa: ARG002 the proxy gives it by name
        data: Json,
        call_type: str,
    ) -> Json | None:
        """Called by the proxy, with its caller's key."""
        user_id = (
            user_api_key_dict.user_id if self._user == "key" else user_api_key_dict.end_user_id or data.get("user")
        )
        return await self._add_tools(data, call_type, user_id)

    async def async_pre_call_deployment_hook(self, kwargs: Json, call_type: Any) -> Json | None:
        """Called by `litellm.acompletion` and its siblings, also in the proxy, where the hook above has run before."""
        metadata = [kwargs.get(name) for name in _METADATA]
        if any(isinstance(fields, Mapping) and _PROXY_KEY in fields for fields in metadata):
            return None
        user_id = None if self._user == "key" else kwargs.get("user")
        return await self._add_tools(kwargs, getattr(call_type, "value", call_type), user_id)

    async def _add_tools(self, request: Json, call_type: str, user_id: str | None) -> Json | None:
        """Return the request with the tools that it needs, or None if it stays as it is."""
        api = _APIS.get(call_type)
        if api is None:
            return None
        request = dict(request)
        switch = _take_switch(request)
        try:
            found = None if switch is False else await self._discover(api, request, user_id, switch)
            if found is not None and (tools := _append_tools(request.get("tools"), found.definitions)):
                request["tools"] = tools  # the APIs reject an empty list
        except (ToolscoutError, TimeoutError) as error:
            # a chat without these tools is better than none
            logger.warning("no tools were added: Toolscout failed: %s", str(error) or type(error).__name__)
        except Exception as error:  # noqa: BLE001 boundary: a caller's request may contain anything
            logger.warning("no tools were added: the request cannot be read: %s", type(error).__name__)
        return request

    async def _discover(self, api: _Api, request: Json, user_id: str | None, options: Any) -> Discovery | None:
        messages = request.get(api.messages) or []
        messages = trim_messages([{"role": "user", "content": messages}] if isinstance(messages, str) else messages)
        if request.get("tool_choice") in ("none", {"type": "none"}) or not has_user_text(messages):
            return None
        if self._user is not None and user_id is None:
            logger.warning("no tools were added: the request has no user", extra={"user_source": self._user})
            return None
        client = self._client if self._user is None or user_id is None else self._client.for_user(user_id)
        narrowed = {name: options[name] for name in _REQUEST_OPTIONS if name in options} if options else {}
        # the operator's own options count: with another project or other tags, a caller could widen the search
        given = cast("DiscoveryOptions", {**narrowed, **self._options, "messages": messages, "format": api.format})
        async with asyncio.timeout(self._timeout_s):
            return await client.discover(**given)


def _take_switch(request: Json) -> Any:
    """Remove what the caller says about Toolscout from the metadata, which may be sent to the provider."""
    switch = None
    for name in _METADATA:
        metadata = request.get(name)
        if isinstance(metadata, Mapping) and _SWITCH in metadata:
            switch = metadata[_SWITCH]
            request[name] = {key: value for key, value in metadata.items() if key != _SWITCH}
    return switch if switch is False or isinstance(switch, Mapping) else None


def _append_tools(own: Any, found: Sequence[Json]) -> list[Any]:
    tools = [] if own is None else own
    if not isinstance(tools, list | tuple):
        raise TypeError("`tools` is no list")
    taken = set(map(_get_name, tools))
    return [*tools, *(tool for tool in found if _get_name(tool) not in taken)]


def _get_name(tool: Any) -> str | None:
    """Return the name of a tool in any of the formats; None if it has none, as a provider's own tools."""
    return tool.get("function", tool).get("name") if isinstance(tool, Mapping) else None


async def run_tool_call(
    client: AsyncToolscout,
    call: Any,
    *,
    project_id: str | None = None,
    confirmation_token: str | None = None,
    idempotency_key: str | None = None,
) -> Json:
    """Run a tool call of a chat completion and return the message with its result, or with the error, for the model.

    `call` is an item of `choices[0].message.tool_calls`. Give the `project_id` that the hook has: without it the call
    may reach tools outside of the project. With an `idempotency_key` of yours, a call that you send again runs once.
    Raise `ConfirmationRequired` if the user must confirm the call: send it again with the error's `token`. Raise also
    the errors of a key that is not valid.
    """
    tool_call = call if isinstance(call, Mapping) else call.model_dump()
    try:
        done = await client.execute(
            tool_call=tool_call,
            project_id=project_id,
            confirmation_token=confirmation_token,
            idempotency_key=idempotency_key,
        )
        outcome = describe_execution(done)
    except ToolscoutError as error:
        outcome = describe_error_or_raise(error)
    return {"role": "tool", "tool_call_id": tool_call["id"], "content": outcome.text}

"""Anthropic's `POST /v1/messages`, of a model with preserved thinking (Claude Opus 5.5, Fable 5.1 and later).

The rules are those of Anthropic's documentation ("Mid-conversation system messages and tool changes", "Prefix checks on
thinking blocks") and of the types of its SDK. The documentation says that a *deferred* tool which is added to `tools`
leaves the cache as it is, but not whether thinking is bound to it: here it is, as to every other tool, so that what
passes the fake is right in both cases. Nor does it give the words of the error for a missing beta header.
"""

import uuid
from collections.abc import Set as AbstractSet

from examples.fake_model.behaviour import SEARCH_NAMES, Json, Turn, View
from examples.fake_model.errors import InvalidRequest, reject_if
from examples.fake_model.prefix import Usage, serialize, sign_prefix

INLINE_TOOLS = "inline-tools-2026-09-15"
TOOL_CHANGES = "mid-conversation-tool-changes-2026-07-01"
BINDING_CONTROLS = "thinking-binding-controls-2026-08-01"

_BOUND = (
    "Invalid `signature` in `thinking` block. The block is bound to a different conversation. Remove the block, or set "
    '`thinking.block_binding.prefix_mismatch_behavior` to "drop_block". That setting requires the '
    f"`{BINDING_CONTROLS}` value in the `anthropic-beta` header."
)


class MessagesRequest:
    """A request, checked. `view` is what the model sees, `parts` is the prompt from its beginning to its end."""

    def __init__(self, request: Json, betas: AbstractSet[str]) -> None:
        self.request, self._betas = request, betas
        self.tools: list[Json] = request.get("tools", [])
        self._defined = {tool["name"]: tool for tool in self.tools}
        self._available = {name: tool for name, tool in self._defined.items() if not tool.get("defer_loading")}
        self._given_at = dict.fromkeys(self._available, -1)
        self.view = View()
        self.parts: list[str] = []
        self.dropped: list[str] = []
        """Paths of the thinking blocks that were left out, since what stood before them has changed."""
        self.redundant: list[str] = []
        """Changes without an effect. The API accepts them; who computes differences should not make any."""
        self._calls: dict[str, str] = {}
        self._has_searched = False
        self._check_tools()
        self._render_head()
        for index, message in enumerate(request["messages"]):
            self._read_message(index, message)
        self._require_results({"content": []})
        self._finish_view()

    def _check_tools(self) -> None:
        reject_if("max_tokens" not in self.request, "max_tokens: Field required")
        reject_if(len(self._defined) < len(self.tools), "tools: Tool names must be unique.")
        only_deferred = bool(self.tools) and not self._available
        reject_if(only_deferred, "At least one tool must have defer_loading=false. All tools cannot be deferred.")

    def _render_head(self) -> None:
        # tools without a loaded one in `tools`: the first definition in a message changes the start of the prompt
        if self._available or '"tool_definition"' in serialize(self.request["messages"]):
            self.parts.append("You have tools.")
        self.parts += [serialize(tool) for tool in self._available.values()]
        self.parts.append(serialize(self.request.get("system")))

    def _read_message(self, index: int, message: Json) -> None:
        blocks = message["content"]
        blocks = [{"type": "text", "text": blocks}] if isinstance(blocks, str) else blocks
        if message["role"] == "system":
            self._read_system(index, blocks)
            return
        self._require_results(message)
        for position, block in enumerate(blocks):
            if block["type"] == "thinking":
                self._read_thinking(f"messages.{index}.content.{position}", block, index, position)
                continue
            self.parts.append(serialize([message["role"], block]))
            if block["type"] == "tool_use":
                self._calls[block["id"]] = block["name"]
                self._has_searched |= block["name"] in SEARCH_NAMES
            elif block["type"] == "tool_result":
                self._read_result(block, index)
            elif message["role"] == "user":
                self.view.begin_message(block["text"])
                self._has_searched = False

    def _read_thinking(self, path: str, block: Json, index: int, position: int) -> None:
        messages = self.request["messages"]
        if block["signature"] == self._sign(messages[:index], messages[index]["content"][:position]):
            self.parts.append(block["thinking"])
            return
        binding = (self.request.get("thinking") or {}).get("block_binding") or {}
        is_dropped = binding.get("prefix_mismatch_behavior") == "drop_block" and BINDING_CONTROLS in self._betas
        reject_if(not is_dropped, f"{path}: {_BOUND}")
        self.dropped.append(path)

    def _sign(self, messages: list[Json], blocks: list[Json]) -> str:
        return sign_prefix(self.tools, self.request.get("system"), messages, blocks)

    def _require_results(self, message: Json) -> None:
        """The results of all calls must be in the message right after them, and no others."""
        blocks = message["content"] if isinstance(message["content"], list) else []
        answered = {block["tool_use_id"] for block in blocks if block["type"] == "tool_result"}
        for unknown in answered - self._calls.keys():
            raise InvalidRequest(f"unexpected `tool_use_id` found in `tool_result` blocks: {unknown}")
        for missing in self._calls.keys() - answered:
            raise InvalidRequest(f"`tool_use` ids were found without `tool_result` blocks immediately after: {missing}")

    def _read_result(self, block: Json, index: int) -> None:
        content = block.get("content") or []
        content = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for name in [item["tool_name"] for item in content if item["type"] == "tool_reference"]:
            reject_if(name not in self._defined, f"Tool reference '{name}' not found in available tools")
            self._available[name] = self._defined[name]
            self._given_at[name] = index
            self.parts.append(serialize(self._defined[name]))
        if self._calls.pop(block["tool_use_id"]) not in SEARCH_NAMES:
            self.view.results.append("\n".join(item["text"] for item in content if item["type"] == "text"))

    def _read_system(self, index: int, blocks: list[Json]) -> None:
        messages = self.request["messages"]
        follows = index > 0 and messages[index - 1]["role"] in ("user", "system")
        precedes = index + 1 == len(messages) or messages[index + 1]["role"] in ("assistant", "system")
        reject_if(
            not (follows and precedes),
            f"messages.{index}: a system message must follow a user turn, and end the messages or be followed by an "
            "assistant turn",
        )
        for position, block in enumerate(blocks):
            self.parts.append(serialize(["system", block]))
            if block["type"] in ("tool_addition", "tool_removal"):
                self._apply_change(f"messages.{index}.content.{position}", block, index)

    def _apply_change(self, path: str, block: Json, index: int) -> None:
        tool, is_removal = block["tool"], block["type"] == "tool_removal"
        is_definition = tool["type"] == "tool_definition"
        accepted = {INLINE_TOOLS} if is_definition else {INLINE_TOOLS, TOOL_CHANGES}
        reject_if(
            not accepted & self._betas,
            f"{path}: `{block['type']}` needs the `anthropic-beta` header with `{INLINE_TOOLS}`",
        )
        reject_if(is_definition and is_removal, f"{path}.tool.type: Input should be 'tool_reference'")
        reject_if(
            not is_definition and tool["name"] not in self._defined,
            f"{path}: tool '{tool.get('name')}' is neither declared in `tools` nor defined in an earlier message",
            "tool_reference_unresolved",
        )
        definition = tool["definition"] if is_definition else self._defined[tool["name"]]
        name = definition["name"]
        if is_removal:
            self.redundant += [path] if name not in self._available else []
            self._available.pop(name, None)
            return
        self.redundant += [path] if name in self._available else []
        self._defined[name] = definition
        self._available[name] = definition
        self._given_at[name] = index

    def _finish_view(self) -> None:
        search = next((tool for name, tool in self._available.items() if name in SEARCH_NAMES), None)
        if search is not None and not self._has_searched:
            self.view.search = (search["name"], search["input_schema"])
        names = [name for name in self._available if name not in SEARCH_NAMES]
        names.sort(key=self._given_at.__getitem__, reverse=True)
        self.view.tools = {name: self._available[name]["input_schema"] for name in names}

    @property
    def asks_for_cache(self) -> bool:
        """Caching is opt-in: without a marker nothing is stored and nothing is read."""
        return '"cache_control"' in serialize(self.request)

    def make_response(self, turn: Turn, usage: Usage) -> Json:
        signature = self._sign(self.request["messages"], [])
        return {
            "id": f"msg_{uuid.uuid4().hex}",
            "type": "message",
            "role": "assistant",
            "model": self.request["model"],
            "content": [
                {"type": "thinking", "thinking": turn.thinking, "signature": signature},
                self._make_block(turn),
            ],
            "stop_reason": "end_turn" if turn.text else "tool_use",
            "stop_sequence": None,
            "input_transformations": [
                {"type": "thinking_dropped", "path": path, "reason": "prefix_binding_mismatch"} for path in self.dropped
            ],
            "usage": {
                "input_tokens": 0 if self.asks_for_cache else usage.input_tokens,
                "cache_read_input_tokens": usage.cached_tokens,
                "cache_creation_input_tokens": usage.input_tokens - usage.cached_tokens if self.asks_for_cache else 0,
                "output_tokens": 1,
            },
        }

    def _make_block(self, turn: Turn) -> Json:
        block = {"type": "tool_use", "id": f"toolu_{uuid.uuid4().hex}"}
        if turn.search is not None and self.view.search is not None:
            return block | {"name": self.view.search[0], "input": turn.search}
        if turn.tool is not None:
            return block | {"name": turn.tool, "input": turn.arguments}
        return {"type": "text", "text": turn.text}

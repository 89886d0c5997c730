"""Tool definitions in the shapes that models' APIs take. Pure; the same tools give the same bytes.

Schemas are passed on as the text that they are stored as: nothing is parsed only to be written again.
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import orjson

from app.catalog.offers import Offer

Format = Literal["mcp", "openai", "openai_responses", "anthropic"]

MAX_NAME = 64
_VALID_NAME = re.compile(r"^[A-Za-z0-9_-]{1,64}$")
_INVALID = re.compile(r"[^A-Za-z0-9_-]+")
_DIGEST = 6


def aliases(offers: Sequence[Offer]) -> list[str]:
    """A name for each tool that every API accepts and that no other tool in the answer has.

    A tool keeps its own name where that is valid and the user has no second tool of that name; otherwise it gets its
    server's name and a few digits of its key, so that the alias is the same in every answer. Where a tool of a server
    has the name of a core tool, the core tool keeps it.
    """
    native = {offer.name for offer in offers if offer.server_id is None}
    names = {offer.tool_id: _plain_name(offer, native) for offer in offers}
    taken = {name for name in names.values() if name is not None}
    for offer in offers:
        if names[offer.tool_id] is None:
            names[offer.tool_id] = made = _made_name(offer, taken)
            taken.add(made)
    return [name for offer in offers if (name := names[offer.tool_id]) is not None]


def _plain_name(offer: Offer, native: set[str]) -> str | None:
    clashes = offer.shares_its_name or (offer.server_id is not None and offer.name in native)
    return offer.name if _VALID_NAME.match(offer.name) and not clashes else None


def _made_name(offer: Offer, taken: set[str]) -> str:
    digest = hashlib.sha256(offer.tool_id.encode()).hexdigest()
    readable = _INVALID.sub("_", f"{offer.server_name or ''}_{offer.name}").strip("_")
    candidates = (f"{readable[: MAX_NAME - n - 1]}_{digest[:n]}".lstrip("_") for n in range(_DIGEST, MAX_NAME))
    return next(name for name in candidates if name not in taken)


def as_mcp(offer: Offer, name: str) -> dict[str, Any]:
    shape: dict[str, Any] = {"name": name}
    if offer.title is not None:
        shape["title"] = offer.title
    shape["description"] = offer.description
    shape["inputSchema"] = orjson.Fragment(offer.input_schema)
    if offer.output_schema is not None:
        shape["outputSchema"] = orjson.Fragment(offer.output_schema)
    if offer.annotations is not None:
        shape["annotations"] = orjson.Fragment(offer.annotations)
    return shape


def _as_openai_function(offer: Offer, name: str) -> dict[str, Any]:
    return {"name": name, "description": offer.description, "parameters": orjson.Fragment(offer.input_schema)}


def _as_openai(offer: Offer, name: str) -> dict[str, Any]:
    return {"type": "function", "function": _as_openai_function(offer, name)}


def _as_openai_responses(offer: Offer, name: str) -> dict[str, Any]:
    return {"type": "function", **_as_openai_function(offer, name)}


def _as_anthropic(offer: Offer, name: str) -> dict[str, Any]:
    return {"name": name, "description": offer.description, "input_schema": orjson.Fragment(offer.input_schema)}


_SHAPES: Mapping[Format, Callable[[Offer, str], dict[str, Any]]] = {
    "mcp": as_mcp,
    "openai": _as_openai,
    "openai_responses": _as_openai_responses,
    "anthropic": _as_anthropic,
}


def definitions(offers: Sequence[Offer], names: Sequence[str], shape: Format) -> list[bytes]:
    return [orjson.dumps(_SHAPES[shape](offer, name)) for offer, name in zip(offers, names, strict=True)]


def toolset_hash(definitions: Sequence[bytes]) -> str:
    return hashlib.sha256(b"\n".join(definitions)).hexdigest()[:16]

"""Measure the local embedding model in both precisions: `make bench-embedder`.

Each precision is measured in processes of its own, with one thread: the start with an empty cache and with a filled
one, the memory, a short and a longer message, and the tools of the demo, as an index run embeds them. Starts are in
seconds of the clock, all other times in time of one core, which other work on the machine changes less. The last column
compares the vectors with those of fp32.

Then follow the model that ships with several messages in a batch, and the latency of one message after another, by the
clock, through the embedder of the service: alone, and while an index run and another user's long messages keep it busy.
"""

import asyncio
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import get_args

import psutil

from app.demo.seed import load_catalogue
from app.embeddings.base import QueryTicket, Vectors
from app.embeddings.granite import Granite
from app.embeddings.graph_cache import GraphCache
from app.embeddings.local import LocalEmbedder
from app.embeddings.local_models import LocalModel, Precision, find_shipped_model
from app.indexing.documents import embedded_text
from app.indexing.parsing import parse_definition
from app.mcp_types import ToolDefinition

ROUNDS = 50
WORDS = "please find the cheapest morning flight from Lisbon to Berlin next Friday and add it to my calendar "


@dataclass(frozen=True)
class Result:
    memory_mb: float
    short_ms: float
    longer_ms: float
    texts_per_s: float
    vectors: Vectors


def start(model: LocalModel, folder: Path) -> float:
    """Load the model and return how many seconds that takes."""
    started = time.perf_counter()
    Granite.load(model, GraphCache(folder))
    return time.perf_counter() - started


def measure(model: LocalModel, folder: Path, texts: list[str]) -> Result:
    before = psutil.Process().memory_info().rss
    granite = Granite.load(model, GraphCache(folder))
    vectors = granite.embed(texts)
    return Result(
        memory_mb=(psutil.Process().memory_info().rss - before) / 1e6,
        short_ms=time_message(granite, words=10),
        longer_ms=time_message(granite, words=38),
        texts_per_s=len(texts) / time_call(lambda: granite.embed(texts)),
        vectors=vectors,
    )


def time_call(call: Callable[[], object]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started


def time_message(granite: Granite, words: int) -> float:
    """Return the median milliseconds for a message of so many words, which are about as many tokens, and two more."""
    message = " ".join((WORDS * 3).split()[:words])
    return 1000 * statistics.median(time_call(lambda: granite.embed([message], "query")) for _ in range(ROUNDS))


def time_batches(model: LocalModel, folder: Path) -> dict[int, float]:
    """Return the median milliseconds per message of 12 tokens, by the number of messages in a batch."""
    granite = Granite.load(model, GraphCache(folder))
    messages = [" ".join((WORDS * 3).split()[start : start + 10]) for start in range(16)]
    batches = [messages[:size] for size in (1, 2, 4, 8, 16)]
    times = [[time_call(partial(granite.embed, batch)) for _ in range(ROUNDS)] for batch in batches]
    return {len(batch): 1000 * statistics.median(each) / len(batch) for batch, each in zip(batches, times, strict=True)}


async def time_queries(embedder: LocalEmbedder, background: Coroutine[None, None, None] | None = None) -> str:
    """Embed message after message, while the background runs, and return the percentiles of their latency."""
    running = None if background is None else asyncio.create_task(background)
    await asyncio.sleep(0.2)
    latencies = []
    for number in range(4 * ROUNDS):
        started = time.perf_counter()
        await embedder.embed_queries([f"{number} {WORDS[:60]}"], QueryTicket("alice"))
        latencies.append(1000 * (time.perf_counter() - started))
    if running is not None:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    quantiles = statistics.quantiles(latencies, n=20)
    return f"{quantiles[9]:.1f} ms | {quantiles[18]:.1f} ms"


async def index(embedder: LocalEmbedder, texts: list[str]) -> None:
    while True:
        await embedder.embed_documents(texts, "bob")


async def flood(embedder: LocalEmbedder) -> None:
    async def ask() -> None:
        while True:
            await embedder.embed_queries([WORDS * 15], QueryTicket("bob"))

    await asyncio.gather(*(ask() for _ in range(16)))


async def compare_latencies(model: LocalModel, folder: Path, texts: list[str]) -> None:
    embedder = LocalEmbedder(model, GraphCache(folder))
    embedder.load()
    print("\n| latency of a message | p50 | p95 |\n|---|---|---|")
    print(f"| alone | {await time_queries(embedder)} |")
    print(f"| while tools are indexed | {await time_queries(embedder, index(embedder, texts))} |")
    print(f"| while another user sends 16 long messages at once | {await time_queries(embedder, flood(embedder))} |")
    await embedder.aclose()


def read_texts() -> list[str]:
    tools = [(server["name"], parse_definition(tool)) for server in load_catalogue() for tool in server["tools"]]
    return [embedded_text(tool, server) for server, tool in tools if isinstance(tool, ToolDefinition)]


def main() -> None:
    texts, shipped = read_texts(), find_shipped_model()
    print(f"{len(texts)} texts of the demo; one thread; median of {ROUNDS} messages")
    print("| model | start, cold | start, warm | memory | 12 tokens | 40 tokens | texts/s | mean cosine to fp32 |")
    print("|---|---|---|---|---|---|---|---|")
    exact = None
    for precision in get_args(Precision):
        model = replace(shipped, precision=precision)
        # Each task has a process of its own.
        pool = multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1)
        with tempfile.TemporaryDirectory() as folder, pool:
            cold_s, warm_s = (pool.apply(start, (model, Path(folder))) for _ in range(2))
            result = pool.apply(measure, (model, Path(folder), texts))
        exact = result.vectors if exact is None else exact
        cosine = float((result.vectors * exact).sum(axis=1).mean())
        print(
            f"| {model.id} | {cold_s:.2f} s | {warm_s:.2f} s | {result.memory_mb:.0f} MB | {result.short_ms:.1f} ms "
            f"| {result.longer_ms:.1f} ms | {result.texts_per_s:.0f} | {cosine:.5f} |"
        )
    with tempfile.TemporaryDirectory() as folder:
        batches = time_batches(shipped, Path(folder))
        print(f"\n| messages in a batch | {' | '.join(map(str, batches))} |\n|---|{'---|' * len(batches)}")
        print(f"| time for each | {' | '.join(f'{ms:.2f} ms' for ms in batches.values())} |")
        asyncio.run(compare_latencies(shipped, Path(folder), texts))


if __name__ == "__main__":
    main()

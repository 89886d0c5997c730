"""Measure how search and indexing grow with a user's tools and with the table: `make bench-scale`.

One user grows from 100 to 200,000 tools and is searched on each route: in memory where the tools fit, exactly in
Postgres, and through indexes of its own above `TOOLSCOUT_SEARCH_ANN_ABOVE`. The share of the exact search's best eight
tools that the others find is the recall. Then the table grows to a million rows of 5,000 users, and an ordinary user is
searched again. The whole takes half an hour and 8 GB of disk; `--quick` takes a minute.
"""

import argparse
import asyncio
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import psycopg

from app.auth.users import delete_user
from app.container import Container
from app.indexing.large_tenants import wait_and_update_large_tenants
from app.local_postgres.database import owner_connection
from app.local_postgres.postgres import EmbeddedPostgres
from app.observability.logging import configure_logging
from bench.load.cpu import read_postmaster_pid
from bench.relevance.index import open_bench_container, open_data_folder
from bench.result_files import add_results_option, choose_results_folder, has_matplotlib, write_results
from bench.scale.catalogue import (
    RealTools,
    analyze,
    copy_user,
    embed_real_tools,
    insert_user,
    read_messages,
    vary_tools,
)
from bench.scale.indexing import create_server, time_push
from bench.scale.results import Growth, Results, Table, format_results
from bench.scale.routes import Routes

SIZES = (100, 1_000, 5_000, 50_000, 200_000)
_COPIED_AT_ONCE = 250
_BYTES_PER_TOOL = 8_000
"""With everything that Postgres needs to sort and to log, rounded up."""
_ORDINARY = "ordinary"
_PUSHED = 1_000


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse_options(arguments)
    configure_logging("WARNING")
    with open_data_folder(options.data) as folder:
        check_disk(folder, max([*options.sizes, options.users * options.user_tools]))
        results = asyncio.run(run(folder, options))
    print(format_results(results))
    write_results(options, "scale", results.to_json())
    if has_matplotlib():
        from bench.scale.plot import draw_scale  # noqa: PLC0415

        draw_scale(results.to_json(), options.results / "scale.png")


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.scale", description=__doc__)
    parser.add_argument(
        "--sizes", type=int, nargs="*", default=list(SIZES), help="numbers of tools of the growing user"
    )
    parser.add_argument("--indexed-from", type=int, default=20_000, help="number of tools from which indexes are built")
    parser.add_argument("--users", type=int, default=5_000, help="users of the large table; 0: leave it out")
    parser.add_argument("--user-tools", type=int, default=200, help="tools of each of them")
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--real-tools", type=int, help="how many real tools to embed (default: all)")
    parser.add_argument("--quick", action="store_true", help="small numbers, to see that it runs")
    parser.add_argument("--data", type=Path, metavar="DIR", help="an empty folder for the database")
    add_results_option(parser)
    options = parser.parse_args(arguments)
    choose_results_folder(options, is_partial=options.quick)
    if options.quick:
        options.sizes, options.indexed_from, options.users, options.user_tools = [50, 600], 500, 6, 50
        options.questions, options.real_tools = 8, 100
    return options


def check_disk(folder: Path, tools: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < tools * _BYTES_PER_TOOL:
        raise SystemExit(
            f"{folder} has {free >> 20} MB free, and {tools} tools need {tools * _BYTES_PER_TOOL >> 20} MB"
        )


async def run(folder: Path, options: argparse.Namespace) -> Results:
    results = Results(options.questions)
    url = EmbeddedPostgres(folder / "data").url
    async with open_bench_container(folder / "data") as container:
        real = await embed_real_tools(container, options.real_tools)
        messages = read_messages(options.questions)
        bench = Bench(container, url, read_postmaster_pid(folder), real, messages)
        await bench.insert(_ORDINARY, options.user_tools)
        small_p50_ms = await bench.measure_ordinary(options.user_tools)
        for size in options.sizes:
            print(f"{size} tools …", flush=True)
            await bench.grow(size, results, indexed=size >= options.indexed_from)
        if options.users:
            print(f"{options.users} users …", flush=True)
            results.table = await bench.fill_table(options.users, options.user_tools, small_p50_ms)
    return results


class Bench:
    def __init__(
        self, container: Container, url: str, postmaster: int, real: RealTools, messages: Sequence[str]
    ) -> None:
        self._container, self._url, self._postmaster = container, url, postmaster
        self._real, self._messages = real, messages

    async def insert(self, user_id: str, size: int, *, ann: bool = False) -> None:
        def insert() -> None:
            tools = list(vary_tools(self._real, size))
            insert_user(self._url, self._container.model.id, user_id, tools, ann=ann)
            analyze(self._url)

        await asyncio.to_thread(insert)

    async def grow(self, size: int, results: Results, *, indexed: bool) -> None:
        user_id, before_mb = f"grown-{size}", self._read_size_mb()
        await self.insert(user_id, size, ann=indexed)
        build_s = await self._build_indexes() if indexed else None
        routes = Routes(self._container, user_id, size, self._postmaster)
        results.routes += await routes.measure_all(await routes.embed(self._messages), indexed=indexed)
        disk_mb = self._read_size_mb() - before_mb
        server_id = await create_server(self._container, user_id, "pushed")
        pushed_s = await time_push(self._container, user_id, server_id, self._real.definitions[:100])
        started = time.perf_counter()
        async with self._container.database.system_transaction() as session:
            await session.rows("SET LOCAL statement_timeout = 0")
            await delete_user(session, user_id)
        deleted_s = time.perf_counter() - started
        results.growth.append(Growth(size, disk_mb, build_s, pushed_s, deleted_s))
        await self._build_indexes()

    async def _build_indexes(self) -> float:
        """Build the indexes of large users, and drop those of deleted ones."""

        def build() -> None:
            with owner_connection(self._url, autocommit=True) as connection:
                wait_and_update_large_tenants(connection)
            analyze(self._url)

        started = time.perf_counter()
        await asyncio.to_thread(build)
        return time.perf_counter() - started

    async def measure_ordinary(self, tools: int) -> float:
        """Return the p50 of the exact search of an ordinary user in ms."""
        routes = Routes(self._container, _ORDINARY, tools, self._postmaster)
        [exact, *_] = await routes.measure_all(await routes.embed(self._messages), indexed=False)
        return exact.p50_ms

    async def fill_table(self, users: int, user_tools: int, small_p50_ms: float) -> Table:
        def fill() -> None:
            for first in range(1, users, _COPIED_AT_ONCE):
                copy_user(self._url, _ORDINARY, "copy-", first, min(first + _COPIED_AT_ONCE, users) - 1)
            analyze(self._url)

        await asyncio.to_thread(fill)
        large_p50_ms = await self.measure_ordinary(user_tools)
        server_id = await create_server(self._container, "indexed", "pushed")
        tools = _rename_duplicates(self._real.definitions[:_PUSHED])
        index_s = await time_push(self._container, "indexed", server_id, tools)
        unchanged_s = await time_push(self._container, "indexed", server_id, tools)
        rows = users * user_tools
        return Table(rows, users, small_p50_ms, large_p50_ms, self._read_size_mb(), index_s, unchanged_s)

    def _read_size_mb(self) -> float:
        with psycopg.connect(self._url) as connection:
            row = connection.execute("SELECT pg_database_size(current_database())").fetchone()
        return 0.0 if row is None else row[0] / 1e6


def _rename_duplicates(definitions: Sequence[dict[str, object]]) -> list[dict[str, object]]:
    """Give each tool a name of its own: the real ones are of many servers."""
    return [each | {"name": f"{str(each['name'])[:100]}_{number}"} for number, each in enumerate(definitions)]


if __name__ == "__main__":
    main()

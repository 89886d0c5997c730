"""Play a conversation of ten messages over 200 tools against fakes of both vendors' APIs: `make bench-changes`.

The service, its embedding model and its Postgres are real, the vendors' SDKs too. The fakes enforce the rule of models
that keep their reasoning, and count the tokens that a prompt cache would serve; see `examples/fake_model`. Tokens are
counted with granite's tokenizer. The model is a script, which calls the tools that it has.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from app.embeddings.token_counter import load_token_counter
from bench.result_files import add_results_option, choose_results_folder, write_results
from bench.service import ADMIN_KEY, running_service
from bench.tool_changes.catalogue import push_servers
from bench.tool_changes.chats import CHATS
from bench.tool_changes.conversation import Script
from bench.tool_changes.sources import WAYS
from examples.fake_model import FakeModel, running_fake_model
from toolscout_client import Toolscout

USER = "chatter"


def measure(toolscout: Toolscout) -> Iterator[dict[str, Any]]:
    count_tokens = load_token_counter()
    for vendor, chat_type in CHATS.items():
        for way, make_source in WAYS.items():
            script = Script()
            model = FakeModel(script.decide, count_tokens)
            with running_fake_model(model) as url:
                source = make_source(toolscout, chat_type.api_format)
                tally = chat_type(url, source, script).play()
            yield {
                "vendor": vendor,
                "way": way,
                "rejected_turns": tally.rejected,
                "requests": tally.requests,
                "missing_calls": script.missing,
                "redundant_changes": model.redundant,
                "tool_counts": list(script.tool_counts.values()),
                "input_tokens": tally.input_tokens,
                "cached_tokens": tally.cached_tokens,
                "uncached_tokens": tally.uncached_tokens,
                "cost": round(tally.cost),
            }


def print_row(row: dict[str, Any]) -> None:
    counts = " | ".join(f"{row[name]:,}" for name in ("input_tokens", "cached_tokens", "uncached_tokens", "cost"))
    cells = (row["vendor"], row["way"], len(row["rejected_turns"]), len(row["missing_calls"]), counts)
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_results_option(parser)
    options = parser.parse_args(arguments)
    choose_results_folder(options, is_partial=False)
    print("| API | tools | rejected turns | missing calls | tokens sent | cached | not cached | cost |")
    print("|---|---|---|---|---|---|---|---|")
    rows = []
    with tempfile.TemporaryDirectory() as folder, running_service(Path(folder)) as service:
        with service.admin(USER) as client:
            push_servers(client)
        with Toolscout(service.url, ADMIN_KEY).for_user(USER) as toolscout:
            for row in measure(toolscout):
                rows.append(row)
                print_row(row)
    write_results(options, "tool_changes", {"rows": rows})


if __name__ == "__main__":
    main()

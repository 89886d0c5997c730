"""Fit the calibration that ships with the local model: `python -m bench.calibrate --corpora DIR`.

`toolscout calibrate` fits a calibration to one catalogue. The one that ships is fitted to several, so that it suits
catalogues that it has not seen. A held-out set is never among them. What messages that need a tool or none look like is
learnt from those that ship with Toolscout and from the training split of `training/data`.
"""

import argparse
import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import orjson

from app.cli.evaluation import EvaluationProgress
from app.container import Container
from app.discovery.inline.documents import InlineTool
from app.embeddings.base import Vectors
from app.embeddings.calibration import Calibration, get_calibration_path
from app.embeddings.local_models import find_shipped_model
from app.evaluation.calibrate import Messages, index_tools, load_shipped_messages, make_samples
from app.evaluation.evaluate import ProgressCallback
from app.evaluation.fit import LabelledCatalog, TrainingData, error_rates, fit_calibration
from app.evaluation.labelled_messages import LabelledMessage
from app.observability.logging import configure_logging
from bench.relevance.index import open_bench_container, open_data_folder
from bench.relevance.sets import OWN, SETS, BenchSet, BenchTool, read_set
from training.data import read_data

_PUBLIC = ("metatool", "bfcl_live", "azure_mcp_2026", "mcpproxy_golden")
_NEEDING = 3_000
_SEED = 1


def main() -> None:
    options = _parser().parse_args()
    configure_logging("WARNING")
    sets = [read_set(folder, options.corpora) for folder in _list_folders(options.corpora)]
    shipped = load_shipped_messages()
    trained = read_training_messages()
    messages = Messages([*shipped.needing, *trained.needing], [*shipped.not_needing, *trained.not_needing])
    with open_data_folder(options.data) as data:
        calibration = asyncio.run(_open_and_fit(data, sets, messages))
    options.output.write_bytes(orjson.dumps(calibration.to_json()) + b"\n")
    print(f"written to {options.output}")


def _parser() -> argparse.ArgumentParser:
    shipped = get_calibration_path(find_shipped_model().id)
    parser = argparse.ArgumentParser(prog="bench.calibrate", description=__doc__)
    parser.add_argument(
        "--corpora",
        type=Path,
        metavar="DIR",
        required=True,
        help="where the public sets are, and the tools of bench/sets",
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="keep the database, and with it the vectors of tools")
    parser.add_argument("--output", type=Path, metavar="FILE", default=shipped, help="where to write the calibration")
    return parser


def _list_folders(corpora: Path) -> list[Path]:
    return [SETS / "everyday", OWN, *(corpora / name for name in _PUBLIC)]


def read_training_messages() -> Messages:
    """Read messages of the training split, without conversations: some that need a tool, and all that need none."""
    data = read_data()
    needing, not_needing = (
        [message.query.user_text for message in data.select("train", kind) if not message.query.context]
        for kind in ("tool", "none")
    )
    return Messages(random.Random(_SEED).sample(needing, _NEEDING), not_needing)  # noqa: S311


async def _open_and_fit(data: Path, sets: Sequence[BenchSet], messages: Messages) -> Calibration:
    async with open_bench_container(data) as container:
        return await fit_sets(container, sets, messages)


async def fit_sets(container: Container, sets: Sequence[BenchSet], messages: Messages) -> Calibration:
    """Fit a calibration for the container's model to the catalogues of several sets together."""
    with EvaluationProgress() as progress:
        training = TrainingData(
            catalogs=[await _load_catalog(container, bench, progress.report) for bench in sets],
            needing=await _embed_messages(container, messages.needing, progress.report),
            not_needing=await _embed_messages(container, messages.not_needing, progress.report),
        )
    calibration = await asyncio.to_thread(fit_calibration, training)
    _print_fit(training, calibration)
    return calibration


async def _load_catalog(container: Container, bench: BenchSet, on_progress: ProgressCallback) -> LabelledCatalog:
    """Index the tools of a set and embed its messages. Messages that need only rejected tools are left out."""
    tools = await index_tools(container.inline_searcher, [_make_inline_tool(tool) for tool in bench.tools])
    known = set(tools.names.tool_ids)
    relevant = [[label for label in item.tools if label in known] for item in bench.items]
    samples = await make_samples(container.searcher, bench.items, relevant, on_progress)
    return LabelledCatalog(
        tools=tools,
        answerable=[sample for sample in samples if sample.relevant],
        unanswerable=[sample for item, sample in zip(bench.items, samples, strict=True) if not item.tools],
    )


def _make_inline_tool(tool: BenchTool) -> InlineTool:
    schema, title = tool.definition.get("inputSchema"), tool.definition.get("title")
    return InlineTool(tool.id, tool.name, tool.server, tool.description, schema, title)


async def _embed_messages(container: Container, texts: Sequence[str], on_progress: ProgressCallback) -> Vectors:
    """Embed messages that have no labels, each by its whole text."""
    items = [LabelledMessage(str(number), (), message=text) for number, text in enumerate(texts)]
    samples = await make_samples(container.searcher, items, [()] * len(items), on_progress)
    return np.stack([sample.vectors[0] for sample in samples])


def _print_fit(training: TrainingData, calibration: Calibration) -> None:
    rates = error_rates(training, calibration)
    numbers = {name: value for name, value in calibration.to_json().items() if not isinstance(value, tuple | list)}
    print(", ".join(f"{name} {value:g}" for name, value in numbers.items()))
    print(f"empty for {rates.lost:.1%} of the messages that need tools and {rates.refused:.1%} of those that need none")


if __name__ == "__main__":
    main()

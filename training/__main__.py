"""Train the adapter of the local model: `python -m training COMMAND`.

train     train an adapter; a run that was stopped goes on from its last checkpoint
evaluate  measure a run on the development sets and on the validation catalogues (or, once, on the test)
export    write the adapter that ships
curve     the learning curve: how much more messages of our own bring
"""

import argparse
import random
import tempfile
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import torch

from app.embeddings.pack import Pack, find_packaged_pack
from app.evaluation.scores import paired_interval
from app.search.glossary import Glossary
from training.curve import draw_curve
from training.data import Data, Pair, group_texts, make_pairs, read_data, read_public_pairs
from training.evaluate import (
    EvaluationSet,
    Scores,
    evaluate,
    make_catalogue_sets,
    make_model_embedders,
    merge_catalogues,
    read_development_sets,
)
from training.export import MIN_AGREEMENT, export_adapter, measure_agreement
from training.model import AdaptedModel
from training.train import Recipe, Trainer, load_run

_SAMPLE = 200


def main() -> None:
    options = _parser().parse_args()
    torch.set_num_threads(options.threads)
    options.run_command(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="training", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2, metavar="N")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    train = commands.add_parser("train", help="train an adapter")
    train.add_argument("run", type=Path, help="the folder of the run, for its checkpoint")
    train.add_argument("--public", type=Path, metavar="FOLDER", help="public pairs: pairs.jsonl and docs.jsonl")
    train.add_argument("--messages", type=int, metavar="N", help="use only N messages of our own")
    for field in fields(Recipe):
        train.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    train.set_defaults(run_command=_train)

    measure = commands.add_parser("evaluate", help="measure a run beside the base model")
    measure.add_argument("run", type=Path)
    measure.add_argument("--corpora", type=Path, metavar="DIR", help="the public sets, and the tools of bench/sets")
    measure.add_argument("--strength", type=float, nargs="+", default=[0.5, 0.75, 1.0], metavar="S")
    measure.add_argument("--sample", type=int, default=_SAMPLE, metavar="N", help="use about N messages of each set")
    measure.add_argument("--test", action="store_true", help="measure on the held-back servers instead: look once")
    measure.set_defaults(run_command=_evaluate)

    export = commands.add_parser("export", help="write the adapter that ships")
    export.add_argument("run", type=Path)
    export.add_argument("--strength", type=float, default=1.0, metavar="S")
    export.add_argument("--name", required=True, help="the adapter's name, part of the model's id")
    export.add_argument("--output", type=Path, required=True, metavar="FILE")
    export.set_defaults(run_command=_export)

    curve = commands.add_parser("curve", help="the learning curve of a map on the message side, over three seeds")
    curve.add_argument("--corpora", type=Path, required=True, metavar="DIR")
    curve.add_argument("--public", type=Path, metavar="FOLDER")
    curve.set_defaults(run_command=_draw_curve)
    return parser


def _train(options: argparse.Namespace) -> None:
    recipe = Recipe(**{field.name: getattr(options, field.name) for field in fields(Recipe)})
    torch.manual_seed(recipe.seed)
    data = read_data()
    own, public = make_pairs(data.select("train"), data), _read_public(options.public, recipe)
    if options.messages is not None:
        own = random.Random(recipe.seed).sample(own, options.messages)
    if not public:
        recipe = replace(recipe, public_share=0.0)
    print(f"{len(own)} messages of our own, {len(public)} public ones, {recipe}", flush=True)
    trainer = Trainer(_make_model(recipe.rank), own, public, group_texts(data, own, public), recipe)
    options.run.mkdir(parents=True, exist_ok=True)
    trainer.run(options.run / "checkpoint.pt")


def _read_public(folder: Path | None, recipe: Recipe) -> list[Pair]:
    pairs = [] if folder is None else read_public_pairs(folder)
    return random.Random(recipe.seed).sample(pairs, min(recipe.public_pairs, len(pairs)))


def _evaluate(options: argparse.Namespace) -> None:
    glossary = Glossary()
    data, model = read_data(glossary=glossary), _load_model(options.run)
    sets = _list_sets(data, options, glossary)
    model.set_strength(0.0)
    base = merge_catalogues(evaluate(sets, make_model_embedders(model)))
    for strength in options.strength:
        model.set_strength(strength)
        scores = merge_catalogues(evaluate(sets, make_model_embedders(model)))
        print(f"\nstrength {strength:g}\n{format_scores(scores, base)}", flush=True)


def _list_sets(data: Data, options: argparse.Namespace, glossary: Glossary) -> list[EvaluationSet]:
    if options.test:
        return make_catalogue_sets(data, "test")
    development = [] if options.corpora is None else read_development_sets(options.corpora, glossary, options.sample)
    return [*development, *make_catalogue_sets(data, "validation")]


def format_scores(scores: dict[str, Scores], base: dict[str, Scores]) -> str:
    """Format nDCG@10, hit@1 and hit@8 of each set, and the difference in nDCG@10 to the base with its interval."""
    lines = ["| set | messages | nDCG@10 | hit@1 | hit@8 | nDCG@10 − base |", "|---|---|---|---|---|---|"]
    for name, rows in scores.items():
        change = paired_interval(base[name][:, 0].tolist(), rows[:, 0].tolist())
        means = " | ".join(f"{old:.3f} → {new:.3f}" for old, new in zip(base[name].mean(0), rows.mean(0), strict=True))
        difference = f"{change.difference:+.3f} [{change.low:+.3f}, {change.high:+.3f}]"
        lines.append(f"| {name} | {len(rows)} | {means} | {difference} |")
    mean = np.mean([rows.mean(0) - base[name].mean(0) for name, rows in scores.items()], axis=0)
    return "\n".join([*lines, "mean change: " + ", ".join(f"{value:+.4f}" for value in mean)])


def _export(options: argparse.Namespace) -> None:
    model, data = _load_model(options.run), read_data()
    export_adapter(model, options.name, options.strength, options.output)
    model.set_strength(options.strength)
    texts = [tool.text for tool in next(iter(data.catalogues.values())).tools]
    with tempfile.TemporaryDirectory() as cache:
        agreement = measure_agreement(model, options.output, texts, Path(cache))
    print(f"{options.output}: {options.output.stat().st_size:,} bytes; smallest cosine to torch {agreement:.7f}")
    if agreement < MIN_AGREEMENT:
        raise SystemExit("the product computes other vectors with this adapter")


def _draw_curve(options: argparse.Namespace) -> None:
    glossary = Glossary()
    data, model = read_data(glossary=glossary), _make_model(1)
    sets = [*read_development_sets(options.corpora, glossary, _SAMPLE), *make_catalogue_sets(data, "validation")]
    public = _read_public(options.public, Recipe())
    draw_curve(model, make_pairs(data.select("train"), data), public, data, sets)


def _make_model(rank: int) -> AdaptedModel:
    return AdaptedModel(Pack.load(find_packaged_pack()), rank)


def _load_model(run: Path) -> AdaptedModel:
    state = load_run(run / "checkpoint.pt")
    model = _make_model(state["recipe"]["rank"])
    model.load_state_dict(state["model"], strict=False)
    return model


if __name__ == "__main__":
    main()

"""Attack the service, and measure how another user fares: `make bench-fairness`.

Each attack has a fresh service. A victim sends requests at a steady rate before the attack and during it. Then the
attacker hangs up, and nothing of what it used may still be held after ten seconds. An attack fails if the victim's p95
more than doubles, if a request of the victim fails, or if something is held. Everything happens on the
loopback interface, and attacker, victim and service share the machine: a ratio near the limit is worth a second run.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from app import __version__
from bench import upstream
from bench.fairness.attacks import ATTACKS
from bench.fairness.attacks.base import Attack, Probe
from bench.fairness.results import Result, format_table, to_json
from bench.fairness.stage import Ports, Stage, Template, make_template, open_stage
from bench.fairness.victim import Sample, VictimProcess, victim_process
from bench.load.catalogue import PRODUCTS
from bench.result_files import add_result_options, choose_results_folder, has_matplotlib, read_before, write_results
from bench.service import free_port

CLOSE_S = 0.5
"""For the attacker's connections to be closed, which the event loop does in the background."""
LEAD_S = 0.2
"""From the start of the attack until the victim's requests count."""


@dataclass(frozen=True)
class Plan:
    quiet_s: float
    warm_up_s: float
    attack_s: float
    products: Sequence[str]
    """Those of the attacker, with 50 tools each."""


FULL, QUICK = Plan(4.0, 1.0, 5.0, PRODUCTS), Plan(0.5, 0.5, 1.0, PRODUCTS[:1])


def run_attack(stage: Stage, attack: Attack, victims: VictimProcess, plan: Plan) -> Result:
    attack.prepare(stage)
    victims.measure(stage.victim(attack.victim), plan.warm_up_s)
    quiet = victims.measure(stage.victim(attack.victim), plan.quiet_s)
    memory_mb = stage.read_memory_mb()
    attacked, attacked_memory_mb = asyncio.run(_measure_attacked(stage, attack, victims, plan))
    growth_mb = attacked_memory_mb - memory_mb
    held = stage.wait_for_release()
    is_fast = attacked.p95_ms <= attack.max_ratio * quiet.p95_ms
    is_refused = not attack.must_refuse or stage.attacker_statuses["429"] > 0
    is_fair = is_fast and is_refused and not attacked.errors
    return Result(
        name=attack.name,
        summary=attack.summary,
        passed=is_fair and not held and growth_mb <= attack.max_growth_mb,
        quiet_p50_ms=quiet.p50_ms,
        quiet_p95_ms=quiet.p95_ms,
        attack_p50_ms=attacked.p50_ms,
        attack_p95_ms=attacked.p95_ms,
        requests=len(attacked.latencies_ms),
        errors=attacked.errors,
        held=held,
        memory_growth_mb=growth_mb,
        attacker=stage.attacker_statuses,
    )


async def _measure_attacked(stage: Stage, attack: Attack, victims: VictimProcess, plan: Plan) -> tuple[Sample, float]:
    """Return what the victim saw, and the memory of the service, both while the attack goes on."""
    running = asyncio.ensure_future(attack.run(stage))
    try:
        await asyncio.wait({running}, timeout=LEAD_S)
        pending = victims.start(stage.victim(attack.victim), plan.attack_s)
        attacked = await asyncio.to_thread(pending.get)
        memory_mb = stage.read_memory_mb()
        if running.done():
            running.result()  # an attack ends only with an error
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await asyncio.sleep(CLOSE_S)
    return attacked, memory_mb


def run_probe(stage: Stage, probe: Probe) -> Result:
    finding = probe.run(stage)
    return Result(name=probe.name, summary=probe.summary, passed=finding.passed, figures=finding.figures)


def run_all(chosen: Sequence[Attack | Probe], plan: Plan, folder: Path) -> Iterator[Result]:
    with running_upstreams() as ports, victim_process() as victims:
        template = make_template(_make_folder(folder, "template"), plan.products)
        for each in chosen:
            print(f"{each.name}: {each.summary} …", flush=True)
            yield _run_one(each, template, _make_folder(folder, each.name), ports, victims, plan)


def _run_one(
    each: Attack | Probe, template: Template, folder: Path, ports: Ports, victims: VictimProcess, plan: Plan
) -> Result:
    module = each.module if isinstance(each, Attack) else "app"
    with open_stage(template, folder, ports, each.settings, module) as stage:
        return run_attack(stage, each, victims, plan) if isinstance(each, Attack) else run_probe(stage, each)


def _make_folder(parent: Path, name: str) -> Path:
    folder = parent / name
    folder.mkdir()
    return folder


@contextmanager
def running_upstreams() -> Iterator[Ports]:
    port = free_port()
    with ExitStack() as stack:
        silent = stack.enter_context(upstream.silent_port())
        process = subprocess.Popen([sys.executable, "-m", "bench.fairness.hanging_server", str(port)])
        stack.callback(process.wait, timeout=10)
        stack.callback(process.kill)
        upstream.wait_for_port(port)
        yield Ports(silent, port)


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    names = [each.name for each in ATTACKS]
    parser = argparse.ArgumentParser(prog="bench.fairness", description=__doc__)
    parser.add_argument(
        "--only",
        action="append",
        choices=names,
        metavar="NAME",
        help=f"one attack; may be repeated: {', '.join(names)}",
    )
    parser.add_argument("--quick", action="store_true", help="short periods: whether it works, not how well")
    add_result_options(parser)
    options = parser.parse_args(arguments)
    choose_results_folder(options, is_partial=options.quick or options.only is not None)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 1 if an attack did harm."""
    options = parse_options(arguments)
    chosen = [each for each in ATTACKS if options.only is None or each.name in options.only]
    with tempfile.TemporaryDirectory() as folder:
        results = list(run_all(chosen, QUICK if options.quick else FULL, Path(folder)))
    print(f"\n{format_table(results)}")
    content = {"version": __version__, "attacks": [to_json(result) for result in results]}
    write_results(options, "fairness", content)
    if has_matplotlib():
        from bench.fairness.plot import draw_fairness  # noqa: PLC0415 needs matplotlib

        draw_fairness(content, read_before(options), options.results / "fairness.png")
    return 0 if all(result.passed for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())

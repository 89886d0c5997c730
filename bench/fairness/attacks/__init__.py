"""All attacks and probes, in the order in which they run."""

from bench.fairness.attacks import hang_ups, probes, shares, strangers
from bench.fairness.attacks.base import Attack, Probe

ATTACKS: list[Attack | Probe] = [*strangers.ATTACKS, *hang_ups.ATTACKS, *shares.ATTACKS, *probes.PROBES]

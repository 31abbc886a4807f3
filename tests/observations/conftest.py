"""Planted study tables: what each observation would read if its claim were true, or false, on an imagined machine."""

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest

from anatomy.observations import OBSERVATIONS
from anatomy.observations.common.store import decide
from anatomy.observations.common.verdict import Judgement
from anatomy.options import complete_options
from anatomy.tables import TABLES
from anatomy.tables.common.columns import as_frame

NUM_SEEDS = 8


def leading(seed: int, **values: Any) -> dict[str, Any]:
    """Run columns of one run."""
    row = {
        "graph": "powerlaw",
        "partitioner": "metis",
        "num_parts": 2,
        "strategy": "minibatch",
        "method": "minibatch",
        "model": "sage",
        "ranks": 2,
        "hosts": 1,
        "link_mbit": None,
        "condition": None,
        "seed": seed,
        "oversubscribed": False,
        "platform": "CPU and Gloo",
        "status": "completed",
    } | values
    if "method" in values:
        row["strategy"] = values["method"]
    link = "" if row["link_mbit"] is None else f".l{row['link_mbit']}"
    spread = link if row["condition"] is None else f"{link}.c-{row['condition']}"
    name = f"{row['graph']}.{row['partitioner']}-{row['ranks']}.{row['strategy']}.{row['model']}{spread}.s{seed}"
    return {"run": name} | row


class Planted:
    """Tables in which a claim holds (`sign` > 0) or its contrary does (`sign` < 0); noise is small beside that."""

    def __init__(self, num_seeds: int = NUM_SEEDS, random_seed: int = 0) -> None:
        self.seeds = range(num_seeds)
        self.random = np.random.default_rng(random_seed)

    def table(self, observation: str, holds: bool) -> pd.DataFrame:
        """The table that an observation is judged on."""
        table = OBSERVATIONS[observation].constants["TABLE"]
        assert hasattr(self, f"_{observation}"), (
            f"{observation} has no controls: plant its table in Planted._{observation}"
        )
        rows = getattr(self, f"_{observation}")(1 if holds else -1)
        return as_frame(rows, TABLES[table].load().COLUMNS)

    def _near(self, value: float) -> float:
        return value * self.random.uniform(0.97, 1.03)

    def _preparation_dominates(self, sign: int) -> list[dict]:
        shares = [
            ("preparation", "sample"),
            ("communication", "fetch"),
            ("compute", "backward"),
            ("communication", "sync"),
        ]
        weights = [0.45, 0.3, 0.15, 0.1] if sign > 0 else [0.1, 0.15, 0.45, 0.3]
        rows = []
        for seed in self.seeds:
            seconds = [self._near(weight) for weight in weights]
            for (group, phase), spent in zip(shares, seconds, strict=True):
                numbers = {"seconds_per_step": spent, "share": spent / sum(seconds)}
                rows.append(leading(seed) | {"group": group, "phase": phase} | numbers)
        return rows

    def _traffic(self, sign: int, method: str, kinds: tuple[str, str]) -> list[dict]:
        sent = {"metis": 200 if sign > 0 else 900, "random": 1000}
        return [
            leading(seed, partitioner=partitioner, method=method)
            | {"kind": kind, "measured_bytes_per_epoch": self._near(size)}
            for seed in self.seeds
            for partitioner, size in sent.items()
            for kind in kinds
        ]

    def _partitioner_cuts_volume(self, sign: int) -> list[dict]:
        return self._traffic(sign, "fullgraph", ("activations", "gradients"))

    def _partitioner_cuts_fetches(self, sign: int) -> list[dict]:
        return self._traffic(sign, "minibatch", ("features", "requests"))

    def _volume_predicted(self, sign: int) -> list[dict]:
        rows = []
        for seed in self.seeds:
            for number, kind in enumerate(("activations", "gradients", "weights")):
                predicted = 1000 * (number + 1)
                # The contrary: a single byte too many, of one kind, with one seed.
                measured = predicted + (1 if sign < 0 and seed == 1 and number == 0 else 0)
                numbers = dict.fromkeys(("measured_bytes_per_epoch", "compared_bytes_per_epoch"), measured)
                numbers |= dict.fromkeys(("predicted_bytes_per_epoch", "declared_bytes_per_epoch"), predicted)
                rows.append(leading(seed, method="fullgraph") | {"kind": kind, "communication_volume": 77} | numbers)
        return rows

    def _scaling(self, sign: int, mode: str) -> list[dict]:
        efficiency = 0.9 if sign > 0 else 0.55
        rows = []
        for seed in self.seeds:
            found = self._near(efficiency)
            for ranks, value, crowded in ((1, 1.0, False), (2, found, False), (4, 0.3, True), (8, 0.1, True)):
                graph = "powerlaw" if mode == "strong" else f"powerlaw{ranks}"
                run = leading(seed, ranks=ranks, graph=graph, oversubscribed=crowded)
                rows.append(run | {"mode": mode, "experiment": mode, "efficiency": value, "speedup": value * ranks})
        return rows

    def _strong_scaling_efficiency(self, sign: int) -> list[dict]:
        return self._scaling(sign, "strong")

    def _weak_scaling_efficiency(self, sign: int) -> list[dict]:
        return self._scaling(sign, "weak")

    def _sync_is_waiting(self, sign: int) -> list[dict]:
        waits = (0.9, 0.5) if sign > 0 else (0.4, 0.1)
        return [
            leading(seed)
            | {
                "rank": rank,
                "sync_s_per_step": 1.0,
                "sync_wait_s_per_step": self._near(waits[rank]),
                "compute_imbalance": 1.2,
            }
            for seed in self.seeds
            for rank in (0, 1)
        ]

    def _slow_links_dominate(self, sign: int) -> list[dict]:
        # Where the claim is false, one strategy is the exception, and faster links have the larger share.
        shares = {1000: (0.2, 0.1), 100: (0.9, 0.7)} if sign > 0 else {1000: (0.9, 0.8), 100: (0.9, 0.3)}
        return [
            leading(seed, method=method, hosts=2, link_mbit=rate)
            | {"epoch_s": 5.0, "profiled_step_s": 2.0, "exposed_s_per_step": self._near(2.0 * share)}
            for seed in self.seeds
            for rate, of_methods in ({None: (0.1, 0.1)} | shares).items()
            for method, share in zip(("fullgraph", "minibatch"), of_methods, strict=True)
        ]

    def _cache_catches_refetches(self, sign: int) -> list[dict]:
        # Where the claim is false, only the other policy or a larger cache would do, and the reverse.
        degree, others = (0.7, (0.1, 0.2)) if sign > 0 else (0.3, (0.8, 0.9))
        rates = {("degree", 0.1): degree, ("degree", 0.2): others[0], ("accesses", 0.1): others[1]}
        return [
            leading(seed)
            | {"rank": rank, "policy": policy, "capacity_share": share, "capacity_nodes": 10, "accesses": 1000}
            | {"distinct": 400, "repeated_share": 0.6, "hits": int(self._near(1000 * rate)), "hit_rate": rate}
            for seed in self.seeds
            for rank in (0, 1)
            for (policy, share), rate in rates.items()
        ]

    def _preparing(self, sign: int, strategy: str) -> list[dict]:
        # Where the claim is false, only a phase is shorter, and the sum is not.
        spent = {"minibatch": (4.0, 6.0), strategy: (4.0, 2.0) if sign > 0 else (8.0, 1.0)}
        rows = []
        for seed, (name, (sample, fetch)) in product(self.seeds, spent.items()):
            seconds = {"sample": self._near(sample), "fetch": self._near(fetch), "gather": 0.0, "copy": 0.0}
            numbers = {f"{phase}_s_per_step": value for phase, value in seconds.items()}
            numbers |= {"preparation_s_per_step": sum(seconds.values()), "epoch_s": 1.0, "cache_bytes": 0}
            rows.append(leading(seed, method=name) | {"method": "minibatch"} | numbers)
        return rows

    def _cache_spares_preparation(self, sign: int) -> list[dict]:
        return self._preparing(sign, "minibatch-cache")

    def _prefetching_hides_preparation(self, sign: int) -> list[dict]:
        return self._preparing(sign, "minibatch-prefetch")

    def _beside_baseline(self, methods: tuple[str, ...], **of_methods: Any) -> list[dict]:
        """Rows of `strategies`: those of the baseline, beside itself, and behind them those of other methods."""
        rows = []
        for seed in self.seeds:
            own = leading(seed, method="fullgraph")
            same = dict.fromkeys(("gain", "exposed_ratio", "memory_ratio"), 1.0)
            lost = dict.fromkeys(("accuracy_lost", "accuracy_lost_in_time"), 0.0)
            rows.append(own | {"baseline_run": own["run"], "exposed_share": 0.4} | same | lost)
            for method in methods:
                numbers = {name: self._near(values[method]) for name, values in of_methods.items()}
                rows.append(leading(seed, method=method) | {"baseline_run": own["run"]} | numbers)
        return rows

    def _strategies_hide_communication(self, sign: int) -> list[dict]:
        # Where the claim is false, one strategy is the exception, and by its share of a step it would not be.
        ratios = {"bns": 0.2, "pipegcn": 0.1 if sign > 0 else 0.8}
        return self._beside_baseline(
            ("bns", "pipegcn"), exposed_ratio=ratios, exposed_share={"bns": 0.1, "pipegcn": 0.1}
        )

    def _buckets_hide_synchronisation(self, sign: int) -> list[dict]:
        # Where the claim is false, one size is the exception; a policy that it is not about would be another way.
        policies = {
            "large": ("buckets", 0.6),
            "small": ("buckets", 0.7 if sign > 0 else 1.5),
            "merged": ("merged", 0.5),
        }
        rows = []
        for seed in self.seeds:
            own = leading(seed) | {"policy": "dense", "sync_ratio": 1.0}
            rows.append(own | {"baseline_run": own["run"]})
            for strategy, (policy, ratio) in policies.items():
                row = leading(seed, strategy=strategy) | {"policy": policy, "baseline_run": own["run"]}
                rows.append(row | {"sync_ratio": self._near(ratio), "epoch_ratio": 1.0, "sync_share": 0.1})
        return rows

    def _staleness_costs_no_accuracy(self, sign: int) -> list[dict]:
        lost = {"pipeline": -0.002, "pipegcn": 0.004 if sign > 0 else 0.03}
        in_time = {"pipeline": 0.2, "pipegcn": -0.3 * sign}
        return self._beside_baseline(("pipeline", "pipegcn"), accuracy_lost=lost, accuracy_lost_in_time=in_time)

    def _saved_time_is_accuracy(self, sign: int) -> list[dict]:
        in_time = {"bns": -0.1, "broadcast": 0.002 if sign > 0 else 0.2}
        lost = {"bns": 0.05, "broadcast": 0.0}
        return self._beside_baseline(("bns", "broadcast"), accuracy_lost=lost, accuracy_lost_in_time=in_time)

    def _sampling_saves_memory(self, sign: int) -> list[dict]:
        ratios = {"pipegcn": 1.0 + 0.5 * sign, "bns": 0.6 if sign > 0 else 0.95}
        return self._beside_baseline(("pipegcn", "bns"), memory_ratio=ratios)

    def _slow_ranks(self, gains: dict[int, float], lost: dict[int, float]) -> list[dict]:
        """Rows of `slowdown`: an all-reduce, and gossip beside it, by how much one rank is slower."""
        rows = []
        for seed in self.seeds:
            for factor, gain in gains.items():
                slow = {"condition": None if factor == 1 else f"slow-{factor}x"}
                numbers = {"slow_factor": factor, "idle_share": self._near(0.1), "speed_kept": self._near(1 / factor)}
                own = leading(seed, method="clustergcn", **slow)
                own["run"] += f".c-{slow['condition']}"
                rows.append(own | numbers | {"baseline_run": own["run"], "gain": 1.0, "accuracy_lost": 0.0})
                row = leading(seed, method="gossip", **slow)
                row["run"] += f".c-{slow['condition']}"
                compared = {"gain": self._near(gain), "accuracy_lost": self._near(lost[factor])}
                rows.append(row | numbers | {"baseline_run": own["run"]} | compared)
        return rows

    def _gossip_outruns_slow_ranks(self, sign: int) -> list[dict]:
        # Where the claim is false, only at another slowdown would it do, and the reverse.
        gains = {1: 0.9, 2: 1.1, 4: 2.2} if sign > 0 else {1: 2.0, 2: 2.2, 4: 1.1}
        return self._slow_ranks(gains, {1: 0.0, 2: 0.0, 4: 0.0})

    def _gossip_costs_no_accuracy(self, sign: int) -> list[dict]:
        return self._slow_ranks({1: 1.0, 4: 2.0}, {1: 0.001, 4: 0.004 if sign > 0 else 0.03})

    def _pipelines(self, shares: dict[int, float], gains: dict[int, float], num_layers: int = 8) -> list[dict]:
        """A pipeline of 2 stages by number of chunks: share of a step that is exposed, and gain."""
        rows = []
        for seed in self.seeds:
            for chunks, share in shares.items():
                numbers = {"stages": 2, "chunks": chunks, "num_layers": num_layers, "exposed_share": self._near(share)}
                numbers |= {"most_exposed_rank": 1, "most_exposed_share": self._near(1.1 * share)}
                row = leading(seed, strategy=f"pipeline-{chunks}-of-{num_layers}-layers") | {"method": "pipeline"}
                rows.append(row | {"baseline_run": "plain", "gain": self._near(gains[chunks])} | numbers)
        return rows

    def _chunks_fill_the_pipeline(self, sign: int) -> list[dict]:
        # Where the claim is false, only more chunks would do; where it is true, fewer would not.
        shares = {2: 0.8, 8: 0.3} if sign > 0 else {16: 0.2, 8: 0.7}
        return self._pipelines(shares, dict.fromkeys(shares, 1.0))

    def _pipelining_wins_when_deep(self, sign: int) -> list[dict]:
        shallow = self._pipelines({8: 0.5}, {8: 0.5 if sign > 0 else 1.5}, num_layers=2)
        return shallow + self._pipelines({2: 0.5, 8: 0.5}, {2: 1.0 - 0.4 * sign, 8: 1.0 + 0.4 * sign})

    def _gradient_only(self, accuracies: dict[tuple[int, str], float]) -> list[dict]:
        """Runs of 16 epochs on 4 ranks, by period and correction: their accuracy."""
        rows = []
        for seed in self.seeds:
            for (period, correction), accuracy in accuracies.items():
                row = leading(seed, strategy=f"grappa-{period}-{correction}", ranks=4, num_parts=4)
                found = accuracy + self.random.uniform(-0.001, 0.001)
                numbers = {"period": period, "correction": correction, "epochs": 16, "turns": -(-16 // period)}
                rows.append(row | {"method": "grappa", "val_accuracy": found, "accuracy_lost": 0.7 - found} | numbers)
        return rows

    def _repartitioning_restores_accuracy(self, sign: int) -> list[dict]:
        # Where the claim is false, changing now and then would do, and the correction too.
        change = {1: 0.62 if sign > 0 else 0.6, 4: 0.65, 16: 0.6}
        corrected = {(period, "inverse"): 0.6 + 0.05 * (period == 1) * -sign for period in (1, 16)}
        return self._gradient_only(corrected | {(period, "none"): accuracy for period, accuracy in change.items()})

    def _coverage_correction_restores_accuracy(self, sign: int) -> list[dict]:
        # Where the claim is false, another correction would do.
        gained = {"none": 0.0, "shrinkage": 0.02 if sign > 0 else 0.0, "inverse": -0.02 * sign}
        accuracies = {(period, name): 0.6 + gain for period in (4, 16) for name, gain in gained.items()}
        return self._gradient_only(accuracies | {(1, "none"): 0.9})

    def _of_ranks(self, accuracies: dict[tuple[str, str, str], list[float]], shared: float = 1.0) -> list[dict]:
        """Runs on as many ranks as they have accuracies, by partitioner, method and sampler."""
        return [
            leading(seed, partitioner=partitioner, method=method, ranks=len(found), num_parts=len(found))
            | {"rank": rank, "sampler": sampler, "shared": shared, "label_entropy_bits": rank + len(partitioner) / 10}
            | {"test_accuracy": self._near(accuracy), "run_test_accuracy": self.random.uniform()}
            for seed in self.seeds
            for (partitioner, method, sampler), found in accuracies.items()
            for rank, accuracy in enumerate(found)
        ]

    def _entropy_lowers_accuracy(self, sign: int) -> list[dict]:
        # Entropy rises with the rank. Where the claim is false, it would hold for another method.
        falling, rising = [0.8, 0.6, 0.4, 0.2], [0.2, 0.4, 0.6, 0.8]
        found = (falling, rising) if sign > 0 else (rising, falling)
        plain = {(partitioner, "minibatch", "all"): found[0] for partitioner in ("metis", "random")}
        return self._of_ranks({("metis", "eat", "balanced"): found[1]} | plain)

    def _balancing_lifts_the_worst_rank(self, sign: int) -> list[dict]:
        # Where the claim is false, the best rank is lifted, and the second phase would lift the worst.
        balanced = [0.5, 0.8] if sign > 0 else [0.36, 0.99]
        rows = {("metis", "minibatch", "all"): [0.4, 0.8], ("metis", "eat", "balanced"): balanced}
        personal = self._of_ranks({("random", "eat", "balanced"): [0.9, 0.9]}, shared=0.34)
        return personal + self._of_ranks(rows)

    def _colocation_sends_least(self, sign: int) -> list[dict]:
        # Where the claim is false, one other placement alone sends less.
        sent = {"placed": 1e6, "apart": 3e6, "samplers-apart": 1e6 * (1 + 0.5 * sign)}
        return [
            leading(seed, method="placed")
            | {"strategy": name, "run": f"{name}-{seed}", "together": name == "placed"}
            | {"sender": sender, "receiver": 1 - sender, "measured_bytes_per_epoch": self._near(size / 2)}
            for seed in self.seeds
            for name, size in sent.items()
            for sender in range(2)
        ]

    def _minibatch_reaches_accuracy_sooner(self, sign: int) -> list[dict]:
        epoch_s = {"minibatch": 1.0, "fullgraph": 3.0 if sign > 0 else 0.3}
        return [
            leading(seed, method=method)
            | {"epoch": epoch, "train_s": self._near(seconds) + epoch * seconds, "val_accuracy": 0.8 - 0.4 * 0.5**epoch}
            for seed in self.seeds
            for method, seconds in epoch_s.items()
            for epoch in range(8)
        ]

    def _unequal_batches_use_fast_ranks(self, sign: int) -> list[dict]:
        # With two ranks, 150 of the undisturbed 200 could be trained, and equal batches train 100 of them.
        won = {"balanced": 140, "mixed": 145} if sign > 0 else {"balanced": 140, "mixed": 110}
        rates = [("minibatch", None, 200), ("minibatch", "slow-2x", 100), ("balanced", None, 190)]
        rates += [(method, "slow-2x", rate) for method, rate in won.items()]
        return [
            leading(seed, method=method, condition=condition) | {"train_nodes_per_s": self._near(rate)}
            for seed in self.seeds
            for method, condition, rate in rates
        ]


@pytest.fixture
def planted() -> Planted:
    return Planted()


@pytest.fixture
def verdict_on() -> Callable[..., Judgement]:
    """Judges a table by an observation, with the observation's own defaults for options not given."""

    def judged(observation: str, table: pd.DataFrame, options: Mapping[str, Any] | None = None) -> Judgement:
        plugin = OBSERVATIONS[observation]
        judgement, _, _ = decide(
            plugin.load(), table, complete_options(options or {}, plugin.constants["OPTIONS"], observation)
        )
        return judgement

    return judged

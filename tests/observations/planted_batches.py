"""Planted tables of strategies by batches, policies of the gradients, slow ranks and placement."""

from itertools import product

from planted_rows import Rows, leading


class OfBatches(Rows):
    """See the module."""

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

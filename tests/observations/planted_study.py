"""Planted tables of the plain strategies, partitioners, links and ranks."""

from planted_rows import Rows, leading


class OfStudy(Rows):
    """See the module."""

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

    def _minibatch_reaches_accuracy_sooner(self, sign: int) -> list[dict]:
        epoch_s = {"minibatch": 1.0, "fullgraph": 3.0 if sign > 0 else 0.3}
        return [
            leading(seed, method=method)
            | {"epoch": epoch, "train_s": self._near(seconds) + epoch * seconds, "val_accuracy": 0.8 - 0.4 * 0.5**epoch}
            for seed in self.seeds
            for method, seconds in epoch_s.items()
            for epoch in range(8)
        ]

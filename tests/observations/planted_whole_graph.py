"""Planted tables of the literature's strategies on the whole graph."""

from typing import Any

from planted_rows import Rows, leading


class OfWholeGraph(Rows):
    """See the module."""

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

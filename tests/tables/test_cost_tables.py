"""Study tables of what steps are made of: operators, collectives, queueing."""

import pandas as pd
import pytest

from anatomy.tables import queueing

SECOND_NS = 1_000_000_000
FACTS = {"trace_kind": "cuda-nccl", "world_size": 2, "num_steps": 2}
STEPS = pd.DataFrame({"rank": [0, 0, 1, 1], "step": [3, 4, 3, 4]})


def tabulated(results, built, table, **trace_tables):
    results.traces("mine", facts=FACTS, steps=STEPS, **trace_tables)
    return built(table, results.study("mine"))


class TestOperators:
    def test_shares_of_each_device_sum_to_one(self, results, built):
        rows = [
            ("cuda", "dense", "sgemm", 2, 4),
            ("cuda", "dense", "hgemm", 1, 1),
            ("cuda", "unclassified", "mystery", 1, 3),
            ("cpu", "copy", "aten::copy_", 4, 2),
        ]
        operators = pd.DataFrame(rows, columns=["device", "category", "name", "calls", "self_ns"])
        operators["self_ns"] *= SECOND_NS
        table = tabulated(results, built, "operators", operators=operators).set_index(["device", "category"])
        assert table["share"].to_dict() == {
            ("cpu", "copy"): 1,
            ("cuda", "dense"): (4 + 1) / 8,
            ("cuda", "unclassified"): 3 / 8,
        }
        dense = table.loc["cuda", "dense"]
        assert dense["self_s_per_step"] == (4 + 1) / 4  # two ranks with two steps
        assert dense["calls_per_step"] == 3 / 4
        assert (dense["largest"], dense["largest_share"]) == ("sgemm", 4 / 5)

    def test_no_operators_is_a_row_without_numbers(self, results, built):
        columns = ["device", "category", "name", "calls", "self_ns"]
        table = tabulated(results, built, "operators", operators=pd.DataFrame(columns=columns))
        assert table["status"].tolist() == ["completed"]
        assert table["share"].isna().all()


COLLECTIVES = {
    "phase": "sync",
    "kind": "all_reduce",
    "group": "0",
    "group_size": 2,
    "rank": 0,
    "bytes": 100,
    "wait_ns": 0,
    "transfer_ns": SECOND_NS,
    "matched": True,
    "bus_bandwidth": 100.0,
}


def collectives(*rows):
    """Rows that differ from COLLECTIVES in what is given; None is missing."""
    frame = pd.DataFrame([COLLECTIVES | row for row in rows], columns=list(COLLECTIVES))
    counted = dict.fromkeys(("group_size", "bytes", "wait_ns", "transfer_ns"), "Int64")
    return frame.astype(counted | {"matched": "bool", "bus_bandwidth": "float64"})


class TestCollectives:
    def test_a_kind_of_a_group_in_a_phase_is_a_row(self, results, built):
        late = {"rank": 1, "wait_ns": 3 * SECOND_NS, "bus_bandwidth": 300.0}
        rows = collectives({}, late, {}, {"rank": 1}, {"phase": "fetch", "kind": "all_to_all", "bytes": 7})
        table = tabulated(results, built, "collectives", collectives=rows).set_index("phase")
        assert table["calls_per_step"].to_dict() == {"fetch": 1 / 1 / 2, "sync": 4 / 2 / 2}  # calls / ranks / steps
        assert table["bytes_per_call"].to_dict() == {"fetch": 7, "sync": 100}
        sync = table.loc["sync"]
        assert sync["wait_s_per_call"] == (0 + 3 + 0 + 0) / 4
        assert sync["transfer_s_per_call"] == 1
        assert sync["wait_share"] == 3 / (3 + 4)
        assert sync["bus_bandwidth_bytes_per_s"] == 100  # median of 100, 100, 100, 300
        assert sync["unmatched_share"] == 0
        assert sync["group_size"] == 2

    def test_what_is_not_matched_or_not_known_is_missing(self, results, built):
        alone = {"matched": False, "wait_ns": None, "transfer_ns": None, "bytes": None, "bus_bandwidth": None}
        table = tabulated(results, built, "collectives", collectives=collectives(alone, alone | {"group_size": None}))
        row = table.iloc[0]
        assert row["unmatched_share"] == 1
        missing = [
            "bytes_per_call",
            "wait_s_per_call",
            "transfer_s_per_call",
            "wait_share",
            "bus_bandwidth_bytes_per_s",
        ]
        assert row[missing].isna().all()

    def test_waiting_is_that_of_matched_calls(self, results, built):
        rows = collectives({"wait_ns": SECOND_NS}, {"matched": False, "wait_ns": None, "transfer_ns": None})
        row = tabulated(results, built, "collectives", collectives=rows).iloc[0]
        assert (row["wait_s_per_call"], row["wait_share"], row["unmatched_share"]) == (1, 1 / 2, 1 / 2)

    def test_no_communication_is_a_row_without_numbers(self, results, built):
        table = tabulated(results, built, "collectives", collectives=collectives())
        assert table["status"].tolist() == ["completed"]
        assert table[["kind", "calls_per_step", "wait_share"]].isna().all(axis=None)


class TestQueueing:
    COLUMNS = ("rank", "kernels", "kernel_ns", "short_kernels", "launched", "delay_mean_ns", "delay_p95_ns")
    CAUSES = tuple(f"{cause}_ns" for cause in queueing.CAUSES if cause != "not_computing")

    def idle(self, *rows):
        """The trace table from nanoseconds by cause."""
        frame = pd.DataFrame(rows, columns=["rank", *self.CAUSES], dtype="int64")
        return frame.assign(not_computing_ns=frame[list(self.CAUSES)].sum(axis=1))

    def test_means_weigh_every_kernel_alike(self, results, built):
        streams = pd.DataFrame(
            [(0, 3, 30_000, 2, 3, 1000, 4000), (0, 1, 50_000, 0, 1, 9000, 9000), (1, 2, 8_000, 2, 0, None, None)],
            columns=self.COLUMNS,
        ).astype("Int64")
        busy = dict.fromkeys(self.CAUSES, 0)
        first, second = (
            {"communication_bound_ns": SECOND_NS, "host_bound_ns": 2 * SECOND_NS},
            {"copy_bound_ns": SECOND_NS},
        )
        idle = self.idle(*({"rank": rank} | busy | spent for rank, spent in ((0, first), (0, second), (1, {}))))
        table = tabulated(results, built, "queueing", queueing=streams, idle=idle).set_index("rank")
        first, second = table.loc[0], table.loc[1]
        assert first["kernels_per_step"] == (3 + 1) / 2
        assert first["kernel_s"] == pytest.approx((30_000 + 50_000) / 4 / SECOND_NS)
        assert first["short_kernel_share"] == 2 / 4
        assert first["delay_s"] == pytest.approx((3 * 1000 + 1 * 9000) / 4 / SECOND_NS)
        assert first["delay_p95_s"] == pytest.approx(9000 / SECOND_NS)
        assert second[["delay_s", "delay_p95_s"]].isna().all(), "no launch is known"
        spent = first[[f"{cause}_s_per_step" for cause in queueing.CAUSES]]
        assert spent[spent > 0].to_dict() == {
            "not_computing_s_per_step": (1 + 2 + 1) / 2,
            "communication_bound_s_per_step": 1 / 2,
            "copy_bound_s_per_step": 1 / 2,
            "host_bound_s_per_step": 2 / 2,
        }

    def test_traces_without_a_gpu_say_so(self, results, built):
        empty = pd.DataFrame(columns=self.COLUMNS).astype("Int64")
        table = tabulated(results, built, "queueing", queueing=empty, idle=self.idle())
        assert table["status"].tolist() == ["no GPU"]
        assert table.drop(columns=["run", "ranks", "platform", "status"]).isna().all(axis=None)

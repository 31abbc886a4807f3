"""Study tables made from trace tables: phases and imbalance."""

import pandas as pd
import pytest

from anatomy.errors import StudyError

SECOND_NS = 1_000_000_000


def phases(*rows: tuple) -> pd.DataFrame:
    """The trace table from (rank, phase, {group: seconds})."""
    columns = ("preparation_ns", "compute_ns", "comm_ns", "idle_ns", "other_ns")
    frame = pd.DataFrame(
        [dict.fromkeys(columns, 0) | {"rank": rank, "phase": phase} | spent for rank, phase, spent in rows]
    )
    frame[list(columns)] *= SECOND_NS
    # Without any communication the trace tables say that it is missing, not 0.
    return frame.assign(step=1, comm_ns=frame["comm_ns"].astype("Int64").replace(0, pd.NA))


def steps(**columns) -> pd.DataFrame:
    return pd.DataFrame({"rank": [0, 1], "step": [1, 1], **columns})


@pytest.fixture
def run(results):
    return results.run(epochs=[{"rank": rank, "train_nodes": 10 * (1 + rank)} for rank in (0, 1)])


class TestPhases:
    def test_rows_are_disjoint_and_add_up_to_the_step(self, results, built, run):
        spent = phases(
            (0, "fetch", {"preparation_ns": 1, "comm_ns": 2}),
            (0, "backward", {"compute_ns": 5}),
            (1, "backward", {"compute_ns": 3}),
            (1, "other", {"other_ns": 1}),
        )
        results.traces(run, steps=steps(wall_ns=[8 * SECOND_NS, 4 * SECOND_NS]), phases=spent)
        table = built("phases", results.study(run)).set_index(["group", "phase"])
        assert table["seconds_per_step"].to_dict() == {
            ("communication", "fetch"): 2 / 2,  # two (rank, step) pairs
            ("compute", "backward"): (5 + 3) / 2,
            ("other", "other"): 1 / 2,
            ("preparation", "fetch"): 1 / 2,
        }
        assert table["share"].sum() == pytest.approx(1)
        assert table.loc[("compute", "backward"), "share"] == pytest.approx(8 / 12)

    def test_phases_that_do_not_fill_the_steps_are_refused(self, results, built, run):
        results.traces(run, steps=steps(wall_ns=[SECOND_NS, SECOND_NS]), phases=phases((0, "loss", {"compute_ns": 1})))
        with pytest.raises(StudyError, match=r"phases add up to 1000000000 ns, steps to 2000000000 ns"):
            built("phases", results.study(run))

    def test_a_run_that_was_not_profiled_is_a_row_that_says_so(self, results, built, run):
        assert built("phases", results.study(run))["status"].tolist() == ["not profiled"]

    def test_a_trace_without_steps_counts_as_not_profiled(self, results, built, run):
        results.traces(run)
        assert built("phases", results.study(run))["status"].tolist() == ["not profiled"]

    def test_a_run_that_failed_under_the_profiler_says_why(self, results, built, run):
        results.traces(run, status="out of memory")
        assert built("phases", results.study(run))["status"].tolist() == ["out of memory"]


class TestImbalance:
    def table(self, results, built, run, wait_ns):
        collectives = pd.DataFrame(
            {
                "rank": [0, 1, 0],
                "phase": ["sync", "sync", "fetch"],
                "start_ns": [0, 6, 0],
                "end_ns": [10, 10, 99],
                "wait_ns": pd.array([*wait_ns, 0], dtype="Int64"),
            }
        )
        for name in ("start_ns", "end_ns", "wait_ns"):
            collectives[name] *= SECOND_NS
        results.traces(run, steps=steps(compute_ns=[2 * SECOND_NS, 6 * SECOND_NS]), collectives=collectives)
        return built("imbalance", results.study(run)).set_index("rank")

    def test_waiting_of_each_rank(self, results, built, run):
        table = self.table(results, built, run, wait_ns=[6, 0])
        assert table["sync_s_per_step"].tolist() == [10, 4]
        assert table["wait_share"].tolist() == [6 / 10, 0]
        assert table["compute_s_per_step"].tolist() == [2, 6]
        assert table["compute_imbalance"].tolist() == [6 / 4, 6 / 4]
        assert table["train_nodes"].tolist() == [10, 20]

    def test_waiting_is_missing_where_a_collective_was_not_matched(self, results, built, run):
        table = self.table(results, built, run, wait_ns=[None, 0])
        assert table["wait_share"].isna().tolist() == [True, False]
        assert table["sync_s_per_step"].notna().all()

    def test_no_synchronisation_is_missing_and_not_0(self, results, built, run):
        columns = ["rank", "phase", "start_ns", "end_ns", "wait_ns"]
        empty = pd.DataFrame(columns=columns).astype("Int64").astype({"phase": "string"})
        results.traces(run, steps=steps(compute_ns=[1, 1]), collectives=empty)
        table = built("imbalance", results.study(run))
        assert table[["sync_s_per_step", "sync_wait_s_per_step", "wait_share"]].isna().all(axis=None)

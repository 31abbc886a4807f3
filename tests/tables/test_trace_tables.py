"""Study tables made from trace tables: phases and imbalance, of runs and of traces recorded elsewhere."""

import pandas as pd
import pytest

from anatomy.errors import StudyError
from anatomy.tables.common.store import machines_of, tabulate

SECOND_NS = 1_000_000_000


RECORDED = {"trace_kind": "cuda-nccl", "ranks": [0, 1], "world_size": 4, "num_steps": 1}
"""What the manifest says of a job of four ranks, two of which left traces."""


def phases(*rows: tuple) -> pd.DataFrame:
    """The trace table from (rank, phase, {group: seconds}); nobody waits."""
    columns = ("preparation_ns", "compute_ns", "comm_ns", "copy_ns", "idle_ns", "other_ns")
    frame = pd.DataFrame(
        [dict.fromkeys(columns, 0) | {"rank": rank, "phase": phase} | spent for rank, phase, spent in rows]
    )
    frame[list(columns)] *= SECOND_NS
    # Without any communication the trace tables say that it is missing, not 0.
    comm_ns = frame["comm_ns"].astype("Int64").replace(0, pd.NA)
    return frame.assign(step=1, comm_ns=comm_ns, comm_wait_ns=comm_ns.where(comm_ns.isna(), 0))


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
            (1, "other", {"other_ns": 1, "copy_ns": 3}),
        )
        results.traces(run, steps=steps(wall_ns=[8 * SECOND_NS, 7 * SECOND_NS]), phases=spent)
        table = built("phases", results.study(run)).set_index(["group", "phase"])
        assert table["seconds_per_step"].to_dict() == {
            ("communication", "fetch"): 2 / 2,  # two (rank, step) pairs
            ("compute", "backward"): (5 + 3) / 2,
            ("copy", "other"): 3 / 2,
            ("other", "other"): 1 / 2,
            ("preparation", "fetch"): 1 / 2,
        }
        assert table["share"].sum() == pytest.approx(1)
        assert table.loc[("compute", "backward"), "share"] == pytest.approx(8 / 15)

    def test_waiting_is_told_where_all_of_a_phase_is_known(self, results, built, run):
        spent = phases(
            (0, "sync", {"comm_ns": 4}),
            (1, "sync", {"comm_ns": 1}),
            (0, "fetch", {"comm_ns": 2}),
            (1, "loss", {"compute_ns": 1}),
        )
        spent["comm_wait_ns"] = pd.array([3 * SECOND_NS, 0, None, None], dtype="Int64")
        results.traces(run, steps=steps(wall_ns=[6 * SECOND_NS, 2 * SECOND_NS]), phases=spent)
        table = built("phases", results.study(run)).set_index(["group", "phase"])["wait_share"]
        assert table["communication", "sync"] == 3 / (4 + 1)
        assert table.drop(("communication", "sync")).isna().all()

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
    def table(self, results, built, run, wait_ns, annotated=("loss", "sync"), **more):
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
        spent = phases(*((rank, phase, {"compute_ns": 1}) for rank in (0, 1) for phase in annotated))
        tables = {"phases": spent, "collectives": collectives} | more
        results.traces(run, steps=steps(compute_ns=[2 * SECOND_NS, 6 * SECOND_NS]), **tables)
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
        spent = phases((0, "loss", {"compute_ns": 1}))
        results.traces(run, steps=steps(compute_ns=[1, 1]), collectives=empty, phases=spent)
        table = built("imbalance", results.study(run))
        assert table[["sync_s_per_step", "sync_wait_s_per_step", "wait_share"]].isna().all(axis=None)

    def test_without_annotated_phases_every_collective_synchronises(self, results, built):
        table = self.table(results, built, "mine", wait_ns=[6, 0], annotated=("other",), facts=RECORDED)
        assert table["sync_s_per_step"].tolist() == [10 + 99, 4]
        assert table["wait_share"].tolist() == [6 / (10 + 99), 0]


class TestRecordedElsewhere:
    """Traces without a run: nothing is known but what they show."""

    def columns_of(self, table):
        return {name: None if pd.isna(value) else value for name, value in table.iloc[0].items()}

    def write(self, results, **facts):
        results.traces(
            "mine",
            facts=RECORDED | facts,
            steps=steps(wall_ns=[3 * SECOND_NS, SECOND_NS]),
            phases=phases((0, "other", {"compute_ns": 3}), (1, "other", {"idle_ns": 1})),
        )

    @pytest.mark.parametrize(
        ("kind", "platform"),
        [("cuda-nccl", "GPU and NCCL"), ("cuda", "GPU"), ("cpu-gloo", "CPU and Gloo"), ("cpu", "CPU")],
    )
    def test_they_say_what_they_are(self, results, built, kind, platform):
        self.write(results, trace_kind=kind)
        found = self.columns_of(built("phases", results.study("recorded:mine")))
        assert (found["run"], found["ranks"], found["platform"], found["status"]) == ("mine", 4, platform, "completed")
        unknown = ("graph", "partitioner", "strategy", "model", "seed", "oversubscribed")
        assert all(found[name] is None for name in unknown)

    def test_their_steps_are_split_like_those_of_runs(self, results, built):
        self.write(results)
        table = built("phases", results.study("mine")).set_index("group")
        assert table["share"].to_dict() == {"compute": 3 / 4, "idle": 1 / 4}

    def test_the_table_of_runs_keeps_them_without_what_was_never_timed(self, results, built):
        self.write(results)
        found = self.columns_of(built("runs", results.study("mine")))
        assert found["profiled_step_s"] == 3
        assert found["epoch_s"] is found["profiling_cost"] is None

    def test_they_were_timed_on_no_machine(self, results, run):
        self.write(results)
        (machine,) = machines_of(results.study(run, "mine").runs)
        assert machine["runs"] == [run]

    @pytest.mark.parametrize("table", ["scaling", "cache", "convergence", "volume", "partitions"])
    def test_tables_that_need_runs_say_so(self, results, tmp_path, table):
        self.write(results)
        with pytest.raises(StudyError, match="of mine there are traces alone, and this table needs runs; leave it out"):
            tabulate(table, results.study("mine"), {}, tmp_path / "tables")
        assert not (tmp_path / "tables").exists()

    def test_a_name_that_is_neither_a_run_nor_traces_is_said(self, results, built):
        with pytest.raises(StudyError, match=r"runs/nobody/.*: not found"):
            built("phases", results.study("nobody"))

"""The critical path across ranks: by hand, and against a simulator that runs each job again with an element shrunk."""

from collections.abc import Mapping

import pandas as pd
from hypothesis import given, settings
from simulated_jobs import (
    Played,
    Program,
    collectives,
    in_words,
    play,
    programs,
    shrunk,
    stretches,
    tables,
    tables_of,
)

from anatomy.traces.columns import concatenated
from anatomy.traces.job.critical_path import COLUMNS, critical_path

PATH = ["rank", "phase", "start_ns", "end_ns", "slack_to_next_ns"]


def path_of(by_rank: Mapping, *rows: tuple, offsets: Mapping[int, int] | None = None, **options) -> list[tuple]:
    """(rank, phase, start, end, slack) of each element."""
    path = in_words(critical_path(stretches(by_rank), collectives(*rows, **options), offsets or {}))
    return list(path[PATH].itertuples(index=False, name=None))


RANKS = {
    0: [(0, 500, "backward"), (500, 800, "sync"), (800, 850, "optimize")],
    1: [(0, 700, "backward"), (700, 780, "sync"), (780, 820, "optimize")],
}
"""Rank 1 arrives at 700 at an all-reduce that rank 0 has waited for since 500."""
REDUCE = (7, {0: (500, 800), 1: (700, 780)})


class TestByHand:
    def test_the_path_goes_from_the_straggler_through_the_collective_to_the_rank_that_ends_last(self):
        path = in_words(critical_path(stretches(RANKS), collectives(REDUCE), {}))
        assert path["element"].tolist() == ["phase", "transfer", "phase"]
        assert path["category"].tolist() == ["compute", "communication", "compute"]
        assert path["collective"].tolist() == [pd.NA, 7, pd.NA]
        assert path["place"].tolist() == [0, 1, 2]
        assert path["length_ns"].tolist() == [700 - 0, 800 - 700, 850 - 800]

    def test_slack_is_what_the_step_loses_without_the_element(self):
        assert path_of(RANKS, REDUCE) == [
            # Without it, rank 0 arrives last, at 500: 200 earlier.
            (1, "backward", 0, 700, 700 - 500),
            # Without it, ranks 0 and 1 go on at 700 and end at 750 and 740.
            (0, "sync", 700, 800, 850 - max(700 + 50, 700 + 40)),
            # Without it, rank 1 ends last, at 820.
            (0, "optimize", 800, 850, 850 - 820),
        ]

    def test_clocks_are_corrected(self):
        shifted = {0: RANKS[0], 1: [(start + 5000, end + 5000, phase) for start, end, phase in RANKS[1]]}
        reduce = (7, {0: (500, 800), 1: (5700, 5780)})
        assert path_of(shifted, reduce, offsets={1: 5000}) == path_of(RANKS, REDUCE)

    def test_one_rank_is_its_own_path_and_all_of_it_counts(self):
        spans = [(10, 30, "sample"), (30, 45, "backward"), (45, 46, "optimize")]
        assert path_of({3: spans}) == [(3, phase, start, end, end - start) for start, end, phase in spans]

    def test_without_collectives_it_is_the_rank_that_takes_longest_whatever_the_clocks_say(self):
        ranks = {0: [(1000, 1090, "backward"), (1090, 1100, "optimize")], 1: [(0, 130, "backward")]}
        # Rank 1 takes 130 and rank 0 100.
        assert path_of(ranks) == [(1, "backward", 0, 130, 130 - 100)]

    def test_a_collective_hidden_under_computation_is_no_join_and_slows_nobody(self):
        ranks = {0: [(0, 100, "backward")], 1: [(0, 80, "backward"), (80, 90, "optimize")]}
        hidden = (0, {0: (20, 70), 1: (60, 75)})
        assert path_of(ranks, hidden) == [(0, "backward", 0, 100, 100 - 90)]

    def test_the_arrival_of_a_rank_that_does_not_wait_counts_for_those_that_do(self):
        ranks = {0: [(0, 10, "backward"), (10, 70, "sync"), (70, 100, "optimize")], 1: [(0, 90, "backward")]}
        reduce = (0, {0: (10, 70), 1: (50, 70)})
        assert path_of(ranks, reduce) == [
            # Without its first 50, rank 0 goes on at 10 + 20, and ends at 60; but rank 1 itself ends at 40.
            (1, "backward", 0, 50, 100 - 60),
            (0, "sync", 50, 70, 100 - 90),
            (0, "optimize", 70, 100, 100 - 90),
        ]

    def test_communication_without_a_counterpart_is_work_of_the_rank(self):
        ranks = {0: [(0, 10, "backward"), (10, 60, "sync")], 1: [(0, 40, "backward")]}
        unmatched = (0, {0: (10, 60)})
        path = in_words(critical_path(stretches(ranks), collectives(unmatched, matched=False), {}))
        assert path["element"].tolist() == ["phase", "phase"]
        assert path["category"].tolist() == ["compute", "communication"]
        assert path["slack_to_next_ns"].tolist() == [10, 60 - 40]

    def test_ranks_that_begin_later_do_so_whatever_shrinks(self):
        ranks = {
            0: [(0, 20, "backward"), (20, 120, "sync")],
            1: [(60, 100, "backward"), (100, 120, "sync")],
        }
        reduce = (0, {0: (20, 120), 1: (100, 120)})
        assert path_of(ranks, reduce) == [
            # Rank 1 begins at 60: with nothing to do, it arrives then.
            (1, "backward", 60, 100, 100 - 60),
            (0, "sync", 100, 120, 20),
        ]

    def test_an_end_before_the_last_arrival_is_an_error_of_the_clocks(self):
        ranks = {0: [(0, 50, "backward"), (50, 60, "sync"), (60, 90, "optimize")], 1: [(0, 64, "backward")]}
        # By its clock, rank 1 arrives at 63, when rank 0 has already gone on at 60.
        path = path_of(ranks, (0, {0: (50, 60), 1: (63, 64)}))
        assert [element[:4] for element in path] == [
            (1, "backward", 0, 59),
            (0, "sync", 59, 60),
            (0, "optimize", 60, 90),
        ]

    def test_the_root_of_a_broadcast_waits_for_nobody_that_comes_later(self):
        ranks = {0: [(0, 10, "aggregate"), (10, 30, "sync"), (30, 100, "backward")], 1: [(0, 50, "aggregate")]}
        path = path_of(ranks, (0, {0: (10, 30), 1: (45, 50)}), kind="broadcast")
        assert [element[:2] for element in path] == [(0, "aggregate"), (0, "sync"), (0, "backward")]

    def test_an_arrival_while_waiting_for_another_collective_depends_on_what_went_before(self):
        ranks = {
            0: [(0, 10, "backward"), (10, 100, "sync"), (100, 110, "optimize")],
            1: [(0, 10, "backward"), (10, 90, "sync")],
        }
        first, second = (0, {0: (10, 60), 1: (10, 60)}), (1, {0: (40, 100), 1: (60, 90)})
        path = path_of(ranks, first, second)
        assert [element[:4] for element in path] == [
            (0, "backward", 0, 10),
            (1, "sync", 10, 60),
            (0, "sync", 60, 100),
            (0, "optimize", 100, 110),
        ]

    def test_steps_are_apart_and_neighbours_of_one_phase_are_one_element(self):
        one = stretches({0: [(0, 4, "backward"), (4, 9, "backward"), (9, 10, "optimize")]}, step=1)
        two = stretches({0: [(10, 12, "backward")]}, step=2)
        path = in_words(critical_path(concatenated([two, one]), collectives(), {}))
        assert path[["step", "place", "start_ns", "end_ns"]].to_numpy().tolist() == [
            [1, 0, 0, 9],
            [1, 1, 9, 10],
            [2, 0, 10, 12],
        ]

    def test_a_phase_in_small_pieces_is_one_element_named_by_what_fills_it(self):
        ranks = {
            0: [(0, 10, "backward"), (10, 12, "launch backward"), (12, 30, "backward"), (30, 33, "optimize")],
            1: [(0, 20, "backward")],
        }
        path = in_words(critical_path(stretches(ranks), collectives(), {}))
        assert path["category"].tolist() == ["compute", "compute"]
        # Rank 1 takes 20, so 13 of the 33 of rank 0 can go.
        assert path[["length_ns", "slack_to_next_ns"]].to_numpy().tolist() == [[30, 13], [3, 3]]

    def test_of_categories_that_fill_an_element_equally_the_first_of_the_list_counts(self):
        ranks = {0: [(0, 10, "launch backward"), (10, 20, "backward")]}
        path = in_words(critical_path(stretches(ranks), collectives(), {}))
        assert path["category"].tolist() == ["compute"]

    def test_nothing_is_an_empty_table(self):
        path = critical_path(stretches({}), collectives(), {})
        assert {name: (column.dtype, len(column)) for name, column in path.items()} == {
            name: (dtype, 0) for name, dtype in COLUMNS.items()
        }


@given(programs())
@settings(max_examples=80)
def test_slack_is_what_running_the_job_again_with_the_element_shrunk_shows(program):
    played = play(program)
    path = in_words(critical_path(*tables_of(played), {}))
    check_chain(path, played.end)
    for _, element in path.iterrows():
        check_slack(program, played, element, element["slack_to_next_ns"])


def check_slack(program: Program, played: Played, element: pd.Series, slack: int) -> None:
    """The job gets faster by what the element loses, up to its slack, and by nothing beyond."""
    length = element["end_ns"] - element["start_ns"]
    for by in {1, slack // 2, slack, slack + 1, length} - {0}:
        if by <= length:
            again = play(shrunk(program, played, element, by))
            assert played.end - again.end == min(by, slack), (element.to_dict(), by)


def check_chain(path: pd.DataFrame, end: int | None = None) -> None:
    """Elements follow one another without gap, shrink by no more than they last, and hop only at transfers."""
    assert path["place"].tolist() == list(range(len(path)))
    assert (path["end_ns"] - path["start_ns"] == path["length_ns"]).all()
    assert (path["length_ns"] > 0).all()
    assert path["start_ns"].tolist()[1:] == path["end_ns"].tolist()[:-1]
    assert path["slack_to_next_ns"].between(0, path["length_ns"]).all()
    hops = path["rank"].diff().fillna(0) != 0
    assert path.loc[hops, "element"].eq("transfer").all()
    if end is not None:
        assert path["end_ns"].iloc[-1] == end


@given(tables())
@settings(max_examples=80)
def test_a_path_is_found_through_whatever_clocks_and_matches_say(given_tables):
    spans, rows, offsets = given_tables
    path = in_words(critical_path(spans, rows, offsets))
    check_chain(path)
    spans = pd.DataFrame(spans)
    ends = spans["end_ns"] - spans["rank"].map(offsets)
    if "transfer" in set(path["element"]):
        assert path["end_ns"].iloc[-1] == ends.max()
    if len(rows["rank"]) == 0:
        by_rank = spans.groupby("rank")
        assert path["length_ns"].sum() == (by_rank["end_ns"].max() - by_rank["start_ns"].min()).max()

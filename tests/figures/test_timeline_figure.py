"""The figure of one step: what is drawn where, of which seed, and that thousands of intervals stay few artists."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch

from anatomy.figures import FIGURES, _style

ONE = {"partitioners": ("metis",), "strategies": ("minibatch",)}


def drawn_from(table: pd.DataFrame):
    with _style.applied():
        return FIGURES["timeline"].load().draw(table)


def boxes_of(axes) -> list[tuple[float, float, float]]:
    """(left, right, middle) of every segment that is drawn."""
    found = []
    for patch in axes.patches:
        if isinstance(patch, PathPatch):
            corners = patch.get_path().vertices.reshape(-1, 5, 2)
            low, high = corners.min(axis=1), corners.max(axis=1)
            found += list(zip(low[:, 0], high[:, 0], (low[:, 1] + high[:, 1]) / 2, strict=True))
    return sorted(found)


def path_of(axes) -> Line2D:
    (line,) = (line for line in axes.lines if line.get_label() == "_path")
    return line


def words_of(figure) -> str:
    heads = [axes.get_title(loc="left") for axes in figure.axes]
    return " ".join([*heads, *(text.get_text() for text in figure.texts)]).replace("\n", " ")


def test_segments_lie_on_the_row_of_their_rank_where_the_csv_says(make_table):
    figure, drawn = drawn_from(make_table("timeline", ranks=(3,), seeds=(0,), **ONE))
    intervals = drawn[drawn["mark"] == "interval"]
    expected = zip(intervals["start"], intervals["start"] + intervals["value"], intervals["rank"], strict=True)
    np.testing.assert_allclose(boxes_of(figure.axes[0]), sorted(expected))


def test_times_are_milliseconds(make_table):
    table = make_table("timeline", seeds=(0,), **ONE)
    _, drawn = drawn_from(table)
    np.testing.assert_allclose(sorted(drawn["value"]), sorted(1000 * table["length_s"].astype(float)))


def test_the_path_goes_through_the_rows_of_its_ranks_and_hops_at_the_collective(make_table):
    table = make_table("timeline", ranks=(3,), seeds=(0,), **ONE)
    figure, drawn = drawn_from(table)
    path = drawn[drawn["mark"] == "path"]
    line = path_of(figure.axes[0])
    np.testing.assert_allclose(line.get_xdata()[::2], path["start"])
    np.testing.assert_allclose(line.get_xdata()[1::2], path["start"] + path["value"])
    np.testing.assert_allclose(line.get_ydata(), np.repeat(path["rank"].astype(float), 2))
    hops = path["rank"].astype(int).diff().fillna(0).ne(0)
    assert path.loc[hops, "phase"].tolist() == ["sync"]


def test_the_first_seed_that_completed_is_shown(make_table):
    table = make_table("timeline", failed=lambda run: "time limit" if run["seed"] == 0 else None, **ONE)
    figure, drawn = drawn_from(table)
    assert set(drawn.loc[drawn["mark"] != "failure", "seed"]) == {1}
    words = words_of(figure)
    assert "of its first seed; n = 1 seed." in words
    assert "Time limit (1 of 3 seeds)" in words


def test_the_head_says_platform_step_and_largest_margin(make_table):
    table = make_table("timeline", seeds=(0,), **ONE)
    figure, drawn = drawn_from(table)
    head = figure.axes[0].get_title(loc="left")
    assert "step 4 (powerlaw, CPU and Gloo" in head
    most = drawn.loc[drawn["slack"].idxmax()]
    assert f"largest margin: {most['phase']}" in head
    assert f"{most['slack']:.3g} of {most['value']:.3g} ms" in head


def test_the_head_says_that_a_whole_trace_is_shown(make_table):
    table = make_table("timeline", seeds=(0,), **ONE)
    figure, _ = drawn_from(table.assign(annotated=table["annotated"] & False))
    assert "the whole trace (powerlaw, CPU and Gloo" in figure.axes[0].get_title(loc="left")


def test_merged_intervals_are_said(make_table):
    table = make_table("timeline", seeds=(0,), **ONE)
    figure, _ = drawn_from(table.assign(merged=table["merged"] | True))
    assert "short intervals are merged" in words_of(figure)


def test_a_step_without_a_path_is_drawn(make_table):
    table = make_table("timeline", seeds=(0,), **ONE)
    figure, drawn = drawn_from(table[table["kind"] == "interval"])
    assert set(drawn["mark"]) == {"interval"}
    assert "margin" not in words_of(figure)


@pytest.fixture(scope="module")
def crowded() -> pd.DataFrame:
    """Forty ranks with 200 intervals each."""
    count = 200
    run = {"run": "mine", "platform": "GPU and NCCL", "ranks": 40, "status": "completed", "kind": "interval"}
    about = {"step": 1, "annotated": True, "merged": True, "graph": pd.NA, "seed": pd.NA}
    parts = []
    for rank in range(40):
        place = np.arange(count)
        cells = {"rank": rank, "place": place, "start_s": place * 1e-4, "length_s": 1e-4}
        names = {
            "category": np.where(place % 2, "idle", "compute"),
            "phase": np.where(place % 3, "backward", "combine"),
        }
        parts.append(pd.DataFrame(cells | names).assign(**run, **about))
    table = pd.concat(parts, ignore_index=True)
    return table.reindex(columns=list(FIGURES["timeline"].load().COLUMNS)).convert_dtypes()


def test_many_intervals_are_few_artists_and_many_ranks_a_readable_figure(crowded):
    figure, drawn = drawn_from(crowded)
    assert len(drawn) == 40 * 200
    axes = figure.axes[0]
    fills = drawn[["group", "phase"]].drop_duplicates()
    assert len([patch for patch in axes.patches if isinstance(patch, PathPatch)]) == len(fills)
    assert len(boxes_of(axes)) == len(drawn)
    assert figure.get_size_inches()[1] < 8
    named = [tick.get_text() for tick in axes.get_yticklabels() if tick.get_text()]
    assert named == [f"rank {rank}" for rank in range(0, 40, 2)]

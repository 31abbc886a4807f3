"""What every figure must keep: it draws what its CSV says, hides no failure, mixes no platforms, and can be read."""

from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from drawing import artists_of, drawn_with, mixed, texts_of, values_of
from matplotlib.lines import Line2D

from anatomy.figures import FIGURES, _style
from anatomy.tables import TABLES

FIGURE_NAMES = sorted(FIGURES)
OF_RUNS = [name for name in FIGURE_NAMES if name != "partitions"]
OF_SEEDS = [name for name in OF_RUNS if name != "timeline"]
"""Figures of means over seeds; the others show one run of each configuration."""
OF_TRACES = [
    name
    for name in FIGURE_NAMES
    if "traces" in TABLES[FIGURES[name].constants["TABLE"]].constants["INPUTS"]
    and name not in ("gains", "preparation", "throughput")
]
"""Figures that need traces only, and are drawn of traces that were recorded elsewhere as well; others need epochs."""
REFERENCES = {"line", "ideal", "target", "baseline", "band", "border", "failure", "loss"}
"""Artists that are no data: joined points, ideal, target and baseline lines, shading, a border, crosses for data."""
WHISKERED = {
    "phases": {"batch", "step"},
    "volume": {"measured"},
    "imbalance": {"compute", "total", "share"},
    "scaling": {"epoch time", "efficiency"},
    "slowdown": {"epoch time", "idle", "accuracy"},
    "bandwidth": {"epoch time", "exposed communication"},
    "cache": {"hit rate"},
    "convergence": set(),
    "partitions": set(),
    "strategies": {"epoch time", "exposed", "hidden", "sent", "memory", "accuracy", "lost by epochs", "lost by time"},
    "gains": {"measured"},
    "policies": {"synchronisation", "epoch time", "accuracy"},
    "memory": {"total"},
    "rank_accuracy": {"accuracy"},
    "gradient_only": {"lost"},
    "throughput": {"undisturbed", "slow-2x"},
    "preparation": {"total", "hits", "saved", "memory"},
}
ONLY_WHISKERS = {"batch", "total"}


@pytest.mark.parametrize("name", sorted(WHISKERED))
def test_artists_show_the_values_of_the_csv_and_nothing_else(name, make_table):
    table = make_table(name)
    figure, drawn = drawn_with(name, table)
    column = "measure" if name == "partitions" else "mark"
    artists = artists_of(figure)
    for mark, rows in drawn.groupby(column):
        if mark not in ONLY_WHISKERS | {"failure", "nothing"}:
            np.testing.assert_allclose(values_of(name, artists[mark]), sorted(rows["value"]), err_msg=mark)
        if mark in WHISKERED[name]:
            assert values_of(name, artists[f"{mark} range"]) == sorted([*rows["low"], *rows["high"]]), mark
    told = set(drawn[column]) - ONLY_WHISKERS | {f"{mark} range" for mark in WHISKERED[name]}
    assert set(artists) - told <= REFERENCES


@pytest.mark.parametrize("name", ["phases", "imbalance", "memory", "preparation"])
def test_bars_start_where_the_csv_says(name, make_table):
    figure, drawn = drawn_with(name, make_table(name))
    starts = [bar.get_x() for axes in figure.axes for bar in axes.patches]
    assert sorted(starts) == sorted(drawn["start"].dropna())


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("scaling", "ranks"),
        ("bandwidth", "x"),
        ("cache", "capacity_percent"),
        ("convergence", "train_s"),
        ("rank_accuracy", "entropy_bits"),
        ("gradient_only", "x"),
        ("slowdown", "slow_factor"),
    ],
)
def test_points_lie_where_the_csv_says(name, column, make_table):
    figure, drawn = drawn_with(name, make_table(name))
    for mark, rows in drawn.groupby("mark"):
        places = [x for line in artists_of(figure)[mark] for x in line.get_xdata()]
        assert sorted(places) == sorted(rows[column])


@pytest.mark.parametrize("name", OF_RUNS)
def test_runs_that_all_failed_are_said_at_their_place(name, make_table):
    table = make_table(name, failed=lambda run: "out of memory" if run["strategy"] == "minibatch" else None)
    figure, drawn = drawn_with(name, table)
    failed = drawn[drawn["mark"] == "failure"]
    assert len(failed) > 0
    assert set(failed["failure"]) == {"out of memory (3 of 3 seeds)"}
    assert "out of memory (3 of 3 seeds)" in texts_of(figure)


@pytest.mark.parametrize("name", OF_SEEDS)
def test_runs_of_which_one_failed_are_said_below(name, make_table):
    figure, drawn = drawn_with(name, make_table(name, failed=lambda run: "time limit" if run["seed"] == 1 else None))
    assert "Time limit (1 of 3 seeds)" in texts_of(figure)
    assert set(drawn.loc[drawn["mark"] != "failure", "n"].dropna()) <= {1, 2}
    assert "n = 2 seeds" in texts_of(figure)


@pytest.mark.parametrize("name", OF_SEEDS)
def test_n_is_stated(name, make_table):
    figure, _ = drawn_with(name, make_table(name, seeds=(0, 1, 2, 3)))
    assert "n = 4 seeds" in texts_of(figure)


@pytest.mark.parametrize("name", FIGURE_NAMES)
def test_an_empty_table_is_a_figure_that_says_so(name, make_table):
    figure, drawn = drawn_with(name, make_table(name).head(0))
    assert drawn.empty
    assert "no data: no " in texts_of(figure)


@pytest.mark.parametrize("name", OF_RUNS)
def test_a_table_of_failed_runs_is_drawn(name, make_table):
    figure, drawn = drawn_with(name, make_table(name, failed=lambda run: "out of memory"))
    assert set(drawn["mark"]) == {"failure"}
    assert "out of memory (3 of 3 seeds)" in texts_of(figure)


@pytest.mark.parametrize("name", OF_RUNS)
def test_platforms_share_no_panel(name, make_table):
    tables = [make_table(name, platform=platform) for platform in ("CPU and Gloo", "GPU and NCCL")]
    both = pd.concat([table.assign(run=table["run"] + platform) for table, platform in zip(tables, "cg", strict=True)])
    figure, drawn = drawn_with(name, both)
    alone = sum(drawn_with(name, table)[1]["panel"].nunique() for table in tables)
    assert drawn["panel"].nunique() == alone
    assert all(panel.count("CPU and Gloo") + panel.count("GPU and NCCL") == 1 for panel in drawn["panel"])
    for platform in ("CPU and Gloo", "GPU and NCCL"):
        assert platform in texts_of(figure)


@pytest.mark.parametrize("name", OF_TRACES)
def test_traces_recorded_elsewhere_have_their_platforms_panel_and_are_told_apart_by_name(
    name, make_table, make_recorded
):
    recorded = [
        make_recorded(name, "first"),
        make_recorded(name, "second"),
        make_recorded(name, "third", "CPU and Gloo"),
    ]
    figure, drawn = drawn_with(name, mixed(make_table(name), *recorded))
    assert set(drawn_with(name, make_table(name))[1]["panel"]) < set(drawn["panel"])
    elsewhere = drawn[drawn["panel"].str.startswith("Traces recorded elsewhere")]
    names = elsewhere.assign(run=elsewhere["label"].str.split(",").str[0]).groupby("panel")["run"].agg(set)
    assert names.to_dict() == {
        "Traces recorded elsewhere, CPU and Gloo: 2 ranks": {"third"},
        "Traces recorded elsewhere, GPU and NCCL: 2 ranks": {"first", "second"},
    }
    seeds = "n = 3 seeds" if name in OF_SEEDS else "n = 1 seed"
    assert f"{seeds}; n = 1 for traces recorded elsewhere." in texts_of(figure)


@pytest.mark.parametrize("name", OF_TRACES)
def test_traces_recorded_elsewhere_are_drawn_alone(name, make_recorded):
    figure, drawn = drawn_with(name, make_recorded(name, "mine"))
    assert set(drawn["panel"]) == {"Traces recorded elsewhere, GPU and NCCL: 2 ranks"}
    assert "seed" not in texts_of(figure).replace("highest seed", "").replace("each seed", "")
    figure, _ = drawn_with(name, make_recorded(name, "mine", status="not profiled"))
    assert "not profiled" in texts_of(figure)
    assert "of 1 seed" not in texts_of(figure)


@pytest.mark.parametrize("name", FIGURE_NAMES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"graphs": ("coauthor-cs", "tolokers"), "partitioners": ("metis", "random", "ldg", "hash")},
        {"partitioners": ("metis",), "ranks": (1,)},
    ],
)
def test_words_neither_overlap_nor_leave_the_figure(name, options, make_table):
    if name == "partitions" and options.get("ranks") == (1,):
        options = {**options, "ranks": (2,)}
    figure, _ = drawn_with(name, make_table(name, **options))
    with _style.applied():
        figure.draw_without_rendering()
        boxes = [(text.get_text(), text.get_window_extent()) for text in visible_texts(figure)]
    page = figure.bbox
    for words, box in boxes:
        assert box.x0 >= page.x0 - 1, f"{words!r} is cut off on the left"
        assert box.x1 <= page.x1 + 1, f"{words!r} is cut off on the right"
        assert box.y0 >= page.y0 - 1, f"{words!r} is cut off below"
        assert box.y1 <= page.y1 + 1, f"{words!r} is cut off above"
    for (words, box), (others, other) in combinations(boxes, 2):
        across = min(box.x1, other.x1) - max(box.x0, other.x0)
        upright = min(box.y1, other.y1) - max(box.y0, other.y0)
        assert across <= 1 or upright <= 1, f"{words!r} lies on {others!r}"


def visible_texts(figure) -> list:
    """Every text that a reader sees."""
    texts = [*figure.texts, *(text for legend in figure.legends for text in legend.get_texts())]
    for axes in figure.axes:
        if axes.axison:
            texts += [axes._left_title, axes.xaxis.label, axes.yaxis.label, *axes.texts]
            for axis in (axes.xaxis, axes.yaxis):
                texts += [tick.label1 for tick in axis._update_ticks() if tick.label1.get_visible()]
    return [text for text in texts if text.get_text().strip()]


@pytest.mark.parametrize("name", FIGURE_NAMES)
def test_every_axis_is_named(name, make_table):
    figure, _ = drawn_with(name, make_table(name))
    for axes in figure.axes:
        bottom = axes.get_subplotspec().is_last_row()
        assert axes.get_xlabel() or not bottom
        rows = [tick.get_text() for tick in axes.get_yticklabels()]
        named = (
            axes.get_ylabel()
            or not axes.get_subplotspec().is_first_col()
            or any(word.isalpha() for word in "".join(rows))
        )
        assert named


def test_no_two_names_look_alike():
    for number in range(1, 37):
        looks = [
            (look["color"], look["marker"], look["markerfacecolor"]) for look in _style.looks(range(number)).values()
        ]
        assert len(set(looks)) == number
        in_grey = [(marker, face == "white") for _, marker, face in looks]
        assert len(set(in_grey)) >= min(number, 12)


@pytest.mark.parametrize("length", [5, 20, 60])
def test_a_legend_has_the_columns_that_it_has_room_for(length):
    with _style.applied():
        figure, _ = _style.panel_grid("Title", 1)
        _style.finish(figure, "Note.", [Line2D([], [], label=f"{number} " + "m" * length) for number in range(7)], 3)
        figure.draw_without_rendering()
        (legend,) = figure.legends
        box = legend.get_window_extent()
        note = figure.texts[-1].get_window_extent()
    assert box.y0 >= note.y1 - 1, "legend and note lie on one another"
    assert box.x1 <= figure.bbox.x1 or length == 60
    assert legend._ncols == {5: 3, 20: 1, 60: 1}[length]


def test_many_curves_have_a_panel_each_and_the_others_in_grey(make_table):
    names = ("metis", "random", "ldg", "hash")
    table = make_table("convergence", partitioners=names, ranks=(2,))
    figure, drawn = drawn_with("convergence", table)
    labels = drawn["label"].nunique()
    assert labels == 8
    shown = [axes for axes in figure.axes if axes.axison]
    assert len(shown) == labels
    for axes, label in zip(shown, drawn.drop_duplicates("row").sort_values("row")["label"], strict=True):
        assert axes.get_title(loc="left").split("\n")[-1] == label
        others = [line for line in axes.lines if line.get_label() == "_line"]
        assert len(others) == labels - 1
        assert axes.get_xlim() == shown[0].get_xlim()
        assert axes.get_ylim() == shown[0].get_ylim()


def test_panels_of_many_curves_begin_a_row_each_under_their_own_head(make_table):
    """One of them has nothing but runs that failed."""
    table = make_table("convergence", partitioners=("metis", "random", "ldg", "hash"), ranks=(2,))
    lost = table.groupby("run").head(1).head(1)
    lost = lost.assign(run="lost", graph="a", status="time limit", train_s=np.nan, val_accuracy=np.nan, epoch=pd.NA)
    figure, drawn = drawn_with("convergence", mixed(table, lost))
    heads = [axes for axes in figure.axes if any(panel.split(":")[0] in texts(axes) for panel in set(drawn["panel"]))]
    assert len(heads) == drawn["panel"].nunique() == 2
    assert all(axes.get_subplotspec().is_first_col() for axes in heads)
    assert "time limit" in texts(heads[0])


def texts(axes) -> str:
    """The title of axes."""
    return axes.get_title(loc="left")

"""What every figure must keep: it draws what its CSV says, hides no failure, mixes no platforms, and can be read."""

from collections import defaultdict
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from anatomy.figures import FIGURES, _style
from anatomy.tables import TABLES

FIGURE_NAMES = sorted(FIGURES)
OF_RUNS = [name for name in FIGURE_NAMES if name != "partitions"]
OF_SEEDS = [name for name in OF_RUNS if name != "timeline"]
"""Figures of means over seeds; the others show one run of each configuration."""
OF_TRACES = [
    name
    for name in FIGURE_NAMES
    if "traces" in TABLES[FIGURES[name].constants["TABLE"]].constants["INPUTS"] and name != "gains"
]
"""Figures that need traces only, and are drawn of traces that were recorded elsewhere as well; gains need epochs."""
REFERENCES = {"line", "ideal", "target", "baseline", "band", "border", "failure"}
"""Artists that are no data: joined points, ideal, target and baseline lines, shading, a border, crosses for data."""
UPRIGHT = {"scaling", "bandwidth", "cache", "convergence"}
"""Figures whose values are heights; those of the others lie on the horizontal axis."""
WHISKERED = {
    "phases": {"batch", "step"},
    "volume": {"measured"},
    "imbalance": {"compute", "total", "share"},
    "scaling": {"epoch time", "efficiency"},
    "bandwidth": {"epoch time", "exposed communication"},
    "cache": {"hit rate"},
    "convergence": set(),
    "partitions": set(),
    "strategies": {"epoch time", "exposed", "hidden", "sent", "memory", "accuracy", "lost by epochs", "lost by time"},
    "gains": {"measured"},
    "memory": {"total"},
}
ONLY_WHISKERS = {"batch", "total"}


def drawn_with(name: str, table: pd.DataFrame, **options):
    """(figure, drawn frame) in the study's style."""
    with _style.applied():
        return FIGURES[name].load().draw(table, **options)


def artists_of(figure) -> dict[str, list]:
    """Data artists by what they show, without the underscore that keeps them out of legends."""
    found = defaultdict(list)
    for axes in figure.axes:
        for artist in [*(line for line in axes.lines if len(line.get_xdata())), *axes.patches]:
            found[artist.get_label().removeprefix("_")].append(artist)
    return found


def values_of(name: str, artists: list) -> list[float]:
    """Every value that artists show: lengths of bars, and positions of points along the value's axis."""
    values = []
    for artist in artists:
        if isinstance(artist, Rectangle):
            values.append(artist.get_width())
        else:
            assert isinstance(artist, Line2D)
            values += list(artist.get_ydata() if name in UPRIGHT else artist.get_xdata())
    return sorted(values)


def texts_of(figure) -> str:
    """All words in a figure."""
    words = [text.get_text() for text in figure.texts]
    for axes in figure.axes:
        words += [axes.get_title(loc="left"), *(text.get_text() for text in axes.texts)]
        words += [tick.get_text() for tick in axes.get_yticklabels()]
    return " ".join(words).replace("\n", " ")


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


@pytest.mark.parametrize("name", ["phases", "imbalance", "memory"])
def test_bars_start_where_the_csv_says(name, make_table):
    figure, drawn = drawn_with(name, make_table(name))
    starts = [bar.get_x() for axes in figure.axes for bar in axes.patches]
    assert sorted(starts) == sorted(drawn["start"].dropna())


@pytest.mark.parametrize(
    ("name", "column"),
    [("scaling", "ranks"), ("bandwidth", "x"), ("cache", "capacity_percent"), ("convergence", "train_s")],
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


def mixed(*tables: pd.DataFrame) -> pd.DataFrame:
    """Tables under one another, as a study with own runs and recorded traces has them."""
    return pd.concat(tables, ignore_index=True)


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


def test_points_with_more_ranks_than_cores_are_hollow(make_table):
    figure, drawn = drawn_with("scaling", make_table("scaling"))
    hollow = [
        x
        for mark in ("epoch time", "efficiency")
        for line in artists_of(figure)[mark]
        if line.get_markerfacecolor() == "white"
        for x in line.get_xdata()
    ]
    assert set(hollow) == {4}
    assert len(hollow) == drawn["oversubscribed"].sum()


def test_unshaped_links_stand_apart_at_the_right_end(make_table):
    figure, drawn = drawn_with("bandwidth", make_table("bandwidth"))
    unshaped = drawn[drawn["links"] == "unshaped"]
    assert unshaped["link_mbit"].isna().all()
    assert unshaped["x"].min() > drawn["link_mbit"].max() == 1000
    assert [tick.get_text() for tick in figure.axes[1].get_xticklabels()] == ["100", "500", "1000", "unshaped"]
    joined = [x for line in artists_of(figure)["line"] for x in line.get_xdata()]
    assert set(joined) == {100, 500, 1000}
    border = {x for line in artists_of(figure)["border"] for x in line.get_xdata()}
    assert all(1000 < x < unshaped["x"].min() for x in border)


def test_links_are_no_part_of_the_names_of_lines(make_table):
    _, drawn = drawn_with("bandwidth", make_table("bandwidth"))
    assert sorted(set(drawn["label"])) == ["fullgraph", "minibatch"]
    assert drawn["panel"].nunique() == 1


def test_runs_over_other_links_are_other_rows(make_table):
    """In any other figure, the links are what tells two configurations apart."""
    table = make_table("phases", partitioners=("metis",), strategies=("minibatch",)).assign(hosts=2)
    slow = table.assign(link_mbit=100, run=table["run"] + ".l100")
    _, drawn = drawn_with("phases", mixed(table, slow.astype(table.dtypes.to_dict())))
    assert set(drawn["label"]) == {"links of 100 Mbit/s", "unshaped links"}


def test_one_rank_begins_the_line_of_every_partitioner(make_table):
    _, drawn = drawn_with("scaling", make_table("scaling"))
    strong = drawn[drawn["panel"].str.contains("strong") & (drawn["mark"] == "epoch time")]
    assert sorted(strong.loc[strong["ranks"] == 1, "label"]) == sorted(strong.loc[strong["ranks"] == 2, "label"])
    assert not strong["label"].str.contains("single").any()


def test_weak_scaling_joins_graphs_that_grow_with_the_ranks(make_table):
    _, drawn = drawn_with("scaling", make_table("scaling", partitioners=("metis",), strategies=("minibatch",)))
    weak = drawn[drawn["panel"].str.contains("weak") & (drawn["mark"] == "efficiency")]
    assert weak["label"].nunique() == 1
    assert list(weak["ranks"]) == [1, 2, 4]


def test_bringing_the_batch_together_includes_the_communication_of_fetch(make_table):
    table = make_table("phases", partitioners=("metis",), strategies=("minibatch",), seeds=(0,))
    _, drawn = drawn_with("phases", table)
    shares = drawn[drawn["mark"] == "share"].set_index(["group", "phase"])["value"]
    expected = sum(shares["preparation", phase] for phase in ("sample", "fetch", "gather", "copy"))
    expected += shares["communication", "fetch"]
    assert drawn.loc[drawn["mark"] == "batch", "value"].item() == pytest.approx(expected)
    segments = drawn[drawn["mark"] == "share"]
    np.testing.assert_allclose(segments["start"].iloc[1:], segments["value"].cumsum().iloc[:-1])
    assert segments["value"].sum() == pytest.approx(100)


def test_copies_outside_of_preparation_are_one_segment(make_table):
    table = make_table("phases", partitioners=("metis",), strategies=("minibatch",), seeds=(0,))
    figure, drawn = drawn_with("phases", table)
    copies = drawn[(drawn["mark"] == "share") & (drawn["group"] == "copy")]
    expected = 100 * table.loc[table["group"] == "copy", "share"].sum()
    assert copies["value"].tolist() == [pytest.approx(expected)]
    names = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert "other copies" in names
    assert "copy" in names, "a phase of preparation"


def test_groups_differ_in_grey_or_in_their_hatch():
    looks = {group: _style.shades(group, 1)[0] for group in _style.GROUP_COLOURS}
    for (one, look), (other, another) in combinations(looks.items(), 2):
        greys = [np.dot(to_rgb(fill["facecolor"]), (0.2126, 0.7152, 0.0722)) for fill in (look, another)]
        assert look["hatch"] != another["hatch"] or abs(greys[0] - greys[1]) > 0.2, (one, other)


def test_hits_are_pooled_over_ranks_before_seeds_are_averaged(make_table):
    table = make_table("cache", partitioners=("metis",), seeds=(0, 1))
    one = table[(table["policy"] == "degree") & (table["capacity_share"] == 0.05)]
    rates = [100 * run["hits"].sum() / run["accesses"].sum() for _, run in one.groupby("run")]
    _, drawn = drawn_with("cache", table)
    point = drawn[(drawn["policy"] == "degree") & (drawn["capacity_percent"] == 5)].iloc[0]
    assert point["value"] == pytest.approx(sum(rates) / 2)
    assert (point["low"], point["high"]) == pytest.approx((min(rates), max(rates)))


def test_synchronisation_that_could_not_be_matched_is_not_split(make_table):
    table = make_table("imbalance", partitioners=("metis",), strategies=("minibatch",))
    table.loc[table["rank"] == 1, ["sync_wait_s_per_step", "wait_share"]] = pd.NA
    _, drawn = drawn_with("imbalance", table)
    by_rank = drawn.groupby("rank")["mark"].agg(set)
    assert by_rank[0] >= {"wait", "transfer"}
    assert by_rank[1] == {"compute", "unsplit", "total"}


def test_silent_runs_say_that_nothing_is_sent(make_table):
    table = make_table("volume", partitioners=("single",), ranks=(1,))
    table[["compared_bytes_per_epoch", "predicted_bytes_per_epoch"]] = 0
    figure, drawn = drawn_with("volume", table)
    assert set(drawn["mark"]) == {"nothing"}
    assert "nothing sent" in texts_of(figure)


def test_target_is_drawn_where_it_is_given(make_table):
    figure, _ = drawn_with("convergence", make_table("convergence"), target=0.65)
    assert [line.get_ydata()[0] for line in artists_of(figure)["target"]] == [65]


def test_memory_is_that_of_the_rank_with_the_largest_peak(make_table):
    table = make_table("memory", partitioners=("metis",), strategies=("fullgraph",), seeds=(0,))
    peaks = table.groupby("rank")["peak_memory_bytes"].first()
    of_largest = table[table["rank"] == peaks.idxmax()].set_index("owner")["bytes"] / 1e6
    _, drawn = drawn_with("memory", table)
    segments = drawn[drawn["mark"] == "memory"].set_index("owner")["value"]
    assert segments.to_dict() == pytest.approx(of_largest.to_dict())
    total = drawn.loc[drawn["mark"] == "total", "value"].item()
    assert total == pytest.approx(peaks.max() / 1e6)

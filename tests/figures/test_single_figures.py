"""What single figures must keep beside what all must: see `test_drawing`."""

from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from drawing import artists_of, drawn_with, mixed, texts_of
from matplotlib.colors import to_rgb

from anatomy.figures import _style


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


def test_throughput_is_of_strategies_that_were_disturbed_with_a_mark_for_each_condition(make_table):
    table = make_table("throughput", partitioners=("metis",))
    alone = table[(table["strategy"] != "fullgraph") | table["condition"].isna()]
    figure, drawn = drawn_with("throughput", alone)
    assert set(drawn["label"]) == {"minibatch"}
    means = alone[alone["strategy"] == "minibatch"].groupby(alone["condition"].fillna("undisturbed"))
    expected = means["train_nodes_per_s"].mean().astype(float).to_dict()
    assert drawn.set_index("mark")["value"].to_dict() == pytest.approx(expected)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["undisturbed", "slow-2x"]
    figure, drawn = drawn_with("throughput", table[table["condition"].isna()])
    assert drawn.empty
    assert "no run of this table was disturbed" in texts_of(figure)

"""The figures that set strategies beside plain full-graph training: what their lines, marks and words stand for."""

import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.lines import Line2D

from anatomy.figures import FIGURES, _style
from anatomy.figures.strategies import _scale_bytes


def drawn_from(name: str, table: pd.DataFrame):
    with _style.applied():
        return FIGURES[name].load().draw(table)


def lines_of(axes, label: str) -> list[Line2D]:
    return [line for line in axes.lines if line.get_label() == f"_{label}"]


def words_of(figure) -> str:
    words = [text.get_text() for axes in figure.axes for text in axes.texts]
    return " ".join([*words, *(text.get_text() for text in figure.texts)]).replace("\n", " ")


def test_the_baselines_line_is_at_its_own_value_in_every_panel_and_column(make_table):
    table = make_table("strategies", models=("gat", "sage"), ranks=(2, 4), partitioners=("metis",))
    figure, drawn = drawn_from("strategies", table)
    columns = [["epoch time"], ["exposed"], ["sent"], ["memory"], ["accuracy"], ["lost by epochs", "lost by time"]]
    panels = [part for _, part in drawn.groupby("panel")]
    assert len(panels) == 4, "two models on 2 and on 4 ranks"
    for axes, (part, marks) in zip(figure.axes, itertools.product(panels, columns), strict=True):
        own = part[(part["label"] == "fullgraph") & part["mark"].isin(marks)]
        found = {x for line in lines_of(axes, "baseline") for x in line.get_xdata()}
        assert found == set(own["value"]), marks


def test_numbers_are_in_the_units_of_their_axes(make_table):
    table = make_table("strategies", partitioners=("metis",), seeds=(0,)).set_index("strategy").loc["minibatch"]
    _, drawn = drawn_from("strategies", make_table("strategies", partitioners=("metis",), seeds=(0,)))
    values = drawn[drawn["label"] == "minibatch"].set_index("mark")["value"]
    assert values.to_dict() == pytest.approx(
        {
            "epoch time": table["epoch_s"],
            "exposed": 1000 * table["exposed_s_per_step"],
            "hidden": 1000 * table["hidden_s_per_step"],
            "sent": table["sent_bytes_per_epoch"],
            "memory": table["peak_memory_bytes"] / 1e6,
            "accuracy": 100 * table["val_accuracy"],
            "lost by epochs": 100 * table["accuracy_lost"],
            "lost by time": 100 * table["accuracy_lost_in_time"],
        }
    )


def test_hidden_communication_and_accuracy_lost_in_time_are_hollow(make_table):
    figure, _ = drawn_from("strategies", make_table("strategies"))
    for mark, hollow in (("exposed", False), ("hidden", True), ("lost by epochs", False), ("lost by time", True)):
        found = [line for axes in figure.axes for line in lines_of(axes, mark)]
        assert found
        assert {line.get_markerfacecolor() == "white" for line in found} == {hollow}, mark


def test_marks_of_one_row_lie_apart_within_it(make_table):
    _, drawn = drawn_from("strategies", make_table("strategies"))
    for pair in (("exposed", "hidden"), ("lost by epochs", "lost by time")):
        heights = drawn[drawn["mark"].isin(pair)].set_index(["panel", "row", "mark"])["y"].unstack()
        assert ((heights[pair[1]] - heights[pair[0]]) > 0.2).all()
    assert (abs(drawn["y"] - drawn["row"].astype(float)) < 0.5).all()


def test_ranks_that_send_nothing_are_said(make_table):
    figure, drawn = drawn_from("strategies", make_table("strategies", ranks=(1,)))
    assert set(drawn.loc[drawn["mark"] == "nothing", "label"]) == {"fullgraph", "minibatch"}
    assert "sent" not in set(drawn["mark"])
    assert "nothing" in words_of(figure)


@given(st.floats(1, 1e12), st.floats(1, 1e5))
def test_bytes_have_two_ticks_in_sight(low, spread):
    with _style.applied():
        axes = _style.new_figure(1, 1, "").subplots()
        _scale_bytes(axes, low, low * spread)
    left, right = axes.get_xlim()
    assert left < low <= low * spread < right
    first, last = axes.xaxis.get_major_locator().locs
    assert left <= first < last <= right


def test_crowded_panels_have_a_star_that_the_note_explains(make_table):
    """Where all runs have one number of ranks, the panel's head tells it, and whether there are cores for them."""
    for ranks, star in ((2, False), (4, True)):
        figure, drawn = drawn_from("strategies", make_table("strategies", ranks=(ranks,)))
        assert drawn["panel"].str.endswith(f"{ranks} ranks{'*' * star}").all()
        assert ("more ranks than cores" in words_of(figure)) is star


def test_gains_are_beside_what_the_paper_reports(make_table):
    table = make_table("gains", partitioners=("metis",), seeds=(0, 1))
    figure, drawn = drawn_from("gains", table)
    ours = drawn[drawn["label"] == "minibatch"].set_index("mark")
    gains = table.loc[table["strategy"] == "minibatch", "gain"].astype(float)
    assert ours.loc["measured", ["value", "low", "high"]].tolist() == [gains.mean(), gains.min(), gains.max()]
    assert ours.loc["published", "value"] == 16.5
    assert drawn.loc[(drawn["label"] == "fullgraph"), "mark"].tolist() == ["measured"]
    words = words_of(figure)
    assert "minibatch: throughput, up to 16.5 times, over another, on GPUs (a paper)." in words
    assert "Here: CPU and Gloo, all ranks on one host" in words
    (line,) = lines_of(figure.axes[0], "baseline")
    assert set(line.get_xdata()) == {1}
    assert figure.axes[0].get_xscale() == "log"


def test_several_hosts_are_said(make_table):
    table = make_table("gains")
    figure, _ = drawn_from("gains", table.assign(hosts=table["ranks"]))
    assert "ranks on up to 2 hosts" in words_of(figure)
    assert "loopback" not in words_of(figure)


def test_panels_of_gains_have_one_scale(make_table):
    figure, _ = drawn_from("gains", make_table("gains", models=("gat", "sage")))
    assert len({axes.get_xlim() for axes in figure.axes}) == 1
    assert len(figure.axes) == 2


def test_runs_without_a_baseline_are_said(make_table):
    table = make_table("gains", failed=lambda run: "time limit" if run["strategy"] == "fullgraph" else None)
    figure, drawn = drawn_from("gains", table)
    silent = drawn[drawn["mark"] == "nothing"]
    assert silent["label"].str.startswith("minibatch").all()
    assert len(silent) == 2, "of both partitioners"
    assert "published" not in set(drawn["mark"]), "there is nothing to set it beside"
    assert words_of(figure).count("no full-graph training to compare with") == 2
    figure, drawn = drawn_from("strategies", table)
    assert not {"lost by epochs", "lost by time"} & set(drawn["mark"])
    assert not any(lines_of(axes, "baseline") for axes in figure.axes)


def test_a_configuration_with_some_baselines_is_compared_with_those(make_table):
    table = make_table(
        "gains",
        partitioners=("metis",),
        failed=lambda run: "time limit" if run["strategy"] == "fullgraph" and run["seed"] == 0 else None,
    )
    _, drawn = drawn_from("gains", table)
    ours = drawn[drawn["label"] == "minibatch"].set_index("mark")
    assert list(ours.index) == ["measured", "published"]
    assert ours.loc["measured", "n"] == 2


def test_traces_recorded_elsewhere_have_no_gain(make_table, make_recorded):
    table = make_table("gains")
    both = pd.concat([table, make_recorded("gains", "mine").astype(table.dtypes.to_dict())], ignore_index=True)
    figure, drawn = drawn_from("gains", both)
    np.testing.assert_array_equal(drawn["value"], drawn_from("gains", table)[1]["value"])
    assert "GPU and NCCL" not in words_of(figure)


def test_axes_without_a_number_have_no_ticks(make_table):
    columns = ["exposed_s_per_step", "hidden_s_per_step"]
    figure, _ = drawn_from(
        "strategies", make_table("strategies", partitioners=("metis",)).assign(**dict.fromkeys(columns))
    )
    assert [len(axes.get_xticks()) > 0 for axes in figure.axes] == [True, False, True, True, True, True]


def test_batches_that_were_not_profiled_keep_their_row(make_table):
    table = make_table("preparation", partitioners=("metis",))
    lost = [name for name in table if name.endswith("_s_per_step")]
    plain = table["strategy"] == "minibatch"
    for names, rows in ((lost, plain), (lost, plain | ~plain)):
        table.loc[rows, names] = pd.NA
        figure, drawn = drawn_from("preparation", table)
        assert sorted(set(drawn["row"])) == [0, 1, 2]
        assert words_of(figure).count("not profiled") == rows.groupby(table["strategy"]).any().sum()

"""The table of strategies beside plain full-graph training, from runs whose numbers are worked out by hand."""

import pandas as pd
import pytest

from anatomy.training.options import STRATEGIES

WALLS_S = {"fullgraph": (9.0, 2.0, 2.0, 2.0), "bns": (9.0, 0.5, 0.5, 0.5)}
"""Of epochs 0 (warm-up) to 3; over time: fullgraph 9, 11, 13, 15 s; bns 9, 9.5, 10, 10.5 s."""
ACCURACIES = {"fullgraph": (0.2, 0.5, 0.7, 0.8), "bns": (0.2, 0.4, 0.6, 0.75)}


def epochs(method: str, sent: int, memory: int, num: int = 4) -> list[dict]:
    return [
        {
            "rank": rank,
            "epoch": epoch,
            "warmup": epoch == 0,
            "wall_s": WALLS_S[method][epoch] - 0.1 * rank,
            "val_accuracy": ACCURACIES[method][epoch],
            "sent_activations_bytes": sent * (1 + rank),
            "sent_weights_bytes": 10,
            "peak_memory_bytes": memory - rank,
        }
        for rank in (0, 1)
        for epoch in range(num)
    ]


def trace(exposed_ns: int, hidden_ns: int) -> pd.DataFrame:
    """Two ranks and one step of 1 ms each."""
    times = {"comm_exposed_ns": exposed_ns, "comm_exposed_wait_ns": 0, "comm_overlapped_ns": hidden_ns}
    frame = pd.DataFrame([{"rank": rank, "step": 1, "wall_ns": 1_000_000, **times} for rank in (0, 1)])
    return frame.astype("Int64")


@pytest.fixture
def both(results, built):
    """The table's rows of a baseline and of `bns`, by method."""
    baseline = results.run(epochs=epochs("fullgraph", 400, 5000), final=final("fullgraph"))
    ours = results.run(method="bns", epochs=epochs("bns", 100, 4000), final=final("bns"))
    results.traces(baseline, steps=trace(600_000, 0))
    results.traces(ours, steps=trace(150_000, 50_000))
    return built("strategies", results.study(baseline, ours)).set_index("method")


def final(method: str) -> dict:
    return {"loss": 0.1, "val_accuracy": ACCURACIES[method][-1], "test_accuracy": None}


def test_times_bytes_and_memory_are_beside_the_baseline(both):
    ours = both.loc["bns"]
    assert ours["baseline_run"] == both.loc["fullgraph", "run"]
    assert ours["epoch_s"] == 0.5
    assert ours["gain"] == 2.0 / 0.5
    # Ranks 0 and 1 send 1 and 2 times the activations, and 10 bytes of weights each.
    assert ours["sent_bytes_per_epoch"] == 100 + 200 + 20
    assert ours["sent_ratio"] == pytest.approx(320 / (400 + 800 + 20))
    assert ours["memory_ratio"] == 4000 / 5000
    assert (ours["exposed_share"], ours["exposed_ratio"]) == (0.15, 0.25)
    assert ours["hidden_s_per_step"] == pytest.approx(50e-6)


def test_the_rank_that_waits_most_is_named(results, built):
    """Of 2 steps of 1 ms each: rank 0 exposes 0.1 and 0.3 ms, rank 1 0.5 and 0.1 ms."""
    run = results.run(epochs=epochs("fullgraph", 1, 1), final=final("fullgraph"))
    steps = pd.concat([trace(0, 0), trace(0, 0).assign(step=2)], ignore_index=True)
    steps["comm_exposed_ns"] = pd.array([100_000, 500_000, 300_000, 100_000], dtype="Int64")
    results.traces(run, steps=steps)
    row = built("strategies", results.study(run)).iloc[0]
    assert (row["most_exposed_rank"], row["most_exposed_share"]) == (1, (0.5 + 0.1) / 2)
    assert row["exposed_share"] == pytest.approx((0.1 + 0.3 + 0.5 + 0.1) / 4)


@pytest.mark.parametrize(
    ("strategy", "stages", "chunks"),
    [
        ({"method": "pipeline", "chunks": None}, 2, 4 * 2),
        ({"method": "pipeline", "chunks": None, "stages": None}, 2, 4 * 2),
        ({"method": "pipeline", "chunks": None, "stages": 1}, 1, 4),
        ({"method": "pipeline", "chunks": 3}, 2, 3),
        ({"method": "chunked", "chunks": 5}, None, 5),
        ({"method": "bns"}, None, None),
    ],
)
@pytest.mark.parametrize("status", ["completed", "time limit"])
def test_chunks_are_those_that_were_asked_for_or_four_for_each_stage(strategy, stages, chunks, status, results, built):
    run = results.run(epochs=epochs("fullgraph", 1, 1), final=final("fullgraph"), status=status, options=strategy)
    row = built("strategies", results.study(run)).iloc[0]
    for name, expected in (("stages", stages), ("chunks", chunks)):
        assert row[name] == expected if expected else pd.isna(row[name])
    assert row["num_layers"] == 2


def test_the_baseline_is_beside_itself(both):
    row = both.loc["fullgraph"]
    assert row[["gain", "sent_ratio", "memory_ratio", "exposed_ratio"]].tolist() == [1, 1, 1, 1]
    assert row[["accuracy_lost", "accuracy_lost_in_time"]].tolist() == [0, 0]


def test_accuracy_is_lost_by_epochs_and_by_time(both):
    """After 4 epochs 0.8 against 0.75; after the 10.5 s of bns fullgraph has finished one epoch, which gave 0.2."""
    ours = both.loc["bns"]
    assert ours["accuracy_lost"] == pytest.approx(0.8 - 0.75)
    assert ours["accuracy_lost_in_time"] == pytest.approx(0.2 - 0.75)


def test_fewer_epochs_are_compared_with_as_many(results, built):
    baseline = results.run(epochs=epochs("fullgraph", 1, 1, num=4), final=final("fullgraph"))
    ours = results.run(method="bns", epochs=epochs("bns", 1, 1, num=3), final=final("bns"))
    row = built("strategies", results.study(baseline, ours)).set_index("method").loc["bns"]
    assert row["accuracy_lost"] == pytest.approx(0.7 - 0.6)


def test_without_a_baseline_nothing_is_compared(results, built):
    other = results.run(seed=1, epochs=epochs("fullgraph", 1, 1), final=final("fullgraph"))
    ours = results.run(method="bns", epochs=epochs("bns", 1, 1), final=final("bns"))
    row = built("strategies", results.study(other, ours)).set_index("method").loc["bns"]
    assert row[["baseline_run", "gain", "sent_ratio", "memory_ratio", "accuracy_lost"]].isna().all()
    assert row["epoch_s"] == 0.5


def test_a_failed_baseline_is_none(results, built):
    failed = results.run(status="out of memory")
    ours = results.run(method="bns", epochs=epochs("bns", 1, 1), final=final("bns"))
    table = built("strategies", results.study(failed, ours)).set_index("method")
    assert pd.isna(table.loc["bns", "baseline_run"])
    assert table.loc["fullgraph", "status"] == "out of memory"


def test_partitioners_may_differ_and_the_baseline_is_named_in_the_options(results, built):
    baseline = results.run(partitioner="random", epochs=epochs("fullgraph", 1, 1), final=final("fullgraph"))
    ours = results.run(method="bns", epochs=epochs("bns", 1, 1), final=final("bns"))
    study = results.study(baseline, ours)
    assert built("strategies", study).set_index("method").loc["bns", "baseline_run"] == baseline
    turned = built("strategies", study, baseline="bns").set_index("method")
    assert turned.loc["fullgraph", "gain"] == 0.25


def test_what_the_paper_reports_stands_beside_the_gain(both):
    assert both.loc["bns", "paper_gain"] == 16.2
    claim = both.loc["bns", "paper_claim"]
    assert claim.startswith("throughput, up to 16.2 times, over ")
    assert claim.endswith("(abstract of BNS-GCN, MLSys 2022)")
    assert both.loc["fullgraph", ["paper_gain", "paper_claim"]].isna().all()


PAPERS = {name: plugin.constants["PAPER"] for name, plugin in STRATEGIES.items() if "PAPER" in plugin.constants}


@pytest.mark.parametrize("method", sorted(PAPERS))
def test_every_headline_says_of_what_over_what_where_and_who(method):
    paper = PAPERS[method]
    assert list(paper) == ["gain", "of", "over", "on", "source"]
    assert paper["gain"] > 1
    assert all(isinstance(paper[name], str) and paper[name].strip() for name in ("of", "over", "on", "source"))


def test_a_headline_that_is_computed_would_be_overlooked():
    """A table reads literals: every module that names PAPER must be among those found."""
    named = {name for name, plugin in STRATEGIES.items() if "\nPAPER" in plugin.path.read_text()}
    assert named == set(PAPERS) >= {"bns", "cached", "chunked", "featuresplit", "pipegcn", "pipeline"}


def test_traces_recorded_elsewhere_have_communication_alone(results, built):
    facts = {"kind": "traces", "trace_kind": "gpu", "world_size": 2}
    results.traces("mine", facts=facts, steps=trace(600_000, 100_000))
    row = built("strategies", results.study("mine")).iloc[0]
    assert (row["exposed_share"], row["exposed_s_per_step"]) == (0.6, pytest.approx(600e-6))
    assert row[["epoch_s", "gain", "paper_gain", "sent_bytes_per_epoch", "val_accuracy"]].isna().all()

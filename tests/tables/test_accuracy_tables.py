"""The tables of accuracy: of each rank at its own nodes, and of gradient-only training beside the plain one."""

import json

import pandas as pd
import pytest


def described_partition(results, name: str, entropies: list[float]) -> None:
    """A partition of a ring whose parts have these entropies and as many training nodes as their number, from 1."""
    results.partition("ring", name, [0, 0, 1], [[0, 1], [1, 0]], edges=[(3, 1), (2, 1)])
    path = results.folder / "partitions" / "ring" / name / "partition.json"
    manifest = json.loads(path.read_text())
    for part, entropy in zip(manifest["parts"], entropies, strict=True):
        part |= {"train": part["part"] + 1, "label_entropy_bits": entropy}
    path.write_text(json.dumps(manifest))


def own_epochs(*last: float | None) -> list[dict]:
    """Two epochs of as many ranks as there are accuracies, which are those after the last."""
    return [
        {"rank": rank, "epoch": epoch, "test_accuracy": 0.5, "own_test_accuracy": found, "own_val_accuracy": found}
        for epoch in (0, 1)
        for rank, found in enumerate(last if epoch else [0.0] * len(last))
    ]


def test_ranks_stand_beside_the_entropy_of_their_parts(results, built):
    described_partition(results, "metis-2", [1.5, 0.25])
    plain = results.run(method="minibatch", epochs=own_epochs(0.75, None), options={"epochs": 2})
    balanced = results.run(
        method="eat", epochs=own_epochs(0.5, 0.25), options={"sampler": "balanced", "shared": 0.34, "epochs": 2}
    )
    table = built("rank_accuracy", results.study(plain, balanced)).set_index(["method", "rank"])
    assert table["label_entropy_bits"].tolist() == [1.5, 0.25] * 2
    assert table["part_train_nodes"].tolist() == [1, 2] * 2
    assert table["test_accuracy"].fillna(-1).tolist() == [0.75, -1, 0.5, 0.25]
    assert table["val_accuracy"].fillna(-1).tolist() == [0.75, -1, 0.5, 0.25]
    assert set(table["run_test_accuracy"]) == {0.5}
    assert table["sampler"].tolist() == ["all", "all", "balanced", "balanced"]
    assert table["shared"].tolist() == [1, 1, 0.34, 0.34]


def test_options_of_that_name_of_another_strategy_are_others(results, built):
    described_partition(results, "metis-2", [1.5, 0.25])
    run = results.run(method="minibatch", epochs=own_epochs(0.5, 0.5), options={"sampler": "another", "shared": 0.1})
    table = built("rank_accuracy", results.study(run))
    assert set(table["sampler"]) == {"all"}
    assert set(table["shared"]) == {1.0}


def test_a_run_that_failed_is_one_row_without_numbers(results, built):
    name = results.run(method="eat", status="out of memory", options={"sampler": "balanced", "shared": 1, "epochs": 2})
    (row,) = built("rank_accuracy", results.study(name)).to_dict("records")
    assert (row["status"], row["sampler"]) == ("out of memory", "balanced")
    assert pd.isna(row["test_accuracy"])


GRAPPA = {"period": 3, "correction": "inverse", "neighbours": 1, "epochs": 8}


@pytest.fixture
def finished(results):
    """A finished run: `finished(method, accuracy, **options)`."""

    def run(method: str, accuracy: float, **options) -> str:
        seed = options.pop("seed", 0)
        final = {"val_accuracy": accuracy, "test_accuracy": None}
        return results.run(method=method, seed=seed, epochs=[{}], options={"epochs": 8} | options, final=final)

    return run


def test_gradient_only_runs_are_beside_their_baseline(results, built, finished):
    names = [finished("fullgraph", 0.75), finished("grappa", 0.5, **GRAPPA), finished("bns", 0.6)]
    (row,) = built("gradient_only", results.study(*names)).to_dict("records")
    assert (row["run"], row["baseline_run"]) == (names[1], names[0])
    assert (row["accuracy_lost"], row["val_accuracy"]) == (0.25, 0.5)
    assert [row[name] for name in ("period", "correction", "neighbours", "epochs", "turns")] == [3, "inverse", 1, 8, 3]


def test_other_epochs_or_seeds_are_no_baseline(results, built, finished):
    names = [
        finished("fullgraph", 0.75, epochs=9),
        finished("fullgraph", 0.75, seed=1),
        finished("grappa", 0.5, **GRAPPA),
    ]
    (row,) = built("gradient_only", results.study(*names)).to_dict("records")
    assert pd.isna(row["accuracy_lost"])
    assert pd.isna(row["baseline_run"])
    assert row["val_accuracy"] == 0.5


def test_a_gradient_only_run_that_failed_keeps_its_settings(results, built):
    name = results.run(method="grappa", status="time limit", options=GRAPPA)
    (row,) = built("gradient_only", results.study(name)).to_dict("records")
    assert (row["correction"], row["status"]) == ("inverse", "time limit")
    assert pd.isna(row["val_accuracy"])

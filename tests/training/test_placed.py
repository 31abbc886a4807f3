"""Wherever batches are sampled and features are kept: the same training, and exactly the traffic that was predicted."""

import json
from itertools import pairwise, permutations, product

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from training_cases import Job, job_for, specification

from anatomy.errors import StudyError
from anatomy.training.batch_messages import as_message, from_message, num_bytes, structure_length
from anatomy.training.operators.block import Block
from anatomy.training.placement import identity, traffic
from anatomy.training.sampling import MiniBatch
from anatomy.training.specification import read_specification

NUM_FEATURES = 5
EPOCHS = 3
Placement = tuple[tuple[int, ...], tuple[int, ...]]


def placements(ranks: int) -> list[Placement]:
    """All of two ranks; of three, each sampler order once with some order of the stores, and the identity."""
    orders = list(permutations(range(ranks)))
    if ranks < 3:
        return list(product(orders, orders))
    return [(orders[0], orders[0]), *zip(orders, orders[3:] + orders[:3], strict=True), (orders[0], orders[4])]


CASES = [(ranks, *placement) for ranks in (1, 2, 3) for placement in placements(ranks)]


@pytest.fixture(scope="module")
def jobs(small, run_ranks, tmp_path_factory) -> dict[tuple, Job]:
    """Every placement, and `minibatch` by its number of ranks."""
    folder = tmp_path_factory.mktemp("placed")
    made = {
        case: job_for(
            small,
            folder / f"placed-{number}",
            method="placed",
            ranks=case[0],
            strategy={"epochs": EPOCHS, "samplers": list(case[1]), "stores": list(case[2])},
        )
        for number, case in enumerate(CASES)
    }
    for ranks in (1, 2, 3):
        made[ranks,] = job_for(
            small, folder / f"minibatch-{ranks}", method="minibatch", ranks=ranks, strategy={"epochs": EPOCHS}
        )
        run_ranks(ranks, [job for key, job in made.items() if key[0] == ranks])
    return made


def epochs_of(job: Job) -> pd.DataFrame:
    return pd.read_parquet(job.out / "epochs.parquet").drop(
        columns=["wall_s", "blocked_s", "eval_s", "peak_memory_bytes"]
    )


@pytest.mark.parametrize(("ranks", "samplers", "stores"), CASES)
def test_every_placement_trains_what_mini_batch_training_does(jobs, ranks, samplers, stores):
    placed, plain = jobs[ranks, samplers, stores], jobs[ranks,]
    ours, theirs = epochs_of(placed), epochs_of(plain)
    for column in ("loss", "val_accuracy", "train_nodes", "steps"):
        assert ours[column].tolist() == theirs[column].tolist()
    for rank in range(ranks):
        for key, value in placed.weights(rank).items():
            torch.testing.assert_close(value, plain.weights(rank)[key], rtol=0, atol=0)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_with_all_together_it_is_mini_batch_training_to_the_byte(jobs, ranks):
    together = jobs[ranks, tuple(identity(ranks)), tuple(identity(ranks))]
    pd.testing.assert_frame_equal(epochs_of(together), epochs_of(jobs[ranks,]))


def measured_and_predicted(job: Job, baseline: Job, samplers, stores) -> list[tuple[np.ndarray, np.ndarray]]:
    """By epoch, [sender, receiver]; predicted from what the run with all together counted."""
    found = []
    for epoch in range(EPOCHS):
        ours, theirs = (
            sorted((row for row in one.metrics()["traffic"] if row["epoch"] == epoch), key=lambda row: row["rank"])
            for one in (job, baseline)
        )
        counted = {name: np.array([row[name] for row in theirs]) for name in ("rows", "batch_bytes")}
        predicted = traffic(samplers, stores, **counted, steps=theirs[0]["steps"], num_features=NUM_FEATURES)
        found.append((np.array([row["sent_to_bytes"] for row in ours]), predicted))
    return found


@pytest.mark.parametrize(("ranks", "samplers", "stores"), CASES)
def test_traffic_between_every_two_ranks_is_that_predicted_from_the_run_with_all_together(
    jobs, ranks, samplers, stores
):
    together = jobs[ranks, tuple(identity(ranks)), tuple(identity(ranks))]
    for measured, predicted in measured_and_predicted(jobs[ranks, samplers, stores], together, samplers, stores):
        assert measured.tolist() == predicted.tolist()


@pytest.mark.parametrize("ranks", [2, 3])
def test_traffic_is_all_that_exchanges_send(jobs, ranks):
    for case in (case for case in CASES if case[0] == ranks):
        sent = epochs_of(jobs[case]).groupby("epoch")[["sent_features_bytes", "sent_requests_bytes"]].sum().sum(axis=1)
        by_pair = pd.DataFrame(jobs[case].metrics()["traffic"])
        assert by_pair.groupby("epoch")["sent_to_bytes"].agg(lambda rows: sum(map(sum, rows))).tolist() == sent.tolist()


def test_placements_differ_in_traffic(jobs):
    sent = {case: sum(sum(row["sent_to_bytes"]) for row in jobs[case].metrics()["traffic"]) for case in CASES}
    assert len({sent[case] for case in CASES if case[0] == 2}) == 4


@given(data=st.data(), num_layers=st.integers(1, 3), num_nodes=st.integers(1, 30))
def test_a_batch_arrives_as_it_was(data, num_layers, num_nodes):
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    sizes = sorted(random.integers(1, num_nodes + 1, num_layers + 1).tolist(), reverse=True)
    degrees = torch.from_numpy(random.random(sizes[0]).astype(np.float32))
    blocks = []
    for sources, destinations in pairwise(sizes):
        edges = random.integers(0, 3, destinations)
        indptr = torch.from_numpy(np.concatenate([[0], np.cumsum(edges)]))
        indices = torch.from_numpy(random.integers(0, sources, edges.sum()))
        blocks.append(Block(indptr, indices, sources, degrees[:sources]))
    inputs = torch.from_numpy(random.permutation(100)[: sizes[0]])
    batch = MiniBatch(inputs[: sizes[-1]], inputs, blocks)
    message = as_message(batch, num_layers)
    assert structure_length(message[0]) == message[1].shape[0]
    assert num_bytes(message) == 8 * (message[0].shape[0] + message[1].shape[0]) + 4 * sizes[0]
    arrived = from_message(message)
    assert arrived.input_nodes.tolist() == batch.input_nodes.tolist()
    assert arrived.seed_nodes.tolist() == batch.seed_nodes.tolist()
    for ours, theirs in zip(arrived.blocks, blocks, strict=True):
        assert ours.num_sources == theirs.num_sources
        for name in ("indptr", "indices", "degrees"):
            assert torch.equal(getattr(ours, name), getattr(theirs, name))


def test_no_batch_is_a_message_too():
    message = as_message(None, 3)
    assert from_message(message) is None
    assert structure_length(message[0]) == 0


@pytest.mark.parametrize("order", [[0], [0, 0], [1, 2], [0, 1, 2]])
@pytest.mark.parametrize("name", ["samplers", "stores"])
def test_a_placement_names_every_rank_once(tmp_path, name, order):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(specification("placed", ranks=2, strategy={name: order})))
    with pytest.raises(StudyError, match=rf"strategy\.{name}: found .* for 2 rank\(s\)"):
        read_specification(path)

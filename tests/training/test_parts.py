"""The pieces of training one by one: parts, features' places, the optimiser, byte counts, tables."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from training_cases import job_for

from anatomy.files import attempt
from anatomy.partitions.store import open_partition
from anatomy.training.communication import ring_bytes
from anatomy.training.failures import is_out_of_memory
from anatomy.training.features import rows_within_parts
from anatomy.training.optimizer import Adam, FlatParameters
from anatomy.training.parts import local_part
from anatomy.training.results import write_failed
from anatomy.training.specification import read_specification


@pytest.mark.parametrize("num_parts", [1, 2, 3])
def test_a_part_has_all_in_neighbours_of_its_nodes(small, num_parts):
    graph = small.graph
    partition = open_partition(small.partition_path(num_parts), graph)
    for rank in range(num_parts):
        part = local_part(graph, partition, rank)
        rows = torch.cat([part.nodes, part.halo])
        for row, node in enumerate(part.nodes.tolist()):
            neighbours = rows[part.block.indices[part.block.indptr[row] : part.block.indptr[row + 1]]]
            assert neighbours.tolist() == graph.indices[graph.indptr[node] : graph.indptr[node + 1]].tolist()
        assert part.block.degrees.tolist() == np.diff(graph.indptr)[rows].tolist()


def test_what_one_part_sends_is_what_the_other_receives(small):
    partition = open_partition(small.partition_path(3), small.graph)
    parts = [local_part(small.graph, partition, rank) for rank in range(3)]
    for consumer, part in enumerate(parts):
        received = part.halo.split(part.receive_counts)
        for owner, giver in enumerate(parts):
            sent = giver.nodes[giver.send_rows].split(giver.send_counts)[consumer]
            assert torch.equal(sent, received[owner])


@given(assignment=st.lists(st.integers(0, 4), min_size=1, max_size=40))
def test_rows_within_parts_count_up_in_every_part(assignment):
    assignment = np.array(assignment, dtype=np.int32)
    rows = rows_within_parts(assignment).numpy()
    for part in range(5):
        assert rows[assignment == part].tolist() == list(range(np.count_nonzero(assignment == part)))


@given(payload=st.integers(0, 10**9), size=st.integers(1, 16))
def test_shares_of_a_ring_add_up_and_differ_by_one_byte_at_most(payload, size):
    shares = [ring_bytes(payload, rank, size) for rank in range(size)]
    assert sum(shares) == 2 * (size - 1) * payload
    assert max(shares) - min(shares) <= 1


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_our_adam_is_torchs(weight_decay):
    torch.manual_seed(0)
    ours, theirs = (torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)) for _ in range(2))
    ours.load_state_dict(theirs.state_dict())
    flat = FlatParameters(ours, extra=2)
    mine = Adam(flat, 0.05, weight_decay)
    reference = torch.optim.Adam(theirs.parameters(), lr=0.05, weight_decay=weight_decay)
    for _ in range(20):
        rows = torch.randn(6, 3)
        flat.bucket.zero_()
        reference.zero_grad()
        for model in (ours, theirs):
            model(rows).square().sum().backward()
        mine.step()
        reference.step()
    for own, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(own, other)


def test_a_failed_run_is_empty_tables_and_a_status(small, tmp_path):
    specification = read_specification(job_for(small, tmp_path / "run").spec)
    with attempt(tmp_path / "timed", "metrics.json") as stage:
        (stage / "epochs.parquet").touch()
        (stage / "rank0.json.gz").touch()
        write_failed(specification, stage, "timed", "time limit", "too slow", 1.5)
    assert not (tmp_path / "timed" / "rank0.json.gz").exists()
    epochs = pd.read_parquet(tmp_path / "timed" / "epochs.parquet")
    assert len(epochs) == 0
    assert epochs.dtypes[["rank", "warmup", "loss"]].astype(str).tolist() == ["int32", "bool", "float64"]
    assert pd.read_parquet(tmp_path / "timed" / "accesses.parquet").columns.tolist() == [
        "rank",
        "epoch",
        "node",
        "count",
    ]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("RuntimeError: [enforce fail at alloc_cpu.cpp:83] . DefaultCPUAllocator: can't allocate memory", True),
        ("MemoryError: ", True),
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", True),
        ("ValueError: boom", False),
    ],
)
def test_want_of_memory_is_recognised(message, expected):
    assert is_out_of_memory(message) is expected


def test_flat_parameters_keep_the_model_and_collect_its_gradients():
    model = torch.nn.Linear(2, 3)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    flat = FlatParameters(model, extra=2)
    assert all(torch.equal(own, old) for own, old in zip(model.parameters(), before, strict=True))
    model(torch.ones(1, 2)).sum().backward()
    assert flat.gradients.tolist() == [1.0] * 9
    assert math.isclose(flat.bucket.sum().item(), 9)

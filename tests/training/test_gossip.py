"""Training by gossip: `clustergcn` with all ranks in every step, a simulation by appointment, and it always ends."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from dense_layers import adjacency, dense_scores
from interruptions import be_often_interrupted, numbers, settings
from test_clustergcn import CLUSTERS, clusters_of
from test_exact_settings import TOLERANCE, WEIGHT_TOLERANCE, assert_bytes_are_predicted
from torch.distributed import HashStore
from torch.nn import functional
from training_cases import Case, Job, be_rank, job_for

from anatomy.errors import StudyError
from anatomy.files import read_json
from anatomy.training import pairing
from anatomy.training.clusters import ClusterBatches, ClusterLoss
from anatomy.training.gossip import Meetings, from_pool
from anatomy.training.model import Model
from anatomy.training.specification import read_specification

LOCKSTEP = {"pool": "static", "partners": "all", "every": 1}
CERTAIN = {"pool": "static", "partners": "matching", "every": 2, "patience_s": 60}
"""Nothing is left to timing."""
SLOW_RANK, SLEEP_S = 1, 0.03


def gossip(case: Case, out: Path, ranks: int, mode: str = "timed", method: str = "gossip", **options) -> Job:
    options = {"clusters": CLUSTERS, "epochs": 3} | options
    return job_for(case, out, method=method, ranks=ranks, strategy=options, mode=mode, model={"num_layers": 2})


def be_rank_of_which_one_is_slow(rank: int, num_ranks: int, jobs: list[Job]) -> None:
    loss = ClusterLoss.__call__

    def slow_loss(self, nodes):
        time.sleep(SLEEP_S)
        return loss(self, nodes)

    if rank == SLOW_RANK:
        ClusterLoss.__call__ = slow_loss
    be_rank(rank, num_ranks, jobs)


def epochs_of(job: Job) -> pd.DataFrame:
    return pd.read_parquet(job.out / "epochs.parquet")


@pytest.fixture(scope="module")
def jobs(small, run_ranks, tmp_path_factory) -> dict[tuple, Job]:
    folder = tmp_path_factory.mktemp("gossip")
    made: dict[tuple, Job] = {}
    for ranks in (1, 2, 3):
        for exchanged in ("model", "gradients"):
            out = folder / f"lockstep-{exchanged}-{ranks}"
            made["lockstep", exchanged, ranks] = gossip(small, out, ranks, exchanged=exchanged, **LOCKSTEP)
            out = folder / f"certain-{exchanged}-{ranks}"
            made["certain", exchanged, ranks] = gossip(small, out, ranks, exchanged=exchanged, **CERTAIN)
        made["clustergcn", ranks] = gossip(small, folder / f"clustergcn-{ranks}", ranks, method="clustergcn")
        run_ranks(ranks, [job for key, job in made.items() if key[-1] == ranks])
    return made


@pytest.fixture(scope="module")
def uneven(small, run_ranks, tmp_path_factory) -> dict[str, Job]:
    """Three ranks of which one is slow, and the last part has no training node; the last job has fewer batches."""
    folder = tmp_path_factory.mktemp("uneven")
    made = {
        partners: gossip(
            small, folder / partners, 3, partners=partners, exchanged="model", clusters=20, every=1, patience_s=0.01
        )
        for partners in ("waiting", "matching")
    }
    made["together"] = gossip(small, folder / "together", 3, method="clustergcn")
    made["few"] = gossip(small, folder / "few", 3, clusters=2)
    run_ranks(3, list(made.values()), be_rank_of_which_one_is_slow)
    return made


@pytest.mark.parametrize("exchanged", ["model", "gradients"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_with_all_ranks_in_every_step_it_is_clustergcn(jobs, exchanged, ranks):
    job, exact = jobs["lockstep", exchanged, ranks], jobs["clustergcn", ranks]
    found, expected = epochs_of(job), epochs_of(exact)
    np.testing.assert_allclose(found["loss"], expected["loss"], **TOLERANCE)
    assert found[["steps", "train_nodes"]].equals(expected[["steps", "train_nodes"]])
    for name, value in job.weights().items():
        torch.testing.assert_close(value, exact.weights()[name], **WEIGHT_TOLERANCE)
    assert_bytes_are_predicted(job)


def simulate(case: Case, job: Job, ranks: int) -> tuple[list[float], dict[str, torch.Tensor], list[int]]:
    """Losses, the mean of the ranks' weights at the end, and messages per epoch, where appointments are kept."""
    specification, graph = read_specification(job.spec), case.graph
    options = specification.strategy
    linked, features = adjacency(graph), torch.from_numpy(graph.features.copy())
    train, labels = torch.from_numpy(graph.split == 0), torch.from_numpy(graph.labels.copy())
    initial = Model(specification.model, graph.num_features, graph.num_classes, 0).state_dict()
    models = [{name: value.clone().requires_grad_() for name, value in initial.items()} for _ in range(ranks)]
    optimizers = [torch.optim.Adam(model.values(), lr=0.01) for model in models]
    batches = ClusterBatches(clusters_of(case), 1)
    losses, messages = [], []
    for epoch in range(options["epochs"]):
        listed, total, seen = batches.of_epoch(0, epoch), 0.0, 0
        messages.append(0)
        for step in range(-(-len(listed) // ranks)):
            present = range(min(ranks, len(listed) - step * ranks))
            counts = []
            for rank in present:
                nodes = torch.from_numpy(listed[step * ranks + rank])
                scores = dense_scores("sage", models[rank], linked[nodes][:, nodes], features[nodes], 2)
                seeds = train[nodes]
                loss = functional.cross_entropy(scores[seeds], labels[nodes][seeds], reduction="sum")
                optimizers[rank].zero_grad()
                loss.backward()
                counts.append(int(seeds.sum()))
                total, seen = total + loss.item(), seen + counts[-1]
            round_number, rest = divmod(step + 1, options["every"])
            drawn = pairing.matching(ranks, 0, epoch, round_number) if rest == 0 else [None] * ranks
            partners = [partner if partner in present else None for partner in drawn]
            messages[-1] += sum(partners[rank] is not None for rank in present)
            for rank in present:
                both = [rank] if partners[rank] is None else [rank, partners[rank]]
                if rank == min(both):
                    average([models[one] for one in both], sum(counts[one] for one in both), options["exchanged"])
            for rank in present:
                optimizers[rank].step()
        losses.append(total / seen)
    return losses, {name: sum(model[name].detach() for model in models) / ranks for name in initial}, messages


def average(models: list[dict[str, torch.Tensor]], count: int, exchanged: str) -> None:
    for name in models[0]:
        gradient = sum(model[name].grad for model in models) / max(1, count)
        mean = sum(model[name].detach() for model in models) / len(models)
        for model in models:
            model[name].grad = gradient.clone()
            if exchanged == "model":
                model[name].data = mean.clone()


@pytest.mark.parametrize("exchanged", ["model", "gradients"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_by_appointment_ranks_train_as_the_simulation_does(small, jobs, exchanged, ranks):
    job = jobs["certain", exchanged, ranks]
    losses, weights, messages = simulate(small, job, ranks)
    epochs = epochs_of(job)
    np.testing.assert_allclose(epochs[epochs["rank"] == 0]["loss"], losses, **TOLERANCE)
    for rank in range(ranks):
        for name, value in job.weights(rank).items():
            torch.testing.assert_close(value, weights[name], **WEIGHT_TOLERANCE)
    num_values = job.metrics()["model_parameters"] * (1 + (exchanged == "model")) + 2
    sent = epochs.groupby("epoch")["sent_weights_bytes"].sum()
    assert sent.tolist() == [4 * num_values * number for number in messages]
    assert ranks == 1 or sum(messages) > 0


@pytest.mark.parametrize("name", ["waiting", "matching", "few"])
def test_every_batch_is_trained_once_by_whoever_is_free(small, uneven, name):
    job = uneven[name]
    epochs = epochs_of(job)
    assert (epochs.groupby("epoch")["steps"].sum() == read_json(job.spec)["strategy"]["clusters"]).all()
    assert (epochs.groupby("epoch")["train_nodes"].sum() == (small.graph.split == 0).sum()).all()
    assert epochs["loss"].notna().all()
    assert epochs.groupby("epoch")["loss"].nunique().eq(1).all()
    for rank in (1, 2):
        for key, value in job.weights(rank).items():
            assert torch.equal(value, job.weights(0)[key])


@pytest.mark.parametrize("name", ["waiting", "matching"])
def test_a_slow_rank_takes_fewer_batches_and_some_exchanges_happen(uneven, name):
    epochs = epochs_of(uneven[name])
    steps = epochs.groupby("rank")["steps"].sum()
    assert steps[SLOW_RANK] < steps.drop(SLOW_RANK).min()
    message = 4 * (2 * uneven[name].metrics()["model_parameters"] + 2)
    sent = epochs.groupby("epoch")["sent_weights_bytes"].sum()
    assert (sent % (2 * message) == 0).all()
    assert sent.sum() > 0


def test_ranks_are_blocked_as_long_as_they_wait_for_the_slow_one(uneven):
    epochs = epochs_of(uneven["together"])
    slow = epochs["rank"] == SLOW_RANK
    slept_s = SLEEP_S * epochs[slow].set_index("epoch")["steps"].sub(1)
    for _, row in epochs.iterrows():
        assert 0 < row["blocked_s"] < row["wall_s"]
        if row["rank"] != SLOW_RANK:
            assert row["blocked_s"] > slept_s[row["epoch"]] / 2


def test_profiled_runs_end_however_unequal_the_ranks(small, tmp_path, run_ranks):
    pools = {"waiting": "shared", "matching": "shared", "all": "static"}
    jobs = [
        gossip(small, tmp_path / partners, 3, "profiled", partners=partners, pool=pool, every=1)
        for partners, pool in pools.items()
    ]
    run_ranks(3, jobs, be_rank_of_which_one_is_slow)
    assert all((job.out / f"rank{rank}.json.gz").exists() for job in jobs for rank in range(3))


def test_runs_go_on_from_checkpoints(small, tmp_path, run_ranks):
    """And are the same as uninterrupted ones where nothing is left to timing."""

    def jobs(name: str, every: int) -> list[Job]:
        made = settings("gossip", 2, every=every)
        return [
            job_for(small, tmp_path / f"{name}-{number}", **made | {"strategy": {"epochs": 3, "clusters": 7} | options})
            for number, options in enumerate((LOCKSTEP, CERTAIN, {}))
        ]

    often, never = jobs("often", 1), jobs("never", 0)
    run_ranks(2, often, be_often_interrupted)
    run_ranks(2, never[:2])
    assert all(job.metrics()["resumed_at"] == [1, 2] for job in often)
    for interrupted, whole in zip(often[:2], never, strict=False):
        assert numbers(interrupted) == numbers(whole)


def test_all_ranks_need_a_static_pool(small, tmp_path):
    job = gossip(small, tmp_path, 2, partners="all")
    with pytest.raises(StudyError, match=r"strategy\.pool: found 'shared' with partners 'all'"):
        read_specification(job.spec)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_threads_that_look_for_partners_through_a_store_agree(size):
    """Each exchange that one thread has is one that the other has, whatever their pace; and each number goes once."""
    store, searches = HashStore(), 20

    def be(rank: int) -> tuple[list[tuple[int, int]], list[int]]:
        rng, met = np.random.default_rng(rank), []
        meetings = Meetings(store, patience_s=0.003, peer_timeout_s=20)
        for _ in range(searches):
            time.sleep(rng.exponential(0.002))
            partner = meetings.find(pairing.search_next(rank, "next"))
            met += [] if partner is None else [(rank, partner)]
        for number in range(searches - rank):
            partner = pairing.matching(size, 1, number)[rank]
            partner = meetings.find(pairing.search_appointed(rank, "appointed", number, partner))
            met += [] if partner is None else [(rank, partner)]
        meetings.leave("appointed", rank)
        return met, list(from_pool(store, "pool", 50))

    with ThreadPoolExecutor(size) as pool:
        met, taken = zip(*pool.map(be, range(size)), strict=True)
    pairs = [pair for of_rank in met for pair in of_rank]
    assert sorted(pairs) == sorted((other, one) for one, other in pairs)
    assert pairs
    assert sorted(number for numbers_taken in taken for number in numbers_taken) == list(range(50))


def test_a_rank_that_was_promised_and_does_not_come_is_an_error():
    store = HashStore()
    store.add("next/tickets", 1)  # It has a ticket, and never writes its name.
    with pytest.raises(TimeoutError, match="next/0/first"):
        Meetings(store, patience_s=0, peer_timeout_s=0.01).find(pairing.search_next(1, "next"))

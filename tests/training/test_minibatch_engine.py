"""The cache and the prefetching of `minibatch`: neither changes what is trained, and each does what it says."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from training_cases import Job, job_for

from anatomy.traces.options import ParseOptions
from anatomy.traces.rank.annotations import PHASES, PhaseTimeline, find_phases, find_steps
from anatomy.traces.rank.communication import find_collectives
from anatomy.traces.reading.events import Kind
from anatomy.traces.reading.trace import read_trace
from anatomy.training.caching import access_weight, chosen_nodes, degree_weight, inclusion_probability
from anatomy.training.features import OWNER_SHIFT, find_rows
from anatomy.training.prefetching import Prefetcher
from anatomy.training.sampling import NeighbourSampler, generator_for

RANKS = (1, 2, 3)
FRACTION = 0.3
CACHES = {
    policy: {"cache": {"policy": policy, "fraction": FRACTION}}
    for policy in ("degree", "accesses", "reverse_reachability")
}
OPTIONS = {
    "plain": {},
    "prefetch-1": {"prefetch": 1},
    "prefetch-3": {"prefetch": 3},
    "prefetch-99": {"prefetch": 99},
    "nothing": {"cache": {"policy": "degree", "fraction": 0}},
    "everything": {"cache": {"policy": "degree", "fraction": 1}},
    **CACHES,
    "both": CACHES["degree"] | {"prefetch": 2},
}


@pytest.fixture(scope="module")
def runs(small, run_ranks, tmp_path_factory):
    """Every option on 1, 2 and 3 ranks, of which the third has no training node: job, epochs and metrics."""
    folder = tmp_path_factory.mktemp("engine")
    jobs = {
        (name, ranks): job_for(small, folder / f"{name}-{ranks}", method="minibatch", ranks=ranks, strategy=options)
        for (name, options), ranks in product(OPTIONS.items(), RANKS)
    }
    for ranks in RANKS:
        run_ranks(ranks, [job for key, job in jobs.items() if key[1] == ranks])
    return {key: (job, pd.read_parquet(job.out / "epochs.parquet"), job.metrics()) for key, job in jobs.items()}


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", OPTIONS)
def test_losses_and_weights_are_the_plain_ones_bit_by_bit(runs, name, ranks):
    _, epochs, metrics = runs[name, ranks]
    _, plain, expected = runs["plain", ranks]
    assert epochs["loss"].tolist() == plain["loss"].tolist()
    assert metrics["weights_sha256"] == expected["weights_sha256"]


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", OPTIONS)
def test_a_row_is_fetched_or_hit_and_only_fetched_ones_are_sent(runs, name, ranks):
    job, epochs, _ = runs[name, ranks]
    _, plain, _ = runs["plain", ranks]
    assert (epochs["remote_nodes"] + epochs["cache_hits"]).tolist() == plain["remote_nodes"].tolist()
    each = epochs.groupby("epoch").sum(numeric_only=True)
    assert (each["sent_features_bytes"] == each["remote_nodes"] * 5 * 4).all()
    recorded = pd.read_parquet(job.out / "accesses.parquet").groupby(["rank", "epoch"])["count"].sum()
    fetched = epochs.set_index(["rank", "epoch"])["remote_nodes"]
    assert (recorded == fetched.loc[recorded.index]).all()


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", OPTIONS)
def test_what_the_cache_holds_is_what_was_predicted(runs, name, ranks):
    _, epochs, metrics = runs[name, ranks]
    first = epochs[epochs["epoch"] == 0]
    sent = metrics["setup_sent_bytes"]["features"]
    assert first["cache_bytes"].sum() == sent == metrics["predicted"]["sent_features_bytes_once"]
    assert (sent > 0) == ("cache" in OPTIONS[name] and name != "nothing" and ranks > 1)


def test_a_cache_of_everything_leaves_nothing_to_fetch(runs):
    _, epochs, _ = runs["everything", 3]
    assert epochs["remote_nodes"].sum() == 0
    assert epochs["cache_hits"].sum() > 0


@pytest.mark.parametrize("policy", CACHES)
def test_each_rank_keeps_the_heaviest_remote_nodes(small, runs, policy):
    """What it never fetches, of all that the plain run fetches, is among these, and what it fetches is not."""
    job, _, _ = runs[policy, 3]
    plain, _, _ = runs["plain", 3]
    graph, assignment = small.graph, np.load(job.partition / "assignment.npy")
    fanouts, batch_size = [3, 2, 2], 4
    sampler = NeighbourSampler(torch.from_numpy(graph.indptr.copy()), torch.from_numpy(graph.indices.copy()), fanouts)
    fetched, without = (pd.read_parquet(one.out / "accesses.parquet") for one in (job, plain))
    for rank in range(3):
        training = np.flatnonzero((graph.split == 0) & (assignment == rank))
        weight = {
            "degree": lambda: degree_weight(graph),
            "accesses": lambda rank=rank, training=training: access_weight(
                graph.num_nodes, presampled(sampler, training, rank, batch_size)
            ),
            "reverse_reachability": lambda training=training: inclusion_probability(
                graph, training, batch_size, fanouts
            ),
        }[policy]()
        kept = set(chosen_nodes(np.flatnonzero(assignment != rank), FRACTION, weight).tolist())
        asked, missed = (set(rows.loc[rows["rank"] == rank, "node"]) for rows in (without, fetched))
        assert asked - missed == asked & kept
        assert len(kept) == int(FRACTION * np.count_nonzero(assignment != rank))


def presampled(sampler: NeighbourSampler, training: np.ndarray, rank: int, batch_size: int):
    """The batches from which accesses are counted, by their definition: two epochs of generators of their own."""
    for epoch in range(2):
        generator = generator_for(0, rank, epoch, 1)
        order = torch.randperm(len(training), generator=generator)
        for seeds in torch.from_numpy(training)[order].split(batch_size):
            yield sampler.sample(seeds, generator).input_nodes


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), num_ranks=st.integers(1, 4), num_nodes=st.integers(1, 30))
def test_rows_are_found_as_their_definition_says(seed, num_ranks, num_nodes):
    rng = np.random.default_rng(seed)
    owner_of, row_of = rng.integers(0, num_ranks, 40), rng.integers(0, 100, 40)
    nodes = rng.permutation(40)[:num_nodes]
    rank, num_own, first = int(rng.integers(num_ranks)), 50, 1000
    places = (owner_of << OWNER_SHIFT) | row_of
    rows, wanted, counts, hits = find_rows(nodes, places, rank, num_ranks, num_own, first)
    own = owner_of[nodes] == rank
    assert (rows[own] == row_of[nodes[own]]).all()
    assert hits == np.count_nonzero(row_of[nodes[own]] >= num_own)
    remote = nodes[~own]
    assert sorted(rows[~own]) == list(range(first, first + len(remote)))
    arrived = remote[np.argsort(rows[~own])]
    assert (wanted == row_of[arrived]).all()
    assert (np.diff(owner_of[arrived]) >= 0).all()
    assert counts.tolist() == np.bincount(owner_of[remote], minlength=num_ranks).tolist()


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), fanouts=st.lists(st.sampled_from([-1, 1, 2, 5]), min_size=1, max_size=3))
def test_inclusion_probability_is_its_recurrence(small, seed, fanouts):
    graph, rng = small.graph, np.random.default_rng(seed)
    training = rng.permutation(graph.num_nodes)[:11]
    reached = np.zeros(graph.num_nodes)
    reached[training] = 4 / 11
    outside = np.ones(graph.num_nodes)
    for fanout in reversed(fanouts):
        missed = np.ones(graph.num_nodes)
        for v in range(graph.num_nodes):
            neighbours = graph.indices[graph.indptr[v] : graph.indptr[v + 1]]
            share = 1.0 if fanout < 0 else min(1.0, fanout / max(1, len(neighbours)))
            missed[neighbours] *= 1 - share * reached[v]
        reached = 1 - missed
        outside *= missed
    np.testing.assert_allclose(inclusion_probability(graph, training, 4, fanouts), 1 - outside, atol=1e-9)


def test_inclusion_probability_is_how_often_batches_hold_a_node(small):
    """Of one hop from all training nodes at once, where the nodes that sample are independent."""
    graph, training, draws = small.graph, np.arange(20), 4000
    structure = torch.from_numpy(graph.indptr.copy()), torch.from_numpy(graph.indices.copy())
    sampler, generator = NeighbourSampler(*structure, [2]), generator_for(0)
    batches = (sampler.sample(torch.from_numpy(training), generator).input_nodes for _ in range(draws))
    found = access_weight(graph.num_nodes, batches)[20:] / draws
    expected = inclusion_probability(graph, training, len(training), [2])[20:]
    assert (np.abs(found - expected) <= 5 * np.sqrt(expected * (1 - expected) / draws) + 1e-12).all()


@settings(max_examples=40)
@given(number=st.integers(0, 8), depth=st.integers(0, 4), stages=st.integers(0, 5))
def test_works_are_taken_in_order_and_no_more_are_under_way_than_allowed(number, depth, stages):
    begun, ended = [], []

    def work(index: int):
        begun.append(index)
        for _ in range(stages):
            yield
        ended.append(index)
        return index

    prefetcher = Prefetcher((work(index) for index in range(number)), depth)
    for index in range(number):
        assert prefetcher.take() == index
        assert begun == list(range(min(number, max(index + 1, index + 1 + depth))))
        prefetcher.go_on()
    assert ended == sorted(ended) == list(range(number))


@pytest.fixture(scope="module")
def traces(small, run_ranks, tmp_path_factory) -> dict[int, Job]:
    """Profiled runs of two ranks by how many batches they prepare ahead."""
    folder = tmp_path_factory.mktemp("profiled")
    jobs = {
        depth: job_for(
            small, folder / str(depth), "profiled", method="minibatch", ranks=2, strategy={"prefetch": depth},
            profile={"wait": 0, "warmup": 1, "active": 5},
        )
        for depth in (0, 2)
    }  # fmt: skip
    run_ranks(2, list(jobs.values()))
    return jobs


@pytest.mark.parametrize("depth", [0, 2])
def test_a_trace_shows_fetches_under_way_while_the_loss_is_computed_only_with_prefetching(traces, depth):
    for rank in range(2):
        events = read_trace(traces[depth].out / f"rank{rank}.json.gz", ParseOptions()).events
        found = find_collectives(events, find_steps(events), PhaseTimeline(find_phases(events)))
        exchanges = found["kind"] == "all_to_all_v"
        assert {PHASES[code] for code in found["phase"][exchanges]} == {"fetch"}
        starts, ends = (found[column][exchanges] for column in ("start_ns", "end_ns"))
        losses = np.flatnonzero(
            (events.kind == Kind.OP) & events.by_name(lambda text: text == "aten::nll_loss_forward")
        )
        under_way = [
            np.count_nonzero((starts < events.start_ns[loss]) & (ends > events.end_ns[loss])) for loss in losses
        ]
        assert len(losses) >= 3
        assert any(under_way) == (depth > 0)

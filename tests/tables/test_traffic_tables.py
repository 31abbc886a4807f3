"""Tables about bytes: volume and cache."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anatomy.errors import StudyError
from anatomy.tables.cache import out_degrees

# Four nodes in a ring; parts {0, 1} and {2, 3}.
RING = [[1, 3], [0, 2], [1, 3], [0, 2]]


@pytest.fixture
def ring(results):
    results.graph("ring", RING, num_features=5)
    results.partition("ring", "metis-2", [0, 0, 1, 1], [[0, 2], [2, 0]])
    return results


def both_ranks(epoch: int, **values) -> list[dict]:
    return [{"rank": rank, "epoch": epoch} | values for rank in (0, 1)]


class TestVolume:
    def by_kind(self, built, results, run):
        return built("volume", results.study(run)).set_index("kind")

    def test_full_graph_bytes_follow_from_the_partition(self, ring, built):
        epochs = both_ranks(0, sent_activations_bytes=999, warmup=True)
        epochs += both_ranks(1, sent_activations_bytes=24, sent_gradients_bytes=24, sent_weights_bytes=48)
        table = self.by_kind(built, ring, ring.run(epochs=epochs))
        # 4 halo nodes x 3 numbers of the hidden layer x 4 B
        assert table.loc["activations", "predicted_bytes_per_epoch"] == 48
        assert table.loc["activations", "measured_bytes_per_epoch"] == 48
        assert table.loc["gradients", "predicted_bytes_per_epoch"] == 48
        # 2 x (2 - 1) x (10 parameters + loss + count) x 4 B in one step
        assert table.loc["weights", "predicted_bytes_per_epoch"] == 96
        assert table.loc["features"].isna()["predicted_bytes_per_epoch"]
        assert set(table["communication_volume"]) == {4}

    def test_what_training_declared_stands_beside_what_the_partition_says(self, ring, built):
        declared = {"sent_activations_bytes_per_epoch": 47, "sent_weights_bytes_per_epoch": None}
        table = self.by_kind(built, ring, ring.run(epochs=both_ranks(0), predicted=declared))
        assert table.loc["activations", "declared_bytes_per_epoch"] == 47
        assert table.loc["activations", "predicted_bytes_per_epoch"] == 48
        assert table["declared_bytes_per_epoch"].isna().sum() == 4

    @pytest.mark.parametrize("method", ["bns", "pipeline", "one of tomorrow"])
    def test_of_any_other_method_the_prediction_is_what_it_declared(self, method, ring, built):
        declared = {"sent_features_bytes_per_epoch": 40, "sent_activations_bytes_per_epoch": 0}
        declared |= {"sent_gradients_bytes_per_epoch": None, "sent_features_bytes_once": 7}
        epochs = both_ranks(0, sent_features_bytes=20, sent_gradients_bytes=9)
        table = self.by_kind(built, ring, ring.run(method=method, epochs=epochs, predicted=declared))
        predicted = table["predicted_bytes_per_epoch"].dropna()
        assert predicted.to_dict() == {"features": 40, "activations": 0}
        assert set(table.loc[predicted.index, "predicted_from"]) == {"strategy"}
        assert table.loc["features", "compared_bytes_per_epoch"] == 40
        assert table["predicted_from"].notna().sum() == 2

    def test_feature_bytes_follow_from_the_sampled_nodes(self, ring, built):
        epochs = [row for epoch in range(3) for row in both_ranks(epoch, sent_features_bytes=100 * epoch)]
        accesses = [
            {"rank": 0, "epoch": 1, "node": 2, "count": 3},
            {"rank": 0, "epoch": 1, "node": 0, "count": 100},  # its own: costs nothing
            {"rank": 1, "epoch": 2, "node": 1, "count": 4},
        ]
        table = self.by_kind(built, ring, ring.run(method="minibatch", epochs=epochs, accesses=accesses))
        features = table.loc["features"]
        assert features["predicted_bytes_per_epoch"] == (3 + 4) * 5 * 4 / 2  # rows x features x 4 B over 2 epochs
        assert features["measured_bytes_per_epoch"] == (0 + 200 + 400) / 3
        assert features["compared_bytes_per_epoch"] == (200 + 400) / 2  # the two epochs that were recorded
        assert features["predicted_from"] == "accesses"
        # rows x 4 B, and one step an epoch in which 2 ranks send 1 other 8 B
        assert table.loc["requests", "predicted_bytes_per_epoch"] == (3 + 4) * 4 / 2 + 2 * 8

    def test_a_partition_of_another_graph_is_refused(self, ring, built):
        (ring.folder / "graphs" / "ring" / "graph.json").unlink()
        other = ring.folder / "graphs" / "other"
        ring.graph("other", RING)
        (other / "graph.json").rename(ring.folder / "graphs" / "ring" / "graph.json")
        run = ring.run(
            method="minibatch", epochs=both_ranks(0), accesses=[{"rank": 0, "epoch": 0, "node": 2, "count": 1}]
        )
        with pytest.raises(StudyError, match="made for another graph"):
            built("volume", ring.study(run))


class TestCache:
    # Nodes 0 and 1 belong to rank 0; of the others 4 is somebody's in-neighbour three times, 3 twice, 2 and 5 once.
    GRAPH = ((4, 3, 2), (4, 3), (4,), (5,), (), ())

    def run(self, results, accesses):
        results.graph("star", self.GRAPH)
        results.partition("star", "metis-2", [0, 0, 1, 1, 1, 1], [[0, 0], [4, 0]])
        rows = [{"rank": 0, "epoch": epoch, "node": node, "count": count} for epoch, node, count in accesses]
        return results.run(graph="star", method="minibatch", epochs=both_ranks(0), accesses=rows)

    def test_hits_by_degree_and_by_the_accesses_before(self, results, built):
        # (epoch, node, count): before, 5 was asked for most; now 4 and 2 are.
        run = self.run(results, [(6, 5, 9), (6, 2, 3), (7, 4, 6), (7, 2, 3), (7, 5, 1)])
        table = built("cache", results.study(run), capacity_shares=[0.17, 0.34]).set_index(["policy", "capacity_share"])
        assert table["capacity_nodes"].tolist() == [1, 2, 1, 2]  # of 6 nodes, rounded down
        assert set(table["accesses"]) == {10}
        assert set(table["distinct"]) == {3}
        assert set(table["repeated_share"]) == {1 - 3 / 10}
        assert table.loc[("degree", 0.17), "hits"] == 6  # {4}
        assert table.loc[("degree", 0.34), "hits"] == 6  # {4, 3}
        assert table.loc[("accesses", 0.17), "hits"] == 1  # {5}
        assert table.loc[("accesses", 0.34), "hits"] == 1 + 3  # {5, 2}

    def test_one_epoch_cannot_fill_a_cache_by_accesses(self, results, built):
        table = built("cache", results.study(self.run(results, [(0, 4, 1)])), capacity_shares=[0.2])
        assert table.set_index("policy")["hit_rate"].isna().to_dict() == {"degree": False, "accesses": True}

    def test_a_larger_cache_never_has_fewer_hits(self, results, built):
        run = self.run(results, [(0, 5, 2), (0, 4, 2), (1, 2, 5), (1, 3, 1), (1, 4, 2), (1, 5, 2)])
        table = built("cache", results.study(run), capacity_shares=[0.1, 0.2, 0.4, 0.6, 0.8, 1.0])
        for _, rates in table.groupby("policy")["hit_rate"]:
            assert rates.is_monotonic_increasing
        assert table.set_index(["policy", "capacity_share"]).loc[("degree", 1.0), "hit_rate"] == 1

    def test_runs_without_remote_features_have_no_rows(self, results, built):
        study = results.study(self.run(results, []), results.run(status="time limit", seed=1))
        assert built("cache", study)["status"].tolist() == ["time limit"]


@given(st.lists(st.integers(0, 9), max_size=40), st.integers(1, 7))
def test_out_degrees_do_not_depend_on_the_pieces(indices, entries_at_once):
    degrees = out_degrees(np.array(indices, dtype=np.int64), 10, entries_at_once)
    assert degrees.tolist() == [indices.count(node) for node in range(10)]

"""Mini-batches of clusters: the graph is cut into many clusters, a batch is a few of them and the edges between them.

After Cluster-GCN (Chiang, Liu, Si, Li, Bengio and Hsieh, "Cluster-GCN: an efficient algorithm for training deep and
large graph convolutional networks", KDD 2019, arXiv 1905.07953), Algorithm 1 with several clusters per batch. METIS
cuts the graph; in every epoch the clusters are put in random order and taken `clusters_per_batch` at a time, each once.
No node looks beyond its batch, so a batch costs what its own edges cost, however many layers there are. Where a layer
normalises, it does so by the degrees within the batch: the paper normalises the combined clusters again, and so does
its code (`preprocess_multicluster`). The code keeps one cutting of the order for all epochs where a batch is a single
cluster, and normalises what was left of the graph once, which comes to the same. The paper's diagonal enhancement is a
layer of its own and not implemented: layers are those of the study. The code cuts the graph of the training nodes
alone, for inductive learning; here all nodes are in the batches, and the training nodes have the loss.

The paper trains on one GPU. Here every rank takes a batch per step, all of one list: the clusters are of the whole
graph, not of a rank's part, and every rank maps structure, features and labels of the whole graph. Training sends
nothing but one all-reduce per step. The partition says who evaluates which nodes. In an epoch's last step some ranks
may have no batch; they add zeros.

A step is a full-graph step on a graph that has only the edges within its batches, with the loss on the training nodes
of its batches. With all clusters in one batch that is full-graph training, on any number of ranks: one of them has the
batch, and the others nothing to do.
"""

import math
from typing import Any

import torch

from anatomy.training.clusters import ClusterBatches, ClusterLoss, cut_into_clusters
from anatomy.training.evaluation import Evaluator
from anatomy.training.parts import local_part
from anatomy.training.strategies._base import EpochResult, PredictedBytes
from anatomy.training.strategies._base import Strategy as Base

OPTIONS: dict[str, Any] = {
    "properties": {
        "epochs": {"type": "integer", "minimum": 1, "description": "Epochs to train, warm-up included."},
        "clusters": {
            "type": "integer",
            "minimum": 1,
            "default": 50,
            "description": "Clusters of the whole graph; the paper's number for PPI.",
        },
        "clusters_per_batch": {
            "type": "integer",
            "minimum": 1,
            "default": 1,
            "description": "Clusters of a batch (q); more than there are: all.",
        },
    },
    "required": ["epochs"],
}
PACKAGES = ("pymetis",)
EXACT = ({"clusters": 4, "clusters_per_batch": 4},)
GRADIENTS = ("own_losses",)


class Strategy(Base):
    """See the module. `batches` and `batch_loss` are there after `prepare`."""

    def prepare(self) -> None:
        context = self.context
        options, graph = context.specification.strategy, context.graph
        self.batches = ClusterBatches(cut_into_clusters(context), options["clusters_per_batch"])
        self.batch_loss = ClusterLoss(context)
        part = local_part(graph, context.partition, context.communicator.rank)
        self._own = torch.from_numpy(graph.features[part.nodes.numpy()])
        self._evaluator = Evaluator(context, part)

    def train_epoch(self, epoch: int, record_accesses: bool = False) -> EpochResult:
        context = self.context
        context.model.train()
        batches = self.batches.of_epoch(context.specification.seed, epoch)
        steps, train_nodes = self.steps_of_all(), 0
        loss_sum, count = 0.0, 0
        for step in range(steps):
            with context.step():
                number = step * context.communicator.size + context.communicator.rank
                loss, num_seed_nodes = self.batch_loss(batches[number]) if number < len(batches) else (None, 0)
                step_loss, step_count = context.update(loss, num_seed_nodes)
                loss_sum, count, train_nodes = loss_sum + step_loss, count + step_count, train_nodes + num_seed_nodes
        return EpochResult(steps, train_nodes, context.mean_loss(loss_sum, count))

    def evaluate(self) -> dict[str, float | None]:
        return self._evaluator.accuracies(self._own)

    def predict(self) -> PredictedBytes:
        return PredictedBytes(0, 0, self.context.gradients.bytes_per_epoch(self.steps_of_all()), 0)

    def steps_of_all(self) -> int:
        """Steps of an epoch in which every rank takes a batch per step, as long as there are any."""
        return math.ceil(len(self.batches) / self.context.communicator.size)

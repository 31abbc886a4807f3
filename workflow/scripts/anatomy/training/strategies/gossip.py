"""`clustergcn` without an all-reduce: ranks take batches from a shared pool, and average with one partner now and then.

After Zhang and Goswami, "Efficient asynchronous GCN training on a GPU cluster", ICPADS 2021
(doi 10.1109/ICPADS53394.2021.00086), of which the authors' text that was at hand is the abstract, and that of Zhang's
thesis of the same name (Concordia University, 2021): Cluster-GCN, where ranks periodically exchange gradients with
randomly chosen partners, a work pool that balances their load, and a gossip algorithm without deadlocks. Its protocol
is not described there, no code is public, and so the protocol is this study's own: see `training.pairing`, where the
argument stands why no rank ever waits for ever. What the abstract leaves open is decided so:

- `pool: shared`: the batches of an epoch are those of `clustergcn`. Whoever is free takes the next (a counter in the
  process group's store). A rank that finds none left has ended its epoch. `static`: each rank has every size-th batch.
- `partners`: who averages with whom, every `every` steps of a rank's own. `waiting`: whoever comes next, for which a
  rank waits `patience_s` at most. `matching`: whom a random matching of the ranks, drawn for each round from the seed,
  says; a rank goes on alone where its partner has ended the epoch or does not come within `patience_s`. `all`: an
  all-reduce, for which the pool has to be static.
- `exchanged`: `gradients` are those of the step, averaged over the seed nodes of both, as the abstract has it. By what
  ranks do between exchanges, their models then drift apart until the end. `model` averages the weights too, as gossip
  does in AD-PSGD (Lian, Zhang, Zhang and Liu, "Asynchronous decentralized parallel stochastic gradient descent", ICML
  2018, arXiv 1710.06952, Algorithm 1). Adam's moments are each rank's own.

With `all` in every step, this is `clustergcn`; with all clusters in one batch besides, full-graph training.

The model of a run is the mean of all ranks' models: it is evaluated, and after the last epoch's evaluation every rank
has it. Epochs begin together; a rank's time in an epoch ends when it finds the pool empty. Steps and training nodes
are each rank's own; the loss is the mean over all, summed up when the epoch's time is taken.

A checkpoint holds each rank's model and moments, and an epoch carries nothing else into the next. But who takes which
batch and who meets whom is decided by timing. So a resumed run goes on from the same models, and is the same as an
uninterrupted one only where nothing is left to timing: with `all`, or with `matching`, a static pool and patience
enough. For the same reason there is a closed form of the bytes for `all` alone.

A profiled run's ranks may reach its window in different epochs, since a fast rank makes more steps of each. A rank
that waits there for the others answers no search; who looks for it loses its patience and goes on. Looking for a
partner is no collective: in a trace it is time in `sync` and counts as other. Exchanges are messages, which a trace's
reader matches where both ranks have them in the same step of their own.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import uuid4

from anatomy.training.gossip import GossipSynchroniser, Meetings, from_pool, store_of
from anatomy.training.strategies._base import EpochResult
from anatomy.training.strategies.clustergcn import Strategy as ClusterStrategy

OPTIONS: dict[str, Any] = {
    "properties": {
        "epochs": {"type": "integer", "minimum": 1, "description": "Epochs to train, warm-up included."},
        "clusters": {"type": "integer", "minimum": 1, "default": 50, "description": "Clusters of the whole graph."},
        "clusters_per_batch": {
            "type": "integer",
            "minimum": 1,
            "default": 1,
            "description": "Clusters of a batch (q); more than there are: all.",
        },
        "pool": {
            "enum": ["shared", "static"],
            "default": "shared",
            "description": "Whether a free rank takes the next batch, or each has its own.",
        },
        "partners": {
            "enum": ["waiting", "matching", "all"],
            "default": "waiting",
            "description": "Whom a rank averages with: whoever comes next, whom a seeded matching says, or all.",
        },
        "every": {
            "type": "integer",
            "minimum": 1,
            "default": 4,
            "description": "Steps of a rank between two exchanges (tau).",
        },
        "exchanged": {
            "enum": ["gradients", "model"],
            "default": "gradients",
            "description": "What is averaged: gradients alone, or weights and gradients.",
        },
        "patience_s": {
            "type": "number",
            "minimum": 0,
            "default": 0.005,
            "description": "Seconds that a rank waits for a partner before it goes on alone; a fast rank has little of "
            "its speed where this is as long as a slow one's steps.",
        },
    },
    "required": ["epochs"],
}
PACKAGES = ("pymetis",)
ASYNCHRONOUS = True
EXACT = ({"clusters": 4, "clusters_per_batch": 4, "pool": "static", "partners": "all", "every": 1},)
GRADIENTS = None


class Strategy(ClusterStrategy):
    """See the module."""

    def prepare(self) -> None:
        super().prepare()
        context = self.context
        options, training = context.specification.strategy, context.specification.training
        self._store = store_of(context.communicator)
        self._name = f"gossip/{context.communicator.broadcast(uuid4().hex)}"
        self._gossip = GossipSynchroniser(
            context.gradients.parameters,
            context.communicator,
            Meetings(self._store, options["patience_s"], training.peer_timeout_s),
            partners=options["partners"],
            every=options["every"],
            with_weights=options["exchanged"] == "model",
        )
        context.gradients = self._gossip
        self._summed = (0.0, 0)

    def train_epoch(self, epoch: int, record_accesses: bool = False) -> EpochResult:
        context = self.context
        context.model.train()
        batches = self.batches.of_epoch(context.specification.seed, epoch)
        loss_sum, train_nodes, steps = 0.0, 0, 0
        self._gossip.enter(f"{self._name}/{epoch}", context.specification.seed, epoch)
        try:
            for number in self._numbers(epoch):
                with context.step():
                    loss, num_seed_nodes = self.batch_loss(batches[number]) if number < len(batches) else (None, 0)
                    step_loss, step_nodes = context.update(loss, num_seed_nodes)
                    loss_sum, train_nodes, steps = loss_sum + step_loss, train_nodes + step_nodes, steps + 1
        finally:
            self._gossip.leave()
        self._summed = (loss_sum, train_nodes)
        return EpochResult(steps, train_nodes, loss_sum / train_nodes if train_nodes else math.nan)

    def complete(self, result: EpochResult) -> EpochResult:
        return super().complete(replace(result, loss=self.context.mean_loss(*self._summed)))

    def _numbers(self, epoch: int) -> Iterator[int]:
        """Which of the epoch's batches this rank takes; with `all`, as many on every rank, some of them none."""
        options, communicator = self.context.specification.strategy, self.context.communicator
        if options["pool"] == "shared":
            return from_pool(self._store, f"{self._name}/{epoch}/pool", len(self.batches))
        end = self.steps_of_all() * communicator.size if options["partners"] == "all" else len(self.batches)
        return iter(range(communicator.rank, end, communicator.size))

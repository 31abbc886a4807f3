"""What every strategy offers, and what it is given."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch

from anatomy.graphs.store import Graph
from anatomy.partitions.store import Partition
from anatomy.training.communication import Communicator
from anatomy.training.disturb import Disturbance
from anatomy.training.gradients import GradientSynchroniser, Piece
from anatomy.training.model import Model
from anatomy.training.operators.base import Operators
from anatomy.training.optimizer import Adam
from anatomy.training.specification import RunSpecification


@dataclass
class Context:
    """What a rank trains with. `window` is entered around every step: profiling hangs on it."""

    specification: RunSpecification
    graph: Graph
    partition: Partition
    communicator: Communicator
    operators: Operators
    device: torch.device
    model: Model
    optimizer: Adam
    gradients: GradientSynchroniser
    disturbance: Disturbance = field(default_factory=Disturbance)
    window: Callable[[], AbstractContextManager[None]] = field(default=nullcontext)

    @contextmanager
    def step(self) -> Iterator[None]:
        """What a strategy enters around every training step; it ends with what an emulated slow rank owes."""
        with self.window(), self.disturbance.step():
            yield

    def update(self, loss_sum: torch.Tensor | None, num_seed_nodes: int) -> tuple[float, int]:
        """Backward, synchronise, optimise; returns a summed loss and a number of seed nodes, both for `mean_loss`."""
        return self.update_in_pieces([(loss_sum, num_seed_nodes)])

    def update_in_pieces(self, pieces: Iterable[Piece]) -> tuple[float, int]:
        """As `update`, of a step in `gradients.micro_batches` pieces; each is computed as it is taken, or never."""
        return self.gradients.update(self.optimizer, pieces)

    def mean_loss(self, loss_sum: float, count: int) -> float:
        """Mean loss of an epoch, from sums of what `update` returned; maybe a rank's own, until `Strategy.complete`."""
        return self.gradients.mean_loss(loss_sum, count)


@dataclass
class EpochResult:
    """What one rank reports of an epoch.

    `train_nodes`: this rank's seed nodes; `loss`: mean over those of all ranks; `remote_nodes`: rows fetched;
    `cache_hits`: rows not fetched, since this rank keeps a copy, and `cache_bytes`: the memory of all its copies;
    `sent_fraction`: of the rows that an exact exchange would have sent, forward and backward, how many this rank sent;
    None where a strategy does not choose, or nothing is to be sent; `batch_share`: this rank's share of each step's
    seed nodes, None where a strategy does not set it; `traffic`: of a strategy that counts it, what went to which rank
    in exchanges and what that is predicted from: `sent_to_bytes` [ranks], `rows` [parts], `batch_bytes`.
    """

    steps: int
    train_nodes: int
    loss: float
    remote_nodes: int = 0
    sent_fraction: float | None = None
    batch_share: float | None = None
    cache_hits: int = 0
    cache_bytes: int = 0
    traffic: dict[str, Any] | None = None


@dataclass(frozen=True)
class PredictedBytes:
    """Bytes sent by all ranks together, from the partition and the model alone; None where there is no closed form."""

    sent_activations_bytes_per_epoch: int | None = None
    sent_gradients_bytes_per_epoch: int | None = None
    sent_weights_bytes_per_epoch: int | None = None
    sent_features_bytes_per_epoch: int | None = None
    sent_features_bytes_once: int | None = None
    between_hosts_bytes_per_epoch: int | None = None
    """Those of exchanged rows, and of what announces them, that go to ranks of other hosts."""


class Strategy(ABC):
    """One way of training. All ranks make the same calls in the same order, whatever their parts hold."""

    uncounted: ClassVar[tuple[str, ...]] = ()
    """Kinds of bytes that are sent and that nobody counts; they are missing from the results, not 0."""
    accounted: ClassVar[tuple[str, ...]] = ()
    """Attributes whose memory the account of memory computes from sizes; see `holdings`."""

    def __init__(self, context: Context) -> None:
        self.context = context

    @abstractmethod
    def prepare(self) -> None:
        """Load this rank's part; what is sent now is counted as set-up."""

    @abstractmethod
    def train_epoch(self, epoch: int, record_accesses: bool = False) -> EpochResult:
        """Train one epoch; with `record_accesses` the remote nodes fetched are kept for `accesses`."""

    def complete(self, result: EpochResult) -> EpochResult:
        """An epoch's result, once it is timed, with what takes all ranks together to say; all of them call this.

        It is for strategies whose ranks do not train in step, so that no rank waits for others within an epoch's time.
        By default it is the loss where ranks know their own alone.
        """
        return replace(result, loss=self.context.gradients.mean_loss_of_all(result.loss))

    @abstractmethod
    def evaluate(self) -> dict[str, float | None]:
        """Accuracy by split (`train`, `val`, `test`) with all neighbours, on rank 0; None for a split without nodes.

        On every rank that evaluates the nodes of its own part also `own_train`, `own_val`, `own_test`: over these.
        """

    @abstractmethod
    def predict(self) -> PredictedBytes:
        """Closed forms of what this strategy sends."""

    def state(self) -> dict[str, torch.Tensor]:
        """What this rank carries from one epoch to the next beyond the model, the optimiser and torch's generators.

        None by default. A strategy that keeps more (stale activations, a cache that changes) overrides this and
        `restore`, or a resumed run is not the same as an uninterrupted one.
        """
        return {}

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Go on from a `state`, CPU tensors, of the same strategy on the same rank; called after `prepare`."""
        assert not state, "a strategy that keeps a state restores it"

    def accesses(self) -> tuple[np.ndarray, np.ndarray]:
        """Remote nodes fetched in the recorded epoch, int64, and how many times, int32; none by default."""
        return np.empty(0, np.int64), np.empty(0, np.int32)

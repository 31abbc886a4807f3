"""What one rank does from start to end, in either mode: read as the run's outline.

Timed runs write `epochs.parquet`, `accesses.parquet` and `metrics.json`; profiled runs `rank{r}.json.gz` and
`manifest.json`. Rank 0 writes, and only after every rank has come to the end.
"""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from anatomy.errors import StudyError
from anatomy.files import attempt
from anatomy.graphs.store import Graph, open_graph
from anatomy.partitions.store import Partition, open_partition
from anatomy.training.communication import Communicator
from anatomy.training.cpu_share import NoControlGroup, limited
from anatomy.training.disturb import Disturbance
from anatomy.training.gradients import EXTRA_VALUES
from anatomy.training.model import Model
from anatomy.training.operators import load_operators
from anatomy.training.optimizer import FlatParameters
from anatomy.training.options import GRADIENT_POLICIES, STRATEGIES, gradient_policy
from anatomy.training.profiled import profile_steps
from anatomy.training.results import MANIFESTS
from anatomy.training.sampling import generator_for
from anatomy.training.specification import RunSpecification, read_specification
from anatomy.training.strategies._base import Context, Strategy
from anatomy.training.timed import time_epochs

InitMethod = str | Callable[[timedelta], dist.Store]
"""Where the ranks meet: torch's `init_method`, or what makes a store, given how long a rank may wait for others."""

MODES = {"timed": time_epochs, "profiled": profile_steps}


@dataclass(frozen=True)
class Inputs:
    """What a run reads, opened and checked."""

    specification: RunSpecification
    graph: Graph
    partition: Partition

    def check_ranks(self) -> None:
        """Raise StudyError unless as many processes were started as the specification has ranks."""
        size = int(os.environ.get("WORLD_SIZE", "1"))
        if size != self.specification.ranks:
            raise StudyError(
                f"{self.specification.path}: ranks: found {self.specification.ranks}, but {size} process(es) were "
                f"started; start torchrun with --nproc-per-node {self.specification.ranks}"
            )


def open_inputs(spec: Path, graph: Path, partition: Path) -> Inputs:
    """Open everything that a run reads and check that it belongs together.

    Raises StudyError where a setting is wrong, an input damaged, or the partition another graph's or of another size.
    """
    specification = read_specification(spec)
    opened = open_graph(graph)
    parts = open_partition(partition, opened)
    if specification.graph != opened.name:
        raise StudyError(
            f"{spec}: graph: found {specification.graph!r}, but {graph} holds {opened.name!r}; name that graph"
        )
    if parts.num_parts != specification.ranks:
        raise StudyError(
            f"{spec}: ranks: found {specification.ranks}, but {partition} has {parts.num_parts} parts; every rank "
            "trains one part, so the two must be equal"
        )
    if opened.manifest["split"]["train"] == 0:
        raise StudyError(f"{graph}: found no training node; give the graph a split with training nodes")
    if specification.training.device == "cuda" and torch.cuda.device_count() < 1:
        raise StudyError(f"{spec}: training.device: found 'cuda', but torch sees no GPU here; use 'cpu'")
    return Inputs(specification, opened, parts)


def train(inputs: Inputs, out: Path, mode: str, init_method: InitMethod, stage: Path | None = None) -> Model:
    """Run this rank: join the others, build the model, train and write; returns the trained model.

    `stage` is the folder of the launcher's attempt at `out`; without a launcher rank 0 begins one.

    Raises TakenOver on rank 0, without a launcher, where another attempt has begun.
    """
    with _share_of_processors(inputs.specification):
        return _train(inputs, out, mode, init_method, stage)


def _train(inputs: Inputs, out: Path, mode: str, init_method: InitMethod, stage: Path | None) -> Model:
    specification = inputs.specification
    torch.set_num_threads(specification.training.threads_per_rank)
    communicator, device = join_ranks(specification, init_method)
    context = _context(inputs, communicator, device)
    strategy: Strategy = STRATEGIES[specification.strategy["method"]].load().Strategy(context)
    if communicator.rank == 0:
        logging.info("%s: %s, %d rank(s)", specification.run, mode, communicator.size)
    with ExitStack() as own:
        if stage is None and communicator.rank == 0:
            stage = own.enter_context(attempt(out, MANIFESTS[mode]))
        MODES[mode](strategy, out, stage)
    return context.model


@contextmanager
def _share_of_processors(specification: RunSpecification) -> Iterator[None]:
    """Limit this process where the run's condition says so. Raises StudyError where that cannot be done here."""
    limit = (specification.condition or {}).get("cpu_share")
    if limit is None or limit["rank"] != int(os.environ.get("RANK", "0")):
        yield
        return
    try:
        with limited(limit["share"] * specification.training.threads_per_rank):
            yield
    except NoControlGroup as error:
        raise StudyError(
            f"{specification.path}: condition: found a share of a processor for rank {limit['rank']}, but no control "
            f"group can be made here ({error}); have one delegated, or leave the condition out"
        ) from error


def join_ranks(specification: RunSpecification, init_method: InitMethod) -> tuple[Communicator, torch.device]:
    """This rank's transport and device. Rank and number of ranks come from the environment, as torchrun sets them.

    The process group is never destroyed: torch 2.2 joins Gloo's threads with the interpreter's lock held, for which
    such a thread may be waiting to drop its last tensor, and both wait for ever. It ends with the process.
    """
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    training = specification.training
    device = torch.device("cpu")
    if training.device == "cuda" and not _trains_on_cpu(specification):
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    if size == 1:
        return Communicator(device=device if training.communication == "nccl" else "cpu"), device
    limit = timedelta(seconds=min(training.timeout_s, training.peer_timeout_s))
    if not dist.is_initialized():
        where = {"init_method": init_method} if isinstance(init_method, str) else {"store": init_method(limit)}
        dist.init_process_group(training.communication, timeout=limit, world_size=size, rank=rank, **where)
    transport = device if training.communication == "nccl" else torch.device("cpu")
    return Communicator(rank, size, transport, specification.ranks_per_host), device


def _trains_on_cpu(specification: RunSpecification) -> bool:
    """Whether this is one of its host's last ranks, which a strategy can leave to the CPU."""
    first = specification.ranks_per_host - specification.strategy.get("cpu_ranks", 0)
    return int(os.environ.get("LOCAL_RANK", "0")) >= first


def _context(inputs: Inputs, communicator: Communicator, device: torch.device) -> Context:
    specification, graph = inputs.specification, inputs.graph
    training = specification.training
    model = Model(specification.model, graph.num_features, graph.num_classes, specification.seed).to(device)
    parameters = FlatParameters(model, EXTRA_VALUES)
    name, options = gradient_policy(specification.strategy)
    gradients = GRADIENT_POLICIES[name].load().Policy(parameters, communicator, options)
    torch.manual_seed(generator_for(specification.seed, communicator.rank).initial_seed())
    disturbance = Disturbance(specification.condition, specification.seed, communicator.rank)
    if disturbance.ever_slow:
        communicator.before = disturbance.pay
    return Context(
        specification=specification,
        graph=graph,
        partition=inputs.partition,
        communicator=communicator,
        operators=load_operators(training.operators),
        device=device,
        model=model,
        optimizer=gradients.make_optimizer(parameters, training.learning_rate, training.weight_decay),
        gradients=gradients,
        disturbance=disturbance,
    )

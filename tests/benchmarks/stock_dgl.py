"""One process of stock DGL training GraphSAGE by mini-batches, as DGL's own examples do; bench_minibatch.py starts it.

  RANK=0 WORLD_SIZE=2 stock_dgl.py ENGINE SPEC GRAPH PARTITION OUT

ENGINE `distdgl`: DistDGL's DistNodeDataLoader and DistTensor, gradients averaged by DistributedDataParallel over Gloo;
only where the parts come from is the study's. ENGINE `alone`: one of several independent loops, each with the whole
graph in its memory and no communication; it trains on every WORLD_SIZE-th training node.

Model, fan-outs, batch size and parts are those of SPEC. OUT becomes a JSON file with the seconds of each
epoch, from a barrier of all ranks on, and the accuracies after the last.
"""

import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parents[2] / "workflow" / "scripts"))

from anatomy.graphs.splits import TRAIN
from anatomy.training.communication import Communicator
from anatomy.training.distdgl.client import connect
from anatomy.training.distdgl.package import load_dgl
from anatomy.training.run import open_inputs

SPLITS = ("train", "val", "test")


class Sage(nn.Module):
    """dgl.nn.SAGEConv twice, with the mean."""

    def __init__(self, dgl, width: int, hidden: int, num_classes: int) -> None:
        super().__init__()
        self.first = dgl.nn.SAGEConv(width, hidden, "mean")
        self.last = dgl.nn.SAGEConv(hidden, num_classes, "mean")

    def forward(self, blocks, rows: torch.Tensor) -> torch.Tensor:
        return self.last(blocks[1], functional.relu(self.first(blocks[0], rows)))


def main() -> None:
    engine, spec, graph, partition, out = sys.argv[1], *map(Path, sys.argv[2:])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dgl = load_dgl()
    inputs = open_inputs(spec, graph, partition)
    dist.init_process_group("gloo", init_method="env://")
    structure = [torch.from_numpy(array.copy()) for array in (inputs.graph.indptr, inputs.graph.indices)]
    whole = dgl.graph(("csc", (*structure, [])))
    features, labels = (torch.from_numpy(np.array(array)) for array in (inputs.graph.features, inputs.graph.labels))
    labels = labels.to(torch.int64)
    model = Sage(dgl, features.shape[1], inputs.specification.model.hidden, inputs.graph.num_classes)
    if engine == "distdgl":
        loader, table, names = _distributed(dgl, inputs)
        seconds = _train(inputs, model, DistributedDataParallel(model), loader, table, labels[names])
    else:
        seconds = _train(inputs, model, model, _alone(dgl, inputs, whole), features, labels)
    with torch.no_grad():
        right = (model([whole, whole], features).argmax(1) == labels).numpy()
    split = np.asarray(inputs.graph.split)
    accuracies = {name: float(right[split == number].mean()) for number, name in enumerate(SPLITS)}
    out.write_text(json.dumps({"seconds": seconds, "accuracies": accuracies}))
    dist.barrier()
    os._exit(0)  # DistDGL's servers end with this process


def _train(inputs, model, trained, loader, table, labels: torch.Tensor) -> list[float]:
    """Seconds of each epoch; `table` and `labels` are those of the loader's nodes."""
    optimizer = torch.optim.Adam(model.parameters(), lr=inputs.specification.training.learning_rate)
    seconds = []
    for _ in range(inputs.specification.strategy["epochs"]):
        dist.barrier()
        start = time.perf_counter()
        for input_nodes, seeds, blocks in loader:
            loss = functional.cross_entropy(trained(blocks, table[input_nodes]), labels[seeds])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        seconds.append(time.perf_counter() - start)
    return seconds


def _alone(dgl, inputs, whole):
    """DGL's loader of this process's share of the training nodes."""
    options = inputs.specification.strategy
    training = np.flatnonzero(np.asarray(inputs.graph.split) == TRAIN)
    seeds = torch.from_numpy(training[dist.get_rank() :: dist.get_world_size()])
    sampler = dgl.dataloading.NeighborSampler(options["fanouts"])
    return dgl.dataloading.DataLoader(whole, seeds, sampler, batch_size=options["batch_size"], shuffle=True)


def _distributed(dgl, inputs):
    """DistDGL's loader and feature table, and for each of DGL's nodes its id in the study."""
    context = SimpleNamespace(communicator=Communicator(dist.get_rank(), dist.get_world_size()), **vars(inputs))
    servers = connect(context)
    numbering = torch.from_numpy(servers.numbering.original)
    training = torch.from_numpy(np.asarray(inputs.graph.split)[servers.numbering.original] == TRAIN)
    seeds = dgl.distributed.node_split(training, servers.graph.get_partition_book(), force_even=True)
    sampler = dgl.dataloading.NeighborSampler(inputs.specification.strategy["fanouts"])
    loader = dgl.dataloading.DistNodeDataLoader(
        servers.graph, seeds, sampler, batch_size=inputs.specification.strategy["batch_size"], shuffle=True
    )
    return loader, servers.features, numbering


if __name__ == "__main__":
    main()

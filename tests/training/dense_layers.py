"""Models from their formulas, on a dense adjacency matrix: what distributed training is compared with."""

import math
from collections.abc import Sequence

import torch
from torch.nn import functional

from anatomy.graphs.store import Graph

Weights = dict[str, torch.Tensor]


def adjacency(graph: Graph) -> torch.Tensor:
    """The dense matrix whose row v marks the in-neighbours of v."""
    linked = torch.zeros(graph.num_nodes, graph.num_nodes)
    for node in range(graph.num_nodes):
        linked[node, torch.from_numpy(graph.indices[graph.indptr[node] : graph.indptr[node + 1]].copy())] = 1
    return linked


def dense_scores(
    layer: str,
    weights: Weights,
    linked: torch.Tensor,
    features: torch.Tensor,
    num_layers: int,
    scales: Sequence[torch.Tensor] | None = None,
) -> torch.Tensor:
    """The scores [nodes, classes] of a model whose weights are named as in its state.

    `scales` [nodes, nodes], one for each layer: what the row of a neighbour (column) is multiplied with where a node
    (row) sums its neighbours up; a node attends to those where it is not 0. All 1 by default.
    """
    scales = [torch.ones_like(linked)] * num_layers if scales is None else scales
    each = [
        {name.split(".", 2)[2]: value for name, value in weights.items() if name.startswith(f"layers.{index}.")}
        for index in range(num_layers)
    ]
    if layer == "gcnii":
        return gcnii_scores(each, linked, features, scales)
    if layer == "ressage":
        return ressage_scores(each, linked, features, scales)
    rows = features
    for index, (own, scale) in enumerate(zip(each, scales, strict=True)):
        last = index == num_layers - 1
        if layer == "gat":
            rows = gat(own, linked * scale, rows, last)
        else:
            rows = {"gcn": gcn, "sage": sage}[layer](own, linked, rows, scale)
        if not last:
            rows = functional.elu(rows) if layer == "gat" else functional.relu(rows)
    return rows


def gcn(weights: Weights, linked: torch.Tensor, rows: torch.Tensor, scale: torch.Tensor | float = 1.0) -> torch.Tensor:
    return (normalised(linked) * scale) @ rows @ weights["linear.weight"].T + weights["bias"]


def normalised(linked: torch.Tensor) -> torch.Tensor:
    """The symmetrically normalised adjacency matrix with self-loops."""
    scale = (linked.sum(1) + 1).rsqrt()
    return scale[:, None] * (linked + torch.eye(len(linked))) * scale[None, :]


def sage(weights: Weights, linked: torch.Tensor, rows: torch.Tensor, scale: torch.Tensor | float = 1.0) -> torch.Tensor:
    mean = (linked * scale) @ rows / linked.sum(1).clamp(min=1)[:, None]
    return rows @ weights["own.weight"].T + weights["own.bias"] + mean @ weights["neighbours.weight"].T


def gat(weights: Weights, linked: torch.Tensor, rows: torch.Tensor, last: bool) -> torch.Tensor:
    """Two heads."""
    heads = []
    for projection, source, destination in zip(
        weights["linear.weight"].chunk(2), weights["source_attention"], weights["destination_attention"], strict=True
    ):
        projected = rows @ projection.T
        scores = functional.leaky_relu((projected @ destination)[:, None] + (projected @ source)[None, :], 0.2)
        attended = (linked + torch.eye(len(linked))) > 0
        heads.append(scores.masked_fill(~attended, -torch.inf).softmax(1) @ projected)
    return (sum(heads) / 2 if last else torch.cat(heads, 1)) + weights["bias"]


def gcnii_scores(
    each: list[Weights], linked: torch.Tensor, features: torch.Tensor, scales: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Chen et al. (2020), Eq. 5, with alpha 0.1 and lambda 0.5."""
    initial = rows = (features @ each[0]["input.weight"].T + each[0]["input.bias"]).relu()
    for number, (weights, scale) in enumerate(zip(each, scales, strict=True), start=1):
        beta = math.log(0.5 / number + 1)
        support = 0.9 * (normalised(linked) * scale) @ rows + 0.1 * initial
        identity = torch.eye(support.shape[1])
        rows = (support @ ((1 - beta) * identity + beta * weights["linear.weight"].T)).relu()
    return rows @ each[-1]["output.weight"].T + each[-1]["output.bias"]


def ressage_scores(
    each: list[Weights], linked: torch.Tensor, features: torch.Tensor, scales: Sequence[torch.Tensor]
) -> torch.Tensor:
    rows = sage(each[0], linked, features, scales[0])
    for weights, scale in zip(each[1:], scales[1:], strict=True):
        entered = normal_and_positive(rows, weights["norm.weight"], weights["norm.bias"])
        rows = rows + sage(weights, linked, entered, scale)
    rows = normal_and_positive(rows, each[-1]["output_norm.weight"], each[-1]["output_norm.bias"])
    return rows @ each[-1]["output.weight"].T + each[-1]["output.bias"]


def normal_and_positive(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Each row less its mean, over its standard deviation (variance + 1e-5), scaled and shifted; then ReLU."""
    centred = rows - rows.mean(1, keepdim=True)
    return (centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt() * weight + bias).relu()

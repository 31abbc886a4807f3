"""Partitions: which part each node belongs to, which nodes a part needs from others, and how good the cut is.

A method is one file of `methods/`; a file added there is a partitioner that a configuration may name. It has the
literal constants `SUMMARY`, `PACKAGES` (whose versions the manifest names) and `OPTIONS` (a fragment of a JSON schema),
and one of two functions: `assign(graph, num_parts, options) -> int32 [num_nodes]`, the part of each node, or, for a
vertex cut, which it says by `PARTITION = "vertex_cut"`, `assign_edges(graph, num_parts, options) -> int32 [num_edges]`,
the part of each stored edge, from which
every node's part, that of its root, is chosen. What comes out is checked, completed and measured in the same way for
all of them, so a method has to know nothing of that.
"""

from dataclasses import replace
from pathlib import Path

from anatomy.plugins import Plugin, Plugins

SEED = {
    "type": "integer",
    "minimum": 0,
    "default": 0,
    "description": "Seed of what the method draws at random; one that draws nothing gives the same for every seed.",
}


class Partitioners(Plugins):
    """The methods of a folder; the `OPTIONS` of each include the seed, which every method takes."""

    def __getitem__(self, name: str) -> Plugin:
        plugin = super().__getitem__(name)
        own = plugin.constants["OPTIONS"]
        options = {"properties": {"seed": SEED} | own["properties"], "required": own["required"]}
        return replace(plugin, constants={**plugin.constants, "OPTIONS": options})


PARTITIONERS = Partitioners("partitioner", f"{__name__}.methods", Path(__file__).parent / "methods")
"""Every method by its name, also its name in the config and of its file; reading this imports none of them."""

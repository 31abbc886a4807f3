"""What training annotates and the trace parser knows: what a rank can be doing in a step, and what it does as one."""

from enum import StrEnum

ANNOTATION_PREFIX = "phase:"
"""A phase appears in a trace as a user annotation with this prefix, e.g. `phase:sample`."""

COLLECTIVE_PREFIX = "collective:"
"""The messages that a rank posts within an annotation with this prefix are one collective, of the kind that follows."""

WAIT_ANNOTATION = "wait:collective"
"""Within an annotation of this name a rank waits for such collectives. In a trace that has any, it waits nowhere else:
what is in flight meanwhile is hidden, whatever the rank does."""


class Phase(StrEnum):
    """Phases of training, in the order in which a step goes through them."""

    SAMPLE = "sample"
    FETCH = "fetch"
    GATHER = "gather"
    COPY = "copy"
    AGGREGATE = "aggregate"
    COMBINE = "combine"
    LOSS = "loss"
    BACKWARD = "backward"
    EXCHANGE = "exchange"
    SYNC = "sync"
    OPTIMIZE = "optimize"
    DISTURB = "disturb"
    EVALUATE = "evaluate"
    OTHER = "other"


PREPARATION = (Phase.SAMPLE, Phase.FETCH, Phase.GATHER, Phase.COPY)
"""Phases that bring a mini-batch together before the model runs."""

DESCRIPTIONS: dict[Phase, str] = {
    Phase.SAMPLE: "neighbour sampling",
    Phase.FETCH: "features from other ranks",
    Phase.GATHER: "local features",
    Phase.COPY: "host to device",
    Phase.AGGREGATE: "forward, sparse",
    Phase.COMBINE: "forward, dense",
    Phase.LOSS: "loss",
    Phase.BACKWARD: "backward",
    Phase.EXCHANGE: "activations and their gradients between ranks",
    Phase.SYNC: "weight gradients between ranks",
    Phase.OPTIMIZE: "optimiser update",
    Phase.DISTURB: "emulated slowness",
    Phase.EVALUATE: "evaluation",
    Phase.OTHER: "everything else",
}

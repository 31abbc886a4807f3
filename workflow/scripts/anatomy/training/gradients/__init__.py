"""How weight gradients are synchronised: one file per policy, each with a class `Policy`, a `GradientSynchroniser`.

A strategy's entry in a configuration may name one (`gradients: {policy: buckets, bucket_mb: 1}`); without, it is
`dense`, one all-reduce per step. A policy has the literal constant `OPTIONS`, a fragment of a JSON schema, and, where
it needs more of a strategy than that it updates by `Context.update`, the literal `NEEDS`: some of what a strategy's
literal `GRADIENTS` says that it offers.

    own_losses      a rank's gradients are those of its own seed nodes' losses, so that its weights may differ
    micro_batches   a step's seed nodes can be worked through in pieces, between which nothing is exchanged

A strategy that does not update by `Context.update` has `GRADIENTS = None`. The literal `EXACT` lists options with which
a policy is `dense`, to float tolerance.
"""

from anatomy.training.gradients._base import EXTRA_VALUES, GradientSynchroniser, Piece

__all__ = ["EXTRA_VALUES", "GradientSynchroniser", "Piece"]

"""How training is distributed: one file per strategy, each with the three calls of `strategies._base.Strategy`.

A file added here is a method that a configuration may name. It has a class `Strategy` and the literal constant
`OPTIONS`, a fragment of a JSON schema; if need be also `PACKAGES`, whose versions the results name beside those of
torch and numpy, `ONE_RANK_PER_HOST`, where its ranks cannot share a host, and `ASYNCHRONOUS`, where timing decides
which rank trains what, so that two runs of the same seed differ.

How it synchronises gradients is a policy of its own (`anatomy.training.gradients`) unless it says `GRADIENTS = None`;
policies that need more of a strategy than updates by `Context.update` look for it in the tuple `GRADIENTS`.

Where somebody's paper gives a headline gain, the literal `PAPER` says it: `gain`, how many times faster (more than 1);
`of`, of what and whether at most or on average; `over`, compared with what; `on`, on which machines; and `source`,
where that stands. A study sets it beside the gain that it measures itself.
"""

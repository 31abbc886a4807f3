"""How training is distributed: one file per strategy, each with the three calls of `strategy.Strategy`."""

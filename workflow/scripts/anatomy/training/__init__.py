"""Training: one process per rank on `torch.distributed`, from a run's specification to its metrics or traces.

The only stage that knows torch; of it, only `operators/dgl_backend.py` imports DGL. What the configuration is checked
against (`options.py`) imports neither.
"""

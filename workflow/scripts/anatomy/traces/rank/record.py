"""What is kept of one rank once its events are forgotten."""

from dataclasses import dataclass
from pathlib import Path

from anatomy.traces.columns import Columns

Steps = dict[int, tuple[int, int]]
"""Start and end in ns of each step by number, in order of time; they do not overlap."""


@dataclass(frozen=True)
class RankRecord:
    """One rank, by its own clock. Phases are indices into `PHASES`, categories into `CATEGORIES`, all times int64 ns.

    rank, world_size: what the file says, None where it does not
    gpu, nccl: whether the rank did work on a GPU, and whether NCCL did
    communicates: whether any communication lies in the rank's steps
    annotated: whether `steps` are ProfilerSteps; else they are the whole window
    phases: phase, start_ns, end_ns of the annotated phases of the threads that train, for the timeline
    sums: step, phase, category, ns: every instant of every step in exactly one of them
    calls: step, phase, calls: annotations of a phase that start in a step
    communicating: step, phase, start_ns, end_ns, overlapped: when communication was in flight, in disjoint pieces, and
        whether something was computed meanwhile; those not overlapped have the category communication in `sums`
    stretches: step, phase, category, start_ns, end_ns: the rank's time by phase, exposed communication apart
    collectives: one row per piece of communication (`find_collectives`)
    operators: step, category, name, device, calls, self_ns
    queueing: one row per step and stream (`queueing`), empty without a GPU
    idle: one row per step (`queueing`): time without computation on the GPU by cause, empty without a GPU
    intervals: step, start_ns, end_ns, category, phase, stream (index into `streams`)
    """

    path: Path
    rank: int | None
    world_size: int | None
    notes: tuple[str, ...]
    gpu: bool
    nccl: bool
    communicates: bool
    annotated: bool
    steps: Steps
    phases: Columns
    sums: Columns
    calls: Columns
    communicating: Columns
    stretches: Columns
    collectives: Columns
    operators: Columns
    queueing: Columns
    idle: Columns
    intervals: Columns
    streams: tuple[str, ...]

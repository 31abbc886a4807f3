"""From the events of one rank to its record: all that can be said of a rank without the others."""

from anatomy.memory import give_back
from anatomy.traces.naming import naming_for
from anatomy.traces.options import ParseOptions
from anatomy.traces.rank.activity import blocking_operators, find_activity
from anatomy.traces.rank.annotations import (
    PhaseTimeline,
    find_phases,
    find_steps,
    unknown_phases,
    whole_window,
)
from anatomy.traces.rank.communication import find_collectives, is_work
from anatomy.traces.rank.decomposition import decompose
from anatomy.traces.rank.operators import operator_times
from anatomy.traces.rank.queueing import idle_causes, queueing
from anatomy.traces.rank.record import RankRecord
from anatomy.traces.rank.summaries import (
    communicating_pieces,
    count_calls,
    find_intervals,
    find_stretches,
    sum_pieces,
)
from anatomy.traces.reading.events import Events, Kind
from anatomy.traces.reading.trace import RankTrace


def examine(trace: RankTrace, options: ParseOptions) -> RankRecord:
    """Take one rank's steps apart, by its own clock."""
    events = trace.events
    found = find_steps(events)
    steps = found or whole_window(events)
    phases = find_phases(events)
    timeline = PhaseTimeline(phases)
    gpu = bool(events.on_gpu.any())
    # First what takes much memory meanwhile and leaves little, so that it does not add to what is kept.
    category_of = naming_for(options.operator_rules).category_of
    blocking = blocking_operators(events, phases)
    operators = operator_times(events, steps, blocking, category_of)
    queues = queueing(events, steps)
    give_back()
    activity = find_activity(events, blocking, timeline, gpu)
    idle = idle_causes(events, steps, activity)
    give_back()
    pieces = decompose(steps, activity, timeline)
    del activity
    give_back()
    communicating = communicating_pieces(pieces, steps)
    collectives = find_collectives(events, steps, timeline)
    intervals, streams = find_intervals(pieces, events, steps, timeline)
    return RankRecord(
        path=trace.path,
        rank=trace.rank,
        world_size=trace.world_size,
        notes=(*trace.notes, *_phase_notes(events)),
        gpu=gpu,
        nccl=bool((is_work(events) & (events.kind == Kind.KERNEL)).any()),
        communicates=len(communicating["step"]) > 0,
        annotated=bool(found),
        steps=steps,
        phases={name: phases[name] for name in ("phase", "start_ns", "end_ns")},
        sums=sum_pieces(pieces, steps),
        calls=count_calls(phases, steps),
        communicating=communicating,
        stretches=find_stretches(pieces, steps),
        collectives=collectives,
        operators=operators,
        queueing=queues,
        idle=idle,
        intervals=intervals,
        streams=streams,
    )


def _phase_notes(events: Events) -> tuple[str, ...]:
    unknown = unknown_phases(events)
    return (f"phases {', '.join(unknown)} are not among the study's and count as other",) if unknown else ()

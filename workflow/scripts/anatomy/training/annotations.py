"""What a trace is told: `with phase(Phase.SAMPLE): ...` is a user annotation `phase:sample`."""

from collections.abc import Sequence

from torch.profiler import record_function

from anatomy.phases import ANNOTATION_PREFIX, COLLECTIVE_PREFIX, WAIT_ANNOTATION, Phase


def phase(name: Phase) -> record_function:
    """A context (or decorator) whose time a trace shows as that phase."""
    return record_function(ANNOTATION_PREFIX + name)


def collective(kind: str, ranks: Sequence[int] | None = None) -> record_function:
    """A context whose messages, sent and received, are one collective of that kind; they may end after it.

    `ranks` are those that take part, None for all of the job.
    """
    return record_function(COLLECTIVE_PREFIX + kind + ("" if ranks is None else f" {list(ranks)}"))


def waiting() -> record_function:
    """A context in which the rank waits for the end of collectives that it began before."""
    return record_function(WAIT_ANNOTATION)

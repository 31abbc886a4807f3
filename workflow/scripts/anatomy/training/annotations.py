"""What a trace is told: `with phase(Phase.SAMPLE): ...` is a user annotation `phase:sample`."""

from torch.profiler import record_function

from anatomy.phases import ANNOTATION_PREFIX, COLLECTIVE_PREFIX, WAIT_ANNOTATION, Phase


def phase(name: Phase) -> record_function:
    """A context (or decorator) whose time a trace shows as that phase."""
    return record_function(ANNOTATION_PREFIX + name)


def collective(kind: str) -> record_function:
    """A context whose messages, sent and received, are one collective of that kind; they may end after it."""
    return record_function(COLLECTIVE_PREFIX + kind)


def waiting() -> record_function:
    """A context in which the rank waits for the end of collectives that it began before."""
    return record_function(WAIT_ANNOTATION)

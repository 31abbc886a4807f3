"""Phases in traces: `with phase(Phase.SAMPLE): ...` is a user annotation `phase:sample`."""

from torch.profiler import record_function

from anatomy.phases import ANNOTATION_PREFIX, Phase


def phase(name: Phase) -> record_function:
    """A context (or decorator) whose time a trace shows as that phase."""
    return record_function(ANNOTATION_PREFIX + name)

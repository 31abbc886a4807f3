"""When the profiler starts and stops: around the steps that are kept, with no message on its way as it stops."""

import pytest
import torch

from anatomy.training import profiled
from anatomy.training.communication import Communicator, Exchange, Kind
from anatomy.training.specification import ProfileSpecification


@pytest.mark.parametrize(("wait", "warmup", "active"), [(1, 1, 2), (0, 2, 1), (2, 0, 3)])
def test_messages_have_ended_when_the_profiler_stops(monkeypatch, wait, warmup, active):
    """Every step begins an exchange that nobody waits for. One profiler takes the warm-up, if any, another the rest."""
    events: list[str] = []
    communicator = Communicator()

    class Message:
        def __init__(self, name: str) -> None:
            self.name = name

        def wait(self) -> None:
            events.append(f"end {self.name}")

    class Profiler:
        def __init__(self, **options: object) -> None:
            pass

        def start(self) -> None:
            events.append("profiler starts")

        def stop(self) -> None:
            events.append("profiler stops")

    def begin(send, send_counts, receive, receive_counts, kind) -> Exchange:
        exchange = Exchange([Message(f"message {number}")])
        communicator._started.append(exchange)
        return exchange

    monkeypatch.setattr(profiled, "profile", Profiler)
    monkeypatch.setattr(communicator, "start_exchange", begin)
    window = profiled.StepWindow(ProfileSpecification(wait, warmup, active), communicator, torch.device("cpu"))
    rows = torch.empty(0, 1)
    for number in range(wait + warmup + active):
        try:
            with window.step():
                events.append(f"step {number}")
                communicator.start_exchange(rows, [0], rows, [0], Kind.FEATURES)
        except profiled._WindowComplete:
            window.close()

    first, steps = wait + warmup, range(wait + warmup + active)
    warm = ["profiler starts", *(f"step {number}" for number in steps[wait:first])] if warmup else []
    ended = [f"end message {number}" for number in steps[:first]]
    expected = [f"step {number}" for number in steps[:wait]] + warm
    expected += [*ended, "profiler stops"] if warmup else []
    expected += ["profiler starts", *(f"step {number}" for number in steps[first:])]
    expected += [f"end message {number}" for number in steps[first if warmup else 0 :]] + ["profiler stops"]
    assert events == expected

"""Preparing batches while others are trained on, without a thread that communicates.

A batch is prepared by a generator that begins messages and yields while they are on their way. The thread that trains
lets several of them go on in turn, at fixed places of a step. So all ranks begin all messages in the same order, over
one process group, and what is on its way while the model computes is hidden.
"""

from collections import deque
from collections.abc import Generator, Iterator
from typing import Generic, TypeVar

Result = TypeVar("Result")


class Staged(Generic[Result]):
    """Work in stages, each of which begins what the next waits for."""

    def __init__(self, stages: Generator[None, None, Result]) -> None:
        self._stages = stages
        self._ended = False
        self._result: Result | None = None

    def go_on(self) -> None:
        """Do one more stage, if one is left."""
        try:
            next(self._stages)
        except StopIteration as end:
            if not self._ended:
                self._ended, self._result = True, end.value

    def finish(self) -> Result:
        """Do all stages that are left; returns what the last did."""
        while not self._ended:
            self.go_on()
        return self._result


class Prefetcher(Generic[Result]):
    """Takes works in their order, of which up to `depth` are under way while another is used."""

    def __init__(self, works: Iterator[Generator[None, None, Result]], depth: int) -> None:
        self._works = works
        self._depth = depth
        self._ahead: deque[Staged[Result]] = deque()

    def take(self) -> Result:
        """The next one's result; those that follow have begun."""
        self._begin(1)
        result = self._ahead.popleft().finish()
        self._begin(self._depth)
        return result

    def go_on(self) -> None:
        """One more stage of all that are under way."""
        for work in self._ahead:
            work.go_on()

    def _begin(self, number: int) -> None:
        """Have so many under way, while there are any."""
        while len(self._ahead) < number and (work := next(self._works, None)) is not None:
            self._ahead.append(Staged(work))
            self._ahead[-1].go_on()

"""The closing table of the terminal: every observation, its verdict, its numbers, and where its figure lies."""

import os
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from anatomy.observations.common.reading import INCONCLUSIVE, NOT_MEASURABLE, NOT_SUPPORTED, SUPPORTED

MIN_WIDTH, MAX_WIDTH = 60, 140
_COLOURS = {SUPPORTED: "32", NOT_SUPPORTED: "31", INCONCLUSIVE: "33", NOT_MEASURABLE: "36"}
_HEADINGS = ("observation", "verdict", "measured", "claim", "n", "figure")
_GAP = "  "
_INDENT = "    "


def takes_colour(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether to colour what goes to `stream`: only on a terminal that can, and not where NO_COLOR is set."""
    return stream.isatty() and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"


def verdict_table(observations: Sequence[Mapping[str, Any]], results: Path, width: int, colour: bool) -> str:
    """The table as text, no line wider than `width` (60 to 140) characters unless a path is.

    One line per observation where that fits, else two or three, and the reason where there is no verdict. Measured is
    the estimate with its confidence interval.
    """
    width = min(max(width, MIN_WIDTH), MAX_WIDTH)
    rows = [_cells(observation, results) for observation in observations]
    widths = [max(map(len, column)) for column in zip(_HEADINGS, *rows, strict=True)]
    one_line = sum(widths) + len(_GAP) * (len(widths) - 1) <= width
    lines = [_line(_HEADINGS, widths, False), _GAP.join("-" * size for size in widths)] if one_line else []
    for observation, row in zip(observations, rows, strict=True):
        lines += [_line(row, widths, colour)] if one_line else _block(row, widths, width, colour)
        if observation["reason"]:
            lines += textwrap.wrap(observation["reason"], width, initial_indent=_INDENT, subsequent_indent=_INDENT)
    counts = Counter(observation["verdict"] for observation in observations)
    totals = ", ".join(f"{counts[verdict]} {verdict}" for verdict in _COLOURS if counts[verdict])
    closing = [f"{len(observations)} observations: {totals}", *_machines(observations)]
    return "\n".join([*lines, "", *(line for text in closing for line in textwrap.wrap(text, width))])


def _cells(observation: Mapping[str, Any], results: Path) -> tuple[str, ...]:
    return (
        observation["observation"],
        observation["verdict"],
        measured(observation),
        f"{observation['direction']} {observation['threshold']:.3g}",
        str(observation["n"]),
        str(results / "figures" / f"{observation['figure']}.pdf"),
    )


def measured(observation: Mapping[str, Any]) -> str:
    """Estimate and interval, such as `0.62 [0.58, 0.66]`, or `-` where there is no estimate.

    With three digits, or as many as it takes to see on which side of the threshold a number lies.
    """
    threshold = observation["threshold"]
    if observation["estimate"] is None:
        return "-"
    estimate = _digits(observation["estimate"], threshold)
    if observation["ci_low"] is None:
        return estimate
    return f"{estimate} [{_digits(observation['ci_low'], threshold)}, {_digits(observation['ci_high'], threshold)}]"


def _digits(value: float, threshold: float) -> str:
    texts = (f"{value:.{digits}g}" for digits in range(3, 18))
    return next((text for text in texts if value == threshold or float(text) != threshold), repr(value))


def _line(cells: Sequence[str], widths: Sequence[int], colour: bool) -> str:
    padded = [cell.ljust(size) for cell, size in zip(cells, widths, strict=True)]
    padded[1] = _painted(padded[1], cells[1], colour)
    return _GAP.join(padded).rstrip()


def _block(cells: Sequence[str], widths: Sequence[int], width: int, colour: bool) -> list[str]:
    name, verdict, estimate, claim, repetitions, figure = cells
    first = f"{name.ljust(widths[0])}{_GAP}{_painted(verdict, verdict, colour)}"
    numbers = (
        f"{_INDENT}{estimate.ljust(widths[2])}{_GAP}{f'claim {claim}'.ljust(widths[3] + 6)}{_GAP}n = {repetitions}"
    )
    second = f"{numbers.ljust(len(_INDENT) + widths[2] + widths[3] + widths[4] + 14)}{_GAP}{figure}"
    return [first, second] if len(second) <= width else [first, numbers, f"{_INDENT}{figure}"]


def _painted(text: str, verdict: str, colour: bool) -> str:
    return f"\033[{_COLOURS[verdict]}m{text}\033[0m" if colour and verdict in _COLOURS else text


def _machines(observations: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the verdicts hold for, once for all of them."""
    held = dict.fromkeys(_machine(observation["holds_for"]) for observation in observations)
    return [f"measured on {machine}" for machine in held if machine]


def _machine(holds_for: Mapping[str, Any]) -> str:
    words = {"platform": "{}", "cpu": "{}", "cores": "{} cores", "gpus": "{} GPUs"}
    parts = [phrase.format(_joined(holds_for[key])) for key, phrase in words.items() if holds_for.get(key)]
    return ", ".join(parts)


def _joined(value: Any) -> str:
    return " or ".join(map(str, value)) if isinstance(value, list) else str(value)

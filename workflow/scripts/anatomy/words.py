"""Words that messages and verdicts are made of."""

from collections.abc import Iterable


def listed(names: Iterable[str], most: int = 4) -> str:
    """Names in a line, sorted, the first few of many."""
    names = sorted(set(names))
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")

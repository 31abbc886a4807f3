"""Small integers for values that come again and again, at the cost of one look-up each."""

from typing import Any


class Codes(dict):
    """Codes of values, from 0 in the order in which they are first asked for; `seen` lists the values."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __missing__(self, value: Any) -> int:
        self[value] = code = len(self.seen)
        self.seen.append(value)
        return code


class PairCodes(dict):
    """As `Codes`, of pairs: `codes[first][second]`, which needs no tuple; `seen` lists them as tuples."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Any, Any]] = []

    def __missing__(self, first: Any) -> "SecondCodes":
        self[first] = result = SecondCodes(first, self.seen)
        return result


class SecondCodes(dict):
    """Codes of pairs with one first value; `seen` is shared with those of all others."""

    def __init__(self, first: Any, seen: list[tuple[Any, Any]]) -> None:
        super().__init__()
        self._first, self._seen = first, seen

    def __missing__(self, second: Any) -> int:
        self[second] = code = len(self._seen)
        self._seen.append((self._first, second))
        return code

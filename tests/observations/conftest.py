"""Planted study tables: what each observation would read if its claim were true, or false, on an imagined machine."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from anatomy.observations import OBSERVATIONS
from anatomy.observations.common.store import decide
from anatomy.observations.common.verdict import Judgement
from anatomy.options import complete_options
from anatomy.tables import TABLES
from anatomy.tables.common.columns import as_frame

sys.path.insert(0, str(Path(__file__).parent))

from planted_batches import OfBatches
from planted_study import OfStudy
from planted_whole_graph import OfWholeGraph


class Planted(OfStudy, OfWholeGraph, OfBatches):
    """Tables in which a claim holds (`sign` > 0) or its contrary does (`sign` < 0); noise is small beside that."""

    def table(self, observation: str, holds: bool) -> pd.DataFrame:
        """The table that an observation is judged on."""
        table = OBSERVATIONS[observation].constants["TABLE"]
        assert hasattr(self, f"_{observation}"), (
            f"{observation} has no controls: plant its table in a method _{observation}"
        )
        rows = getattr(self, f"_{observation}")(1 if holds else -1)
        return as_frame(rows, TABLES[table].load().COLUMNS)


@pytest.fixture
def planted() -> Planted:
    return Planted()


@pytest.fixture
def verdict_on() -> Callable[..., Judgement]:
    """Judges a table by an observation, with the observation's own defaults for options not given."""

    def judged(observation: str, table: pd.DataFrame, options: Mapping[str, Any] | None = None) -> Judgement:
        plugin = OBSERVATIONS[observation]
        judgement, _, _ = decide(
            plugin.load(), table, complete_options(options or {}, plugin.constants["OPTIONS"], observation)
        )
        return judgement

    return judged

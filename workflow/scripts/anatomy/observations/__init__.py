"""Observations: claims as hypotheses with a threshold, each judged by the data of one study table.

An observation is one file of this folder with the constants `CLAIM`, `SOURCE`, `TABLE`, `FIGURE`, `STATISTIC` (what
is computed for each repetition), `UNIT`, `DIRECTION` (`>`, `<` or `<=`: how the statistic lies to the threshold where
the claim holds), `THRESHOLD`, `OPTIONS` (a fragment of a JSON schema, for what only this observation can be told),
and the function `values(table, options) -> Repetitions`; a function `notes(table, options) -> dict` may add numbers
that decide nothing. What observations share lies in `common/`.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from anatomy.plugins import Plugin, Plugins


class Observations(Plugins):
    """The observations of a folder; the `OPTIONS` of each include those that every observation takes."""

    def __getitem__(self, name: str) -> Plugin:
        plugin = super().__getitem__(name)
        own = plugin.constants["OPTIONS"]
        options = {"properties": common_options(plugin.constants) | own["properties"], "required": own["required"]}
        return replace(plugin, constants={**plugin.constants, "OPTIONS": options})


def common_options(constants: Mapping[str, Any]) -> dict[str, Any]:
    """The options that every observation takes, with its own threshold as default."""
    return {
        "threshold": {
            "type": "number",
            "default": constants["THRESHOLD"],
            "description": f"The claim holds where the {constants['UNIT']} is {constants['DIRECTION']} this.",
        },
        "confidence": {
            "type": "number",
            "exclusiveMinimum": 0,
            "exclusiveMaximum": 1,
            "default": 0.95,
            "description": "Level of the bootstrap confidence interval.",
        },
        "min_repetitions": {
            "type": "integer",
            "minimum": 2,
            "default": 3,
            "description": "With fewer repetitions (seeds) than this the verdict is inconclusive.",
        },
        "where": {
            "type": "object",
            "additionalProperties": {"type": ["string", "integer", "boolean", "null"]},
            "default": {},
            "description": "Judge only rows whose columns have these values, e.g. {graph: powerlaw, ranks: 2}; null: "
            "missing, as `condition` is where there was none.",
        },
    }


OBSERVATIONS = Observations("observation", __name__, Path(__file__).parent)
"""Every observation by its name, also its name in the config and of its file; reading this imports none of them."""

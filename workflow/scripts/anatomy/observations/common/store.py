"""Judging an observation on its study table, and writing the verdict."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from anatomy.errors import StudyError
from anatomy.files import write_json
from anatomy.observations import OBSERVATIONS
from anatomy.observations.common.evidence import Absent, NotMeasurable, NoVerdict, Repetitions
from anatomy.observations.common.reading import INCONCLUSIVE, NOT_MEASURABLE
from anatomy.observations.common.verdict import Judgement, judge
from anatomy.program import versions
from anatomy.tables.common.store import open_table

_MACHINE_KEYS = ("cpu", "cores", "gpus", "memory_bytes", "system")


def judge_observation(observation: str, table_path: Path, options: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """Judge one observation on its study table and write `{out}/{observation}.json`; returns what it says.

    `options` are those of the observation's schema, defaults filled in.

    Raises StudyError for an unknown observation, or a table that is absent, damaged or another one.
    """
    module = OBSERVATIONS[observation].load()
    table, manifest = open_table(table_path)
    if manifest["table"] != module.TABLE:
        raise StudyError(
            f"{table_path}: found the table {manifest['table']!r}; {observation} is judged on {module.TABLE!r}"
        )
    judgement, repetitions, notes = decide(module, table, options, manifest.get("left_out", {}))
    runs = list(repetitions.runs) if repetitions else sorted(table["run"].unique())
    verdict = {
        "kind": "observation",
        "observation": observation,
        "claim": module.CLAIM,
        "source": module.SOURCE,
        "statistic": module.STATISTIC,
        "unit": module.UNIT,
        **_numbers(judgement, repetitions, options),
        "threshold": options["threshold"],
        "direction": module.DIRECTION,
        "verdict": judgement.verdict,
        "reason": judgement.reason,
        "holds_for": _holds_for(table, manifest["machines"], runs),
        "table": module.TABLE,
        "figure": module.FIGURE,
        "options": dict(options),
        "runs": runs,
        "notes": notes,
        "table_sha256": manifest["sha256"]["parquet"],
        "versions": versions("scipy", "pandas", "numpy"),
    }
    write_json(out / f"{observation}.json", verdict)
    return verdict


def decide(
    module: Any, table: pd.DataFrame, options: Mapping[str, Any], left_out: Mapping[str, Sequence[str]] = {}
) -> tuple[Judgement, Repetitions | None, dict[str, Any]]:
    """The judgement of an observation's module on a table, the repetitions it rests on, and the module's notes.

    `left_out` are runs that the table would have where they can be measured, by what they need. Where there is no run
    that the claim is about and some were left out, it is not measurable.
    """
    try:
        repetitions = module.values(table, options)
        notes = module.notes(table, options) if hasattr(module, "notes") else {}
    except Absent as absent:
        if not left_out:
            return Judgement(INCONCLUSIVE, str(absent)), None, {}
        return Judgement(NOT_MEASURABLE, f"{absent}, for want of {' and '.join(left_out)}"), None, {}
    except NoVerdict as undecided:
        verdict = NOT_MEASURABLE if isinstance(undecided, NotMeasurable) else INCONCLUSIVE
        return Judgement(verdict, str(undecided)), None, {}
    judgement = judge(
        repetitions, module.DIRECTION, options["threshold"], options["confidence"], options["min_repetitions"]
    )
    return judgement, repetitions, notes


def _numbers(judgement: Judgement, repetitions: Repetitions | None, options: Mapping[str, Any]) -> dict[str, Any]:
    interval = judgement.interval
    values = repetitions.values.sort_index() if repetitions else pd.Series(dtype="float64")
    return {
        "estimate": judgement.estimate,
        "confidence": options["confidence"],
        "ci_low": interval.low if interval else None,
        "ci_high": interval.high if interval else None,
        "interval": interval.method if interval else None,
        "n": len(values),
        "values": [float(value) for value in values],
        "seeds": [int(seed) for seed in values.index],
    }


def _holds_for(table: pd.DataFrame, machines: Sequence[Mapping[str, Any]], runs: Sequence[str]) -> dict[str, Any]:
    """Platform and machine of the judged runs; where they ran on several machines, all that these say of each key."""
    used = [machine for machine in machines if set(machine["runs"]) & set(runs)]
    found = {"platform": table.loc[table["run"].isin(runs), "platform"].dropna().unique()}
    found |= {key: list(dict.fromkeys(machine[key] for machine in used if key in machine)) for key in _MACHINE_KEYS}
    return {key: values[0] if len(values) == 1 else list(values) for key, values in found.items() if len(values)}

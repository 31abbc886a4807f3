"""Judge one observation: does the data of its study table support the claim?

    python workflow/scripts/judge_observation.py preparation_dominates --table results/tables/phases.parquet
    python workflow/scripts/judge_observation.py partitioner_cuts_volume --table results/tables/volume.parquet \\
        --threshold 0.8 --option partitioner=ldg --where graph=powerlaw

Writes OBSERVATION.json: the claim, the statistic with its bootstrap confidence interval, and the verdict. `supported`
and `not supported` need an interval on one side of the threshold; with a missing run, too few repetitions or an
interval that contains the threshold the verdict is `inconclusive`.
"""

import logging
from pathlib import Path

from anatomy.observations import OBSERVATIONS
from anatomy.program import parser_for, run_program


def main() -> None:
    parser = parser_for(__doc__)
    known = "; ".join(f"{name} (table {plugin.constants['TABLE']})" for name, plugin in OBSERVATIONS.items())
    parser.add_argument("observation", metavar="OBSERVATION", help=f"one of: {known}")
    parser.add_argument("--table", type=Path, required=True, metavar="FILE", help="its study table, a .parquet file")
    parser.add_argument("--threshold", type=float, metavar="X", help="instead of the observation's own")
    parser.add_argument("--confidence", type=float, metavar="LEVEL", help="of the interval (default: 0.95)")
    parser.add_argument("--min-repetitions", type=int, metavar="N", help="fewer are inconclusive (default: 3)")
    parser.add_argument(
        "--where", action="append", default=[], metavar="COLUMN=VALUE", help="judge only such runs; repeatable"
    )
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="an option of this observation; repeatable"
    )
    parser.add_argument("--options", default="{}", metavar="JSON", help="all of these options as one JSON object")
    parser.add_argument(
        "--out", type=Path, default=Path("results/observations"), metavar="DIR", help="folder to write to"
    )
    arguments = parser.parse_args()
    schema = OBSERVATIONS[arguments.observation].constants[
        "OPTIONS"
    ]  # an unknown name is answered before scipy is loaded

    from anatomy.options import complete_options
    from anatomy.tables.common.options import assignments, json_object

    given = {
        "threshold": arguments.threshold,
        "confidence": arguments.confidence,
        "min_repetitions": arguments.min_repetitions,
        "where": assignments(arguments.where, "--where") or None,
        **assignments(arguments.option, "--option"),
    }
    given = json_object(arguments.options) | {name: value for name, value in given.items() if value is not None}
    options = complete_options(given, schema, f"observation {arguments.observation!r}")
    from anatomy.observations.common.store import judge_observation

    verdict = judge_observation(arguments.observation, arguments.table, options, arguments.out)
    path = arguments.out / f"{arguments.observation}.json"
    logging.info("wrote %s: %s%s", path, verdict["verdict"], f" ({verdict['reason']})" if verdict["reason"] else "")


if __name__ == "__main__":
    run_program(main)

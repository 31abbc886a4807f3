"""Build the study's report: one HTML file with every verdict, figure, number and checksum, which opens offline.

    python workflow/scripts/build_report.py --results results --config results/config.json --out results/report.html

Shows what the configuration names and nothing else; whatever of that has not been built yet is named, with the command
that builds it. Writes no date, so that equal results give an equal file.
"""

import logging
from pathlib import Path

from anatomy.program import parser_for, run_program


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of everything that was built")
    parser.add_argument("--config", type=Path, required=True, help="configuration of the study, as used (JSON)")
    parser.add_argument("--out", type=Path, required=True, help="the HTML file to write")
    parser.add_argument("--commit", help="version of this project that made the results, e.g. $(git rev-parse HEAD)")
    parser.add_argument("--command", default="snakemake", help="how to call Snakemake for this study")
    arguments = parser.parse_args()
    from anatomy.report.page import build_report

    build_report(arguments.results, arguments.config, arguments.out, arguments.commit, arguments.command)
    logging.info("wrote %s", arguments.out)


if __name__ == "__main__":
    run_program(main)

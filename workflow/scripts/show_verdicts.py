"""Show every observation with its verdict, the numbers behind it, and where its figure lies.

    python workflow/scripts/show_verdicts.py --results results

Fits the terminal's width; colours only a terminal, and none where NO_COLOR is set.
"""

import shutil
import sys
from pathlib import Path

from anatomy.errors import StudyError
from anatomy.program import parser_for, run_program


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="folder of all results")
    parser.add_argument("--width", type=int, metavar="N", help="characters in a line; the terminal's if not given")
    arguments = parser.parse_args()

    from anatomy.observations.common.reading import load_observations
    from anatomy.observations.common.terminal import takes_colour, verdict_table

    observations = load_observations(arguments.results)
    if not observations:
        raise StudyError(f"{arguments.results / 'observations'}: found no verdicts; run the study first (make study)")
    width = arguments.width or shutil.get_terminal_size((100, 24)).columns
    print(verdict_table(observations, arguments.results, width, takes_colour(sys.stdout)))


if __name__ == "__main__":
    run_program(main)

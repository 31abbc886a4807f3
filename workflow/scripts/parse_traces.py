"""Turn the Kineto traces of one job into trace tables: where each step of each rank went.

Reads every *.json and *.json.gz of a folder, one trace per rank, as torch.profiler exports them on CPUs with Gloo or on
GPUs with NCCL, whoever recorded them. The rank is read from the trace or from a name such as rank0.json.gz. Writes

  steps, phases   where the time of each step went; the parts add up to its wall time
  collectives     matched across ranks: bytes, arrivals, waiting, transfer, bandwidth
  clocks          how far the ranks' clocks differ, and how well that is known
  operators       calls and self time by name and category
  queueing, idle  launches and lengths of kernels, and why the GPU computes nothing
  critical_path   the chain of phases and collectives that determined each step's length
  intervals       what each rank, GPU stream and communicating thread did when

as Parquet; timeline.json.gz, all ranks on one clock, for ui.perfetto.dev or chrome://tracing; and traces.json, which
says what the columns mean and what could not be known. Needs neither torch nor a GPU.

Examples:
  python workflow/scripts/parse_traces.py --traces results/runs/R/profiled --out results/traces/R
  python workflow/scripts/parse_traces.py --traces recorded --rank first.json=0 --rank second.json=1 --out tables
"""

import argparse
import json
import logging
import os
from dataclasses import replace
from pathlib import Path

from anatomy.errors import StudyError
from anatomy.program import parser_for, run_program
from anatomy.traces.options import ParseOptions


def main() -> None:
    """Parse the command line and the traces."""
    parser = parser_for(__doc__)
    parser.add_argument("--traces", type=Path, required=True, help="folder with one trace per rank, or one trace")
    parser.add_argument("--out", type=Path, required=True, help="folder for the tables")
    parser.add_argument("--run", help="name to write into traces.json; that of a run of this study is known without it")
    parser.add_argument(
        "--expected-ranks",
        type=int,
        metavar="N",
        help="refuse to go on unless the traces of ranks 0 to N-1 are all there; without it, missing ones are reported",
    )
    parser.add_argument(
        "--rank",
        type=_rank,
        action="append",
        default=[],
        metavar="FILE=N",
        help="rank of a file, where neither it nor its name says so, or they disagree; repeatable",
    )
    parser.add_argument(
        "--ignore",
        action="append",
        default=[],
        metavar="NAME",
        help="files in the folder that are no traces of the job; * stands for anything; repeatable",
    )
    parser.add_argument(
        "--max-dropped-share",
        type=float,
        default=argparse.SUPPRESS,
        metavar="SHARE",
        help=f"refuse a trace of which more events have no usable time (default: {ParseOptions.max_dropped_share})",
    )
    parser.add_argument(
        "--rule",
        type=_rule,
        action="append",
        default=[],
        metavar="CATEGORY=PATTERN",
        help="category of operators whose name a regular expression is found in, before the built-in rules; repeatable",
    )
    parser.add_argument(
        "--options", default="{}", metavar="JSON", help="the same as one JSON object, named as in a study's config"
    )
    arguments = parser.parse_args()
    # NumPy would start a thread per core for products of matrices, of which there are none here.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from anatomy.traces.parsing import parse_traces

    manifest = parse_traces(arguments.traces, arguments.out, arguments.run, _options(arguments))
    for note in manifest["notes"]:
        logging.info("note: %s", note)
    logging.info(
        "%s: %d ranks, %d steps in %.1f s",
        arguments.out,
        len(manifest["ranks"]),
        manifest["num_steps"],
        manifest["seconds"],
    )


def _options(arguments: argparse.Namespace) -> ParseOptions:
    """The options of the command line, laid over those of `--options`."""
    try:
        given = json.loads(arguments.options)
    except ValueError as error:
        raise StudyError(f"--options: not valid JSON ({error}); give one object, such as '{{}}'") from error
    options = ParseOptions.of(given) if given != {} else ParseOptions()
    return replace(
        options,
        max_dropped_share=getattr(arguments, "max_dropped_share", options.max_dropped_share),
        operator_rules=(*arguments.rule, *options.operator_rules),
        ranks={**options.ranks, **dict(arguments.rank)},
        ignore=(*options.ignore, *arguments.ignore),
        expected_ranks=arguments.expected_ranks or options.expected_ranks,
    )


def _rank(text: str) -> tuple[str, int]:
    name, _, rank = text.rpartition("=")
    if not name or not rank.isdigit():
        raise argparse.ArgumentTypeError(f"found {text!r}, expected FILE=N such as first.json=0")
    return name, int(rank)


def _rule(text: str) -> tuple[str, str]:
    category, separator, pattern = text.partition("=")
    if not category or not separator or not pattern:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected CATEGORY=PATTERN such as sparse=my_spmm")
    return category, pattern


if __name__ == "__main__":
    run_program(main)

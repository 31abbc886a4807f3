"""The benchmark's job for HolisticTraceAnalysis, run by the Python that has it: load, and three analyses without plots.

    HTA_PYTHON tests/benchmarks/hta_program.py FOLDER [--out FILE] [--one-process] [--all-steps] [--every-name]

Without FOLDER it does no more than import, which is what a run costs before it begins.
"""

import argparse
import json

from hta.common.trace import Trace
from hta.trace_analysis import TraceAnalysis

parser = argparse.ArgumentParser()
parser.add_argument("folder", nargs="?")
parser.add_argument("--out", help="JSON file for the answers")
parser.add_argument("--one-process", action="store_true", help="read one rank after the other instead of in parallel")
parser.add_argument("--all-steps", action="store_true", help="keep the last step, which is left out by default")
parser.add_argument("--every-name", action="store_true", help="list all kernels instead of the ten largest")


def analyse(arguments: argparse.Namespace) -> dict[str, list[dict[str, object]]]:
    """The rows of the three analyses' tables by table."""
    if arguments.one_process:
        analysis = TraceAnalysis.__new__(TraceAnalysis)
        analysis.t = Trace(trace_dir=arguments.folder)
        analysis.t.load_traces(arguments.all_steps, use_multiprocessing=False)
    else:
        analysis = TraceAnalysis(trace_dir=arguments.folder, include_last_profiler_step=arguments.all_steps)
    more = {"num_kernels": 10**9} if arguments.every_name else {}
    types, kernels = analysis.get_gpu_kernel_breakdown(visualize=False, **more)
    tables = {
        "temporal": analysis.get_temporal_breakdown(visualize=False),
        "overlap": analysis.get_comm_comp_overlap(visualize=False),
        "types": types,
        "kernels": kernels,
    }
    return {name: table.to_dict("records") for name, table in tables.items()}


if __name__ == "__main__":
    arguments = parser.parse_args()
    if arguments.folder:
        answers = analyse(arguments)
        if arguments.out:
            with open(arguments.out, "w") as file:
                json.dump(answers, file, default=float)

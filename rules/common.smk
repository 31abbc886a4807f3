"""The checked configuration, the plan of runs, and the functions that rules take their inputs from. No rules."""

import json
import os
import re
import sys
from pathlib import Path

SCRIPTS = "workflow/scripts"
LIBRARY = f"{SCRIPTS}/anatomy"

sys.path.insert(0, str(Path(workflow.basedir) / SCRIPTS))

from anatomy import session
from anatomy.configuration import check_configuration, trace_files
from anatomy.errors import StudyError
from anatomy.figures import FIGURES, FORMATS
from anatomy.graphs.sources import needs_fetch, resources
from anatomy.imports import modules_behind
from anatomy.observations import OBSERVATIONS
from anatomy.plan import Plan
from anatomy.site import read_site
from anatomy.tables import TABLES
from anatomy.training.conditions import limits_cpu
from anatomy.training.cpu_share import can_limit
from anatomy.training.options import gradient_policy

AT_WORK = workflow.is_main_process and not workflow.output_settings.dryrun

try:
    session.check_folder(Path(workflow.basedir))
    # A cluster's settings, which its profile names; None: jobs run on this machine.
    SITE = read_site(Path(config.pop("site"))) if "site" in config else None
    config = check_configuration(
        config, ", ".join(os.path.relpath(file) for file in workflow.overwrite_configfiles or ["config/study.yaml"])
    )
    if AT_WORK:
        session.hold(Path(config["results"]))
except StudyError as error:
    sys.exit(f"error: {error}")

RESULTS = config["results"]
# On a cluster nobody knows it beforehand of the hosts that SLURM will choose.
LIMITS_CPU = not SITE and any(map(limits_cpu, config["conditions"].values())) and can_limit()
PLAN = Plan(config, max_hosts=None if SITE else 1, sets_links=bool(SITE and SITE.set_link), limits_cpu=LIMITS_CPU)


def one_of(names):
    """A wildcard constraint that admits exactly these names."""
    return "|".join(sorted(map(re.escape, names))) or "(?!)"


wildcard_constraints:
    graph=one_of(config["graphs"]),
    partition=one_of({partition for _, partition in PLAN.partitions}),
    run=one_of(PLAN.runs),
    traces=one_of(PLAN.traced),
    table=one_of(config["tables"]),
    figure=one_of(config["figures"]),
    observation=one_of(config["observations"]),


def library(*names):
    """Modules that decide a stage's result, so that a change to one reruns the stage, and only that stage."""
    return relative(path for name in names for path in sorted((Path(workflow.basedir) / LIBRARY).glob(name)))


def behind(script, *plugins, within):
    """A script, the plugins that it loads by name, and all that they import of a stage."""
    root = Path(workflow.basedir)
    return relative(modules_behind([root / SCRIPTS / script, *(root / LIBRARY / name for name in plugins)], *within))


def relative(paths):
    return [str(path.relative_to(Path(workflow.basedir).resolve())) for path in paths]


def modules_of_graph(wildcards):
    source = config["graphs"][wildcards.graph]["source"]
    return behind("build_graph.py", f"graphs/sources/{source}.py", within=["graphs"])


def modules_of_partition(wildcards):
    method = PLAN.partitioner_options(partitioner_of(wildcards))["method"]
    return behind("partition_graph.py", f"partitions/methods/{method}.py", within=["partitions"])


def modules_of_run(wildcards):
    specification = PLAN.specification(wildcards.run)
    policy, _ = gradient_policy(specification["strategy"])
    plugins = [
        f"training/strategies/{specification['strategy']['method']}.py",
        f"training/gradients/{policy}.py",
        f"training/layers/{specification['model']['layer']}.py",
        f"training/operators/{specification['training']['operators']}_backend.py",
    ]
    return behind("launch_run.py", *plugins, within=["training", "phases.py", "arrow.py"])


def plugin(plugins, name):
    """The one module that a table, figure or observation is made by."""
    return relative([plugins[name].path.resolve()])


def compact(options):
    """Options as one line of JSON, which a shell passes on unharmed when quoted."""
    return json.dumps(options, sort_keys=True, separators=(",", ":"))


def study_command():
    """What a person types to rebuild this study; the default one needs no configuration named."""
    files = [os.path.relpath(file) for file in workflow.overwrite_configfiles]
    return " ".join(["snakemake", *(["--configfile", *files] if files else [])])


def source_of_graph(wildcards):
    """The fetched source of a graph that lies on a network; nothing for the others."""
    options = config["graphs"][wildcards.graph]
    return [f"{RESULTS}/sources/{wildcards.graph}/source.json"] if needs_fetch(options) else []


def graph_resource(name):
    """Memory or disk that building a graph takes, known before it starts."""
    return lambda wildcards: resources(config["graphs"][wildcards.graph])[name]


def partitioner_of(wildcards):
    """The partitioner's name in `{partitioner}-{num_parts}`."""
    return wildcards.partition.rpartition("-")[0]


def graph_of_run(wildcards):
    return f"{RESULTS}/graphs/{PLAN.runs[wildcards.run].graph}/graph.json"


def partition_of_run(wildcards):
    run = PLAN.runs[wildcards.run]
    return f"{RESULTS}/partitions/{run.graph}/{run.partition}/partition.json"


def files_of_traces(wildcards):
    """The manifest of a profiled run's traces, which is written last, or the files of traces recorded elsewhere."""
    if wildcards.traces in PLAN.recorded:
        return trace_files(config["traces"][wildcards.traces])
    return [f"{RESULTS}/runs/{wildcards.traces}/profiled/manifest.json"]


def folder_of_traces(wildcards):
    """Where a job's traces lie, or its only one."""
    if wildcards.traces in PLAN.recorded:
        return config["traces"][wildcards.traces]["path"]
    return f"{RESULTS}/runs/{wildcards.traces}/profiled"


def processes_for_traces(wildcards):
    """Ranks are read in parallel, as far as there are cores; of a job of many, eight at a time."""
    if wildcards.traces in PLAN.recorded:
        return min(len(files_of_traces(wildcards)), 8)
    return min(PLAN.runs[wildcards.traces].num_parts, 8)


def inputs_of_table(wildcards):
    """What the runs of a table left: metrics of all, and the trace tables and partitions where the table reads them."""
    names = {name for _, name in PLAN.of_table(wildcards.table)}
    runs = [PLAN.runs[name] for name in names - PLAN.recorded]
    reads = TABLES[wildcards.table].constants["INPUTS"]
    files = [f"{RESULTS}/runs/{run.name}/timed/metrics.json" for run in runs]
    if "traces" in reads:
        files += [f"{RESULTS}/traces/{name}/traces.json" for name in names.intersection(PLAN.traced)]
    if "partition" in reads:
        files += [f"{RESULTS}/partitions/{run.graph}/{run.partition}/partition.json" for run in runs]
    return sorted(set(files))


def all_graphs():
    return [f"{RESULTS}/graphs/{graph}/graph.json" for graph in sorted({run.graph for run in PLAN.runs.values()})]


def all_partitions():
    return [f"{RESULTS}/partitions/{graph}/{name}/partition.json" for graph, name in sorted(PLAN.partitions)]


def all_runs():
    timed = [f"{RESULTS}/runs/{run}/timed/metrics.json" for run in PLAN.runs]
    return timed + [f"{RESULTS}/runs/{run}/profiled/manifest.json" for run in sorted(PLAN.profiled)]


def all_traces():
    return [f"{RESULTS}/traces/{name}/traces.json" for name in PLAN.traced]


def all_tables():
    return [f"{RESULTS}/tables/{table}.json" for table in config["tables"]]


def all_figures():
    return [f"{RESULTS}/figures/{figure}.{kind}" for figure in config["figures"] for kind in FORMATS]


def all_observations():
    return [f"{RESULTS}/observations/{observation}.json" for observation in config["observations"]]

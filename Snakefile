"""The study: graph → partition → run → trace → table → figure, observation → report.

`snakemake` builds all of it; `snakemake --configfile config/test.yaml` does so on a tiny graph.
"""

from snakemake.utils import min_version

min_version("9.0")


# `--configfile` replaces this study; it is not laid over it.
if not workflow.overwrite_configfiles:

    configfile: "config/study.yaml"


report: "workflow/report/workflow.rst"


include: "rules/common.smk"
include: "rules/machine.smk"
include: "rules/graphs.smk"
include: "rules/partitions.smk"
include: "rules/runs.smk"
include: "rules/traces.smk"
include: "rules/tables.smk"
include: "rules/figures.smk"
include: "rules/observations.smk"
include: "rules/artifact.smk"


rule all:
    default_target: True
    input:
        f"{RESULTS}/report.html",
        all_tables(),
        all_figures(),
        all_observations(),


rule graphs:
    input:
        all_graphs(),


rule partitions:
    input:
        all_partitions(),


rule runs:
    input:
        all_runs(),


rule traces:
    input:
        all_traces(),


rule tables:
    input:
        all_tables(),


rule figures:
    input:
        all_figures(),


rule observations:
    input:
        all_observations(),

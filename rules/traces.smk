"""Profiled run, or traces that were recorded elsewhere → trace tables."""


rule parse_trace:
    input:
        traces=files_of_traces,
        library=library("traces/**/*.py", "phases.py", "platforms.py", "arrow.py"),
        script=f"{SCRIPTS}/parse_traces.py",
    output:
        manifest=f"{RESULTS}/traces/{{traces}}/traces.json",
    log:
        f"{RESULTS}/logs/traces/{{traces}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/traces/{{traces}}.tsv"
    conda:
        "../envs/analysis.yaml"
    threads: processes_for_traces
    resources:
        mem_mb=traces_memory,
    params:
        folder=folder_of_traces,
        options=lambda wildcards: compact(PLAN.parse_options(wildcards.traces)),
    message:
        "take the traces of {wildcards.traces} apart"
    shell:
        "python {input.script} --traces {params.folder:q} --run {wildcards.traces} --options {params.options:q} "
        "--out $(dirname {output.manifest}) > {log} 2>&1"

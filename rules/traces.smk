"""Profiled run → trace tables."""


rule parse_trace:
    input:
        profile=f"{RESULTS}/runs/{{run}}/profiled/manifest.json",
        library=library("traces/**/*.py", "phases.py"),
        script=f"{SCRIPTS}/parse_traces.py",
    output:
        manifest=f"{RESULTS}/traces/{{run}}/traces.json",
    log:
        f"{RESULTS}/logs/traces/{{run}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/traces/{{run}}.tsv"
    conda:
        "../envs/analysis.yaml"
    params:
        ranks=lambda wildcards: PLAN.runs[wildcards.run].num_parts,
    message:
        "take the traces of {wildcards.run} apart"
    shell:
        "python {input.script} --traces $(dirname {input.profile}) --run {wildcards.run} --expected-ranks {params.ranks} "
        "--out $(dirname {output.manifest}) > {log} 2>&1"

"""Metrics, trace tables → study tables."""


rule tabulate_study:
    input:
        files=inputs_of_table,
        library=library("tables/common/*.py", "platforms.py"),
        table=lambda wildcards: plugin(TABLES, wildcards.table),
        script=f"{SCRIPTS}/tabulate_study.py",
    output:
        parquet=f"{RESULTS}/tables/{{table}}.parquet",
        csv=f"{RESULTS}/tables/{{table}}.csv",
        dictionary=f"{RESULTS}/tables/{{table}}.json",
    log:
        f"{RESULTS}/logs/tables/{{table}}.log",
    conda:
        "../envs/analysis.yaml"
    params:
        options=lambda wildcards: compact(PLAN.table_options(wildcards.table)),
        left_out=lambda wildcards: compact(PLAN.left_out_of_table(wildcards.table)),
        runs=lambda wildcards: "\n".join(map("\t".join, PLAN.of_table(wildcards.table))),
    message:
        "tabulate {wildcards.table}"
    shell:
        "printf '%s\\n' {params.runs:q} | python {input.script} {wildcards.table} --results $(dirname $(dirname {output.csv})) --runs-file /dev/stdin "
        "--options {params.options:q} --left-out {params.left_out:q} --out $(dirname {output.dictionary}) > {log} 2>&1"

"""Study table → observation: claim, evidence, verdict."""


rule judge_observation:
    input:
        table=lambda wildcards: f"{RESULTS}/tables/{OBSERVATIONS[wildcards.observation].constants['TABLE']}.parquet",
        library=library("observations/__init__.py", "observations/common/*.py"),
        observation=lambda wildcards: plugin(OBSERVATIONS, wildcards.observation),
        script=f"{SCRIPTS}/judge_observation.py",
    output:
        observation=f"{RESULTS}/observations/{{observation}}.json",
    log:
        f"{RESULTS}/logs/observations/{{observation}}.log",
    conda:
        "../envs/analysis.yaml"
    params:
        options=lambda wildcards: compact(config["observations"][wildcards.observation]),
    message:
        "judge observation {wildcards.observation}"
    shell:
        "python {input.script} {wildcards.observation} --table {input.table} --options {params.options:q} "
        "--out $(dirname {output.observation}) > {log} 2>&1"

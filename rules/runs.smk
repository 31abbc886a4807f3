"""Graph, partition → run: timed, and, in a job of its own, profiled."""


rule specify_run:
    output:
        specification=f"{RESULTS}/runs/{{run}}/run.json",
    log:
        f"{RESULTS}/logs/runs/{{run}}.specification.log",
    localrule: True
    conda:
        "../envs/analysis.yaml"
    params:
        specification=lambda wildcards: compact(PLAN.specification(wildcards.run)),
    message:
        "specify run {wildcards.run}"
    shell:
        "printf '%s\\n' {params.specification:q} > {output.specification} 2> {log}"


rule train_run:
    input:
        specification=f"{RESULTS}/runs/{{run}}/run.json",
        graph=graph_of_run,
        partition=partition_of_run,
        library=modules_of_run,
        script=f"{SCRIPTS}/launch_run.py",
    output:
        metrics=f"{RESULTS}/runs/{{run}}/timed/metrics.json",
    log:
        f"{RESULTS}/logs/runs/{{run}}.timed.log",
    benchmark:
        f"{RESULTS}/benchmarks/runs/{{run}}.timed.tsv"
    conda:
        "../envs/training.yaml"
    threads: exclusive_threads
    resources:
        **RUN_RESOURCES,
    message:
        "train {wildcards.run}"
    shell:
        "python {input.script} --spec {input.specification} --graph $(dirname {input.graph}) "
        "--partition $(dirname {input.partition}) --mode timed --out $(dirname {output.metrics}) > {log} 2>&1"


rule profile_run:
    input:
        specification=f"{RESULTS}/runs/{{run}}/run.json",
        graph=graph_of_run,
        partition=partition_of_run,
        library=modules_of_run,
        script=f"{SCRIPTS}/launch_run.py",
    output:
        manifest=f"{RESULTS}/runs/{{run}}/profiled/manifest.json",
    log:
        f"{RESULTS}/logs/runs/{{run}}.profiled.log",
    benchmark:
        f"{RESULTS}/benchmarks/runs/{{run}}.profiled.tsv"
    conda:
        "../envs/training.yaml"
    threads: exclusive_threads
    resources:
        **RUN_RESOURCES,
    message:
        "profile {wildcards.run}"
    shell:
        "python {input.script} --spec {input.specification} --graph $(dirname {input.graph}) "
        "--partition $(dirname {input.partition}) --mode profiled --out $(dirname {output.manifest}) > {log} 2>&1"

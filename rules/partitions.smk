"""Graph → partition."""


rule partition_graph:
    input:
        graph=f"{RESULTS}/graphs/{{graph}}/graph.json",
        library=modules_of_partition,
        script=f"{SCRIPTS}/partition_graph.py",
    output:
        manifest=f"{RESULTS}/partitions/{{graph}}/{{partition}}/partition.json",
    log:
        f"{RESULTS}/logs/partitions/{{graph}}/{{partition}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/partitions/{{graph}}/{{partition}}.tsv"
    conda:
        "../envs/analysis.yaml"
    resources:
        mem_mb=partition_memory,
    params:
        name=partitioner_of,
        num_parts=lambda wildcards: wildcards.partition.rpartition("-")[2],
        options=lambda wildcards: compact(PLAN.partitioner_options(partitioner_of(wildcards))),
    message:
        "partition {wildcards.graph} by {wildcards.partition}"
    shell:
        "python {input.script} --graph $(dirname {input.graph}) --name {params.name} --options {params.options:q} "
        "--num-parts {params.num_parts} --out $(dirname {output.manifest}) > {log} 2>&1"

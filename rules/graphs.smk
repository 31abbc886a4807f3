"""Source → graph."""


rule specify_graph:
    output:
        options=f"{RESULTS}/graphs/{{graph}}/source.json",
    log:
        f"{RESULTS}/logs/graphs/{{graph}}.source.log",
    localrule: True
    conda:
        "../envs/analysis.yaml"
    params:
        options=lambda wildcards: compact(config["graphs"][wildcards.graph]),
    message:
        "specify graph {wildcards.graph}"
    shell:
        "printf '%s\\n' {params.options:q} > {output.options} 2> {log}"


rule fetch_source:
    input:
        options=f"{RESULTS}/graphs/{{graph}}/source.json",
        script=f"{SCRIPTS}/fetch_source.py",
    output:
        source=f"{RESULTS}/sources/{{graph}}/source.json",
    log:
        f"{RESULTS}/logs/sources/{{graph}}.log",
    localrule: True
    conda:
        "../envs/analysis.yaml"
    resources:
        disk_mb=graph_resource("disk_mb"),
    message:
        "fetch the source of graph {wildcards.graph}"
    shell:
        "python {input.script} --spec {input.options} --out $(dirname {output.source}) > {log} 2>&1"


rule build_graph:
    input:
        options=f"{RESULTS}/graphs/{{graph}}/source.json",
        source=source_of_graph,
        library=modules_of_graph,
        script=f"{SCRIPTS}/build_graph.py",
    output:
        manifest=f"{RESULTS}/graphs/{{graph}}/graph.json",
    log:
        f"{RESULTS}/logs/graphs/{{graph}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/graphs/{{graph}}.tsv"
    conda:
        "../envs/analysis.yaml"
    resources:
        mem_mb=graph_resource("mem_mb"),
        disk_mb=graph_resource("disk_mb"),
    params:
        fetched=lambda wildcards, input: f"--fetched {Path(input.source[0]).parent}" if input.source else "",
    message:
        "build graph {wildcards.graph}"
    shell:
        "python {input.script} --spec {input.options} --name {wildcards.graph} {params.fetched} "
        "--out $(dirname {output.manifest}) > {log} 2>&1"

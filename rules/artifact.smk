"""Tables, figures, observations → the report."""


rule record_config:
    output:
        config=f"{RESULTS}/config.json",
    localrule: True
    params:
        config=compact(config),
    message:
        "record the configuration"
    shell:
        "printf '%s\\n' {params.config:q} > {output.config}"


rule build_report:
    input:
        config=f"{RESULTS}/config.json",
        tables=all_tables(),
        figures=all_figures(),
        observations=all_observations(),
        captions=[str(path) for path in sorted(Path("workflow/report").iterdir())],
        script=f"{SCRIPTS}/build_report.py",
    output:
        report=f"{RESULTS}/report.html",
    log:
        f"{RESULTS}/logs/report.log",
    conda:
        "../envs/analysis.yaml"
    message:
        "build the report"
    shell:
        "python {input.script} --results {RESULTS} --config {input.config} --out {output.report} > {log} 2>&1"

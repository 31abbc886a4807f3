"""Tables, figures, observations → the report."""


rule record_config:
    output:
        config=f"{RESULTS}/config.json",
    log:
        f"{RESULTS}/logs/config.log",
    localrule: True
    conda:
        "../envs/analysis.yaml"
    params:
        config=compact(config),
    message:
        "record the configuration"
    shell:
        "printf '%s\\n' {params.config:q} > {output.config} 2> {log}"


rule build_report:
    input:
        config=f"{RESULTS}/config.json",
        tables=all_tables(),
        figures=all_figures(),
        observations=all_observations(),
        metrics=[f"{RESULTS}/runs/{run}/timed/metrics.json" for run in PLAN.runs],
        traces=[f"{RESULTS}/traces/{name}/traces.json" for name in sorted(PLAN.recorded)],
        library=library("report/*.py") + ["workflow/report/report.html.j2", "workflow/report/report.css"],
        script=f"{SCRIPTS}/build_report.py",
    output:
        report=f"{RESULTS}/report.html",
    log:
        f"{RESULTS}/logs/report.log",
    conda:
        "../envs/analysis.yaml"
    params:
        command=study_command(),
    message:
        "build the report"
    shell:
        "python {input.script} --results $(dirname {input.config}) --config {input.config} --out {output.report} "
        '--command {params.command:q} --commit "$(git describe --always --dirty 2> /dev/null || true)" > {log} 2>&1'

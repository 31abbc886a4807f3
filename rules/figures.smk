"""Study table → figure."""


rule draw_figure:
    input:
        table=lambda wildcards: f"{RESULTS}/tables/{FIGURES[wildcards.figure].constants['TABLE']}.parquet",
        library=library("figures/_*.py"),
        figure=lambda wildcards: plugin(FIGURES, wildcards.figure),
        script=f"{SCRIPTS}/draw_figure.py",
    output:
        pdf=report(
            f"{RESULTS}/figures/{{figure}}.pdf",
            caption="../workflow/report/figure.rst",
            category="Figures",
            labels={"figure": "{figure}", "format": "pdf"},
        ),
        svg=f"{RESULTS}/figures/{{figure}}.svg",
        png=report(
            f"{RESULTS}/figures/{{figure}}.png",
            caption="../workflow/report/figure.rst",
            category="Figures",
            labels={"figure": "{figure}", "format": "png"},
        ),
        csv=f"{RESULTS}/figures/{{figure}}.csv",
    log:
        f"{RESULTS}/logs/figures/{{figure}}.log",
    conda:
        "../envs/analysis.yaml"
    params:
        caption=lambda wildcards: FIGURES[wildcards.figure].constants["CAPTION"],
    message:
        "draw figure {wildcards.figure}"
    shell:
        "python {input.script} {wildcards.figure} --table {input.table} --out $(dirname {output.csv}) > {log} 2>&1"

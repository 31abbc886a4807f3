"""What differs between this machine and a cluster: how jobs start and end, and what they ask for. No rules."""

from snakemake.logging import logger
from snakemake.resources import Resources

from anatomy import cluster
from anatomy.failed_jobs import collect_failed
from anatomy.progress import show_progress
from anatomy.site import VARIABLE
from anatomy.words import listed

session.put_python_first()
if AT_WORK:
    session.end_with(os.getpid())
    session.end_when_told()
    session.look_again_once()
    session.measure_in_rounds(PLAN.seed_of)
    collect_failed(logger, Path(RESULTS, "logs"))
    if not workflow.output_settings.verbose:
        show_progress(logger, Path(RESULTS, "logs"))
    for want, names in PLAN.left_out.items():
        logger.warning(f"not measurable here, for want of {want}: {listed(names)}")

if SITE is not None:
    os.environ[VARIABLE] = str(SITE.path.resolve())
    workflow.resource_settings.default_resources = Resources.parse(
        [f"{name}={value}" for name, value in cluster.default_resources(SITE).items()],
        allow_expressions=True,
        defaults="full",
    )
    if workflow.is_main_process:
        # This machine's cores, which the default profile counts, are no limit of what a job elsewhere may ask for.
        workflow.resource_settings.cores = workflow.global_resources["_cores"] = None
    if AT_WORK:
        from anatomy.submission import use_study_executor

        use_study_executor(Path(RESULTS))
    if workflow.remote_exec:
        shell.prefix(SITE.shell_prefix())

    # Moments of work each, many of them: not worth a place in the queue.
    localrules:
        tabulate_study,
        draw_figure,
        judge_observation,
        build_report,


onstart:
    if SITE is None and not workflow.local_exec:
        sys.exit("error: nothing says what this cluster is like; use `--profile slurm`, see docs/cluster.md")


def exclusive_threads(wildcards):
    """A measured run has the machine to itself: where jobs share one, it takes all its cores."""
    if SITE is None:
        return workflow.cores
    specification = PLAN.specification(wildcards.run)
    return specification["ranks"] // specification.get("hosts", 1) * specification["training"]["threads_per_rank"]


def manifest_of_graph(graph):
    """What is known of a graph; None before it is built."""
    path = Path(RESULTS, "graphs", graph, "graph.json")
    return json.loads(path.read_text()) if path.is_file() else None


def run_resource(name):
    """A resource of a run."""

    def value(wildcards, attempt):
        specification = PLAN.specification(wildcards.run)
        graph = manifest_of_graph(specification["graph"])
        return cluster.resources_of_run(specification, graph, attempt, SITE).get(name)

    return value


# On this machine a run has what there is.
RUN_RESOURCES = {name: run_resource(name) for name in cluster.RUN_RESOURCES} if SITE else {}


def partition_memory(wildcards, attempt):
    return cluster.memory_of_partitioning_mb(manifest_of_graph(wildcards.graph), attempt)


def traces_memory(wildcards, attempt):
    """In MB: each process at a time holds one rank's trace."""
    return (500 + 1000 * processes_for_traces(wildcards)) * 2 ** (attempt - 1)

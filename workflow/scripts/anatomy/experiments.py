"""What an experiment of the configuration says: its points, and what in it cannot be trained or does not agree."""

from collections.abc import Iterator, Mapping
from itertools import chain, product
from typing import Any

from anatomy.options import no_such
from anatomy.partitions import PARTITIONERS
from anatomy.training.conditions import condition_contradictions
from anatomy.training.options import STRATEGIES, contradictions, rank_contradictions

Options = dict[str, Any]


def points_of(experiment: Mapping[str, Any]) -> list[tuple[str, int]]:
    """The (graph, ranks) pairs of an experiment."""
    points = [(point["graph"], point["ranks"]) for point in experiment.get("points", [])]
    return points + list(product(experiment.get("graphs", []), experiment.get("ranks", [])))


def hosts_of(ranks: int, ranks_per_host: int | None) -> int:
    """How many hosts a run takes; None: as many ranks share a host as there are."""
    return 1 if ranks_per_host is None else -(-ranks // ranks_per_host)


def experiment_mismatches(
    config: Options, place: str, experiment: Options, num_nodes: Mapping[str, int | None]
) -> Iterator[str]:
    """Mistakes of an experiment that trains runs, each as its key, what was found and what to do.

    `num_nodes` by graph, None where it is not known yet.
    """
    yield from _name_mismatches(config, place, experiment)
    yield from _host_mismatches(config, place, experiment)
    yield from _partition_mismatches(config, place, experiment)
    yield from _hierarchy_mismatches(config, place, experiment)
    yield from _link_mismatches(place, experiment)
    yield from _condition_mismatches(config, place, experiment)
    yield from _size_mismatches(place, experiment, num_nodes)


def _name_mismatches(config: Options, place: str, experiment: Options) -> Iterator[str]:
    """Names that are not there, and options of strategies and models that contradict each other."""
    crossed = {"graphs", "ranks"} & experiment.keys()
    if ("points" in experiment) == bool(crossed) or len(crossed) == 1:
        found = ", ".join(sorted({"graphs", "ranks", "points"} & experiment.keys())) or "none of them"
        yield f"{place}: found {found}; give either `graphs` and `ranks`, or `points`"
    for section in ("graphs", "partitioners", "strategies", "models"):
        for name in experiment.get(section, []):
            if name not in config[section]:
                yield f"{place}.{section}: {no_such(name, config[section])}"
    for point in experiment.get("points", []):
        if point["graph"] not in config["graphs"]:
            yield f"{place}.points: {no_such(point['graph'], config['graphs'])}"
    for strategy, model in product(experiment["strategies"], experiment["models"]):
        if strategy in config["strategies"] and model in config["models"]:
            method, layers = config["strategies"][strategy], config["models"][model]
            sizes = sorted({ranks for _, ranks in points_of(experiment)})
            by_size = (rank_contradictions(method, layers, ranks) for ranks in sizes)
            problems = contradictions(method, layers, config["training"])
            for problem in chain(problems, chain.from_iterable(by_size)):
                problem = problem.replace("strategy.", f"strategies.{strategy}.", 1)
                yield problem.replace("model.", f"models.{model}.", 1) + f" (in {place})"


def _host_mismatches(config: Options, place: str, experiment: Options) -> Iterator[str]:
    """Strategies whose ranks cannot share a host, in runs where they would."""
    alone = [
        name
        for name in experiment["strategies"]
        if (options := config["strategies"].get(name))
        and STRATEGIES[options["method"]].constants.get("ONE_RANK_PER_HOST")
    ]
    sharing = [
        shared
        for (_, ranks), shared in product(points_of(experiment), experiment.get("ranks_per_host", [None]))
        if hosts_of(ranks, shared) < ranks
    ]
    if alone and sharing:
        found = "nothing" if sharing[0] is None else sharing[0]
        yield (
            f"{place}.ranks_per_host: found {found}, but each rank of {', '.join(alone)} needs a host of its own; "
            "add `ranks_per_host: [1]`"
        )


def _partition_mismatches(config: Options, place: str, experiment: Options) -> Iterator[str]:
    """Partitioners that do not make what a strategy trains on; on one rank any will do."""
    if all(ranks == 1 for _, ranks in points_of(experiment)):
        return
    for strategy in experiment["strategies"]:
        options = config["strategies"].get(strategy)
        wanted = options and STRATEGIES[options["method"]].constants.get("PARTITION")
        able = [method for method in PARTITIONERS if PARTITIONERS[method].constants.get("PARTITION") == wanted]
        others = [
            name
            for name in experiment.get("partitioners", [])
            if (given := config["partitioners"].get(name)) and given["method"] not in able
        ]
        if wanted and others:
            yield (
                f"{place}.partitioners: found {', '.join(others)}, but {strategy} trains on a "
                f"{wanted.replace('_', ' ')}; give it an experiment with partitioners by: {', '.join(able)}"
            )


def _hierarchy_mismatches(config: Options, place: str, experiment: Options) -> Iterator[str]:
    """Partitioners that cut for other hosts than those of the runs which train on their parts."""
    for name in experiment.get("partitioners", []):
        cut_for = config["partitioners"].get(name, {}).get("ranks_per_host")
        if cut_for is None:
            continue
        shared_by = product(points_of(experiment), experiment.get("ranks_per_host", [None]))
        for ranks, shared in dict.fromkeys((ranks, shared or ranks) for (_, ranks), shared in shared_by):
            on_one_host = min(shared, ranks)
            if min(cut_for, ranks) != on_one_host:
                yield (
                    f"partitioners.{name}.ranks_per_host: found {cut_for}, but in {place} {on_one_host} of {ranks} "
                    f"ranks share a host; give the partitioner {on_one_host}, or the experiment "
                    f"`ranks_per_host: [{cut_for}]`"
                )


def _link_mismatches(place: str, experiment: Options) -> Iterator[str]:
    """Bandwidths of links, in runs whose ranks share one host and need none."""
    if "link_mbit" not in experiment:
        return
    for (graph, ranks), shared in product(points_of(experiment), experiment.get("ranks_per_host", [None])):
        if hosts_of(ranks, shared) == 1:
            yield (
                f"{place}.link_mbit: found {experiment['link_mbit']}, but a run of {graph} with {ranks} rank(s) takes "
                "one host, which has no link to another; spread it by `ranks_per_host`, or leave `link_mbit` out"
            )


def _condition_mismatches(config: Options, place: str, experiment: Options) -> Iterator[str]:
    """Conditions that are not there, or that a run of the experiment cannot be under, or its profile cannot show."""
    fewest = min((ranks for _, ranks in points_of(experiment)), default=1)
    profile = config["profile"] if experiment["profile"] else None
    for name in filter(None, experiment.get("conditions", [])):
        if name not in config["conditions"]:
            yield f"{place}.conditions: {no_such(name, config['conditions'])}"
            continue
        for problem in condition_contradictions(
            config["conditions"][name], fewest, config["training"]["device"], profile
        ):
            yield f"{place}.conditions: {name}: {problem}"


def _size_mismatches(place: str, experiment: Options, num_nodes: Mapping[str, int | None]) -> Iterator[str]:
    """`num_nodes` by graph, None where it is not known yet."""
    for graph, ranks in points_of(experiment):
        if experiment.get("parts", ranks) != ranks:
            yield (
                f"{place}.parts: found {experiment['parts']} parts for {ranks} ranks; every rank trains one part: "
                "leave `parts` out"
            )
        for shared in experiment.get("ranks_per_host", []):
            if ranks > shared and ranks % shared:
                yield (
                    f"{place}.ranks_per_host: found {shared} for {ranks} ranks, which leaves one host with fewer ranks "
                    "than the others; use a divisor of the ranks"
                )
        nodes = num_nodes.get(graph)
        if nodes is not None and ranks > nodes:
            yield f"{place}.ranks: found {ranks} parts, but graphs.{graph} has only {nodes} nodes; use fewer ranks"

"""From a checked configuration to the runs that it asks for.

Everything that a run depends on stands in its specification, `run.json`; runs that two experiments share are run once.
Traces that were recorded elsewhere take part from the trace tables on; their names have no dots, those of runs do.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

from anatomy.configuration import ROOT_PARTITIONER
from anatomy.experiments import hosts_of, points_of
from anatomy.training.conditions import limits_cpu

Options = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """One point of an experiment."""

    graph: str
    partitioner: str
    num_parts: int
    strategy: str
    model: str
    seed: int
    hosts: int = 1
    link_mbit: int | None = None
    condition: str | None = None

    @property
    def partition(self) -> str:
        """The folder of its partition: `{partitioner}-{num_parts}`."""
        return f"{self.partitioner}-{self.num_parts}"

    @property
    def name(self) -> str:
        spread = f".h{self.hosts}" if self.hosts > 1 else ""
        link = "" if self.link_mbit is None else f".l{self.link_mbit}"
        condition = "" if self.condition is None else f".c-{self.condition}"
        return f"{self.graph}.{self.partition}.{self.strategy}.{self.model}{spread}{link}{condition}.s{self.seed}"


class Plan:
    """The runs of a study, and which experiment, table, figure and observation needs which.

    `config` is what `check_configuration` returned; `max_hosts` how many hosts a run may take where it is carried out,
    None for any number, `sets_links` whether their links can be given a bandwidth there, and `limits_cpu` whether a
    process can be given a share of a processor. Runs that need what is not there are not measurable, and left out of
    everything but `left_out`.
    """

    def __init__(
        self, config: Options, max_hosts: int | None = None, sets_links: bool = True, limits_cpu: bool = True
    ) -> None:
        self.config = config
        self._max_hosts = max_hosts
        self._sets_links = sets_links
        self._limits_cpu = limits_cpu

    @cached_property
    def experiments(self) -> dict[str, list[Run]]:
        """The runs of each experiment, in the order of its lists; none where it takes traces recorded elsewhere."""
        return {name: [run for run in runs if not self._wants(run)] for name, runs in self._all_experiments.items()}

    @cached_property
    def left_out(self) -> dict[str, list[str]]:
        """Names of the runs that are not measurable, sorted, by what they need; those that need two things twice."""
        return self._left_out_of(self._all_experiments)

    @cached_property
    def _all_experiments(self) -> dict[str, list[Run]]:
        return {
            name: [] if "traces" in experiment else list(self._expand(experiment))
            for name, experiment in self.config["experiments"].items()
        }

    def _left_out_of(self, experiments: Iterable[str]) -> dict[str, list[str]]:
        found: dict[str, set[str]] = {}
        for run in (run for name in experiments for run in self._all_experiments[name]):
            for want in self._wants(run):
                found.setdefault(want, set()).add(run.name)
        return {want: sorted(names) for want, names in sorted(found.items())}

    def _wants(self, run: Run) -> list[str]:
        """What a run needs that is not there, in words; none where it is measurable."""
        hosts = self._max_hosts is not None and run.hosts > self._max_hosts
        links = run.link_mbit is not None and not self._sets_links
        shares = run.condition is not None and limits_cpu(self.config["conditions"][run.condition])
        return [
            *["a second host"] * hosts,
            *["links that can be given a bandwidth"] * links,
            *["processes that can be given a share of a processor"] * (shares and not self._limits_cpu),
        ]

    @cached_property
    def runs(self) -> dict[str, Run]:
        """Every run once, by name."""
        return {run.name: run for runs in self.experiments.values() for run in runs}

    def seed_of(self, run: str) -> int | None:
        """The seed of a run; None for what is none, such as traces recorded elsewhere."""
        return self.runs[run].seed if run in self.runs else None

    @cached_property
    def profiled(self) -> set[str]:
        """Names of the runs that an experiment wants profiled."""
        return {
            run.name
            for name, experiment in self.config["experiments"].items()
            if experiment["profile"]
            for run in self.experiments[name]
        }

    @cached_property
    def partitions(self) -> set[tuple[str, str]]:
        """Every (graph, `{partitioner}-{num_parts}`) that a run needs."""
        return {(run.graph, run.partition) for run in self.runs.values()}

    @cached_property
    def recorded(self) -> set[str]:
        """Names of the traces recorded elsewhere that an experiment takes."""
        return {name for experiment in self.config["experiments"].values() for name in experiment.get("traces", [])}

    @property
    def traced(self) -> list[str]:
        """Names of all traces to be parsed, sorted: of profiled runs, and recorded elsewhere."""
        return sorted(self.profiled | self.recorded)

    def parse_options(self, name: str) -> Options:
        """How the traces of that name are read: what `parse_traces.py --options` takes."""
        if name in self.recorded:
            own = {key: value for key, value in self.config["traces"][name].items() if key != "path"}
        else:
            own = {"expected_ranks": self.runs[name].num_parts}
        return self.config["parsing"] | own

    def of_table(self, table: str) -> list[tuple[str, str]]:
        """(experiment, name) of each run, and of all traces recorded elsewhere, that a table is made from."""
        return [
            (experiment, name)
            for experiment in self.config["tables"][table]["experiments"]
            for name in (
                *(run.name for run in self.experiments[experiment]),
                *self.config["experiments"][experiment].get("traces", []),
            )
        ]

    def left_out_of_table(self, table: str) -> dict[str, list[str]]:
        """As `left_out`, of the experiments that a table is made from."""
        return self._left_out_of(self.config["tables"][table]["experiments"])

    def table_options(self, table: str) -> Options:
        """A table's own options."""
        return {key: value for key, value in self.config["tables"][table].items() if key != "experiments"}

    def partitioner_options(self, partitioner: str) -> Options:
        """Options of a partitioner, the built-in one included."""
        return (
            {"method": ROOT_PARTITIONER}
            if partitioner == ROOT_PARTITIONER
            else self.config["partitioners"][partitioner]
        )

    def specification(self, name: str) -> Options:
        """What `run.json` says: everything that training reads."""
        run = self.runs[name]
        return {
            "kind": "run",
            "run": run.name,
            "graph": run.graph,
            "partitioner": run.partitioner,
            "num_parts": run.num_parts,
            "strategy": {"name": run.strategy, **self.config["strategies"][run.strategy]},
            "model": {"name": run.model, **self.config["models"][run.model]},
            "ranks": run.num_parts,
            **({"hosts": run.hosts} if run.hosts > 1 else {}),
            **({} if run.link_mbit is None else {"link_mbit": run.link_mbit}),
            **self._condition(run.condition),
            "seed": run.seed,
            "training": self.config["training"],
            "profile": self.config["profile"],
        }

    def _condition(self, name: str | None) -> Options:
        """What `run.json` says of it: nothing where there is none."""
        return {} if name is None else {"condition": {"name": name, **self.config["conditions"][name]}}

    def _expand(self, experiment: Mapping[str, Any]) -> Iterator[Run]:
        runs = {}
        for (graph, ranks), ranks_per_host, link_mbit, condition, partitioner, strategy, model, seed in product(
            points_of(experiment),
            experiment.get("ranks_per_host", [None]),
            experiment.get("link_mbit", [None]),
            experiment.get("conditions", [None]),
            experiment["partitioners"],
            experiment["strategies"],
            experiment["models"],
            experiment["seeds"],
        ):
            # One part needs no partitioner: all of them give the same run, which is run once.
            used = ROOT_PARTITIONER if ranks == 1 else partitioner
            hosts = hosts_of(ranks, ranks_per_host)
            run = Run(graph, used, ranks, strategy, model, seed, hosts, link_mbit, condition)
            runs[run.name] = run
        yield from runs.values()

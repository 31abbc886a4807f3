"""A run's specification, `run.json`: the only thing that training reads its settings from."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anatomy.errors import StudyError
from anatomy.files import read_json
from anatomy.options import Fragment, closed, complete_options
from anatomy.training.conditions import CONDITION_OPTIONS, condition_contradictions
from anatomy.training.options import (
    MODEL_OPTIONS,
    PROFILE_OPTIONS,
    STRATEGIES,
    TRAINING_OPTIONS,
    contradictions,
    rank_contradictions,
    strategy_options,
)

_TEXT: Fragment = {"type": "string", "minLength": 1}
_COUNT: Fragment = {"type": "integer", "minimum": 1}


@dataclass(frozen=True)
class ModelSpecification:
    """Options of the model; see `options.MODEL_OPTIONS`."""

    name: str
    layer: str
    num_layers: int
    hidden: int
    heads: int
    dropout: float
    initial_residual: float
    identity_mapping: float


@dataclass(frozen=True)
class TrainingSpecification:
    """Options of training; see `options.TRAINING_OPTIONS`."""

    learning_rate: float
    weight_decay: float
    warmup_epochs: int
    evaluate_every: int
    device: str
    communication: str
    operators: str
    threads_per_rank: int
    timeout_s: float
    peer_timeout_s: float
    checkpoint_every: int
    keep_failures: bool


@dataclass(frozen=True)
class ProfileSpecification:
    """Steps of the profiled window; see `options.PROFILE_OPTIONS`."""

    wait: int
    warmup: int
    active: int


@dataclass(frozen=True)
class RunSpecification:
    """All settings of one run. `strategy` holds the options of its method, with defaults filled in.

    `condition` is what `conditions.CONDITION_OPTIONS` describes, without its name; None: the machine as it is.
    """

    path: Path
    run: str
    graph: str
    partitioner: str
    num_parts: int
    ranks: int
    seed: int
    strategy: dict[str, Any]
    model: ModelSpecification
    training: TrainingSpecification
    profile: ProfileSpecification
    hosts: int = 1
    link_mbit: int | None = None
    condition: dict[str, Any] | None = None

    @property
    def packages(self) -> list[str]:
        """The packages whose versions decide what this run measures."""
        needed = {*_needs(self.strategy["method"]), *(["dgl"] if self.training.operators == "dgl" else [])}
        return ["torch", "numpy", *sorted(needed)]

    @property
    def ranks_per_host(self) -> int:
        return self.ranks // self.hosts


def read_specification(path: Path) -> RunSpecification:
    """Read and check `run.json`.

    Raises StudyError, naming the key, where one is unknown, missing or of a wrong value, or where options contradict.
    """
    content = read_json(path, kind="run")
    strategy = content.get("strategy")
    method = strategy.get("method") if isinstance(strategy, dict) else None
    if method not in STRATEGIES:
        raise StudyError(f"{path}: strategy.method: found {method!r}, expected one of: {', '.join(STRATEGIES)}")
    content = complete_options(content, _schema(strategy), str(path))
    if content["ranks"] != content["num_parts"]:
        raise StudyError(
            f"{path}: ranks: found {content['ranks']} ranks for {content['num_parts']} parts; every rank trains one "
            "part, so the two must be equal"
        )
    if content["ranks"] % content["hosts"]:
        raise StudyError(
            f"{path}: hosts: found {content['hosts']} hosts for {content['ranks']} ranks; every host takes as many "
            "ranks, so use a divisor of the ranks"
        )
    if content["link_mbit"] is not None and content["hosts"] == 1:
        raise StudyError(
            f"{path}: link_mbit: found {content['link_mbit']} for a run on one host, which has no link to another; "
            "leave it out, or set `hosts`"
        )
    condition = content["condition"] = _unnamed(content["condition"])
    problems = [
        *(
            f"condition: {problem}"
            for problem in condition_contradictions(condition or {}, content["ranks"], content["training"]["device"])
        ),
        *contradictions(content["strategy"], content["model"], content["training"]),
        *rank_contradictions(content["strategy"], content["model"], content["ranks"]),
    ]
    if problems:
        raise StudyError("\n  ".join(f"{path}: {problem}" for problem in problems))
    settings = {key: value for key, value in content.items() if key != "kind"}
    settings["model"] = ModelSpecification(**settings["model"])
    settings["training"] = TrainingSpecification(**settings["training"])
    settings["profile"] = ProfileSpecification(**settings["profile"])
    return RunSpecification(path=path, **settings)


def _unnamed(condition: dict[str, Any] | None) -> dict[str, Any] | None:
    return condition and {key: value for key, value in condition.items() if key != "name"}


def _needs(method: str) -> tuple[str, ...]:
    return STRATEGIES[method].constants.get("PACKAGES", ())


def _schema(strategy: dict[str, Any]) -> Fragment:
    sections = {
        "strategy": _named(strategy_options(strategy), "name", "method"),
        "model": _named(MODEL_OPTIONS, "name"),
        "training": TRAINING_OPTIONS,
        "profile": PROFILE_OPTIONS,
    }
    sections = {name: closed(part) for name, part in sections.items()}
    texts = dict.fromkeys(("kind", "run", "graph", "partitioner"), _TEXT)
    counts = {"num_parts": _COUNT, "ranks": _COUNT, "seed": {"type": "integer", "minimum": 0}}
    properties = texts | counts | sections
    spread = {
        "hosts": _COUNT | {"default": 1, "description": "Hosts that the ranks are spread over."},
        "link_mbit": {
            "type": ["integer", "null"],
            "minimum": 1,
            "default": None,
            "description": "Bandwidth of the hosts' links in Mbit/s, each way; null: as they are.",
        },
        "condition": {
            **closed(CONDITION_OPTIONS),
            "properties": CONDITION_OPTIONS["properties"] | {"name": _TEXT},
            "required": ["name"],
            "type": ["object", "null"],
            "minProperties": 2,
            "maxProperties": 2,
            "default": None,
            "description": "Emulated disturbance of the machine, and its name; null: none.",
        },
    }
    return {"properties": properties | spread, "required": list(properties)}


def _named(fragment: Fragment, *names: str) -> Fragment:
    return {
        "properties": fragment["properties"] | dict.fromkeys(names, _TEXT),
        "required": [*fragment["required"], *names],
    }

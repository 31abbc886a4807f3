"""A run's specification, `run.json`: the only thing that training reads its settings from."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anatomy.errors import StudyError
from anatomy.files import read_json
from anatomy.training.options import MODEL_OPTIONS, PROFILE_OPTIONS, STRATEGIES, TRAINING_OPTIONS, Fragment

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
    keep_failures: bool


@dataclass(frozen=True)
class ProfileSpecification:
    """Steps of the profiled window; see `options.PROFILE_OPTIONS`."""

    wait: int
    warmup: int
    active: int


@dataclass(frozen=True)
class RunSpecification:
    """All settings of one run. `strategy` holds the options of its method, with defaults filled in."""

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


def read_specification(path: Path) -> RunSpecification:
    """Read and check `run.json`.

    Raises StudyError, naming the key, where one is unknown, missing or of a wrong value, or where options contradict.
    """
    content = read_json(path, kind="run")
    strategy = content.get("strategy")
    method = strategy.get("method") if isinstance(strategy, dict) else None
    if method not in STRATEGIES:
        raise StudyError(f"{path}: strategy.method: found {method!r}, expected one of: {', '.join(STRATEGIES)}")
    _complete(content, _schema(method), path, "")
    settings = {key: value for key, value in content.items() if key != "kind"}
    settings["model"] = ModelSpecification(**settings["model"])
    settings["training"] = TrainingSpecification(**settings["training"])
    settings["profile"] = ProfileSpecification(**settings["profile"])
    specification = RunSpecification(path=path, **settings)
    _check_agreement(specification)
    return specification


def _schema(method: str) -> Fragment:
    sections = {
        "strategy": _named(STRATEGIES[method].constants["OPTIONS"], "name", "method"),
        "model": _named(MODEL_OPTIONS, "name"),
        "training": TRAINING_OPTIONS,
        "profile": PROFILE_OPTIONS,
    }
    sections = {name: {"type": "object", "additionalProperties": False, **part} for name, part in sections.items()}
    texts = dict.fromkeys(("kind", "run", "graph", "partitioner"), _TEXT)
    counts = {"num_parts": _COUNT, "ranks": _COUNT, "seed": {"type": "integer", "minimum": 0}}
    properties = texts | counts | sections
    return {"type": "object", "additionalProperties": False, "properties": properties, "required": list(properties)}


def _named(fragment: Fragment, *names: str) -> Fragment:
    return {
        "properties": fragment["properties"] | dict.fromkeys(names, _TEXT),
        "required": [*fragment["required"], *names],
    }


def _complete(content: dict[str, Any], schema: Fragment, path: Path, place: str) -> None:
    """Check an object against its schema and fill in defaults, in place and at every level."""
    from jsonschema import Draft202012Validator  # slow to import, and only the launcher needs it

    for error in Draft202012Validator(schema).iter_errors(content):
        where = ".".join([*place.split(), *map(str, error.absolute_path)]) or "(top level)"
        raise StudyError(f"{path}: {where}: {error.message}; correct it in the configuration and make the file again")
    for key, part in schema["properties"].items():
        if key not in content and "default" in part:
            content[key] = part["default"]
        if isinstance(content.get(key), dict):
            _complete(content[key], part, path, key)


def _check_agreement(specification: RunSpecification) -> None:
    """Raise StudyError where two settings contradict each other."""
    path, model, training = specification.path, specification.model, specification.training
    if specification.ranks != specification.num_parts:
        raise StudyError(
            f"{path}: ranks: found {specification.ranks} ranks for {specification.num_parts} parts; every rank trains "
            "one part, so the two must be equal"
        )
    fanouts = specification.strategy.get("fanouts")
    if fanouts is not None and len(fanouts) != model.num_layers:
        raise StudyError(
            f"{path}: strategy.fanouts: found {len(fanouts)} fan-outs for {model.num_layers} layers; give one per layer"
        )
    if model.layer != "gat" and model.heads != 1:
        raise StudyError(f"{path}: model.heads: found {model.heads}, but layer {model.layer!r} has no heads; give 1")
    if model.hidden % model.heads:
        raise StudyError(f"{path}: model.hidden: found {model.hidden}, expected a multiple of the {model.heads} heads")
    if training.communication == "nccl" and training.device != "cuda":
        raise StudyError(f"{path}: training.communication: found 'nccl' with device 'cpu'; nccl needs device 'cuda'")

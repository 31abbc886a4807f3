"""What a strategy, a model, training and profiling can be told: JSON-schema fragments (draft 2020-12), without torch.

The configuration is checked against these fragments, and a run's specification again before training starts.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from anatomy.options import Fragment, closed
from anatomy.plugins import Plugins

Options = Mapping[str, Any]

STRATEGIES = Plugins("strategy", "anatomy.training.strategies", Path(__file__).parent / "strategies")
"""Every way of training, by its `method`: one file each, whose constant `OPTIONS` is its fragment."""

GRADIENT_POLICIES = Plugins("gradient policy", "anatomy.training.gradients", Path(__file__).parent / "gradients")
"""Every way of synchronising weight gradients: one file each, whose constant `OPTIONS` is its fragment."""

LAYERS = Plugins("layer", "anatomy.training.layers", Path(__file__).parent / "layers")
"""Every kind of graph convolution: one file each, with a class `Layer`."""

WIDE_FEATURES = 16
"""How many times as wide as what the first layer makes of them features are, at least, where it projects them before
it aggregates: bags of words are, embeddings are not."""

MODEL_OPTIONS: Fragment = {
    "properties": {
        "layer": {
            "enum": list(LAYERS),
            "description": "Kind of graph convolution; gcnii and ressage (residual GraphSAGE) can be deep.",
        },
        "num_layers": {
            "type": "integer",
            "minimum": 1,
            "maximum": 64,
            "default": 2,
            "description": "Number of layers, each of which aggregates once.",
        },
        "hidden": {
            "type": "integer",
            "minimum": 1,
            "default": 64,
            "description": "Width of the hidden layers; for gat over all heads together, so a multiple of `heads`.",
        },
        "heads": {
            "type": "integer",
            "minimum": 1,
            "default": 1,
            "description": "Attention heads; only gat has more than 1.",
        },
        "dropout": {
            "type": "number",
            "minimum": 0,
            "exclusiveMaximum": 1,
            "default": 0.0,
            "description": "Probability that a hidden activation is dropped in training.",
        },
        "initial_residual": {
            "type": "number",
            "minimum": 0,
            "maximum": 1,
            "default": 0.1,
            "description": "alpha of gcnii: share of a node's initial representation in what each layer makes of it.",
        },
        "identity_mapping": {
            "type": "number",
            "minimum": 0,
            "default": 0.5,
            "description": "lambda of gcnii: layer l, from 1, weighs its matrix with log(lambda / l + 1) against the "
            "identity.",
        },
    },
    "required": ["layer"],
}

_NEEDS = {
    "own_losses": "has ranks that compute each other's losses, so that all need the same weights",
    "micro_batches": "has steps that cannot be cut short",
}
"""What a strategy lacks that does not offer what a policy of gradients needs."""

OPTIONS_OF_ONE_LAYER = {"initial_residual": "gcnii", "identity_mapping": "gcnii"}
"""Options of the model that another layer than the one named has no use for."""

TRAINING_OPTIONS: Fragment = {
    "properties": {
        "learning_rate": {
            "type": "number",
            "exclusiveMinimum": 0,
            "default": 0.01,
            "description": "Learning rate of Adam.",
        },
        "weight_decay": {
            "type": "number",
            "minimum": 0,
            "default": 0.0,
            "description": "L2 penalty that Adam applies.",
        },
        "warmup_epochs": {
            "type": "integer",
            "minimum": 0,
            "default": 1,
            "description": "First epochs that trained as the others do, but whose times no table uses.",
        },
        "evaluate_every": {
            "type": "integer",
            "minimum": 0,
            "default": 1,
            "description": "Epochs between evaluations; 0: only after the last epoch, which is always evaluated.",
        },
        "device": {"enum": ["cpu", "cuda"], "default": "cpu", "description": "Where the model runs; one GPU per rank."},
        "communication": {
            "enum": ["gloo", "nccl"],
            "default": "gloo",
            "description": "Transport between the ranks; nccl needs device cuda.",
        },
        "operators": {
            "enum": ["dgl", "torch"],
            "default": "dgl",
            "description": "Backend of aggregation and sampling; torch is plain PyTorch.",
        },
        "threads_per_rank": {"type": "integer", "minimum": 1, "default": 1, "description": "Threads of each rank."},
        "timeout_s": {
            "type": "number",
            "exclusiveMinimum": 0,
            "default": 600,
            "description": "Seconds after which a run is ended.",
        },
        "peer_timeout_s": {
            "type": "number",
            "exclusiveMinimum": 0,
            "default": 300,
            "description": "Longest that a rank waits for the others before the run fails; how a stopped rank is seen.",
        },
        "checkpoint_every": {
            "type": "integer",
            "minimum": 0,
            "default": 0,
            "description": "Epochs between checkpoints; 0: none, and an interrupted run is repeated from its start. A "
            "run that was resumed has a training curve, but no table gives its times.",
        },
        "keep_failures": {
            "type": "boolean",
            "default": True,
            "description": "Whether a run that ends by the time limit or for want of memory is kept as data.",
        },
    },
    "required": [],
}

PROFILE_OPTIONS: Fragment = {
    "properties": {
        "wait": {
            "type": "integer",
            "minimum": 0,
            "default": 1,
            "description": "Steps before the profiler is switched on.",
        },
        "warmup": {
            "type": "integer",
            "minimum": 0,
            "default": 1,
            "description": "Steps traced and thrown away, which take the profiler's own start-up cost.",
        },
        "active": {"type": "integer", "minimum": 1, "default": 4, "description": "Steps kept in the trace."},
    },
    "required": [],
}


def strategy_options(strategy: Options) -> Fragment:
    """The options of a strategy, given with its `method`, and those of the policy of gradients that it names."""
    given = strategy.get("gradients")
    name = given.get("policy") if isinstance(given, Mapping) else None
    gradients: Options = {"type": "object", "description": "How weight gradients are synchronised; `dense` by default."}
    policy: Options = {"enum": list(GRADIENT_POLICIES), "description": "The policy."}
    own = GRADIENT_POLICIES[name].constants["OPTIONS"] if isinstance(name, str) and name in GRADIENT_POLICIES else None
    if own is None:
        gradients |= {"properties": {"policy": policy}, "required": ["policy"]}
    else:
        gradients |= closed({"properties": {"policy": policy, **own["properties"]}, "required": own["required"]})
    fragment = STRATEGIES[strategy["method"]].constants["OPTIONS"]
    return {**fragment, "properties": {**fragment["properties"], "gradients": gradients}}


def gradient_policy(strategy: Options) -> tuple[str, Options]:
    """Name and options of the policy of gradients of a strategy's complete options."""
    options = dict(strategy.get("gradients", {"policy": "dense"}))
    return options.pop("policy"), options


def contradictions(strategy: Options, model: Options, training: Options) -> Iterator[str]:
    """What complete options say against each other, each as `section.key: what was found, what to do`."""
    able = STRATEGIES[strategy["method"]].constants.get("LAYERS", LAYERS)
    if model["layer"] not in able:
        yield (
            f"model.layer: found {model['layer']!r}, which strategy {strategy['method']!r} cannot train; use one of: "
            f"{', '.join(able)}"
        )
    yield from _gradient_contradictions(strategy)
    fanouts = strategy.get("fanouts")
    if fanouts is not None and len(fanouts) != model["num_layers"]:
        yield (
            f"strategy.fanouts: found {len(fanouts)} fan-outs {fanouts} for a model of {model['num_layers']} layers; "
            "give one fan-out per layer"
        )
    if strategy.get("partners") == "all" and strategy.get("pool") == "shared":
        yield (
            "strategy.pool: found 'shared' with partners 'all', for which all ranks have to make as many steps; use "
            "'static', or other partners"
        )
    if model["layer"] != "gat" and model["heads"] != 1:
        yield f"model.heads: found {model['heads']}, but layer {model['layer']!r} has no heads; give 1"
    for name, layer in OPTIONS_OF_ONE_LAYER.items():
        if model["layer"] != layer and model[name] != MODEL_OPTIONS["properties"][name]["default"]:
            yield f"model.{name}: found {model[name]}, but layer {model['layer']!r} has no such option; leave it out"
    if model["hidden"] % model["heads"]:
        yield f"model.hidden: found {model['hidden']}, expected a multiple of the {model['heads']} heads"
    if training["communication"] == "nccl" and training["device"] != "cuda":
        yield "training.communication: found 'nccl' with device 'cpu'; nccl needs device 'cuda'"
    transports = STRATEGIES[strategy["method"]].constants.get("COMMUNICATION", (training["communication"],))
    if training["communication"] not in transports:
        yield (
            f"training.communication: found {training['communication']!r}, which strategy {strategy['method']!r} "
            f"cannot use; use one of: {', '.join(transports)}"
        )


def _gradient_contradictions(strategy: Options) -> Iterator[str]:
    """That a strategy does not go with the policy of gradients that it was given."""
    if "gradients" not in strategy:
        return
    name, _ = gradient_policy(strategy)
    offered = STRATEGIES[strategy["method"]].constants.get("GRADIENTS", ())
    place = f"strategy.gradients.policy: found {name!r}, but strategy {strategy['method']!r}"
    if offered is None:
        yield f"{place} takes no policy of gradients; leave `gradients` out"
        return
    able = [policy for policy in GRADIENT_POLICIES if set(_needs_of(policy)) <= set(offered)]
    if name not in able:
        missing = " and ".join(_NEEDS[need] for need in _needs_of(name) if need not in offered)
        yield f"{place} {missing}; use one of: {', '.join(able)}"


def _needs_of(policy: str) -> tuple[str, ...]:
    return GRADIENT_POLICIES[policy].constants.get("NEEDS", ())


def rank_contradictions(strategy: Options, model: Options, num_ranks: int) -> Iterator[str]:
    """As `contradictions`, what they say against a number of ranks.

    A strategy's constant `PERMUTATIONS` names options that have every rank once, or null. Its constant `LAYER_OWNERS`
    names the option that says how many groups of ranks own layers, null for one group for each rank.
    """
    shares = strategy.get("shares")
    if isinstance(shares, list) and len(shares) != num_ranks:
        yield f"strategy.shares: found {len(shares)} shares {shares} for {num_ranks} ranks; give one share per rank"
    for name in STRATEGIES[strategy["method"]].constants.get("PERMUTATIONS", ()):
        if strategy[name] is not None and sorted(strategy[name]) != list(range(num_ranks)):
            yield (
                f"strategy.{name}: found {strategy[name]} for {num_ranks} rank(s), expected the number of each, from "
                "0, once; leave it out where a rank is to do it itself"
            )
    option = STRATEGIES[strategy["method"]].constants.get("LAYER_OWNERS")
    if option is None:
        return
    num_groups = strategy[option] or num_ranks
    if num_ranks % num_groups:
        yield (
            f"strategy.{option}: found {num_groups} for {num_ranks} rank(s), which share {option} evenly; use a "
            "divisor of the ranks"
        )
    elif num_groups > model["num_layers"]:
        who = "ranks" if num_groups == num_ranks else option
        yield (
            f"model.num_layers: found {model['num_layers']} layers for {num_groups} {who}, but with strategy "
            f"{strategy['method']!r} each of these owns a layer or more; use a model of at least {num_groups} layers, "
            f"or fewer {who}"
        )

"""A cluster's settings: one file that a user copies and fills in, read by whatever runs on or for that cluster.

`profiles/slurm/site.example.yaml` is the file, with every key explained.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from anatomy.errors import StudyError
from anatomy.options import Fragment, closed, complete_options

VARIABLE = "ANATOMY_SITE"
"""Environment variable by which the programs of a job find the file."""
EXAMPLE = "profiles/slurm/site.example.yaml"


def _text(description: str) -> dict[str, Any]:
    return {"type": ["string", "null"], "default": None, "description": description}


def _limit(description: str) -> dict[str, Any]:
    return {"type": ["integer", "null"], "minimum": 1, "default": None, "description": description}


_GPU: Fragment = {
    "properties": {
        "partition": _text("Partition of jobs with GPUs; null: the same as of the others."),
        "qos": _text("Quality of service of jobs with GPUs; null: the same as of the others."),
        "constraint": _text("Feature that hosts of jobs with GPUs must have; null: the same as of the others."),
        "gres": {
            "type": "string",
            "pattern": "^gpu(:[A-Za-z0-9_.]+)?$",
            "default": "gpu",
            "description": "What a GPU is called here, with its type where there are several.",
        },
    },
    "required": [],
}

OPTIONS: Fragment = {
    "properties": {
        "account": _text("Account that pays; null: your default one."),
        "partition": _text("Partition; null: the cluster's default one."),
        "qos": _text("Quality of service."),
        "constraint": _text("Feature that hosts must have."),
        "gpu": {**closed(_GPU), "default": {}, "description": "What is different for jobs with GPUs."},
        "exclusive": {
            "type": "boolean",
            "default": True,
            "description": "Whether runs have their hosts to themselves; without it times are disturbed.",
        },
        "max_minutes": _limit("Longest time that a job may ask for."),
        "max_memory_mb": _limit("Most memory that a job may ask for, per host."),
        "options": {"type": "string", "default": "", "description": "More options of sbatch, for every job."},
        "modules": {
            "type": "array",
            "items": {"type": "string", "minLength": 1},
            "default": [],
            "description": "Environment modules that every job loads.",
        },
        "setup": {"type": "string", "default": "", "description": "Shell commands before every job."},
        "container": _text("Command that runs what follows it in a container, for runs."),
        "scratch": _text("Folder for temporary files on the hosts; variables in it are expanded there."),
        "set_link": _text("Command that gives the link of {host} the bandwidth {rate}: Mbit/s, or unshaped.")
        | {"pattern": r"\{host\}.*\{rate\}|\{rate\}.*\{host\}"},
        "interface": _text("Network interface between hosts; null: the one that leads to the first host."),
    },
    "required": [],
}


@dataclass(frozen=True)
class Gpu:
    """What is different for jobs with GPUs; see OPTIONS."""

    partition: str | None
    qos: str | None
    constraint: str | None
    gres: str


@dataclass(frozen=True)
class Site:
    """A cluster's settings; see OPTIONS."""

    path: Path
    account: str | None
    partition: str | None
    qos: str | None
    constraint: str | None
    gpu: Gpu
    exclusive: bool
    max_minutes: int | None
    max_memory_mb: int | None
    options: str
    modules: tuple[str, ...]
    setup: str
    container: str | None
    scratch: str | None
    set_link: str | None
    interface: str | None

    def shell_prefix(self) -> str:
        """What the shell of every job does first; the empty string where there is nothing to do.

        Module commands and people's scripts read variables that are not set, which Snakemake's shell does not permit.
        """
        commands = []
        if self.modules:
            commands.append("command -v module > /dev/null || . /etc/profile")
            commands.append(f"module load {' '.join(self.modules)}")
        if self.setup.strip():
            commands += self.setup.strip().splitlines()
        if self.scratch:
            commands.append(f'export TMPDIR="{self.scratch}" && mkdir -p "$TMPDIR"')
        return "".join(["set +u; ", *(f"{command}; " for command in commands), "set -u; "]) if commands else ""


def read_site(path: Path) -> Site:
    """Read and check a cluster's settings.

    Raises StudyError where the file is absent, no YAML, a key of it wrong, or two of them contradict each other.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except FileNotFoundError:
        raise StudyError(
            f"{path}: not found; it says what this cluster is like: `cp {EXAMPLE} {path}` and fill it in"
        ) from None
    except yaml.YAMLError as error:
        raise StudyError(f"{path}: not valid YAML ({' '.join(str(error).split())}); correct it") from error
    if not isinstance(content, Mapping):
        raise StudyError(f"{path}: found a YAML {type(content).__name__}, expected `key: value` lines; see {EXAMPLE}")
    options = complete_options(content, OPTIONS, str(path))
    if options["set_link"] and not options["exclusive"]:
        raise StudyError(
            f"{path}: set_link: found a command, with `exclusive: false`; a slow link would slow other jobs on its "
            "host down as well: set `exclusive: true`, or leave `set_link` out"
        )
    options |= {"gpu": Gpu(**options["gpu"]), "modules": tuple(options["modules"])}
    return Site(path=path, **options)

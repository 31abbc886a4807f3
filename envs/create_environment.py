#!/usr/bin/env python3
"""Create .venv from envs/requirements.lock, or say in one sentence why that cannot be.

    python3 envs/create_environment.py [FOLDER]

Runs under any Python 3, so that an old one is told what is needed. The lock names a wheel with its hash for every
package; `uv`, itself from the lock, installs them and keeps them in its cache, so that a second environment costs
next to nothing.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LOCK = os.path.join(ROOT, "envs", "requirements.lock")
SUPPORTED = ((3, 11), (3, 12))
NEEDED_GB = 7
# Published without a wheel, but plain Python: building it needs no compiler.
WITHOUT_WHEEL = "connection-pool"


def stop(sentence):
    sys.exit("error: " + sentence)


def look_at(python):
    """(major, minor) of an interpreter and where it really lies, or None where it does not start."""
    code = "import json, os, sys; print(json.dumps([sys.version_info[:2], os.path.realpath(sys.executable)]))"
    try:
        version, path = json.loads(subprocess.check_output([python, "-c", code], stderr=subprocess.DEVNULL).decode())
    except (OSError, ValueError, subprocess.CalledProcessError):
        return None
    return tuple(version), path


def find_python():
    """The first interpreter whose version the packages are made for; never one inside an environment, which may go."""
    found = []
    for name in [os.environ.get("PYTHON"), sys.executable, "python3.12", "python3.11", "python3"]:
        looked = look_at(name) if name else None
        if looked and looked[0] in SUPPORTED:
            return looked[1]
        if looked:
            found.append("%s is %d.%d" % (name, looked[0][0], looked[0][1]))
    stop(
        "the study needs Python 3.11 or 3.12 (DGL has no wheel for later ones, Snakemake 9 none for earlier), but "
        + ", ".join(found)
        + "; install one, or name one with PYTHON=/path/to/python"
    )


def check_space(folder):
    parent = os.path.dirname(os.path.abspath(folder))
    free_gb = shutil.disk_usage(parent).free / 1e9
    if free_gb < NEEDED_GB:
        stop(
            "the environment needs %d GB, but only %.1f GB are free in %s; make room there"
            % (NEEDED_GB, free_gb, parent)
        )


def lock_of(package):
    """The lines of the lock that belong to one package."""
    with open(LOCK) as file:
        match = re.search(r"^%s==(?:.*\\\n)+.*\n" % re.escape(package), file.read(), re.MULTILINE)
    return match.group()


def run(command, purpose):
    """Run a command; on failure say what it was for, and its last words."""
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except OSError as error:
        stop("%s failed: %s" % (purpose, error))
    lines = process.communicate()[0].decode(errors="replace").splitlines()
    if process.returncode == 0:
        return
    said = " ".join(" ".join(lines).split())
    wheel = re.search(r"Because (\S+?)==\S+ has no (?:usable )?wheels", said)
    if wheel:
        stop(
            "%s has no ready-made wheel for this machine and Python; see envs/README.md for other ways" % wheel.group(1)
        )
    if "No space left" in said:
        stop("the disk is full; the environment needs %d GB" % NEEDED_GB)
    stop("%s failed: %s" % (purpose, lines[-1] if lines else "it said nothing"))


def create(folder):
    python = find_python()
    check_space(folder)
    print("creating %s with %s (about 6 GB; minutes the first time, seconds later)" % (folder, python), flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    run(
        [python, "-m", "venv", folder],
        "creating the environment (on Debian, `apt install python3-venv` brings what it needs)",
    )
    inside = os.path.join(folder, "bin", "python")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(lock_of("uv"))
        file.flush()
        pip = [
            inside,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--require-hashes",
            "-r",
            file.name,
        ]
        run(pip, "fetching uv from the package index")
    # Compiled now, once: where Python is told to write no bytecode, every rank of every run would compile it again.
    uv = [inside, "-m", "uv", "pip", "sync", "--quiet", "--python", inside, "--compile-bytecode", "--require-hashes"]
    run([*uv, LOCK, "--only-binary", ":all:", "--no-binary", WITHOUT_WHEEL], "installing the packages")


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, ".venv")
    with open(LOCK, "rb") as file:
        wanted = hashlib.sha256(file.read()).hexdigest()
    # Written last: an environment without it is half-made, and is made again.
    stamp = os.path.join(folder, "complete")
    if os.path.exists(stamp) and open(stamp).read() == wanted:
        os.utime(stamp)
        return
    create(folder)
    with open(stamp, "w") as file:
        file.write(wanted)


if __name__ == "__main__":
    main()

"""What the machine must have: root and Debian's packages of SLURM."""

import os
import shutil
import subprocess
from pathlib import Path

from emulation.errors import EmulationError
from emulation.hosts import NEW_NAMESPACES

# A program of each package that is needed.
PACKAGES = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "slurm-client": "sbatch",
    "munge": "munged",
    "iproute2": "tc",
    "util-linux": "nsenter",
}
SERVICES = ("munge", "slurmd", "slurmctld")
# Asked by Debian's packages before they start a service; 101 means no.
START_POLICY = Path("/usr/sbin/policy-rc.d")


def missing_packages() -> list[str]:
    """Packages whose program is not found."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    return [package for package, program in PACKAGES.items() if not shutil.which(program, path=path)]


def check_root() -> None:
    if os.geteuid() != 0:
        raise EmulationError("the emulated cluster needs root (network namespaces, mounts); run this as root")


def check_machine() -> None:
    """Raise EmulationError, one sentence, if a cluster cannot be started here."""
    check_root()
    if missing := missing_packages():
        raise EmulationError(
            f"the emulated cluster needs the packages {', '.join(missing)}; "
            "on Debian or Ubuntu: python3 tests/cluster/emulate.py install"
        )
    tried = subprocess.run([*NEW_NAMESPACES, "true"], capture_output=True, text=True)
    if tried.returncode:
        raise EmulationError(
            f"this machine lets root make no namespaces ({tried.stderr.strip()}); in a container, run it privileged"
        )


def install() -> list[str]:
    """Install what is missing, without starting or enabling the packages' own services; returns what was installed."""
    check_root()
    missing = missing_packages()
    if not missing:
        return []
    if not shutil.which("apt-get"):
        raise EmulationError(f"no apt-get here; install {', '.join(missing)} in this system's own way")
    ours = not START_POLICY.exists()
    if ours:
        START_POLICY.write_text("#!/bin/sh\nexit 101\n")
        START_POLICY.chmod(0o755)
    try:
        _apt_get("update", "-qq")
        _apt_get("install", "-qq", "--yes", "--no-install-recommends", *missing)
    finally:
        if ours:
            START_POLICY.unlink()
    if shutil.which("systemctl"):
        subprocess.run(["systemctl", "disable", "--quiet", *(set(SERVICES) & set(missing))], capture_output=True)
    return missing


def _apt_get(*arguments: str) -> None:
    done = subprocess.run(
        ["apt-get", *arguments],
        env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        complaint = (done.stderr or done.stdout).strip().rpartition("\n")[2]
        raise EmulationError(f"`apt-get {' '.join(arguments)}` failed: {complaint}")

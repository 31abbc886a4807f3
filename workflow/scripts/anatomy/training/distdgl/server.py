"""The graph server of one host: holds a part's structure and features, and answers the ranks of all hosts.

  python -m anatomy.training.distdgl.server FOLDER NAME PART NUM_PARTS

Started by a rank with a pipe as its standard input. A line there says that FOLDER is complete; when the pipe closes,
which the kernel sees to however the rank ends, the server ends too. A line of its output says that it has loaded its
part, or why it ends.
"""

import os
import shutil
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import NoReturn, TextIO

from torch.multiprocessing import _prctl_pr_set_pdeathsig

from anatomy.training.distdgl import shared_memory
from anatomy.training.distdgl.hosts import HOSTS_FILE
from anatomy.training.distdgl.package import load_dgl
from anatomy.training.distdgl.part_files import BOOK_FILE
from anatomy.training.distdgl.seeded_requests import Requests
from anatomy.training.distdgl.watch import LOADED


def main() -> None:
    folder, name = Path(sys.argv[1]), sys.argv[2]
    part, num_parts = map(int, sys.argv[3:])
    rank, sys.stdout = sys.stdout, None  # DGL reports its every stage there
    # A batch system signals all processes of a job, but the rank decides when it ends. DGL would set handlers: block.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    _prctl_pr_set_pdeathsig(signal.SIGCONT)  # a stopped server has to wake up to leave
    shared_memory.remove_abandoned()
    shared_memory.hold(name)
    written = threading.Event()
    threading.Thread(target=_leave_with_rank, args=(written, folder, name), daemon=True).start()
    try:
        _serve(folder, part, num_parts, written, rank)
    except Exception as error:
        traceback.print_exc()
        print(f"{type(error).__name__}: {error}".replace("\n", " "), file=rank, flush=True)
        os._exit(1)  # without taking apart what DGL's threads are in


def _serve(folder: Path, part: int, num_parts: int, written: threading.Event, rank: TextIO) -> None:
    """Answer requests, for ever."""
    dgl = load_dgl()
    Requests(dgl)
    written.wait()
    server = dgl.distributed.dist_graph.DistGraphServer(
        part, str(folder / HOSTS_FILE), 1, num_parts, str(folder / BOOK_FILE), graph_format=["csc"]
    )
    print(LOADED, file=rank, flush=True)
    server.start()


def _leave_with_rank(written: threading.Event, folder: Path, name: str) -> NoReturn:
    """Pass the rank's word on, wait for its end, and end this process without leaving anything behind."""
    while os.read(sys.stdin.fileno(), 64):
        written.set()
    shared_memory.remove(name)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


if __name__ == "__main__":
    main()

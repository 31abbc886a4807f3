"""Fixtures of the graph tests: small graphs, archives in OGB's layout, and a web server that misbehaves."""

import gzip
import io
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anatomy.graphs.build import build_graph
from anatomy.graphs.store import Graph, check_graph, open_graph


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., Graph]:
    """Build a graph from options, check it and open it."""

    def _build(**options: Any) -> Graph:
        out = tmp_path / "graphs" / f"g{len(list((tmp_path / 'graphs').glob('*')))}"
        build_graph(options, out)
        graph = open_graph(out)
        check_graph(graph)
        return graph

    return _build


@pytest.fixture
def edges_of() -> Callable[[Graph], list[tuple[int, int]]]:
    """The stored entries of a graph as a sorted list of (source, target)."""

    def _edges_of(graph: Graph) -> list[tuple[int, int]]:
        targets = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
        return sorted(zip(graph.indices.tolist(), targets.tolist(), strict=True))

    return _edges_of


@dataclass
class OgbContent:
    """What goes into a small archive; tests change a part of it."""

    num_nodes: int = 6
    edges: list[tuple[int, int]] = field(
        default_factory=lambda: [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (1, 0)]
    )
    features: np.ndarray = field(default_factory=lambda: np.arange(12, dtype=np.float32).reshape(6, 2) / 4)
    labels: list[Any] = field(default_factory=lambda: [0, 1, 2, 0, 1, 39])
    split: dict[str, list[int]] = field(default_factory=lambda: {"train": [0, 1], "valid": [2], "test": [3, 4]})
    extra: dict[str, bytes] = field(default_factory=dict)
    num_edges: int | None = None


@pytest.fixture
def ogb_zip(tmp_path: Path) -> Callable[..., Path]:
    """Write an archive in OGB's exact layout (`binary`: that of papers100M) and return its path."""

    def _ogb_zip(name: str = "arxiv", split_type: str = "time", binary: bool = False, **changes: Any) -> Path:
        content = OgbContent(**changes)
        num_edges = len(content.edges) if content.num_edges is None else content.num_edges
        members = dict(content.extra)
        for part, nodes in content.split.items():
            members[f"{name}/split/{split_type}/{part}.csv.gz"] = _csv_gz([[node] for node in nodes])
        if binary:
            members[f"{name}/raw/data.npz"] = _npz(
                edge_index=np.array(content.edges, dtype=np.int64).T,
                node_feat=content.features.astype(np.float16),
                node_year=np.full((content.num_nodes, 1), 2015),
                num_nodes_list=np.array([content.num_nodes]),
                num_edges_list=np.array([num_edges]),
            )
            members[f"{name}/raw/node-label.npz"] = _npz(node_label=np.array(content.labels, np.float32)[:, None])
        else:
            members[f"{name}/raw/edge.csv.gz"] = _csv_gz(content.edges)
            members[f"{name}/raw/node-feat.csv.gz"] = _csv_gz(content.features.tolist())
            members[f"{name}/raw/node-label.csv.gz"] = _csv_gz([[label] for label in content.labels])
            members[f"{name}/raw/node_year.csv.gz"] = _csv_gz([[2015]] * content.num_nodes)
            members[f"{name}/raw/num-node-list.csv.gz"] = _csv_gz([[content.num_nodes]])
            members[f"{name}/raw/num-edge-list.csv.gz"] = _csv_gz([[num_edges]])
        members[f"{name}/RELEASE_v1.txt"] = b"# Release note\n"
        path = tmp_path / f"{name}.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for member, data in members.items():
                archive.writestr(member, data)
        return path

    return _ogb_zip


def _csv_gz(rows: list[Any]) -> bytes:
    return gzip.compress("".join(",".join(map(str, row)) + "\n" for row in rows).encode())


def _npz(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


@dataclass
class ScriptedServer:
    """A web server whose next answers are scripted; the last one is repeated.

    Answers: `ok` (whole, or a range if asked), `no-range` (always whole), `cut N` (ends after N bytes of the body),
    `whole-cut N` (the same, but always from the beginning), `stall N` (silent after N bytes), `drip` (a byte at a
    time), `claim N` (states N bytes, sends the file), `html`, `empty`, `chunked`, `status N`, `wait N` (status 503
    with Retry-After), `wrong-range` (another range than asked).
    """

    body: bytes = b""
    answers: list[str] = field(default_factory=lambda: ["ok"])
    etag: str = '"one"'
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    url: str = ""
    closing: threading.Event = field(default_factory=threading.Event)

    def next_answer(self) -> tuple[str, int]:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        word, _, number = answer.partition(" ")
        return word, int(number or 0)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    """A scripted server on 127.0.0.1, gone with the test."""
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    script = ScriptedServer()

    class Handler(_Handler):
        state = script

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    script.url = f"http://127.0.0.1:{http.server_address[1]}"
    yield script
    script.closing.set()
    http.shutdown()
    http.server_close()
    thread.join(5)


class _Handler(BaseHTTPRequestHandler):
    state: ScriptedServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: Any) -> None:
        """Keep the test's output clean."""

    def do_GET(self) -> None:
        state = self.state
        asked = self.headers.get("Range")
        state.requests.append((self.path, asked))
        word, number = state.next_answer()
        self.close_connection = True
        if word in ("status", "wait"):
            self._head(503 if word == "wait" else number, 0, {"Retry-After": str(number)} if word == "wait" else {})
        elif word == "html":
            page = b"\n<!DOCTYPE html><html><body>Down for maintenance</body></html>"
            self._head(200, len(page), {"Content-Type": "text/html"})
            self.wfile.write(page)
        elif word == "empty":
            self._head(200, 0)
        elif word == "chunked":
            self._head(200, None, {"Transfer-Encoding": "chunked"})
            self.wfile.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(state.body), state.body))
        else:
            self._send_body(word, number, asked)

    def _send_body(self, word: str, number: int, asked: str | None) -> None:
        body, start = self.state.body, 0
        changed = self.headers.get("If-Range", self.state.etag) != self.state.etag
        if asked is not None and word not in ("no-range", "whole-cut") and not changed:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if start >= len(body):
                self._head(416, 0)
                return
            start = 0 if word == "wrong-range" else start
            span = f"bytes {start}-{len(body) - 1}/{len(body)}"
            self._head(206, len(body) - start, {"Content-Range": span})
        else:
            self._head(200, number if word == "claim" else len(body))
        body = body[start:]
        if word == "drip":
            for i in range(len(body)):
                if self.state.closing.wait(0.05):
                    return
                self.wfile.write(body[i : i + 1])
        elif word in ("cut", "whole-cut", "stall"):
            self.wfile.write(body[:number])
            self.wfile.flush()
            if word == "stall":
                self.state.closing.wait(20)
        else:
            self.wfile.write(body)

    def _head(self, status: int, length: int | None, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.send_header("ETag", self.state.etag)
        self.send_header("Connection", "close")
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.end_headers()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Waits between tries, noted instead of waited."""
    noted: list[float] = []
    monkeypatch.setattr("anatomy.graphs.download.time.sleep", noted.append)
    return noted


@pytest.fixture
def patient_clock() -> Callable[[], float]:
    """Seconds since some moment, for tests that bound how long something takes."""
    return time.monotonic

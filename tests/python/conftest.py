# SPDX-License-Identifier: Apache-2.0
"""What the Python tests share: tiny random models, the data folder, a private kwkerd.

Run with the package installed: pip install "./bindings/python[torch,text]" pytest, then pytest
tests/python. Environment: KWK_BIN_DIR (default build/bin), KWK_SHARED (default ../shared), KWK_MODEL
(the quickstart model), CI=true makes missing data a failure.
"""

import contextlib
import os
import pathlib
import signal
import subprocess
import tempfile
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

_figures = []


def pytest_terminal_summary(terminalreporter):
    for line in _figures:
        terminalreporter.write_line(f"figure: {line}")


@pytest.fixture(scope="session")
def figure():
    """Report a measured number at the end of the run."""
    return _figures.append


def missing(what):
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what} is missing")
    pytest.skip(f"{what} is missing")


@pytest.fixture(scope="session")
def shared():
    folder = pathlib.Path(os.environ.get("KWK_SHARED", ROOT.parent / "shared"))
    for parent in (ROOT, *ROOT.parents):  # a worktree may lie deeper
        if not folder.is_dir():
            folder = parent / "shared"
    return folder if folder.is_dir() else missing("../shared")


@pytest.fixture(scope="session")
def stories(shared):
    return shared / "data" / "stories260K"


@pytest.fixture(scope="session")
def quickstart_model():
    path = os.environ.get("KWK_MODEL")
    if path and os.path.exists(path):
        return path
    found = sorted((ROOT / ".cache/models").glob("*.gguf"))
    return str(found[0]) if found else missing("the quickstart model (KWK_MODEL)")


@pytest.fixture(scope="session", autouse=True)
def few_threads():
    try:
        import torch
    except ImportError:
        return
    torch.set_num_threads(1)


class Kwkerd:
    """A private daemon in a temporary runtime directory."""

    def __init__(self, binary, args):
        self.dir = tempfile.mkdtemp(prefix="kwk-")  # short: socket paths have 108 bytes
        self.log = open(os.path.join(self.dir, "log"), "wb")
        self.process = subprocess.Popen(
            [binary, "--runtime-dir", self.dir, *args], stderr=self.log, stdout=self.log
        )

    def wait_ready(self, timeout=60):
        import kwker

        end = time.monotonic() + timeout
        while time.monotonic() < end:
            if self.process.poll() is not None:
                break
            try:
                with kwker.Client(self.dir) as c:
                    states = [m["state"] for m in c.models()]
                    if "failed" in states:
                        break
                    if all(s == "ready" for s in states):
                        return self
            except kwker.Error:
                pass
            time.sleep(0.05)
        pytest.fail(f"kwkerd did not get ready:\n{self.text()}")

    def text(self):
        self.log.flush()
        return pathlib.Path(self.dir, "log").read_text(errors="replace")

    def stop(self, how=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(how)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()
        return self.process.returncode


def kwkerd_binary():
    path = pathlib.Path(os.environ.get("KWK_BIN_DIR", ROOT / "build/bin")) / "kwkerd"
    return str(path) if path.exists() else missing(str(path))


@contextlib.contextmanager
def running_kwkerd(*args):
    import shutil

    daemon = Kwkerd(kwkerd_binary(), args)
    try:
        yield daemon.wait_ready()
    finally:
        daemon.stop()
        shutil.rmtree(daemon.dir, ignore_errors=True)


@pytest.fixture(scope="module")
def stories_daemon(stories):
    """A kwkerd that serves stories260K as "stories", float32."""
    with running_kwkerd("--model", f"stories={stories},precision=float32") as daemon:
        yield daemon

# SPDX-License-Identifier: Apache-2.0
"""Starting a measurement in a process of its own. Whatever goes wrong in it comes back as Failed,
with the reason in one line; a process never outlives the call.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading

import kwker

PACKAGE_PARENT = str(pathlib.Path(kwker.__file__).resolve().parent.parent)


class Failed(Exception):
    """A measurement that could not be made; the text is the reason."""


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def exit_reason(code: int, stderr: str) -> str:
    """One line for a process that ended without a result."""
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        memory = " (out of memory?)" if -code == signal.SIGKILL else ""
        return f"killed by {name}{memory}"
    said = last_line(stderr)
    return f"exit code {code}" + (f": {said}" if said else "")


def _environment(threads: int | None) -> dict:
    env = dict(os.environ)
    paths = [PACKAGE_PARENT, *filter(None, [env.get("PYTHONPATH")])]
    env["PYTHONPATH"] = os.pathsep.join(paths)
    env.setdefault("KWKER_PACK_CACHE_GB", "1000000")  # the packs of a run live in its own folder
    env["HF_HUB_OFFLINE"] = "1"  # everything has been looked up by now
    if threads:
        env["KWKER_THREADS"] = str(threads)
    return env


def run_child(request: dict, progress=None) -> dict:
    """The result of one request to kwker.bench.child. progress(done, total): on the way."""
    r, w = os.pipe()
    with (
        tempfile.TemporaryFile("w+", errors="replace") as log,
        os.fdopen(r, errors="replace") as lines,
    ):
        try:
            p = subprocess.Popen(
                [sys.executable, "-m", "kwker.bench.child", str(w)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(w,),
                env=_environment(request.get("threads")),
                text=True,
            )
        finally:
            os.close(w)
        result = error = None
        try:
            try:
                with p.stdin:
                    p.stdin.write(json.dumps(request))
            except BrokenPipeError:
                pass  # it ended at once: its exit says why
            for line in lines:
                try:
                    message = json.loads(line)
                except ValueError:
                    continue  # cut short by its end
                if "progress" in message and progress:
                    progress(*message["progress"])
                result = message.get("result", result)
                error = message.get("error", error)
            p.wait()
        finally:
            if p.poll() is None:
                p.kill()
                p.wait()
        if error is not None:
            raise Failed(error)
        if result is None:
            log.seek(0)
            raise Failed(exit_reason(p.returncode, log.read()))
        return result


def _resident_peak(pid: int) -> int:
    """VmHWM of a live process in bytes, 0 where it cannot be read."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as f:
            for line in f:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def run_program(argv: list[str]) -> tuple[str, str, int]:
    """Standard output, standard error and the most resident memory of a program that succeeds. The
    memory is looked at twenty times a second: what a process reports about its children includes
    their parent's."""
    try:
        p = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
    except OSError as e:
        raise Failed(f"{argv[0]}: {e.strerror}") from None
    peak = 0
    done = threading.Event()

    def watch():
        nonlocal peak
        while True:
            peak = max(peak, _resident_peak(p.pid))
            if done.wait(0.05):
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        out, err = p.communicate()
    finally:
        done.set()
        if p.poll() is None:
            p.kill()
            p.wait()
        watcher.join()
    if p.returncode:
        name = os.path.basename(argv[0])
        raise Failed(f"{name}: {exit_reason(p.returncode, err or out)}")
    return out, err, peak

# SPDX-License-Identifier: Apache-2.0
"""Facts of the machine that figures mean little without, and the speed at which its memory can be
read with as many threads as the models run with.
"""

from __future__ import annotations

import ctypes
import datetime
import importlib.metadata
import os
import platform
import threading
import time

import numpy as np

PACKAGES = ("numpy", "tokenizers", "torch", "transformers")


def read_bandwidth(threads: int, total: int | None = None, seconds: float = 1.0) -> float:
    """Bytes per second that `threads` threads read from memory together: the best of several passes
    of the C library's memchr over memory that does not fit in a cache. total: bytes in all."""
    libc = ctypes.CDLL(None)
    libc.memchr.restype = ctypes.c_void_p
    libc.memchr.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    if total is None:
        total = min(1 << 30, _meminfo("MemAvailable") // 8 or 1 << 28)
    part = max(total // threads, 1 << 12)
    began, ended, best, go_on = [0.0] * threads, [0.0] * threads, [], [True]
    together = threading.Barrier(threads)

    def work(i):
        try:
            mine = np.full(part, 1, np.uint8)  # written by its reader, as weights are
            until = time.perf_counter() + seconds
            while go_on[0]:
                together.wait()
                began[i] = time.perf_counter()
                libc.memchr(mine.ctypes.data, 2, part)  # gives up the interpreter while it reads
                ended[i] = time.perf_counter()
                together.wait()
                if i == 0:  # by the readers' own clocks: others may wake up when all is over
                    best.append(threads * part / (max(ended) - min(began)))
                    go_on[0] = len(best) < 3 or time.perf_counter() < until
                together.wait()
        except (MemoryError, threading.BrokenBarrierError):
            together.abort()

    team = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(threads)]
    for t in team:
        t.start()
    for t in team:
        t.join()
    if not best:
        raise MemoryError(f"{threads} times {part} bytes to read")
    return max(best)


def _meminfo(key: str) -> int:
    try:
        with open("/proc/meminfo", encoding="ascii") as f:
            for line in f:
                if line.startswith(key + ":"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as f:
            for line in f:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def facts(threads: int, bandwidth: bool = True) -> dict:
    from kwker import cpu_backend

    return {
        "cpu": _cpu_model(),
        "arch": platform.machine(),
        "isa": cpu_backend.isa(),
        "cpus": len(os.sched_getaffinity(0)),
        "threads": threads,
        "memory_bytes": _meminfo("MemTotal"),
        "kernel": platform.release(),
        "load_average_before": round(os.getloadavg()[0], 2),
        "read_gb_s": read_bandwidth(threads) / 1e9 if bandwidth else None,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def versions() -> dict:
    import kwker

    out = {"kwker": kwker.__version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            out[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    return out

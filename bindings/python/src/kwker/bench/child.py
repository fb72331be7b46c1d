# SPDX-License-Identifier: Apache-2.0
"""What runs in a process of its own, so that one row's memory is its own and its failure (an error,
a kill) is one row's failure. `python -m kwker.bench.child FD` reads one request, a JSON object,
from standard input, and writes JSON lines to descriptor FD: {"progress": [done, total]} any number
of times, then {"result": {…}} or {"error": "…"}.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time

import numpy as np

from kwker.bench import protocol, runs, store
from kwker.bench.formats import Format, engine_class, torch_class


def peak_rss() -> int:
    """Most memory this process ever had resident, bytes."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as f:
        for line in f:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def _calib(request):
    file = request.get("calib")
    return None if file is None else np.load(file)


def _timed_open(request, fmt: Format, cache_dir=None):
    from kwker.source import open_native

    options = fmt.pack_options(_calib(request), cache_dir)
    t0 = time.perf_counter()
    model = open_native(request["source"], options, request["max_ctx"])
    return model, time.perf_counter() - t0


def _open(request, fmt: Format):
    """From the packs of this run where they are kept, so that a row packs (and calibrates) once."""
    return _timed_open(request, fmt, request.get("cache_dir"))[0]


def _facts(model) -> dict:
    info = model.describe()
    return {
        "precision": info["precision"],
        "rounded": info["rounded"],
        "class": engine_class(info),
        "bytes": info["packed_bytes"],
        "weight_bytes": info["weight_bytes"],
        "n_params": info["n_params"],
        "vocab": info["vocab"],
        "kv_bytes_per_token": info["kv_bytes_per_slot"],
    }


def original(request, progress) -> dict:
    """The float32 weights' logits of the text: scored, and written where the request says so."""
    chunks = np.load(request["chunks"])
    model = _open(request, Format.parse(request["original"]))
    run = runs.EngineRun(model)
    writers = []
    if request.get("store"):
        writers.append(store.Writer(request["store"]))
    if request.get("llama_store"):
        writers.append(store.LlamaWriter(request["llama_store"], chunks, run.vocab))

    def write(logits):
        for w in writers:
            w.add(logits)

    scores = runs.quality(run, chunks, request["bos"], None, write, progress)
    for w in writers:
        w.close()
    np.save(request["nll"], scores.nll)
    itself = dict.fromkeys(("kl", "kl_err", "kl_p99", "kl_max", "top1_err"), 0.0) | {"top1": 100.0}
    return _facts(model) | protocol.summary(scores, scores.nll) | itself


def vocabulary(request, progress) -> dict:
    return {"vocab": _open(request, Format.parse(request["original"])).describe()["vocab"]}


def _originals(request, chunks):
    """originals(i) for runs.quality: from the store, or computed beside the candidate."""
    keep = protocol.counted(chunks.shape[1])
    if request.get("store"):
        kept = store.reader(request["store"], len(chunks), keep, request["vocab"])
        return lambda i: kept[i]
    run = runs.EngineRun(_open(request, Format.parse(request["original"])))
    logits = np.empty((keep, run.vocab), np.float32)

    def compute(i):
        run.start()
        run.read(protocol.inputs(chunks[i], request["bos"]), keep, logits)
        return logits

    return compute


def _score(request, run, progress) -> dict:
    chunks = np.load(request["chunks"])
    scores = runs.quality(run, chunks, request["bos"], _originals(request, chunks), None, progress)
    return protocol.summary(scores, np.load(request["nll"]))


def quality(request, progress) -> dict:
    """One format against the original."""
    model = _open(request, Format.parse(request["format"]))
    return _facts(model) | _score(request, runs.EngineRun(model), progress)


def load(request, progress) -> dict:
    """Time and memory of packing from the source; then the pack is left in cache_dir, untimed."""
    fmt = Format.parse(request["format"])
    model, seconds = _timed_open(request, fmt)
    out = _facts(model) | {"pack_s": seconds, "pack_peak_rss": peak_rss()}
    del model
    gc.collect()
    _open(request, fmt)
    return out


def speed(request, progress) -> dict:
    """One launch: opening the kept pack, first token, repetitions."""
    fmt = Format.parse(request["format"])
    model, seconds = _timed_open(request, fmt, request["cache_dir"])
    out = runs.speed(
        runs.EngineRun(model),
        request["n_prompt"],
        request["n_gen"],
        request["reps"],
        request["seed"],
        progress,
    )
    return out | {"cached_load_s": seconds, "peak_rss": peak_rss()}


def _open_torch(request):
    t0 = time.perf_counter()
    run = runs.TorchRun(request["source"], request["threads"])
    return run, time.perf_counter() - t0


def torch_quality(request, progress) -> dict:
    run, _ = _open_torch(request)
    bytes_ = {"bytes": run.weight_bytes(), "weight_bytes": run.bytes_per_token()}
    facts_ = {"class": torch_class(run.dtype), "precision": run.dtype} | bytes_
    return facts_ | _score(request, run, progress)


def torch_speed(request, progress) -> dict:
    run, seconds = _open_torch(request)
    bytes_ = {"bytes": run.weight_bytes(), "weight_bytes": run.bytes_per_token()}
    out = {"class": torch_class(run.dtype), "precision": run.dtype} | bytes_
    out |= runs.speed(
        run, request["n_prompt"], request["n_gen"], request["reps"], request["seed"], progress
    )
    return out | {"load_s": seconds, "peak_rss": peak_rss()}


TASKS = {
    f.__name__: f for f in (vocabulary, original, quality, load, speed, torch_quality, torch_speed)
}


def main(fd: int) -> None:
    request = json.load(sys.stdin)
    with os.fdopen(fd, "w", encoding="utf-8") as out:

        def send(**message):
            out.write(json.dumps(message) + "\n")
            out.flush()

        if request.get("threads") and not request["task"].startswith("torch_"):
            from kwker.cpu_backend import set_threads

            set_threads(request["threads"])
        try:
            result = TASKS[request["task"]](request, lambda d, n: send(progress=[d, n]))
        except Exception as e:
            text = str(e) or "no message"
            send(error=f"{type(e).__name__}: {text}")
            raise SystemExit(1) from e
        send(result=result)


if __name__ == "__main__":
    main(int(sys.argv[1]))

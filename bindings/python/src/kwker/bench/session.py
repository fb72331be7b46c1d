# SPDX-License-Identifier: Apache-2.0
"""One run of the report: the rows, and the order in which they are measured. Quality first, the
original before all others; then speed in rounds, every row launched once in each, so that a machine
that gets slower or faster meanwhile does so for all rows alike.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import shutil
import statistics

import numpy as np

from kwker.bench import llamacpp, protocol, store
from kwker.bench.formats import Format, llama_class
from kwker.bench.launch import Failed, run_child

FIELDS = (
    "format", "engine", "class", "rounded", "own", "ppl", "ppl_err", "ppl_ratio", "ppl_ratio_err",
    "kl", "kl_err", "kl_p99", "kl_max", "top1", "top1_err", "n_scored", "bytes", "weight_bytes",
    "n_params", "pp_ts", "pp_sd", "tg_ts", "tg_sd", "pp_samples", "tg_samples", "ttft_s",
    "start_s", "load_s", "pack_s", "cached_load_s", "peak_rss", "pack_peak_rss", "gb_s",
    "precision", "note", "error",
)  # fmt: skip


@dataclasses.dataclass
class Row:
    name: str
    engine: str  # "kwker", "transformers", "llama.cpp"
    format: Format | None = None  # kwker: how it is packed
    path: str | None = None  # llama.cpp: its file
    data: dict = dataclasses.field(default_factory=dict)
    launches: list = dataclasses.field(default_factory=list)
    errors: list = dataclasses.field(default_factory=list)
    dead: bool = False  # nothing more is tried

    def fail(self, what: str, reason, dead: bool = False) -> None:
        self.errors.append(f"{what}: {reason}")
        self.dead = self.dead or dead

    def note(self, text: str) -> None:
        self.data["note"] = "; ".join(filter(None, [self.data.get("note"), text]))

    def finish(self) -> dict:
        """The row of the report: every field there is, None where nothing was measured."""
        d = dict(self.data)
        for key in ("pp", "tg"):
            samples = [s for launch in self.launches for s in launch[key]]
            if samples:
                d[f"{key}_ts"] = statistics.fmean(samples)
                d[f"{key}_sd"] = statistics.stdev(samples) if len(samples) > 1 else None
                d[f"{key}_samples"] = samples
        ttft = [s for launch in self.launches for s in launch.get("ttft", ())]
        if ttft:
            d["ttft_s"] = statistics.median(ttft)
        for key in ("cached_load_s", "load_s"):
            values = [launch[key] for launch in self.launches if key in launch]
            if values:
                d[key] = statistics.median(values)
        starts = [
            launch.get("cached_load_s", launch.get("load_s")) + launch["first_s"]
            for launch in self.launches
            if "first_s" in launch
        ]
        if starts:
            d["start_s"] = statistics.median(starts)
        peaks = [launch["peak_rss"] for launch in self.launches if launch.get("peak_rss")]
        if peaks:
            d["peak_rss"] = max(peaks)
        if d.get("weight_bytes") and d.get("tg_ts"):
            d["gb_s"] = d["weight_bytes"] * d["tg_ts"] / 1e9
        d |= {"format": self.name, "engine": self.engine, "error": "; ".join(self.errors) or None}
        return {key: d.get(key) for key in FIELDS}


@dataclasses.dataclass
class Plan:
    """Everything that the command line settles."""

    source: str  # directory or .gguf
    text: str
    work: pathlib.Path  # a folder of this run's own
    formats: list[Format]
    threads: int
    n_chunks: int = 20  # 0: all
    n_ctx: int = 512
    calib: str | None = None
    calib_tokens: int = 16384
    gguf: list[str] = dataclasses.field(default_factory=list)
    llama_bench: str | None = None
    llama_perplexity: str | None = None
    transformers: bool = True
    n_prompt: int = 512
    n_gen: int = 128
    reps: int = 3
    rounds: int = 3
    seed: int = 1
    store_bytes: int = 8 << 30
    quality: bool = True
    speed: bool = True


class Session:
    """progress(label, done, total) is told what is going on."""

    def __init__(self, plan: Plan, progress=lambda label, done, total: None):
        self.plan = plan
        self._progress = progress
        self.protocol = {}
        self.llama_build = None
        self.grid = None  # what the source's weights were rounded to before
        self.original: dict = {}
        self.rows = [Row(f.name, "kwker", format=f) for f in plan.formats]
        if plan.transformers:
            self.rows.append(Row("transformers", "transformers"))
        self.rows += [Row(f"llama.cpp {pathlib.Path(g).stem}", "llama.cpp", path=g)
                      for g in plan.gguf]  # fmt: skip
        self._request = {
            "source": plan.source,
            "threads": plan.threads,
            "max_ctx": max(plan.n_ctx, plan.n_prompt, plan.n_gen),
            "n_prompt": plan.n_prompt,
            "n_gen": plan.n_gen,
            "reps": plan.reps,
            "seed": plan.seed,
            "cache_dir": str(plan.work / "packs") if plan.speed else None,
        }

    # ---- the text ------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Tokenise. What goes wrong here fails the whole run (Failed, ValueError, OSError)."""
        from kwker.bench import text

        plan = self.plan
        if not (plan.quality or plan.calib):
            return
        tokens = text.Text(plan.source)
        if plan.quality:
            self._progress("reading the text", 0, 1)
            ids = tokens.ids(plan.text)
            chunks = protocol.cut(ids, plan.n_ctx, plan.n_chunks)
            np.save(plan.work / "chunks.npy", chunks)
            self._chunks, self._bos = chunks, tokens.bos
            self._request |= {"chunks": str(plan.work / "chunks.npy"), "bos": tokens.bos,
                              "nll": str(plan.work / "nll.npy")}  # fmt: skip
            self.protocol = {
                "text": os.path.abspath(plan.text),
                "n_tokens": len(ids),
                "n_ctx": plan.n_ctx,
                "n_chunks": len(chunks),
                "n_chunks_there": len(ids) // plan.n_ctx,
                "scored_per_chunk": protocol.counted(plan.n_ctx),
                "bos": tokens.bos,
            }
        if plan.calib:
            ids = tokens.ids(plan.calib)[: plan.calib_tokens]
            np.save(plan.work / "calib.npy", np.asarray(ids, np.int32))
            self._request["calib"] = str(plan.work / "calib.npy")
            self.protocol["calib"] = os.path.abspath(plan.calib)
            self.protocol["calib_tokens"] = len(ids)

    # ---- children ------------------------------------------------------------------------------

    def _child(self, task: str, label: str, fmt: Format | None = None, **more) -> dict:
        request = self._request | {"task": task} | more
        if fmt:
            request["format"] = fmt.name
        self._progress(label, 0, 1)
        return run_child(request, lambda done, total: self._progress(label, done, total))

    def _live(self, *engines):
        return [r for r in self.rows if r.engine in engines and not r.dead]

    def run(self) -> None:
        """Measure everything, after prepare(); failures end up in their rows."""
        self._read_heads()
        if self.plan.speed:
            self._load()
        if self.plan.quality:
            self._quality()
        if self.plan.speed:
            self._speed()

    def _read_heads(self) -> None:
        self._heads = {}
        if os.path.isfile(self.plan.source):
            with contextlib.suppress(Failed):  # not a GGUF file: the rows will say so
                kind = llamacpp.head(self.plan.source).kind
                self.grid = None if kind in ("F32", "F16", "BF16") else kind
        for row in self._live("llama.cpp"):
            try:
                head = self._heads[row.path] = llamacpp.head(row.path)
            except Failed as e:
                row.fail("its file", e, dead=True)
                continue
            row.data |= {
                "bytes": head.file_bytes,
                "weight_bytes": head.weight_bytes,
                "precision": head.kind,
                "class": llama_class(head.kind),
            }

    def _load(self) -> None:
        for row in self._live("kwker"):
            if row.dead:  # turned out to be another row
                continue
            try:
                row.data |= self._child("load", f"{row.name}: packing", row.format)
            except Failed as e:
                row.fail("packing", e, dead=True)
            self._merge_own(row)

    def _merge_own(self, row: Row) -> None:
        """The row "own" takes the name of what it turned out to be; a row of that name goes."""
        if row.format.weights != "own" or "precision" not in row.data:
            return
        row.data["own"] = True
        name = "+".join((row.data["precision"], *row.format.extras))
        for other in self.rows:
            if other is not row and other.engine == "kwker" and other.name == name:
                other.dead = True
                self.rows.remove(other)
                break
        row.name = name

    # ---- quality -------------------------------------------------------------------------------

    def _quality(self) -> None:
        try:
            base = self._run_original()
        except Failed as e:
            for row in self.rows:
                if not row.dead:
                    row.fail("the original", e)
            return
        for row in list(self._live("kwker")):
            if row.dead:
                continue
            if row.name == "float32":
                row.data |= self.original
                continue
            self._measure(row, "quality", "perplexity", row.format)
            self._merge_own(row)
        for row in self._live("transformers"):
            self._measure(row, "torch_quality", "perplexity")
        for row in self._live("llama.cpp"):
            self._llama_quality(row, base)

    def _run_original(self) -> str | None:
        """The file for llama-perplexity, where there is one. The original's logits are kept on disk
        if they fit there and in store_bytes, else every row computes them again beside its own."""
        plan, n, keep = self.plan, len(self._chunks), protocol.counted(self.plan.n_ctx)
        fmt = next((r.format for r in self.rows if r.name == "float32"), Format("float32"))
        self._request["original"] = fmt.name
        vocab = self._vocab()
        need = {"store": store.store_bytes(n, keep, vocab)}
        if plan.llama_perplexity and plan.gguf:
            need["llama_store"] = store.llama_bytes(n, keep, vocab)
        room = min(plan.store_bytes, int(0.9 * shutil.disk_usage(plan.work).free))
        kept = sum(need.values()) <= room
        self.protocol["store_bytes"] = sum(need.values()) if kept else 0
        files = {key: str(plan.work / key) if kept else None for key in need}
        self._request |= {"store": files["store"], "vocab": vocab}
        base = files.get("llama_store")
        self.original = self._child("original", "the original: perplexity", llama_store=base)
        return base

    def _vocab(self) -> int:
        """Columns of the logits, before the original has run: of a packed row, else asked."""
        for row in self.rows:
            if "vocab" in row.data:
                return row.data["vocab"]
        return self._child("vocabulary", "the original: packing")["vocab"]

    def _measure(self, row: Row, task: str, what: str, fmt: Format | None = None) -> None:
        try:
            row.data |= self._child(task, f"{row.name}: {what}", fmt)
        except Failed as e:
            row.fail(what, e)

    def _llama_quality(self, row: Row, base) -> None:
        plan = self.plan
        if not plan.llama_perplexity:
            return
        self._progress(f"{row.name}: perplexity", 0, 1)
        head = self._heads[row.path]
        try:
            if head.vocab is not None and base and head.vocab != self.original["vocab"]:
                row.note(f"no KL: its vocabulary has {head.vocab} tokens, "
                         f"the original's {self.original['vocab']}")  # fmt: skip
                base = None
            if head.add_bos is not None and head.add_bos != (self._bos is not None):
                row.note(f"its add_bos_token is {head.add_bos}, unlike the tokenizer's")
            if base:
                row.data |= llamacpp.compare(
                    plan.llama_perplexity, row.path, base, plan.threads, plan.n_ctx
                )
                row.data["n_scored"] = self.original["n_scored"]
            else:
                row.data |= llamacpp.perplexity(
                    plan.llama_perplexity, row.path, plan.text, plan.threads, plan.n_ctx,
                    len(self._chunks),
                )  # fmt: skip
                row.data["ppl_ratio"] = row.data["ppl"] / self.original["ppl"]
        except Failed as e:
            row.fail("perplexity", e)

    # ---- speed ---------------------------------------------------------------------------------

    def _speed(self) -> None:
        for turn in range(self.plan.rounds):
            for row in self._live("kwker", "transformers", "llama.cpp"):
                label = f"{row.name}: speed, round {turn + 1} of {self.plan.rounds}"
                try:
                    self._launch(row, label)
                except Failed as e:
                    row.fail("speed", e, dead=True)

    def _launch(self, row: Row, label: str) -> None:
        plan = self.plan
        if row.engine == "llama.cpp":
            if not plan.llama_bench:
                return
            self._progress(label, 0, 1)
            made = llamacpp.bench(
                plan.llama_bench, row.path, plan.threads, plan.n_prompt, plan.n_gen, plan.reps
            )
            row.data["class"] = llama_class(row.data["precision"], *made["kv"])
            self.llama_build = made["build"]
        elif row.engine == "transformers":
            made = self._child("torch_speed", label)
            row.data |= {k: made[k] for k in ("class", "precision", "bytes", "weight_bytes")}
        else:
            made = self._child("speed", label, row.format)
        row.launches.append(made)

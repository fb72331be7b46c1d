# SPDX-License-Identifier: Apache-2.0
"""The user's llama.cpp: llama-bench for speed, llama-perplexity for quality. With a file of the
original's logits the latter compares against the same original, on the same tokens, as our rows;
without one it gives its own perplexity of the text.
"""

from __future__ import annotations

import json
import re

from kwker.bench import gguf_head
from kwker.bench.launch import Failed, last_line, run_program

NUMBER = r"(-?[0-9.]+(?:e[-+]?[0-9]+)?|nan|-?inf)"


def head(path) -> gguf_head.Head:
    try:
        return gguf_head.read(path)
    except (OSError, ValueError) as e:
        raise Failed(f"{path}: {getattr(e, 'strerror', None) or e}") from None


def bench(program, gguf, threads: int, n_prompt: int, n_gen: int, reps: int) -> dict:
    """One launch: samples of both tests, and what the program says about the file and itself."""
    tests = f"-p {n_prompt} -n {n_gen} -t {threads} -r {reps} -o json"
    text, err, peak = run_program([program, "-m", str(gguf), *tests.split()])
    try:
        tests = json.loads(text)
        out = {"pp": [], "tg": [], "peak_rss": peak}
        for t in tests:
            samples = [float(s) for s in t.get("samples_ts") or [t["avg_ts"]]]
            out["pp" if t["n_prompt"] else "tg"] += samples
            out |= {
                "kv": (t["type_k"], t["type_v"]),
                "build": f"{t['build_commit']} ({t['build_number']})",
            }
    except (ValueError, KeyError, TypeError) as e:
        raise Failed(
            f"llama-bench printed something else than expected ({type(e).__name__}: {e}); "
            f"it ends with: {last_line(err or text)!r}"
        ) from None
    if (n_prompt and not out["pp"]) or (n_gen and not out["tg"]):
        raise Failed(f"llama-bench measured nothing: {last_line(err or text)!r}")
    return out


def _pair(label: str, text: str) -> tuple[float, float]:
    m = re.search(label + r"\s*:\s*" + NUMBER + r"\s*±\s*" + NUMBER, text)
    if not m:
        raise Failed(f"llama-perplexity did not print {label!r}; it ends with: {last_line(text)!r}")
    return float(m[1]), float(m[2])


def _sizes(threads: int, n_ctx: int) -> list[str]:
    """llama-perplexity wants a batch that is a multiple of the context, or one that fits in it."""
    batch = "" if 2048 % n_ctx == 0 else f" -b {n_ctx} -ub {min(n_ctx, 512)}"
    return f"-t {threads} -c {n_ctx}{batch}".split()


def compare(program, gguf, base, threads: int, n_ctx: int) -> dict:
    """Against the original's logits in the file `base`."""
    argv = [program, "-m", gguf, "--kl-divergence-base", base, "--kl-divergence"]
    out, err, _ = run_program([*map(str, argv), *_sizes(threads, n_ctx)])
    text = out + "\n" + err
    ppl = _pair(r"Mean PPL\(Q\)", text)
    ratio = _pair(r"Mean PPL\(Q\)/PPL\(base\)", text)
    kl = _pair(r"Mean\s+KLD", text)
    top = _pair("Same top p", text.replace("%", ""))
    names = ("ppl", "ppl_ratio", "kl", "top1")
    values = (ppl, ratio, kl, top)
    return {k: v[0] for k, v in zip(names, values)} | {
        f"{k}_err": v[1] for k, v in zip(names, values)
    }


def perplexity(program, gguf, text_file, threads: int, n_ctx: int, n_chunks: int) -> dict:
    """Its own perplexity of the text, with its own tokenizer."""
    argv = [program, "-m", gguf, "-f", text_file, "--chunks", n_chunks]
    out, err, _ = run_program([*map(str, argv), *_sizes(threads, n_ctx)])
    m = re.search(r"PPL = " + NUMBER + r"\s*\+/-\s*" + NUMBER, out + "\n" + err)
    if not m:
        raise Failed(f"llama-perplexity printed no perplexity: {last_line(err or out)!r}")
    return {"ppl": float(m[1]), "ppl_err": float(m[2])}

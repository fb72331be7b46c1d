# SPDX-License-Identifier: Apache-2.0
"""A finished session as one object for JSON, and that object as a Markdown table."""

from __future__ import annotations

import json
import shlex

from kwker.bench.formats import LEGEND, class_text

UNITS = {
    "kl": "mean KL(original || format), natural logarithm, over the scored positions",
    "top1": "percent of scored positions with the original's most likely token",
    "ppl_ratio": "perplexity divided by the original's; the error counts that the text is the same",
    "bytes": "the packed file, the GGUF file, or the parameters in memory (transformers)",
    "weight_bytes": "weights that one generated token reads",
    "pp_ts": "tokens per second of a prompt from an empty context, mean; pp_sd its deviation",
    "tg_ts": "tokens per second of single tokens from an empty context, mean; tg_sd its deviation",
    "ttft_s": "seconds to the first token of such a prompt, model loaded",
    "start_s": "seconds from opening the model (kept pack) to that token in a fresh process",
    "pack_s": "seconds from the source files to a packed model, calibration included",
    "cached_load_s": "seconds to open the kept pack; load_s: of transformers",
    "peak_rss": "most resident bytes of the process that measured the speed; pack_peak_rss: packed",
    "gb_s": "weight_bytes * tg_ts / 1e9; the KV cache's bytes are not in it",
}
EMPTY = "–"


def build(session, machine: dict, versions: dict, argv: list[str]) -> dict:
    plan = session.plan
    if session.llama_build:
        versions = versions | {"llama.cpp": session.llama_build}
    original = {k: session.original.get(k) for k in ("ppl", "ppl_err", "n_params", "vocab")}
    return {
        "formats": [row.finish() for row in session.rows],
        "model": plan.source,
        "grid": session.grid,
        "original": original,
        "protocol": session.protocol,
        "speed": {
            "n_prompt": plan.n_prompt,
            "n_gen": plan.n_gen,
            "reps": plan.reps,
            "rounds": plan.rounds,
            "seed": plan.seed,
        },
        "machine": machine,
        "versions": versions,
        "command": shlex.join(["python", "-m", "kwker.bench", *argv]),
        "units": UNITS,
    }


def dump(report: dict, path) -> None:
    text = json.dumps(report, indent=1, ensure_ascii=False)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text + "\n")


def _with_error(value, error, digits: int) -> str:
    if value is None:
        return EMPTY
    text = f"{value:.{digits}f}"
    return text if error is None else f"{text} ± {error:.{digits}f}"


def _seconds(s) -> str:
    if s is None:
        return EMPTY
    return f"{1000 * s:.0f} ms" if s < 1 else f"{s:.1f} s"


def _mb(n) -> str:
    return EMPTY if n is None else f"{n / 1e6:.1f}"


def _speed(mean, sd) -> str:
    if mean is None:
        return EMPTY
    return _with_error(mean, sd, 0 if mean >= 1000 else 1)


def columns(report: dict) -> list[tuple]:
    """(heading, text of a row) of each column."""
    speed = report["speed"]
    bandwidth = report["machine"].get("read_gb_s")
    gb_s = "GB/s" + (f" of {bandwidth:.1f}" if bandwidth else "")

    def load(r):
        return _seconds(r["cached_load_s"] if r["engine"] == "kwker" else r["load_s"])

    return [
        ("format", lambda r: r["format"] + (" (the model's own)" if r["own"] else "")),
        ("weights / activations / KV", lambda r: class_text(r["class"]) or EMPTY),
        ("PPL", lambda r: _with_error(r["ppl"], r["ppl_err"], 2)),
        ("PPL ratio", lambda r: _with_error(r["ppl_ratio"], r["ppl_ratio_err"], 4)),
        ("mean KL", lambda r: _with_error(r["kl"], r["kl_err"], 5)),
        ("same top-1 %", lambda r: _with_error(r["top1"], r["top1_err"], 2)),
        ("MB", lambda r: _mb(r["bytes"])),
        ("MB/token", lambda r: _mb(r["weight_bytes"])),
        (f"pp{speed['n_prompt']} t/s", lambda r: _speed(r["pp_ts"], r["pp_sd"])),
        (f"tg{speed['n_gen']} t/s", lambda r: _speed(r["tg_ts"], r["tg_sd"])),
        (gb_s, lambda r: EMPTY if r["gb_s"] is None else f"{r['gb_s']:.1f}"),
        ("first token", lambda r: _seconds(r["ttft_s"])),
        ("load + pack", lambda r: _seconds(r["pack_s"])),
        ("load", load),
        ("peak MB", lambda r: EMPTY if r["peak_rss"] is None else f"{r['peak_rss'] / 1e6:.0f}"),
    ]


def used_columns(report: dict) -> list[tuple]:
    """Those with something in them."""
    rows = report["formats"]
    return [
        (head, text)
        for head, text in columns(report)
        if any(text(r) != EMPTY for r in rows) or head == "format"
    ]


def notes(report: dict) -> list[str]:
    """The sentences under the table."""
    p, s, m = report["protocol"], report["speed"], report["machine"]
    out = []
    if p.get("n_chunks"):
        bos = "no BOS" if p["bos"] is None else f"BOS {p['bos']} at the start of each chunk"
        out.append(
            f"Perplexity: llama.cpp's protocol, {p['n_chunks']} of {p['n_chunks_there']} chunks of "
            f"{p['n_ctx']} tokens of {p['text']}, {p['scored_per_chunk']} predictions of each "
            f"scored, {bos}. Original: the float32 weights, PPL "
            f"{_with_error(report['original']['ppl'], report['original']['ppl_err'], 2)}."
        )
    if report["grid"]:
        out.append(
            f"The weights come from a quantised file ({report['grid']}) and lie on its grid: what "
            "another format loses against them says little about its loss on the model itself."
        )
    if p.get("calib"):
        out.append(f"Calibrated on the first {p['calib_tokens']} tokens of {p['calib']}.")
    if any(r["pp_ts"] or r["tg_ts"] for r in report["formats"]):
        out.append(
            f"Speed: {count(m['threads'], 'thread')}, {count(s['rounds'], 'round')} of one launch "
            f"each in turn, {count(s['reps'], 'repetition')} after one that does not count; mean ± "
            f"standard deviation. GB/s: weights read per second while generating"
            + (
                f", beside {m['read_gb_s']:.1f} GB/s that this machine reads with as many threads."
                if m.get("read_gb_s")
                else "."
            )
        )
    if m:
        load = m.get("load_average_before", 0)
        busy = f"; load average {load} before the run, so others were computing too"
        out.append(
            f"{m['cpu']}, {m['isa']}, {m['cpus']} CPUs"
            + (busy if load > 0.5 else "")
            + "; "
            + ", ".join(f"{k} {v}" for k, v in report["versions"].items())
            + f"; {m['date']}."
        )
    out.append(f"{LEGEND[0].upper()}{LEGEND[1:]}")
    out += [f"{r['format']}: {r['rounded']}." for r in report["formats"] if r["rounded"]]
    out += [f"{r['format']}: {r['note']}." for r in report["formats"] if r["note"]]
    return out


def cells(row: dict, cols: list[tuple]) -> list[str] | None:
    """The texts of a row; None where it failed before it measured anything."""
    out = [text(row) for _, text in cols]
    return None if row["error"] and all(c == EMPTY for c in out[1:]) else out


def failures(report: dict) -> list[str]:
    """What went wrong in rows that have some figures (the others say it in their place)."""
    cols = used_columns(report)
    rows = [r for r in report["formats"] if r["error"] and cells(r, cols)]
    return [f"{r['format']}: {r['error']}" for r in rows]


def count(n: int, word: str) -> str:
    return f"{n} {word}{'' if n == 1 else 's'}"


def _escape(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def markdown(report: dict) -> str:
    cols = used_columns(report)
    lines = [f"# {report['model']}", ""]
    lines.append("| " + " | ".join(head for head, _ in cols) + " |")
    lines.append("|" + "|".join("---" if i < 2 else "---:" for i in range(len(cols))) + "|")
    for r in report["formats"]:
        texts = cells(r, cols) or [r["format"], f"failed: {r['error']}", *[""] * (len(cols) - 2)]
        lines.append("| " + " | ".join(_escape(t) for t in texts) + " |")
    failed = failures(report)
    if failed:
        lines += ["", "Failed:", ""] + [f"- {f}" for f in failed]
    lines += [""] + [f"{n}\n" for n in notes(report)]
    lines += [f"`{report['command']}`"]
    return "\n".join(lines) + "\n"

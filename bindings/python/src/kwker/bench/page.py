# SPDX-License-Identifier: Apache-2.0
"""A report as one HTML file that needs nothing else: the table, the plots, the notes."""

from __future__ import annotations

import html

from kwker.bench import plot
from kwker.bench.report import cells, failures, notes, used_columns

STYLE = """
:root { color-scheme: light dark; --fg: #1b1f24; --bg: #ffffff; --soft: #6a737d; --grid: #e3e6ea;
  --kwker: #0b63c5; --transformers: #8a5bc7; --llama: #c2541b; }
@media (prefers-color-scheme: dark) { :root { --fg: #e6e9ed; --bg: #15181c; --soft: #99a2ac;
  --grid: #2c3238; --kwker: #62a8f5; --transformers: #b99af0; --llama: #f0935f; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--fg); background: var(--bg);
  max-width: 1180px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .6rem; border-bottom: 1px solid var(--grid); text-align: right;
  white-space: nowrap; }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left; }
th { color: var(--soft); font-weight: 600; }
td.failed { white-space: normal; text-align: left; color: var(--llama); }
svg { width: 100%; max-width: 760px; display: block; margin: 1.2rem 0; }
svg text { fill: var(--fg); font: 12px system-ui, sans-serif; }
svg .tick, svg .label { fill: var(--soft); } svg .title { font-size: 14px; font-weight: 600; }
svg .grid { stroke: var(--grid); } svg .front { fill: none; stroke: var(--soft);
  stroke-dasharray: 4 3; }
svg .whisker { stroke: var(--fg); stroke-width: 1.5; }
svg .kwker { fill: var(--kwker); } svg .transformers { fill: var(--transformers); }
svg .llama { fill: var(--llama); }
p, li, code { font-size: 13px; } p, li { color: var(--soft); } code { overflow-wrap: anywhere; }
"""
GROUPS = {"kwker": "kwker", "transformers": "transformers", "llama.cpp": "llama"}


def _points(rows, y: str, err: str, x: str | None = None) -> list[plot.Point]:
    return [
        plot.Point(
            x=(r[x] / 1e6 if x else 0.0),
            y=r[y],
            label=r["format"],
            group=GROUPS[r["engine"]],
            err=r[err] or 0.0,
        )
        for r in rows
        if r[y] is not None and (x is None or r[x])
    ]


def plots(report: dict) -> list[str]:
    rows, speed = report["formats"], report["speed"]
    kl = _points(rows, "kl", "kl_err", "bytes")
    ppl = _points(rows, "ppl_ratio", "ppl_ratio_err", "bytes")
    made = [
        plot.scatter(kl, "Mean KL to the original against size", "MB", "mean KL", True),
        plot.scatter(
            ppl, "Perplexity ratio to the original against size", "MB", "PPL ratio", False
        ),
        plot.bars(_points(rows, "pp_ts", "pp_sd"), f"Prompt of {speed['n_prompt']}, tokens/s"),
        plot.bars(_points(rows, "tg_ts", "tg_sd"), f"Generation of {speed['n_gen']}, tokens/s"),
    ]
    return [svg for svg in made if svg]


def _table(report: dict) -> str:
    cols = used_columns(report)
    out = ["<table><thead><tr>"]
    out += [f"<th>{html.escape(head)}</th>" for head, _ in cols]
    out.append("</tr></thead><tbody>")
    for r in report["formats"]:
        out.append(f"<tr><td>{html.escape(cols[0][1](r))}</td>")
        texts = cells(r, cols)
        if texts is None:
            reason = html.escape(r["error"])
            out.append(f'<td class="failed" colspan="{len(cols) - 1}">failed: {reason}</td>')
        else:
            out += [f"<td>{html.escape(c)}</td>" for c in texts[1:]]
        out.append("</tr>")
    out.append("</tbody></table>")
    return "".join(out)


def render(report: dict) -> str:
    title = html.escape(f"Weight formats of {report['model']}")
    failed = "".join(f"<li>{html.escape(f)}</li>" for f in failures(report))
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style><h1>{title}</h1>"
        f'<div class="scroll">{_table(report)}</div>'
        + (f"<h2>Failed</h2><ul>{failed}</ul>" if failed else "")
        + "".join(plots(report))
        + "".join(f"<p>{html.escape(n)}</p>" for n in notes(report))
        + f"<p><code>{html.escape(report['command'])}</code></p></html>\n"
    )

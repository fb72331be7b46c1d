#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run kwk-bench and llama-bench alternately on the same machine and print a table of medians.

    tests/bench/compare.py --model MODEL.gguf --llama-bench BIN \\
        --gguf float32=F32.gguf --gguf bf16=BF16.gguf --gguf int8=Q8_0.gguf --gguf int4=Q4_K_M.gguf

Each round starts every program once, one after the other; figures are the medians of the rounds, and
the last column is the ratio of medians with the range of the per-round ratios. Memory speed differs
between launches on many machines, so few rounds mean little.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parents[2]


def run(argv):
    """The JSON list that a benchmark prints on standard output."""
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(argv)}\n{done.stderr[-2000:]}\nexit code {done.returncode}")
    return json.loads(done.stdout)


def ours(args, precision):
    rows = run([args.kwk_bench, "-m", args.model, "-w", precision, "-p", str(args.prompt), "-n",
                str(args.generate), "-t", str(args.threads), "-r", str(args.reps), "-o", "json"])
    return {r["test"]: r["avg_ts"] for r in rows}


def theirs(args, gguf):
    rows = run([args.llama_bench, "-m", gguf, "-p", str(args.prompt), "-n", str(args.generate), "-t",
                str(args.threads), "-r", str(args.reps), "-o", "json"])
    return {(f"pp{r['n_prompt']}" if r["n_prompt"] else f"tg{r['n_gen']}"): r["avg_ts"]
            for r in rows}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True, help="model for kwk-bench")
    p.add_argument("--llama-bench", required=True, help="llama-bench program")
    p.add_argument("--gguf", action="append", default=[], required=True, metavar="PRECISION=FILE",
                   help="what llama-bench runs beside our precision (repeatable)")
    p.add_argument("--kwk-bench", default=str(HERE / "build/bin/kwk-bench"))
    p.add_argument("-t", "--threads", type=int, default=2)
    p.add_argument("-p", "--prompt", type=int, default=512)
    p.add_argument("-n", "--generate", type=int, default=128)
    p.add_argument("-r", "--reps", type=int, default=2, help="repetitions inside a launch")
    p.add_argument("--rounds", type=int, default=5, help="launches of each program")
    p.add_argument("--json", help="write all figures to this file")
    args = p.parse_args()
    pairs = [g.split("=", 1) for g in args.gguf]
    figures = {}  # (precision, test) -> ([ours], [theirs])
    for turn in range(args.rounds):
        for precision, gguf in pairs:
            a, b = ours(args, precision), theirs(args, gguf)
            for test in a.keys() & b.keys():
                mine, other = figures.setdefault((precision, test), ([], []))
                mine.append(a[test])
                other.append(b[test])
            print(f"round {turn + 1}/{args.rounds} {precision}", file=sys.stderr)
    print("| weights | test | Kwker t/s | llama.cpp file | llama.cpp t/s | ratio (range of rounds) |")
    print("|---|---|---|---|---|---|")
    for (precision, test), (mine, other) in sorted(figures.items()):
        each = [m / o for m, o in zip(mine, other)]
        name = pathlib.Path(dict(pairs)[precision]).stem
        print(f"| {precision} | {test} | {statistics.median(mine):.1f} | {name} | "
              f"{statistics.median(other):.1f} | {statistics.median(mine) / statistics.median(other):.2f} "
              f"({min(each):.2f}–{max(each):.2f}) |")
    if args.json:
        rows = [{"precision": k[0], "test": k[1], "kwker": v[0], "llama": v[1]} for k, v in figures.items()]
        pathlib.Path(args.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()

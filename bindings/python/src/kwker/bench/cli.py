# SPDX-License-Identifier: Apache-2.0
"""Arguments of `python -m kwker.bench`, and the run from them to the reports."""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import signal
import sys
import tempfile

DESCRIPTION = """\
Perplexity of each weight format beside the original model's, by llama.cpp's protocol, KL divergence
to the original, sizes, speeds, and the user's own llama.cpp in the same table. Markdown goes to
standard output. Nothing is fetched for local paths."""


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m kwker.bench",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    # fmt: off
    p.add_argument(
        "--llm", required=True, metavar="DIR|GGUF",
        help="directory with config.json, safetensors and tokenizer.json, a .gguf file, or a "
        "model of the Hugging Face hub",
    )
    p.add_argument("--text", metavar="FILE", help="text to measure on, UTF-8")
    p.add_argument(
        "--formats", metavar="LIST",
        help="own, float32, f16, bf16, int8, int4, each with +calib, +gptq, +mix6, +mix8; default "
        "own,float32,bf16,int8,int4, and int4+calib with --calib",
    )
    p.add_argument("--chunks", type=int, default=20, metavar="N",
                   help="chunks of the text, from its start; 0: all (default %(default)s)")
    p.add_argument("--ctx", type=int, default=512, metavar="N",
                   help="tokens of a chunk (default %(default)s)")
    p.add_argument("--calib", metavar="FILE", help="text that +calib formats are fitted to")
    p.add_argument("--calib-tokens", type=int, default=16384, metavar="N",
                   help="how many of its tokens, from its start (default %(default)s)")
    p.add_argument("--gguf", nargs="+", action="extend", default=[], metavar="F",
                   help="files for llama.cpp")
    p.add_argument("--llama-bench", metavar="BIN", help="llama.cpp's program, for their speed")
    p.add_argument("--llama-perplexity", metavar="BIN",
                   help="llama.cpp's program, for their quality")
    p.add_argument("--no-transformers", action="store_true",
                   help="leave out the original in transformers")
    p.add_argument("-t", "--threads", type=int, metavar="N",
                   help="threads of every row (default: the physical cores)")
    p.add_argument("-p", "--prompt", type=int, default=512, metavar="N",
                   help="tokens of the timed prompt (default %(default)s)")
    p.add_argument("-n", "--gen", type=int, default=128, metavar="N",
                   help="timed single tokens (default %(default)s)")
    p.add_argument("-r", "--reps", type=int, default=3, metavar="N",
                   help="timed repetitions in a launch (default %(default)s)")
    p.add_argument("--rounds", type=int, default=3, metavar="N",
                   help="launches of each row, rows in turn (default %(default)s)")
    p.add_argument("--seed", type=int, default=1,
                   help="of the random tokens that speed is timed on")
    p.add_argument("--no-quality", action="store_true", help="no perplexity and KL")
    p.add_argument("--no-speed", action="store_true", help="no speed, load times and memory")
    p.add_argument("--json", metavar="F", help="write all figures there")
    p.add_argument("--html", metavar="F", help="write a page with table and plots there")
    p.add_argument("--work-dir", metavar="DIR",
                   help="where packs and logits are kept meanwhile (default: the cache folder)")
    p.add_argument("--store-gb", type=float, default=8.0, metavar="GB",
                   help="keep the original's logits on disk up to this size (20 chunks of a "
                   "vocabulary of 50 thousand: 1 GB), else compute them again for every row "
                   "(default %(default)g)")
    # fmt: on
    return p


class Line:
    """What is going on, on one line of a terminal; nothing elsewhere."""

    def __init__(self):
        from kwker.calibrate import Progress

        self._make = Progress
        self._bar = None
        self._label = None

    def __call__(self, label: str, done: int, total: int) -> None:
        if label != self._label:
            self.end()
            self._label, self._bar = label, self._make(label)
        self._bar(done, total)

    def end(self) -> None:
        if self._bar:
            self._bar.end()
        self._bar = self._label = None


def _check(args, p: argparse.ArgumentParser) -> None:
    """What argparse cannot see; ends the program with a sentence."""
    least = dict(chunks=0, ctx=4, calib_tokens=2, prompt=0, gen=0, reps=1, rounds=1)
    for name, low in least.items():
        if getattr(args, name) < low:
            p.error(
                f"--{name.replace('_', '-')} is {getattr(args, name)}, at least {low} is needed"
            )
    if args.threads is not None and not 1 <= args.threads <= 256:
        p.error(f"--threads is {args.threads}, not within 1 to 256")
    if args.no_quality and args.no_speed:
        p.error("--no-quality and --no-speed together leave nothing to measure")
    if not args.no_quality and not args.text:
        p.error("--text is needed to measure quality (or say --no-quality)")
    if not args.no_speed and not (args.prompt or args.gen):
        p.error("--prompt 0 and --gen 0 leave nothing to time")
    if args.gguf and not (args.llama_bench or args.llama_perplexity):
        p.error("--gguf needs --llama-bench or --llama-perplexity, to run the files with")
    if (args.llama_bench or args.llama_perplexity) and not args.gguf:
        p.error("--llama-bench and --llama-perplexity need --gguf, files to run")
    for name in ("text", "calib", "llama_bench", "llama_perplexity"):
        path = getattr(args, name)
        if (
            path
            and not os.path.isfile(path)
            and not (name.startswith("llama") and shutil.which(path))
        ):
            p.error(f"--{name.replace('_', '-')} {path}: no such file")
    for name in ("json", "html"):
        path = getattr(args, name)
        if path and not os.path.isdir(os.path.dirname(os.path.abspath(path))):
            p.error(f"--{name} {path}: no such folder")


def _work_root(given: str | None) -> pathlib.Path:
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    root = pathlib.Path(given or os.path.join(cache, "kwker", "bench"))
    root.mkdir(parents=True, exist_ok=True)
    return root


def _has_torch() -> bool:
    import importlib.util

    return all(importlib.util.find_spec(name) for name in ("torch", "transformers"))


def _program(path: str | None) -> str | None:
    """A file here, or a program of PATH, as something that can be started."""
    if path is None:
        return None
    return os.path.abspath(path) if os.path.isfile(path) else shutil.which(path)


def _plan(args, work: pathlib.Path, source: str, formats):
    from kwker import cpu_backend
    from kwker.bench.session import Plan

    return Plan(
        source=source,
        text=args.text,
        work=work,
        formats=formats,
        threads=args.threads or cpu_backend.threads(),
        n_chunks=args.chunks,
        n_ctx=args.ctx,
        calib=args.calib,
        calib_tokens=args.calib_tokens,
        gguf=args.gguf,
        llama_bench=_program(args.llama_bench),
        llama_perplexity=_program(args.llama_perplexity),
        transformers=not args.no_transformers and _has_torch(),
        n_prompt=args.prompt,
        n_gen=args.gen,
        reps=args.reps,
        rounds=args.rounds,
        seed=args.seed,
        store_bytes=int(args.store_gb * 1e9),
        quality=not args.no_quality,
        speed=not args.no_speed,
    )


def _run(args, formats, argv) -> int:
    from kwker.bench import machine, page, report, text
    from kwker.bench.session import Session

    source = text.locate(args.llm)
    line = Line()
    with tempfile.TemporaryDirectory(prefix="run-", dir=_work_root(args.work_dir)) as work:
        plan = _plan(args, pathlib.Path(work), source, formats)
        session = Session(plan, line)
        try:
            session.prepare()
            line("measuring the memory's speed", 0, 1)
            facts = machine.facts(plan.threads, bandwidth=plan.speed)
            session.run()
        finally:
            line.end()
    made = report.build(session, facts, machine.versions(), argv)
    made["model"] = args.llm
    if args.json:
        report.dump(made, args.json)
    if args.html:
        pathlib.Path(args.html).write_text(page.render(made), encoding="utf-8")
    sys.stdout.write(report.markdown(made))
    return 0 if session.original or not plan.quality else 1


def main(argv: list[str] | None = None) -> int:
    """Exit code: 0 with a report (rows may have failed: they say why), 1 without the original's
    quality or without a report, 2 for bad arguments, 130 when interrupted."""
    argv = sys.argv[1:] if argv is None else argv
    p = parser()
    args = p.parse_args(argv)
    _check(args, p)
    try:
        import numpy  # noqa: F401
        import tokenizers  # noqa: F401
    except ImportError as e:
        p.error(f"the package {e.name} is missing: pip install kwker[bench]")
    from kwker.bench import formats
    from kwker.bench.launch import Failed

    try:
        wanted = formats.parse_list(args.formats, args.calib is not None)
    except ValueError as e:
        p.error(str(e))
    if not args.calib and any("calib" in f.extras for f in wanted):
        p.error("a +calib format needs --calib FILE")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the work folder goes
    try:
        return _run(args, wanted, argv)
    except KeyboardInterrupt:
        return 130
    except (Failed, OSError, ValueError) as e:
        print(f"kwker.bench: {e}", file=sys.stderr)
        return 1

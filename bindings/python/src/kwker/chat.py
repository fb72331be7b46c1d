# SPDX-License-Identifier: Apache-2.0
"""python -m kwker.chat: one question to a model of a running kwkerd, the answer streamed to standard
output, its speed to standard error.
"""

from __future__ import annotations

import argparse
import sys
import time

from kwker import Client, Error
from kwker.client import Done, Token


def parse(argv):
    p = argparse.ArgumentParser(prog="python -m kwker.chat", description=__doc__)
    p.add_argument("--address", help="runtime directory of kwkerd (default: as kwker.Client)")
    p.add_argument("--model", help="its name in the daemon (default: the daemon's only one)")
    p.add_argument(
        "--source",
        required=True,
        help="directory, .gguf or .kwk file that the tokenizer is read from",
    )
    p.add_argument("--prompt", required=True, help="what to ask")
    p.add_argument("--system", help="system message (default: the template's own)")
    p.add_argument("--raw", action="store_true", help="no chat template: continue the text")
    p.add_argument("--max-new-tokens", type=int, default=200, help="longest answer (default: 200)")
    p.add_argument(
        "--sample",
        action="store_true",
        help="sample instead of greedy; implied by the options below",
    )
    p.add_argument("--temperature", type=float, help="(default when sampling: 0.8)")
    p.add_argument("--top-p", type=float, help="(default when sampling: 0.95)")
    p.add_argument("--seed", type=int, help="the same answer again (default: a random one)")
    return p.parse_args(argv)


def sampling(args) -> dict:
    """The options of generate; naming one of them is asking for sampling."""
    given = (args.temperature, args.top_p, args.seed)
    if not args.sample and all(value is None for value in given):
        return {}
    return dict(
        do_sample=True,
        temperature=0.8 if args.temperature is None else args.temperature,
        top_p=0.95 if args.top_p is None else args.top_p,
        seed=args.seed,
    )


def prompt_ids(tokenizer, args) -> list[int]:
    if args.raw or tokenizer.chat_template is None:
        return tokenizer.encode(args.prompt)
    messages = [{"role": "user", "content": args.prompt}]
    if args.system:
        messages.insert(0, {"role": "system", "content": args.system})
    return tokenizer.chat_ids(messages)


def facts(client, name) -> dict:
    """What the daemon knows of the model, once it is loaded: its special token ids."""
    shown = False
    while True:
        models = client.models()
        named = [m for m in models if m["name"] == name] if name else models[:1]
        info = named[0] if named else {}
        loading = info.get("state") == "loading"
        if sys.stderr.isatty() and (loading or shown):
            part = f"{info.get('progress', 0):.0%}" if loading else ""
            sys.stderr.write(f"\r\x1b[Kloading the model {part}" if loading else "\r\x1b[K")
            shown = loading
        if not loading:
            return info  # a failed load is reported by the request that follows
        time.sleep(0.05)


def show(text: str) -> None:
    if text:
        sys.stdout.write(text)
        sys.stdout.flush()


def run(args) -> int:
    from kwker.text import Tokenizer

    with Client(args.address) as client:
        info = facts(client, args.model)
        eos = info.get("eos") or [None]
        tokenizer = Tokenizer(args.source, bos=info.get("bos"), eos=eos[0])
        stream = tokenizer.stream()
        first = last = None
        done = None
        n_timed = 0
        for event in client.generate(
            prompt_ids(tokenizer, args),
            args.model,
            max_new_tokens=args.max_new_tokens,
            **sampling(args),
        ):
            if isinstance(event, Token):
                last = time.perf_counter()
                if first is None:
                    first = last
                else:
                    n_timed += 1
                show(stream.put(event.id))
            elif isinstance(event, Done):
                done = event
        show(stream.end() + "\n")
    speed = f", {n_timed / (last - first):.1f} tokens/s" if n_timed and last > first else ""
    prefill = done.prompt_tokens / (done.prefill_us / 1e6) if done.prefill_us else 0.0
    print(
        f"kwker: {done.new_tokens} tokens{speed}; prompt of {done.prompt_tokens} tokens at "
        f"{prefill:.1f} tokens/s; ended by {done.finish_reason}",
        file=sys.stderr,
    )
    return 0


def main(argv=None) -> int:
    args = parse(argv)
    try:
        return run(args)
    except KeyboardInterrupt:
        return 130
    except ImportError as e:
        print(f"kwker.chat: {e} (pip install 'kwker[text]')", file=sys.stderr)
        return 1
    except (Error, ValueError) as e:
        print(f"kwker.chat: {e}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())

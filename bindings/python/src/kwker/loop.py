# SPDX-License-Identifier: Apache-2.0
"""The decoding loop of KwkDecoder.generate: one native step and one native choice per token.

Each row of the batch is a sequence of its own without its padding; rows that met an end token leave
the steps and go on as padding in the result.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from kwker import _kwker, errors

NO_IDS = np.empty(0, np.int32)


@dataclasses.dataclass
class Prompt:
    """One row of a batch, padding left out."""

    tokens: np.ndarray  # (n) int32
    positions: np.ndarray  # (n) int32
    valid: np.ndarray  # (n) uint8
    history: np.ndarray  # int32: what repetition_penalty sees
    plain: bool  # nothing masked but padding on the left

    @classmethod
    def of_row(cls, ids: np.ndarray, mask: np.ndarray) -> Prompt:
        """Masked columns are invisible to attention and have no position of their own, so they are
        left out; but the last column is what the first choice is made from, so it always stays."""
        keep = mask.copy()
        keep[-1] = True
        first = int(mask.argmax())
        positions = np.where(mask, np.cumsum(mask) - 1, 0)
        return cls(
            tokens=ids[keep].astype(np.int32),
            positions=positions[keep].astype(np.int32),
            valid=mask[keep].astype(np.uint8),
            history=ids[first:].astype(np.int32),
            plain=bool(mask[first:].all()),
        )


class Histories:
    """Ids of every row so far, for repetition_penalty; empty when that is off."""

    def __init__(self, prompts, repeats: int, max_new: int, used: bool):
        self.used = used
        self.rows = []
        if not used:
            return
        for p in prompts:
            for _ in range(repeats):
                room = np.empty(len(p.history) + max_new, np.int32)
                room[: len(p.history)] = p.history
                self.rows.append((room, len(p.history)))

    def of(self, rows, n_new: int) -> list:
        if not self.used:
            return [NO_IDS] * len(rows)
        return [self.rows[r][0][: self.rows[r][1] + n_new] for r in rows]

    def add(self, rows, n_new: int, tokens) -> None:
        for r, t in zip(rows, tokens) if self.used else ():
            room, start = self.rows[r]
            room[start + n_new] = t


def prefill(runner, prompts, repeats: int):
    """Sequences (repeats of each prompt) and logits (batch, vocab) after the prompts."""
    seqs = [runner.new() for _ in prompts]
    logits = np.empty((len(prompts), runner.vocab), np.float32)
    runner.forward(
        seqs,
        np.array([len(p.tokens) for p in prompts], np.int32),
        np.concatenate([p.tokens for p in prompts]),
        np.concatenate([p.positions for p in prompts]),
        None if all(p.valid.all() for p in prompts) else np.concatenate([p.valid for p in prompts]),
        1,
        logits,
    )
    if repeats > 1:
        seqs = [s if i == 0 else s.fork() for s in seqs for i in range(repeats)]
        logits = logits.repeat(repeats, axis=0)
    return seqs, logits


def noise_like(n: int, vocab: int, generator) -> np.ndarray:
    """What torch.multinomial draws for one choice from each of n rows of probabilities."""
    return torch.empty((n, vocab), dtype=torch.float32).exponential_(generator=generator).numpy()


class Result:
    """The growing (batch, length) result, and who looks at it while it grows."""

    def __init__(self, ids: torch.Tensor, opts, streamer, criteria):
        ids = ids.cpu().repeat_interleave(opts.num_return_sequences, dim=0)
        self.n_prompt = ids.shape[1]
        self.ids = torch.zeros(
            (ids.shape[0], self.n_prompt + opts.max_new_tokens), dtype=torch.long
        )
        self.ids[:, : self.n_prompt] = ids
        self.array = self.ids.numpy()  # the same memory: cheaper to write one column at a time
        self.opts = opts
        self.n_new = 0
        self.unfinished = np.ones(ids.shape[0], bool)
        self.running = self.unfinished.copy()  # rows that still get tokens of their own
        self.streamer = streamer
        self.criteria = criteria
        if streamer is not None:
            streamer.put(ids)

    def add(self, rows: np.ndarray, tokens: np.ndarray) -> None:
        """One column: tokens for the running rows, padding for the others."""
        at = self.n_prompt + self.n_new
        if len(rows) < len(self.running):
            self.array[:, at] = self.opts.pad
        self.array[rows, at] = tokens
        self.n_new += 1
        if self.opts.eos:
            self.unfinished[rows[np.isin(tokens, self.opts.eos)]] = False
        if self.criteria:
            stop = self.criteria(self.ids[:, : at + 1].contiguous(), None)
            self.unfinished &= ~np.broadcast_to(np.asarray(stop), self.unfinished.shape).astype(
                bool
            )
        if self.opts.eos:  # without end tokens there is no padding: all rows go on, as in HF
            self.running = self.unfinished.copy()
        if self.streamer is not None:
            self.streamer.put(self.ids[:, at].clone())

    def done(self) -> bool:
        return not self.unfinished.any() or self.n_new == self.opts.max_new_tokens

    def finish(self) -> torch.Tensor:
        if self.streamer is not None:
            self.streamer.end()
        return self.ids[:, : self.n_prompt + self.n_new]


def generate(runner, ids, prompts, opts, generator=None, seed=None, streamer=None, criteria=None):
    """The loop by single steps. ids: (batch, prompt) with its padding; prompts: its rows."""
    n = opts.num_return_sequences
    sampling = opts.sampling(_kwker, runner.vocab, seed or 0)
    histories = Histories(prompts, n, opts.max_new_tokens, opts.repetition_penalty != 1.0)
    result = Result(ids, opts, streamer, criteria)
    choices = np.tile(np.arange(n, dtype=np.int32), len(prompts))
    seqs, logits = prefill(runner, prompts, n)
    positions = np.repeat(np.array([p.positions[-1] for p in prompts], np.int32), n)
    rows = np.arange(len(seqs))
    ones = np.ones(len(seqs), np.int32)
    while True:
        noise = None
        if opts.do_sample and seed is None:
            noise = noise_like(len(positions), runner.vocab, generator)
            if len(rows) < len(positions):
                noise = np.ascontiguousarray(noise[rows])
        tokens = np.empty(len(rows), np.int32)
        _kwker.choose(
            sampling,
            logits,
            histories.of(rows, result.n_new),
            result.n_new,
            tokens,
            noise,
            np.ascontiguousarray(choices[rows]),
        )
        histories.add(rows, result.n_new, tokens)
        result.add(rows, tokens)
        if result.done():
            return result.finish()
        if not result.running[rows].all():
            keep = result.running[rows]
            rows, tokens = rows[keep], np.ascontiguousarray(tokens[keep])
            seqs = [s for s, k in zip(seqs, keep) if k]
            logits = np.empty((len(rows), runner.vocab), np.float32)
        positions[rows] += 1
        runner.forward(seqs, ones[: len(rows)], tokens, positions[rows], None, 1, logits)


def generate_in_daemon(
    runner, ids, prompts, opts, generator=None, seed=None, streamer=None, criteria=None
):
    """The loop inside the daemon: one stream for each row, read in step. Bit-equal to the other by
    batch invariance, and free to share steps with everybody else."""
    result = Result(ids, opts, streamer, criteria)
    streams = [
        runner.client.generate(
            p.tokens,
            runner.name,
            max_new_tokens=opts.max_new_tokens,
            do_sample=opts.do_sample,
            temperature=opts.temperature,
            top_k=opts.top_k,
            top_p=opts.top_p or 1e-30,
            min_p=opts.min_p,
            repetition_penalty=opts.repetition_penalty,
            min_new_tokens=opts.min_new_tokens,
            seed=seed,
            eos=[e for e in opts.eos if 0 <= e < runner.vocab],
            ignore_eos=not opts.eos,
        )
        for p in prompts
    ]
    rows = np.arange(len(streams))
    try:
        while True:
            tokens = np.array([_next_token(streams[r]) for r in rows], np.int32)
            result.add(rows, tokens)
            if result.done():
                return result.finish()
            rows = rows[result.running[rows]]
    finally:
        for s in streams:
            s.close()


def _next_token(stream) -> int:
    kind, *rest = stream.next()
    if kind != "token":
        raise errors.ECANCELED(f"the daemon ended the stream: {rest[0]['finish_reason']}")
    return rest[0]

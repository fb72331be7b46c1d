# SPDX-License-Identifier: Apache-2.0
"""Where a model runs: in this process or in kwkerd. Both give sequences and one batched forward.

A sequence has .length, .fork() and .truncate(n). Arrays are numpy, C-contiguous, int32 / uint8 /
float32. On an error the sequences are as before.
"""

from __future__ import annotations

import json
import os
import time

import numpy as np

from kwker import _kwker, errors

LOAD_SECONDS = 600  # how long to wait for another process that loads the same model


class LocalRunner:
    """Sequences of a model in this process."""

    can_import = True  # K and V can be read and written
    can_embed = True  # rows may be embeddings
    where = "this process"

    def __init__(self, model):
        self.model = model
        self.info = model.describe()
        self.vocab = self.info["vocab"]

    def new(self):
        return self.model.seq()

    def forward(
        self, seqs, counts, tokens, positions, valid=None, keep=0, logits=None, embeddings=None
    ):
        """Append rows to sequences and compute them.

        counts: (len(seqs)) rows of each sequence; tokens, positions, valid: (sum of counts)
        keep: logits of the last `keep` rows of each sequence go to logits, in order:
        (sum of min(keep, count), vocab)
        """
        self.model.forward(seqs, counts, tokens, positions, valid, keep, logits, embeddings)


def _same_model(there, model_id: str, max_ctx: int) -> str | None:
    """The name of a loaded model with the same contents and room for max_ctx.

    An id is no proof against somebody who wants two packs with one id, so only models of this user,
    of root, and from the daemon's own model directories count.
    """
    for m in there:
        trusted = m["path"] or m["uid"] in (os.getuid(), 0)
        if m["state"] == "ready" and trusted and m["id"] == model_id and m["max_ctx"] >= max_ctx:
            return m["name"]
    return None


class DaemonRunner:
    """Sequences kept by kwkerd; a session of its own for each process (fork opens another)."""

    can_import = False
    can_embed = False
    LOGITS_ROWS = 64  # rows of the shared logits area
    PIECE = 256  # tokens of a prompt in one call, so that signals are seen in between

    def __init__(self, address, name: str, info: dict):
        self.where = "kwkerd"
        self.address = address
        self.name = name
        self.info = info
        self.vocab = info["vocab"]
        self._client = None
        self._pid = None

    @classmethod
    def hand_over(cls, address, model, max_ctx: int):
        """Run a sealed packed model, opened without max_ctx, in the daemon: the one that is there
        already, else a new one, named by the model's identity."""
        info = model.describe()
        wanted = max(max_ctx, info["max_ctx"])
        runner = cls(address, None, info)
        name = f"{info['id'].hex()}-{wanted}-{os.getuid()}"
        end = time.monotonic() + LOAD_SECONDS
        refused = None
        while True:
            there = json.loads(runner.client.query("models"))["models"]
            runner.name = _same_model(there, info["id"].hex(), wanted)
            if runner.name:
                return runner
            if any(m["name"] == name and m["state"] == "loading" for m in there):
                if time.monotonic() > end:
                    raise errors.ETIMEOUT(f"model {name} is still being loaded by another process")
                time.sleep(0.05)
            elif refused:
                raise refused
            else:
                try:
                    runner.client.load(name, fd=model.fd(), max_ctx=wanted)
                except errors.EINVAL as e:  # another process may have begun the same just now
                    refused = e

    @property
    def client(self):
        if self._client is None or self._pid != os.getpid():
            self._client = _kwker.Client(
                self.address, name="kwker-python", logits_bytes=self.LOGITS_ROWS * self.vocab * 4
            )
            self._pid = os.getpid()
        return self._client

    def new(self):
        return self.client.seq_open(self.name)

    def forward(
        self, seqs, counts, tokens, positions, valid=None, keep=0, logits=None, embeddings=None
    ):
        if embeddings is not None:
            raise errors.EUNSUPPORTED("embeddings as input are not supported through the daemon")
        lengths = [s.length for s in seqs]
        try:
            self._forward(seqs, counts, tokens, positions, valid, keep, logits)
        except BaseException:
            for s, n in zip(seqs, lengths):
                if s.length > n:
                    s.truncate(n)
            raise

    def _forward(self, seqs, counts, tokens, positions, valid, keep, logits):
        if len(seqs) <= self.LOGITS_ROWS and keep <= 1 and len(tokens) <= self.PIECE:
            self._call(seqs, counts, tokens, positions, valid, False, logits if keep else None)
            return
        start = row = 0
        for s, n in zip(seqs, np.asarray(counts).tolist()):
            kept = min(keep, n)
            for first, end, wanted in self._pieces(n, kept):
                out = None
                if wanted:
                    rows = 1 if kept == 1 else end - first
                    out, row = logits[row : row + rows], row + rows
                part = slice(start + first, start + end)
                self._call(
                    [s],
                    np.array([end - first]),
                    tokens[part],
                    positions[part],
                    None if valid is None else valid[part],
                    wanted and kept > 1,
                    out,
                )
            start += n

    def _pieces(self, n, kept):
        """(first, end, logits wanted) of the calls for n tokens of one sequence: with kept > 1 a
        call either wants the logits of all its tokens or of none."""
        head = n if kept <= 1 else n - kept
        for first in range(0, head, self.PIECE):
            end = min(first + self.PIECE, head)
            yield first, end, kept == 1 and end == n
        for first in range(head, n, self.LOGITS_ROWS):
            yield first, min(first + self.LOGITS_ROWS, n), True

    def _call(self, seqs, counts, tokens, positions, valid, all_logits, logits):
        self.client.forward(
            seqs,
            np.ascontiguousarray(counts, np.int32),
            np.ascontiguousarray(tokens),
            np.ascontiguousarray(positions),
            None if valid is None else np.ascontiguousarray(valid),
            all_logits,
            logits,
        )

# SPDX-License-Identifier: Apache-2.0
"""llama.cpp's perplexity protocol, and the comparison of two models' logits. Knows no model; numpy
alone, in blocks of rows, float64 throughout.

The text is tokenised once and cut into chunks of n_ctx tokens, the rest dropped. Where the model
wants a BOS token it replaces the first token of each chunk. Each chunk is read from an empty
context; the positions of its second half, the last one left out, predict the token after them:
n_ctx - 1 - n_ctx // 2 predictions of each chunk count.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

BLOCK = 16  # rows of logits held in float64 at a time


def counted(n_ctx: int) -> int:
    """Predictions of each chunk that count."""
    return n_ctx - 1 - n_ctx // 2


def cut(ids, n_ctx: int, n_chunks: int = 0) -> np.ndarray:
    """The chunks of a tokenised text, (chunks, n_ctx) int32. n_chunks: at most so many, 0: all."""
    ids = np.asarray(ids, np.int32)
    if n_ctx < 4:
        raise ValueError(
            f"a context of {n_ctx} tokens has nothing to predict; at least 4 are needed"
        )
    if len(ids) < 2 * n_ctx:
        raise ValueError(
            f"the text has {len(ids)} tokens; a context of {n_ctx} needs at least {2 * n_ctx}"
        )
    there = len(ids) // n_ctx
    n = min(n_chunks, there) if n_chunks else there
    return ids[: n * n_ctx].reshape(n, n_ctx)


def inputs(chunk: np.ndarray, bos: int | None) -> np.ndarray:
    """What the model reads of a chunk: its last token is only predicted, so it stays out."""
    tokens = chunk[:-1].copy()
    if bos is not None:
        tokens[0] = bos
    return tokens


def targets(chunk: np.ndarray) -> np.ndarray:
    """The tokens whose prediction counts."""
    return chunk[len(chunk) - counted(len(chunk)) :]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """(rows, vocab) of any float type to float64."""
    x = logits.astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    x -= np.log(np.exp(x).sum(axis=1, keepdims=True))
    return x


@dataclasses.dataclass
class Scores:
    """What was measured at each counted position. kl and same only where there was an original to
    compare with."""

    nll: np.ndarray  # negative log-likelihood of the true token
    kl: np.ndarray | None = None  # KL(original || this)
    same: np.ndarray | None = None  # whether the most likely token is the same

    @classmethod
    def join(cls, parts: list[Scores]) -> Scores:
        def all_of(name):
            arrays = [getattr(p, name) for p in parts]
            return None if arrays[0] is None else np.concatenate(arrays)

        return cls(all_of("nll"), all_of("kl"), all_of("same"))


def score(logits: np.ndarray, true: np.ndarray, original: np.ndarray | None = None) -> Scores:
    """One chunk's counted rows, (rows, vocab). original: the original's logits of the same rows."""
    n = len(true)
    if logits.shape[0] != n or (original is not None and original.shape != logits.shape):
        shapes = f"{logits.shape} for {n} tokens"
        raise ValueError(f"logits are {shapes}, the original's {getattr(original, 'shape', None)}")
    out = Scores(np.empty(n))
    if original is not None:
        out.kl, out.same = np.empty(n), np.empty(n, bool)
    for i in range(0, n, BLOCK):
        rows = slice(i, min(i + BLOCK, n))
        q = log_softmax(logits[rows])
        out.nll[rows] = -q[np.arange(len(q)), true[rows]]
        if original is None:
            continue
        p = log_softmax(original[rows])
        out.same[rows] = p.argmax(axis=1) == q.argmax(axis=1)
        np.subtract(p, q, out=q)
        np.exp(p, out=p)
        out.kl[rows] = np.einsum("rv,rv->r", p, q)
    if not np.isfinite(out.nll).all():
        raise ValueError(
            f"logits of counted row {int(np.isfinite(out.nll).argmin())} are not finite"
        )
    return out


def mean_error(x: np.ndarray) -> tuple[float, float]:
    """Mean and its standard error, sqrt(variance / (n - 1)), as llama-perplexity prints it."""
    x = np.asarray(x, np.float64)
    return float(x.mean()), math.sqrt(float(x.var()) / (len(x) - 1)) if len(x) > 1 else 0.0


def summary(s: Scores, original_nll: np.ndarray | None = None) -> dict:
    """The figures of a report's row. original_nll: that of the original at the same positions; the
    ratio's error counts that both models read the same tokens."""
    mean, err = mean_error(s.nll)
    out = {"ppl": math.exp(mean), "ppl_err": math.exp(mean) * err, "n_scored": len(s.nll)}
    if original_nll is not None:
        mean, err = mean_error(s.nll - original_nll)
        out |= {"ppl_ratio": math.exp(mean), "ppl_ratio_err": math.exp(mean) * err}
    if s.kl is not None:
        out["kl"], out["kl_err"] = mean_error(s.kl)
        out["kl_max"] = float(s.kl.max())
        out["kl_p99"] = float(np.quantile(s.kl, 0.99))
        share, err = mean_error(s.same)
        out |= {"top1": 100 * share, "top1_err": 100 * err}
    return out

# SPDX-License-Identifier: Apache-2.0
"""The original model's logits of all counted positions, in one file: float32, chunk after chunk, so
that every other model is compared with the same numbers without running the original again. Also
written, when llama-perplexity is to compare against them, in the layout that it reads.
"""

from __future__ import annotations

import struct
import warnings

import numpy as np


def store_bytes(n_chunks: int, counted: int, vocab: int) -> int:
    return n_chunks * counted * vocab * 4


class Writer:
    def __init__(self, path):
        self._file = open(path, "wb")

    def add(self, logits: np.ndarray) -> None:
        self._file.write(np.ascontiguousarray(logits, np.float32).data)

    def close(self) -> None:
        self._file.close()


def reader(path, n_chunks: int, counted: int, vocab: int) -> np.ndarray:
    """(chunks, counted, vocab), mapped read-only."""
    return np.memmap(path, np.float32, "r", shape=(n_chunks, counted, vocab))


def llama_bytes(n_chunks: int, counted: int, vocab: int) -> int:
    return n_chunks * counted * _row_words(vocab) * 2


def _row_words(vocab: int) -> int:
    return 2 * ((vocab + 1) // 2) + 4


class LlamaWriter:
    """The file of llama-perplexity's --kl-divergence-base: magic, context, vocabulary, chunks, the
    text's tokens; then for each counted position a float32 step, the float32 least log-probability,
    and the log-probabilities as 16-bit multiples of the step above it.

    llama-perplexity itself cuts at 16 below the greatest, which makes unlikely true tokens likelier
    and so the base's perplexity too low: by 0.1 % in 20 chunks of a model of 135 million
    parameters, a quarter of what 8-bit weights cost. Cutting lower takes a coarser step, still
    under 0.001."""

    SPAN = np.float32(48)

    def __init__(self, path, chunks: np.ndarray, vocab: int):
        self._vocab = vocab
        self._file = open(path, "wb")
        n, n_ctx = chunks.shape
        self._file.write(b"_logits_" + struct.pack("<Iii", n_ctx, vocab, n))
        self._file.write(np.ascontiguousarray(chunks, np.int32).data)

    def add(self, logits: np.ndarray) -> None:
        x = np.asarray(logits, np.float32)
        top = x.max(axis=1)
        low = np.maximum(x.min(axis=1), top - self.SPAN)
        norm = np.log(np.exp(x - top[:, None]).sum(axis=1, dtype=np.float64)).astype(np.float32)
        step = (top - low) / np.float32(65535)
        rows = np.zeros((len(x), _row_words(self._vocab)), np.uint16)
        head = rows[:, :4].view(np.float32)
        head[:, 0], head[:, 1] = step, low - top - norm
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # all logits equal: step 0
            above = np.rint((np.maximum(x, low[:, None]) - low[:, None]) / step[:, None])
        rows[:, 4 : 4 + self._vocab] = np.nan_to_num(above).clip(0, 65535)
        self._file.write(rows.data)

    def close(self) -> None:
        self._file.close()

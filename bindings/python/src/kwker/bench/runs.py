# SPDX-License-Identifier: Apache-2.0
"""A model that can be measured, in two makes: packed for this package's engine, and the original in
transformers. Both give the logits of the last rows of a text and take single tokens; the measuring
below knows no more of them than that.
"""

from __future__ import annotations

import inspect
import os
import time

import numpy as np

from kwker.bench import protocol


class EngineRun:
    """A packed model in this process. model: kwker._kwker.Model"""

    def __init__(self, model):
        from kwker.runners import LocalRunner

        self.runner = LocalRunner(model)
        self.vocab = self.runner.vocab
        self.max_ctx = self.runner.info["max_ctx"]
        self._one = np.ones(1, np.int32)
        self._seq = None

    def start(self) -> None:
        """Forget everything read so far."""
        self._seq = self.runner.new()

    def read(self, tokens: np.ndarray, keep: int, out: np.ndarray) -> None:
        """Append tokens; the logits of the last `keep` go to out, (keep, vocab) float32."""
        first = self._seq.length
        positions = np.arange(first, first + len(tokens), dtype=np.int32)
        counts = self._one if len(tokens) == 1 else np.array([len(tokens)], np.int32)
        self.runner.forward([self._seq], counts, tokens, positions, None, keep, out)


class TorchRun:
    """The original in transformers, in the type of its weights, as from_pretrained gives it."""

    def __init__(self, source: str, threads: int):
        import torch
        from transformers import AutoModelForCausalLM, DynamicCache

        torch.set_num_threads(threads)
        where = {"pretrained_model_name_or_path": source}
        if os.path.isfile(source):  # a GGUF file, dequantised on loading
            folder, name = os.path.split(os.path.abspath(source))
            where = {"pretrained_model_name_or_path": folder, "gguf_file": name}
        self._torch, self._new_cache = torch, DynamicCache
        self.model = AutoModelForCausalLM.from_pretrained(
            **where, dtype="auto", local_files_only=True
        ).eval()
        config = self.model.config
        self.vocab = config.vocab_size
        self.max_ctx = getattr(config, "max_position_embeddings", None) or 1 << 30
        self.dtype = str(self.model.dtype).removeprefix("torch.")
        # Newer versions of transformers gave the argument another name.
        names = inspect.signature(self.model.forward).parameters
        self._cache_name = "cache" if "cache" in names else "past_key_values"
        self.start()

    def start(self) -> None:
        self._cache = self._new_cache(config=self.model.config)

    def read(self, tokens: np.ndarray, keep: int, out: np.ndarray) -> None:
        torch = self._torch
        with torch.inference_mode():
            made = self.model(
                input_ids=torch.from_numpy(tokens.astype(np.int64))[None],
                use_cache=True,
                logits_to_keep=keep,
                **{self._cache_name: self._cache},
            )
        out[:] = made.logits[0, -keep:, : self.vocab].float().numpy()

    def weight_bytes(self) -> int:
        return sum(p.numel() * p.element_size() for p in self.model.parameters())

    def bytes_per_token(self) -> int:
        """Weights that a token reads: all, but of an embedding table that is not also the head."""
        table = self.model.get_input_embeddings().weight
        head = self.model.get_output_embeddings()
        tied = head is not None and head.weight is table
        return self.weight_bytes() - (0 if tied else table.numel() * table.element_size())


def check_fits(run, n_slots: int) -> None:
    if n_slots > run.max_ctx:
        raise ValueError(f"a context of {n_slots} tokens is longer than the model's {run.max_ctx}")


def quality(run, chunks, bos, originals=None, on_logits=None, progress=None) -> protocol.Scores:
    """Scores over all chunks.

    originals(i): the original's logits of chunk i, or None; on_logits(logits): sees each chunk's
    """
    n_ctx = chunks.shape[1]
    check_fits(run, n_ctx - 1)
    keep = protocol.counted(n_ctx)
    logits = np.empty((keep, run.vocab), np.float32)
    parts = []
    for i, chunk in enumerate(chunks):
        run.start()
        run.read(protocol.inputs(chunk, bos), keep, logits)
        if on_logits:
            on_logits(logits)
        original = originals(i) if originals else None
        if original is not None and original.shape[1] != run.vocab:
            raise ValueError(f"{run.vocab} tokens in the vocabulary, not {original.shape[1]}")
        parts.append(protocol.score(logits, protocol.targets(chunk), original))
        if progress:
            progress(i + 1, len(chunks))
    return protocol.Scores.join(parts)


def speed(run, n_prompt: int, n_gen: int, reps: int, seed: int, progress=None) -> dict:
    """Tokens per second, as llama-bench measures them: prompts of random tokens from an empty
    context, and single random tokens from an empty context, after one round that does not count.
    Logits of the last prompt token and of each single token are computed and copied out.

    first_s: the very first prompt of this process, to its first token; ttft: of the others.
    """
    check_fits(run, max(n_prompt, n_gen))
    rng = np.random.default_rng(seed)
    logits = np.empty((1, run.vocab), np.float32)
    out = {"pp": [], "tg": [], "ttft": []}

    def prompt():
        tokens = rng.integers(0, run.vocab, n_prompt, dtype=np.int32)
        run.start()
        t0 = time.perf_counter()
        run.read(tokens, 1, logits)
        t1 = time.perf_counter()
        logits.argmax()
        return t1 - t0, time.perf_counter() - t0

    def generation():
        tokens = rng.integers(0, run.vocab, n_gen, dtype=np.int32)
        run.start()
        t0 = time.perf_counter()
        for i in range(n_gen):
            run.read(tokens[i : i + 1], 1, logits)
        return time.perf_counter() - t0

    for rep in range(reps + 1):
        if n_prompt:
            seconds, first = prompt()
            if rep == 0:
                out["first_s"] = first
                if seconds < 1:  # twice more: the size of a prompt's steps adapts
                    prompt(), prompt()
            else:
                out["pp"].append(n_prompt / seconds)
                out["ttft"].append(first)
        if n_gen:
            seconds = generation()
            if rep:
                out["tg"].append(n_gen / seconds)
        if progress:
            progress(rep + 1, reps + 1)
    return out

# SPDX-License-Identifier: Apache-2.0
"""The whole sampling loop of an installed model, for calls whose processors are all known: the same
tokens as Hugging Face's loop over the native forward, without its work per token.
"""

from __future__ import annotations

import numpy as np
import torch
from transformers.generation import logits_process as lp
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

from kwker import _kwker
from kwker.hf_cache import KwkCache
from kwker.hf_forward import OUTPUT_CACHE
from kwker.loop import NO_IDS, noise_like
from kwker.options import id_list

_ORDER = (
    lp.RepetitionPenaltyLogitsProcessor,
    lp.MinLengthLogitsProcessor,
    lp.MinNewTokensLengthLogitsProcessor,
    lp.TemperatureLogitsWarper,
    lp.TopKLogitsWarper,
    lp.TopPLogitsWarper,
    lp.MinPLogitsWarper,
)
_WARPERS = _ORDER[3:]


def settings(processors, do_sample: bool, prompt_len: int, vocab: int):
    """(Sampling, ids of each row that repetition_penalty skips) for known processors in Hugging
    Face's order, else None."""
    kinds = [type(p) for p in processors]
    if any(k not in _ORDER for k in kinds) or len(set(kinds)) < len(kinds):
        return None
    if [_ORDER.index(k) for k in kinds] != sorted(_ORDER.index(k) for k in kinds):
        return None
    if not do_sample and any(k in _WARPERS for k in kinds):
        return None
    for p in processors:
        if (
            getattr(p, "filter_value", -np.inf) != -np.inf
            or getattr(p, "min_tokens_to_keep", 1) != 1
        ):
            return None
    by_kind = dict(zip(kinds, processors))
    fields, skip = {}, 0
    if p := by_kind.get(lp.RepetitionPenaltyLogitsProcessor):
        fields["repetition_penalty"] = p.penalty
        skip = getattr(p, "prompt_ignore_length", None)
        skip = 0 if skip is None else skip
    floors = []
    if p := by_kind.get(lp.MinLengthLogitsProcessor):
        floors.append((p.min_length - prompt_len, id_list(p.eos_token_id)))
    if p := by_kind.get(lp.MinNewTokensLengthLogitsProcessor):
        floors.append(
            (p.min_new_tokens + p.prompt_length_to_skip - prompt_len, id_list(p.eos_token_id))
        )
    if len({tuple(eos) for _, eos in floors}) > 1:
        return None
    if floors:
        fields["min_new_tokens"] = max(0, *(n for n, _ in floors))
        fields["eos"] = [e for e in floors[0][1] if 0 <= e < vocab]
    if p := by_kind.get(lp.TemperatureLogitsWarper):
        fields["temperature"] = p.temperature
    if p := by_kind.get(lp.TopKLogitsWarper):
        fields["top_k"] = p.top_k
    if p := by_kind.get(lp.TopPLogitsWarper):
        fields["top_p"] = p.top_p or 1e-30
    if p := by_kind.get(lp.MinPLogitsWarper):
        fields["min_p"] = p.min_p
    return _kwker.Sampling(vocab=vocab, do_sample=do_sample, **fields), skip


class Loop:
    """State of one native loop: the growing ids (batch, length) and which rows go on."""

    def __init__(self, input_ids, max_length, pad, criteria, history_skip, keeps_history):
        batch, self.length = input_ids.shape
        self.ids = torch.empty((batch, max_length), dtype=torch.long)
        self.ids[:, : self.length] = input_ids
        self.array = self.ids.numpy()
        self.unfinished = np.ones(batch, bool)
        self.pad = pad
        self.eos = None
        self.others = []
        for c in criteria:
            if type(c) is EosTokenCriteria:
                self.eos = id_list(c.eos_token_id)
            elif type(c) is not MaxLengthCriteria:
                self.others.append(c)
        self.max_length = max_length
        self.has_eos = any(hasattr(c, "eos_token_id") for c in criteria)
        self.history = None
        if keeps_history:
            self.history = self.ids.numpy().astype(np.int32)
            skip = history_skip.tolist() if isinstance(history_skip, torch.Tensor) else history_skip
            self.skip = [skip] * batch if isinstance(skip, int) else skip

    def histories(self, rows):
        if self.history is None:
            return [NO_IDS] * len(rows)
        return [self.history[r, self.skip[r] : self.length] for r in rows]

    def add(self, rows, tokens) -> np.ndarray:
        """Append one column, (batch) int64; gives it."""
        column = np.full(len(self.unfinished), -1, np.int64)
        column[rows] = tokens
        if self.has_eos:
            column[~self.unfinished] = self.pad
        if self.history is not None:
            self.history[:, self.length] = column
        self.array[:, self.length] = column
        self.length += 1
        if self.length >= self.max_length:
            self.unfinished[:] = False
        if self.eos:
            self.unfinished &= ~np.isin(column, self.eos)
        for c in self.others:
            stop = c(self.ids[:, : self.length].contiguous(), None)
            self.unfinished &= ~np.broadcast_to(np.asarray(stop), self.unfinished.shape).astype(
                bool
            )
        return column


def native_sample(
    model,
    plan,
    input_ids,
    logits_processor=None,
    stopping_criteria=None,
    generation_config=None,
    synced_gpus=False,
    streamer=None,
    **model_kwargs,
):
    """The loop, or None when it must be Hugging Face's own (over the native forward)."""
    handle = model._kwker
    batch, prompt_len = input_ids.shape
    max_length = getattr(stopping_criteria, "max_length", None)
    if (
        generation_config.return_dict_in_generate
        or generation_config.is_assistant
        or not model_kwargs.get("use_cache")
        or max_length is None
        or max_length <= prompt_len
        or input_ids.device.type != "cpu"
    ):
        return None
    vocab = handle.runner.vocab
    do_sample = bool(generation_config.do_sample)
    known = settings(logits_processor, do_sample, prompt_len, vocab)
    if known is None:
        return None
    sampling, skip = known

    outputs = model._prefill(input_ids, generation_config, model_kwargs)
    cache = outputs.get(OUTPUT_CACHE)
    if not isinstance(cache, KwkCache) or cache._kwk is None:
        plan.prefilled = outputs  # it fell back: Hugging Face's loop goes on from here
        return None
    model_kwargs = model._update_model_kwargs_for_generation(outputs, model_kwargs)
    logits = outputs.logits[:, -1].float().numpy()
    if not logits.flags.c_contiguous or not logits.flags.writeable:
        logits = logits.copy()
    del outputs

    pad = generation_config._pad_token_tensor
    repeats = any(type(p) is lp.RepetitionPenaltyLogitsProcessor for p in logits_processor)
    loop = Loop(
        input_ids, max_length, None if pad is None else int(pad), stopping_criteria, skip, repeats
    )
    # A cache of the user's must end up with every row in step, so finished rows go on as padding.
    lasting = getattr(cache, "_is_user_defined", False)
    position = model_kwargs.get("position_ids")
    state = cache._kwk
    if position is None:
        positions = np.full(batch, state.length, np.int32)
    else:
        positions = np.broadcast_to(position[:, -1].numpy(), batch).astype(np.int32)
    rows = np.arange(batch)
    seqs = state.seqs
    ones = np.ones(batch, np.int32)
    n_new = 0
    while True:
        noise = noise_like(batch, vocab, None) if do_sample else None
        if noise is not None and len(rows) < batch:
            noise = np.ascontiguousarray(noise[rows])
        tokens = np.empty(len(rows), np.int32)
        _kwker.choose(sampling, logits, loop.histories(rows), n_new, tokens, noise)
        n_new += 1
        column = loop.add(rows, tokens)
        if streamer is not None:
            streamer.put(torch.from_numpy(column))
        if not loop.unfinished.any():
            break
        if lasting:
            logits = state.append(
                column.astype(np.int32)[:, None], positions[:, None].copy(), None, 1
            ).reshape(batch, vocab)
        else:
            if loop.has_eos and not loop.unfinished[rows].all():
                rows = rows[loop.unfinished[rows]]
                seqs = [state.seqs[r] for r in rows]
                logits = np.empty((len(rows), vocab), np.float32)
            tokens = np.ascontiguousarray(column[rows].astype(np.int32))
            # nobody sees this cache again, so its columns are not kept up
            state.runner.forward(seqs, ones[: len(rows)], tokens, positions[rows], None, 1, logits)
        positions += 1
    if streamer is not None:
        streamer.end()
    return loop.ids[:, : loop.length].clone() if loop.length < max_length else loop.ids

# SPDX-License-Identifier: Apache-2.0
"""Generate text with a Hugging Face model, each decoding step as one native call.

:class:`KwkDecoder` runs a model's decoding by itself; :func:`install` keeps ``model.generate`` and
runs its steps natively; :func:`runner_unsupported` says whether a model can run. Needs torch, and
transformers for anything but directories and GGUF files.
"""

from __future__ import annotations

import json
import os

import numpy as np
import torch

from kwker import source
from kwker.hf_install import install, uninstall
from kwker.loop import Prompt, generate, generate_in_daemon
from kwker.options import resolve
from kwker.torch_model import unsupported

__all__ = ["KwkDecoder", "install", "runner_unsupported", "uninstall"]


def runner_unsupported(model, max_cache_len) -> str | None:
    """None when the model can run with that many slots, else the reason it cannot."""
    return unsupported(model, max_cache_len)


class KwkDecoder:
    """A language model packed for native decoding.

    model_or_path: a Hugging Face model (its weights are copied at this moment), a directory with
        config.json and safetensors, a .gguf or a .kwk file
    max_cache_len: the longest context, prompt and new tokens together; None: the model's own
    precision: None (the model's own: nothing rounded), "float32", "bf16", "f16", "int8",
        "balanced" (int8) or "int4"
    mix_bits: int4 only, bits of the few tensors kept at higher precision: 6 (smaller) or 8 (nearer);
        None: 6 from a billion parameters on, 8 below
    calib: token ids of the user's text, to fit integer weights to the real activations
    cache_dir: keep the packed weights on disk: True (~/.cache/kwker/packs) or a folder
    daemon: None: in this process; True: in the machine's kwkerd; or the address of one
    """

    def __init__(
        self,
        model_or_path,
        max_cache_len=None,
        precision=None,
        mix_bits=None,
        calib=None,
        gptq=False,
        cache_dir=None,
        daemon=None,
    ):
        options = source.PackOptions(precision, mix_bits, calib, gptq, cache_dir)
        if max_cache_len is not None and (not isinstance(max_cache_len, int) or max_cache_len < 1):
            raise ValueError(f"max_cache_len is {max_cache_len!r}")
        if source.is_torch_model(model_or_path):
            self.generation_config = model_or_path.generation_config.to_dict()
            self.max_position = getattr(model_or_path.config, "max_position_embeddings", None)
        else:
            self.generation_config, self.max_position = _path_config(model_or_path)
        self._runner = source.open_runner(model_or_path, options, max_cache_len or 0, daemon)
        self.info = self._runner.info
        self.max_cache_len = max_cache_len or self.info["max_ctx"]
        if not source.is_torch_model(model_or_path):
            self._fill_special_tokens()

    def _fill_special_tokens(self):
        for key, value in (("eos_token_id", self.info["eos"]), ("pad_token_id", self.info["pad"])):
            if value not in (-1, []):
                self.generation_config.setdefault(key, value)

    @property
    def precision(self) -> str:
        """The stored format: "float32", "f16", "bf16", "int8" or "int4"."""
        return self.info["precision"]

    def __repr__(self):
        return (
            f"KwkDecoder({self.info['model_type']}, {self.precision}, "
            f"max_cache_len={self.max_cache_len}, in {self._runner.where})"
        )

    @torch.no_grad()
    def generate(
        self,
        ids=None,
        max_new_tokens=None,
        *,
        attention_mask=None,
        generator=None,
        seed=None,
        streamer=None,
        stopping_criteria=None,
        **kwargs,
    ):
        """Prompt and new tokens, (batch, prompt + new), padded after the end token.

        Greedy unless do_sample=True. Takes temperature, top_k, top_p, min_p, repetition_penalty,
        min_new_tokens, num_return_sequences, eos_token_id, pad_token_id, max_length with Hugging
        Face's meanings and defaults (the model's generation config, then its global ones; top_k is
        50 when sampling).

        ids: (batch, prompt) token ids; shorter prompts padded on the left, marked by attention_mask
            (or by pad_token_id, where that is not an end token)
        generator: a torch.Generator (None: torch's global one). Same seed, same tokens as
            model.generate() after torch.manual_seed.
        seed: instead of generator: random numbers of a token depend on the seed and the token's
            place alone, not on the batch
        """
        ids = kwargs.pop("input_ids", kwargs.pop("inputs", None)) if ids is None else ids
        ids = self._ids(ids)
        if max_new_tokens is not None or "max_new_tokens" not in kwargs:
            kwargs["max_new_tokens"] = max_new_tokens
        opts = resolve(self.generation_config, kwargs, ids.shape[1], self.max_position)
        if generator is not None and seed is not None:
            raise ValueError("generator and seed exclude each other")
        if ids.shape[1] + opts.max_new_tokens > self.max_cache_len:
            raise ValueError(
                f"a prompt of {ids.shape[1]} and {opts.max_new_tokens} new tokens need "
                f"{ids.shape[1] + opts.max_new_tokens} slots; max_cache_len is {self.max_cache_len}"
            )
        mask = self._mask(ids, attention_mask, opts)
        prompts = [Prompt.of_row(row, m) for row, m in zip(ids.cpu().numpy(), mask)]
        loop = generate_in_daemon if self._takes_whole_calls(opts, seed, prompts) else generate
        out = loop(
            self._runner,
            ids,
            prompts,
            opts,
            generator=generator,
            seed=seed,
            streamer=streamer,
            criteria=stopping_criteria,
        )
        return out.to(ids.device)

    def _takes_whole_calls(self, opts, seed, prompts) -> bool:
        """Whether the daemon can run the whole loop: plain prompts, and random numbers of its own."""
        return (
            isinstance(self._runner, source.DaemonRunner)
            and (not opts.do_sample or seed is not None)
            and opts.num_return_sequences == 1
            and all(p.plain for p in prompts)
        )

    def _ids(self, ids) -> torch.Tensor:
        if ids is None:
            raise ValueError("no prompt: give ids")
        if not isinstance(ids, torch.Tensor):
            ids = torch.as_tensor(np.asarray(ids))
        if ids.ndim != 2 or ids.dtype not in (torch.int64, torch.int32):
            raise ValueError(
                f"ids must be (batch, prompt) integers, not {ids.dtype} of shape {tuple(ids.shape)}"
            )
        if ids.numel() == 0:
            raise ValueError(f"an empty prompt: ids has shape {tuple(ids.shape)}")
        low, high = ids.min().item(), ids.max().item()
        if low < 0 or high >= self.info["vocab"]:
            raise ValueError(
                f"token id {low if low < 0 else high} is outside the vocabulary of "
                f"{self.info['vocab']}"
            )
        return ids.long()

    def _mask(self, ids, attention_mask, opts) -> np.ndarray:
        """(batch, prompt) booleans: given, or inferred from pad ids as Hugging Face does."""
        if attention_mask is not None:
            mask = torch.as_tensor(attention_mask)
            if mask.shape != ids.shape:
                raise ValueError(
                    f"attention_mask has shape {tuple(mask.shape)}, ids {tuple(ids.shape)}"
                )
            mask = (mask != 0).cpu().numpy()
            if not mask.any(axis=1).all():
                raise ValueError(
                    f"row {int(mask.any(axis=1).argmin())} of attention_mask is all zeros"
                )
            return mask
        full = np.ones(ids.shape, bool)
        if opts.pad is None or opts.pad in opts.eos:
            return full
        mask = (ids != opts.pad).cpu().numpy()
        return mask if mask.any(axis=1).all() else full


def _path_config(path) -> tuple[dict, int | None]:
    """generation_config.json and max_position_embeddings of a directory; ({}, None) for a file."""
    config, max_position = {}, None
    if os.path.isdir(path):
        try:
            with open(os.path.join(path, "generation_config.json"), encoding="utf-8") as f:
                config = json.load(f)
        except FileNotFoundError:
            pass
        try:
            with open(os.path.join(path, "config.json"), encoding="utf-8") as f:
                max_position = json.load(f).get("max_position_embeddings")
        except FileNotFoundError:
            pass  # the engine says so
    return {k: v for k, v in config.items() if v is not None}, max_position

# SPDX-License-Identifier: Apache-2.0
"""One native forward of an installed model: whether a call's arguments allow it, and the call."""

from __future__ import annotations

import dataclasses
import inspect
import threading

import numpy as np
import torch
from transformers.modeling_outputs import CausalLMOutputWithPast

from kwker.hf_cache import KwkCache, State, is_plain
from kwker.torch_model import Watch, unsupported

_OUTPUT_FIELDS = {f.name for f in dataclasses.fields(CausalLMOutputWithPast)}
OUTPUT_CACHE = "cache" if "cache" in _OUTPUT_FIELDS else "past_key_values"

# Arguments that native_forward uses, and those that it may leave alone at these values.
_USED = {
    "input_ids",
    "attention_mask",
    "position_ids",
    "cache",
    "past_key_values",
    "inputs_embeds",
    "use_cache",
    "logits_to_keep",
    "return_dict",
    "cache_position",
}
_HARMLESS = {"output_attentions": (False,), "output_hidden_states": (False,), "labels": ()}


DYNAMIC = (None, "dynamic", "dynamic_full")  # the last: assisted decoding before 5.14


class Handle:
    """What install() keeps on a model: its original class and the packed weights in use."""

    def __init__(self, model, cls, max_cache_len, open_runner):
        self.cls = cls
        self.original_forward = cls.forward
        self.parameters = list(inspect.signature(cls.forward).parameters)[1:]
        self.cache_key = "cache" if "cache" in self.parameters else "past_key_values"
        self.max_cache_len = max_cache_len
        self.open_runner = open_runner
        self.watch = Watch(model)
        self.mark = self.watch.mark(model)
        self.runner = open_runner()
        self.lock = threading.Lock()

    def bind(self, args, kwargs) -> dict:
        return dict(zip(self.parameters, args), **kwargs) if args else kwargs

    def refresh(self, model) -> str | None:
        """Pack the weights again if they have changed; a reason when they cannot be packed."""
        with self.lock:
            mark = self.watch.mark(model)
            if mark == self.mark:
                return None
            reason = unsupported(model, self.max_cache_len)
            if reason:
                return reason
            self.runner = self.open_runner()
            self.mark = mark
        return None

    def state_reason(self, model) -> str | None:
        """Why the model, as it is now, must run its own forward."""
        if model.training:
            return "training mode"
        if "forward" in model.__dict__:
            return "the instance has a forward of its own (accelerate hooks?)"
        for module, hook in self.watch.hooks():
            # Hugging Face leaves its own behind after output_attentions=True
            if getattr(hook, "__module__", "") != "transformers.utils.output_capturing":
                return f"forward hooks on a {type(module).__name__}"
        return None

    def call_reason(self, config, model_kwargs) -> str | None:
        """Why a whole generate call must run on the model's own forward."""
        if config is None:
            return "no generation_config in the decoding loop"
        implementation = getattr(config, "cache_implementation", None)
        for reason, on in (
            (f"cache_implementation={implementation!r}", implementation not in DYNAMIC),
            ("output_attentions", config.output_attentions),
            ("output_hidden_states", config.output_hidden_states),
            ("synced_gpus", model_kwargs.get("synced_gpus")),
            ("assistant_early_exit", getattr(config, "assistant_early_exit", None)),
            ("use_mtp", getattr(config, "use_mtp", None)),
            ("speculation_type", getattr(config, "speculation_type", None)),
        ):
            if on:
                return reason
        slots = (config.max_length or 0) - 1  # the last token is never put into the cache
        if slots > self.max_cache_len:
            return f"{slots} slots are needed, max_cache_len is {self.max_cache_len}"
        return None


def _mask_reason(mask, batch, total) -> str | None:
    if mask is None:
        return None
    if not isinstance(mask, torch.Tensor) or mask.ndim != 2:
        return "attention_mask is not 2-D"
    if tuple(mask.shape) != (batch, total):
        return f"attention_mask has shape {tuple(mask.shape)}, not {(batch, total)}"
    return None


def _cache_reason(model, handle, cache, batch, n) -> tuple[str | None, int]:
    """(reason, columns in the cache)"""
    if cache is None:
        return None, 0
    if isinstance(cache, KwkCache) and cache._kwk is not None:
        past, rows = cache._kwk.length, cache._kwk.batch
    elif is_plain(cache, handle.runner.info["n_layers"]):
        past = cache.get_seq_length()
        if past and not handle.runner.can_import:
            return "keys and values cannot be handed to the daemon", past
        rows = cache.layers[0].keys.shape[0] if past else batch
        if past and cache.layers[0].keys.shape[1] != handle.runner.info["n_kv_heads"]:
            return "the cache is another model's", past
    else:
        return f"the cache is a {type(cache).__name__}", 0
    if past and rows != batch:
        return f"the cache holds {rows} rows, the call has {batch}", past
    return None, past


def argument_reason(model, handle, call) -> str | None:
    """None when native_forward can take these arguments, else why not."""
    for key, value in call.items():
        if key in _USED or value is None:
            continue
        if key not in _HARMLESS:
            return f"argument {key}"
        if not any(value is off for off in _HARMLESS[key]):
            return key
    config = model.config
    if getattr(config, "output_attentions", False) or getattr(
        config, "output_hidden_states", False
    ):
        return "output_attentions or output_hidden_states in the config"
    ids, embeds = call.get("input_ids"), call.get("inputs_embeds")
    if (ids is None) == (embeds is None):
        return "not exactly one of input_ids and inputs_embeds"
    if embeds is not None and not handle.runner.can_embed:
        return "inputs_embeds through the daemon"
    x = ids if embeds is None else embeds
    if x.device.type != "cpu":
        return f"input on device {x.device}"
    if x.ndim != (2 if embeds is None else 3) or x.shape[0] < 1 or x.shape[1] < 1:
        return f"input of shape {tuple(x.shape)}"
    if torch.is_grad_enabled() and (
        x.requires_grad or any(p.requires_grad for p in model.parameters())
    ):
        return "gradients are enabled"
    batch, n = x.shape[:2]
    cache = call.get("cache")
    if cache is None:
        cache = call.get("past_key_values")
    reason, past = _cache_reason(model, handle, cache, batch, n)
    if reason:
        return reason
    if past + n > handle.max_cache_len:
        return f"{past + n} slots are needed, max_cache_len is {handle.max_cache_len}"
    positions = call.get("position_ids")
    if positions is not None and (
        positions.ndim != 2
        or positions.shape[0] not in (1, batch)
        or positions.shape[1] != n
        or int(positions.min()) < 0
    ):
        return f"position_ids of shape {tuple(positions.shape)}"
    if ids is not None and (int(ids.min()) < 0 or int(ids.max()) >= handle.runner.vocab):
        return "token ids outside the vocabulary"  # torch raises its own error
    return _mask_reason(call.get("attention_mask"), batch, past + n)


def _state_for(model, handle, call, batch):
    """(cache to return or None, its native state)"""
    cache = call.get("cache")
    if cache is None:
        cache = call.get("past_key_values")
    use_cache = call.get("use_cache")
    if use_cache is None:
        use_cache = model.config.use_cache
    if cache is None:
        state = State(handle.runner, model, batch)
        if not use_cache:
            return None, state
        from transformers.cache_utils import DynamicCache

        return KwkCache.adopt(DynamicCache(), state), state
    if isinstance(cache, KwkCache) and cache._kwk is not None:
        if cache._kwk.length == 0 and cache._kwk.batch != batch:
            KwkCache.adopt(cache, State(handle.runner, model, batch))
        if cache._kwk.runner is handle.runner:
            return cache, cache._kwk
        cache.leave()  # of the weights before they changed: its K and V are carried over
    state = State(handle.runner, model, batch)
    past = cache.get_seq_length()
    if past:
        mask = call.get("attention_mask")
        valid = np.ones((batch, past), bool) if mask is None else (mask[:, :past] != 0).numpy()
        state.write_kv(cache.layers, valid)
    return KwkCache.adopt(cache, state), state


def native_forward(model, handle, call):
    """The forward, for arguments that argument_reason() let through."""
    ids, embeds = call.get("input_ids"), call.get("inputs_embeds")
    batch, n = (ids if embeds is None else embeds).shape[:2]
    cache, state = _state_for(model, handle, call, batch)
    past = state.length
    mask = call.get("attention_mask")
    valid = None
    if mask is not None:
        mask = (mask != 0).numpy()
        valid = mask[:, past:]
        if past:
            state.set_mask(mask[:, :past])
    elif past and not state.all_valid:
        state.set_mask(np.ones((batch, past), bool))

    positions = call.get("position_ids")
    if positions is None:
        positions = np.arange(past, past + n, dtype=np.int32)[None]
    else:
        positions = positions.numpy().astype(np.int32)
    positions = np.ascontiguousarray(np.broadcast_to(positions, (batch, n)))

    wanted = call.get("logits_to_keep", 0)
    keep = n
    if isinstance(wanted, int) and not isinstance(wanted, bool) and wanted > 0:
        keep = min(wanted, n)
    logits = state.append(
        None if ids is None else np.ascontiguousarray(ids.numpy().astype(np.int32)),
        positions,
        valid,
        keep,
        None if embeds is None else embeds.detach().float().contiguous().numpy().reshape(-1),
    )
    logits = torch.from_numpy(logits)
    if isinstance(wanted, torch.Tensor):
        logits = logits[:, wanted]
    out = CausalLMOutputWithPast(logits=logits.to(model.dtype), **{OUTPUT_CACHE: cache})
    return_dict = call.get("return_dict")
    if return_dict is None:
        return_dict = getattr(model.config, "return_dict", True)
    return out if return_dict else out.to_tuple()

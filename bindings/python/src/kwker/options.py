# SPDX-License-Identifier: Apache-2.0
"""Arguments of a generate call, resolved as Hugging Face resolves them.

Priority: keyword > ``generation_config=`` > the model's generation config > Hugging Face's global
defaults. A key that Hugging Face knows and this package does not do is refused when its value
differs from "off"; an unknown key is refused as Hugging Face refuses it. Needs no torch.
"""

from __future__ import annotations

import dataclasses

from kwker import errors

# Hugging Face's global defaults, for the keys that matter here.
DEFAULTS = {
    "max_length": None,
    "max_new_tokens": None,
    "min_length": 0,
    "min_new_tokens": None,
    "do_sample": False,
    "temperature": 1.0,
    "top_k": 50,
    "top_p": 1.0,
    "min_p": None,
    "repetition_penalty": 1.0,
    "num_return_sequences": 1,
    "eos_token_id": None,
    "pad_token_id": None,
    "bos_token_id": None,
}

# Values that change nothing, for the keys that are not done here. None (as a value) is always one
# of them; None in this table: any value, because the key only matters together with another one.
OFF = {
    "early_stopping": (False,),
    "max_time": (),
    "stop_strings": (),
    "num_beams": (1,),
    "use_mtp": (False,),
    "use_cache": (True, False),  # the cache is the decoder's own; the tokens are the same
    "cache_implementation": ("dynamic",),
    "cache_config": (),
    "max_cache_len": (),
    "top_h": (),
    "typical_p": (1.0,),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
    "encoder_repetition_penalty": (1.0,),
    "length_penalty": None,
    "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "bad_words_ids": (),
    "renormalize_logits": (False,),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "remove_invalid_values": (False,),
    "exponential_decay_length_penalty": (),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "sequence_bias": (),
    "token_healing": (False,),
    "guidance_scale": (1, 1.0),
    "watermarking_config": (),
    "output_attentions": (False,),
    "output_hidden_states": (False,),
    "output_scores": (False,),
    "output_logits": (False,),
    "return_dict_in_generate": (False,),
    "is_assistant": (False,),
    "num_assistant_tokens": None,
    "num_assistant_tokens_schedule": None,
    "assistant_confidence_threshold": None,
    "assistant_lookbehind": None,
    "target_lookbehind": None,
    "assistant_ensemble_weight": None,
    "assistant_early_exit": (),
    "prompt_lookup_num_tokens": (),
    "max_matching_ngram_size": None,
    "speculation_type": (),
    "compile_config": None,
    "disable_compile": None,
    "prefill_chunk_size": None,  # prompts are always cut, and the tokens do not depend on it
    "penalty_alpha": (0.0, 0),
    "dola_layers": (),
    "num_beam_groups": (1,),
    "diversity_penalty": (0.0, 0),
    "constraints": (),
    "force_words_ids": (),
    "low_memory": (False,),
    "decoder_start_token_id": None,
    "continuous_batching_config": None,
    "prefix_allowed_tokens_fn": (),
    "assistant_model": (),
    "custom_generate": (),
    "synced_gpus": (False,),
    "logits_processor": ([],),
    "negative_prompt_ids": (),
    "negative_prompt_attention_mask": (),
    "inputs_embeds": (),
    "position_ids": (),
    "cache": (),
    "past_key_values": (),
    "tokenizer": None,
}

# Keys of a generation config that say nothing about generating.
IGNORED = ("transformers_version", "_from_model_config")


@dataclasses.dataclass
class Options:
    """What one call does. Token ids and counts are plain ints."""

    max_new_tokens: int
    min_new_tokens: int
    do_sample: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    num_return_sequences: int
    eos: list[int]
    pad: int | None

    def sampling(self, native, vocab: int, seed: int = 0):
        """The engine's settings, checked: raises EINVAL, naming the field."""
        return native.Sampling(
            vocab=vocab,
            do_sample=self.do_sample,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p or 1e-30,  # 0 keeps the most likely token alone, as in Hugging Face
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            min_new_tokens=self.min_new_tokens,
            eos=[e for e in self.eos if 0 <= e < vocab],
            seed=seed,
        )


def id_list(value) -> list[int]:
    """eos_token_id in any of its forms as a list."""
    if value is None:
        return []
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, int):
        return [value]
    return [int(v) for v in value]


def _is_off(key: str, value) -> bool:
    if value is None or OFF[key] is None:
        return True
    return any(type(value) in (int, float, bool, str, list) and value == off for off in OFF[key])


def _check(given: dict, where: str) -> None:
    for key, value in given.items():
        if key in OFF and not _is_off(key, value):
            raise errors.EUNSUPPORTED(
                f"{key}={value!r}{where} is not supported by KwkDecoder.generate(); "
                "install(model) and model.generate() are"
            )


def _not_none(config) -> dict:
    """A generation config (object, dict or None) as a dict of what is set in it."""
    if config is None:
        return {}
    if not isinstance(config, dict):
        config = config.to_dict()
    return {k: v for k, v in config.items() if v is not None and k not in IGNORED}


def _max_new_tokens(merged: dict, prompt_len: int, max_position: int | None) -> int:
    n = merged["max_new_tokens"]
    if n is not None:
        if int(n) != n or n <= 0:
            raise ValueError(f"max_new_tokens must be at least 1, not {n}")
        return int(n)
    length = merged["max_length"]
    if length is None:  # Hugging Face's default: 20 new tokens, within the model's positions
        length = prompt_len + 20
        if max_position:
            length = min(length, max_position)
    if prompt_len >= length:
        raise ValueError(
            f"the prompt has {prompt_len} tokens and max_length is {length}: nothing to generate; "
            "set max_new_tokens"
        )
    return int(length) - prompt_len


def resolve(model_config, given: dict, prompt_len: int, max_position: int | None = None) -> Options:
    """The options of one call.

    model_config: the model's generation config (object, dict or None). Its do_sample is not
    looked at: a call is greedy unless it says do_sample=True itself.
    given: the call's keywords; prompt_len: columns of the prompt, padding included.
    """
    given = dict(given)
    call_config = _not_none(given.pop("generation_config", None))
    unknown = [k for k, v in given.items() if k not in DEFAULTS and k not in OFF and v is not None]
    if unknown:
        raise ValueError(
            f"generate() does not know these arguments: {unknown} (a typo also ends up in this list)"
        )
    base = {k: v for k, v in _not_none(model_config).items() if k != "do_sample"}
    overridden = call_config.keys() | given.keys()
    _check(
        {k: v for k, v in base.items() if k not in overridden}, " of the model's generation config"
    )
    _check({k: v for k, v in call_config.items() if k not in given}, " of generation_config")
    _check(given, "")
    merged = DEFAULTS | {k: v for k, v in (base | call_config).items() if k in DEFAULTS}
    merged |= {k: v for k, v in given.items() if k in DEFAULTS}

    new = _max_new_tokens(merged, prompt_len, max_position)
    if merged["min_new_tokens"] is not None:
        least = int(merged["min_new_tokens"])
    else:
        least = int(merged["min_length"] or 0) - prompt_len
    eos = id_list(merged["eos_token_id"])
    pad = merged["pad_token_id"]
    if hasattr(pad, "item"):
        pad = pad.item()
    returned = int(merged["num_return_sequences"] or 1)
    if returned < 1 or (returned > 1 and not merged["do_sample"]):
        raise ValueError(f"num_return_sequences={returned} needs do_sample=True")

    def number(key, off):
        return off if merged[key] is None else merged[key]

    return Options(
        max_new_tokens=new,
        min_new_tokens=max(least, 0),
        do_sample=bool(merged["do_sample"]),
        temperature=float(number("temperature", 1.0)),
        top_k=int(number("top_k", 0)),
        top_p=float(number("top_p", 1.0)),
        min_p=float(number("min_p", 0.0)),
        repetition_penalty=float(number("repetition_penalty", 1.0)),
        num_return_sequences=returned,
        eos=eos,
        pad=eos[0] if pad is None and eos else pad,
    )

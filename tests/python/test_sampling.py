# SPDX-License-Identifier: Apache-2.0
"""Sampling: the same seed gives the tokens that model.generate gives, and seed= does not depend on
the batch."""

import pytest
import torch

from kwker.decode import KwkDecoder
from models import BATCH, CONFIGS, MASK, PROMPT, build, shared_model

NEW = 64
SETTINGS = [
    {},
    {"temperature": 0.7},
    {"temperature": 1.9, "top_k": 0},
    {"top_p": 0.8},
    {"top_p": 0.9, "top_k": 0},
    {"top_p": 0.0},
    {"top_k": 5},
    {"top_k": 1},
    {"top_k": 100000},
    {"min_p": 0.1, "top_k": 0},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.8, "top_k": 20},
    {"temperature": 0.8, "top_k": 30, "top_p": 0.95, "min_p": 0.02, "repetition_penalty": 1.1},
]


@pytest.fixture(scope="module")
def decoders():
    return {name: KwkDecoder(shared_model(name), max_cache_len=128) for name in CONFIGS}


def same_seed(dec, model, ids, seed, **kwargs):
    ours = dec.generate(
        ids, do_sample=True, generator=torch.Generator().manual_seed(seed), **kwargs
    )
    torch.manual_seed(seed)
    return torch.equal(ours, model.generate(ids, do_sample=True, **kwargs))


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_same_seed_same_tokens_as_the_model(decoders, name, settings):
    model = shared_model(name)
    for ids, mask in ((PROMPT, None), (BATCH, MASK)):
        kwargs = dict(max_new_tokens=NEW, attention_mask=mask, eos_token_id=None, pad_token_id=0)
        assert same_seed(decoders[name], model, ids, 3, **kwargs, **settings)


def test_same_seed_same_tokens_when_rows_end_early(decoders):
    kwargs = dict(
        max_new_tokens=40, attention_mask=MASK, pad_token_id=0, eos_token_id=list(range(60, 80))
    )
    for seed in range(4):
        assert same_seed(decoders["llama"], shared_model("llama"), BATCH, seed, **kwargs)
        assert same_seed(
            decoders["llama"], shared_model("llama"), BATCH, seed, min_new_tokens=6, **kwargs
        )


def test_several_sequences_of_one_prompt_equal_the_models(decoders):
    kwargs = dict(max_new_tokens=20, num_return_sequences=3, pad_token_id=0)
    assert same_seed(decoders["qwen2"], shared_model("qwen2"), PROMPT, 5, **kwargs)
    assert same_seed(
        decoders["qwen2"], shared_model("qwen2"), BATCH, 5, attention_mask=MASK, **kwargs
    )


def test_without_a_generator_torchs_global_one_is_used(decoders):
    torch.manual_seed(11)
    ours = decoders["llama"].generate(PROMPT, max_new_tokens=20, do_sample=True)
    torch.manual_seed(11)
    assert torch.equal(
        ours, shared_model("llama").generate(PROMPT, max_new_tokens=20, do_sample=True)
    )


def test_defaults_come_from_the_models_generation_config():
    model = build("llama")
    model.generation_config.top_k = 3
    model.generation_config.temperature = 0.5
    model.generation_config.repetition_penalty = 1.2
    dec = KwkDecoder(model, max_cache_len=128)
    assert same_seed(dec, model, PROMPT, 1, max_new_tokens=40)
    assert same_seed(dec, model, PROMPT, 1, max_new_tokens=40, top_k=None)


def test_a_stream_of_seed_depends_on_neither_batch_nor_padding(decoders):
    kwargs = dict(max_new_tokens=24, do_sample=True, seed=7, eos_token_id=None)
    together = decoders["llama"].generate(BATCH, attention_mask=MASK, **kwargs)
    for row, mask, out in zip(BATCH, MASK, together):
        alone = decoders["llama"].generate(row[mask == 1][None], **kwargs)
        assert torch.equal(alone[0, -24:], out[-24:])
    other = decoders["llama"].generate(BATCH, attention_mask=MASK, **(kwargs | {"seed": 8}))
    assert not torch.equal(other, together)


def test_choices_of_one_seed_differ_from_each_other(decoders):
    out = decoders["llama"].generate(
        PROMPT, max_new_tokens=24, do_sample=True, seed=7, num_return_sequences=3, eos_token_id=None
    )
    assert len({tuple(row.tolist()) for row in out}) == 3
    first = decoders["llama"].generate(
        PROMPT, max_new_tokens=24, do_sample=True, seed=7, eos_token_id=None
    )
    assert torch.equal(out[0], first[0])


def test_tokens_of_seed_follow_the_distribution(decoders):
    """The first token over many seeds: frequencies within five standard deviations."""
    dec, n = decoders["llama"], 400
    counts = torch.zeros(99)
    for seed in range(n):
        counts[
            dec.generate(PROMPT, max_new_tokens=1, do_sample=True, seed=seed, top_k=4)[0, -1]
        ] += 1
    with torch.no_grad():
        logits = shared_model("llama")(PROMPT).logits[0, -1]
    best = logits.topk(4)
    p = best.values.softmax(-1)
    assert counts.sum() == counts[best.indices].sum() == n
    assert ((counts[best.indices] / n - p).abs() <= 5 * (p * (1 - p) / n).sqrt() + 1 / n).all()


def test_generator_and_seed_together_are_refused(decoders):
    with pytest.raises(ValueError, match="exclude"):
        decoders["llama"].generate(PROMPT, do_sample=True, seed=1, generator=torch.Generator())

# SPDX-License-Identifier: Apache-2.0
"""KwkDecoder, greedy, float32: the tokens of model.generate, and logits within 1e-5 of their scale."""

import json

import pytest
import torch

from kwker.decode import KwkDecoder, install
from models import BATCH, CONFIGS, MASK, PROMPT, build, shared_model, step_logits, top_gap

NEW = 64


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("ids, mask", [(PROMPT, None), (BATCH, MASK)], ids=["one", "padded-batch"])
def test_greedy_tokens_are_those_of_the_model_over_64_steps(name, ids, mask, figure):
    model = shared_model(name)
    dec = KwkDecoder(model, max_cache_len=128)
    kwargs = dict(max_new_tokens=NEW, attention_mask=mask, eos_token_id=None, pad_token_id=0)
    theirs = model.generate(ids, do_sample=False, **kwargs)
    ours = dec.generate(ids, **kwargs)
    full_mask = torch.ones_like(ids) if mask is None else mask
    logits = step_logits(model, theirs, full_mask, ids.shape[1])
    assert top_gap(logits) > 3e-5, "twice the allowed difference, and more: tokens must be equal"
    assert torch.equal(ours, theirs)

    twin = build(name)
    install(twin, max_cache_len=128, verify=False)
    native = step_logits(twin, theirs, full_mask, ids.shape[1])
    assert twin._kwker_fallback is None
    worst = ((native - logits).abs().max() / logits.abs().max()).item()
    figure(f"{name}, batch {len(ids)}: largest logit difference {worst:.2e} of the scale")
    assert worst <= 1e-5


def test_a_padded_row_generates_what_it_generates_alone():
    dec = KwkDecoder(shared_model("llama"), max_cache_len=128)
    together = dec.generate(BATCH, max_new_tokens=20, attention_mask=MASK, eos_token_id=None)
    for row, mask, out in zip(BATCH, MASK, together):
        alone = dec.generate(row[mask == 1][None], max_new_tokens=20, eos_token_id=None)
        assert torch.equal(alone[0, -20:], out[-20:])


@pytest.mark.parametrize("pads", [0, 5, 32])
def test_the_amount_of_left_padding_changes_nothing(pads):
    dec = KwkDecoder(shared_model("qwen2"), max_cache_len=128)
    ids = torch.cat([torch.zeros(1, pads, dtype=torch.long), PROMPT], 1)
    mask = (torch.arange(ids.shape[1]) >= pads).long()[None]
    out = dec.generate(ids, max_new_tokens=20, attention_mask=mask, eos_token_id=None)
    plain = dec.generate(PROMPT, max_new_tokens=20, eos_token_id=None)
    assert torch.equal(out[:, pads:], plain)


def test_the_mask_is_inferred_from_pad_ids_as_hugging_face_does():
    model = shared_model("llama")
    dec = KwkDecoder(model, max_cache_len=128)
    for pad, eos in ((0, 2), (0, 0)):  # pad = eos: it cannot be inferred
        kwargs = dict(max_new_tokens=12, pad_token_id=pad, eos_token_id=eos)
        assert torch.equal(dec.generate(BATCH, **kwargs), model.generate(BATCH, **kwargs))


def test_masks_with_holes_and_on_the_right_follow_the_model():
    model = shared_model("llama")
    dec = KwkDecoder(model, max_cache_len=128)
    for mask in ([1, 0, 1, 1, 1], [1, 1, 1, 1, 0], [0, 1, 0, 1, 0]):
        kwargs = dict(
            max_new_tokens=12,
            attention_mask=torch.tensor([mask]),
            pad_token_id=0,
            eos_token_id=None,
        )
        assert torch.equal(dec.generate(PROMPT, **kwargs), model.generate(PROMPT, **kwargs)), mask


def test_rows_stop_at_their_own_end_token_and_are_padded():
    model = shared_model("llama")
    dec = KwkDecoder(model, max_cache_len=128)
    free = dec.generate(BATCH, max_new_tokens=30, attention_mask=MASK, eos_token_id=None)
    stop = [free[0, 10].item(), free[1, 14].item(), free[2, 20].item()]
    kwargs = dict(max_new_tokens=30, attention_mask=MASK, eos_token_id=stop, pad_token_id=0)
    ours = dec.generate(BATCH, **kwargs)
    assert torch.equal(ours, model.generate(BATCH, **kwargs))
    assert ours.shape[1] < free.shape[1]
    for least in (3, 29):
        ours = dec.generate(BATCH, min_new_tokens=least, **kwargs)
        assert torch.equal(ours, model.generate(BATCH, min_new_tokens=least, **kwargs))


def test_an_end_token_inside_the_prompt_or_that_never_comes_stops_nothing():
    model = shared_model("qwen3")
    dec = KwkDecoder(model, max_cache_len=128)
    for eos in (5, -1, None):
        kwargs = dict(max_new_tokens=10, min_new_tokens=10, eos_token_id=eos)
        assert torch.equal(
            dec.generate(PROMPT, **kwargs), model.generate(PROMPT, pad_token_id=0, **kwargs)
        )


def test_greedy_ignores_what_is_only_for_sampling_and_keeps_the_penalty():
    model = shared_model("llama")
    dec = KwkDecoder(model, max_cache_len=128)
    assert torch.equal(
        dec.generate(PROMPT, max_new_tokens=20, temperature=0.6, top_k=3),
        dec.generate(PROMPT, max_new_tokens=20),
    )
    kwargs = dict(max_new_tokens=30, repetition_penalty=1.4, attention_mask=MASK)
    assert torch.equal(dec.generate(BATCH, **kwargs), model.generate(BATCH, **kwargs))


def test_lengths_follow_hugging_faces_rules():
    model = shared_model("llama")
    dec = KwkDecoder(model, max_cache_len=128)
    for kwargs in (
        {},
        {"max_length": 12},
        {"max_length": 12, "max_new_tokens": 3},
        {"min_length": 9, "max_length": 30},
    ):
        kwargs["eos_token_id"] = None
        assert torch.equal(dec.generate(PROMPT, **kwargs), model.generate(PROMPT, **kwargs)), kwargs


def test_streamers_get_the_prompt_and_then_every_token():
    class Recorder:
        def __init__(self):
            self.seen, self.ended = [], False

        def put(self, value):
            self.seen.append(value.tolist())

        def end(self):
            self.ended = True

    dec = KwkDecoder(shared_model("llama"), max_cache_len=128)
    rec = Recorder()
    out = dec.generate(PROMPT, max_new_tokens=5, eos_token_id=None, streamer=rec)
    assert rec.seen == [PROMPT.tolist(), *[[t] for t in out[0, -5:].tolist()]] and rec.ended


@pytest.mark.parametrize("precision", ["bf16", "f16"])
def test_16_bit_models_give_the_tokens_of_the_same_model_upcast(precision):
    dtype = torch.bfloat16 if precision == "bf16" else torch.float16
    model = build("llama", dtype=dtype)
    dec = KwkDecoder(model, max_cache_len=128)
    assert dec.precision == precision and dec.info["rounded"] is None
    upcast = build("llama")  # not .to(dtype).float(): that rounds the RoPE table too
    with torch.no_grad():
        for p in upcast.parameters():
            p.copy_(p.to(dtype))
    kwargs = dict(max_new_tokens=40, attention_mask=MASK, eos_token_id=None, pad_token_id=0)
    assert torch.equal(dec.generate(BATCH, **kwargs), upcast.generate(BATCH, **kwargs))


def test_stories260k_gives_its_published_text(stories):
    dec = KwkDecoder(stories, max_cache_len=512)
    expected = json.loads((stories / "greedy_from_bos_256.json").read_text())
    out = dec.generate([[1]], max_new_tokens=256)
    assert out[0].tolist() == expected and len(expected) == 257

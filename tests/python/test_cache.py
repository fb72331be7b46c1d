# SPDX-License-Identifier: Apache-2.0
"""KwkCache and the native forward: plain model(...) calls, caches that are handed around, cropped,
reordered, read, copied, and masks that change."""

import copy
import pickle

import pytest
import torch
from transformers import DynamicCache

from kwker.decode import install
from kwker.hf_cache import KwkCache
from models import BATCH, MASK, PROMPT, fresh


@pytest.fixture(scope="module")
def pair():
    model, twin = fresh("qwen3")
    install(model, max_cache_len=64)
    return model, twin


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def close(a, b):
    return torch.allclose(a, b, atol=2e-5 * b.abs().max().item(), rtol=0)


def forwards(pair, *args, **kwargs):
    ours, theirs = (m(*args, **kwargs) for m in pair)
    assert pair[0]._kwker_fallback is None
    assert ours.logits.shape == theirs.logits.shape and close(ours.logits, theirs.logits)
    return ours, theirs


def test_a_plain_forward_gives_the_models_logits_and_keys(pair):
    ours, theirs = forwards(pair, PROMPT)
    assert isinstance(ours.cache, KwkCache) and isinstance(ours.cache, DynamicCache)
    assert ours.cache.get_seq_length() == 5 and len(ours.cache) == 2
    for a, b in zip(ours.cache.layers, theirs.cache.layers):
        assert a.keys.shape == b.keys.shape and close(a.keys, b.keys) and close(a.values, b.values)


@pytest.mark.parametrize("keep", [0, 1, 3, 99, torch.tensor([0, 4]), torch.tensor([2])], ids=str)
def test_logits_to_keep_follows_the_model(pair, keep):
    forwards(pair, PROMPT, logits_to_keep=keep)


def test_return_dict_false_and_use_cache_false(pair):
    ours, theirs = (m(PROMPT, return_dict=False) for m in pair)
    assert isinstance(ours, tuple) and len(ours) == len(theirs) and close(ours[0], theirs[0])
    out = pair[0](PROMPT, use_cache=False)
    assert out.cache is None and pair[0]._kwker_fallback is None


def test_a_conversation_goes_on_with_the_returned_cache(pair):
    turns = [PROMPT, torch.tensor([[8, 3]]), torch.tensor([[44, 2, 61, 7]])]
    caches = [None, None]
    for ids in turns:
        outs = [m(ids, cache=c) for m, c in zip(pair, caches)]
        caches = [o.cache for o in outs]
        assert close(outs[0].logits, outs[1].logits) and pair[0]._kwker_fallback is None
    kwargs = dict(max_new_tokens=8, return_dict_in_generate=True)
    outs = [m.generate(PROMPT, **kwargs) for m in pair]
    more = torch.cat([outs[0].sequences, torch.tensor([[4, 5, 6]])], 1)
    again = [m.generate(more, cache=o.cache, **kwargs).sequences for m, o in zip(pair, outs)]
    assert torch.equal(*again) and pair[0]._kwker_fallback is None


def test_a_users_empty_cache_is_filled(pair):
    for call in (
        lambda m, c: m(PROMPT, cache=c),
        lambda m, c: m.generate(PROMPT, cache=c, max_new_tokens=6),
    ):
        caches = DynamicCache(), DynamicCache(config=pair[1].config)
        for m, c in zip(pair, caches):
            call(m, c)
        assert caches[0].get_seq_length() == caches[1].get_seq_length() > 0
        assert close(caches[0].layers[1].values, caches[1].layers[1].values)


def test_a_users_cache_stays_in_step_when_rows_end_early(pair):
    model, twin = pair
    free = twin.generate(BATCH, attention_mask=MASK, max_new_tokens=12, eos_token_id=None)
    eos = [free[0, 9].item(), free[1, 12].item(), free[2, 15].item()]
    caches = DynamicCache(), DynamicCache()
    outs = [
        m.generate(
            BATCH, attention_mask=MASK, max_new_tokens=12, eos_token_id=eos, pad_token_id=0, cache=c
        )
        for m, c in zip(pair, caches)
    ]
    assert torch.equal(*outs) and model._kwker_fallback is None
    assert caches[0].get_seq_length() == caches[1].get_seq_length()


def test_a_cache_filled_by_torch_is_taken_over(pair):
    model, twin = pair
    cache = twin(PROMPT).cache
    other = copy.deepcopy(cache)
    ours, theirs = model(BATCH[:1], cache=cache), twin(BATCH[:1], cache=other)
    assert model._kwker_fallback is None and close(ours.logits, theirs.logits)
    assert cache.get_seq_length() == 12 and close(cache.layers[0].keys, other.layers[0].keys)


def test_a_native_cache_goes_on_in_torch(pair):
    model, twin = pair
    cache, other = model(PROMPT).cache, twin(PROMPT).cache
    more = torch.tensor([[9, 8]])
    ours = model(more, cache=cache, output_attentions=True)
    assert model._kwker_fallback == "output_attentions"
    assert close(ours.logits, twin(more, cache=other).logits)
    assert type(cache.layers[0]).__name__ == "DynamicLayer" and cache.get_seq_length() == 7
    forwards_again = model(more, cache=cache)
    assert model._kwker_fallback is None and close(
        forwards_again.logits, twin(more, cache=other).logits
    )


def test_a_run_past_max_cache_len_goes_on_in_torch(pair):
    model, twin = pair
    ids = torch.arange(60)[None]
    caches = [m(ids).cache for m in pair]
    more = torch.arange(8)[None]
    ours, theirs = (m(more, cache=c) for m, c in zip(pair, caches))
    assert model._kwker_fallback == "68 slots are needed, max_cache_len is 64"
    assert close(ours.logits, theirs.logits)


def test_crop_removes_columns(pair):
    caches = [m(PROMPT).cache for m in pair]
    for c in caches:
        c.crop(0)
        c.crop(-2)
    more = torch.tensor([[30, 31]])
    ours, theirs = (m(more, cache=c) for m, c in zip(pair, caches))
    assert caches[0].get_seq_length() == 5 and close(ours.logits, theirs.logits)
    with pytest.raises(ValueError):
        caches[0].crop(3)


def test_rows_can_be_reordered_repeated_and_selected(pair):
    more = torch.tensor([[30], [31], [32], [33], [34], [35]])
    for change in (
        lambda c: c.reorder_cache(torch.tensor([2, 0, 0])),
        lambda c: c.batch_repeat_interleave(2),
        lambda c: c.batch_select_indices(torch.tensor([1])),
    ):
        caches = [m(BATCH).cache for m in pair]
        for c in caches:
            change(c)
        n = caches[1].layers[0].keys.shape[0]
        ours, theirs = (m(more[:n], cache=c) for m, c in zip(pair, caches))
        assert pair[0]._kwker_fallback is None and close(ours.logits, theirs.logits)


def test_a_copy_of_a_cache_goes_its_own_way(pair):
    model, twin = pair
    cache, other = model(PROMPT).cache, twin(PROMPT).cache
    copied = copy.deepcopy(cache)
    a, b = torch.tensor([[8]]), torch.tensor([[9, 10]])
    assert close(model(a, cache=copied).logits, twin(a, cache=copy.deepcopy(other)).logits)
    assert close(model(b, cache=cache).logits, twin(b, cache=other).logits)
    assert copied.get_seq_length() == 6 and cache.get_seq_length() == 7
    plain = pickle.loads(pickle.dumps(cache))
    assert type(plain) is DynamicCache and close(plain.layers[1].keys, other.layers[1].keys)


def test_a_reset_cache_can_be_used_with_another_batch(pair):
    cache = pair[0](PROMPT).cache
    cache.reset()
    assert cache.get_seq_length() == 0
    out = pair[0](BATCH, cache=cache)
    assert pair[0]._kwker_fallback is None and close(out.logits, pair[1](BATCH).logits)


def test_padded_batches_follow_the_mask_and_positions(pair):
    positions = (MASK.cumsum(-1) - 1).clamp(min=0)
    ours, theirs = (
        m(BATCH, attention_mask=MASK, position_ids=positions, logits_to_keep=1) for m in pair
    )
    assert close(ours.logits, theirs.logits)
    ours, theirs = (m(BATCH, attention_mask=MASK, position_ids=positions) for m in pair)
    seen = MASK.bool()
    assert close(ours.logits[seen], theirs.logits[seen])


def test_any_mask_works_trailing_holes_included(pair):
    mask = torch.tril(torch.ones(5, 5, dtype=torch.long))
    ids = PROMPT.repeat(5, 1)
    ours, theirs = (m(ids, attention_mask=mask) for m in pair)
    assert pair[0]._kwker_fallback is None and close(ours.logits, theirs.logits)


def test_a_mask_that_changes_over_past_columns_is_followed(pair):
    more = torch.tensor([[20, 21]])
    for first, then in (([1, 1, 1, 1, 1], [1, 0, 1, 1, 1]), ([1, 0, 1, 1, 1], [1, 1, 1, 1, 1])):
        caches = [m(PROMPT, attention_mask=torch.tensor([first])).cache for m in pair]
        mask = torch.tensor([then + [1, 1]])
        ours, theirs = (m(more, attention_mask=mask, cache=c) for m, c in zip(pair, caches))
        assert pair[0]._kwker_fallback is None
        assert close(ours.logits, theirs.logits), (first, then)


def test_padding_that_was_skipped_is_computed_when_the_mask_uncovers_it(pair):
    model, twin = pair
    cache = model(PROMPT, attention_mask=torch.tensor([[0, 0, 1, 1, 1]]), logits_to_keep=1).cache
    mask, more = torch.tensor([[0, 1, 1, 1, 1, 1, 1]]), torch.tensor([[20, 21]])
    ours = model(more, attention_mask=mask, cache=cache)
    theirs = twin(torch.cat([PROMPT, more], 1), attention_mask=mask)
    assert model._kwker_fallback is None and close(ours.logits, theirs.logits[:, -2:])


def test_a_masked_token_has_no_influence(pair):
    mask = torch.tensor([[1, 0, 1, 1, 1]])
    changed = PROMPT.clone()
    changed[0, 1] = 77
    a, b = (pair[0](ids, attention_mask=mask).logits for ids in (PROMPT, changed))
    assert torch.equal(a[:, 2:], b[:, 2:])


def test_two_caches_live_on_one_model(pair):
    model = pair[0]
    a, b = model(PROMPT).cache, model(BATCH).cache
    one = model(torch.tensor([[9]]), cache=a).logits
    model(torch.tensor([[9], [8], [7]]), cache=b)
    assert torch.equal(one, model(torch.cat([PROMPT, torch.tensor([[9]])], 1)).logits[:, -1:])


def test_odd_arguments_use_the_models_own_forward(pair):
    model = pair[0]
    cases = {
        "attention_mask is not 2-D": dict(attention_mask=torch.ones(1, 1, 5, 5).bool()),
        "output_hidden_states": dict(output_hidden_states=True),
    }
    for reason, kwargs in cases.items():
        out = model(PROMPT, **kwargs)
        assert model._kwker_fallback == reason and out.logits.shape == (1, 5, 99)
    with pytest.raises(IndexError):
        model(torch.tensor([[500]]))
    assert model._kwker_fallback == "token ids outside the vocabulary"

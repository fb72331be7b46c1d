# SPDX-License-Identifier: Apache-2.0
"""install(): model.generate keeps its interface and its tokens; what cannot run natively runs on the
model's own forward and says why; nothing stays behind."""

import copy
import inspect
import io
import pickle
import threading

import pytest
import torch
from transformers import (
    LlamaForCausalLM,
    StaticCache,
    StoppingCriteria,
    StoppingCriteriaList,
)

from kwker.decode import install, uninstall
from models import BATCH, MASK, PROMPT, fresh

PADDED = dict(attention_mask=MASK, pad_token_id=0)


@pytest.fixture(scope="module")
def pair():
    model, twin = fresh("llama")
    install(model, max_cache_len=128)
    return model, twin


def both(pair, *args, seed=1, **kwargs):
    """The same call on both: equal results. Gives the installed model's and its fallback."""
    model, twin = pair
    torch.manual_seed(seed)
    ours = model.generate(*args, **copy.copy(kwargs))
    reason = model._kwker_fallback
    torch.manual_seed(seed)
    theirs = twin.generate(*args, **copy.copy(kwargs))
    a, b = (x if torch.is_tensor(x) else x.sequences for x in (ours, theirs))
    assert torch.equal(a, b)
    return ours, reason


@pytest.mark.parametrize(
    "kwargs",
    [
        dict(),
        dict(eos_token_id=None),
        dict(repetition_penalty=1.3),
        dict(min_new_tokens=9),
        dict(min_length=15),
        dict(do_sample=True),
        dict(do_sample=True, top_p=0.9, temperature=0.7),
        dict(do_sample=True, min_p=0.1, top_k=0, repetition_penalty=1.2, min_new_tokens=4),
        dict(do_sample=True, num_return_sequences=2),
        dict(eos_token_id=list(range(40, 60)), do_sample=True),
        dict(no_repeat_ngram_size=2),
        dict(bad_words_ids=[[7], [8, 9]], do_sample=True),
        dict(suppress_tokens=[3, 4], renormalize_logits=True, do_sample=True),
        dict(typical_p=0.8, do_sample=True),
        dict(guidance_scale=1.5),
        dict(prefill_chunk_size=2),
        dict(use_cache=False),
        dict(return_dict_in_generate=True, output_scores=True, output_logits=True),
    ],
    ids=str,
)
@pytest.mark.parametrize("batch", [1, 3])
def test_calls_run_natively_with_the_models_own_tokens(pair, kwargs, batch):
    kwargs = dict(max_new_tokens=24) | kwargs
    ids = PROMPT if batch == 1 else BATCH
    if batch == 3:
        kwargs |= PADDED
    out, reason = both(pair, ids, **kwargs)
    assert reason is None
    if "return_dict_in_generate" in kwargs:
        assert len(out.scores) == len(out.logits) == out.sequences.shape[1] - ids.shape[1]


def test_scores_are_those_of_the_model(pair):
    kwargs = dict(max_new_tokens=12, return_dict_in_generate=True, output_logits=True)
    ours, theirs = (m.generate(PROMPT, **kwargs) for m in pair)
    for a, b in zip(ours.logits, theirs.logits):
        assert torch.allclose(a, b, atol=1e-5 * b.abs().max().item(), rtol=0)


@pytest.mark.parametrize(
    "kwargs, reason",
    [
        (dict(num_beams=3), "beam search"),
        (dict(num_beams=2, do_sample=True), "beam search"),
        (dict(return_dict_in_generate=True, output_attentions=True), "output_attentions"),
        (dict(return_dict_in_generate=True, output_hidden_states=True), "output_hidden_states"),
        (dict(cache_implementation="static"), "cache_implementation='static'"),
        (dict(max_new_tokens=200), "204 slots are needed, max_cache_len is 128"),
    ],
    ids=str,
)
def test_calls_it_cannot_take_run_on_the_models_own_forward_and_say_why(pair, kwargs, reason):
    _, why = both(pair, PROMPT, **({"max_new_tokens": 8} | kwargs))
    assert why == reason
    assert both(pair, PROMPT, max_new_tokens=8)[1] is None, "the next call is native again"


def test_a_prefill_that_falls_back_is_not_run_twice(pair):
    model, twin = pair
    calls = []
    handle = twin.model.register_forward_pre_hook(lambda *a: calls.append(1))
    caches = [StaticCache(config=twin.config, max_cache_len=40) for _ in pair]
    outs = [m.generate(PROMPT, max_new_tokens=8, cache=c) for m, c in zip(pair, caches)]
    handle.remove()
    assert torch.equal(*outs) and model._kwker_fallback == "the cache is a StaticCache"
    assert caches[0].get_seq_length() == caches[1].get_seq_length() == 12
    assert len(calls) == outs[1].shape[1] - 5


def test_a_call_of_exactly_max_cache_len_is_native(pair):
    out, reason = both(pair, PROMPT, max_new_tokens=124, eos_token_id=None)
    assert reason is None and out.shape[1] == 129  # the last token needs no slot


class Recorder:
    def __init__(self, fail_at=None):
        self.seen, self.ended, self.fail_at = [], False, fail_at

    def put(self, value):
        if len(self.seen) == self.fail_at:
            raise InterruptedError("cancelled by the streamer")
        self.seen.append(value.tolist())

    def end(self):
        self.ended = True


@pytest.mark.parametrize(
    "kwargs",
    [dict(), dict(do_sample=True), dict(prompt_lookup_num_tokens=3), dict(no_repeat_ngram_size=3)],
    ids=str,
)
def test_streamers_see_what_they_always_saw(pair, kwargs):
    seen = []
    for model in pair:
        torch.manual_seed(0)
        rec = Recorder()
        model.generate(PROMPT, max_new_tokens=12, streamer=rec, **kwargs)
        assert rec.ended
        seen.append(rec.seen)
    assert seen[0] == seen[1]
    assert pair[0]._kwker_fallback is None


def test_an_exception_of_a_streamer_leaves_the_model_usable(pair):
    with pytest.raises(InterruptedError):
        pair[0].generate(PROMPT, max_new_tokens=12, streamer=Recorder(fail_at=4))
    assert both(pair, PROMPT, max_new_tokens=12)[1] is None


class AfterToken(StoppingCriteria):
    """Stops a row when it has made some number of tokens that is its own."""

    def __call__(self, input_ids, scores, **kwargs):
        n = input_ids.shape[1] - 7
        return torch.arange(len(input_ids)) + 3 <= n


def test_stopping_criteria_work_row_by_row(pair):
    kwargs = dict(max_new_tokens=20, stopping_criteria=StoppingCriteriaList([AfterToken()]))
    out, reason = both(pair, BATCH, **PADDED, **kwargs)
    assert reason is None and out.shape[1] == 12
    out, reason = both(pair, BATCH, eos_token_id=None, **PADDED, **kwargs)
    assert reason is None


def test_max_time_stops_the_native_loop(pair):
    out = pair[0].generate(PROMPT, max_new_tokens=100, max_time=0.0, eos_token_id=None)
    assert out.shape[1] == 6 and pair[0]._kwker_fallback is None


@pytest.mark.parametrize(
    "kwargs", [dict(), dict(do_sample=True), dict(repetition_penalty=1.2)], ids=str
)
def test_prompt_lookup_runs_natively(pair, kwargs):
    ids = torch.tensor([[1, 5, 7, 9, 1, 5, 7, 9, 1, 5]])
    _, reason = both(
        pair, ids, max_new_tokens=40, prompt_lookup_num_tokens=3, eos_token_id=None, **kwargs
    )
    assert reason is None


def test_prompt_lookup_stops_at_an_end_token_among_its_drafts(pair):
    ids = torch.tensor([[1, 5, 7, 9, 1, 5, 7, 9, 1, 5]])
    free, _ = both(pair, ids, max_new_tokens=40, eos_token_id=None)
    for eos in set(free[0, 14:30].tolist()):
        _, reason = both(pair, ids, max_new_tokens=40, prompt_lookup_num_tokens=4, eos_token_id=eos)
        assert reason is None


def test_right_padding_gives_what_the_model_gives(pair):
    mask = MASK.flip(1)
    _, reason = both(pair, BATCH.flip(1), attention_mask=mask, pad_token_id=0, max_new_tokens=12)
    assert reason is None


def test_an_assistant_may_be_any_model(pair):
    model, twin = pair
    for assistant in (twin, model):
        ours = model.generate(PROMPT, max_new_tokens=20, assistant_model=assistant)
        assert torch.equal(ours, twin.generate(PROMPT, max_new_tokens=20))
    ours = twin.generate(PROMPT, max_new_tokens=20, assistant_model=model)
    assert torch.equal(ours, twin.generate(PROMPT, max_new_tokens=20))


def test_processors_of_the_users_are_called(pair):
    def only_even(input_ids, scores):
        scores = scores.clone()
        scores[:, 1::2] = -float("inf")
        return scores

    out, reason = both(
        pair, PROMPT, max_new_tokens=12, logits_processor=[only_even], eos_token_id=None
    )
    assert reason is None and (out[0, 5:] % 2 == 0).all()


def test_prompts_may_be_embeddings(pair):
    embeds = pair[1].get_input_embeddings()(PROMPT).detach()
    out, reason = both(pair, inputs_embeds=embeds, max_new_tokens=12)
    assert reason is None and out.shape[1] == 12


def test_unknown_arguments_raise_as_in_hugging_face(pair):
    messages = []
    for model in pair:
        with pytest.raises(ValueError) as e:
            model.generate(PROMPT, totally_bogus=1)
        messages.append(str(e.value))
    assert messages[0] == messages[1]


def test_signature_class_and_names_are_those_of_the_original(pair):
    model, twin = pair
    assert type(model).__name__ == type(twin).__name__ and isinstance(model, LlamaForCausalLM)
    for name in ("forward", "generate", "_sample"):
        assert inspect.signature(getattr(model, name)) == inspect.signature(getattr(twin, name))
    assert set(model.state_dict()) == set(twin.state_dict())
    assert repr(model) == repr(twin)


def test_copies_and_pickles_are_plain_models(tmp_path):
    model, twin = fresh("llama")
    install(model, max_cache_len=64)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    model.save_pretrained(tmp_path)
    for plain in (
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(buffer, weights_only=False),
        LlamaForCausalLM.from_pretrained(tmp_path),
    ):
        assert type(plain) is LlamaForCausalLM and "_kwker" not in plain.__dict__
        assert torch.equal(
            plain.eval().generate(PROMPT, max_new_tokens=5), twin.generate(PROMPT, max_new_tokens=5)
        )
    copied = copy.deepcopy(model)
    install(copied, max_cache_len=64)
    assert torch.equal(
        copied.generate(PROMPT, max_new_tokens=5), model.generate(PROMPT, max_new_tokens=5)
    )


def test_uninstall_leaves_nothing_and_install_again_works():
    model, twin = fresh("qwen2")
    before = dict(model.__dict__)
    install(model, max_cache_len=64)
    model.generate(PROMPT, max_new_tokens=3)
    install(model, max_cache_len=32)  # again, with other options
    model.generate(PROMPT, max_new_tokens=40)
    assert model._kwker_fallback == "44 slots are needed, max_cache_len is 32"
    uninstall(model)
    assert type(model) is type(twin) and model.__dict__.keys() == before.keys()
    uninstall(model)  # nothing to do
    assert torch.equal(
        model.generate(PROMPT, max_new_tokens=9), twin.generate(PROMPT, max_new_tokens=9)
    )


@pytest.mark.parametrize("change", ["step", "data", "load", "assign", "replace"])
def test_weights_changed_in_place_are_noticed(change):
    model, twin = fresh("llama")
    install(model, max_cache_len=64)
    model.generate(PROMPT, max_new_tokens=3)
    other = fresh("llama", seed=9)[0].state_dict()
    for m in (model, twin):
        if change == "step":
            with torch.no_grad():
                m.model.layers[1].mlp.up_proj.weight.mul_(-1.5)
        elif change == "data":
            m.lm_head.weight.data.copy_(other["lm_head.weight"])
        elif change == "load":
            m.load_state_dict(other)
        elif change == "assign":
            m.load_state_dict({k: v.clone() for k, v in other.items()}, assign=True)
        else:
            m.lm_head.weight = torch.nn.Parameter(other["lm_head.weight"].clone())
    assert both((model, twin), PROMPT, max_new_tokens=20)[1] is None


def test_training_and_gradients_use_the_models_own_forward():
    model, twin = fresh("llama")
    install(model, max_cache_len=64)
    model.generate(PROMPT, max_new_tokens=3)
    loss = model(PROMPT, labels=PROMPT).loss
    assert model._kwker_fallback == "labels"
    loss.backward()
    twin(PROMPT, labels=PROMPT).loss.backward()
    assert torch.equal(model.lm_head.weight.grad, twin.lm_head.weight.grad)
    model(PROMPT)
    assert model._kwker_fallback == "gradients are enabled"
    model.train()
    model.generate(PROMPT, max_new_tokens=3)
    assert model._kwker_fallback == "training mode"
    model.eval()
    assert both((model, twin), PROMPT, max_new_tokens=9)[1] is None


def test_hooks_on_inner_modules_use_the_models_own_forward(pair):
    model = pair[0]
    called = []
    handle = model.model.layers[0].register_forward_hook(lambda *a: called.append(1))
    both(pair, PROMPT, max_new_tokens=4)
    assert called and model._kwker_fallback == "forward hooks on a LlamaDecoderLayer"
    handle.remove()
    assert both(pair, PROMPT, max_new_tokens=4)[1] is None


def test_four_threads_on_one_model_get_what_one_gets(pair):
    model, twin = pair
    prompts = [torch.tensor([[1, i, i + 1]]) for i in range(3, 15)]
    expected = [twin.generate(p, max_new_tokens=16) for p in prompts]
    got = [None] * len(prompts)

    def work(start):
        for i in range(start, len(prompts), 4):
            got[i] = model.generate(prompts[i], max_new_tokens=16)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
        assert not t.is_alive()
    assert all(torch.equal(a, b) for a, b in zip(got, expected))


def test_integer_weights_run_through_install():
    model, twin = fresh("llama")
    install(model, max_cache_len=64, precision="balanced")
    out = model.generate(PROMPT, max_new_tokens=9, eos_token_id=None)
    assert out.shape == (1, 14) and model._kwker_fallback is None
    with torch.no_grad():
        a, b = model(PROMPT).logits, twin(PROMPT).logits
    assert 0 < (a - b).abs().max() < 0.2 * b.abs().max()

# SPDX-License-Identifier: Apache-2.0
"""daemon=: the same decoder, the model in kwkerd: one copy for all, bit-equal to this process."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import kwker
from conftest import running_kwkerd
from kwker.decode import KwkDecoder, install
from kwker.runners import _same_model
from models import BATCH, MASK, PROMPT, fresh, shared_model


@pytest.fixture(scope="module")
def daemon():
    with running_kwkerd() as d:
        yield d


@pytest.fixture(scope="module")
def decoders(daemon):
    model = shared_model("llama")
    return KwkDecoder(model, max_cache_len=128), KwkDecoder(
        model, max_cache_len=128, daemon=daemon.dir
    )


@pytest.mark.parametrize(
    "kwargs",
    [
        dict(),
        dict(repetition_penalty=1.3, min_new_tokens=5),
        dict(do_sample=True, seed=5, temperature=0.8, top_k=30, top_p=0.95),
        dict(do_sample=True, seed=5, eos_token_id=list(range(50, 70))),
        dict(do_sample=True, generator=3, top_p=0.9),
        dict(do_sample=True, generator=3, num_return_sequences=2),
        dict(do_sample=True, seed=5, num_return_sequences=2),
    ],
    ids=str,
)
def test_tokens_are_those_of_this_process(decoders, kwargs):
    outs = []
    for dec in decoders:
        kw = dict(kwargs)
        if "generator" in kw:
            kw["generator"] = torch.Generator().manual_seed(kw["generator"])
        outs.append(
            [
                dec.generate(PROMPT, max_new_tokens=40, **kw),
                dec.generate(BATCH, attention_mask=MASK, max_new_tokens=40, pad_token_id=0, **kw),
            ]
        )
    for a, b in zip(*outs):
        assert torch.equal(a, b)


def test_masks_with_holes_go_through_the_daemon_too(decoders):
    mask = torch.tensor([[1, 0, 1, 1, 0]])
    outs = [
        d.generate(PROMPT, attention_mask=mask, max_new_tokens=20, eos_token_id=None)
        for d in decoders
    ]
    assert torch.equal(*outs)


def test_many_decoders_share_one_copy(daemon, decoders):
    again = KwkDecoder(shared_model("llama"), max_cache_len=64, daemon=daemon.dir)
    with kwker.Client(daemon.dir) as c:
        (name,) = [m["name"] for m in c.models()]
    assert name.startswith(decoders[1].info["id"].hex())
    assert again.generate(PROMPT, max_new_tokens=3).shape == (1, 8)
    KwkDecoder(shared_model("llama"), max_cache_len=64, precision="int8", daemon=daemon.dir)
    with kwker.Client(daemon.dir) as c:
        assert len(c.models()) == 2


def test_processes_that_start_together_share_one_copy(daemon):
    code = """
import sys, torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[2])
from models import build, PROMPT
from kwker.decode import KwkDecoder
dec = KwkDecoder(build("qwen3", seed=77), max_cache_len=64, daemon=sys.argv[1])
print(dec.generate(PROMPT, max_new_tokens=9).tolist())
"""
    args = [sys.executable, "-c", code, daemon.dir, os.path.dirname(os.path.abspath(__file__))]
    procs = [subprocess.Popen(args, stdout=subprocess.PIPE) for _ in range(3)]
    outs = {p.communicate(timeout=100)[0] for p in procs}
    assert len(outs) == 1 and all(p.returncode == 0 for p in procs)
    with kwker.Client(daemon.dir) as c:
        assert sum(m["model_type"] == "qwen3" for m in c.models()) == 1


def test_only_models_of_trusted_origin_are_shared():
    facts = dict(state="ready", path="", uid=os.getuid(), id="ab", max_ctx=64, name="x")
    assert _same_model([facts], "ab", 64) == "x"
    for change in ({"id": "ac"}, {"max_ctx": 63}, {"state": "failed"}, {"uid": os.getuid() + 1}):
        assert _same_model([facts | change], "ab", 64) is None
    assert _same_model([facts | {"uid": os.getuid() + 1, "path": "/models/x"}], "ab", 64) == "x"


def test_logits_are_the_same_bits(decoders):
    here, there = (d._runner for d in decoders)
    tokens = np.arange(90, dtype=np.int32)
    outs = []
    for runner in (here, there):
        seq = runner.new()
        logits = np.empty((90, 99), np.float32)
        runner.forward([seq], np.array([90], np.int32), tokens, tokens, None, 90, logits)
        outs.append(logits)
    assert np.array_equal(*outs)


def test_install_runs_its_steps_in_the_daemon(daemon):
    model, twin = fresh("qwen2")
    install(model, max_cache_len=128, daemon=daemon.dir)
    ids = torch.tensor([[1, 5, 7, 9, 1, 5, 7, 9, 1, 5]])
    for kwargs in (
        dict(),
        dict(do_sample=True),
        dict(prompt_lookup_num_tokens=3),
        dict(no_repeat_ngram_size=3),
        dict(return_dict_in_generate=True),
    ):
        outs = []
        for m in (model, twin):
            torch.manual_seed(2)
            out = m.generate(ids, max_new_tokens=24, **kwargs)
            outs.append(out if torch.is_tensor(out) else out.sequences)
        assert torch.equal(*outs) and model._kwker_fallback is None
    outs = [
        m.generate(BATCH, attention_mask=MASK, pad_token_id=0, max_new_tokens=24)
        for m in (model, twin)
    ]
    assert torch.equal(*outs) and model._kwker_fallback is None


def test_keys_and_values_of_a_cache_in_the_daemon_can_be_read(daemon):
    model, twin = fresh("llama")
    install(model, max_cache_len=128, daemon=daemon.dir)
    with torch.no_grad():
        ours, theirs = model(PROMPT).cache, twin(PROMPT).cache
        assert torch.allclose(ours.layers[1].keys, theirs.layers[1].keys, atol=1e-5)
        out = model(torch.tensor([[3]]), cache=ours, output_attentions=True)
    assert model._kwker_fallback == "output_attentions" and out.logits.shape == (1, 1, 99)


def test_no_daemon_there_is_an_error_before_anything_is_packed(tmp_path):
    with pytest.raises(FileNotFoundError):
        KwkDecoder(shared_model("llama"), max_cache_len=64, daemon=str(tmp_path))


def test_true_means_the_machines_daemon(daemon, decoders, monkeypatch):
    monkeypatch.setenv("KWKER_DAEMON", daemon.dir)
    dec = KwkDecoder(shared_model("llama"), max_cache_len=128, daemon=True)
    kwargs = dict(max_new_tokens=9)
    assert torch.equal(dec.generate(PROMPT, **kwargs), decoders[0].generate(PROMPT, **kwargs))


def test_a_forked_child_opens_a_session_of_its_own(decoders):
    dec = decoders[1]
    kwargs = dict(max_new_tokens=20, eos_token_id=None)
    want = dec.generate(PROMPT, **kwargs)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if torch.equal(dec.generate(PROMPT, **kwargs), want) else 1)
    assert torch.equal(dec.generate(PROMPT, **kwargs), want)
    assert os.waitpid(pid, 0)[1] == 0


def test_a_context_longer_than_the_models_own_is_loaded_apart(daemon):
    dec = KwkDecoder(shared_model("qwen2"), max_cache_len=600, daemon=daemon.dir)
    here = KwkDecoder(shared_model("qwen2"), max_cache_len=600)
    ids = torch.arange(540)[None] % 101
    kwargs = dict(max_new_tokens=20, eos_token_id=None)
    assert torch.equal(dec.generate(ids, **kwargs), here.generate(ids, **kwargs))

# SPDX-License-Identifier: Apache-2.0
"""Bad arguments: a typed error that names the value, nothing ignored, and the decoder goes on."""

import numpy as np
import pytest
import torch
from transformers import (
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaForSequenceClassification,
)

import kwker
from kwker.decode import KwkDecoder, install, runner_unsupported
from models import PROMPT, build, shared_model


@pytest.fixture(scope="module")
def dec():
    return KwkDecoder(shared_model("llama"), max_cache_len=32)


@pytest.mark.parametrize(
    "kwargs, text",
    [
        (dict(max_new_tokens=0), "max_new_tokens must be at least 1, not 0"),
        (dict(max_new_tokens=-1), "not -1"),
        (
            dict(max_new_tokens=28),
            "a prompt of 5 and 28 new tokens need 33 slots; max_cache_len is 32",
        ),
        (dict(max_new_tokens=10**12), "max_cache_len is 32"),
        (dict(max_length=5), "max_length is 5"),
        (dict(max_new_tokens=5, do_sample=True, temperature=0.0), "temperature"),
        (dict(max_new_tokens=5, do_sample=True, temperature=float("nan")), "temperature"),
        (dict(max_new_tokens=5, do_sample=True, top_k=-1), "top_k"),
        (dict(max_new_tokens=5, do_sample=True, top_p=1.5), "top_p"),
        (dict(max_new_tokens=5, do_sample=True, min_p=-0.1), "min_p"),
        (dict(max_new_tokens=5, repetition_penalty=0.0), "repetition_penalty"),
        (dict(max_new_tokens=5, num_return_sequences=2), "num_return_sequences"),
        (dict(max_new_tokens=5, attention_mask=torch.ones(1, 3)), "attention_mask has shape"),
        (dict(max_new_tokens=5, attention_mask=torch.zeros(1, 5)), "all zeros"),
        (dict(max_new_tokens=5, totally_bogus=1), "totally_bogus"),
    ],
    ids=str,
)
def test_a_bad_argument_is_a_value_error_that_names_it(dec, kwargs, text):
    with pytest.raises(ValueError, match=text):
        dec.generate(PROMPT, **kwargs)
    assert dec.generate(PROMPT, max_new_tokens=3).shape == (1, 8)


@pytest.mark.parametrize(
    "ids, text",
    [
        (torch.tensor([[1, 99]]), "token id 99 is outside the vocabulary of 99"),
        (torch.tensor([[1, -1]]), "token id -1"),
        (torch.tensor([[2**40]]), "outside the vocabulary"),
        (torch.empty(1, 0, dtype=torch.long), "empty prompt"),
        (torch.empty(0, 4, dtype=torch.long), "empty prompt"),
        (torch.tensor([1, 2]), "batch, prompt"),
        (torch.tensor([[0.5]]), "integers"),
        (None, "no prompt"),
    ],
    ids=str,
)
def test_bad_prompts_are_value_errors(dec, ids, text):
    with pytest.raises(ValueError, match=text):
        dec.generate(ids, max_new_tokens=2)


@pytest.mark.parametrize(
    "kwargs",
    [
        dict(num_beams=3),
        dict(no_repeat_ngram_size=2),
        dict(bad_words_ids=[[3]]),
        dict(typical_p=0.9),
        dict(prompt_lookup_num_tokens=2),
        dict(return_dict_in_generate=True),
        dict(stop_strings=["a"]),
        dict(suppress_tokens=[1]),
        dict(logits_processor=[lambda i, s: s]),
        dict(max_time=1.0),
        dict(generation_config=GenerationConfig(num_beams=2)),
    ],
    ids=str,
)
def test_what_generate_does_not_do_is_refused_by_name(dec, kwargs):
    name = "num_beams" if "generation_config" in kwargs else next(iter(kwargs))
    with pytest.raises(NotImplementedError, match=name) as e:
        dec.generate(PROMPT, max_new_tokens=2, **kwargs)
    assert (
        isinstance(e.value, kwker.Error) and e.value.name == "EUNSUPPORTED" and e.value.code == -8
    )


def test_a_generation_config_that_asks_for_more_is_refused_not_ignored():
    model = build("llama")
    model.generation_config.no_repeat_ngram_size = 3
    dec = KwkDecoder(model, max_cache_len=32)
    with pytest.raises(NotImplementedError, match="no_repeat_ngram_size=3 of the model's"):
        dec.generate(PROMPT, max_new_tokens=2)
    assert dec.generate(PROMPT, max_new_tokens=2, no_repeat_ngram_size=0).shape[1] == 7


@pytest.mark.parametrize(
    "kwargs, error, text",
    [
        (dict(precision="int3"), ValueError, "int3"),
        (dict(precision="int4", gptq=True), NotImplementedError, "gptq"),
        (dict(precision="int4", mix_bits=7), ValueError, "mix_bits"),
        (dict(precision="int8", mix_bits=6), ValueError, "mix_bits"),
        (dict(precision="int8", mix_bits=8), ValueError, "mix_bits"),
        (dict(calib=[[1, 2, 3]]), ValueError, "calib"),
        (dict(precision="int8", calib=[]), ValueError, "calib"),
        (dict(precision="int8", calib=[[0.5, 1.5]]), ValueError, "calib"),
        (dict(max_cache_len=0), ValueError, "max_cache_len"),
        (dict(max_cache_len="many"), ValueError, "max_cache_len"),
    ],
    ids=str,
)
def test_bad_options_of_the_decoder_are_named(kwargs, error, text):
    with pytest.raises(error, match=text):
        KwkDecoder(shared_model("llama"), **({"max_cache_len": 32} | kwargs))


def test_prompts_may_be_lists_arrays_and_int32(dec):
    expected = dec.generate(PROMPT, max_new_tokens=3)
    for ids in (PROMPT.tolist(), PROMPT.numpy(), PROMPT.int(), np.asarray(PROMPT, np.int32)):
        assert torch.equal(dec.generate(ids, max_new_tokens=3), expected)
    assert torch.equal(dec.generate(input_ids=PROMPT, max_new_tokens=3), expected)


def test_missing_and_damaged_files_are_typed_errors(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        KwkDecoder(tmp_path / "nowhere")
    (tmp_path / "x.gguf").write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(kwker.Error):
        KwkDecoder(tmp_path / "x.gguf")
    (tmp_path / "x.kwk").write_bytes(bytes(4096))
    with pytest.raises(kwker.Error):
        KwkDecoder(tmp_path / "x.kwk")
    model = tmp_path / "model"
    shared_model("llama").save_pretrained(model)
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(kwker.errors.EFORMAT):
        KwkDecoder(model)


def test_reasons_name_what_is_not_supported():
    gpt2 = GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=50))
    assert "gpt2" in runner_unsupported(gpt2, 16)
    assert "max_cache_len" in runner_unsupported(shared_model("llama"), 0)
    assert "Linear" in runner_unsupported(torch.nn.Linear(2, 2), 16)

    odd = build("llama")
    odd.config.a_new_key = 3
    assert "a_new_key" in runner_unsupported(odd, 16)

    other = LlamaForSequenceClassification(shared_model("llama").config)
    assert "not a causal language model" in runner_unsupported(other, 16)

    class Wrapped(torch.nn.Linear):
        pass

    lora = build("llama")
    proj = lora.model.layers[0].self_attn.q_proj
    lora.model.layers[0].self_attn.q_proj = Wrapped(proj.in_features, proj.out_features, bias=False)
    assert "model.layers.0.self_attn.q_proj" in runner_unsupported(lora, 16)

    untied = build("llama-tied")
    untied.lm_head.weight = torch.nn.Parameter(untied.lm_head.weight.detach().clone())
    assert "tie_word_embeddings" in runner_unsupported(untied, 16)

    hooked = build("llama")
    hooked.forward = hooked.forward
    assert "forward of its own" in runner_unsupported(hooked, 16)
    for model in (gpt2, odd, other, lora, untied, hooked):
        with pytest.raises(NotImplementedError):
            install(model, max_cache_len=16)
        assert "_kwker" not in model.__dict__


def test_every_supported_family_is_admitted():
    for name in ("llama", "llama-tied", "llama3-rope", "qwen2", "qwen3"):
        assert runner_unsupported(shared_model(name), 64) is None

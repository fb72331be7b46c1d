# SPDX-License-Identifier: Apache-2.0
"""Resolving a call's arguments: priorities, defaults, what is refused. Needs no torch."""

import pytest

from kwker import errors
from kwker.options import DEFAULTS, OFF, id_list, resolve


def test_defaults_are_hugging_faces():
    o = resolve(None, {}, 5)
    assert (o.max_new_tokens, o.min_new_tokens, o.do_sample, o.top_k) == (20, 0, False, 50)
    assert (o.temperature, o.top_p, o.min_p, o.repetition_penalty) == (1.0, 1.0, 0.0, 1.0)
    assert (o.eos, o.pad, o.num_return_sequences) == ([], None, 1)


def test_keyword_beats_call_config_beats_model_config():
    model = {"top_k": 3, "top_p": 0.3, "temperature": 0.3, "do_sample": True, "eos_token_id": 2}
    o = resolve(
        model, {"generation_config": {"top_p": 0.4, "temperature": 0.4}, "temperature": 0.5}, 1
    )
    assert (o.top_k, o.top_p, o.temperature, o.eos) == (3, 0.4, 0.5, [2])
    assert not o.do_sample, "the model's do_sample does not make a call sample"
    assert resolve(model, {"generation_config": {"do_sample": True}}, 1).do_sample


def test_none_as_a_keyword_switches_off():
    o = resolve(
        {"top_k": 3, "eos_token_id": 2},
        {"top_k": None, "top_p": None, "temperature": None, "eos_token_id": None},
        1,
    )
    assert (o.top_k, o.top_p, o.temperature, o.eos, o.pad) == (0, 1.0, 1.0, [], None)


def test_the_first_end_token_pads_where_no_pad_token_is_set():
    assert resolve({"eos_token_id": [7, 8]}, {}, 1).pad == 7
    assert resolve({"eos_token_id": [7, 8], "pad_token_id": 0}, {}, 1).pad == 0


@pytest.mark.parametrize(
    "given, prompt, limit, new",
    [
        ({"max_new_tokens": 3, "max_length": 99}, 5, None, 3),
        ({"max_length": 9}, 5, None, 4),
        ({}, 5, 12, 7),
        ({}, 5, 4096, 20),
    ],
)
def test_lengths(given, prompt, limit, new):
    assert resolve(None, given, prompt, limit).max_new_tokens == new


@pytest.mark.parametrize(
    "given", [{"max_new_tokens": 0}, {"max_new_tokens": 1.5}, {"max_length": 5}]
)
def test_nothing_to_generate_is_an_error(given):
    with pytest.raises(ValueError):
        resolve(None, given, 5)


def test_min_length_counts_the_prompt_and_min_new_tokens_does_not():
    assert resolve(None, {"min_length": 9}, 5).min_new_tokens == 4
    assert resolve(None, {"min_length": 3}, 5).min_new_tokens == 0
    assert resolve(None, {"min_length": 9, "min_new_tokens": 2}, 5).min_new_tokens == 2


def test_every_off_value_passes_and_every_other_is_refused():
    for key, values in OFF.items():
        for value in values or ():
            resolve({key: value}, {key: value}, 1)
        if values is None:
            resolve(None, {key: 17}, 1)
        else:
            with pytest.raises(errors.EUNSUPPORTED, match=key):
                resolve(None, {key: 0.3717}, 1)
            with pytest.raises(errors.EUNSUPPORTED, match=key):
                resolve({key: 0.3717}, {}, 1)


def test_unknown_keys_are_refused_unless_none():
    resolve(None, {"bogus": None}, 1)
    with pytest.raises(ValueError, match="bogus"):
        resolve(None, {"bogus": 0}, 1)


def test_every_field_of_hugging_faces_config_is_known():
    transformers = pytest.importorskip("transformers")
    fields = {k for k in transformers.GenerationConfig().to_dict() if k[0] != "_"}
    assert fields - {"transformers_version"} <= DEFAULTS.keys() | OFF.keys()


def test_end_tokens_in_any_form():
    class Tensor:
        def __init__(self, v):
            self.v = v

        def tolist(self):
            return self.v

    assert id_list(None) == [] and id_list(3) == [3] and id_list((3, 4)) == [3, 4]
    assert id_list(Tensor(5)) == [5] and id_list(Tensor([5, 6])) == [5, 6]

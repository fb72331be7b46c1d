# SPDX-License-Identifier: Apache-2.0
"""Packed weights on disk: found again, replaced when the weights change, kept under a cap."""

import os
import time

import pytest
import torch

from kwker import pack_cache, torch_model
from kwker.decode import KwkDecoder
from models import PROMPT, build, shared_model


def packs(folder):
    return sorted(folder.glob("*.kwk"))


@pytest.fixture
def counted(monkeypatch):
    """How often a torch model was packed."""
    calls = []
    real = torch_model.open_model
    monkeypatch.setattr(
        torch_model, "open_model", lambda *a, **k: (calls.append(1), real(*a, **k))[1]
    )
    return calls


def test_a_model_is_packed_once_and_found_again(tmp_path, counted):
    model = shared_model("llama")
    kwargs = dict(max_cache_len=64, precision="int8", cache_dir=tmp_path)
    first = KwkDecoder(model, **kwargs).generate(PROMPT, max_new_tokens=8)
    again = KwkDecoder(model, **kwargs).generate(PROMPT, max_new_tokens=8)
    assert torch.equal(first, again) and len(counted) == 1
    KwkDecoder(model, max_cache_len=32, precision="balanced", cache_dir=tmp_path)
    assert len(packs(tmp_path)) == 1, "neither the length nor another name makes another pack"
    KwkDecoder(model, max_cache_len=32, precision="float32", cache_dir=tmp_path)
    assert len(packs(tmp_path)) == 2


def test_the_bits_of_int4s_finer_tensors_are_part_of_what_is_kept(tmp_path, counted):
    model = shared_model("llama")
    facts = {}
    for bits in (8, 6, None, 6):
        dec = KwkDecoder(model, 64, precision="int4", mix_bits=bits, cache_dir=tmp_path)
        facts[bits] = (dec.info["id"], dec.info["weight_bytes"])
        assert dec.generate(PROMPT, max_new_tokens=4).shape[1] == PROMPT.shape[1] + 4
    assert len(counted) == 3, "6 bits were found again"
    assert facts[None] == facts[8], "the default far below a billion parameters"
    assert facts[6][0] != facts[8][0] and facts[6][1] < facts[8][1]


def test_changed_weights_are_packed_again_in_place_of_the_old(tmp_path, counted):
    model = build("llama")
    KwkDecoder(model, 64, cache_dir=tmp_path)
    old = packs(tmp_path)
    with torch.no_grad():
        model.lm_head.weight[3, 3] += 1
    dec = KwkDecoder(model, 64, cache_dir=tmp_path)
    assert len(counted) == 2 and len(packs(tmp_path)) == 1 and packs(tmp_path) != old
    assert torch.equal(
        dec.generate(PROMPT, max_new_tokens=8), model.generate(PROMPT, max_new_tokens=8)
    )


def test_a_damaged_pack_is_packed_again(tmp_path, counted):
    model = shared_model("llama")
    KwkDecoder(model, 64, cache_dir=tmp_path)
    file = packs(tmp_path)[0]
    file.write_bytes(file.read_bytes()[:1000])
    out = KwkDecoder(model, 64, cache_dir=tmp_path).generate(PROMPT, max_new_tokens=4)
    assert out.shape == (1, 9) and len(counted) == 2


def test_directories_are_known_by_their_files(tmp_path):
    src, cache = tmp_path / "model", tmp_path / "cache"
    shared_model("llama").save_pretrained(src)
    a = KwkDecoder(src, 64, cache_dir=cache)
    before = packs(cache)
    KwkDecoder(src, 64, cache_dir=cache)
    assert packs(cache) == before
    build("llama", seed=4).save_pretrained(src)
    b = KwkDecoder(src, 64, cache_dir=cache)
    assert len(packs(cache)) == 1 and packs(cache) != before
    assert not torch.equal(
        a.generate(PROMPT, max_new_tokens=9), b.generate(PROMPT, max_new_tokens=9)
    )


def test_the_folder_stays_under_its_cap_least_recently_used_first(tmp_path, monkeypatch):
    for i in range(4):
        (tmp_path / f"{i}.kwk").write_bytes(bytes(1000))
        os.utime(tmp_path / f"{i}.kwk", (100 + i, 100 + i))
    (tmp_path / "other.txt").write_bytes(bytes(9000))
    monkeypatch.setenv("KWKER_PACK_CACHE_GB", "2.5e-6")
    pack_cache.trim(tmp_path, keep=tmp_path / "0.kwk")
    assert [f.name for f in packs(tmp_path)] == ["0.kwk", "3.kwk"]
    assert (tmp_path / "other.txt").exists()


def test_using_a_pack_makes_it_recent(tmp_path):
    model = shared_model("llama")
    KwkDecoder(model, 64, cache_dir=tmp_path)
    file = packs(tmp_path)[0]
    os.utime(file, (1, 1))
    KwkDecoder(model, 64, cache_dir=tmp_path)
    assert file.stat().st_mtime > time.time() - 100


def test_what_is_larger_than_the_cap_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("KWKER_PACK_CACHE_GB", "0")
    KwkDecoder(shared_model("llama"), 64, cache_dir=tmp_path)
    assert packs(tmp_path) == []
    monkeypatch.setenv("KWKER_PACK_CACHE_GB", "lots")
    with pytest.raises(ValueError, match="lots"):
        KwkDecoder(shared_model("llama"), 64, cache_dir=tmp_path)


def test_true_means_the_users_cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    KwkDecoder(shared_model("llama"), 64, cache_dir=True)
    assert len(packs(tmp_path / ".cache/kwker/packs")) == 1

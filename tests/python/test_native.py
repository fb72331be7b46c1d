# SPDX-License-Identifier: Apache-2.0
"""The C extension itself: arguments are checked before they reach the engine, errors are typed,
sequences are guarded, signals end a wait."""

import array
import ast
import json
import os
import pathlib
import signal
import sys
import threading
import time

import numpy as np
import pytest
import torch

import kwker
from kwker import _kwker
from kwker.torch_model import config_text, open_model, tensors
from models import shared_model


@pytest.fixture(scope="module")
def model():
    return open_model(shared_model("llama"))


def run(model, seq, tokens, keep=1, **kwargs):
    n = len(tokens)
    start = seq.length
    logits = np.empty((min(keep, n), 99), np.float32) if keep else None
    model.forward(
        [seq],
        array.array("i", [n]),
        array.array("i", tokens),
        array.array("i", range(start, start + n)),
        None,
        keep,
        logits,
        **kwargs,
    )
    return logits


def test_every_error_code_has_an_exception():
    for name, cls in _kwker.errors.items():
        assert getattr(kwker.errors, name) is cls and issubclass(cls, kwker.Error)
        assert cls.name == name and cls.code < 0 and cls.__module__ == "kwker.errors"
    assert issubclass(kwker.errors.EINVAL, ValueError)
    assert issubclass(kwker.errors.ENOENT, FileNotFoundError)
    assert issubclass(kwker.errors.EUNSUPPORTED, NotImplementedError)
    assert issubclass(kwker.errors.ETIMEOUT, TimeoutError)
    e = kwker.errors.ENOENT("no such thing")
    assert str(e) == "no such thing" and e.code == -4


def test_a_model_says_what_it_is(model):
    info = model.describe()
    assert info["model_type"] == "llama" and info["vocab"] == 99 and info["n_layers"] == 2
    assert info["precision"] == "float32" and info["rounded"] is None and len(info["id"]) == 16
    assert info["eos"] == [2] and info["bos"] == 1 and info["pad"] == 0
    assert kwker.__version__ == _kwker.version


def test_a_forward_appends_slots_and_gives_logits(model):
    seq = model.seq()
    whole = run(model, seq, [1, 5, 7, 9], keep=4)
    assert seq.length == 4
    seq.truncate(1)
    assert np.array_equal(run(model, seq, [5, 7, 9], keep=3), whole[1:])
    other = seq.fork()
    assert np.array_equal(run(model, seq, [3]), run(model, other, [3]))
    before = model.counters()["rows"]
    run(model, seq, [3, 4], keep=0)
    assert model.counters()["rows"] == before + 2


def test_long_prompts_are_cut_without_changing_a_bit(model):
    tokens = [(7 * i) % 99 for i in range(400)]
    whole, pieces = model.seq(), model.seq()
    a = run(model, whole, tokens, keep=400)
    for i in range(0, 400, 37):
        b = run(model, pieces, tokens[i : i + 37], keep=400)
        assert np.array_equal(b, a[i : i + 37])


@pytest.mark.parametrize(
    "change, error",
    [
        (dict(counts=array.array("i", [2])), ValueError),
        (dict(counts=array.array("i", [0])), ValueError),
        (dict(counts=array.array("i", [-1, 5])), ValueError),
        (dict(counts=array.array("q", [4])), TypeError),
        (dict(tokens=array.array("i", [1, 2])), ValueError),
        (dict(tokens=np.zeros(4, np.int64)), TypeError),
        (dict(tokens=np.zeros(8, np.int32)[::2]), (ValueError, BufferError)),
        (dict(tokens=array.array("i", [1, 2, 3, 99])), ValueError),
        (dict(tokens=array.array("i", [1, 2, 3, -7])), ValueError),
        (dict(positions=array.array("i", [0, 1, 2, -1])), ValueError),
        (dict(tokens=None), TypeError),
        (dict(valid=b"\1\1"), ValueError),
        (dict(logits=np.empty(98, np.float32)), ValueError),
        (dict(logits=np.empty(99, np.float64)), TypeError),
        (dict(logits=None), TypeError),
        (dict(logits=bytes(4 * 99)), (TypeError, BufferError)),
        (dict(keep=-1), ValueError),
        (dict(seqs=[None]), TypeError),
        (dict(seqs=(1,)), TypeError),
        (dict(embeddings=np.empty(7, np.float32)), ValueError),
    ],
    ids=str,
)
def test_wrong_arrays_are_refused_and_change_nothing(model, change, error):
    seq = model.seq()
    run(model, seq, [1])
    args = (
        dict(
            seqs=[seq],
            counts=array.array("i", [4]),
            tokens=array.array("i", [1, 2, 3, 4]),
            positions=array.array("i", [1, 2, 3, 4]),
            valid=None,
            keep=1,
            logits=np.empty(99, np.float32),
            embeddings=None,
        )
        | change
    )
    with pytest.raises(error):
        model.forward(**args)
    assert seq.length == 1
    run(model, seq, [4])


def test_a_sequence_used_twice_or_of_another_model_is_refused(model):
    seq, two = model.seq(), array.array("i", [1, 1])
    with pytest.raises(kwker.errors.EBUSY):
        model.forward([seq, seq], two, two, two)
    other = open_model(shared_model("llama-tied"))
    with pytest.raises(ValueError, match="another model"):
        model.forward([other.seq()], array.array("i", [1]), two[:1], two[:1])
    assert seq.length == 0


def test_a_full_context_is_refused_and_undone():
    model = open_model(shared_model("llama"), max_ctx=40)
    seq = model.seq()
    run(model, seq, [1] * 30)
    with pytest.raises(kwker.errors.EFULL):
        run(model, seq, [1] * 11)
    assert seq.length == 30
    run(model, seq, [1] * 10)


def test_keys_and_values_go_out_and_in(model):
    seq, copy = model.seq(), model.seq()
    run(model, seq, [1, 5, 7])
    copy.append_holes(3)
    for layer in range(2):
        k, v = np.empty((2, 3, 10), np.float32), np.empty((2, 3, 10), np.float32)
        seq.export_kv(layer, k, v)
        copy.import_kv(layer, 0, 3, k, v)
    copy.set_valid(0, b"\1\1\1")
    assert np.array_equal(run(model, seq, [9]), run(model, copy, [9]))
    for bad in (
        lambda: seq.export_kv(2, np.empty(80, np.float32), np.empty(80, np.float32)),
        lambda: seq.export_kv(0, np.empty(79, np.float32), np.empty(80, np.float32)),
        lambda: copy.import_kv(0, 2, 9, np.empty(180, np.float32), np.empty(180, np.float32)),
        lambda: copy.set_valid(2, b"\1\1\1\1"),
        lambda: seq.truncate(99),
        lambda: seq.truncate(-1),
        lambda: seq.append_holes(-1),
    ):
        with pytest.raises(ValueError):
            bad()


def choose(sampling, logits, history=(), n_new=0, noise=None):
    out = np.empty(1, np.int32)
    _kwker.choose(
        sampling, np.array(logits, np.float32), [np.array(history, np.int32)], n_new, out, noise
    )
    return int(out[0])


def test_choose_follows_its_settings():
    logits = [0.0, 3.0, 2.0, -1.0]
    greedy = _kwker.Sampling(vocab=4, repetition_penalty=2.0, min_new_tokens=2, eos=[2])
    assert choose(greedy, logits) == 1
    assert choose(greedy, logits, [1], n_new=2) == 2, "3 / 2 is less than 2"
    assert choose(greedy, logits, [1], n_new=1) == 1, "2 is an end token and too early"
    assert choose(_kwker.Sampling(vocab=4, bias=[(3, 9.0), (1, -float("inf"))]), logits) == 3
    drawn = _kwker.Sampling(vocab=4, do_sample=True, seed=5)
    noise = np.array([1, 100, 1, 1], np.float32)
    p = torch.tensor(logits).softmax(-1)
    assert choose(drawn, logits, noise=noise) == int((p / torch.from_numpy(noise)).argmax())
    assert choose(drawn, logits) == choose(drawn, logits)


@pytest.mark.parametrize(
    "kwargs",
    [
        dict(vocab=0),
        dict(eos=["x"]),
        dict(eos=[2**40]),
        dict(bias=[(4, 1.0)]),
        dict(bias=[(1,)]),
        dict(bias=[(1, float("nan"))]),
        dict(do_sample=True, temperature=-1.0),
        dict(min_new_tokens=-1),
    ],
    ids=str,
)
def test_bad_settings_are_refused(kwargs):
    with pytest.raises((ValueError, TypeError)):
        _kwker.Sampling(**({"vocab": 4} | kwargs))


def test_choose_checks_its_arrays_and_refuses_nan():
    s = _kwker.Sampling(vocab=4)
    for bad in (
        lambda: choose(s, [1, 2, 3]),
        lambda: choose(_kwker.Sampling(vocab=4, repetition_penalty=2.0), [1, 2, 3, 4], [9]),
        lambda: choose(s, [float("nan")] * 4),
    ):
        with pytest.raises(ValueError):
            bad()


def test_tensors_are_checked_before_they_are_read():
    m = shared_model("llama")
    config, good = config_text(m), tensors(m)
    name, dtype, shape, data = good[0]
    for bad, error in (
        ((name, "F64", shape, data), NotImplementedError),
        ((name, dtype, (99, 39), data), ValueError),
        ((name, dtype, (99, -40), data), ValueError),
        ((name, dtype, (2**62, 2**62), data), ValueError),
        ((name, dtype, (1, 1, 99, 40), data), NotImplementedError),
        ((name, dtype), TypeError),
        ((name, dtype, shape, 7), TypeError),
    ):
        with pytest.raises(error):
            _kwker.Model.open_memory(config, [bad, *good[1:]])
    with pytest.raises(kwker.Error):
        _kwker.Model.open_memory(config, good[1:])
    with pytest.raises(kwker.Error):
        _kwker.Model.open_memory("{}", good)


def test_config_check_names_the_reason():
    assert _kwker.config_check(config_text(shared_model("llama"))) is None
    config = json.loads(config_text(shared_model("llama")))
    assert "mamba" in _kwker.config_check(json.dumps(config | {"model_type": "mamba"}))
    assert _kwker.config_check("not json") is not None


def test_progress_counts_up_and_its_exception_ends_the_load():
    m = shared_model("llama")
    seen = []
    open_model(m, progress=lambda done, total: seen.append((done, total)))
    assert seen and seen == sorted(seen) and seen[-1][0] == seen[-1][1]

    def stop(done, total):
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        open_model(m, progress=stop)


def test_importance_is_asked_by_hugging_face_names_and_checked():
    m = shared_model("llama")
    asked = {}

    def weigh(name, cols):
        asked[name] = cols
        return np.ones(cols, np.float32)

    open_model(m, precision="int4", importance=weigh)
    shapes = {n: p.shape[1] for n, p in m.named_parameters() if p.ndim == 2}
    assert asked and all(shapes[name] == cols for name, cols in asked.items())
    assert "model.layers.1.mlp.down_proj.weight" in asked
    with pytest.raises(ValueError):
        open_model(m, precision="int4", importance=lambda name, cols: np.ones(cols + 1, np.float32))


def test_saved_packs_open_again_with_the_same_bits(model, tmp_path):
    model.save(tmp_path / "m.kwk")
    again = _kwker.Model.open(tmp_path / "m.kwk")
    assert again.describe()["id"] == model.describe()["id"]
    assert np.array_equal(run(again, again.seq(), [1, 2, 3]), run(model, model.seq(), [1, 2, 3]))
    with pytest.raises(ValueError):
        _kwker.Model.open(tmp_path / "m.kwk", precision="int4")
    sealed = open_model(shared_model("llama"), sealed=True)
    other = _kwker.Model.open_fd(sealed.fd())
    assert np.array_equal(run(other, other.seq(), [1, 2, 3]), run(model, model.seq(), [1, 2, 3]))
    with pytest.raises(NotImplementedError):
        model.fd()


def test_hash_covers_every_byte_or_a_sample():
    data = bytearray(os.urandom(10000))
    whole, sample = _kwker.hash_buffer(data, 1), _kwker.hash_buffers([data, b"ab"], 1, 16)
    data[5000] ^= 1
    assert _kwker.hash_buffer(data, 1) != whole
    data[0] ^= 1
    assert _kwker.hash_buffers([data, b"ab"], 1, 16) != sample
    data[0] ^= 1
    assert _kwker.hash_buffers([data, b"ac"], 1, 16) != sample
    assert _kwker.hash_buffer(b"", 1) == _kwker.hash_buffer(b"", 1)


def test_ctrl_c_ends_a_long_prompt_within_a_second(model):
    seq = model.seq()
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        for _ in range(100000):
            run(model, seq, [1] * 400, keep=0)
            seq.truncate(0)
    assert time.monotonic() - began < 5
    assert run(model, model.seq(), [1]).shape == (1, 99)


def test_the_type_stubs_name_what_there_is():
    stubs = ast.parse((pathlib.Path(kwker.__file__).parent / "_kwker.pyi").read_text())
    named = {}
    for node in stubs.body:
        if isinstance(node, ast.ClassDef):
            named[node.name] = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
        elif isinstance(node, ast.FunctionDef):
            named[node.name] = None
        elif isinstance(node, ast.AnnAssign):
            named[node.target.id] = None
    assert named.keys() == {n for n in dir(_kwker) if not n.startswith("__")}
    for name, members in named.items():
        if members is not None and name != "Error":
            there = {m for m in vars(getattr(_kwker, name)) if not m.startswith("__")}
            assert members - {"__new__"} == there, name


def test_no_call_keeps_or_loses_a_reference(model):
    seq = model.seq()
    one, out, logits = array.array("i", [1]), array.array("i", [0]), np.empty(99, np.float32)
    sampling = _kwker.Sampling(vocab=99, eos=[1], bias=[(2, 1.0)])
    tensor = tensors(shared_model("llama"))[0]
    args = [seq, one, out, logits, sampling, tensor, *tensor]

    def calls():
        model.forward([seq], one, one, one, None, 1, logits)
        seq.truncate(0)
        _kwker.choose(sampling, logits, [one], 0, out)
        _kwker.hash_buffers([one, logits], 0, 2)
        for bad in (
            lambda: model.forward([seq], one, one, one, one, 1, logits),
            lambda: model.forward([seq, seq], one, one, one),
            lambda: _kwker.choose(sampling, one, [one], 0, out),
            lambda: _kwker.Model.open_memory("{}", [tensor, tensor]),
        ):
            with pytest.raises((ValueError, TypeError, kwker.Error)):
                bad()

    calls()
    before = [sys.getrefcount(a) for a in args]
    for _ in range(20):
        calls()
    assert [sys.getrefcount(a) for a in args] == before

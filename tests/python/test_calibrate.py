# SPDX-License-Identifier: Apache-2.0
"""Calibration: the importance of a column is the mean square of the matrix's real inputs."""

import numpy as np
import pytest
import torch

from kwker.calibrate import PRIOR_ROWS, Importance, texts_of
from kwker.decode import KwkDecoder
from kwker.torch_model import open_model
from models import shared_model

TEXTS = [[(5 * i + j) % 99 for i in range(30)] for j in (1, 2, 3)]


def test_importance_is_the_mean_square_of_every_matrixs_inputs_mixed_with_their_mean():
    model = shared_model("qwen2")
    sums, rows = {}, 0

    def record(name):
        def hook(module, args):
            x = args[0][0, 1:].double()  # the first position is left out
            sums[name] = sums.get(name, 0) + x.pow(2).sum(0)

        return hook

    hooks = [
        m.register_forward_pre_hook(record(n + ".weight"))
        for n, m in model.named_modules()
        if isinstance(m, torch.nn.Linear)
    ]
    with torch.no_grad():
        for t in TEXTS:
            model(torch.tensor([t]))
            rows += len(t) - 1
    for h in hooks:
        h.remove()
    ours = Importance(open_model(model), TEXTS)
    assert "lm_head.weight" in sums and len(sums) == 15
    for name, total in sums.items():
        expected = (
            ((total + PRIOR_ROWS * total.mean() / rows) / (rows + PRIOR_ROWS)).float().numpy()
        )
        got = np.asarray(ours(name, len(expected)))
        assert np.allclose(got, expected, rtol=1e-4, atol=1e-6 * expected.max()), name
    assert ours("lm_head.weight", 7) is None and ours("model.norm.weight", 40) is None


@pytest.mark.parametrize(
    "calib",
    [
        torch.tensor(TEXTS),
        torch.tensor(TEXTS[0]),
        np.array(TEXTS),
        TEXTS,
        TEXTS[0],
        [torch.tensor(t) for t in TEXTS],
    ],
    ids=["tensor", "one-tensor", "array", "lists", "one-list", "list-of-tensors"],
)
def test_texts_come_in_many_shapes(calib):
    pieces = texts_of(calib, 20)
    assert {len(p) for p in pieces} == {20, 10} and all(p.dtype == np.int32 for p in pieces)
    assert pieces[0].tolist() == TEXTS[0][:20]


@pytest.mark.parametrize("precision", ["int4", "int8"])
def test_calibrated_weights_generate(precision):
    model = shared_model("llama")
    dec = KwkDecoder(model, 64, precision=precision, calib=TEXTS)
    assert dec.precision == precision
    out = dec.generate(torch.tensor([TEXTS[0][:5]]), max_new_tokens=8, eos_token_id=None)
    assert out.shape == (1, 13)


def test_ids_outside_the_vocabulary_are_refused():
    with pytest.raises(ValueError):
        KwkDecoder(shared_model("llama"), 64, precision="int8", calib=[[1, 2, 500]])

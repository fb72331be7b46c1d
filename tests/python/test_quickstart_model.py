# SPDX-License-Identifier: Apache-2.0
"""The quickstart model (SmolLM2-135M-Instruct, GGUF): its tokenizer, and an answer through kwkerd."""

import pathlib
import subprocess
import sys

import pytest
from conftest import running_kwkerd

from kwker.text import Tokenizer


def test_the_quickstart_models_own_tokenizer_and_template_work(quickstart_model):
    t = Tokenizer(quickstart_model)
    text = "The capital of France is Paris — 42 €.\n\n  Indented"
    assert t.decode(t.encode(text, False)) == text
    chat = t.chat_text([{"role": "user", "content": "Hi"}])
    assert chat.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    ids = t.chat_ids([{"role": "user", "content": "Hi"}])
    assert ids[0] == t.native.token_to_id("<|im_start|>") and t.decode(ids, False) == chat
    stream = t.stream()
    assert "".join(stream.put(i) for i in t.encode(text, False)) + stream.end() == text


@pytest.mark.parametrize("kwargs", [dict(), dict(precision="int4", calib=True)], ids=str)
def test_a_decoder_over_the_gguf_file_answers(quickstart_model, kwargs):
    from kwker.decode import KwkDecoder

    t = Tokenizer(quickstart_model)
    if kwargs.get("calib"):
        text = "The capital of France is Paris. Berlin is the capital of Germany."
        kwargs = kwargs | {"calib": [t.encode(text)]}
    dec = KwkDecoder(quickstart_model, max_cache_len=256, **kwargs)
    assert dec.precision == kwargs.get("precision", "int8") and dec.info["rounded"]
    ids = t.chat_ids([{"role": "user", "content": "What is the capital of France?"}])
    out = dec.generate([ids], max_new_tokens=40)[0, len(ids) :].tolist()
    assert "Paris" in t.decode(out) and out[-1] == dec.info["eos"][0]


def test_chat_streams_an_answer_and_prints_its_speed(quickstart_model):
    with running_kwkerd("--model", f"smollm2={quickstart_model},precision=int8") as daemon:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "kwker.chat",
                "--address",
                daemon.dir,
                "--model",
                "smollm2",
                "--source",
                quickstart_model,
                "--max-new-tokens",
                "24",
                "--prompt",
                "What is the capital of France?",
            ],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        assert "Paris" in done.stdout and "tokens/s" in done.stderr
        bad = subprocess.run(
            [
                sys.executable,
                "-m",
                "kwker.chat",
                "--address",
                daemon.dir,
                "--model",
                "nobody",
                "--source",
                quickstart_model,
                "--prompt",
                "x",
            ],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert bad.returncode == 1 and "kwker.chat:" in bad.stderr and "Traceback" not in bad.stderr
    assert pathlib.Path(quickstart_model).exists()

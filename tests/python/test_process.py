# SPDX-License-Identifier: Apache-2.0
"""The package in a process: imports nothing heavy, opens nothing, survives fork and threads."""

import os
import subprocess
import sys
import threading

import pytest


def python(code, **env):
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | env,
    )


def test_importing_kwker_and_its_client_needs_no_torch_and_opens_nothing():
    done = python("""
import os, sys, threading
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "numpy", "transformers", "tokenizers", "jinja2"):
            raise ImportError(f"{name} was imported")
sys.meta_path.insert(0, Refuse())
before = set(os.listdir("/proc/self/fd"))
import kwker, kwker.client, kwker.text, kwker.chat, kwker.cpu_backend, kwker.options, kwker.errors
assert kwker.Client and kwker.cpu_backend.decoder_available()
assert set(os.listdir("/proc/self/fd")) == before
assert threading.active_count() == 1 and len(os.listdir("/proc/self/task")) == 1
try:
    kwker.Client("/nonexistent")
except FileNotFoundError as e:
    assert isinstance(e, kwker.Error) and "/nonexistent" in str(e)
print("fine")
""")
    assert done.stdout == "fine\n", done.stderr


SETUP = """
import os, sys, threading, torch
torch.set_num_threads(1)
sys.path.insert(0, TESTS)
from models import build, PROMPT
from kwker.decode import KwkDecoder, install
dec = KwkDecoder(build("llama"), max_cache_len=128)
def tokens():
    return dec.generate(PROMPT, max_new_tokens=24, eos_token_id=None).tolist()
""".replace("TESTS", repr(os.path.dirname(os.path.abspath(__file__))))


def test_a_forked_child_goes_on_with_the_decoder():
    done = python(
        SETUP
        + """
want = tokens()
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        os._exit(0 if tokens() == want else 1)
    assert tokens() == want
    assert os.waitpid(pid, 0)[1] == 0
print("fine")
"""
    )
    assert done.stdout == "fine\n", done.stderr


def test_a_fork_while_another_thread_generates_hangs_nobody():
    done = python(
        SETUP
        + """
want, stop = tokens(), threading.Event()
def work():
    while not stop.is_set():
        assert tokens() == want
t = threading.Thread(target=work); t.start()
for _ in range(5):
    pid = os.fork()
    if pid == 0:
        os._exit(0 if tokens() == want else 1)
    assert os.waitpid(pid, 0)[1] == 0
stop.set(); t.join()
print("fine")
"""
    )
    assert done.stdout == "fine\n", done.stderr


@pytest.mark.parametrize(
    "env",
    [
        {"OMP_THREAD_LIMIT": "1"},
        {"OMP_NUM_THREADS": "1"},
        {"KWKER_THREADS": "2"},
        {"OMP_DYNAMIC": "true"},
        {"KWKER_ISA": "ref"},
        {"KWKER_ISA": "avx2"},
    ],
    ids=str,
)
def test_thread_settings_and_isa_levels_do_not_hang(env):
    done = python(SETUP + "print(tokens())", **env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[[1, 5, 7, 9, 33, ")


def test_the_number_of_threads_does_not_change_a_bit():
    code = SETUP + "import kwker.cpu_backend as b; b.set_threads(N); print(b.threads(), tokens())"
    outs = {python(code.replace("N)", f"{n})")).stdout for n in (1, 2)}
    assert sorted(o[0] for o in outs) == ["1", "2"] and len({o[2:] for o in outs}) == 1


def test_decoders_in_threads_do_not_disturb_each_other():
    torch = pytest.importorskip("torch")
    from kwker.decode import KwkDecoder
    from models import PROMPT, shared_model

    decs = [KwkDecoder(shared_model(n), max_cache_len=128) for n in ("llama", "qwen2")]
    want = [d.generate(PROMPT, max_new_tokens=40, eos_token_id=None) for d in decs]
    bad = []

    def work(i):
        for _ in range(4):
            if not torch.equal(
                decs[i % 2].generate(PROMPT, max_new_tokens=40, eos_token_id=None), want[i % 2]
            ):
                bad.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not bad and not any(t.is_alive() for t in threads)

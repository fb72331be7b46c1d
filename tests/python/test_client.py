# SPDX-License-Identifier: Apache-2.0
"""kwker.Client against a running kwkerd."""

import array
import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import kwker
from conftest import running_kwkerd
from kwker.client import Done, Token


@pytest.fixture
def client(stories_daemon):
    with kwker.Client(stories_daemon.dir, logits_bytes=64 * 512 * 4) as c:
        yield c


@pytest.fixture(scope="module")
def story(stories):
    return json.loads((stories / "greedy_from_bos_256.json").read_text())


def idle(client, timeout=5):
    """Wait until the daemon runs nothing."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        status = client.status()
        if status["running"] == status["queued"] == 0:
            return True
        time.sleep(0.02)
    return False


def test_status_models_and_metrics(client):
    status = client.status()
    assert status["ready"] and status["models"] == 1 and status["pid"] > 0
    (model,) = client.models()
    assert model["name"] == "stories" and model["state"] == "ready" and model["vocab"] == 512
    assert model["precision"] == "float32" and model["eos"] == [2] and model["bos"] == 1
    assert "kwker" in client.metrics()


def test_greedy_from_bos_gives_the_published_ids(client, story):
    assert [1, *client.generate_all([1], "stories", max_new_tokens=256)] == story
    assert [1, *client.generate_all(array.array("i", [1]), max_new_tokens=256)] == story


def test_events_are_tokens_and_then_one_done(client, story):
    events = list(client.generate(story[:5], max_new_tokens=7, n_logprobs=3))
    assert [type(e) for e in events] == [Token] * 7 + [Done]
    assert [e.id for e in events[:-1]] == story[5:12]
    for e in events[:-1]:
        assert len(e.top) == 3 and e.top[0][0] == e.id and e.logprob == e.top[0][1] <= 0
    done = events[-1]
    assert (done.finish_reason, done.prompt_tokens, done.new_tokens) == ("length", 5, 7)


def test_sixteen_threads_on_one_client_get_what_one_gets(client, story):
    got = [None] * 16

    def work(i):
        got[i] = client.generate_all(story[: i + 1], max_new_tokens=60)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert got == [story[i + 1 : i + 61] for i in range(16)]


def test_sixteen_processes_at_once_get_the_published_ids(stories_daemon, story):
    code = (
        "import kwker, sys; print(kwker.Client(sys.argv[1]).generate_all([1], max_new_tokens=256))"
    )
    procs = [
        subprocess.Popen([sys.executable, "-c", code, stories_daemon.dir], stdout=subprocess.PIPE)
        for _ in range(16)
    ]
    for p in procs:
        out, _ = p.communicate(timeout=60)
        assert json.loads(out) == story[1:]


def test_closing_the_iterator_cancels(client):
    events = client.generate([1], max_new_tokens=500, ignore_eos=True)
    for _ in range(3):
        next(events)
    events.close()
    assert idle(client)
    forgotten = client.generate([1], max_new_tokens=500, ignore_eos=True)
    del forgotten
    assert idle(client)


def test_seeds_repeat_and_the_daemon_draws_one_otherwise(client):
    def draw(**kw):
        return client.generate_all([1], max_new_tokens=30, do_sample=True, temperature=1.2, **kw)

    assert draw(seed=4) == draw(seed=4) != draw(seed=5)
    assert draw() != draw()


def test_end_tokens_bias_and_limits_are_obeyed(client, story):
    assert (
        client.generate_all([1], max_new_tokens=50, eos=story[10])
        == story[1 : story.index(story[10], 1) + 1]
    )
    assert client.generate_all([1], max_new_tokens=4, bias={77: 1000.0}) == [77] * 4
    events = list(client.generate([1], ignore_eos=True))
    assert events[-1].finish_reason == "length" and events[-1].new_tokens == 511


@pytest.mark.parametrize(
    "ids, kwargs, error",
    [
        ([], {}, ValueError),
        ([512], {}, ValueError),
        ([-1], {}, ValueError),
        ([2**40], {}, ValueError),
        (["a"], {}, TypeError),
        ([1] * 600, {}, kwker.Error),
        ([1], dict(model="nobody"), kwker.errors.ENOENT),
        ([1], dict(max_new_tokens=-5), ValueError),
        ([1], dict(max_new_tokens=2**40), kwker.errors.EINVAL),
        ([1], dict(do_sample=True, top_k=2**31), kwker.errors.EINVAL),
        ([1], dict(do_sample=True, seed=-1), kwker.errors.EINVAL),
        ([1], dict(do_sample=True, seed=2**64), kwker.errors.EINVAL),
        ([1], dict(do_sample=True, temperature=0.0), ValueError),
        ([1], dict(do_sample=True, top_k=-1), ValueError),
        ([1], dict(do_sample=True, top_p=0.0), ValueError),
        ([1], dict(n_logprobs=99), ValueError),
        ([1], dict(bias={1: float("nan")}), ValueError),
        ([1], dict(bias={9999: 1.0}), ValueError),
        ([1], dict(eos="x"), (TypeError, ValueError)),
        ([1], dict(bogus=1), TypeError),
    ],
    ids=str,
)
def test_bad_requests_are_typed_errors_and_the_next_is_served(client, ids, kwargs, error):
    with pytest.raises(error):
        list(client.generate(ids, **kwargs))
    assert len(client.generate_all([1], max_new_tokens=2)) == 2


def test_async_for_serves_many_streams_on_one_loop(client, story):
    async def one(i):
        return [
            e.id
            async for e in client.agenerate(story[: i + 1], max_new_tokens=20)
            if isinstance(e, Token)
        ]

    async def all_of_them():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                await asyncio.sleep(0)
                ticks += 1

        ticker = asyncio.create_task(tick())
        got = await asyncio.gather(*(one(i) for i in range(8)))
        ticker.cancel()
        return got, ticks

    for _ in range(2):  # each run has an event loop of its own
        got, ticks = asyncio.run(asyncio.wait_for(all_of_them(), 60))
        assert got == [story[i + 1 : i + 21] for i in range(8)]
        assert ticks > 8, "the loop was blocked"


def test_leaving_an_async_for_cancels(client):
    async def leave():
        events = client.agenerate([1], max_new_tokens=500, ignore_eos=True)
        async for _ in events:
            break
        await events.aclose()

    asyncio.run(leave())
    assert idle(client)


def test_sequences_give_logits_and_can_be_forked_and_cut(client):
    with client.sequence("stories") as seq:
        whole = client.forward([(seq, [1, 403, 407, 261])], all_logits=True)[0]
        assert whole.shape == (4, 512) and seq.length == 4 and seq.vocab == 512
        whole = np.array(whole)
        other = seq.fork()
        a, b = client.forward([(seq, [378]), (other, [5, 6])])
        assert np.asarray(a).argmax() == 432 and len(b) == 512
        seq.truncate(2)
        again = seq.forward([407, 261], all_logits=True)
        assert np.array_equal(np.asarray(again), whole[2:])
        again = client.forward([(other, [9])], positions=[[40]], valid=[[1]])
        assert other.length == 7 and len(again[0]) == 512
        with pytest.raises(ValueError):
            seq.truncate(99)
        with pytest.raises(kwker.Error):
            client.forward([(seq, [1] * 600)])
        assert seq.length == 4


def test_models_are_loaded_pinned_and_unloaded(client, stories, tmp_path):
    from kwker import _kwker

    _kwker.Model.open(stories, precision="int8").save(tmp_path / "s.kwk")
    seen = []
    client.load("small", tmp_path / "s.kwk", max_ctx=100, progress=seen.append)
    names = {m["name"]: m for m in client.models()}
    assert names["small"]["precision"] == "int8" and names["small"]["max_ctx"] == 100
    assert len(client.generate_all([1], "small", max_new_tokens=9)) == 9
    client.load("small", tmp_path / "s.kwk", max_ctx=100)  # the same again: nothing to do
    client.pin("small")
    assert next(m for m in client.models() if m["name"] == "small")["pin"]
    client.pin("small", False)
    client.unload("small")
    assert [m["name"] for m in client.models()] == ["stories"]
    for bad in (
        lambda: client.unload("small"),
        lambda: client.pin("small"),
        lambda: client.load("x", "/etc/passwd"),
        lambda: client.load("x", tmp_path / "no.kwk"),
        lambda: client.load("x", fd=os.open(os.devnull, os.O_RDONLY)),
    ):
        with pytest.raises((kwker.Error, OSError)):
            bad()


def test_a_closed_client_says_so(stories_daemon):
    c = kwker.Client(stories_daemon.dir)
    events = c.generate([1], max_new_tokens=400, ignore_eos=True)
    next(events)
    c.close()
    c.close()
    for use in (c.status, lambda: next(events), lambda: c.generate([1]), c.sequence):
        with pytest.raises(kwker.errors.ECLOSED):
            use()


def test_close_from_another_thread_ends_a_wait(stories_daemon):
    c = kwker.Client(stories_daemon.dir)
    raised = []

    def work():
        try:
            while True:
                list(c.generate([1], ignore_eos=True))
        except kwker.errors.ECLOSED as e:
            raised.append(e)

    t = threading.Thread(target=work)
    t.start()
    time.sleep(0.2)
    c.close()
    t.join(5)
    assert not t.is_alive() and raised


def test_a_forked_child_gets_an_error_and_the_parent_goes_on(client):
    pid = os.fork()
    if pid == 0:
        try:
            client.status()
        except kwker.errors.EFORKED:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    assert client.status()["ready"]


def test_a_killed_daemon_is_noticed_within_200_ms(stories):
    with running_kwkerd("--model", f"stories={stories},precision=float32") as daemon:
        c = kwker.Client(daemon.dir)
        events = c.generate([1], ignore_eos=True)
        next(events)
        killed = []

        def kill():
            daemon.process.kill()
            killed.append(time.monotonic())

        threading.Timer(0.05, kill).start()
        with pytest.raises(kwker.errors.ECLOSED):
            while True:  # each ends after 511 tokens: start another until the daemon is gone
                for _ in events:
                    pass
                events = c.generate([1], ignore_eos=True)
        assert time.monotonic() - killed[0] < 0.5
        with pytest.raises(kwker.Error):
            kwker.Client(daemon.dir)


def test_ctrl_c_ends_a_wait(stories_daemon):
    code = (
        "import kwker, sys\nc = kwker.Client(sys.argv[1])\nprint('go', flush=True)\n"
        "while True: list(c.generate([1], ignore_eos=True))"
    )
    p = subprocess.Popen(
        [sys.executable, "-c", code, stories_daemon.dir],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert p.stdout.readline() == b"go\n"
    time.sleep(0.3)
    p.send_signal(signal.SIGINT)
    _, err = p.communicate(timeout=5)
    assert b"KeyboardInterrupt" in err


def test_an_address_from_the_environment_is_used(stories_daemon, monkeypatch):
    monkeypatch.setenv("KWKER_DAEMON", stories_daemon.dir)
    with kwker.Client.connect() as c:
        assert c.status()["ready"]

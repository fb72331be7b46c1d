# SPDX-License-Identifier: Apache-2.0
"""Client: ask kwkerd. Needs neither torch nor numpy; token ids are any sequence of ints or an int32
buffer.
"""

from __future__ import annotations

import array
import asyncio
import dataclasses
import json
import os
import threading

from kwker import _kwker, errors


@dataclasses.dataclass
class Token:
    """One generated token. text: what became complete with it (text=True), else None."""

    id: int
    logprob: float
    text: str | None = None
    top: list[tuple[int, float]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Text:
    """Text without a token of its own: what was held back until the end."""

    text: str


@dataclasses.dataclass
class Done:
    """The last event. finish_reason: "eos", "length", "cancel", "slow_client" or "shutdown"."""

    finish_reason: str
    prompt_tokens: int
    new_tokens: int
    cached_tokens: int
    queue_us: int
    prefill_us: int
    decode_us: int


def _event(raw):
    kind = raw[0]
    if kind == "token":
        return Token(*raw[1:])
    return Text(raw[1]) if kind == "text" else Done(**raw[1])


def int32(ids):
    """ids as an int32 buffer: given as one, or made from any sequence of ints."""
    if hasattr(ids, "detach"):
        ids = ids.detach().cpu().reshape(-1).tolist()
    elif hasattr(ids, "dtype"):
        ids = ids.reshape(-1).tolist()
    if isinstance(ids, array.array) and ids.typecode == "i":
        return ids
    try:
        return array.array("i", ids)
    except OverflowError:
        bad = next(i for i in ids if not -(1 << 31) <= i < 1 << 31)
        raise errors.EINVAL(f"token id {bad} is out of range") from None


class Sequence:
    """A sequence kept in the daemon: tokens in, logits out (:meth:`Client.forward`)."""

    def __init__(self, client: Client, native):
        self._client = client
        self._native = native

    @property
    def length(self) -> int:
        """Slots in use."""
        return self._native.length

    @property
    def vocab(self) -> int:
        """Size of one row of logits."""
        return self._native.vocab

    def fork(self) -> Sequence:
        """A copy that goes on by itself."""
        return Sequence(self._client, self._native.fork())

    def truncate(self, length: int) -> None:
        """Drop slots from `length` on."""
        self._native.truncate(length)

    def forward(self, tokens, **kwargs):
        """:meth:`Client.forward` for this sequence alone."""
        return self._client.forward([(self, tokens)], **kwargs)[0]

    def close(self) -> None:
        """Free the sequence's memory in the daemon now."""
        self._native = None

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


class Client:
    """A session with kwkerd, for any number of threads.

    address: the daemon's runtime directory; None: $KWKER_DAEMON, else $XDG_RUNTIME_DIR/kwker if a
        daemon is there, else /run/kwker
    timeout: seconds that a call may take
    logits_bytes: shared memory for rows of logits; forward() needs some
    """

    def __init__(
        self, address=None, timeout: float = 30.0, name: str | None = None, logits_bytes: int = 0
    ):
        self._options = dict(
            timeout_ms=max(1, int(timeout * 1000)), name=name, logits_bytes=logits_bytes
        )
        self._address = address
        self._native = _kwker.Client(address, **self._options)
        self._loops = {}  # event loop → _LoopSession
        self._lock = threading.Lock()

    @classmethod
    def connect(cls, address=None, **kwargs) -> Client:
        """The same as Client(address, …)."""
        return cls(address, **kwargs)

    def close(self) -> None:
        """End the session; what runs is cancelled."""
        self._native.close()
        for session in list(self._loops.values()):
            session.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    # ---- questions and models ----

    def status(self) -> dict:
        return json.loads(self._native.query("status"))

    def models(self) -> list[dict]:
        return json.loads(self._native.query("models"))["models"]

    def metrics(self) -> str:
        """Metrics in Prometheus' text format."""
        return json.loads(self._native.query("metrics"))["text"]

    def load(
        self,
        name: str,
        path=None,
        *,
        fd: int | None = None,
        precision: str | None = None,
        mix_bits: int = 0,
        max_ctx: int = 0,
        pin: bool = False,
        timeout: float = 600.0,
        progress=None,
    ) -> None:
        """Load a model and wait until it is ready.

        path: a file or directory under the daemon's model directories; any other packed file
            (.kwk) is opened here and handed over, as is fd, a descriptor of one
        mix_bits: int4 only, 6 or 8; 0: 6 from a billion parameters on, 8 below
        progress: called with a fraction from 0 to 1
        """
        opened = None
        if path is not None and fd is None and os.fspath(path).endswith(".kwk"):
            opened = fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            path = None
        try:
            self._native.load(
                name,
                path,
                -1 if fd is None else fd,
                precision,
                mix_bits,
                max_ctx,
                pin,
                max(1, int(timeout * 1000)),
                progress,
            )
        finally:
            if opened is not None:
                os.close(opened)

    def unload(self, name: str) -> None:
        self._native.unload(name)

    def pin(self, name: str, pin: bool = True) -> None:
        """A pinned model stays in memory."""
        self._native.pin(name, pin)

    # ---- generate ----

    @staticmethod
    def _request(ids, model, options) -> tuple:
        if options.get("eos") is not None:
            eos = options["eos"]
            options["eos"] = [eos] if isinstance(eos, int) else list(eos)
        if options.get("bias") is not None:
            options["bias"] = list(dict(options["bias"]).items())
        if options.get("max_new_tokens") is None:
            options.pop("max_new_tokens", None)
        options = {k: v for k, v in options.items() if v is not None}
        for name in ("max_new_tokens", "top_k", "min_new_tokens", "n_logprobs", "seed"):
            value = options.get(name, 0)
            lowest, bits = (0, 64) if name == "seed" else (-(1 << 31), 31)
            if isinstance(value, int) and not lowest <= value < 1 << bits:
                raise errors.EINVAL(f"{name}: {value} is not in {lowest}..{(1 << bits) - 1}")
        return (int32(ids), model), options

    def generate(
        self,
        ids,
        model: str | None = None,
        *,
        max_new_tokens: int | None = None,
        text: bool = False,
        do_sample: bool = False,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        min_new_tokens: int = 0,
        seed: int | None = None,
        n_logprobs: int = 0,
        ignore_eos: bool = False,
        eos=None,
        bias=None,
        tenant: str | None = None,
    ):
        """Events of one generation: :class:`Token`, :class:`Text` and at last :class:`Done`.

        ids: the prompt; model: None is the daemon's only or default one
        max_new_tokens: None: up to the end of the context
        eos: an id or ids (None: the model's); bias: {id: added logit}
        Closing the iterator, or leaving the loop, cancels the generation.
        """
        options = {k: v for k, v in locals().items() if k not in ("self", "ids", "model")}
        args, options = self._request(ids, model, options)
        return self._events(self._native.generate(*args, **options))

    @staticmethod
    def _events(stream):
        try:
            while True:
                event = _event(stream.next())
                yield event
                if isinstance(event, Done):
                    return
        finally:
            stream.close()

    def generate_all(self, ids, model: str | None = None, **options) -> list[int]:
        """The new tokens of one generation, when it is over."""
        return [e.id for e in self.generate(ids, model, **options) if isinstance(e, Token)]

    async def agenerate(self, ids, model: str | None = None, **options):
        """generate() for asyncio: `async for event in client.agenerate(…)`. Any number at once on
        one event loop; nothing blocks it."""
        session = self._session(asyncio.get_running_loop())
        args, options = self._request(ids, model, options)
        stream = session.native.generate(*args, **options)
        woken = session.add()
        try:
            while True:
                raw = stream.next(0)
                if raw is None:
                    await woken.wait()
                    woken.clear()
                    continue
                event = _event(raw)
                yield event
                if isinstance(event, Done):
                    return
        finally:
            session.remove(woken)
            stream.close()

    def _session(self, loop) -> _LoopSession:
        with self._lock:
            for old in [k for k in self._loops if k.is_closed()]:
                self._loops.pop(old).close()
            if loop not in self._loops:
                native = _kwker.Client(self._address, event_loop=True, **self._options)
                self._loops[loop] = _LoopSession(loop, native)
            return self._loops[loop]

    # ---- sequences ----

    def sequence(self, model: str | None = None) -> Sequence:
        """A new empty sequence of a model."""
        return Sequence(self, self._native.seq_open(model))

    def forward(self, items, *, positions=None, valid=None, all_logits: bool = False) -> list:
        """Append tokens to sequences, computed together, and get their logits.

        items: [(sequence, tokens), …]; positions, valid: lists of the same lengths, or None
        Gives for each item the logits after its last token (all_logits: after each), float32
        memoryviews of (vocab) or (tokens, vocab); numpy.asarray() takes them as they are.
        """
        seqs = [s._native for s, _ in items]
        tokens = [int32(t) for _, t in items]
        counts = array.array("i", [len(t) for t in tokens])
        flat = array.array("i", b"".join(bytes(t) for t in tokens))

        def joined(lists, kind):
            return None if lists is None else array.array(kind, [x for one in lists for x in one])

        rows = [len(t) if all_logits else 1 for t in tokens]
        vocab = seqs[0].vocab if seqs else 0
        logits = memoryview(bytearray(4 * sum(rows) * vocab)).cast("f")
        self._native.forward(
            seqs, counts, flat, joined(positions, "i"), joined(valid, "B"), all_logits, logits
        )
        out, at = [], 0
        for n in rows:
            part = logits[at * vocab : (at + n) * vocab]
            out.append(part.cast("B").cast("f", (n, vocab)) if all_logits else part)
            at += n
        return out


class _LoopSession:
    """The session that serves one event loop: a byte on its descriptor wakes every stream."""

    def __init__(self, loop, native):
        self.native = native
        self.loop = loop
        self.waiting = set()
        loop.add_reader(native.fd(), self._readable)

    def _readable(self):
        try:
            self.native.drain()
        except errors.Error:
            self._forget()  # the daemon is gone: every stream finds out by itself
        for woken in self.waiting:
            woken.set()

    def _forget(self):
        if not self.loop.is_closed() and not self.native.closed:
            self.loop.remove_reader(self.native.fd())

    def add(self) -> asyncio.Event:
        woken = asyncio.Event()
        self.waiting.add(woken)
        return woken

    def remove(self, woken) -> None:
        self.waiting.discard(woken)

    def close(self) -> None:
        self._forget()
        self.native.close()

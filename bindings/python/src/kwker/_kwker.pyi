# SPDX-License-Identifier: Apache-2.0
# Types of the C extension. Buffer: any object with the buffer protocol, C-contiguous, of the item
# type that the comment names.
from collections.abc import Callable
from os import PathLike
from typing import Any, final

Buffer = Any
Path = str | bytes | PathLike[str] | PathLike[bytes]

version: str
errors: dict[str, type[Error]]
TAP_QKV: int
TAP_O: int
TAP_MLP: int
TAP_DOWN: int
TAP_HEAD: int

class Error(Exception):
    code: int
    name: str

def isa() -> str | None: ...
def threads() -> int: ...
def set_threads(n: int, /) -> None: ...
def config_check(config_json: str, /) -> str | None: ...
def source_tokenizer(path: Path, /) -> tuple[str, str | None]: ...
def hash_buffer(buffer: Buffer, seed: int, /) -> int: ...
def hash_buffers(buffers: list[Buffer], seed: int, words: int, /) -> int: ...
def choose(
    sampling: Sampling,
    logits: Buffer,  # float32 (rows, vocab), overwritten
    histories: list[Buffer],  # int32
    n_new: int,
    out: Buffer,  # int32 (rows)
    noise: Buffer | None = None,  # float32 (rows, vocab)
    choices: Buffer | None = None,  # int32 (rows)
) -> None: ...

@final
class Model:
    @staticmethod
    def open(
        path: Path,
        /,
        *,
        precision: str | None = None,
        mix_bits: int = 0,
        max_ctx: int = 0,
        kv_bytes: int = 0,
        kv_bits: int = 0,
        sealed: bool = False,
        progress: Callable[[int, int], object] | None = None,
        importance: Callable[[str, int], Buffer | None] | None = None,
    ) -> Model: ...
    @staticmethod
    def open_fd(fd: int, /, **options: Any) -> Model: ...
    @staticmethod
    def open_memory(
        config_json: str, tensors: list[tuple[str, str, tuple[int, ...], Buffer]], /, **options: Any
    ) -> Model: ...
    def describe(self) -> dict[str, Any]: ...
    def counters(self) -> dict[str, int]: ...
    def save(self, path: Path, /) -> None: ...
    def fd(self) -> int: ...
    def token_bytes(self, id: int, /) -> bytes: ...
    def tokenizer_json(self) -> str: ...
    def seq(self) -> Seq: ...
    def forward(
        self,
        seqs: list[Seq],
        counts: Buffer,  # int32 (seqs)
        tokens: Buffer | None,  # int32 (rows)
        positions: Buffer,  # int32 (rows)
        valid: Buffer | None = None,  # uint8 (rows)
        keep: int = 0,
        logits: Buffer | None = None,  # float32 (kept rows, vocab)
        embeddings: Buffer | None = None,  # float32 (rows, hidden)
    ) -> None: ...

@final
class Seq:
    @property
    def length(self) -> int: ...
    def fork(self) -> Seq: ...
    def truncate(self, n: int, /) -> None: ...
    def append_holes(self, n: int, /) -> None: ...
    def set_valid(self, first: int, valid: Buffer, /) -> None: ...
    def export_kv(self, layer: int, k: Buffer, v: Buffer, /) -> None: ...
    def import_kv(self, layer: int, first: int, n: int, k: Buffer, v: Buffer, /) -> None: ...

@final
class Sampling:
    def __new__(
        cls,
        vocab: int,
        *,
        do_sample: bool = False,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        min_new_tokens: int = 0,
        eos: list[int] = ...,
        bias: list[tuple[int, float]] = ...,
        seed: int = 0,
    ) -> Sampling: ...

@final
class Moments:
    def __new__(cls, model: Model) -> Moments: ...
    def add(self, tokens: Buffer, /) -> None: ...
    def get(self, layer: int, site: int, /) -> bytes | None: ...

@final
class Client:
    def __new__(
        cls,
        address: Path | None = None,
        timeout_ms: int = 0,
        name: str | None = None,
        logits_bytes: int = 0,
        event_loop: bool = False,
    ) -> Client: ...
    @property
    def closed(self) -> bool: ...
    def close(self) -> None: ...
    def query(self, what: str, /) -> str: ...
    def load(
        self,
        name: str,
        path: Path | None = None,
        fd: int = -1,
        precision: str | None = None,
        mix_bits: int = 0,
        max_ctx: int = 0,
        pin: bool = False,
        timeout_ms: int = 0,
        progress: Callable[[float], object] | None = None,
    ) -> None: ...
    def unload(self, name: str, /) -> None: ...
    def pin(self, name: str, pin: bool, /) -> None: ...
    def fd(self) -> int: ...
    def drain(self) -> None: ...
    def generate(self, prompt: Buffer, model: str | None = None, **options: Any) -> Stream: ...
    def seq_open(self, model: str | None = None, /) -> ClientSeq: ...
    def forward(
        self,
        seqs: list[ClientSeq],
        counts: Buffer,
        tokens: Buffer,
        positions: Buffer | None = None,
        valid: Buffer | None = None,
        all_logits: bool = False,
        logits: Buffer | None = None,
    ) -> None: ...

@final
class Stream:
    def next(self, timeout_ms: int = -1, /) -> tuple | None: ...
    def cancel(self) -> None: ...
    def close(self) -> None: ...

@final
class ClientSeq:
    @property
    def length(self) -> int: ...
    @property
    def vocab(self) -> int: ...
    def fork(self) -> ClientSeq: ...
    def truncate(self, n: int, /) -> None: ...

# SPDX-License-Identifier: Apache-2.0
"""The rows of a report: which weight formats there are, how the engine is asked for one, and what
each rounds on the way from the original model to its logits.
"""

from __future__ import annotations

import dataclasses

WEIGHTS = ("own", "float32", "f16", "bf16", "int8", "int4")
EXTRAS = ("calib", "gptq", "mix6", "mix8")
DEFAULT = ("own", "float32", "bf16", "int8", "int4")
INTEGER = ("int8", "int4")

EXACT, ROUNDED = "=", "≈"
LEGEND = (
    "weights / activations / KV cache: = keeps every bit (activations, KV cache: float32), "
    "≈ rounds. Rows that round different things are not the same kind of offer: compare their "
    "quality before their speed."
)


@dataclasses.dataclass(frozen=True)
class Format:
    """One packed form of the model, written "int4", "int4+calib", "int4+mix8+calib+gptq", …

    "own" is the precision of the source's weights.
    """

    weights: str
    extras: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return "+".join((self.weights, *self.extras))

    @classmethod
    def parse(cls, text: str) -> Format:
        weights, *extras = text.strip().split("+")
        if weights not in WEIGHTS:
            raise ValueError(f"format {text!r}: {weights!r} is not one of {', '.join(WEIGHTS)}")
        for e in extras:
            if e not in EXTRAS:
                raise ValueError(f"format {text!r}: {e!r} is not one of {', '.join(EXTRAS)}")
        return cls(weights, tuple(e for e in EXTRAS if e in extras))

    def pack_options(self, calib=None, cache_dir=None):
        """kwker.source's options of this format. calib: token ids, used by formats that say so."""
        from kwker.source import PackOptions

        mix = {"mix6": 6, "mix8": 8}
        wanted = "calib" in self.extras
        if wanted and calib is None:
            raise ValueError(f"format {self.name} needs a text: --calib FILE")
        return PackOptions(
            precision=None if self.weights == "own" else self.weights,
            mix_bits=next((mix[e] for e in self.extras if e in mix), None),
            calib=calib if wanted else None,
            gptq="gptq" in self.extras,
            cache_dir=cache_dir,
        )


def parse_list(text: str | None, calib: bool) -> list[Format]:
    """--formats, or the default ones; a format twice is one."""
    names = text.split(",") if text else [*DEFAULT, *(["int4+calib"] if calib else [])]
    return list(dict.fromkeys(Format.parse(n) for n in names if n.strip()))


def _mark(name: str, exact: bool) -> str:
    return f"{name} {EXACT if exact else ROUNDED}"


def engine_class(info: dict) -> dict:
    """What this package's engine rounds; info: a model's facts. Float formats compute in float32;
    integer ones round the input of every matrix to 8 bits, block by block."""
    integer = info["precision"] in INTEGER
    return {
        "weights": _mark(info["precision"], info["rounded"] is None),
        "activations": _mark("int8", False) if integer else _mark("float32", True),
        "kv": _mark("float32", True) if info["kv_bits"] == 32 else _mark("f16", False),
    }


def torch_class(dtype: str) -> dict:
    """dtype: "float32", "bfloat16", … of a model that runs whole in it."""
    exact = dtype == "float32"
    name = {"bfloat16": "bf16", "float16": "f16"}.get(dtype, dtype)
    mark = _mark(name, exact)
    return {"weights": _mark(name, True), "activations": mark, "kv": mark}


def llama_class(kind: str, type_k: str = "f16", type_v: str = "f16") -> dict:
    """kind: a GGUF file's, "Q4_K_M", "BF16", …; types of the KV cache as llama-bench prints them.
    llama.cpp's products of 16-bit weights round the activations to the weights' type, those of
    quantised weights to 8 bits. Whether float weights are the original's bits is not looked at.
    """
    name = {"F32": "float32", "F16": "f16", "BF16": "bf16"}.get(kind)
    kv = type_k if type_k == type_v else f"{type_k}/{type_v}"
    return {
        "weights": _mark(name or kind, name is not None),
        "activations": _mark(name or "int8", kind == "F32"),
        "kv": _mark("float32", True) if kv == "f32" else _mark(kv, False),
    }


def class_text(c: dict | None) -> str:
    return " / ".join((c["weights"], c["activations"], c["kv"])) if c else ""

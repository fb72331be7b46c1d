# SPDX-License-Identifier: Apache-2.0
"""install(model): model.generate keeps its whole interface and runs its steps natively.

The hook is the model's class: it is replaced by a subclass with the same name whose forward runs on
a KwkCache when the call allows it, and whose decoding loops decide once per call. Everything else of
generate (processors, criteria, streamers, lookup, assistants) is Hugging Face's own code.
"""

from __future__ import annotations

import contextvars
import copyreg
import functools
import threading
import weakref

import torch

from kwker import errors, source
from kwker.hf_forward import Handle, argument_reason, native_forward
from kwker.hf_sample import native_sample
from kwker.torch_model import original_class, unsupported

# What the running generate call of this thread has decided: (model, Plan), innermost first.
_plan = contextvars.ContextVar("kwker_plan", default=None)


class Plan:
    """The decisions of one generate call."""

    def __init__(self, model, outer):
        self.model = model
        self.outer = outer
        self.reason = None  # why the model's own forward runs, once known
        self.prefilled = None  # outputs of a prefill that a loop has already run

    def note(self, reason) -> None:
        if self.reason is None:
            self.reason = reason


def _plan_of(model) -> Plan | None:
    plan = _plan.get()
    return plan if plan is not None and plan.model is model else None


class KwkMixin:
    """Marks an installed model. Copies and pickles of it are plain models of the original class."""

    def __reduce_ex__(self, protocol):
        _, _, state, *_ = super().__reduce_ex__(max(protocol, 2))
        state = {k: v for k, v in state.items() if k not in ("_kwker", "_kwker_fallback")}
        # Python's own rebuilding function: what reads the pickle needs no kwker
        return copyreg._reconstructor, (self._kwker.cls, object, None), state


def _forward(cls):
    original = cls.forward

    @functools.wraps(original)
    def forward(self, *args, **kwargs):
        handle = self.__dict__.get("_kwker")
        if handle is None or torch.compiler.is_compiling():
            return original(self, *args, **kwargs)
        plan = _plan_of(self)
        call = handle.bind(args, kwargs)
        if plan is not None:
            reason = plan.reason
        else:
            reason = handle.refresh(self) or handle.state_reason(self)
        reason = reason or argument_reason(self, handle, call)
        if reason is None:
            if plan is None:
                self.__dict__["_kwker_fallback"] = None
            return native_forward(self, handle, call)
        if plan is not None:
            plan.note(reason)
        else:
            self.__dict__["_kwker_fallback"] = reason
        return original(self, *args, **kwargs)

    return forward


def _generate(cls):
    original = cls.generate

    @functools.wraps(original)
    def generate(self, *args, **kwargs):
        handle = self.__dict__.get("_kwker")
        if handle is None:
            return original(self, *args, **kwargs)
        outer = _plan.get()
        plan = Plan(self, outer)
        plan.note(handle.refresh(self) or handle.state_reason(self))
        token = _plan.set(plan)
        try:
            return original(self, *args, **kwargs)
        finally:
            _plan.reset(token)
            while outer is not None and outer.model is not self:
                outer = outer.outer
            if outer is None:
                self.__dict__["_kwker_fallback"] = plan.reason

    return generate


def _loop(cls, name, native=None, reason=None):
    """A decoding loop of generate: decides whether this call may run natively."""
    original = getattr(cls, name)

    @functools.wraps(original)
    def loop(self, input_ids, *args, **kwargs):
        plan = _plan_of(self)
        if plan is not None and plan.reason is None:
            config = kwargs.get("generation_config")
            plan.note(reason or self._kwker.call_reason(config, kwargs))
            if plan.reason is None and native is not None and not args:
                out = native(self, plan, input_ids, **kwargs)
                if out is not None:
                    return out
        return original(self, input_ids, *args, **kwargs)

    return loop


def _prefill(cls):
    original = cls._prefill

    @functools.wraps(original)
    def _prefill(self, *args, **kwargs):
        plan = _plan_of(self)
        if plan is not None and plan.prefilled is not None:
            outputs, plan.prefilled = plan.prefilled, None
            return outputs
        return original(self, *args, **kwargs)

    return _prefill


@functools.cache
def _installed_class(cls):
    members = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "forward": _forward(cls),
        "generate": _generate(cls),
        "_sample": _loop(cls, "_sample", native=native_sample),
        "_assisted_decoding": _loop(cls, "_assisted_decoding"),
        "_beam_search": _loop(cls, "_beam_search", reason="beam search"),
        "_prefill": _prefill(cls),
    }
    return type(cls.__name__, (KwkMixin, cls), members)


def _verify(model, handle, tolerance: float = 1e-3) -> None:
    """One forward of a few tokens, native against the model's own: a last guard against a model that
    is not what its config says. Float32 only, where the two must agree closely."""
    n = min(8, handle.max_cache_len)
    ids = torch.arange(n).mul(7919).remainder(handle.runner.vocab)[None]
    with torch.no_grad():
        own = handle.original_forward(model, input_ids=ids, use_cache=False).logits
        ours = native_forward(model, handle, {"input_ids": ids, "use_cache": False}).logits
    worst = (own - ours).abs().max().item()
    scale = own.abs().max().item()
    if not worst <= tolerance * max(scale, 1e-30):
        raise errors.EUNSUPPORTED(
            f"native logits differ from the model's own by {worst:.3g} (scale {scale:.3g})"
        )


def install(
    model,
    max_cache_len,
    precision=None,
    mix_bits=None,
    calib=None,
    gptq=False,
    cache_dir=None,
    daemon=None,
    verify=True,
):
    """Run model.generate's steps natively; model._kwker_fallback says why one did not (or None).

    max_cache_len: the longest sequence, prompt and new tokens; longer calls run on the model's own
        forward. The other arguments are KwkDecoder's. Weights changed later are packed again at the
        next call.
    verify: compare one short forward with the model's own (float32 models without rounding)
    """
    reason = unsupported(model, max_cache_len)
    if reason:
        raise errors.EUNSUPPORTED(reason)
    options = source.PackOptions(precision, mix_bits, calib, gptq, cache_dir)
    cls = original_class(model)
    weights = weakref.ref(model)

    def open_runner():
        return source.open_runner(weights(), options, max_cache_len, daemon)

    handle = Handle(model, cls, max_cache_len, open_runner)
    exact = handle.runner.info["rounded"] is None and model.dtype is torch.float32
    if verify and exact and not model.training:
        _verify(model, handle)
    with _lock:
        model.__dict__["_kwker"] = handle
        model.__dict__["_kwker_fallback"] = None
        model.__class__ = _installed_class(cls)
    return model


def uninstall(model) -> None:
    """Give the model its class back. Nothing of the installation stays on it."""
    with _lock:
        handle = model.__dict__.pop("_kwker", None)
        model.__dict__.pop("_kwker_fallback", None)
        if handle is not None:
            model.__class__ = handle.cls


_lock = threading.Lock()

# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face torch model as the engine sees it: its config text, its tensors by pointer, whether
it can run, and a watch that tells when its weights have changed. Reads the model only.
"""

from __future__ import annotations

import torch

from kwker import _kwker, errors

DTYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
HEAD, EMBED = "lm_head.weight", "model.embed_tokens.weight"
MARK_WORDS = 8  # looked at in each tensor, beside its pointer and version


def original_class(model):
    """The model's class as Hugging Face made it, also while install() has another in place."""
    handle = model.__dict__.get("_kwker")
    return type(model) if handle is None else handle.cls


def config_text(model) -> str:
    """The text that save_pretrained would write to config.json."""
    return model.config.to_json_string()


def named_parameters(model) -> list[tuple[str, torch.Tensor]]:
    """Every weight once, by its Hugging Face name; a head tied to the embedding is left out."""
    params = list(model.named_parameters(remove_duplicate=False))
    if model.config.tie_word_embeddings:
        by_name = dict(params)
        if HEAD in by_name and by_name.get(EMBED) is by_name[HEAD]:
            params = [(n, p) for n, p in params if n != HEAD]
    return params


def as_bytes(t: torch.Tensor):
    """A buffer over a contiguous CPU tensor's memory, whatever its dtype."""
    return t.detach().reshape(-1).view(torch.uint8).numpy()


def tensors(model) -> list[tuple]:
    """What _kwker.Model.open_memory takes. Copies only tensors that are not contiguous."""
    out = []
    for name, p in named_parameters(model):
        t = p.detach().contiguous()
        out.append((name, DTYPES[t.dtype], tuple(t.shape), as_bytes(t)))
    return out


def _version(p) -> int:
    try:
        return p._version
    except RuntimeError:  # made in inference mode: has none
        return 0


class Watch:
    """Tells cheaply whether a model's weights or modules are still what they were.

    Pointers and version counters find every ordinary change; a few words of each tensor find writes
    through .data or numpy that change most of it. Holds the model's modules, never the model itself.
    """

    def __init__(self, model):
        self._collect(model)

    def _collect(self, model) -> None:
        modules = list(model.modules())
        self.modules = modules[1:]
        self._children = [(m._modules, dict(m._modules)) for m in modules if m._modules]
        self._slots = [(m._parameters, key) for m in modules for key in m._parameters]
        self._views = {}  # data_ptr → (length, bytes of that tensor)

    def _same_modules(self) -> bool:
        return all(now == then for now, then in self._children)

    def hooks(self):
        """Forward hooks of inner modules, as (module, hook)."""
        for m in self.modules:
            if m._forward_hooks or m._forward_pre_hooks:
                for hook in (*m._forward_hooks.values(), *m._forward_pre_hooks.values()):
                    yield m, hook

    def mark(self, model) -> tuple:
        """Equal marks: the same weights."""
        if not self._same_modules():
            self._collect(model)
        facts, views = [], {}
        for params, key in self._slots:
            p = params.get(key)
            if p is None:
                continue
            at = p.data_ptr()
            facts.append((id(p), at, _version(p), p.numel(), p.dtype))
            if p.is_contiguous() and p.device.type == "cpu":
                known = self._views.get(at)
                n = p.numel() * p.element_size()
                views[at] = known if known is not None and known[0] == n else (n, as_bytes(p))
        self._views = views
        return facts, _kwker.hash_buffers([v[1] for v in views.values()], 0, MARK_WORDS)


def content_hash(model) -> str:
    """Hash of the config and of every byte of every weight."""
    h = _kwker.hash_buffer(config_text(model).encode(), 1)
    for name, p in named_parameters(model):
        h = _kwker.hash_buffer(f"{name} {p.dtype} {tuple(p.shape)}".encode(), h)
        h = _kwker.hash_buffer(as_bytes(p.contiguous()), h)
    return f"{h:016x}"


def _class_reason(model) -> str | None:
    cls = original_class(model)
    if not cls.__name__.endswith("ForCausalLM"):
        return f"{cls.__name__} is not a causal language model"
    owner = next((c for c in cls.__mro__ if "forward" in c.__dict__), None)
    if owner is None or not owner.__module__.startswith("transformers.models."):
        return f"{cls.__name__}.forward is not Hugging Face's"
    if "forward" in model.__dict__:
        return "the instance has a forward of its own (accelerate hooks?)"
    return None


def _module_reason(model) -> str | None:
    for name, module in model.named_modules():
        if module is model:
            continue
        kind = type(module)
        if not kind.__module__.startswith(("torch.nn.modules.", "transformers.")):
            return f"module {name} is a {kind.__module__}.{kind.__name__}"
        if hasattr(module, "parametrizations"):
            return f"module {name} is parametrised"
    return None


def _weight_reason(model) -> str | None:
    for name, p in model.named_parameters(remove_duplicate=False):
        if p.device.type != "cpu":
            return f"{name} is on device {p.device}"
        if p.dtype not in DTYPES:
            return f"{name} has dtype {p.dtype}"
        if type(p.data) is not torch.Tensor:
            return f"{name} is a {type(p.data).__name__}"
    params = dict(model.named_parameters(remove_duplicate=False))
    if HEAD in params and EMBED in params:
        tied = params[HEAD] is params[EMBED]
        if model.config.tie_word_embeddings and not tied:
            return "lm_head has weights of its own although tie_word_embeddings is true"
    return None


def unsupported(model, max_cache_len) -> str | None:
    """None, or why this model cannot run with that many slots."""
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        return f"{type(model).__name__} is not a Hugging Face model"
    if not isinstance(max_cache_len, int) or isinstance(max_cache_len, bool) or max_cache_len < 1:
        return f"max_cache_len is {max_cache_len!r}"
    return (
        _kwker.config_check(config_text(model))
        or _class_reason(model)
        or _module_reason(model)
        or _weight_reason(model)
    )


def open_model(model, **options):
    """The model in the engine, from its own memory."""
    reason = unsupported(model, 1)
    if reason:
        raise errors.EUNSUPPORTED(reason)
    return _kwker.Model.open_memory(config_text(model), tensors(model), **options)

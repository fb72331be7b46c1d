# SPDX-License-Identifier: Apache-2.0
"""Tiny random Hugging Face models with odd sizes, and how to compare with them."""

import functools

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

# Wide weights, so that the top two logits differ; sizes that are multiples of nothing.
SIZES = dict(
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=37,
    max_position_embeddings=512,
    initializer_range=0.3,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
CONFIGS = {
    "llama": (LlamaForCausalLM, LlamaConfig, dict(vocab_size=99, hidden_size=40)),
    "llama-tied": (
        LlamaForCausalLM,
        LlamaConfig,
        dict(vocab_size=101, hidden_size=36, head_dim=10, tie_word_embeddings=True),
    ),
    "llama3-rope": (
        LlamaForCausalLM,
        LlamaConfig,
        dict(
            vocab_size=99,
            hidden_size=40,
            attention_bias=True,
            rope_parameters={
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        ),
    ),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, dict(vocab_size=101, hidden_size=40)),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, dict(vocab_size=99, hidden_size=44, head_dim=14)),
}
PROMPT = torch.tensor([[1, 5, 7, 9, 33]])
# Three rows, padded on the left.
BATCH = torch.tensor([[0, 0, 0, 4, 5, 17, 40], [0, 3, 4, 5, 6, 7, 8], [11, 12, 13, 14, 15, 16, 17]])
MASK = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1]])


def build(name, seed=3, dtype=torch.float32, **changes):
    cls, config, own = CONFIGS[name]
    torch.manual_seed(seed)
    model = cls(config(**(SIZES | own | changes))).eval()
    if name == "qwen2":  # Hugging Face starts the biases at zero, where a lost one goes unseen
        with torch.no_grad():
            for layer in model.model.layers:
                for proj in (
                    layer.self_attn.q_proj,
                    layer.self_attn.k_proj,
                    layer.self_attn.v_proj,
                ):
                    proj.bias.normal_(std=0.5)
    for p_name, p in model.named_parameters():
        if "norm" in p_name:
            with torch.no_grad():
                p.uniform_(0.5, 1.5)
    return model.to(dtype)


@functools.cache
def shared_model(name):
    """One that no test changes or installs."""
    return build(name)


def fresh(name, seed=3, **changes):
    """One of the caller's own, and an untouched twin to compare with."""
    return build(name, seed, **changes), build(name, seed, **changes)


@torch.no_grad()
def step_logits(model, sequences, mask, n_prompt):
    """Logits of every choice that led to the new tokens: (batch, new, vocab)."""
    new = sequences.shape[1] - n_prompt
    full = torch.cat([mask, torch.ones(len(sequences), new, dtype=mask.dtype)], 1)[:, :-1]
    positions = (full.cumsum(-1) - 1).clamp(min=0)
    out = model(input_ids=sequences[:, :-1], attention_mask=full, position_ids=positions)
    return out.logits[:, n_prompt - 1 :].float()


def top_gap(logits):
    """The least distance of the two best logits, relative to the logits' scale."""
    best = logits.topk(2, dim=-1).values
    return ((best[..., 0] - best[..., 1]).min() / logits.abs().max()).item()

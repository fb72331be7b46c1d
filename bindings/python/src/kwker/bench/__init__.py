# SPDX-License-Identifier: Apache-2.0
"""``python -m kwker.bench``: what each weight format costs in quality and brings in speed, on the
user's own text and machine, with the original through transformers and the user's llama.cpp in the
same table.

protocol   the mathematics: llama.cpp's perplexity protocol, KL divergence; numpy only
formats    what a row is called, and what it rounds
store      the original's logits on disk
child      what runs in a process of its own: one row's quality, its loading, its speed
launch     starting such processes; a failure becomes a reason
llamacpp   the user's llama-bench and llama-perplexity
machine    facts of the machine and its memory's speed
report     rows to Markdown and JSON;  page, plot: to HTML with SVG
cli        arguments, and the order of everything
"""

/* SPDX-License-Identifier: Apache-2.0
 *
 * What a model carries of its tokenizer: the bytes each id stands for (so that text pieces can be
 * cut without a tokenizer library), tokenizer.json for real tokenizer libraries, and the chat
 * template. Splitting text into tokens is their work, not ours. Any thread.
 */
#ifndef KWK_ENGINE_TOKENIZER_H
#define KWK_ENGINE_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include "proto/error.h"

enum {
    KWK_TOKEN_MAX = 1 << 22,       // ids
    KWK_TOKENIZER_MAX = 128 << 20, // bytes of tokenizer.json
    KWK_TEMPLATE_MAX = 1 << 20,    // bytes of a chat template
};

typedef struct kwk_tokenizer {
    int n_tokens;
    uint32_t *offset; // (n_tokens + 1) into bytes, or NULL: unknown
    uint8_t *bytes;
    char *json; // NUL-terminated, or NULL
    size_t json_len;
    char *chat_template; // NUL-terminated, or NULL
} kwk_tokenizer;

void kwk_tokenizer_free(kwk_tokenizer *t); // releases the parts; a zeroed one is fine

/**
 * Token bytes out of a tokenizer.json text: byte-level BPE, and SentencePiece-style vocabularies
 * (U+2581 for a blank, <0x41> for a byte).
 *
 * @param t  offset, bytes and n_tokens (the highest id + 1) are filled
 *
 * @return KWK_OK; KWK_EUNSUPPORTED another kind of tokenizer (named); KWK_EFORMAT; KWK_ENOMEM
 */
int kwk_tokenizer_bytes(kwk_tokenizer *t, const char *json, size_t n, kwk_error *err);

/* The chat template out of tokenizer_config.json's text: a copy, or NULL: none. "default" of a list
 * of named ones. */
int kwk_tokenizer_template(char **out, const char *json, size_t n, kwk_error *err);

/* What a token's text stands for, in place; returns the number of bytes. The text is UTF-8.
 * KWK_TOKEN_BYTES: byte-level BPE's alphabet. KWK_TOKEN_SPACES: U+2581 is a blank; with raw_bytes,
 * a text like <0x41> is that byte. */
typedef enum kwk_token_kind { KWK_TOKEN_BYTES, KWK_TOKEN_SPACES } kwk_token_kind;
size_t kwk_token_decode(uint8_t *text, size_t n, kwk_token_kind kind, int raw_bytes);

/* The byte that a character of byte-level BPE's alphabet stands for, or -1. */
int kwk_byte_level(uint32_t code_point);

#endif

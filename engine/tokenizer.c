/* SPDX-License-Identifier: Apache-2.0
 *
 * Token bytes and chat template out of Hugging Face's tokenizer files. Walks the text twice with
 * the scanner instead of building a tree: a vocabulary of 250 thousand entries would take 60 MB as
 * one. Knows no GGUF (tokenizer_gguf.c). Any thread.
 */
#include "engine/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "engine/json_scan.h"

void kwk_tokenizer_free(kwk_tokenizer *t)
{
    free(t->offset);
    free(t->bytes);
    free(t->json);
    free(t->chat_template);
    memset(t, 0, sizeof *t);
}

/* Byte-level BPE spells printable bytes as themselves and moves the other 68 to U+0100…. */
int kwk_byte_level(uint32_t c)
{
    if ((c >= 33 && c <= 126) || (c >= 161 && c <= 172) || (c >= 174 && c <= 255))
        return (int)c;
    if (c >= 256 && c < 256 + 33)
        return (int)(c - 256); // 0 … 32
    if (c >= 289 && c < 289 + 34)
        return (int)(c - 289 + 127); // 127 … 160
    return c == 323 ? 173 : -1;
}

/* ---- the file -------------------------------------------------------------------------------- */

typedef struct span { // an escaped string in the text
    uint32_t begin, end;
    uint32_t added; // its bytes are the text itself
} span;

typedef struct vocabulary {
    int byte_level, metaspace, byte_fallback; // what the decoder does
    char type[24];                            // of the model
    int64_t n;                                // highest id + 1
    span *spans;                              // (n) in the second pass, else NULL
} vocabulary;

/* Step to the next key of an object: 1 a key, 0 its end. */
static int next_member(kwk_json_scan *s, kwk_error *err)
{
    const int rc = kwk_json_next(s, err);

    return rc < 0 ? rc : s->kind == KWK_JSON_KEY;
}

static int bad(const kwk_json_scan *s, const char *reason, kwk_error *err)
{
    return kwk_fail(err, KWK_EFORMAT, "%s: byte %zu: %s", s->what, s->begin, reason);
}

static void put(vocabulary *v, int64_t id, span text)
{
    if (id >= v->n)
        v->n = id + 1;
    if (v->spans && !(v->spans[id].added && !text.added)) // an added token wins
        v->spans[id] = text;
}

static span span_of(const kwk_json_scan *s, int added)
{
    return (span){(uint32_t)s->begin, (uint32_t)s->end, (uint32_t)added};
}

/* "vocab": an object of ids, or an array of [text, score]. */
static int walk_vocab(kwk_json_scan *s, vocabulary *v, kwk_error *err)
{
    int64_t id = 0;
    int rc;

    if ((rc = kwk_json_next(s, err)) < 0)
        return rc;
    if (s->kind == KWK_JSON_OBJECT) {
        while ((rc = next_member(s, err)) > 0) {
            const span text = span_of(s, 0);
            if ((rc = kwk_json_next(s, err)) < 0)
                return rc;
            if (!kwk_json_scan_int(s, 0, KWK_TOKEN_MAX - 1, &id))
                return bad(s, "a token id is out of range", err);
            put(v, id, text);
        }
        return rc;
    }
    if (s->kind != KWK_JSON_ARRAY)
        return bad(s, "vocab is neither an object nor an array", err);
    for (;; id++) {
        if ((rc = kwk_json_next(s, err)) < 0)
            return rc;
        if (s->kind == KWK_JSON_ARRAY_END)
            return KWK_OK;
        if (s->kind != KWK_JSON_ARRAY || id == KWK_TOKEN_MAX)
            return bad(s, "an entry of vocab is no pair", err);
        if ((rc = kwk_json_next(s, err)) < 0)
            return rc;
        if (s->kind != KWK_JSON_STRING)
            return bad(s, "an entry of vocab has no text", err);
        put(v, id, span_of(s, 0));
        do
            if ((rc = kwk_json_next(s, err)) < 0 || (rc = kwk_json_skip(s, err)) < 0)
                return rc;
        while (s->kind != KWK_JSON_ARRAY_END || s->depth > 3);
    }
}

static int walk_model(kwk_json_scan *s, vocabulary *v, kwk_error *err)
{
    int rc;

    if ((rc = kwk_json_next(s, err)) < 0)
        return rc;
    if (s->kind != KWK_JSON_OBJECT)
        return bad(s, "model is not an object", err);
    while ((rc = next_member(s, err)) > 0) {
        if (kwk_json_is(s, "vocab")) {
            rc = walk_vocab(s, v, err);
        } else {
            const int is_type = kwk_json_is(s, "type");
            rc = kwk_json_next(s, err);
            if (!rc && is_type && s->kind == KWK_JSON_STRING && s->end - s->begin < sizeof v->type)
                v->type[kwk_json_unescape(s, v->type)] = 0;
            if (!rc)
                rc = kwk_json_skip(s, err);
        }
        if (rc < 0)
            return rc;
    }
    return rc;
}

static int walk_added(kwk_json_scan *s, vocabulary *v, kwk_error *err)
{
    int rc;

    if ((rc = kwk_json_next(s, err)) < 0)
        return rc;
    if (s->kind != KWK_JSON_ARRAY)
        return s->kind == KWK_JSON_NULL ? KWK_OK : bad(s, "added_tokens is not an array", err);
    for (;;) {
        span text = {0};
        int64_t id = -1;
        int has_text = 0;
        if ((rc = kwk_json_next(s, err)) < 0)
            return rc;
        if (s->kind == KWK_JSON_ARRAY_END)
            return KWK_OK;
        if (s->kind != KWK_JSON_OBJECT)
            return bad(s, "an added token is not an object", err);
        while ((rc = next_member(s, err)) > 0) {
            const int is_id = kwk_json_is(s, "id"), is_content = kwk_json_is(s, "content");
            if ((rc = kwk_json_next(s, err)) < 0)
                return rc;
            if (is_id && !kwk_json_scan_int(s, 0, KWK_TOKEN_MAX - 1, &id))
                return bad(s, "a token id is out of range", err);
            if (is_content && s->kind == KWK_JSON_STRING) {
                text = span_of(s, 1);
                has_text = 1;
            }
            if ((rc = kwk_json_skip(s, err)) < 0)
                return rc;
        }
        if (rc < 0)
            return rc;
        if (id < 0 || !has_text)
            return bad(s, "an added token without id or content", err);
        put(v, id, text);
    }
}

/* The decoder, however its parts are nested: which kinds are in it. */
static int walk_decoder(kwk_json_scan *s, vocabulary *v, kwk_error *err)
{
    int rc;

    if ((rc = kwk_json_next(s, err)) < 0)
        return rc;
    if (s->kind != KWK_JSON_OBJECT)
        return kwk_json_skip(s, err);
    const int depth = s->depth;
    do {
        if ((rc = kwk_json_next(s, err)) < 0)
            return rc;
        if (s->kind == KWK_JSON_STRING) {
            v->byte_level |= kwk_json_is(s, "ByteLevel");
            v->byte_fallback |= kwk_json_is(s, "ByteFallback");
            v->metaspace |= kwk_json_is(s, "Metaspace") || kwk_json_is(s, "\xe2\x96\x81");
        }
    } while (s->depth >= depth);
    return KWK_OK;
}

static int walk(vocabulary *v, const char *json, size_t n, kwk_error *err)
{
    kwk_json_scan s;
    int rc;

    kwk_json_scan_init(&s, json, n, "tokenizer.json");
    if ((rc = kwk_json_next(&s, err)) < 0)
        return rc;
    if (s.kind != KWK_JSON_OBJECT)
        return bad(&s, "not an object", err);
    while ((rc = next_member(&s, err)) > 0) {
        if (kwk_json_is(&s, "model"))
            rc = walk_model(&s, v, err);
        else if (kwk_json_is(&s, "added_tokens"))
            rc = walk_added(&s, v, err);
        else if (kwk_json_is(&s, "decoder"))
            rc = walk_decoder(&s, v, err);
        else if (!(rc = kwk_json_next(&s, err)))
            rc = kwk_json_skip(&s, err);
        if (rc < 0)
            return rc;
    }
    return rc < 0 ? rc : kwk_json_next(&s, err); // nothing may follow
}

/* ---- bytes of a token ------------------------------------------------------------------------ */

static uint32_t code_point(const uint8_t *p, size_t *len)
{
    if (p[0] < 0x80) {
        *len = 1;
        return p[0];
    }
    *len = p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
    uint32_t c = p[0] & (0xff >> (*len + 1));
    for (size_t i = 1; i < *len; i++)
        c = c << 6 | (p[i] & 63);
    return c;
}

/* In place; the text is well-formed UTF-8. A text with a character outside the alphabet stands for
 * itself as a whole, as in Hugging Face's decoder. */
static size_t byte_level(uint8_t *text, size_t n)
{
    size_t len, out = 0;

    for (size_t i = 0; i < n; i += len)
        if (kwk_byte_level(code_point(text + i, &len)) < 0)
            return n;
    for (size_t i = 0; i < n; i += len)
        text[out++] = (uint8_t)kwk_byte_level(code_point(text + i, &len));
    return out;
}

static int hex(uint8_t c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static size_t metaspace(uint8_t *text, size_t n, int byte_fallback)
{
    size_t out = 0;

    if (byte_fallback && n == 6 && !memcmp(text, "<0x", 3) && text[5] == '>' && hex(text[3]) >= 0 &&
        hex(text[4]) >= 0) {
        text[0] = (uint8_t)(hex(text[3]) * 16 + hex(text[4]));
        return 1;
    }
    for (size_t i = 0; i < n;) {
        if (n - i >= 3 && !memcmp(text + i, "\xe2\x96\x81", 3)) {
            text[out++] = ' ';
            i += 3;
        } else {
            text[out++] = text[i++];
        }
    }
    return out;
}

size_t kwk_token_decode(uint8_t *text, size_t n, kwk_token_kind kind, int raw_bytes)
{
    return kind == KWK_TOKEN_BYTES ? byte_level(text, n) : metaspace(text, n, raw_bytes);
}

int kwk_tokenizer_bytes(kwk_tokenizer *t, const char *json, size_t n, kwk_error *err)
{
    vocabulary v = {0};
    uint32_t *offset = NULL;
    uint8_t *bytes = NULL, *smaller;
    size_t total = 0;
    int rc;

    if (n > KWK_TOKENIZER_MAX)
        return kwk_fail(err, KWK_EFORMAT, "tokenizer.json: %zu bytes", n);
    rc = walk(&v, json, n, err);
    if (rc < 0)
        return rc;
    if (!v.byte_level && !v.metaspace)
        return kwk_fail(err, KWK_EUNSUPPORTED,
                        "tokenizer.json: a model of type '%s' whose decoder "
                        "is neither ByteLevel nor Metaspace",
                        v.type);
    v.spans = calloc((size_t)v.n + 1, sizeof *v.spans);
    offset = malloc(((size_t)v.n + 1) * sizeof *offset);
    if (!v.spans || !offset)
        goto nomem;
    rc = walk(&v, json, n, err);
    if (rc < 0)
        goto out;
    for (int64_t id = 0; id < v.n; id++)
        total += v.spans[id].end - v.spans[id].begin;
    bytes = malloc(total + 1); // resolving escapes and alphabets only shortens
    if (!bytes)
        goto nomem;
    total = 0;
    for (int64_t id = 0; id < v.n; id++) {
        const kwk_json_scan s = {.text = json, .begin = v.spans[id].begin, .end = v.spans[id].end};
        size_t len = kwk_json_unescape(&s, (char *)bytes + total);
        if (!v.spans[id].added)
            len = kwk_token_decode(bytes + total, len,
                                   v.byte_level ? KWK_TOKEN_BYTES : KWK_TOKEN_SPACES,
                                   v.byte_fallback);
        offset[id] = (uint32_t)total;
        total += len;
    }
    offset[v.n] = (uint32_t)total;
    smaller = realloc(bytes, total + 1);
    t->bytes = smaller ? smaller : bytes;
    t->offset = offset;
    t->n_tokens = (int)v.n;
    offset = NULL;
    bytes = NULL;
    goto out;
nomem:
    rc = kwk_fail(err, KWK_ENOMEM, "tokenizer.json: out of memory");
out:
    free(bytes);
    free(offset);
    free(v.spans);
    return rc;
}

/* ---- the chat template ----------------------------------------------------------------------- */

/* A copy of the current string. */
static int copy_string(const kwk_json_scan *s, char **out, kwk_error *err)
{
    if (s->end - s->begin > KWK_TEMPLATE_MAX)
        return bad(s, "the chat template is too long", err);
    free(*out);
    *out = malloc(s->end - s->begin + 1);
    if (!*out)
        return kwk_fail(err, KWK_ENOMEM, "%s: out of memory", s->what);
    (*out)[kwk_json_unescape(s, *out)] = 0;
    return KWK_OK;
}

/* One {"name": …, "template": …} of a list; kept when its name is "default". */
static int named_template(kwk_json_scan *s, char **out, kwk_error *err)
{
    char *text = NULL;
    int is_default = 0, rc;

    while ((rc = next_member(s, err)) > 0) {
        const int is_name = kwk_json_is(s, "name"), is_text = kwk_json_is(s, "template");
        rc = kwk_json_next(s, err);
        if (!rc && s->kind == KWK_JSON_STRING && is_name)
            is_default = kwk_json_is(s, "default");
        if (!rc && s->kind == KWK_JSON_STRING && is_text)
            rc = copy_string(s, &text, err);
        if (!rc)
            rc = kwk_json_skip(s, err);
        if (rc < 0)
            break;
    }
    if (rc == KWK_OK && is_default && text) {
        free(*out);
        *out = text;
        text = NULL;
    }
    free(text);
    return rc;
}

static int template_value(kwk_json_scan *s, char **out, kwk_error *err)
{
    int rc = kwk_json_next(s, err);

    if (rc < 0)
        return rc;
    if (s->kind == KWK_JSON_STRING)
        return copy_string(s, out, err);
    if (s->kind != KWK_JSON_ARRAY)
        return kwk_json_skip(s, err);
    for (;;) {
        if ((rc = kwk_json_next(s, err)) < 0 || s->kind == KWK_JSON_ARRAY_END)
            return rc;
        rc = s->kind == KWK_JSON_OBJECT ? named_template(s, out, err) : kwk_json_skip(s, err);
        if (rc < 0)
            return rc;
    }
}

int kwk_tokenizer_template(char **out, const char *json, size_t n, kwk_error *err)
{
    char *text = NULL;
    kwk_json_scan s;
    int rc;

    kwk_json_scan_init(&s, json, n, "tokenizer_config.json");
    rc = kwk_json_next(&s, err);
    if (!rc && s.kind != KWK_JSON_OBJECT)
        rc = bad(&s, "not an object", err);
    while (!rc && (rc = next_member(&s, err)) > 0) {
        if (kwk_json_is(&s, "chat_template"))
            rc = template_value(&s, &text, err);
        else if (!(rc = kwk_json_next(&s, err)))
            rc = kwk_json_skip(&s, err);
    }
    if (!rc)
        rc = kwk_json_next(&s, err);
    if (rc < 0) {
        free(text);
        return rc;
    }
    *out = text;
    return KWK_OK;
}

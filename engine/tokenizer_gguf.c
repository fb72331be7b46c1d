/* SPDX-License-Identifier: Apache-2.0
 *
 * From GGUF metadata to tokenizer.json. GGUF stores vocabulary and merges, but of the way text is
 * cut before merging only a name (tokenizer.ggml.pre); the table below says what the names mean in
 * terms of the `tokenizers` library. An unknown name is refused: guessing would give other ids on
 * some texts.
 */
#include "engine/tokenizer_gguf.h"

#include <stdlib.h>
#include <string.h>

#include "engine/json_scan.h"
#include "engine/strbuf.h"

/* GGUF's token types. */
enum { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE };

enum { MERGE_TEXT_MAX = 512 }; // bytes of a piece whose ways of being cut are tried

/* What pieces are: the pattern of GPT-2 (built into ByteLevel), the same after cutting every digit
 * off, or the patterns of Llama 3 and Qwen2, which keep up to 3 digits, or 1. */
#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define WORDS "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define REST " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
static const char llama3_pattern[] = CONTRACTIONS "|" WORDS "|\\p{N}{1,3}|" REST;
static const char qwen2_pattern[] = CONTRACTIONS "|" WORDS "|\\p{N}|" REST;

static const struct {
    const char *pre;
    const char *pattern; // NULL: GPT-2's
    int digits;          // every digit is a piece
    int nfc;             // Unicode normalisation first
    int ignore_merges;   // a piece that is a token is that token, whatever the merges say
    int add_bos;         // when the file does not say
} kinds[] = {
    {"gpt-2", NULL, 0, 0, 0, 0},
    {"phi-2", NULL, 0, 0, 0, 0},
    {"olmo", NULL, 0, 0, 0, 0},
    {"smollm", NULL, 1, 0, 0, 0},
    {"starcoder", NULL, 1, 0, 0, 0},
    {"refact", NULL, 1, 0, 0, 0},
    {"codeshell", NULL, 1, 0, 0, 0},
    {"llama-bpe", llama3_pattern, 0, 0, 1, 1},
    {"llama3", llama3_pattern, 0, 0, 1, 1},
    {"llama-v3", llama3_pattern, 0, 0, 1, 1},
    {"qwen2", qwen2_pattern, 0, 1, 0, 0},
    {"deepseek-r1-qwen", qwen2_pattern, 0, 1, 0, 0},
};

/* The arrays of the metadata, checked. */
typedef struct vocabulary {
    const char *what;
    int n;
    const char **text;                           // (n)
    size_t *len;                                 // (n)
    const kwk_gguf_key *types, *scores, *merges; // or NULL
    int sentencepiece;
} vocabulary;

static int type_of(const vocabulary *v, int id)
{
    return v->types ? kwk_gguf_i32(v->types, (uint64_t)id) : NORMAL;
}

/* Added tokens stand for themselves and are found in the text before anything else. */
static int is_added(const vocabulary *v, int id)
{
    const int type = type_of(v, id);

    return type == CONTROL || type == USER_DEFINED || type == UNKNOWN;
}

static int check_utf8(const char *s, size_t n)
{
    size_t step;

    for (size_t i = 0; i < n; i += step) {
        step = kwk_utf8((const uint8_t *)s + i, n - i);
        if (!step || !s[i])
            return 0;
    }
    return 1;
}

static int read_vocabulary(vocabulary *v, const kwk_gguf *g, const kwk_gguf_key *tokens,
                           kwk_error *err)
{
    const uint8_t *at = tokens->value;

    if (tokens->kind != KWK_GGUF_ARRAY || tokens->element != KWK_GGUF_STRING ||
        tokens->count > KWK_TOKEN_MAX)
        return kwk_fail(err, KWK_EFORMAT, "%s: tokenizer.ggml.tokens", g->what);
    v->n = (int)tokens->count;
    v->text = malloc(((size_t)v->n + 1) * sizeof *v->text);
    v->len = malloc(((size_t)v->n + 1) * sizeof *v->len);
    if (!v->text || !v->len)
        return kwk_fail(err, KWK_ENOMEM, "%s: out of memory", g->what);
    for (int i = 0; i < v->n; i++) {
        v->text[i] = kwk_gguf_next_string(&at, &v->len[i]);
        if (!check_utf8(v->text[i], v->len[i]))
            return kwk_fail(err, KWK_EFORMAT, "%s: token %d is not UTF-8", g->what, i);
    }
    v->types = kwk_gguf_find(g, "tokenizer.ggml.token_type");
    if (v->types && (v->types->kind != KWK_GGUF_ARRAY || v->types->count != tokens->count ||
                     (v->types->element != KWK_GGUF_I32 && v->types->element != KWK_GGUF_U32)))
        return kwk_fail(err, KWK_EFORMAT, "%s: tokenizer.ggml.token_type", g->what);
    v->scores = kwk_gguf_find(g, "tokenizer.ggml.scores");
    if (v->scores && (v->scores->kind != KWK_GGUF_ARRAY || v->scores->count != tokens->count ||
                      v->scores->element != KWK_GGUF_F32))
        return kwk_fail(err, KWK_EFORMAT, "%s: tokenizer.ggml.scores", g->what);
    v->merges = kwk_gguf_find(g, "tokenizer.ggml.merges");
    if (v->merges && (v->merges->kind != KWK_GGUF_ARRAY || v->merges->element != KWK_GGUF_STRING))
        return kwk_fail(err, KWK_EFORMAT, "%s: tokenizer.ggml.merges", g->what);
    return KWK_OK;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static int make_bytes(const vocabulary *v, kwk_tokenizer *out, kwk_error *err)
{
    size_t total = 0;

    for (int i = 0; i < v->n; i++)
        total += v->len[i];
    if (total > KWK_TOKENIZER_MAX)
        return kwk_fail(err, KWK_EFORMAT, "%s: a vocabulary of %zu bytes", v->what, total);
    out->bytes = malloc(total + 1);
    out->offset = malloc(((size_t)v->n + 1) * sizeof *out->offset);
    if (!out->bytes || !out->offset)
        return kwk_fail(err, KWK_ENOMEM, "%s: out of memory", v->what);
    total = 0;
    for (int i = 0; i < v->n; i++) {
        uint8_t *p = out->bytes + total;
        size_t len = v->len[i];
        out->offset[i] = (uint32_t)total;
        memcpy(p, v->text[i], len);
        if (type_of(v, i) == UNUSED)
            len = 0;
        else if (!is_added(v, i))
            len = kwk_token_decode(p, len, v->sentencepiece ? KWK_TOKEN_SPACES : KWK_TOKEN_BYTES,
                                   v->sentencepiece);
        total += len;
    }
    out->offset[v->n] = (uint32_t)total;
    out->n_tokens = v->n;
    return KWK_OK;
}

/* ---- merges of a SentencePiece vocabulary ---------------------------------------------------- */

/* GGUF keeps none for these: pieces are joined in the order of the score of what they make. A merge
 * is any way to cut a token into two tokens. */
typedef struct merge {
    float score;
    int32_t left, right;
} merge;

/* Ids in the order of their texts; unlike hashing, no input makes it slow. */
typedef struct token_index {
    const vocabulary *v;
    int n;
    int32_t *ids;
} token_index;

static int compare(const vocabulary *v, int id, const char *s, size_t n)
{
    const size_t shorter = v->len[id] < n ? v->len[id] : n;
    const int order = memcmp(v->text[id], s, shorter);

    return order ? order : v->len[id] < n ? -1 : v->len[id] > n;
}

static int by_text(const void *a, const void *b, void *arg)
{
    const vocabulary *v = arg;
    const int32_t id = *(const int32_t *)b;

    return compare(v, *(const int32_t *)a, v->text[id], v->len[id]);
}

/* The id of a text, or -1. */
static int find_token(const token_index *x, const char *s, size_t n)
{
    int lo = 0, hi = x->n;

    while (lo < hi) {
        const int mid = lo + (hi - lo) / 2, order = compare(x->v, x->ids[mid], s, n);
        if (order == 0)
            return x->ids[mid];
        if (order < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return -1;
}

static int make_index(token_index *x, vocabulary *v, kwk_error *err)
{
    x->v = v;
    x->ids = malloc(((size_t)v->n + 1) * sizeof *x->ids);
    if (!x->ids)
        return kwk_fail(err, KWK_ENOMEM, "%s: out of memory", v->what);
    for (int id = 0; id < v->n; id++)
        if (type_of(v, id) != UNUSED)
            x->ids[x->n++] = id;
    qsort_r(x->ids, (size_t)x->n, sizeof *x->ids, by_text, v);
    for (int i = 1; i < x->n; i++)
        if (by_text(&x->ids[i - 1], &x->ids[i], v) == 0)
            return kwk_fail(err, KWK_EUNSUPPORTED, "%s: tokens %d and %d are the same text",
                            v->what, x->ids[i - 1], x->ids[i]);
    return KWK_OK;
}

/* Best score first; of equals the one whose parts have the lower ids, as in Hugging Face's
 * conversion. */
static int by_score(const void *a, const void *b)
{
    const merge *x = a, *y = b;

    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    if (x->left != y->left)
        return x->left < y->left ? -1 : 1;
    return x->right < y->right ? -1 : x->right > y->right;
}

static int put_merges_by_score(const vocabulary *v, const token_index *x, kwk_strbuf *t,
                               kwk_error *err)
{
    merge *list = NULL;
    size_t n = 0, room = 0;

    for (int id = 0; id < v->n; id++) {
        if (type_of(v, id) != NORMAL)
            continue;
        if (v->len[id] > MERGE_TEXT_MAX) {
            free(list);
            return kwk_fail(err, KWK_EUNSUPPORTED, "%s: token %d has %zu bytes", v->what, id,
                            v->len[id]);
        }
        for (size_t cut = 1; cut < v->len[id]; cut++) {
            if (((uint8_t)v->text[id][cut] & 0xc0) == 0x80) // inside a character
                continue;
            const int left = find_token(x, v->text[id], cut);
            const int right = left < 0 ? -1 : find_token(x, v->text[id] + cut, v->len[id] - cut);
            if (right < 0)
                continue;
            if (n == room) {
                room = room ? 2 * room : 4096;
                merge *more = realloc(list, room * sizeof *list);
                if (!more) {
                    free(list);
                    return kwk_fail(err, KWK_ENOMEM, "%s: out of memory", v->what);
                }
                list = more;
            }
            list[n++] = (merge){kwk_gguf_f32(v->scores, (uint64_t)id), left, right};
        }
    }
    if (n)
        qsort(list, n, sizeof *list, by_score);
    for (size_t i = 0; i < n; i++) {
        kwk_strbuf_str(t, i ? ",[" : "[");
        kwk_strbuf_json(t, v->text[list[i].left], v->len[list[i].left]);
        kwk_strbuf_str(t, ",");
        kwk_strbuf_json(t, v->text[list[i].right], v->len[list[i].right]);
        kwk_strbuf_str(t, "]");
    }
    free(list);
    return KWK_OK;
}

/* ---- the text -------------------------------------------------------------------------------- */

static void put_added(const vocabulary *v, kwk_strbuf *t)
{
    const char *comma = "";

    kwk_strbuf_str(t, "\"added_tokens\":[");
    for (int id = 0; id < v->n; id++) {
        if (!is_added(v, id))
            continue;
        kwk_strbuf_str(t, comma);
        kwk_strbuf_str(t, "{\"id\":");
        kwk_strbuf_int(t, id);
        kwk_strbuf_str(t, ",\"content\":");
        kwk_strbuf_json(t, v->text[id], v->len[id]);
        kwk_strbuf_str(t, ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
                          "\"normalized\":false,\"special\":");
        kwk_strbuf_str(t, type_of(v, id) == USER_DEFINED ? "false}" : "true}");
        comma = ",";
    }
    kwk_strbuf_str(t, "],");
}

/* The start token in front of every text, when the file wants it. */
static int put_post_processor(const vocabulary *v, const kwk_gguf *g, int add_bos, kwk_strbuf *t,
                              kwk_error *err)
{
    int64_t add = add_bos, bos = -1, add_eos = 0;

    kwk_gguf_int(kwk_gguf_find(g, "tokenizer.ggml.add_bos_token"), 0, 1, &add);
    kwk_gguf_int(kwk_gguf_find(g, "tokenizer.ggml.add_eos_token"), 0, 1, &add_eos);
    kwk_gguf_int(kwk_gguf_find(g, "tokenizer.ggml.bos_token_id"), 0, v->n - 1, &bos);
    if (add_eos)
        return kwk_fail(err, KWK_EUNSUPPORTED, "%s: tokenizer.ggml.add_eos_token", g->what);
    if (!add || bos < 0) {
        kwk_strbuf_str(t, "\"post_processor\":null,");
        return KWK_OK;
    }
    kwk_strbuf_str(t, "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":["
                      "{\"SpecialToken\":{\"id\":");
    kwk_strbuf_json(t, v->text[bos], v->len[bos]);
    kwk_strbuf_str(t, ",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"pair\":["
                      "{\"SpecialToken\":{\"id\":");
    kwk_strbuf_json(t, v->text[bos], v->len[bos]);
    kwk_strbuf_str(t, ",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},"
                      "{\"SpecialToken\":{\"id\":");
    kwk_strbuf_json(t, v->text[bos], v->len[bos]);
    kwk_strbuf_str(t, ",\"type_id\":1}},{\"Sequence\":{\"id\":\"B\",\"type_id\":1}}],"
                      "\"special_tokens\":{");
    kwk_strbuf_json(t, v->text[bos], v->len[bos]);
    kwk_strbuf_str(t, ":{\"id\":");
    kwk_strbuf_json(t, v->text[bos], v->len[bos]);
    kwk_strbuf_str(t, ",\"ids\":[");
    kwk_strbuf_int(t, bos);
    kwk_strbuf_str(t, "],\"tokens\":[");
    kwk_strbuf_json(t, v->text[bos], v->len[bos]);
    kwk_strbuf_str(t, "]}}},");
    return KWK_OK;
}

static void put_vocab(const vocabulary *v, kwk_strbuf *t)
{
    const char *comma = "";

    kwk_strbuf_str(t, "\"vocab\":{");
    for (int id = 0; id < v->n; id++) {
        if (type_of(v, id) == UNUSED)
            continue;
        kwk_strbuf_str(t, comma);
        kwk_strbuf_json(t, v->text[id], v->len[id]);
        kwk_strbuf_str(t, ":");
        kwk_strbuf_int(t, id);
        comma = ",";
    }
    kwk_strbuf_str(t, "},\"merges\":[");
}

static int put_merges(const vocabulary *v, kwk_strbuf *t, kwk_error *err)
{
    const uint8_t *at = v->merges->value;

    for (uint64_t i = 0; i < v->merges->count; i++) {
        size_t len;
        const char *s = kwk_gguf_next_string(&at, &len);
        /* "left right"; a part may not contain a blank, since the alphabet has none */
        const char *blank = len > 2 ? memchr(s + 1, ' ', len - 2) : NULL;
        if (!blank || !check_utf8(s, len))
            return kwk_fail(err, KWK_EFORMAT, "%s: merge %llu", v->what, (unsigned long long)i);
        kwk_strbuf_str(t, i ? ",[" : "[");
        kwk_strbuf_json(t, s, (size_t)(blank - s));
        kwk_strbuf_str(t, ",");
        kwk_strbuf_json(t, blank + 1, (size_t)(s + len - blank - 1));
        kwk_strbuf_str(t, "]");
    }
    return KWK_OK;
}

static void put_bool(kwk_strbuf *t, const char *key, int v)
{
    kwk_strbuf_str(t, key);
    kwk_strbuf_str(t, v ? "true" : "false");
}

static int byte_level_json(const vocabulary *v, const kwk_gguf *g, kwk_strbuf *t, kwk_error *err)
{
    static const char byte_level[] = "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                                     "\"trim_offsets\":true,";
    const kwk_gguf_key *pre = kwk_gguf_find(g, "tokenizer.ggml.pre");
    const char *name = "none";
    size_t len = 4, k = 0;
    int rc;

    kwk_gguf_string(pre, &name, &len);
    while (k < sizeof kinds / sizeof *kinds &&
           (strlen(kinds[k].pre) != len || memcmp(kinds[k].pre, name, len) != 0))
        k++;
    if (k == sizeof kinds / sizeof *kinds)
        return kwk_fail(err, KWK_EUNSUPPORTED,
                        "%s: tokenizer.ggml.pre is '%.*s', which is not "
                        "known",
                        g->what, len > 40 ? 40 : (int)len, name);
    if (!v->merges)
        return kwk_fail(err, KWK_EFORMAT, "%s: no tokenizer.ggml.merges", g->what);

    kwk_strbuf_str(t, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,");
    put_added(v, t);
    kwk_strbuf_str(t, kinds[k].nfc ? "\"normalizer\":{\"type\":\"NFC\"}," : "\"normalizer\":null,");
    kwk_strbuf_str(t, "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[");
    if (kinds[k].digits)
        kwk_strbuf_str(t, "{\"type\":\"Digits\",\"individual_digits\":true},");
    if (kinds[k].pattern) {
        kwk_strbuf_str(t, "{\"type\":\"Split\",\"pattern\":{\"Regex\":");
        kwk_strbuf_json(t, kinds[k].pattern, strlen(kinds[k].pattern));
        kwk_strbuf_str(t, "},\"behavior\":\"Isolated\",\"invert\":false},");
    }
    kwk_strbuf_str(t, byte_level);
    put_bool(t, "\"use_regex\":", !kinds[k].pattern);
    kwk_strbuf_str(t, "}]},");
    rc = put_post_processor(v, g, kinds[k].add_bos, t, err);
    if (rc < 0)
        return rc;
    kwk_strbuf_str(t, "\"decoder\":");
    kwk_strbuf_str(t, byte_level);
    kwk_strbuf_str(t, "\"use_regex\":true},\"model\":{\"type\":\"BPE\",\"dropout\":null,"
                      "\"unk_token\":null,\"continuing_subword_prefix\":null,"
                      "\"end_of_word_suffix\":null,\"fuse_unk\":false,\"byte_fallback\":false,");
    put_bool(t, "\"ignore_merges\":", kinds[k].ignore_merges);
    kwk_strbuf_str(t, ",");
    put_vocab(v, t);
    rc = put_merges(v, t, err);
    kwk_strbuf_str(t, "]}}");
    return rc;
}

static int sentencepiece_json(const vocabulary *v, const kwk_gguf *g, const token_index *x,
                              kwk_strbuf *t, kwk_error *err)
{
    static const char blank[] = "\xe2\x96\x81";
    int64_t prefix = 1, unknown = -1, spaces = 0;
    int rc;

    if (!v->scores)
        return kwk_fail(err, KWK_EFORMAT, "%s: no tokenizer.ggml.scores", g->what);
    kwk_gguf_int(kwk_gguf_find(g, "tokenizer.ggml.add_space_prefix"), 0, 1, &prefix);
    kwk_gguf_int(kwk_gguf_find(g, "tokenizer.ggml.remove_extra_whitespaces"), 0, 1, &spaces);
    kwk_gguf_int(kwk_gguf_find(g, "tokenizer.ggml.unknown_token_id"), 0, v->n - 1, &unknown);
    if (spaces)
        return kwk_fail(err, KWK_EUNSUPPORTED, "%s: tokenizer.ggml.remove_extra_whitespaces",
                        g->what);

    kwk_strbuf_str(t, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,");
    put_added(v, t);
    kwk_strbuf_str(t, "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[");
    if (prefix) {
        kwk_strbuf_str(t, "{\"type\":\"Prepend\",\"prepend\":\"");
        kwk_strbuf_str(t, blank);
        kwk_strbuf_str(t, "\"},");
    }
    kwk_strbuf_str(t, "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"");
    kwk_strbuf_str(t, blank);
    kwk_strbuf_str(t, "\"}]},\"pre_tokenizer\":null,");
    rc = put_post_processor(v, g, 1, t, err);
    if (rc < 0)
        return rc;
    kwk_strbuf_str(t, "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\","
                      "\"pattern\":{\"String\":\"");
    kwk_strbuf_str(t, blank);
    kwk_strbuf_str(t, "\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}");
    if (prefix)
        kwk_strbuf_str(t, ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}");
    kwk_strbuf_str(t, "]},\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":");
    if (unknown >= 0)
        kwk_strbuf_json(t, v->text[unknown], v->len[unknown]);
    else
        kwk_strbuf_str(t, "null");
    kwk_strbuf_str(t, ",\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
                      "\"fuse_unk\":true,\"byte_fallback\":true,\"ignore_merges\":false,");
    put_vocab(v, t);
    rc = put_merges_by_score(v, x, t, err);
    kwk_strbuf_str(t, "]}}");
    return rc;
}

int kwk_gguf_tokenizer(const kwk_gguf *g, kwk_tokenizer *out, kwk_error *err)
{
    const kwk_gguf_key *model = kwk_gguf_find(g, "tokenizer.ggml.model");
    const kwk_gguf_key *tokens = kwk_gguf_find(g, "tokenizer.ggml.tokens");
    vocabulary v = {.what = g->what};
    token_index x = {0};
    kwk_strbuf t = {0};
    const char *s = "?";
    size_t len = 1;
    int rc;

    if (kwk_gguf_string(kwk_gguf_find(g, "tokenizer.chat_template"), &s, &len)) {
        if (len > KWK_TEMPLATE_MAX || !check_utf8(s, len))
            return kwk_fail(err, KWK_EFORMAT, "%s: tokenizer.chat_template", g->what);
        out->chat_template = strndup(s, len);
        if (!out->chat_template)
            return kwk_fail(err, KWK_ENOMEM, "%s: out of memory", g->what);
    }
    if (!model || !tokens)
        return KWK_OK;
    v.sentencepiece = kwk_gguf_string_is(model, "llama");
    if (!v.sentencepiece && !kwk_gguf_string_is(model, "gpt2")) {
        s = "?";
        len = 1;
        kwk_gguf_string(model, &s, &len);
        return kwk_fail(err, KWK_EUNSUPPORTED,
                        "%s: tokenizer.ggml.model is '%.*s', which is not "
                        "known",
                        g->what, len > 40 ? 40 : (int)len, s);
    }
    rc = read_vocabulary(&v, g, tokens, err);
    if (!rc)
        rc = make_bytes(&v, out, err);
    if (!rc)
        rc = make_index(&x, &v, err); // also finds texts that appear twice
    if (!rc)
        rc = v.sentencepiece ? sentencepiece_json(&v, g, &x, &t, err)
                             : byte_level_json(&v, g, &t, err);
    if (!rc && t.failed)
        rc = kwk_fail(err, KWK_ENOMEM, "%s: out of memory", g->what);
    if (!rc) {
        out->json = t.p;
        out->json_len = t.n;
        t.p = NULL;
    }
    free(t.p);
    free(x.ids);
    free(v.len);
    free(v.text);
    return rc;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The JSON scanner. Reads only text[0 … n-1], whatever is in it. No allocation, no recursion.
 */
#include "engine/json_scan.h"

#include <string.h>

/* What may come next. */
enum {
    VALUE,        // a value
    VALUE_OR_END, // first of an array: a value or ]
    KEY_OR_END,   // first of an object: a key or }
    KEY,          // after a comma in an object
    COLON,
    COMMA_OR_END, // after a value inside a container
    NOTHING,      // after the outermost value
};

void kwk_json_scan_init(kwk_json_scan *s, const char *text, size_t n, const char *what)
{
    memset(s, 0, sizeof *s);
    s->text = text;
    s->n = n;
    s->what = what;
    s->expect = VALUE;
}

static int bad(const kwk_json_scan *s, const char *reason, kwk_error *err)
{
    return kwk_fail(err, KWK_EFORMAT, "%s: byte %zu: %s", s->what, s->pos, reason);
}

static int hex4(const char *p)
{
    int v = 0;

    for (int i = 0; i < 4; i++) {
        const char c = p[i];
        const int d = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
        if (d < 0)
            return -1;
        v = v * 16 + d;
    }
    return v;
}

size_t kwk_utf8(const uint8_t *p, size_t n)
{
    const uint8_t c = p[0];
    const size_t len = c < 0x80 ? 1 : c < 0xc2 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;

    if (!len || len > n)
        return 0;
    for (size_t i = 1; i < len; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    if ((c == 0xe0 && p[1] < 0xa0) || (c == 0xed && p[1] > 0x9f) || // overlong, surrogates
        (c == 0xf0 && p[1] < 0x90) || (c == 0xf4 && p[1] > 0x8f))   // overlong, > U+10FFFF
        return 0;
    return len;
}

/* pos is behind the backslash. */
static int escape(kwk_json_scan *s, kwk_error *err)
{
    const size_t left = s->n - s->pos;
    const char *p = s->text + s->pos;

    if (left && p[0] && strchr("\"\\/bfnrt", p[0])) {
        s->pos++;
        return KWK_OK;
    }
    if (left < 5 || p[0] != 'u')
        return bad(s, "invalid escape", err);
    const int unit = hex4(p + 1);
    if (unit < 0)
        return bad(s, "invalid escape", err);
    if (unit == 0)
        return bad(s, "the character U+0000 is not accepted", err);
    s->pos += 5;
    if (unit < 0xd800 || unit > 0xdfff)
        return KWK_OK;
    const int low = left >= 11 && p[5] == '\\' && p[6] == 'u' ? hex4(p + 7) : -1;
    if (unit > 0xdbff || low < 0xdc00 || low > 0xdfff)
        return bad(s, "half of a surrogate pair", err);
    s->pos += 6;
    return KWK_OK;
}

static int string(kwk_json_scan *s, kwk_json_kind kind, kwk_error *err)
{
    s->kind = kind;
    s->begin = ++s->pos;
    while (s->pos < s->n) {
        const uint8_t c = (uint8_t)s->text[s->pos];
        if (c == '"') {
            s->end = s->pos++;
            return KWK_OK;
        }
        if (c < ' ')
            return bad(s, "control character in a string", err);
        if (c == '\\') {
            s->pos++;
            if (escape(s, err) < 0)
                return KWK_EFORMAT;
            continue;
        }
        const size_t len = kwk_utf8((const uint8_t *)s->text + s->pos, s->n - s->pos);
        if (!len)
            return bad(s, "invalid UTF-8", err);
        s->pos += len;
    }
    return bad(s, "the text ends inside a string", err);
}

static size_t digits(kwk_json_scan *s)
{
    const size_t from = s->pos;

    while (s->pos < s->n && s->text[s->pos] >= '0' && s->text[s->pos] <= '9')
        s->pos++;
    return s->pos - from;
}

static int number(kwk_json_scan *s, kwk_error *err)
{
    s->kind = KWK_JSON_NUMBER;
    s->begin = s->pos;
    if (s->text[s->pos] == '-')
        s->pos++;
    const size_t first = s->pos, whole = digits(s);
    if (!whole || (whole > 1 && s->text[first] == '0'))
        return bad(s, "invalid number", err);
    if (s->pos < s->n && s->text[s->pos] == '.') {
        s->pos++;
        if (!digits(s))
            return bad(s, "invalid number", err);
    }
    if (s->pos < s->n && (s->text[s->pos] == 'e' || s->text[s->pos] == 'E')) {
        s->pos++;
        if (s->pos < s->n && (s->text[s->pos] == '+' || s->text[s->pos] == '-'))
            s->pos++;
        if (!digits(s))
            return bad(s, "invalid number", err);
    }
    s->end = s->pos;
    return s->end - s->begin > KWK_JSON_NUMBER_MAX ? bad(s, "number too long", err) : KWK_OK;
}

static int word(kwk_json_scan *s, kwk_json_kind kind, const char *text, kwk_error *err)
{
    const size_t len = strlen(text);

    if (s->n - s->pos < len || memcmp(s->text + s->pos, text, len) != 0)
        return bad(s, "unexpected character", err);
    s->kind = kind;
    s->begin = s->pos;
    s->end = s->pos += len;
    return KWK_OK;
}

static int open_container(kwk_json_scan *s, kwk_json_kind kind, kwk_error *err)
{
    if (s->depth == KWK_JSON_DEPTH)
        return bad(s, "nested too deeply", err);
    s->kind = kind;
    s->begin = s->pos;
    s->stack[s->depth++] = s->text[s->pos++];
    s->end = s->pos;
    s->expect = kind == KWK_JSON_OBJECT ? KEY_OR_END : VALUE_OR_END;
    return KWK_OK;
}

static int close_container(kwk_json_scan *s, kwk_json_kind kind)
{
    s->kind = kind;
    s->begin = s->pos++;
    s->end = s->pos;
    s->depth--;
    s->expect = s->depth ? COMMA_OR_END : NOTHING;
    return KWK_OK;
}

static int value(kwk_json_scan *s, kwk_error *err)
{
    const char c = s->text[s->pos];

    if (c == '{')
        return open_container(s, KWK_JSON_OBJECT, err);
    if (c == '[')
        return open_container(s, KWK_JSON_ARRAY, err);
    s->expect = s->depth ? COMMA_OR_END : NOTHING;
    if (c == '"')
        return string(s, KWK_JSON_STRING, err);
    if (c == '-' || (c >= '0' && c <= '9'))
        return number(s, err);
    if (c == 't')
        return word(s, KWK_JSON_TRUE, "true", err);
    if (c == 'f')
        return word(s, KWK_JSON_FALSE, "false", err);
    return word(s, KWK_JSON_NULL, "null", err);
}

static void skip_blanks(kwk_json_scan *s)
{
    while (s->pos < s->n && (s->text[s->pos] == ' ' || s->text[s->pos] == '\n' ||
                             s->text[s->pos] == '\t' || s->text[s->pos] == '\r'))
        s->pos++;
}

int kwk_json_next(kwk_json_scan *s, kwk_error *err)
{
    for (;;) {
        skip_blanks(s);
        if (s->pos == s->n) {
            if (s->expect != NOTHING)
                return bad(s, "the text ends too early", err);
            s->kind = KWK_JSON_END;
            s->begin = s->end = s->pos;
            return KWK_OK;
        }
        const char c = s->text[s->pos];
        switch (s->expect) {
        case VALUE_OR_END:
            if (c == ']')
                return close_container(s, KWK_JSON_ARRAY_END);
            return value(s, err);
        case VALUE:
            return value(s, err);
        case KEY_OR_END:
            if (c == '}')
                return close_container(s, KWK_JSON_OBJECT_END);
            /* fall through */
        case KEY:
            if (c != '"')
                return bad(s, "a key is missing", err);
            s->expect = COLON;
            return string(s, KWK_JSON_KEY, err);
        case COLON:
            if (c != ':')
                return bad(s, "a colon is missing", err);
            s->pos++;
            s->expect = VALUE;
            break;
        case COMMA_OR_END:
            if (c == (s->stack[s->depth - 1] == '{' ? '}' : ']'))
                return close_container(s, c == '}' ? KWK_JSON_OBJECT_END : KWK_JSON_ARRAY_END);
            if (c != ',')
                return bad(s, "a comma is missing", err);
            s->pos++;
            s->expect = s->stack[s->depth - 1] == '{' ? KEY : VALUE;
            break;
        default:
            return bad(s, "text after the end", err);
        }
    }
}

int kwk_json_skip(kwk_json_scan *s, kwk_error *err)
{
    if (s->kind != KWK_JSON_OBJECT && s->kind != KWK_JSON_ARRAY)
        return KWK_OK;
    const int depth = s->depth - 1;
    while (s->depth > depth) {
        const int rc = kwk_json_next(s, err);
        if (rc < 0)
            return rc;
    }
    return KWK_OK;
}

static size_t put_utf8(char *out, int c)
{
    uint8_t *p = (uint8_t *)out;

    if (c < 0x80) {
        p[0] = (uint8_t)c;
        return 1;
    }
    if (c < 0x800) {
        p[0] = (uint8_t)(0xc0 | c >> 6);
        p[1] = (uint8_t)(0x80 | (c & 63));
        return 2;
    }
    if (c < 0x10000) {
        p[0] = (uint8_t)(0xe0 | c >> 12);
        p[1] = (uint8_t)(0x80 | (c >> 6 & 63));
        p[2] = (uint8_t)(0x80 | (c & 63));
        return 3;
    }
    p[0] = (uint8_t)(0xf0 | c >> 18);
    p[1] = (uint8_t)(0x80 | (c >> 12 & 63));
    p[2] = (uint8_t)(0x80 | (c >> 6 & 63));
    p[3] = (uint8_t)(0x80 | (c & 63));
    return 4;
}

/* The character at *pos of a string that was scanned before, as UTF-8; steps *pos behind it. */
static size_t next_char(const kwk_json_scan *s, size_t *pos, char *out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char c = s->text[*pos];

    if (c != '\\') {
        *out = c;
        *pos += 1;
        return 1;
    }
    const char e = s->text[*pos + 1];
    if (e != 'u') {
        *out = to[strchr(from, e) - from];
        *pos += 2;
        return 1;
    }
    int code = hex4(s->text + *pos + 2);
    *pos += 6;
    if (code >= 0xd800 && code <= 0xdfff) {
        code = 0x10000 + ((code - 0xd800) << 10) + (hex4(s->text + *pos + 2) - 0xdc00);
        *pos += 6;
    }
    return put_utf8(out, code);
}

int kwk_json_is(const kwk_json_scan *s, const char *text)
{
    size_t left = strlen(text);
    char c[4];

    for (size_t pos = s->begin; pos < s->end;) {
        const size_t n = next_char(s, &pos, c);
        if (n > left || memcmp(text, c, n) != 0)
            return 0;
        text += n;
        left -= n;
    }
    return left == 0;
}

size_t kwk_json_unescape(const kwk_json_scan *s, char *out)
{
    size_t n = 0;

    for (size_t pos = s->begin; pos < s->end;)
        n += next_char(s, &pos, out + n);
    return n;
}

int kwk_json_scan_int(const kwk_json_scan *s, int64_t lo, int64_t hi, int64_t *v)
{
    const size_t len = s->end - s->begin;
    const char *p = s->text + s->begin;
    const int minus = len && *p == '-';
    int64_t sum = 0;

    if (s->kind != KWK_JSON_NUMBER || len > 18)
        return 0;
    for (size_t i = (size_t)minus; i < len; i++) {
        if (p[i] < '0' || p[i] > '9')
            return 0;
        sum = sum * 10 + (p[i] - '0');
    }
    if (minus)
        sum = -sum;
    if (sum < lo || sum > hi)
        return 0;
    *v = sum;
    return 1;
}

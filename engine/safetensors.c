/* SPDX-License-Identifier: Apache-2.0
 *
 * The header of a safetensors file: 8 bytes of length, JSON with the place of each tensor, then the
 * data. The format forbids holes and overlaps, and so does this reader: a damaged or truncated file
 * is noticed before any weight is read. Loading thread.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/file.h"
#include "engine/json.h"
#include "engine/source.h"

enum { HEADER_MAX = 16 << 20, HEADER_VALUES_MAX = 500000 };

/* Sizes of every element type, so that holes can be told from tensors that we do not read. */
static const struct {
    const char *name;
    int bytes;
} dtypes[] = {
    {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1},
    {"U16", 2},  {"I16", 2}, {"F16", 2}, {"BF16", 2},    {"U32", 4},     {"I32", 4},
    {"F32", 4},  {"U64", 8}, {"I64", 8}, {"F64", 8},     {"C64", 8},
};

typedef struct range {
    uint64_t begin, end;
    const char *name;
} range;

/* One member of the header. data0: where the data begins in the file. */
static int add_tensor(kwk_source *s, const cJSON *item, int fd, uint64_t data0, uint64_t data_size,
                      const char *what, range *place, kwk_error *err)
{
    const char *name = item->string;
    const cJSON *dtype = kwk_json_get(item, "dtype"), *shape = kwk_json_get(item, "shape");
    const cJSON *offsets = kwk_json_get(item, "data_offsets");
    kwk_src_tensor t = {.fd = fd};
    int64_t begin, end, bytes = 0;

    if (!cJSON_IsString(dtype) || !cJSON_IsArray(shape) || !cJSON_IsArray(offsets) ||
        cJSON_GetArraySize(offsets) != 2)
        return kwk_fail(err, KWK_EFORMAT, "%s: the entry of tensor '%s' is incomplete", what, name);
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        if (!strcmp(dtypes[i].name, dtype->valuestring)) {
            t.type_name = dtypes[i].name;
            bytes = dtypes[i].bytes;
        }
    }
    if (!bytes)
        return kwk_fail(err, KWK_EUNSUPPORTED, "%s: tensor '%s' has the unknown type '%s'", what,
                        name, dtype->valuestring);
    t.type = kwk_weight_type_by_dtype(t.type_name);

    for (const cJSON *d = shape->child; d; d = d->next) {
        if (t.n_dims == KWK_SRC_DIMS || !kwk_json_int(d, 0, INT64_C(1) << 40, &t.shape[t.n_dims++]))
            return kwk_fail(err, KWK_EFORMAT, "%s: tensor '%s' has a shape that is not accepted",
                            what, name);
    }
    if (t.n_dims == 0) // a scalar
        t.shape[t.n_dims++] = 1;
    if (!kwk_json_int(offsets->child, 0, (int64_t)data_size, &begin) ||
        !kwk_json_int(offsets->child->next, begin, (int64_t)data_size, &end))
        return kwk_fail(err, KWK_EFORMAT, "%s: tensor '%s' lies outside the file", what, name);
    t.offset = data0 + (uint64_t)begin;
    const int rc = kwk_source_add(s, &t, name, strlen(name), err); // checks the product
    if (rc < 0)
        return rc;
    for (int i = 0; i < t.n_dims; i++)
        bytes *= t.shape[i];
    if (bytes != end - begin)
        return kwk_fail(err, KWK_EFORMAT, "%s: tensor '%s' has %lld bytes, its shape needs %lld",
                        what, name, (long long)(end - begin), (long long)bytes);
    *place = (range){(uint64_t)begin, (uint64_t)end, name};
    return KWK_OK;
}

static int by_place(const void *a, const void *b)
{
    const range *x = a, *y = b;

    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

int kwk_safetensors_read(kwk_source *s, int fd, uint64_t size, const char *what, kwk_error *err)
{
    uint8_t head[8];
    uint64_t n = 0;
    char *text = NULL;
    cJSON *root = NULL;
    range *places = NULL;
    size_t n_places = 0;
    int rc = kwk_file_read(fd, head, sizeof head, 0, what, err);

    if (rc < 0)
        return rc;
    for (int i = 7; i >= 0; i--)
        n = n << 8 | head[i];
    if (size < 8 || n > HEADER_MAX || n > size - 8)
        return kwk_fail(err, KWK_EFORMAT, "%s: a header of %llu bytes in a file of %llu", what,
                        (unsigned long long)n, (unsigned long long)size);
    const uint64_t data_size = size - 8 - n;
    if (data_size > UINT64_C(1) << 53)
        return kwk_fail(err, KWK_EFORMAT, "%s: impossibly large", what);
    text = malloc((size_t)n + 1);
    if (!text)
        return kwk_fail(err, KWK_ENOMEM, "%s: out of memory", what);
    rc = kwk_file_read(fd, text, (size_t)n, 8, what, err);
    if (rc < 0)
        goto out;
    rc = kwk_json_parse(&root, text, (size_t)n, HEADER_VALUES_MAX, what, err);
    if (rc < 0)
        goto out;
    if (!cJSON_IsObject(root)) {
        rc = kwk_fail(err, KWK_EFORMAT, "%s: the header is not an object", what);
        goto out;
    }
    places = malloc(((size_t)cJSON_GetArraySize(root) + 1) * sizeof *places);
    if (!places) {
        rc = kwk_fail(err, KWK_ENOMEM, "%s: out of memory", what);
        goto out;
    }
    for (const cJSON *item = root->child; item; item = item->next) {
        if (!strcmp(item->string, "__metadata__"))
            continue;
        rc = add_tensor(s, item, fd, 8 + n, data_size, what, &places[n_places++], err);
        if (rc < 0)
            goto out;
    }
    if (n_places)
        qsort(places, n_places, sizeof *places, by_place);
    uint64_t at = 0;
    for (size_t i = 0; i < n_places; at = places[i++].end) {
        if (places[i].begin != at) {
            rc = kwk_fail(err, KWK_EFORMAT,
                          "%s: tensor '%s' begins at %llu, the one before it "
                          "ends at %llu",
                          what, places[i].name, (unsigned long long)places[i].begin,
                          (unsigned long long)at);
            goto out;
        }
    }
    if (at != data_size)
        rc = kwk_fail(err, KWK_EFORMAT, "%s: its tensors end at %llu of %llu data bytes", what,
                      (unsigned long long)at, (unsigned long long)data_size);
out:
    free(places);
    cJSON_Delete(root);
    free(text);
    return rc;
}

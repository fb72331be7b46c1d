/* SPDX-License-Identifier: Apache-2.0
 *
 * Packs from outside are hostile bytes until these checks have passed. The recipe alone decides
 * which tensors follow, of which shape, where: the table in the file must say the same, so that
 * nothing is left to check about overlaps and bounds. Loading thread.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/hash.h"
#include "engine/pack.h"

enum { EXPONENT_MAX = 256 }; // float32 needs no more

static int damaged(const char *what, kwk_error *err)
{
    return kwk_fail(err, KWK_EFORMAT, "packed model: %s", what);
}

int kwk_pack_check_header(const kwk_pack_header *h, uint64_t size, kwk_error *err)
{
    if (memcmp(h->magic, KWK_PACK_MAGIC, sizeof h->magic) != 0)
        return damaged("not one (no magic)", err);
    if (h->version != KWK_PACK_VERSION || memcmp(h->build, kwk_pack_build_id(), 16) != 0)
        return kwk_fail(err, KWK_EUNSUPPORTED,
                        "packed model: written by another build of Kwker; "
                        "the format is experimental, pack the model again");
    if (h->header_bytes != sizeof *h)
        return damaged("header size", err);
    if (h->size != size)
        return kwk_fail(err, KWK_EFORMAT, "packed model: %llu bytes, its header says %llu",
                        (unsigned long long)size, (unsigned long long)h->size);
    if (h->data_start % KWK_PACK_DATA_ALIGN || h->data_start < sizeof *h ||
        h->data_start > KWK_PACK_FRONT_MAX || h->data_start > size)
        return damaged("start of the data", err);
    return KWK_OK;
}

static int check_names(const kwk_pack_header *h, kwk_error *err)
{
    if (!memchr(h->precision, 0, sizeof h->precision) || !memchr(h->rounded, 0, sizeof h->rounded))
        return damaged("texts of the header", err);
    for (int f = KWK_F32; f < KWK_FORMAT_END; f++)
        if (f != KWK_I6 && !strcmp(h->precision, kwk_format_name((kwk_format)f)))
            return h->reserved ? damaged("reserved field", err) : KWK_OK;
    return damaged("name of the precision", err);
}

static int check_part(const kwk_pack_header *h, const kwk_pack_part *p, const char *what,
                      kwk_error *err)
{
    if (p->size == 0 && p->offset == 0)
        return KWK_OK;
    if (p->offset % KWK_PACK_ALIGN || p->offset < sizeof *h || p->offset > h->data_start ||
        p->size > h->data_start - p->offset)
        return kwk_fail(err, KWK_EFORMAT, "packed model: place of the %s", what);
    return KWK_OK;
}

/* A text with its NUL at the end and nowhere else. */
static int check_text(const uint8_t *base, const kwk_pack_part *p, const char *what, kwk_error *err)
{
    if (p->size && memchr(base + p->offset, 0, p->size) != base + p->offset + p->size - 1)
        return kwk_fail(err, KWK_EFORMAT, "packed model: end of the %s", what);
    return KWK_OK;
}

static int check_tokens(const kwk_pack_header *h, const uint8_t *base, kwk_error *err)
{
    const uint32_t *offset = (const uint32_t *)(base + h->token_offset.offset);

    if (!h->token_offset.size)
        return h->token_bytes.size ? damaged("token bytes without offsets", err) : KWK_OK;
    if (h->token_offset.size != ((uint64_t)h->recipe.vocab + 1) * sizeof *offset)
        return damaged("number of tokens", err);
    for (int i = 0; i < h->recipe.vocab; i++)
        if (offset[i] > offset[i + 1])
            return damaged("offsets of the tokens", err);
    if (offset[h->recipe.vocab] > h->token_bytes.size)
        return damaged("bytes of the tokens", err);
    return KWK_OK;
}

static int check_table(const kwk_pack_header *h, const kwk_pack_tensor *table, kwk_error *err)
{
    kwk_tensor_spec *specs;
    uint64_t at = h->data_start;
    uint8_t id[16];
    int rc = KWK_OK;

    const int n = kwk_recipe_n_tensors(&h->recipe);
    if (h->n_tensors != (uint32_t)n || h->tensors.size != (uint64_t)n * sizeof *table)
        return damaged("number of tensors", err);
    specs = malloc((size_t)n * sizeof *specs);
    if (!specs)
        return kwk_fail(err, KWK_ENOMEM, "packed model: out of memory");
    kwk_recipe_tensors(&h->recipe, specs);
    for (int i = 0; i < n && !rc; i++) {
        const kwk_pack_tensor *t = &table[i];
        char name[KWK_TENSOR_NAME_MAX];
        if (t->format < KWK_F32 || t->format >= KWK_FORMAT_END ||
            (!specs[i].matrix && t->format != KWK_F32)) {
            rc = damaged("format of a tensor", err);
            break;
        }
        kwk_pack_tensor want = kwk_pack_place(&specs[i], (kwk_format)t->format);
        want.offset = (at + KWK_PACK_ALIGN - 1) / KWK_PACK_ALIGN * KWK_PACK_ALIGN;
        want.sum = t->sum;
        want.exponent = t->exponent;
        const int limit = kwk_format_is_int((kwk_format)t->format) ? EXPONENT_MAX : 0;
        kwk_tensor_name(&specs[i], name);
        if (memcmp(&want, t, sizeof want) != 0)
            rc = kwk_fail(err, KWK_EFORMAT, "packed model: shape or place of %s", name);
        else if (t->exponent < -limit || t->exponent > limit)
            rc = kwk_fail(err, KWK_EFORMAT, "packed model: exponent of %s", name);
        at = want.offset + want.size;
    }
    free(specs);
    if (!rc && at != h->size)
        rc = damaged("bytes after the last tensor", err);
    if (!rc) {
        kwk_pack_id(id, &h->recipe, table, n);
        if (memcmp(id, h->id, sizeof id) != 0)
            rc = damaged("identity", err);
    }
    return rc;
}

int kwk_pack_check_front(const uint8_t *base, uint64_t size, kwk_error *err)
{
    kwk_pack_header h;
    int rc;

    memcpy(&h, base, sizeof h);
    rc = kwk_pack_check_header(&h, size, err);
    if (rc < 0)
        return rc;
    if (kwk_pack_front_sum(base, h.data_start) != h.front_sum)
        return damaged("the checksum of its header does not match", err);
    /* The sum keeps out damage, not malice: everything is checked as if there were none. */
    if ((rc = check_names(&h, err)) < 0 || (rc = kwk_recipe_check(&h.recipe, err)) < 0 ||
        (rc = check_part(&h, &h.tensors, "tensor table", err)) < 0 ||
        (rc = check_part(&h, &h.token_offset, "token offsets", err)) < 0 ||
        (rc = check_part(&h, &h.token_bytes, "token bytes", err)) < 0 ||
        (rc = check_part(&h, &h.tokenizer_json, "tokenizer", err)) < 0 ||
        (rc = check_part(&h, &h.chat_template, "chat template", err)) < 0 ||
        (rc = check_text(base, &h.tokenizer_json, "tokenizer", err)) < 0 ||
        (rc = check_text(base, &h.chat_template, "chat template", err)) < 0 ||
        (rc = check_tokens(&h, base, err)) < 0)
        return rc;
    return check_table(&h, (const kwk_pack_tensor *)(base + h.tensors.offset), err);
}

/* ---- data ------------------------------------------------------------------------------------ */

typedef struct sums {
    const kwk_image *img;
    const kwk_pack_tensor *table;
    uint8_t *bad; // (n)
} sums;

static void check_sum(void *arg, int i)
{
    const sums *s = arg;
    const kwk_pack_tensor *t = &s->table[i];
    const uint64_t data_start = ((const kwk_pack_header *)s->img->base)->data_start;
    const uint64_t before = i ? t[-1].offset + t[-1].size : data_start;

    s->bad[i] = kwk_hash64(s->img->base + t->offset, (size_t)t->size, 0) != t->sum;
    for (uint64_t at = before; at < t->offset; at++)
        s->bad[i] |= s->img->base[at] != 0;
}

int kwk_pack_check_data(const kwk_image *img, kwk_error *err)
{
    const kwk_pack_header *h = (const kwk_pack_header *)img->base;
    sums s = {img, (const kwk_pack_tensor *)(img->base + h->tensors.offset), NULL};
    int rc;

    s.bad = calloc(h->n_tensors, 1);
    if (!s.bad)
        return kwk_fail(err, KWK_ENOMEM, "packed model: out of memory");
    rc = kwk_parallel_for((int)h->n_tensors, check_sum, &s, err);
    for (uint32_t i = 0; i < h->n_tensors && !rc; i++) {
        const kwk_tensor_spec spec = {.role = (kwk_role)s.table[i].role,
                                      .layer = (int)s.table[i].layer};
        char name[KWK_TENSOR_NAME_MAX];
        kwk_tensor_name(&spec, name);
        if (s.bad[i])
            rc =
                kwk_fail(err, KWK_EFORMAT, "packed model: the checksum of %s does not match", name);
    }
    free(s.bad);
    return rc;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Checked JSON trees. Memory: about 100 bytes per value.
 */
#include "engine/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/json_scan.h"

static int check_text(const char *text, size_t n, size_t max_values, const char *what,
                      kwk_error *err)
{
    kwk_json_scan s;
    size_t values = 0;
    int rc;

    kwk_json_scan_init(&s, text, n, what);
    do {
        rc = kwk_json_next(&s, err);
        if (rc < 0)
            return rc;
        values +=
            s.kind != KWK_JSON_KEY && s.kind != KWK_JSON_OBJECT_END && s.kind != KWK_JSON_ARRAY_END;
        if (values > max_values)
            return kwk_fail(err, KWK_EFORMAT, "%s: more than %zu values", what, max_values);
    } while (s.kind != KWK_JSON_END);
    return KWK_OK;
}

static int by_key(const void *a, const void *b)
{
    return strcmp((*(cJSON *const *)a)->string, (*(cJSON *const *)b)->string);
}

static int check_keys(const cJSON *object, const char *what, kwk_error *err)
{
    const int n = cJSON_GetArraySize(object);
    int i = 0, rc = KWK_OK;

    if (n < 2)
        return KWK_OK;
    const cJSON **member = malloc((size_t)n * sizeof *member);
    if (!member)
        return kwk_fail(err, KWK_ENOMEM, "%s: out of memory", what);
    for (const cJSON *c = object->child; c; c = c->next)
        member[i++] = c;
    qsort(member, (size_t)n, sizeof *member, by_key);
    for (i = 1; i < n && !rc; i++)
        if (!strcmp(member[i - 1]->string, member[i]->string))
            rc = kwk_fail(err, KWK_EFORMAT, "%s: key '%s' appears twice", what, member[i]->string);
    free(member);
    return rc;
}

static int check_tree(const cJSON *item, const char *what, kwk_error *err)
{
    int rc = KWK_OK;

    if (cJSON_IsNumber(item) && !isfinite(item->valuedouble))
        return kwk_fail(err, KWK_EFORMAT, "%s: '%s' is not a finite number", what,
                        item->string ? item->string : "");
    if (cJSON_IsObject(item))
        rc = check_keys(item, what, err);
    for (const cJSON *c = item->child; c && !rc; c = c->next)
        rc = check_tree(c, what, err);
    return rc;
}

int kwk_json_parse(cJSON **out, const char *text, size_t n, size_t max_values, const char *what,
                   kwk_error *err)
{
    int rc = check_text(text, n, max_values, what, err);
    if (rc < 0)
        return rc;

    cJSON *root = cJSON_ParseWithLength(text, n);
    if (!root) // the text was checked, so nothing else is left
        return kwk_fail(err, KWK_ENOMEM, "%s: out of memory", what);
    rc = check_tree(root, what, err);
    if (rc < 0) {
        cJSON_Delete(root);
        return rc;
    }
    *out = root;
    return KWK_OK;
}

const cJSON *kwk_json_get(const cJSON *object, const char *key)
{
    return cJSON_IsObject(object) ? cJSON_GetObjectItemCaseSensitive(object, key) : NULL;
}

int kwk_json_int(const cJSON *item, int64_t lo, int64_t hi, int64_t *v)
{
    if (!cJSON_IsNumber(item) || item->valuedouble != floor(item->valuedouble) ||
        fabs(item->valuedouble) > 0x1p53 || item->valuedouble < (double)lo ||
        item->valuedouble > (double)hi)
        return 0;
    *v = (int64_t)item->valuedouble;
    return 1;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors in the caller's memory (a model that Python holds). Borrows them while it is open.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/source.h"

int kwk_source_open_memory(kwk_source *s, const char *config, size_t n,
                           const kwk_tensor_view *tensors, int n_tensors, kwk_error *err)
{
    int rc = KWK_OK;

    memset(s, 0, sizeof *s);
    s->what = "model";
    if (!config || n_tensors < 0 || (n_tensors && !tensors))
        return kwk_fail(err, KWK_EINVAL, "config or tensors are missing");
    if (n > KWK_CONFIG_MAX)
        return kwk_fail(err, KWK_EFORMAT, "a config of %zu bytes", n);
    s->config = malloc(n + 1);
    if (!s->config)
        return kwk_fail(err, KWK_ENOMEM, "out of memory");
    memcpy(s->config, config, n);
    s->config[n] = 0;
    s->config_len = n;

    for (int i = 0; i < n_tensors && !rc; i++) {
        const kwk_tensor_view *v = &tensors[i];
        if (!v->name || !v->dtype || v->n_dims < 1 || v->n_dims > 3) {
            rc = kwk_fail(err, KWK_EINVAL, "tensor %d: name, dtype or number of dimensions (%d)", i,
                          v->n_dims);
            break;
        }
        kwk_src_tensor t = {.fd = -1, .n_dims = v->n_dims, .data = v->data};
        t.type = kwk_weight_type_by_dtype(v->dtype);
        if (!t.type) {
            rc = kwk_fail(err, KWK_EUNSUPPORTED,
                          "tensor '%s' has the type %s, not F32, F16 or "
                          "BF16",
                          v->name, v->dtype);
            break;
        }
        t.type_name = t.type->name;
        for (int d = 0; d < v->n_dims; d++)
            t.shape[d] = v->shape[d];
        if (!t.data) {
            rc = kwk_fail(err, KWK_EINVAL, "tensor '%s' has no data", v->name);
            break;
        }
        rc = kwk_source_add(s, &t, v->name, strlen(v->name), err);
    }
    if (!rc)
        rc = kwk_source_sort(s, err);
    if (rc < 0)
        kwk_source_close(s);
    return rc;
}

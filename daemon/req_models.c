/* SPDX-License-Identifier: Apache-2.0
 *
 * models: every model by name, how far its load is, and its facts.
 */
#include <stdio.h>

#include "daemon/daemon.h"

static void add_facts(kwk_map *m, const kwkd_model *model)
{
    kwk_model_info info;
    char id[2 * sizeof info.id + 1];

    kwk_model_describe(model->engine, &info);
    for (size_t i = 0; i < sizeof info.id; i++)
        snprintf(id + 2 * i, 3, "%02x", info.id[i]);
    kwk_map_str(m, "model_type", info.model_type);
    kwk_map_str(m, "precision", info.precision);
    kwk_map_str(m, "rounded", info.rounded);
    kwk_map_int(m, "vocab", info.vocab);
    kwk_map_int(m, "max_ctx", info.max_ctx);
    kwk_map_int(m, "bos", info.bos);
    kwk_map_open(m, "eos", 0);
    for (int i = 0; i < info.n_eos; i++)
        kwk_map_int(m, NULL, info.eos[i]);
    kwk_map_close(m);
    kwk_map_int(m, "pad", info.pad);
    kwk_map_uint(m, "n_params", info.n_params);
    kwk_map_uint(m, "weight_bytes", info.weight_bytes);
    kwk_map_uint(m, "packed_bytes", info.packed_bytes);
    kwk_map_uint(m, "kv_blocks", info.kv_blocks);
    kwk_map_uint(m, "kv_blocks_free", info.kv_blocks_free);
    kwk_map_str(m, "id", id);
}

static void add_model(void *arg, const kwkd_model_row *row)
{
    static const char *const states[] = {"loading", "ready", "failed"};
    kwk_map *m = arg;

    kwk_map_open(m, NULL, 1);
    kwk_map_str(m, "name", row->name);
    kwk_map_str(m, "state", states[row->state]);
    kwk_map_double(m, "progress", row->progress);
    kwk_map_bool(m, "pin", row->pin);
    kwk_map_str(m, "path", row->path);
    kwk_map_uint(m, "uid", row->uid);
    if (row->error) {
        kwk_map_str(m, "error", row->error);
        kwk_map_int(m, "code", row->code);
    }
    if (row->state == KWKD_READY)
        add_facts(m, row->model);
    kwk_map_close(m);
}

int kwkd_req_models(struct kwkd *d, kwkd_call *call, kwk_error *err)
{
    kwk_map m;

    kwk_reply_begin(&m, &call->reply);
    kwk_map_open(&m, "models", 0);
    kwkd_store_each(d->store, add_model, &m);
    kwk_map_close(&m);
    return kwk_map_end(&m, err);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Admission of a config.json: the tables of families.inc decide which keys may appear, the code
 * here reads those that count. Pure; any thread.
 */
#include "engine/recipe.h"

#include <math.h>
#include <string.h>

#include "engine/json.h"

enum { CONFIG_VALUES_MAX = 100000 };

typedef enum bias_rule { NEVER, ALWAYS, BY_KEY } bias_rule;
typedef enum key_rule { READ, ANY, FALSE, LAYER_TYPES, GGUF } key_rule;

enum {
#define KWK_FAMILY(id, ...) id##_INDEX,
#include "engine/families.inc"
#undef KWK_FAMILY
#define KWK_FAMILY(id, ...) id = 1 << id##_INDEX,
#include "engine/families.inc"
#undef KWK_FAMILY
    ALL = -1
};

typedef struct family {
    int bit;
    const char *model_type;
    bias_rule qkv_bias, o_bias, mlp_bias;
    int qk_norm, head_dim, n_kv_heads, max_pos, bos, eos;
} family;

static const family families[] = {
#define KWK_FAMILY(id, ...) {id, __VA_ARGS__},
#include "engine/families.inc"
#undef KWK_FAMILY
};

static const struct {
    int families;
    const char *name;
    key_rule rule;
} keys[] = {
#define KWK_KEY(families, name, rule) {families, name, rule},
#include "engine/families.inc"
#undef KWK_KEY
};

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* ---- single keys ----------------------------------------------------------------------------- */

static int missing(const char *key, kwk_error *err)
{
    return kwk_fail(err, KWK_EFORMAT, "config key '%s' is missing", key);
}

/* A value that is there but not accepted, shown as far as it can be shown in a line. */
static int refuse(const cJSON *item, kwk_error *err)
{
    const char *key = item->string ? item->string : "?";

    if (cJSON_IsString(item))
        return kwk_fail(err, KWK_EUNSUPPORTED,
                        "config key '%.80s' has the value '%.80s', which is not supported", key,
                        item->valuestring);
    if (cJSON_IsNumber(item))
        return kwk_fail(err, KWK_EUNSUPPORTED,
                        "config key '%.80s' has the value %.9g, which is not supported", key,
                        item->valuedouble);
    if (cJSON_IsBool(item))
        return kwk_fail(err, KWK_EUNSUPPORTED, "config key '%.80s' is %s, which is not supported",
                        key, cJSON_IsTrue(item) ? "true" : "false");
    return kwk_fail(err, KWK_EUNSUPPORTED, "config key '%.80s' is not supported", key);
}

/* The value of a key, NULL also when it is null. */
static const cJSON *get(const cJSON *object, const char *key)
{
    const cJSON *item = kwk_json_get(object, key);

    return cJSON_IsNull(item) ? NULL : item;
}

/* An integer of lo..hi; absent: keep *v when it is >= lo, else an error. */
static int read_int(const cJSON *object, const char *key, int lo, int hi, int32_t *v,
                    kwk_error *err)
{
    const cJSON *item = get(object, key);
    int64_t n;

    if (!item)
        return *v >= lo ? KWK_OK : missing(key, err);
    if (!kwk_json_int(item, lo, hi, &n))
        return refuse(item, err);
    *v = (int32_t)n;
    return KWK_OK;
}

/* A number of lo..hi; absent: keep *v. */
static int read_float(const cJSON *object, const char *key, double lo, double hi, float *v,
                      kwk_error *err)
{
    const cJSON *item = get(object, key);

    if (!item)
        return KWK_OK;
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= lo && item->valuedouble <= hi))
        return refuse(item, err);
    *v = (float)item->valuedouble;
    return KWK_OK;
}

static int read_bool(const cJSON *object, const char *key, uint8_t *v, kwk_error *err)
{
    const cJSON *item = get(object, key);

    if (!item)
        return KWK_OK;
    if (!cJSON_IsBool(item))
        return refuse(item, err);
    *v = (uint8_t)cJSON_IsTrue(item);
    return KWK_OK;
}

static int read_bias(const cJSON *root, bias_rule rule, const char *key, uint8_t *v, kwk_error *err)
{
    *v = rule == ALWAYS;
    return rule == BY_KEY ? read_bool(root, key, v, err) : KWK_OK;
}

static int check_layer_types(const cJSON *item, kwk_error *err)
{
    if (!cJSON_IsArray(item))
        return refuse(item, err);
    for (const cJSON *type = item->child; type; type = type->next)
        if (!cJSON_IsString(type) || strcmp(type->valuestring, "full_attention") != 0)
            return kwk_fail(
                err, KWK_EUNSUPPORTED,
                "config key 'layer_types' has the value '%.80s', which is not supported",
                cJSON_IsString(type) ? type->valuestring : "?");
    return KWK_OK;
}

static int is_gguf(const cJSON *item)
{
    const cJSON *method = kwk_json_get(item, "quant_method");

    return cJSON_IsString(method) && !strcmp(method->valuestring, "gguf");
}

static int check_keys(const cJSON *root, const family *f, kwk_error *err)
{
    for (const cJSON *item = root->child; item; item = item->next) {
        size_t i = 0;
        int rc = KWK_OK;
        if (cJSON_IsNull(item))
            continue;
        while (i < COUNT(keys) &&
               (!(keys[i].families & f->bit) || strcmp(keys[i].name, item->string) != 0))
            i++;
        if (i == COUNT(keys))
            rc = refuse(item, err);
        else if (keys[i].rule == FALSE && !cJSON_IsFalse(item))
            rc = refuse(item, err);
        else if (keys[i].rule == LAYER_TYPES)
            rc = check_layer_types(item, err);
        else if (keys[i].rule == GGUF && !is_gguf(item))
            rc = refuse(item, err);
        if (rc < 0)
            return rc;
    }
    return KWK_OK;
}

/* ---- RoPE ------------------------------------------------------------------------------------ */

static int check_rope_keys(const cJSON *rope, int type, kwk_error *err)
{
    static const struct {
        const char *name;
        int from; // first type that has it
    } known[] = {
        {"rope_type", KWK_ROPE_DEFAULT},
        {"type", KWK_ROPE_DEFAULT},
        {"rope_theta", KWK_ROPE_DEFAULT},
        {"partial_rotary_factor", KWK_ROPE_DEFAULT},
        {"factor", KWK_ROPE_LINEAR},
        {"low_freq_factor", KWK_ROPE_LLAMA3},
        {"high_freq_factor", KWK_ROPE_LLAMA3},
        {"original_max_position_embeddings", KWK_ROPE_LLAMA3},
    };

    for (const cJSON *item = rope->child; item; item = item->next) {
        int found = cJSON_IsNull(item);
        for (size_t i = 0; i < COUNT(known); i++)
            found |= known[i].from <= type && !strcmp(known[i].name, item->string);
        if (!found)
            return refuse(item, err);
    }
    return KWK_OK;
}

static int read_rope_type(const cJSON *rope, int32_t *type, kwk_error *err)
{
    static const char *const names[] = {"default", "linear", "llama3"};
    const cJSON *item = get(rope, "rope_type"), *old = get(rope, "type");

    if (!item)
        item = old;
    *type = KWK_ROPE_DEFAULT;
    if (!item)
        return KWK_OK;
    if (!cJSON_IsString(item))
        return refuse(item, err);
    if (old && (!cJSON_IsString(old) || strcmp(old->valuestring, item->valuestring) != 0))
        return refuse(old, err);
    for (size_t i = 0; i < COUNT(names); i++) {
        if (!strcmp(item->valuestring, names[i])) {
            *type = (int32_t)i;
            return KWK_OK;
        }
    }
    return refuse(item, err);
}

/* One dictionary in transformers 5 (rope_parameters); theta beside rope_scaling before. */
static int read_rope(kwk_recipe *r, const cJSON *root, kwk_error *err)
{
    const cJSON *rope = get(root, "rope_parameters"), *scaling = get(root, "rope_scaling");
    float partial = 1;
    int rc;

    if (rope && scaling)
        return kwk_fail(err, KWK_EUNSUPPORTED,
                        "config keys 'rope_parameters' and 'rope_scaling' "
                        "exclude each other");
    if (!rope)
        rope = scaling;
    if (rope && !cJSON_IsObject(rope))
        return refuse(rope, err);

    r->rope_dim = r->head_dim;
    r->rope_theta = 10000;
    if ((rc = read_float(root, "rope_theta", 1e-3, 1e12, &r->rope_theta, err)) < 0 ||
        (rc = read_float(root, "partial_rotary_factor", 1, 1, &partial, err)) < 0)
        return rc;
    if (!rope)
        return KWK_OK;
    if ((rc = read_rope_type(rope, &r->rope_type, err)) < 0 ||
        (rc = check_rope_keys(rope, r->rope_type, err)) < 0 ||
        (rc = read_float(rope, "rope_theta", 1e-3, 1e12, &r->rope_theta, err)) < 0 ||
        (rc = read_float(rope, "partial_rotary_factor", 1, 1, &partial, err)) < 0 ||
        (rc = read_float(rope, "factor", 1e-3, 1e6, &r->rope_factor, err)) < 0 ||
        (rc = read_float(rope, "low_freq_factor", 1e-3, 1e6, &r->rope_low_freq, err)) < 0 ||
        (rc = read_float(rope, "high_freq_factor", 1e-3, 1e6, &r->rope_high_freq, err)) < 0)
        return rc;
    if (r->rope_type == KWK_ROPE_DEFAULT)
        return KWK_OK;
    if (r->rope_factor == 0)
        return missing("factor", err);
    if (r->rope_type == KWK_ROPE_LINEAR)
        return KWK_OK;
    if (r->rope_low_freq == 0)
        return missing("low_freq_factor", err);
    if (r->rope_high_freq == 0)
        return missing("high_freq_factor", err);
    r->rope_original_max_pos = r->max_pos;
    return read_int(rope, "original_max_position_embeddings", 1, KWK_MAX_POSITIONS,
                    &r->rope_original_max_pos, err);
}

/* ---- special tokens -------------------------------------------------------------------------- */

/* The value in generation_config.json, else in config.json; NULL: in neither. */
static const cJSON *token_item(const cJSON *generation, const cJSON *root, const char *key)
{
    const cJSON *item = get(generation, key);

    return item ? item : get(root, key);
}

/* An id outside the vocabulary can never be generated: none. */
static int read_token(const cJSON *generation, const cJSON *root, const char *key, int absent,
                      int vocab, int32_t *v, kwk_error *err)
{
    const cJSON *item = token_item(generation, root, key);
    int64_t id = absent;

    if (cJSON_IsArray(item)) // some list a single id
        item = item->child;
    if (item && !kwk_json_int(item, INT32_MIN, INT32_MAX, &id))
        return refuse(item, err);
    *v = id >= 0 && id < vocab ? (int32_t)id : -1;
    return KWK_OK;
}

static int read_eos(const cJSON *generation, const cJSON *root, int absent, kwk_recipe *r,
                    kwk_error *err)
{
    const cJSON *item = token_item(generation, root, "eos_token_id");
    const cJSON *first = cJSON_IsArray(item) ? item->child : item;

    r->n_eos = 0;
    /* A key that is there but null means none; only an absent one means the default. */
    if (!item && !kwk_json_get(root, "eos_token_id") && absent >= 0 && absent < r->vocab)
        r->eos[r->n_eos++] = absent;
    for (const cJSON *e = first; e; e = cJSON_IsArray(item) ? e->next : NULL) {
        int64_t id;
        if (!kwk_json_int(e, INT32_MIN, INT32_MAX, &id))
            return refuse(item, err);
        if (id < 0 || id >= r->vocab)
            continue;
        if (r->n_eos == KWK_MAX_EOS)
            return kwk_fail(err, KWK_EUNSUPPORTED,
                            "config key 'eos_token_id' lists more than %d ids", KWK_MAX_EOS);
        r->eos[r->n_eos++] = (int32_t)id;
    }
    return KWK_OK;
}

static int read_tokens(const cJSON *generation, const cJSON *root, const family *f, kwk_recipe *r,
                       kwk_error *err)
{
    const int bos = kwk_json_get(root, "bos_token_id") ? -1 : f->bos;
    int rc;

    if ((rc = read_token(generation, root, "bos_token_id", bos, r->vocab, &r->bos, err)) < 0 ||
        (rc = read_token(generation, root, "pad_token_id", -1, r->vocab, &r->pad, err)) < 0)
        return rc;
    return read_eos(generation, root, f->eos, r, err);
}

/* ---- the whole ------------------------------------------------------------------------------- */

static const family *find_family(const cJSON *type)
{
    for (size_t i = 0; i < COUNT(families); i++)
        if (cJSON_IsString(type) && !strcmp(type->valuestring, families[i].model_type))
            return &families[i];
    return NULL;
}

static int read_heads(kwk_recipe *r, const cJSON *root, const family *f, kwk_error *err)
{
    int rc = read_int(root, "num_attention_heads", 1, KWK_MAX_HEADS, &r->n_heads, err);

    if (rc < 0)
        return rc;
    r->n_kv_heads = r->n_heads;
    if (f->n_kv_heads && !kwk_json_get(root, "num_key_value_heads"))
        r->n_kv_heads = f->n_kv_heads;
    r->head_dim = f->head_dim;
    if (!r->head_dim && !get(root, "head_dim")) {
        if (r->hidden % r->n_heads)
            return kwk_fail(err, KWK_EUNSUPPORTED,
                            "config key 'hidden_size' (%d) is no multiple of "
                            "num_attention_heads (%d)",
                            r->hidden, r->n_heads);
        r->head_dim = r->hidden / r->n_heads;
    }
    if ((rc = read_int(root, "num_key_value_heads", 1, KWK_MAX_HEADS, &r->n_kv_heads, err)) < 0)
        return rc;
    return read_int(root, "head_dim", 1, KWK_HEAD_DIM_MAX, &r->head_dim, err);
}

static int read_config(kwk_recipe *r, const cJSON *root, const cJSON *generation, kwk_error *err)
{
    const cJSON *type = get(root, "model_type"), *act = get(root, "hidden_act");
    const family *f = find_family(type);
    int rc;

    if (!f)
        return type ? refuse(type, err) : missing("model_type", err);
    if ((rc = check_keys(root, f, err)) < 0)
        return rc;
    strcpy(r->model_type, f->model_type);

    r->max_pos = f->max_pos;
    r->rms_eps = 1e-6f;
    if ((rc = read_int(root, "num_hidden_layers", 1, KWK_MAX_LAYERS, &r->n_layers, err)) < 0 ||
        (rc = read_int(root, "hidden_size", 1, KWK_MAX_HIDDEN, &r->hidden, err)) < 0 ||
        (rc = read_int(root, "intermediate_size", 1, KWK_MAX_INTER, &r->inter, err)) < 0 ||
        (rc = read_int(root, "vocab_size", 1, KWK_MAX_VOCAB, &r->vocab, err)) < 0 ||
        (rc = read_int(root, "max_position_embeddings", 1, KWK_MAX_POSITIONS, &r->max_pos, err)) <
            0 ||
        (rc = read_float(root, "rms_norm_eps", 0, 1, &r->rms_eps, err)) < 0 ||
        (rc = read_bool(root, "tie_word_embeddings", &r->tied, err)) < 0 ||
        (rc = read_heads(r, root, f, err)) < 0)
        return rc;
    r->attn_scale = (float)(1 / sqrt((double)r->head_dim));

    /* The only one that the step computes (kernels/slots.inc: silu_mul). */
    if (act && (!cJSON_IsString(act) || strcmp(act->valuestring, "silu") != 0))
        return refuse(act, err);
    r->act = KWK_ACT_SILU;
    if ((rc = read_bias(root, f->qkv_bias, "attention_bias", &r->q_bias, err)) < 0 ||
        (rc = read_bias(root, f->o_bias, "attention_bias", &r->o_bias, err)) < 0 ||
        (rc = read_bias(root, f->mlp_bias, "mlp_bias", &r->mlp_bias, err)) < 0)
        return rc;
    r->k_bias = r->v_bias = r->q_bias;
    r->qk_norm = (uint8_t)f->qk_norm;

    if ((rc = read_rope(r, root, err)) < 0 || (rc = read_tokens(generation, root, f, r, err)) < 0)
        return rc;
    return kwk_recipe_check(r, err);
}

int kwk_recipe_from_config(kwk_recipe *r, const char *config, size_t n, const char *generation,
                           size_t generation_len, kwk_error *err)
{
    cJSON *root = NULL, *gen = NULL;
    kwk_recipe new;
    int rc;

    memset(&new, 0, sizeof new);
    rc = kwk_json_parse(&root, config, n, CONFIG_VALUES_MAX, "config.json", err);
    if (!rc && generation)
        rc = kwk_json_parse(&gen, generation, generation_len, CONFIG_VALUES_MAX,
                            "generation_config.json", err);
    if (!rc && !cJSON_IsObject(root))
        rc = kwk_fail(err, KWK_EFORMAT, "config.json: not an object");
    if (!rc)
        rc = read_config(&new, root, gen, err);
    if (!rc)
        *r = new;
    cJSON_Delete(gen);
    cJSON_Delete(root);
    return rc;
}

int kwk_config_check(const char *config_json, size_t n, kwk_error *err)
{
    kwk_recipe r;

    if (!config_json)
        return kwk_fail(err, KWK_EINVAL, "config is missing");
    if (n > KWK_CONFIG_MAX)
        return kwk_fail(err, KWK_EFORMAT, "config.json: %zu bytes", n);
    return kwk_recipe_from_config(&r, config_json, n, NULL, 0, err);
}

/* ---- recipes from packs ---------------------------------------------------------------------- */

static int outside(const char *field, double v, kwk_error *err)
{
    return kwk_fail(err, KWK_EUNSUPPORTED, "recipe: %s is %.9g", field, v);
}

static int is_flag(uint8_t v)
{
    return v <= 1;
}

int kwk_recipe_check(const kwk_recipe *r, kwk_error *err)
{
    const int32_t last_id = r->vocab > 0 ? r->vocab - 1 : 0;
    const struct {
        const char *field;
        int32_t v, lo, hi;
    } ints[] = {
        {"n_layers", r->n_layers, 1, KWK_MAX_LAYERS},
        {"hidden", r->hidden, 1, KWK_MAX_HIDDEN},
        {"inter", r->inter, 1, KWK_MAX_INTER},
        {"n_heads", r->n_heads, 1, KWK_MAX_HEADS},
        {"n_kv_heads", r->n_kv_heads, 1, r->n_heads},
        {"head_dim", r->head_dim, 2, KWK_HEAD_DIM_MAX},
        {"vocab", r->vocab, 1, KWK_MAX_VOCAB},
        {"max_pos", r->max_pos, 1, KWK_MAX_POSITIONS},
        {"act", r->act, KWK_ACT_SILU, KWK_ACT_SILU},
        {"rope_type", r->rope_type, KWK_ROPE_DEFAULT, KWK_ROPE_LLAMA3},
        {"rope_dim", r->rope_dim, r->head_dim, r->head_dim},
        {"rope_original_max_pos", r->rope_original_max_pos, 0, KWK_MAX_POSITIONS},
        {"bos", r->bos, -1, last_id},
        {"pad", r->pad, -1, last_id},
        {"n_eos", r->n_eos, 0, KWK_MAX_EOS},
    };
    const struct {
        const char *field;
        float v, lo, hi;
    } floats[] = {
        {"rms_eps", r->rms_eps, 0, 1},
        {"attn_scale", r->attn_scale, 1e-6f, 1e6f},
        {"rope_theta", r->rope_theta, 1e-4f, 2e12f},
        {"rope_factor", r->rope_factor, 0, 2e6f},
        {"rope_low_freq", r->rope_low_freq, 0, 2e6f},
        {"rope_high_freq", r->rope_high_freq, 0, 2e6f},
    };
    size_t known = 0;

    while (known < COUNT(families) &&
           strncmp(r->model_type, families[known].model_type, sizeof r->model_type) != 0)
        known++;
    if (known == COUNT(families))
        return kwk_fail(err, KWK_EUNSUPPORTED, "recipe: the model type is not known");
    for (size_t i = 0; i < COUNT(ints); i++)
        if (ints[i].v < ints[i].lo || ints[i].v > ints[i].hi)
            return outside(ints[i].field, ints[i].v, err);
    for (size_t i = 0; i < COUNT(floats); i++)
        if (!(floats[i].v >= floats[i].lo && floats[i].v <= floats[i].hi)) // NaN too
            return outside(floats[i].field, floats[i].v, err);
    if (r->n_heads % r->n_kv_heads)
        return outside("n_kv_heads", r->n_kv_heads, err);
    if (r->head_dim % 2)
        return outside("head_dim", r->head_dim, err);
    if (r->n_heads > KWK_MAX_INTER / r->head_dim)
        return outside("n_heads * head_dim", (double)r->n_heads * r->head_dim, err);
    if (!is_flag(r->q_bias) || !is_flag(r->k_bias) || !is_flag(r->v_bias) || !is_flag(r->o_bias) ||
        !is_flag(r->mlp_bias) || !is_flag(r->qk_norm) || !is_flag(r->tied))
        return kwk_fail(err, KWK_EUNSUPPORTED, "recipe: a flag is neither 0 nor 1");
    if (r->rope_type != KWK_ROPE_DEFAULT && !(r->rope_factor > 0))
        return outside("rope_factor", r->rope_factor, err);
    if (r->rope_type == KWK_ROPE_LLAMA3) {
        if (!(r->rope_low_freq > 0) || !(r->rope_high_freq > r->rope_low_freq))
            return outside("rope_high_freq", r->rope_high_freq, err);
        if (r->rope_original_max_pos < 1)
            return outside("rope_original_max_pos", r->rope_original_max_pos, err);
    }
    for (int i = 0; i < r->n_eos; i++)
        if (r->eos[i] < 0 || r->eos[i] >= r->vocab)
            return outside("eos", r->eos[i], err);
    return KWK_OK;
}

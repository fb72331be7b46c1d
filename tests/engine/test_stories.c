/* SPDX-License-Identifier: Apache-2.0
 *
 * A real trained model (stories260K, float32): greedy decoding from BOS gives exactly its published
 * tokens, alone, sixteen at once, and when the whole text is verified in one step.
 */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/kwk.h"
#include "tests/support/check.h"

enum { MAX_IDS = 512, SEQS = 16 };

static char folder[1024];
static int32_t ids[MAX_IDS];
static int n_ids;
static kwk_model *m;

static void find_folder(void)
{
    const char *shared = getenv("KWK_SHARED"), *source = getenv("KWK_SOURCE_DIR");

    if (shared)
        snprintf(folder, sizeof folder, "%s/data/stories260K", shared);
    else
        snprintf(folder, sizeof folder, "%s/../shared/data/stories260K", source ? source : ".");
}

static void read_ids(void)
{
    char path[1100], text[16384];
    FILE *f;

    snprintf(path, sizeof path, "%s/greedy_from_bos_256.json", folder);
    f = fopen(path, "r");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    cJSON *list = cJSON_Parse(text), *item;
    assert_true(cJSON_IsArray(list));
    cJSON_ArrayForEach(item, list) ids[n_ids++] = item->valueint;
    cJSON_Delete(list);
    assert_int_equal(n_ids, 257);
}

/* The folder may be missing on a developer's machine, not in CI. */
static int present(void)
{
    const char *ci = getenv("CI");

    if (m || access(folder, R_OK) == 0)
        return 1;
    if (ci && !strcmp(ci, "true"))
        fail_msg("%s is missing", folder);
    return 0;
}

static void open_model(void)
{
    kwk_model_options o = KWK_MODEL_OPTIONS_INIT;
    kwk_error err = {0};

    if (m)
        return;
    read_ids();
    o.precision = "float32";
    if (kwk_model_open(&m, folder, &o, &err) != KWK_OK)
        fail_msg("%s", err.msg);
}

static void generate(int n_seqs)
{
    const kwk_sampling greedy = KWK_SAMPLING_INIT;
    kwk_seq *s[SEQS];
    kwk_row rows[SEQS];

    for (int i = 0; i < n_seqs; i++)
        assert_int_equal(kwk_seq_new(&s[i], m, NULL), KWK_OK);
    for (int k = 0; k < n_ids - 1; k++) {
        kwk_step_args a = {.size = sizeof a, .rows = rows, .n_rows = n_seqs};

        for (int i = 0; i < n_seqs; i++)
            rows[i] = (kwk_row){.seq = s[i],
                                .token = k ? rows[i].out_token : ids[0],
                                .position = k,
                                .sampling = &greedy};
        assert_int_equal(kwk_step(m, &a, NULL), KWK_OK);
        for (int i = 0; i < n_seqs; i++)
            assert_int_equal(rows[i].out_token, ids[k + 1]);
    }
    for (int i = 0; i < n_seqs; i++)
        kwk_seq_free(s[i]);
}

static void greedy_from_bos_gives_the_published_tokens(void **state)
{
    if (!present())
        check_skip("needs ../shared/data");
    open_model();
    generate(1);
}

static void sixteen_sequences_at_once_give_them_too(void **state)
{
    kwk_counters c;

    if (!present())
        check_skip("needs ../shared/data");
    open_model();
    generate(SEQS);
    kwk_model_counters(m, &c);
    assert_int_equal(c.max_rows, SEQS);
}

static void the_whole_text_is_verified_in_one_step(void **state)
{
    const kwk_sampling greedy = KWK_SAMPLING_INIT;
    kwk_row rows[MAX_IDS];
    kwk_step_args a = {.size = sizeof a, .rows = rows};
    kwk_seq *s = NULL;

    if (!present())
        check_skip("needs ../shared/data");
    open_model();
    assert_int_equal(kwk_seq_new(&s, m, NULL), KWK_OK);
    for (int i = 0; i < n_ids - 1; i++)
        rows[i] = (kwk_row){.seq = s, .token = ids[i], .position = i, .sampling = &greedy};
    a.n_rows = n_ids - 1;
    assert_int_equal(kwk_step(m, &a, NULL), KWK_OK);
    for (int i = 0; i < n_ids - 1; i++)
        assert_int_equal(rows[i].out_token, ids[i + 1]);
    kwk_seq_free(s);
}

static int teardown(void **state)
{
    kwk_model_free(m);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_from_bos_gives_the_published_tokens),
        cmocka_unit_test(sixteen_sequences_at_once_give_them_too),
        cmocka_unit_test(the_whole_text_is_verified_in_one_step),
    };

    find_folder();
    return cmocka_run_group_tests(tests, NULL, teardown);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * A real trained model (stories260K, float32): greedy decoding from BOS gives exactly its published
 * tokens, alone, sixteen at once, and when the whole text is verified in one step.
 */
#include <cjson/cJSON.h>
#include <stdlib.h>

#include "engine/kwk.h"
#include "tests/support/check.h"
#include "tests/support/tiny_model.h"

enum { MAX_IDS = 257, SEQS = 16 };

static char *folder;
static int32_t ids[MAX_IDS];
static int n_ids;
static kwk_model *m;

static void read_ids(void)
{
    size_t n;
    char *text = (char *)tiny_read(folder, "greedy_from_bos_256.json", &n);
    cJSON *list = cJSON_Parse(text), *item;

    assert_true(cJSON_IsArray(list));
    assert_int_equal(cJSON_GetArraySize(list), 257);
    cJSON_ArrayForEach(item, list) ids[n_ids++] = item->valueint;
    cJSON_Delete(list);
    free(text);
}

/* Opens the model the first time; 0: the folder is absent (and this is not CI). */
static int open_model(void)
{
    kwk_model_options o = KWK_MODEL_OPTIONS_INIT;
    kwk_error err = {0};

    if (m)
        return 1;
    folder = tiny_shared("stories260K");
    if (!folder)
        return 0;
    read_ids();
    o.precision = "float32";
    if (kwk_model_open(&m, folder, &o, &err) != KWK_OK)
        fail_msg("%s", err.msg);
    return 1;
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
    if (!open_model())
        check_skip("no ../shared/data");
    generate(1);
}

static void sixteen_sequences_at_once_give_them_too(void **state)
{
    kwk_counters c;

    if (!open_model())
        check_skip("no ../shared/data");
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

    if (!open_model())
        check_skip("no ../shared/data");
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
    free(folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_from_bos_gives_the_published_tokens),
        cmocka_unit_test(sixteen_sequences_at_once_give_them_too),
        cmocka_unit_test(the_whole_text_is_verified_in_one_step),
    };

    return cmocka_run_group_tests(tests, NULL, teardown);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * engine/seq.c: lengths, holes, validity, fork, truncate, import and export, and whose blocks they
 * are.
 */
#include <string.h>

#include "engine/kv.h"
#include "engine/seq.h"
#include "tests/support/check.h"
#include "tests/support/hand_model.h"

enum { LAYERS = 2, HEADS = 2, DIM = 6, CTX = 200, BLOCKS = 8 };
enum { BLOCK_BYTES = LAYERS * 2 * HEADS * DIM * 32 * 4 };

static kwk_model *m;

static int start(void **state)
{
    const hand_config c = {.n_layers = LAYERS,
                           .hidden = 16,
                           .inter = 16,
                           .n_heads = 4,
                           .n_kv_heads = HEADS,
                           .head_dim = DIM,
                           .vocab = 20,
                           .tied = 1,
                           .format = KWK_F32,
                           .max_ctx = CTX,
                           .kv_bytes = BLOCKS * BLOCK_BYTES};

    m = hand_model_new(&c);
    return 0;
}

static int stop(void **state)
{
    assert_int_equal(kwk_kv_free_blocks(m->kv), BLOCKS); // every test gives its blocks back
    hand_model_free(m);
    return 0;
}

static kwk_seq *new_seq(void)
{
    kwk_seq *s = NULL;

    assert_int_equal(kwk_seq_new(&s, m, NULL), KWK_OK);
    return s;
}

/* n more slots by a step; tokens first, first + 1, … */
static void feed(kwk_seq *s, int first, int n)
{
    kwk_row rows[CTX];
    kwk_step_args a = {.size = sizeof a, .rows = rows, .n_rows = n};
    kwk_error err = {0};

    for (int i = 0; i < n; i++)
        rows[i] = (kwk_row){.seq = s, .token = (first + i) % 20, .position = s->length + i};
    if (kwk_step(m, &a, &err) != KWK_OK)
        fail_msg("kwk_step: %s", err.msg);
}

typedef struct kv {
    float k[HEADS * CTX * DIM], v[HEADS * CTX * DIM];
} kv;

static void export(const kwk_seq *s, int layer, kv *out)
{
    memset(out, 0x55, sizeof *out);
    assert_int_equal(kwk_seq_export_kv(s, layer, out->k, out->v, NULL), KWK_OK);
}

static void check_same_kv(const kwk_seq *a, const kwk_seq *b)
{
    static kv x, y;

    assert_int_equal(a->length, b->length);
    for (int l = 0; l < LAYERS; l++) {
        export(a, l, &x);
        export(b, l, &y);
        check_same_f32(x.k, y.k, (size_t)(HEADS * a->length * DIM), "keys of layer %d", l);
        check_same_f32(x.v, y.v, (size_t)(HEADS * a->length * DIM), "values of layer %d", l);
    }
}

static void a_new_sequence_is_empty_and_holds_its_model(void **state)
{
    kwk_seq *s = new_seq();

    assert_int_equal(kwk_seq_length(s), 0);
    assert_int_equal(atomic_load(&m->refs), 2);
    kwk_seq_free(s);
    assert_int_equal(atomic_load(&m->refs), 1);
    kwk_seq_free(NULL);
    assert_int_equal(kwk_seq_new(&s, NULL, NULL), KWK_EINVAL);
}

static void a_step_appends_slots_and_takes_blocks_of_32(void **state)
{
    kwk_seq *s = new_seq();

    feed(s, 0, 1);
    assert_int_equal(kwk_kv_free_blocks(m->kv), BLOCKS - 1);
    feed(s, 1, 31);
    assert_int_equal(kwk_kv_free_blocks(m->kv), BLOCKS - 1);
    feed(s, 2, 1);
    assert_int_equal(kwk_kv_free_blocks(m->kv), BLOCKS - 2);
    assert_int_equal(kwk_seq_length(s), 33);
    kwk_seq_free(s);
}

static void truncate_gives_blocks_back_and_the_rest_stays(void **state)
{
    kwk_seq *s = new_seq(), *want = new_seq();

    feed(s, 0, 100);
    feed(want, 0, 40);
    assert_int_equal(kwk_seq_truncate(s, 40, NULL), KWK_OK);
    assert_int_equal(kwk_kv_free_blocks(m->kv), BLOCKS - 2 - 2);
    check_same_kv(s, want);
    feed(s, 3, 20); // other tokens than before
    feed(want, 3, 20);
    check_same_kv(s, want);
    assert_int_equal(kwk_seq_truncate(s, 0, NULL), KWK_OK);
    assert_int_equal(kwk_seq_length(s), 0);
    kwk_seq_free(s);
    kwk_seq_free(want);
}

static void truncate_out_of_range_is_refused(void **state)
{
    kwk_seq *s = new_seq();
    kwk_error err = {0};

    feed(s, 0, 5);
    assert_int_equal(kwk_seq_truncate(s, 6, &err), KWK_EINVAL);
    assert_string_equal(err.msg, "n_slots 6 is not in 0..5");
    assert_int_equal(kwk_seq_truncate(s, -1, &err), KWK_EINVAL);
    assert_int_equal(kwk_seq_length(s), 5);
    kwk_seq_free(s);
}

static void a_fork_shares_blocks_until_one_side_writes(void **state)
{
    kwk_seq *s = new_seq(), *f = NULL, *want = new_seq();
    kwk_counters before, after;

    feed(s, 0, 40);
    assert_int_equal(kwk_seq_fork(&f, s, NULL), KWK_OK);
    assert_int_equal(kwk_kv_free_blocks(m->kv), BLOCKS - 2);
    check_same_kv(f, s);

    kwk_model_counters(m, &before);
    feed(f, 7, 10); // copies the second block, which is partly full
    kwk_model_counters(m, &after);
    assert_int_equal(after.blocks_copied - before.blocks_copied, 1);
    assert_int_equal(kwk_kv_free_blocks(m->kv), BLOCKS - 3);
    feed(s, 11, 10); // it is the only owner of the old one now
    kwk_model_counters(m, &before);
    assert_int_equal(after.blocks_copied, before.blocks_copied);
    assert_int_equal(kwk_kv_free_blocks(m->kv), BLOCKS - 3);

    feed(want, 0, 40);
    feed(want, 7, 10);
    check_same_kv(f, want);
    assert_int_equal(kwk_seq_truncate(want, 40, NULL), KWK_OK);
    feed(want, 11, 10);
    check_same_kv(s, want);
    kwk_seq_free(s);
    feed(f, 0, 1); // outlives its parent
    kwk_seq_free(f);
    kwk_seq_free(want);
}

static void a_fork_at_a_block_boundary_copies_nothing(void **state)
{
    kwk_seq *s = new_seq(), *f = NULL;
    kwk_counters before, after;

    feed(s, 0, 64);
    assert_int_equal(kwk_seq_fork(&f, s, NULL), KWK_OK);
    kwk_model_counters(m, &before);
    feed(f, 0, 1);
    feed(s, 0, 1);
    kwk_model_counters(m, &after);
    assert_int_equal(after.blocks_copied, before.blocks_copied);
    assert_int_equal(kwk_kv_free_blocks(m->kv), BLOCKS - 4);
    kwk_seq_free(s);
    kwk_seq_free(f);
}

static void holes_take_no_blocks_and_read_as_zero(void **state)
{
    static kv x;
    kwk_seq *s = new_seq();
    kwk_error err = {0};

    feed(s, 0, 3);
    feed(s, 0, 60); // leaves old data in the blocks' later slots …
    assert_int_equal(kwk_seq_truncate(s, 3, NULL), KWK_OK);
    const int free_blocks = kwk_kv_free_blocks(m->kv);
    assert_int_equal(kwk_seq_append_holes(s, 70, NULL), KWK_OK);
    assert_int_equal(kwk_kv_free_blocks(m->kv), free_blocks);
    assert_int_equal(kwk_seq_length(s), 73);
    export(s, 1, &x);
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < 73 * DIM; i++) {
            const float k = x.k[h * 73 * DIM + i], v = x.v[h * 73 * DIM + i];
            if (i >= 3 * DIM) { // … which nobody may see
                assert_true(k == 0 && v == 0);
            } else {
                assert_true(k != 0 && v != 0);
            }
        }
    assert_int_equal(kwk_seq_append_holes(s, CTX - 73 + 1, &err), KWK_EFULL);
    assert_string_equal(err.msg, "73 slots and 128 holes pass the context of 200");
    assert_int_equal(kwk_seq_append_holes(s, -1, &err), KWK_EINVAL);
    assert_int_equal(kwk_seq_append_holes(s, CTX - 73, NULL), KWK_OK);
    kwk_seq_free(s);
}

static void validity_is_set_slot_by_slot(void **state)
{
    kwk_seq *s = new_seq();
    kwk_error err = {0};
    const uint8_t bits[5] = {0, 1, 0, 1, 0}, two = 2, one = 1;

    feed(s, 0, 40);
    assert_int_equal(kwk_seq_set_valid(s, 30, 5, bits, NULL), KWK_OK);
    assert_int_equal(s->valid[0], 0xbfffffffu);
    assert_int_equal(s->valid[1], 0xfau);
    assert_int_equal(kwk_seq_set_valid(s, 0, 1, &two, &err), KWK_EINVAL);
    assert_int_equal(kwk_seq_set_valid(s, 40, 1, &one, &err), KWK_EINVAL);
    assert_int_equal(kwk_seq_set_valid(s, -1, 1, &one, &err), KWK_EINVAL);
    assert_int_equal(kwk_seq_append_holes(s, 2, NULL), KWK_OK);
    assert_int_equal(kwk_seq_set_valid(s, 41, 1, &one, &err), KWK_EINVAL);
    assert_string_equal(err.msg, "slot 41 was never computed or imported");
    assert_int_equal(kwk_seq_set_valid(s, 41, 1, bits, NULL), KWK_OK);
    kwk_seq_free(s);
}

static void imported_keys_and_values_come_out_again(void **state)
{
    static kv in, out;
    kwk_seq *s = new_seq(), *f = NULL;
    uint64_t seed = 3;
    const uint8_t ones[CTX] = {[0 ... CTX - 1] = 1};

    check_fill_f32(in.k, HEADS * 50 * DIM, CHECK_UNIFORM, &seed);
    check_fill_f32(in.v, HEADS * 50 * DIM, CHECK_UNIFORM, &seed);
    assert_int_equal(kwk_seq_append_holes(s, 60, NULL), KWK_OK);
    assert_int_equal(kwk_seq_import_kv(s, 1, 7, 50, in.k, in.v, NULL), KWK_OK);
    export(s, 1, &out);
    for (int h = 0; h < HEADS; h++) {
        check_same_f32(out.k + (h * 60 + 7) * DIM, in.k + h * 50 * DIM, 50 * DIM, "keys");
        check_same_f32(out.v + (h * 60 + 7) * DIM, in.v + h * 50 * DIM, 50 * DIM, "values");
    }
    export(s, 0, &out); // the other layer: nothing of an earlier owner
    for (int i = 0; i < HEADS * 60 * DIM; i++)
        assert_true(out.k[i] == 0 && out.v[i] == 0);
    assert_int_equal(s->valid[0], 0); // validity stays
    assert_int_equal(kwk_seq_set_valid(s, 7, 50, ones, NULL), KWK_OK);

    assert_int_equal(kwk_seq_fork(&f, s, NULL), KWK_OK);
    assert_int_equal(kwk_seq_import_kv(f, 1, 7, 1, in.v, in.k, NULL), KWK_OK);
    export(s, 1, &out); // the parent keeps its own
    check_same_f32(out.k + 7 * DIM, in.k, DIM, "keys of the parent");
    kwk_seq_free(f);

    assert_int_equal(kwk_seq_import_kv(s, 1, 11, 50, in.k, in.v, NULL), KWK_EINVAL);
    assert_int_equal(kwk_seq_import_kv(s, LAYERS, 0, 1, in.k, in.v, NULL), KWK_EINVAL);
    assert_int_equal(kwk_seq_export_kv(s, -1, out.k, out.v, NULL), KWK_EINVAL);
    kwk_seq_free(s);
}

static void an_import_without_free_blocks_changes_nothing(void **state)
{
    static kv x;
    kwk_seq *full = new_seq(), *s = new_seq();
    kwk_error err = {0};

    feed(full, 0, CTX);
    feed(s, 0, 5);
    assert_int_equal(kwk_kv_free_blocks(m->kv), 0);
    assert_int_equal(kwk_seq_append_holes(s, 60, NULL), KWK_OK);
    assert_int_equal(kwk_seq_import_kv(s, 0, 5, 60, x.k, x.v, &err), KWK_EFULL);
    assert_string_equal(err.msg, "2 KV blocks are needed and 0 are free");
    assert_int_equal(s->written[0], 0x1f);
    kwk_seq_free(full);
    kwk_seq_free(s);
}

static void a_copied_prefix_continues_like_the_original(void **state)
{
    static kv x;
    kwk_seq *s = new_seq(), *copy = new_seq();
    const uint8_t ones[45] = {[0 ... 44] = 1};

    feed(s, 0, 45);
    assert_int_equal(kwk_seq_append_holes(copy, 45, NULL), KWK_OK);
    for (int l = 0; l < LAYERS; l++) {
        export(s, l, &x);
        assert_int_equal(kwk_seq_import_kv(copy, l, 0, 45, x.k, x.v, NULL), KWK_OK);
    }
    assert_int_equal(kwk_seq_set_valid(copy, 0, 45, ones, NULL), KWK_OK);
    feed(s, 9, 3);
    feed(copy, 9, 3);
    check_same_kv(s, copy);
    kwk_seq_free(s);
    kwk_seq_free(copy);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, start, stop)
    const struct CMUnitTest tests[] = {
        TEST(a_new_sequence_is_empty_and_holds_its_model),
        TEST(a_step_appends_slots_and_takes_blocks_of_32),
        TEST(truncate_gives_blocks_back_and_the_rest_stays),
        TEST(truncate_out_of_range_is_refused),
        TEST(a_fork_shares_blocks_until_one_side_writes),
        TEST(a_fork_at_a_block_boundary_copies_nothing),
        TEST(holes_take_no_blocks_and_read_as_zero),
        TEST(validity_is_set_slot_by_slot),
        TEST(imported_keys_and_values_come_out_again),
        TEST(an_import_without_free_blocks_changes_nothing),
        TEST(a_copied_prefix_continues_like_the_original),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

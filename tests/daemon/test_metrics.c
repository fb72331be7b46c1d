/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "daemon/metrics.h"
#include "tests/daemon/harness.h"

static kwkd_metrics m;

static char *text(void)
{
    kwkd_page p = {0};

    kwkd_page_metrics(&p, &m);
    assert_int_equal(p.failed, 0);
    return p.text;
}

static void expect_line(const char *line)
{
    char *t = text();

    if (!strstr(t, line))
        fail_msg("'%s' is missing", line);
    free(t);
}

static void counters_and_labels_are_shown(void **state)
{
    memset(&m, 0, sizeof m);
    kwkd_count(&m.requests[KWK_OP_generate], 3);
    kwkd_count(&m.errors[-KWK_EBUSY], 2);
    kwkd_count(&m.finished[KWK_FINISH_SLOW], 1);
    kwkd_count(&m.new_tokens, 1ull << 33);
    expect_line("\nkwker_requests_total{op=\"generate\"} 3\n");
    expect_line("\nkwker_requests_total{op=\"status\"} 0\n");
    expect_line("\nkwker_errors_total{error=\"EBUSY\"} 2\n");
    expect_line("\nkwker_generations_total{finish=\"slow_client\"} 1\n");
    expect_line("\nkwker_new_tokens_total 8589934592\n");
    expect_line("# TYPE kwker_new_tokens_total counter\n");
}

static void histograms_are_cumulative(void **state)
{
    memset(&m, 0, sizeof m);
    kwkd_count_rows(&m, 1);
    kwkd_count_rows(&m, 16);
    kwkd_count_rows(&m, 16);
    kwkd_count_rows(&m, 129);
    expect_line("kwker_step_rows_bucket{le=\"1\"} 1\n");
    expect_line("kwker_step_rows_bucket{le=\"8\"} 1\n");
    expect_line("kwker_step_rows_bucket{le=\"16\"} 3\n");
    expect_line("kwker_step_rows_bucket{le=\"+Inf\"} 4\n");
    expect_line("kwker_step_rows_sum 162\n");
    expect_line("kwker_step_rows_count 4\n");
    expect_line("kwker_step_rows_max 129\n");
    expect_line("kwker_steps_total 4\n");
    kwkd_observe_us(&m.first_token_us, 1500);
    kwkd_observe_us(&m.first_token_us, 60000000);
    expect_line("kwker_first_token_seconds_bucket{le=\"0.001\"} 0\n");
    expect_line("kwker_first_token_seconds_bucket{le=\"0.0025\"} 1\n");
    expect_line("kwker_first_token_seconds_bucket{le=\"30\"} 1\n");
    expect_line("kwker_first_token_seconds_bucket{le=\"+Inf\"} 2\n");
    expect_line("kwker_first_token_seconds_sum 60.0015\n");
}

static void every_metric_has_help_and_type_once(void **state)
{
    char *t = text();
    int help = 0, type = 0;

    for (const char *c = t; (c = strstr(c, "# HELP ")); c++)
        help++;
    for (const char *c = t; (c = strstr(c, "# TYPE ")); c++)
        type++;
    assert_true(help > 15);
    assert_int_equal(help, type);
    free(t);
}

static void labels_are_escaped_and_cut(void **state)
{
    char buf[16];

    assert_string_equal(kwkd_label("a\"b\\c\nd", buf, sizeof buf), "a\\\"b\\\\c\\nd");
    assert_true(strlen(kwkd_label("0123456789abcdefgh\"", buf, sizeof buf)) < sizeof buf);
}

static void a_page_grows(void **state)
{
    kwkd_page p = {0};

    for (int i = 0; i < 10000; i++)
        kwkd_page_add(&p, "line %d\n", i);
    assert_int_equal(p.failed, 0);
    assert_int_equal(p.n, strlen(p.text));
    assert_non_null(strstr(p.text, "\nline 9999\n"));
    free(p.text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counters_and_labels_are_shown),
        cmocka_unit_test(histograms_are_cumulative),
        cmocka_unit_test(every_metric_has_help_and_type_once),
        cmocka_unit_test(labels_are_escaped_and_cut),
        cmocka_unit_test(a_page_grows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

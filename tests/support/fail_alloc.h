/* SPDX-License-Identifier: Apache-2.0
 *
 * The nth allocation of this thread fails. Programs that use it link kwk_fail_alloc;
 * allocations inside shared libraries are not seen.
 *
 *     FAIL_EACH(n) {                      // n = 0, 1, 2, …
 *         fail_alloc_at(n);
 *         rc = work();
 *         if (fail_alloc_end())           // n was beyond the last allocation: work() succeeded
 *             break;
 *         …rc is KWK_ENOMEM, nothing changed
 *     }
 */
#ifndef KWK_TESTS_SUPPORT_FAIL_ALLOC_H
#define KWK_TESTS_SUPPORT_FAIL_ALLOC_H

/* From now on: n allocations succeed, the next fails, those after it succeed. */
void fail_alloc_at(int n);

/* Stop; 1: none failed. */
int fail_alloc_end(void);

#define FAIL_EACH(n) for (int n = 0; n < 100000; n++)

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * A program of a user of the installed library: compiled by test_install.sh, as C and as C++.
 */
#include <kwkclient.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
    kwk_client *c = NULL;
    kwk_error err;
    const int rc = kwk_client_open(&c, "/nowhere", NULL, &err);

    printf("%s: %s\n", kwk_error_name(rc), err.msg);
    return rc == KWK_ENOENT && strlen(kwk_client_version()) > 0 ? 0 : 1;
}

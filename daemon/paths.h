/* SPDX-License-Identifier: Apache-2.0
 *
 * What may be opened for a client: paths under the model directories of the configuration, and
 * descriptors whose reads cannot hang on a file server of their owner's. Knows no models.
 */
#ifndef KWK_DAEMON_PATHS_H
#define KWK_DAEMON_PATHS_H

#include <sys/stat.h>

#include "daemon/conf.h"

/**
 * The real path of what a client asks for.
 *
 * @param out  the caller's: free()
 *
 * @return KWK_OK; KWK_EPERM it is neither under a model directory, also through links, nor that of
 * a configured model (outside of them nothing is even looked at); KWK_ENOENT; KWK_EIO; KWK_ENOMEM
 */
int kwkd_path_resolve(const kwkd_conf *conf, const char *path, char **out, kwk_error *err);

/** Whether a descriptor is a regular file or memfd, open for reading, on a file system of this
 * machine; *st is filled. KWK_EUNSUPPORTED: it is not; KWK_EIO. */
int kwkd_pack_check(int fd, struct stat *st, kwk_error *err);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * The client's half of the Scalability Protocols over AF_UNIX streams, as NNG's ipc transport speaks
 * them: REQ only. Blocking with deadlines; one request at a time; no threads; safe to close in a
 * forked child.
 *
 * Handshake: each side sends 8 bytes 00 'S' 'P' 00, protocol number (u16 BE), 00 00; REQ is 0x30, REP
 * 0x31. Message: 01, length (u64 BE), body; a REQ body starts with a request id (u32 BE, top bit
 * set) that the reply repeats. (nanomsg RFC "SP TCP mapping" with NNG's ipc framing.)
 */
#ifndef KWK_PROTO_SP_H
#define KWK_PROTO_SP_H

#include "proto/msg.h"

typedef struct kwk_sp {
    int fd; // -1: closed
    uint32_t next_id;
} kwk_sp;

/** Connect to the socket at `path` and shake hands. KWK_ENOENT no daemon there; KWK_EPROTO it is no
 *  REP socket; KWK_ETIMEOUT. */
int kwk_sp_open(kwk_sp *s, const char *path, int timeout_ms, kwk_error *err);
void kwk_sp_close(kwk_sp *s);

/** Send a request and wait for its reply, appended to *reply. After KWK_ETIMEOUT, KWK_ECLOSED or
 *  KWK_EPROTO the connection is closed. Replies over KWK_MSG_MAX are KWK_EPROTO. */
int kwk_sp_call(kwk_sp *s, const void *req, size_t n, kwk_buf *reply, int timeout_ms,
                kwk_error *err);

#endif

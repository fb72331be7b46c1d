/* SPDX-License-Identifier: Apache-2.0
 *
 * A stand-in for kwkerd in the client's tests: door, NNG REP control and rings, all in threads of the
 * test process, with a switch for every way in which a daemon can misbehave. Knows no engine: tokens
 * and logits are arithmetic.
 *
 * Models: "count" streams token prompt[0] + i for i = 0 … max_new_tokens-1, each with the text of its
 * number and a space, and the alternatives asked for; "manual" accepts and leaves the records to the
 * test (fake_record). Logits of token t at slot p are t * 1000 + p + (index in the vocabulary).
 */
#ifndef KWK_TESTS_SUPPORT_FAKE_DAEMON_H
#define KWK_TESTS_SUPPORT_FAKE_DAEMON_H

#include <stdatomic.h>

#include "proto/msg.h"
#include "proto/ring.h"

enum { FAKE_VOCAB = 50, FAKE_MAX_CTX = 4096 };

/* How the door answers a hello. */
typedef enum fake_welcome {
    FAKE_WELCOME_GOOD,
    FAKE_WELCOME_SILENT,     // accepts and says nothing
    FAKE_WELCOME_CLOSE,      // closes at once
    FAKE_WELCOME_BUSY,       // error EBUSY
    FAKE_WELCOME_GARBAGE,    // no msgpack
    FAKE_WELCOME_VERSION,    // version 2
    FAKE_WELCOME_LONG,       // a packet over 64 KiB
    FAKE_WELCOME_NO_FDS,
    FAKE_WELCOME_ONE_FD,
    FAKE_WELCOME_EXTRA_FD,
    FAKE_WELCOME_MANY_FDS,   // more than the client has room for
    FAKE_WELCOME_UNSEALED,
    FAKE_WELCOME_SMALL,      // memfds smaller than announced
    FAKE_WELCOME_PIPES,      // descriptors that are no memfds
    FAKE_WELCOME_MAGIC,      // rings without their magic
    FAKE_WELCOME_SLOTS,      // an impossible number of slots
    FAKE_WELCOME_SESSION,    // a session id of 8 bytes
    FAKE_WELCOME_NO_CTL,     // no control socket named
    FAKE_WELCOME_LONG_CTL,   // a path that fits no socket
    FAKE_WELCOME_RELATIVE_CTL, // good: the path is relative to the runtime directory
    FAKE_WELCOMES
} fake_welcome;

typedef struct fake_daemon {
    char dir[64];
    /* switches, set by the test at any time */
    _Atomic int welcome;       // fake_welcome
    _Atomic int error;         // this code answers every control request
    _Atomic int garbage;       // control replies are no msgpack
    _Atomic int silent;        // control requests are not answered
    _Atomic int stall;         // the engine thread does nothing
    _Atomic int pack_silent;   // packs are not answered
    _Atomic int sub_error_seq; // submissions of this sequence fail with EFULL
    _Atomic int sub_bad_row;   // answers name another row
    _Atomic int load_fails;    // loads end in state "failed"
    /* what it saw */
    _Atomic int n_hellos, n_requests, n_generates, n_subs, n_rings, n_packs, n_cancels;
    _Atomic int last_stream;   // of the last generate, -1 none
    _Atomic int pack_byte;     // first byte of the last pack
    struct fake_state *state;
} fake_daemon;

/** Start with its sockets in a new directory under /tmp. Never NULL. */
fake_daemon *fake_start(void);
/** Stop and remove everything. Sockets close as those of a process that died. */
void fake_stop(fake_daemon *d);
/** Only close doors, control and listeners, as kill -9 does. fake_stop() is still needed. */
void fake_kill(fake_daemon *d);
/** Close the control socket's connections and open it anew; doors stay. */
void fake_restart_control(fake_daemon *d);

/** Put a record for the newest session into its ring and publish it; no credit is checked. */
void fake_record(fake_daemon *d, uint32_t stream, int type, int32_t token, const void *payload,
                 size_t n);
/** Change what the newest session's ring says, behind the producer's back. */
kwk_out_header *fake_out(fake_daemon *d);
const kwk_in_header *fake_in(fake_daemon *d);
/** Send a packet on the newest session's door. */
void fake_door_send(fake_daemon *d, const void *p, size_t n);
/** End the newest session with an error map on its door. */
void fake_end_session(fake_daemon *d, int code, const char *text);

/** The last generate request's prompt: its length; ids in *prompt (borrowed until the next). */
int fake_last_prompt(fake_daemon *d, const int32_t **prompt);
/** Length of a sequence; -1: it does not exist. */
int fake_seq_length(fake_daemon *d, uint64_t seq);
int fake_n_seqs(fake_daemon *d);

#endif

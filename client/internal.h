/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of libkwkclient: what a session consists of, and which lock guards what.
 *
 * Three locks, never two of them at once but lock inside the other two:
 *   lock       the ring's consumer, the streams' queues, the door's incoming packets, the death note
 *   ctl_lock   the control connection: one request at a time
 *   area_lock  the data area of the in ring, the submissions and the logits area
 */
#ifndef KWK_CLIENT_INTERNAL_H
#define KWK_CLIENT_INTERNAL_H

#include <pthread.h>
#include <sys/types.h>

#include "client/kwkclient.h"
#include "client/text.h"
#include "proto/msg.h"
#include "proto/ring.h"
#include "proto/sp.h"
#include "proto/unix_socket.h"

enum {
    KWK_SLICE_MS = 100,         // longest sleep without a look at the door
    KWK_TIMEOUT_MS = 30000,
    KWK_PROMPT_INLINE = 32768,  // longer prompts travel in the data area
    KWK_QUEUE_SLACK = 64,       // records beyond its credit that a stream may get (its end)
};

/* In a record's `stream`: it belongs to a submission. */
#define KWK_TAG_BIT 0x80000000u

struct kwk_stream {
    kwk_client *client;
    kwk_stream *prev, *next;
    uint32_t id;
    int slot;            // index into client->slots; -1: nothing more comes
    int orphan;          // its owner freed it: free it when it ends
    int over;            // the owner has got the end
    int n_logprobs;
    uint64_t seed;
    uint64_t consumed;   // records that left the queue
    kwk_record *queue;   // circular, `capacity` a power of two
    uint32_t capacity, first, count;
    kwk_text text;
    kwk_event_logprob top[KWK_LOGPROBS_MAX];
};

struct kwk_client_seq {
    kwk_client *client;
    kwk_client_seq *prev, *next;
    uint64_t id;
    int length, vocab, max_ctx;
    int broken;          // its length in the daemon is not known
    uint64_t in_forward; // number of the last forward it was part of
};

/* What came back for one submission of the running forward. */
typedef struct kwk_answer {
    int state; // 0: nothing yet, 1: done, else an error code
    uint32_t row, n_rows;
    char msg[KWK_RECORD_PAYLOAD + 1];
} kwk_answer;

struct kwk_client {
    /* fixed after open */
    pid_t pid;
    int timeout_ms;
    int door;
    int epoll, event; // -1, or with event_loop: door and an eventfd in one descriptor
    char ctl_path[108];
    uint8_t session[16];
    void *out, *in, *logits; // mappings, in alone writable; logits NULL: no logits area
    size_t out_size, in_size, logits_size;
    uint32_t data_bytes;

    pthread_mutex_t lock;
    pthread_cond_t changed; // queues, answers, door reply, death, or the sleeper's place is free
    kwk_out_consumer ring;
    int sleeping;           // a thread sleeps on the ring for all
    kwk_error death;        // code 0: alive
    kwk_stream *slots[KWK_STREAMS];
    uint32_t next_id;
    kwk_stream *streams;    // all that exist
    kwk_client_seq *seqs;
    kwk_answer *answers;    // (KWK_SUB_SLOTS), made by the first forward; n_answers are in use, of
    uint32_t first_tag, n_answers; //   the tags from first_tag on
    uint32_t n_unanswered;  // submissions in flight, of any forward
    uint64_t n_answered;    // counts up: progress
    kwk_buf door_reply;     // last message of the door; size 0: none
    uint8_t *door_packet;   // KWK_DOOR_MAX + 1 bytes to receive into

    pthread_mutex_t ctl_lock;
    kwk_sp sp;

    pthread_mutex_t area_lock;
    uint64_t sub_tail;
    uint32_t next_tag;
    uint64_t n_forwards;
};

/* ---- client.c ---------------------------------------------------------------------------------- */

/** KWK_EFORKED in a child of the process that opened the session; KWK_EINVAL: NULL. */
int kwk_client_check(const kwk_client *c, kwk_error *err);

/** Copy an options struct whose first field is its size over *dst, which holds the defaults. Fields
 *  that this library does not know must be zero: KWK_EUNSUPPORTED. */
int kwk_copy_options(void *dst, size_t dst_size, const void *src, const char *what,
                     kwk_error *err);

/* ---- door.c ------------------------------------------------------------------------------------ */

/** Connect, say hello, and map what comes; fills the fixed fields. */
int kwk_door_open(kwk_client *c, const char *dir, const kwk_client_options *opts,
                  kwk_error *err);

/** 1: the daemon closed its end. Any thread, no lock. */
int kwk_door_is_closed(const kwk_client *c);

/** Take all waiting packets; lock held. 1: there was a wake-up among them. */
int kwk_door_read(kwk_client *c);

/** Send one byte: "look at your rings". Never blocks. */
void kwk_door_ring(kwk_client *c);

/** Hand over a pack's descriptor; *id is good for one load. */
int kwk_door_pack(kwk_client *c, int fd, uint64_t *id, kwk_error *err);

/* ---- pump.c ------------------------------------------------------------------------------------ */

/** Take what is in the ring into the queues. Lock held. Returns the number of records. */
int kwk_pump(kwk_client *c);

/** Sleep until something may have changed, at most until the deadline (kwk_now_ms) or KWK_SLICE_MS.
 *  Lock held; released meanwhile. Notices the daemon's death. */
void kwk_pump_wait(kwk_client *c, int64_t deadline);

/** Note the first cause of death and wake all. Lock held. */
void kwk_client_die(kwk_client *c, int code, const char *text);

/** The death note as this call's error. Lock held. */
int kwk_client_dead(const kwk_client *c, kwk_error *err);

/* ---- control.c --------------------------------------------------------------------------------- */

/* Open the control connection and see that it is served; ctl_lock held or nobody else there. */
int kwk_control_open(kwk_client *c, int64_t deadline, kwk_error *err);

/** A request of this session, ready to be filled in. */
kwk_request kwk_client_request(const kwk_client *c, kwk_op op);

/** Ask and wait. KWK_OK: *out is the good reply. *answered, may be NULL: 1 when the daemon replied, 0
 *  when nobody knows whether it got the request. */
int kwk_client_call(kwk_client *c, const kwk_request *req, int timeout_ms, kwk_tree **out,
                    int *answered, kwk_error *err);

/* ---- stream.c ---------------------------------------------------------------------------------- */

/** Append a record that belongs to stream slot `slot`. Lock held. */
void kwk_stream_push(kwk_client *c, int slot, const kwk_record *rec);
void kwk_stream_destroy(kwk_stream *s); // memory only
void kwk_seq_destroy(kwk_client_seq *s);

#endif

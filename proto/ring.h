/* SPDX-License-Identifier: Apache-2.0
 *
 * Layout of a session's shared memory, and the producer and consumer of its rings. Both sides
 * include it: daemon and client. Sessions, sockets and message formats are not known here.
 *
 * Three memfds per session, made and sealed by the daemon:
 *   out     daemon → client. The client can map it read-only only (F_SEAL_FUTURE_WRITE).
 *   in      client → daemon. Hostile: the daemon reads each word once into a local and checks it.
 *   logits  daemon → client, rows of float32; read-only for the client; may be absent.
 * All fields little-endian. Indices only grow; slot = index % n_slots. The writer of an index
 * keeps the true value in private memory: the shared word is publish-only.
 *
 * Records carry up to 96 bytes of payload themselves instead of pointing into a separate byte area:
 * one index then rules everything, and a token's text is nearly always shorter.
 */
#ifndef KWK_PROTO_RING_H
#define KWK_PROTO_RING_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/error.h"

enum {
    KWK_RING_VERSION = 1,
    KWK_OUT_MAGIC = 0x4f4b574b, // "KWKO"
    KWK_IN_MAGIC = 0x494b574b,  // "KWKI"
    KWK_RING_PAGE = 4096,
    KWK_OUT_SLOTS_MIN = 64,
    KWK_OUT_SLOTS_DEFAULT = 1024,
    KWK_OUT_SLOTS_MAX = 65536,
    KWK_STREAMS = 256,   // streams of a session that may run at once: slot = stream id % 256
    KWK_SUB_SLOTS = 1024, // submissions in flight
    KWK_IN_DATA_DEFAULT = 1 << 20,
    KWK_IN_DATA_MAX = 16 << 20,
    KWK_RECORD_PAYLOAD = 96,
};

typedef enum kwk_record_type {
    KWK_REC_TOKEN = 1,    // token, logprob; payload: its text (first 96 bytes), when text was asked
    KWK_REC_TEXT = 2,     // payload: more text of the last token, or text held back until complete
    KWK_REC_LOGPROBS = 3, // payload: up to 12 × {int32 id, float32 logprob} of the last token
    KWK_REC_DONE = 4,     // end of a stream: token = kwk_finish, payload: kwk_done
    KWK_REC_ERROR = 5,    // end of a stream: token = error code (negative), payload: message
    KWK_REC_LOGITS = 6,   // a submission is done: aux = first row of the logits area, token = rows
    KWK_REC_PROGRESS = 7, // prompt tokens computed so far: token; aux = prompt length
} kwk_record_type;

typedef enum kwk_finish {
    KWK_FINISH_EOS = 1,    // an end-of-sequence id was chosen (it is the last token)
    KWK_FINISH_LENGTH = 2, // max_new_tokens or the context's end
    KWK_FINISH_CANCEL = 3,
    KWK_FINISH_SLOW = 4,   // the client did not drain its ring
    KWK_FINISH_SHUTDOWN = 5,
} kwk_finish;

/* One record of the out ring. */
typedef struct kwk_record {
    uint64_t seq;     // index of this record: a reader can tell it is whole and expected
    uint32_t stream;  // id given by the client
    int32_t token;
    float logprob;
    uint16_t type;    // kwk_record_type
    uint16_t n_bytes; // of payload
    uint32_t aux;
    uint32_t reserved;
    uint8_t payload[KWK_RECORD_PAYLOAD];
} kwk_record;
_Static_assert(sizeof(kwk_record) == 128, "record layout");

/* Payload of KWK_REC_DONE. */
typedef struct kwk_done {
    uint32_t prompt_tokens, new_tokens, cached_tokens, reserved;
    uint64_t queue_us, prefill_us, decode_us; // waiting; until the first token; after it
} kwk_done;
_Static_assert(sizeof(kwk_done) == 40, "done layout");

typedef struct kwk_out_header {
    uint32_t magic, version, n_slots, reserved;
    uint8_t pad0[48];
    _Atomic uint64_t tail; // records published
    uint8_t pad1[56];
    _Atomic uint32_t wake; // futex word: changes with each publication
    uint8_t pad2[60];
    _Atomic uint64_t sub_head; // submissions taken
    uint8_t pad3[56];
    _Atomic uint32_t sub_sleeping; // 1: the daemon does not poll submissions: send a door byte
    uint8_t pad4[60];
} kwk_out_header;
_Static_assert(offsetof(kwk_out_header, wake) == 128 && sizeof(kwk_out_header) == 320,
               "out header layout");

typedef struct kwk_in_stream {
    _Atomic uint64_t consumed; // records of this stream that the client has taken
    _Atomic uint32_t cancel;   // 1: cancel the stream
    uint32_t reserved;
} kwk_in_stream;

/* One submission: run tokens of a sequence. Arrays lie in the data area at `offset` (multiple of
 * 4): int32 token[n], then int32 position[n] if KWK_SUB_POSITIONS, then uint8 valid[n] if
 * KWK_SUB_VALID. */
enum { KWK_SUB_POSITIONS = 1, KWK_SUB_VALID = 2, KWK_SUB_ALL_LOGITS = 4, KWK_SUB_NO_LOGITS = 8 };
typedef struct kwk_submission {
    uint64_t seq;    // id from seq_open
    uint32_t tag;    // comes back as `stream` of the KWK_REC_LOGITS or KWK_REC_ERROR record
    uint32_t n;      // tokens, >= 1
    uint32_t offset; // into the data area
    uint32_t flags;  // KWK_SUB_…; without ALL or NO: logits of the last token
    uint32_t row;    // first row of the logits area to fill
    uint32_t reserved;
} kwk_submission;
_Static_assert(sizeof(kwk_submission) == 32, "submission layout");

typedef struct kwk_in_header {
    uint32_t magic, version, data_bytes, reserved;
    uint8_t pad0[48];
    _Atomic uint64_t head; // records of the out ring taken by the client
    uint8_t pad1[56];
    _Atomic uint32_t waiting;   // 1: the client sleeps on out.wake: call FUTEX_WAKE
    _Atomic uint32_t want_door; // 1: send a byte on the door instead (event loops)
    uint8_t pad2[56];
    _Atomic uint64_t sub_tail; // submissions published
    uint8_t pad3[56];
} kwk_in_header;
_Static_assert(sizeof(kwk_in_header) == 256, "in header layout");

/* Offsets: out: header page, records. in: header page, streams, submissions, data. */
static inline size_t kwk_out_size(uint32_t n_slots)
{
    return KWK_RING_PAGE + (size_t)n_slots * sizeof(kwk_record);
}
enum {
    KWK_IN_STREAMS_AT = KWK_RING_PAGE,
    KWK_IN_SUBS_AT = KWK_IN_STREAMS_AT + KWK_STREAMS * 16,
    KWK_IN_DATA_AT = KWK_IN_SUBS_AT + KWK_SUB_SLOTS * 32,
};
static inline size_t kwk_in_size(uint32_t data_bytes)
{
    return KWK_IN_DATA_AT + (size_t)data_bytes;
}

/* ---- memfds ---------------------------------------------------------------------------------- */

/** Make a memfd of `size` committed bytes (CLOEXEC, sealable), or a negative KWK_E…. */
int kwk_memfd_create(const char *name, size_t size, kwk_error *err);

/** Map all of fd; NULL on failure with *err set. writable: 0 or 1. */
void *kwk_memfd_map(int fd, size_t size, int writable, kwk_error *err);

/** F_ADD_SEALS against shrinking, growing and further seals; with future_write != 0 also against
 *  new writable mappings. Map for writing before. */
int kwk_memfd_seal(int fd, int future_write, kwk_error *err);

/** Check that fd is a memfd sealed against shrinking and at least `size` bytes: KWK_EPROTO if not. */
int kwk_memfd_check(int fd, size_t size, kwk_error *err);

/* ---- daemon's side of the out ring, client's side -------------------------------------------- */

/* Producer state; private memory of the daemon. One thread. */
typedef struct kwk_out_producer {
    kwk_out_header *out;
    const kwk_in_header *in; // hostile
    kwk_record *records;
    uint32_t n_slots;
    uint64_t tail;      // true value
    uint64_t seen_head; // largest head read so far
} kwk_out_producer;

/** Write both headers and the producer's state over fresh zeroed mappings. */
void kwk_out_producer_init(kwk_out_producer *p, void *out, void *in, uint32_t n_slots,
                           uint32_t data_bytes);

/** Free records, or KWK_EPROTO when the client's head moved backwards or passed the tail. */
int64_t kwk_out_free(kwk_out_producer *p, kwk_error *err);

/** Append a record (seq is filled in); the caller has checked kwk_out_free() > 0. Not yet visible. */
void kwk_out_put(kwk_out_producer *p, const kwk_record *rec);

/** Make appended records visible; wakes a client that waits on the futex. Returns 1 when the client
 *  wants a byte on the door, else 0. Never blocks. */
int kwk_out_publish(kwk_out_producer *p);

/** Take the next submission into *sub (copied once). 1 taken, 0 none, KWK_EPROTO bad indices.
 *  *sub_head is the daemon's private index. */
int kwk_sub_take(uint64_t *sub_head, kwk_out_header *out, const void *in, kwk_submission *sub,
                 kwk_error *err);

/* Consumer state; private memory of the client. One thread at a time. */
typedef struct kwk_out_consumer {
    const kwk_out_header *out; // read-only mapping
    kwk_in_header *in;
    const kwk_record *records;
    uint32_t n_slots;
    uint64_t head;
} kwk_out_consumer;

/** Check both headers and sizes. KWK_EPROTO: not a ring of this version. */
int kwk_out_consumer_init(kwk_out_consumer *c, const void *out, size_t out_size, void *in,
                          size_t in_size, kwk_error *err);

/** Copy the next record; 1 got, 0 none, KWK_EPROTO damaged. */
int kwk_out_take(kwk_out_consumer *c, kwk_record *rec, kwk_error *err);

/** Sleep until something new is published or timeout_ms (>= 0) passed: 1 something may be there,
 *  0 timed out. Spins for spin_us microseconds first. */
int kwk_out_wait(kwk_out_consumer *c, int timeout_ms, int spin_us);

/** Publish a submission; the data area was filled before. 1: the daemon sleeps, send it a byte on the
 *  door; 0: it polls; KWK_EFULL: KWK_SUB_SLOTS are in flight. *sub_tail: the client's private index. */
int kwk_sub_put(uint64_t *sub_tail, const kwk_out_header *out, void *in,
                const kwk_submission *sub, kwk_error *err);

#endif

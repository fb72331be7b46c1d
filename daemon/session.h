/* SPDX-License-Identifier: Apache-2.0
 *
 * Sessions: who is connected, their shared memory, their quotas. A session is reference-counted:
 * the door, the engine thread and running requests hold it, so that its mappings outlive its
 * client. Knows neither sockets' messages nor models. Any thread, but for the engine's part.
 */
#ifndef KWK_DAEMON_SESSION_H
#define KWK_DAEMON_SESSION_H

#include <pthread.h>
#include <stdatomic.h>

#include "daemon/conf.h"
#include "daemon/work.h"
#include "proto/msg.h"
#include "proto/ring.h"

enum { KWKD_PACKS = 4, KWKD_SESSION_BUCKETS = 256 };

struct kwkd_party;
struct kwkd_cseq;

typedef struct kwkd_session {
    atomic_int refs;
    atomic_int dead; // set once: nothing new starts for it
    uint8_t id[16];
    uint32_t uid;
    int32_t pid;
    char client[64]; // its own word, for the log
    int door;        // the connection; closed with the last reference
    uint64_t bytes;  // of shared memory
    void *out, *in;
    float *logits; // NULL: none
    uint32_t out_slots, in_bytes;
    uint64_t logits_bytes;
    struct kwkd_session *hash_next; // table's

    pthread_mutex_t lock; // streams, packs
    uint32_t stream[KWK_STREAMS];
    uint8_t stream_used[KWK_STREAMS];
    struct {
        uint64_t id; // 0: free
        int fd;
    } packs[KWKD_PACKS];

    /* The engine thread's part. */
    struct {
        kwkd_work arrive, leave;
        struct kwkd_session *prev, *next;
        struct kwkd_party *party;
        kwk_out_producer ring;
        uint64_t sub_head;
        uint64_t served; // when a prompt of it last got rows
        int dirty;       // records were put that are not published
        int is_listed;   // it is on the list of such
        struct kwkd_session *dirty_next;
        uint64_t rows_step;  // step that `rows` counts for
        int rows;            // of it, those of short tasks
        int n_seqs, n_tasks; // n_tasks: taken, and the answer not in the ring
        uint64_t last_seq;   // id
        struct kwkd_cseq *seqs;
        kwk_record *answers; // (n_answers) of tasks, waiting for room in the ring
        int n_answers;
    } engine;
} kwkd_session;

typedef struct kwkd_sessions {
    pthread_mutex_t lock;
    kwkd_session *bucket[KWKD_SESSION_BUCKETS];
    int n;
    uint64_t bytes;
    /* limits, under the lock */
    int most, most_per_user;
    uint64_t session_bytes, user_bytes, total_bytes;
} kwkd_sessions;

void kwkd_sessions_init(kwkd_sessions *t);
void kwkd_sessions_fini(kwkd_sessions *t); // the table must be empty
void kwkd_sessions_configure(kwkd_sessions *t, const kwkd_conf *conf);
int kwkd_sessions_count(kwkd_sessions *t);

/**
 * Open a session: quotas, shared memory, sealed.
 *
 * @param out   one reference, for the door
 * @param door  taken on success; uid, pid: its credentials
 * @param fds   out: descriptors of the out, in and (if any) logits memory for the client; the
 * caller closes them. n_fds: 2 or 3
 *
 * @return KWK_OK; KWK_EINVAL a size out of range; KWK_EBUSY a quota is used up (the message says
 *         which); KWK_ENOMEM, KWK_EIO
 */
int kwkd_session_open(kwkd_session **out, kwkd_sessions *t, int door, uint32_t uid, int32_t pid,
                      const kwk_hello_req *hello, int fds[3], int *n_fds, kwk_error *err);

/** Take it out of the table and mark it dead. The door's reference remains to be dropped. */
void kwkd_session_close(kwkd_sessions *t, kwkd_session *s);

/** Mark it dead and hang up; the door notices and closes it. Any thread. */
void kwkd_session_kill(kwkd_session *s);

/** The session with this id that belongs to uid and pid, one reference; or KWK_EPERM. */
int kwkd_session_find(kwkd_session **out, kwkd_sessions *t, const uint8_t id[16], uint32_t uid,
                      int32_t pid, kwk_error *err);

kwkd_session *kwkd_session_ref(kwkd_session *s); // returns s
void kwkd_session_unref(kwkd_session *s);        // NULL allowed

/** Reserve a stream id until kwkd_session_free_stream(). KWK_EINVAL: it or one of its slot runs. */
int kwkd_session_take_stream(kwkd_session *s, uint32_t id, kwk_error *err);
void kwkd_session_free_stream(kwkd_session *s, uint32_t id);

/** Keep a pack's descriptor (taken on success) and name it. KWK_EFULL: KWKD_PACKS are kept. */
int kwkd_session_add_pack(kwkd_session *s, int fd, uint64_t *id, kwk_error *err);

/** Take a pack's descriptor out; the caller closes it. KWK_ENOENT: no such pack. */
int kwkd_session_take_pack(kwkd_session *s, uint64_t id, int *fd, kwk_error *err);

#endif

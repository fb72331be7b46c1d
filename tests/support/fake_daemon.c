/* SPDX-License-Identifier: Apache-2.0
 *
 * The stand-in daemon (fake_daemon.h): a door thread, a control thread and an engine thread over one
 * lock. Trusts its client: it is a test's partner, not a model for kwkerd. Long because all three share
 * state that nobody else may see.
 */
#include "tests/support/fake_daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <nng/nng.h>
#include <nng/protocol/reqrep0/rep.h>

#define COUNT(a) (int)(sizeof(a) / sizeof *(a))

typedef struct stream {
    int running;
    uint32_t id, slot;
    int32_t first, n, n_max;
    int n_logprobs, text;
    uint64_t sent, credit;
} stream;

typedef struct session {
    int door;
    uint8_t id[16];
    void *out, *in;
    float *logits;
    size_t out_size, in_size, logits_size;
    kwk_out_producer producer;
    uint64_t sub_head;
    stream streams[KWK_STREAMS];
} session;

typedef struct seq {
    uint64_t id;
    int length;
} seq;

typedef struct model {
    char name[KWK_NAME_MAX + 1];
    int looks; // until it is ready
    int pin, failed;
} model;

struct fake_state {
    pthread_mutex_t lock;
    pthread_t door_thread, control_thread, engine_thread;
    int has_control;
    int listener, stop;
    nng_socket rep;
    session *sessions[64];
    int n_sessions;
    seq seqs[256];
    int n_seqs;
    uint64_t next_seq;
    model models[8];
    int n_models;
    int32_t *prompt;
    int n_prompt;
};

static void must(int ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "fake daemon: %s: %s\n", what, strerror(errno));
        abort();
    }
}

static session *newest(fake_daemon *d)
{
    struct fake_state *s = d->state;

    must(s->n_sessions > 0, "no session");
    return s->sessions[s->n_sessions - 1];
}

/* ---- door -------------------------------------------------------------------------------------- */

static void send_with_fds(int sock, const void *p, size_t n, const int *fds, int n_fds)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(16 * sizeof(int))];
    } control = {0};
    struct iovec iov = {(void *)p, n};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

    if (n_fds) {
        struct cmsghdr *c;
        msg.msg_control = control.bytes;
        msg.msg_controllen = CMSG_SPACE((size_t)n_fds * sizeof(int));
        c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN((size_t)n_fds * sizeof(int));
        memcpy(CMSG_DATA(c), fds, (size_t)n_fds * sizeof(int));
    }
    (void)sendmsg(sock, &msg, MSG_NOSIGNAL);
}

static session *new_session(fake_daemon *d, int door, const kwk_hello_req *h, int fds[3])
{
    const uint32_t slots = h->out_slots ? h->out_slots : 128;
    const uint32_t data = h->in_bytes ? h->in_bytes : KWK_IN_DATA_DEFAULT;
    session *s = calloc(1, sizeof *s);

    must(s != NULL, "session");
    s->door = door;
    memset(s->id, 0x40 + d->n_hellos, sizeof s->id);
    s->out_size = kwk_out_size(slots);
    s->in_size = kwk_in_size(data);
    s->logits_size = h->logits_bytes;
    fds[0] = kwk_memfd_create("fake-out", s->out_size, NULL);
    fds[1] = kwk_memfd_create("fake-in", s->in_size, NULL);
    s->out = kwk_memfd_map(fds[0], s->out_size, 1, NULL);
    s->in = kwk_memfd_map(fds[1], s->in_size, 1, NULL);
    must(s->out && s->in, "memory");
    kwk_out_producer_init(&s->producer, s->out, s->in, slots, data);
    if (s->logits_size) {
        fds[2] = kwk_memfd_create("fake-logits", s->logits_size, NULL);
        s->logits = kwk_memfd_map(fds[2], s->logits_size, 1, NULL);
        must(s->logits != NULL, "memory");
    }
    return s;
}

static void free_session(session *s)
{
    munmap(s->out, s->out_size);
    munmap(s->in, s->in_size);
    if (s->logits)
        munmap(s->logits, s->logits_size);
    if (s->door >= 0)
        close(s->door);
    free(s);
}

static void welcome(fake_daemon *d, int door, const kwk_hello_req *h)
{
    static uint8_t packet[KWK_DOOR_MAX + 100];
    const int mode = d->welcome;
    int fds[16] = {-1, -1, -1}, n_fds = h->logits_bytes ? 3 : 2;
    session *s = new_session(d, door, h, fds);
    char ctl[300];
    kwk_error e = {0};
    kwk_buf b = {0};
    kwk_map m;

    for (int i = 0; i < n_fds; i++)
        if (mode == FAKE_WELCOME_SMALL) {
            must(ftruncate(fds[i], 4096) == 0, "ftruncate");
            kwk_memfd_seal(fds[i], 0, NULL);
        } else if (mode != FAKE_WELCOME_UNSEALED) {
            kwk_memfd_seal(fds[i], i != 1, NULL);
        }
    if (mode == FAKE_WELCOME_MAGIC)
        ((kwk_out_header *)s->out)->magic = 0;
    snprintf(ctl, sizeof ctl, "%s/kwkerd.sock", d->dir);
    if (mode == FAKE_WELCOME_LONG_CTL)
        memset(ctl + 1, 'x', 200), ctl[201] = 0;
    if (mode == FAKE_WELCOME_RELATIVE_CTL)
        strcpy(ctl, "kwkerd.sock");

    kwk_map_begin(&m, &b);
    kwk_map_int(&m, "v", mode == FAKE_WELCOME_VERSION ? 2 : 1);
    kwk_map_bool(&m, "ok", 1);
    kwk_map_bin(&m, "session", s->id, mode == FAKE_WELCOME_SESSION ? 8 : 16);
    if (mode != FAKE_WELCOME_NO_CTL)
        kwk_map_str(&m, "ctl", ctl);
    kwk_map_str(&m, "server", "fake/1");
    kwk_map_uint(&m, "out_slots", mode == FAKE_WELCOME_SLOTS ? 7 : s->producer.n_slots);
    kwk_map_uint(&m, "in_bytes", s->in_size - KWK_IN_DATA_AT);
    kwk_map_uint(&m, "logits_bytes", s->logits_size);
    must(kwk_map_end(&m, NULL) == 0, "welcome");

    if (mode == FAKE_WELCOME_BUSY) {
        b.size = 0;
        kwk_fail(&e, KWK_EBUSY, "too many sessions");
        kwk_reply_error(&b, &e, 500);
        send_with_fds(door, b.data, b.size, NULL, 0);
    } else if (mode == FAKE_WELCOME_GARBAGE) {
        send_with_fds(door, "garbage", 7, NULL, 0);
    } else if (mode == FAKE_WELCOME_LONG) {
        send_with_fds(door, packet, sizeof packet, NULL, 0);
    } else if (mode == FAKE_WELCOME_NO_FDS || mode == FAKE_WELCOME_ONE_FD) {
        send_with_fds(door, b.data, b.size, fds, mode == FAKE_WELCOME_ONE_FD);
    } else if (mode == FAKE_WELCOME_EXTRA_FD || mode == FAKE_WELCOME_MANY_FDS) {
        const int n = mode == FAKE_WELCOME_EXTRA_FD ? n_fds + 1 : 16;
        for (int i = n_fds; i < n; i++)
            fds[i] = fds[0];
        send_with_fds(door, b.data, b.size, fds, n);
    } else if (mode == FAKE_WELCOME_PIPES) {
        int pipes[2];
        must(pipe(pipes) == 0, "pipe");
        send_with_fds(door, b.data, b.size, pipes, 2);
        close(pipes[0]);
        close(pipes[1]);
    } else if (mode != FAKE_WELCOME_SILENT && mode != FAKE_WELCOME_CLOSE) {
        send_with_fds(door, b.data, b.size, fds, n_fds);
    }
    for (int i = 0; i < 3; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    kwk_buf_fini(&b);
    if (mode == FAKE_WELCOME_CLOSE) {
        free_session(s);
        return;
    }
    must(d->state->n_sessions < COUNT(d->state->sessions), "sessions");
    d->state->sessions[d->state->n_sessions++] = s;
}

static void pack(fake_daemon *d, int door, int fd)
{
    kwk_buf b = {0};
    kwk_error e;
    kwk_map m;
    uint8_t c = 0;

    d->n_packs++;
    if (d->pack_silent)
        return;
    if (fd >= 0 && pread(fd, &c, 1, 0) == 1) {
        d->pack_byte = c;
        kwk_map_begin(&m, &b);
        kwk_map_int(&m, "v", 1);
        kwk_map_bool(&m, "ok", 1);
        kwk_map_uint(&m, "pack", 77);
        kwk_map_end(&m, NULL);
    } else {
        kwk_fail(&e, KWK_EFORMAT, "an empty pack");
        kwk_reply_error(&b, &e, 0);
    }
    send_with_fds(door, "w", 1, NULL, 0); // a wake-up between question and answer
    send_with_fds(door, b.data, b.size, NULL, 0);
    kwk_buf_fini(&b);
}

/* A packet of a session: 0 the door was closed. */
static int door_packet(fake_daemon *d, int door)
{
    static uint8_t packet[KWK_DOOR_MAX];
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(4 * sizeof(int))];
    } control;
    struct iovec iov = {packet, sizeof packet};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes,
                         .msg_controllen = sizeof control.bytes};
    const ssize_t n = recvmsg(door, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&msg) : NULL;
    int fd = -1;
    kwk_hello_req h;

    if (n < 0 && errno == EAGAIN)
        return 1;
    if (n <= 0)
        return 0;
    if (c && c->cmsg_type == SCM_RIGHTS)
        memcpy(&fd, CMSG_DATA(c), sizeof fd);
    if (n == 1) {
        d->n_rings++;
    } else if (kwk_hello_req_decode(&h, packet, (size_t)n, NULL) == 0) {
        d->n_hellos++;
        welcome(d, door, &h);
        kwk_hello_req_fini(&h);
    } else {
        pack(d, door, fd);
    }
    if (fd >= 0)
        close(fd);
    return 1;
}

static void *door_main(void *arg)
{
    fake_daemon *d = arg;
    struct fake_state *s = d->state;
    int doors[64], n_doors = 0;

    for (;;) {
        struct pollfd fds[65] = {{.fd = -1}};

        pthread_mutex_lock(&s->lock);
        if (s->stop) {
            pthread_mutex_unlock(&s->lock);
            return NULL; // the doors belong to their sessions
        }
        pthread_mutex_unlock(&s->lock);
        fds[0] = (struct pollfd){s->listener, POLLIN, 0};
        for (int i = 0; i < n_doors; i++)
            fds[i + 1] = (struct pollfd){doors[i], POLLIN, 0};
        (void)poll(fds, (nfds_t)n_doors + 1, 5);
        pthread_mutex_lock(&s->lock);
        if (!s->stop && (fds[0].revents & POLLIN)) {
            const int door = accept(s->listener, NULL, NULL);
            must(n_doors < COUNT(doors), "doors");
            if (door >= 0)
                doors[n_doors++] = door;
        }
        for (int i = n_doors - 1; i >= 0 && !s->stop; i--) {
            if (!fds[i + 1].revents || door_packet(d, doors[i]))
                continue;
            for (int j = 0; j < s->n_sessions; j++)
                if (s->sessions[j]->door == doors[i]) {
                    free_session(s->sessions[j]);
                    s->sessions[j] = s->sessions[--s->n_sessions];
                    break;
                }
            doors[i] = doors[--n_doors];
            break;
        }
        pthread_mutex_unlock(&s->lock);
    }
}

/* ---- control ----------------------------------------------------------------------------------- */

static session *find_session(fake_daemon *d, const kwk_request *r)
{
    for (int i = 0; i < d->state->n_sessions; i++)
        if (r->has_session && memcmp(d->state->sessions[i]->id, r->session, 16) == 0)
            return d->state->sessions[i];
    return NULL;
}

static seq *find_seq(fake_daemon *d, uint64_t id)
{
    for (int i = 0; i < d->state->n_seqs; i++)
        if (d->state->seqs[i].id == id)
            return &d->state->seqs[i];
    return NULL;
}

static model *find_model(fake_daemon *d, const char *name)
{
    for (int i = 0; i < d->state->n_models; i++)
        if (strcmp(d->state->models[i].name, name) == 0)
            return &d->state->models[i];
    return NULL;
}

static int start_stream(fake_daemon *d, const kwk_request *r, kwk_map *m, kwk_error *err)
{
    const kwk_generate_req *g = &r->u.generate;
    const char *name = g->model ? g->model : "count";
    struct fake_state *s = d->state;
    session *ss = find_session(d, r);
    const int32_t *prompt = g->prompt;
    const int n = g->has_span ? (int)g->span_n : g->n_prompt;

    d->n_generates++;
    if (!ss)
        return kwk_fail(err, KWK_EPERM, "no such session");
    if (g->has_span)
        prompt = (const int32_t *)((uint8_t *)ss->in + KWK_IN_DATA_AT + g->span_offset);
    free(s->prompt);
    s->prompt = malloc((size_t)n * 4);
    must(s->prompt != NULL, "prompt");
    memcpy(s->prompt, prompt, (size_t)n * 4);
    s->n_prompt = n;
    d->last_stream = (int)g->stream;
    if (strcmp(name, "count") == 0) {
        ss->streams[g->stream % KWK_STREAMS] = (stream){
            .running = 1, .id = g->stream, .slot = g->stream % KWK_STREAMS, .first = prompt[0],
            .n_max = g->max_new_tokens < 0 ? 1000000 : g->max_new_tokens,
            .n_logprobs = g->n_logprobs, .text = g->text,
            .credit = g->credit ? (uint64_t)g->credit : ss->producer.n_slots};
    } else if (strcmp(name, "manual")) {
        return kwk_fail(err, KWK_ENOENT, "model '%s' is not loaded", name);
    }
    kwk_map_bool(m, "accepted", 1);
    kwk_map_uint(m, "stream", g->stream);
    kwk_map_uint(m, "seed", g->has_seed ? g->seed : 4711);
    return KWK_OK;
}

static int put_seq(fake_daemon *d, kwk_map *m, int length, kwk_error *err)
{
    struct fake_state *s = d->state;

    if (s->n_seqs == COUNT(s->seqs))
        return kwk_fail(err, KWK_EFULL, "too many sequences");
    s->seqs[s->n_seqs++] = (seq){s->next_seq, length};
    kwk_map_uint(m, "seq", s->next_seq++);
    kwk_map_int(m, "length", length);
    kwk_map_int(m, "vocab", FAKE_VOCAB);
    kwk_map_int(m, "max_ctx", FAKE_MAX_CTX);
    return KWK_OK;
}

static void put_models(fake_daemon *d, kwk_map *m)
{
    kwk_map_open(m, "models", 0);
    for (int i = 0; i < d->state->n_models; i++) {
        model *x = &d->state->models[i];
        if (x->looks)
            x->looks--;
        kwk_map_open(m, NULL, 1);
        kwk_map_str(m, "name", x->name);
        kwk_map_str(m, "state", x->looks ? "loading" : x->failed ? "failed" : "ready");
        kwk_map_double(m, "progress", 1.0 / (1 + x->looks));
        kwk_map_bool(m, "pin", x->pin);
        if (!x->looks && x->failed) {
            kwk_map_str(m, "error", "tensor 3 is damaged");
            kwk_map_int(m, "code", KWK_EFORMAT);
        }
        kwk_map_close(m);
    }
    kwk_map_close(m);
}

static int start_load(fake_daemon *d, const kwk_load_req *l, kwk_map *m, kwk_error *err)
{
    struct fake_state *s = d->state;
    model *x = find_model(d, l->name);

    if (!l->path && l->pack != 77)
        return kwk_fail(err, KWK_ENOENT, "no pack %llu", (unsigned long long)l->pack);
    if (l->path && strcmp(l->path, "/gone") == 0)
        return kwk_fail(err, KWK_ENOENT, "'/gone' does not exist");
    if (!x) {
        must(s->n_models < COUNT(s->models), "models");
        x = &s->models[s->n_models++];
        *x = (model){.looks = 4, .pin = l->pin, .failed = d->load_fails};
        snprintf(x->name, sizeof x->name, "%s", l->name);
    }
    kwk_map_str(m, "state", x->looks ? "loading" : "ready");
    return KWK_OK;
}

static int answer(fake_daemon *d, const kwk_request *r, kwk_map *m, kwk_error *err)
{
    struct fake_state *s = d->state;
    const kwk_seq_req *q = &r->u.seq_fork;
    model *x;
    seq *sq;

    if (d->error)
        return kwk_fail(err, d->error, "as the test wants it");
    switch (r->op) {
    case KWK_OP_status:
        kwk_map_str(m, "server", "fake/1");
        kwk_map_int(m, "pid", getpid());
        kwk_map_int(m, "uptime_ms", 65000);
        kwk_map_str(m, "isa", "ref");
        kwk_map_int(m, "threads", 2);
        kwk_map_bool(m, "ready", 1);
        kwk_map_int(m, "sessions", s->n_sessions);
        kwk_map_int(m, "running", 1);
        kwk_map_int(m, "queued", 0);
        kwk_map_int(m, "models", s->n_models);
        return KWK_OK;
    case KWK_OP_models:
        put_models(d, m);
        return KWK_OK;
    case KWK_OP_metrics:
        kwk_map_str(m, "text", "# TYPE kwk_tokens_total counter\nkwk_tokens_total 5\n");
        return KWK_OK;
    case KWK_OP_load:
        return start_load(d, &r->u.load, m, err);
    case KWK_OP_unload:
    case KWK_OP_pin:
        x = find_model(d, r->u.unload.name);
        if (!x)
            return kwk_fail(err, KWK_ENOENT, "model '%s' is not loaded", r->u.unload.name);
        if (r->op == KWK_OP_pin)
            x->pin = r->u.pin.pin;
        else
            *x = s->models[--s->n_models];
        return KWK_OK;
    case KWK_OP_generate:
        return start_stream(d, r, m, err);
    case KWK_OP_seq_open:
        if (r->u.seq_open.model && strcmp(r->u.seq_open.model, "count"))
            return kwk_fail(err, KWK_ENOENT, "model '%s' is not loaded", r->u.seq_open.model);
        return put_seq(d, m, 0, err);
    case KWK_OP_seq_fork:
    case KWK_OP_seq_truncate:
    case KWK_OP_seq_close:
        sq = find_seq(d, q->seq);
        if (!sq)
            return kwk_fail(err, KWK_ENOENT, "no sequence %llu", (unsigned long long)q->seq);
        if (r->op == KWK_OP_seq_fork)
            return put_seq(d, m, sq->length, err);
        if (r->op == KWK_OP_seq_truncate)
            sq->length = q->length;
        kwk_map_int(m, "length", sq->length);
        if (r->op == KWK_OP_seq_close)
            *sq = s->seqs[--s->n_seqs];
        return KWK_OK;
    default:
        return kwk_fail(err, KWK_EUNSUPPORTED, "the stand-in does not do this");
    }
}

static void *control_main(void *arg)
{
    fake_daemon *d = arg;
    const nng_socket rep = d->state->rep;
    nng_msg *msg;

    while (nng_recvmsg(rep, &msg, 0) == 0) {
        kwk_request r = {0};
        kwk_error err = {0};
        kwk_buf b = {0};
        kwk_map m;
        int rc = kwk_request_decode(&r, nng_msg_body(msg), nng_msg_len(msg), &err);

        pthread_mutex_lock(&d->state->lock);
        d->n_requests++;
        kwk_reply_begin(&m, &b);
        if (rc == KWK_OK)
            rc = answer(d, &r, &m, &err);
        if (rc == KWK_OK) {
            rc = kwk_map_end(&m, &err);
        } else {
            b.size = 0;
            kwk_reply_error(&b, &err, rc == KWK_EBUSY ? 70 : 0);
        }
        pthread_mutex_unlock(&d->state->lock);
        nng_msg_clear(msg);
        if (d->garbage)
            nng_msg_append(msg, "\xc1garbage", 8);
        else
            nng_msg_append(msg, b.data, b.size);
        if (d->silent || nng_sendmsg(rep, msg, 0))
            nng_msg_free(msg);
        kwk_buf_fini(&b);
        kwk_request_fini(&r);
    }
    return NULL;
}

static void start_control(fake_daemon *d)
{
    char url[128];

    snprintf(url, sizeof url, "ipc://%s/kwkerd.sock", d->dir);
    must(nng_rep0_open(&d->state->rep) == 0, "rep0");
    must(nng_listen(d->state->rep, url, NULL, 0) == 0, "listen");
    must(pthread_create(&d->state->control_thread, NULL, control_main, d) == 0, "thread");
    d->state->has_control = 1;
}

static void stop_control(fake_daemon *d)
{
    if (!d->state->has_control)
        return;
    nng_close(d->state->rep);
    pthread_join(d->state->control_thread, NULL);
    d->state->has_control = 0;
}

void fake_restart_control(fake_daemon *d)
{
    stop_control(d);
    start_control(d);
}

/* ---- engine ------------------------------------------------------------------------------------ */

static void put(session *s, const kwk_record *rec)
{
    kwk_out_put(&s->producer, rec);
}

static void publish(session *s)
{
    if (kwk_out_publish(&s->producer))
        (void)send(s->door, "w", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void put_done(session *s, stream *st, int finish)
{
    const kwk_done done = {.prompt_tokens = 1, .new_tokens = (uint32_t)st->n, .cached_tokens = 0,
                           .queue_us = 10, .prefill_us = 20, .decode_us = 30};
    kwk_record rec = {.stream = st->id, .type = KWK_REC_DONE, .token = finish,
                      .n_bytes = sizeof done};

    memcpy(rec.payload, &done, sizeof done);
    put(s, &rec);
    st->running = 0;
}

static void put_token(session *s, stream *st)
{
    kwk_record rec = {.stream = st->id, .type = KWK_REC_TOKEN, .token = st->first + st->n,
                      .logprob = -0.5f};

    if (st->text)
        rec.n_bytes = (uint16_t)snprintf((char *)rec.payload, sizeof rec.payload, "%d ", rec.token);
    put(s, &rec);
    st->sent++;
    if (st->n_logprobs) {
        kwk_record top = {.stream = st->id, .type = KWK_REC_LOGPROBS,
                          .n_bytes = (uint16_t)(st->n_logprobs * 8)};
        for (int i = 0; i < st->n_logprobs; i++) {
            const int32_t id = rec.token + i;
            const float lp = -0.5f - (float)i;
            memcpy(top.payload + i * 8, &id, 4);
            memcpy(top.payload + i * 8 + 4, &lp, 4);
        }
        put(s, &top);
        st->sent++;
    }
    st->n++;
}

/* One token of each running stream, as a step would. */
static int step_streams(fake_daemon *d, session *s)
{
    kwk_in_stream *in = (kwk_in_stream *)((uint8_t *)s->in + KWK_IN_STREAMS_AT);
    int n = 0;

    for (int i = 0; i < KWK_STREAMS; i++) {
        stream *st = &s->streams[i];
        const int64_t room = kwk_out_free(&s->producer, NULL);

        if (!st->running || room < 1)
            continue;
        if (in[i].cancel) {
            d->n_cancels++;
            put_done(s, st, KWK_FINISH_CANCEL);
            n++;
        } else if (st->n == st->n_max) {
            put_done(s, st, KWK_FINISH_LENGTH);
            n++;
        } else if (room >= 4 && st->sent - in[i].consumed + 2 <= st->credit) {
            put_token(s, st);
            n++;
        }
    }
    return n;
}

static void write_logits(session *s, const kwk_submission *sub, const seq *sq, uint32_t i,
                         uint32_t row)
{
    const int32_t *tokens = (const int32_t *)((uint8_t *)s->in + KWK_IN_DATA_AT + sub->offset);
    const uint8_t *valid = (const uint8_t *)(tokens + sub->n *
                                             (sub->flags & KWK_SUB_POSITIONS ? 2 : 1));
    int position = sq->length + (int)i;

    if (sub->flags & KWK_SUB_POSITIONS)
        position = tokens[sub->n + i];
    for (int v = 0; v < FAKE_VOCAB; v++)
        s->logits[row * FAKE_VOCAB + (uint32_t)v] =
            (float)(sub->flags & KWK_SUB_VALID && !valid[i] ? -1
                                                            : tokens[i] * 1000 + position + v);
}

static int run_submission(fake_daemon *d, session *s)
{
    kwk_submission sub;
    kwk_record rec = {.type = KWK_REC_LOGITS};
    seq *sq;

    if (kwk_out_free(&s->producer, NULL) < 1)
        return 0;
    if (kwk_sub_take(&s->sub_head, s->out, s->in, &sub, NULL) != 1)
        return 0;
    d->n_subs++;
    rec.stream = sub.tag;
    sq = find_seq(d, sub.seq);
    if (!sq || (int)sub.seq == d->sub_error_seq) {
        rec.type = KWK_REC_ERROR;
        rec.token = KWK_EFULL;
        rec.n_bytes = 12;
        memcpy(rec.payload, "no room here", 12);
    } else {
        const int all = (sub.flags & KWK_SUB_ALL_LOGITS) != 0;
        const uint32_t first = all ? 0 : sub.n - 1;
        const uint32_t rows = sub.flags & KWK_SUB_NO_LOGITS ? 0 : sub.n - first;
        for (uint32_t i = 0; i < rows; i++)
            write_logits(s, &sub, sq, first + i, sub.row + i);
        sq->length += (int)sub.n;
        rec.aux = sub.row + (uint32_t)d->sub_bad_row;
        rec.token = (int32_t)rows;
    }
    put(s, &rec);
    return 1;
}

static void *engine_main(void *arg)
{
    fake_daemon *d = arg;
    struct fake_state *s = d->state;

    for (;;) {
        int busy = 0;

        pthread_mutex_lock(&s->lock);
        if (s->stop) {
            pthread_mutex_unlock(&s->lock);
            return NULL;
        }
        for (int i = 0; i < s->n_sessions && !d->stall; i++) {
            session *ss = s->sessions[i];
            int n = step_streams(d, ss);
            while (run_submission(d, ss)) {
                publish(ss);
                n++;
            }
            if (n)
                publish(ss);
            busy |= n;
            // Asleep as the client sees it; this thread looks every half millisecond anyway.
            atomic_store(&((kwk_out_header *)ss->out)->sub_sleeping, n == 0);
        }
        pthread_mutex_unlock(&s->lock);
        usleep(busy ? 50 : 500);
    }
}

/* ---- the test's side --------------------------------------------------------------------------- */

fake_daemon *fake_start(void)
{
    fake_daemon *d = calloc(1, sizeof *d);
    struct sockaddr_un sa = {.sun_family = AF_UNIX};

    must(d && (d->state = calloc(1, sizeof *d->state)), "memory");
    pthread_mutex_init(&d->state->lock, NULL);
    d->last_stream = -1;
    d->sub_error_seq = -1;
    d->state->next_seq = 1;
    strcpy(d->dir, "/tmp/kwk-fake-XXXXXX");
    must(mkdtemp(d->dir) != NULL, "mkdtemp");
    snprintf(sa.sun_path, sizeof sa.sun_path, "%s/door.sock", d->dir);
    d->state->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    must(bind(d->state->listener, (struct sockaddr *)&sa, sizeof sa) == 0, "bind");
    must(listen(d->state->listener, 16) == 0, "listen");
    start_control(d);
    must(pthread_create(&d->state->door_thread, NULL, door_main, d) == 0, "thread");
    must(pthread_create(&d->state->engine_thread, NULL, engine_main, d) == 0, "thread");
    return d;
}

void fake_kill(fake_daemon *d)
{
    struct fake_state *s = d->state;

    pthread_mutex_lock(&s->lock);
    if (s->stop) {
        pthread_mutex_unlock(&s->lock);
        return;
    }
    s->stop = 1;
    for (int i = 0; i < s->n_sessions; i++) {
        close(s->sessions[i]->door);
        s->sessions[i]->door = -1;
    }
    close(s->listener);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->door_thread, NULL);
    pthread_join(s->engine_thread, NULL);
    stop_control(d);
}

void fake_stop(fake_daemon *d)
{
    char path[128];

    fake_kill(d);
    for (int i = 0; i < d->state->n_sessions; i++)
        free_session(d->state->sessions[i]);
    snprintf(path, sizeof path, "%s/door.sock", d->dir);
    unlink(path);
    snprintf(path, sizeof path, "%s/kwkerd.sock", d->dir);
    unlink(path);
    rmdir(d->dir);
    pthread_mutex_destroy(&d->state->lock);
    free(d->state->prompt);
    free(d->state);
    free(d);
}

void fake_record(fake_daemon *d, uint32_t id, int type, int32_t token, const void *payload,
                 size_t n)
{
    kwk_record rec = {.stream = id, .type = (uint16_t)type, .token = token, .n_bytes = (uint16_t)n};

    memcpy(rec.payload, payload, n);
    pthread_mutex_lock(&d->state->lock);
    put(newest(d), &rec);
    publish(newest(d));
    pthread_mutex_unlock(&d->state->lock);
}

kwk_out_header *fake_out(fake_daemon *d)
{
    kwk_out_header *out;

    pthread_mutex_lock(&d->state->lock);
    out = newest(d)->out;
    pthread_mutex_unlock(&d->state->lock);
    return out;
}

const kwk_in_header *fake_in(fake_daemon *d)
{
    const kwk_in_header *in;

    pthread_mutex_lock(&d->state->lock);
    in = newest(d)->in;
    pthread_mutex_unlock(&d->state->lock);
    return in;
}

void fake_door_send(fake_daemon *d, const void *p, size_t n)
{
    pthread_mutex_lock(&d->state->lock);
    send_with_fds(newest(d)->door, p, n, NULL, 0);
    pthread_mutex_unlock(&d->state->lock);
}

void fake_end_session(fake_daemon *d, int code, const char *text)
{
    kwk_buf b = {0};
    kwk_error e;

    kwk_fail(&e, code, "%s", text);
    kwk_reply_error(&b, &e, 0);
    pthread_mutex_lock(&d->state->lock);
    send_with_fds(newest(d)->door, b.data, b.size, NULL, 0);
    shutdown(newest(d)->door, SHUT_RDWR);
    pthread_mutex_unlock(&d->state->lock);
    kwk_buf_fini(&b);
}

int fake_last_prompt(fake_daemon *d, const int32_t **prompt)
{
    int n;

    pthread_mutex_lock(&d->state->lock);
    *prompt = d->state->prompt;
    n = d->state->n_prompt;
    pthread_mutex_unlock(&d->state->lock);
    return n;
}

int fake_seq_length(fake_daemon *d, uint64_t id)
{
    const seq *s;
    int n;

    pthread_mutex_lock(&d->state->lock);
    s = find_seq(d, id);
    n = s ? s->length : -1;
    pthread_mutex_unlock(&d->state->lock);
    return n;
}

int fake_n_seqs(fake_daemon *d)
{
    int n;

    pthread_mutex_lock(&d->state->lock);
    n = d->state->n_seqs;
    pthread_mutex_unlock(&d->state->lock);
    return n;
}

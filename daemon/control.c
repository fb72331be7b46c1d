/* SPDX-License-Identifier: Apache-2.0
 *
 * NNG contexts around kwkd_call_run(), and the listener's guard. Written to NNG 1.5.2's names.
 *
 * A context takes one request at a time: receive, run, send the reply, receive again. A context
 * whose call is kept (an inline generation) does not receive; calls of that kind are bounded below
 * the number of contexts, so that some are always free. NNG tells us nothing when a peer with a
 * request under way hangs up, but its pipes do: pipe_gone().
 */
#include "daemon/control.h"

#include <errno.h>
#include <nng/nng.h>
#include <nng/protocol/reqrep0/rep.h>
#include <nng/supplemental/util/platform.h>
#include <nng/transport/ipc/ipc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/log.h"
#include "daemon/loop.h"

enum {
    SILENT_MS = 250,    // a live listener takes a connection within
    REPAIR_PROBES = 10, // after a repair the listener is probed this often, every
    REPAIR_MS = 100,
    CLOSE_MS = 200, // replies get this long to leave
    OLD = 16,       // dead listeners that still have requests under way
};

typedef struct slot {
    kwkd_call call;
    kwkd_control *control;
    nng_ctx ctx;
    nng_aio *aio;
    enum { RECEIVING, RUNNING, SENDING, IDLE } state;
    atomic_int busy;       // 0 while receiving
    _Atomic uint32_t pipe; // the request's; 0: none
    atomic_int listener;   // that it came by
    int has_ctx;
} slot;

struct kwkd_control {
    struct kwkd *d;
    const kwkd_rundir *dir;
    nng_socket socket;
    nng_listener listener;
    int has_socket, has_listener;
    nng_listener old[OLD];
    int n_old;
    char path[sizeof(((kwkd_rundir *)0)->control) + 4]; // where a listener is born
    slot *slots;
    int n_slots;
    atomic_int closing;
    /* the probe */
    int loop;
    kwkd_source timer;
    int timer_fd, probe_fd; // probe_fd -1: none is under way
    atomic_uint n_pipes;    // that NNG has ever made of connections
    unsigned pipes_before;  // the probe
    int repair_probes;      // still to come
};

/* ---- requests
 * -------------------------------------------------------------------------------------------- */

static void receive(slot *sl)
{
    sl->state = RECEIVING;
    atomic_store(&sl->pipe, 0);
    atomic_store(&sl->busy, 0);
    nng_ctx_recv(sl->ctx, sl->aio);
}

/* kwkd_call.send: any thread, the slot's aio is idle. */
static void send_reply(kwkd_call *call)
{
    slot *sl = KWKD_OWNER(slot, call, call);
    kwkd_control *c = sl->control;
    nng_msg *msg = NULL;

    if (!call->reply.size || nng_msg_alloc(&msg, 0) ||
        nng_msg_append(msg, call->reply.data, call->reply.size)) {
        nng_msg_free(msg);
        kwk_buf_fini(&call->reply);
        receive(sl); // no memory for an answer: the client's time runs out
        return;
    }
    kwkd_count(&c->d->metrics.control_tx, call->reply.size);
    kwk_buf_fini(&call->reply);
    sl->state = SENDING;
    nng_aio_set_msg(sl->aio, msg);
    nng_ctx_send(sl->ctx, sl->aio);
}

/* Who sent it. A pipe that has gone meanwhile has no credentials any more. */
static int credentials(nng_pipe pipe, kwkd_call *call)
{
    uint64_t uid, pid;

    if (nng_pipe_get_uint64(pipe, NNG_OPT_IPC_PEER_UID, &uid) ||
        nng_pipe_get_uint64(pipe, NNG_OPT_IPC_PEER_PID, &pid))
        return -1;
    call->uid = (uint32_t)uid;
    call->pid = (int32_t)pid;
    return 0;
}

static void run(slot *sl, nng_msg *msg)
{
    kwkd_control *c = sl->control;
    const nng_pipe pipe = nng_msg_get_pipe(msg);
    kwkd_call *call = &sl->call;

    sl->state = RUNNING;
    memset(call, 0, sizeof *call);
    call->daemon = c->d;
    call->send = send_reply;
    atomic_store(&sl->listener, nng_listener_id(nng_pipe_listener(pipe)));
    atomic_store(&sl->busy, 1);
    atomic_store(&sl->pipe, (uint32_t)nng_pipe_id(pipe)); // before the credentials: see pipe_gone()
    kwkd_count(&c->d->metrics.control_rx, nng_msg_len(msg));
    if (credentials(pipe, call) < 0) {
        nng_msg_free(msg);
        receive(sl);
        return;
    }
    kwkd_call_run(call, nng_msg_body(msg), nng_msg_len(msg));
    nng_msg_free(msg);
}

static void aio_done(void *arg) // NNG's thread
{
    slot *sl = arg;
    const int rc = nng_aio_result(sl->aio);

    if (sl->state == SENDING && rc)
        nng_msg_free(nng_aio_get_msg(sl->aio)); // a message that did not go out is ours again
    if (atomic_load(&sl->control->closing) || (sl->state == RECEIVING && rc == NNG_ECLOSED)) {
        sl->state = IDLE;
        atomic_store(&sl->busy, 0);
    } else if (sl->state == RECEIVING && !rc) {
        run(sl, nng_aio_get_msg(sl->aio));
    } else {
        receive(sl);
    }
}

/* A peer hung up. Mark its request: the engine drops it within a step. A request that is just being
 * received has its pipe noted before its credentials are read, and that fails for a pipe that is
 * gone; so it is either marked here or dropped there. NNG's reaper thread: return at once. */
static void pipe_gone(nng_pipe pipe, nng_pipe_ev event, void *arg)
{
    kwkd_control *c = arg;
    const uint32_t id = (uint32_t)nng_pipe_id(pipe);
    int any = 0;

    for (int i = 0; i < c->n_slots; i++) {
        if (atomic_load(&c->slots[i].pipe) == id) {
            atomic_store(&c->slots[i].call.gone, 1);
            any = 1;
        }
    }
    if (any)
        kwkd_scheduler_wake(c->d->scheduler);
}

static void pipe_added(nng_pipe pipe, nng_pipe_ev event, void *arg)
{
    kwkd_control *c = arg;

    atomic_fetch_add(&c->n_pipes, 1);
}

/* ---- the listener
 * --------------------------------------------------------------------------------------------- */

static int nng_failed(int rc, const char *what, kwk_error *err)
{
    return kwk_fail(err, KWK_EIO, "%s: %s", what, nng_strerror(rc));
}

/* A listener is born under another name and then renamed: the public path is there at all times,
 * and NNG, which removes the path that it knows when a listener closes, does not remove its
 * successor's. */
static int listen_now(kwkd_control *c, kwk_error *err)
{
    char url[sizeof c->path + 8];
    int rc;

    snprintf(url, sizeof url, "ipc://%s", c->path);
    (void)unlink(c->path);
    rc = nng_listener_create(&c->listener, c->socket, url);
    if (rc)
        return nng_failed(rc, url, err);
    rc = nng_listener_set_int(c->listener, NNG_OPT_IPC_PERMISSIONS, KWKD_SOCKET_MODE);
    if (!rc)
        rc = nng_listener_start(c->listener, 0);
    if (rc)
        rc = nng_failed(rc, url, err);
    if (rc == KWK_OK)
        rc = kwkd_socket_open_to_group(c->dir, c->path, err);
    if (rc == KWK_OK && rename(c->path, c->dir->control) < 0)
        rc = kwk_fail(err, KWK_EIO, "'%s': %s", c->dir->control, strerror(errno));
    if (rc < 0)
        nng_listener_close(c->listener);
    else
        c->has_listener = 1;
    return rc;
}

/* Has the listener's last request been answered? */
static int is_quiet(const kwkd_control *c, nng_listener l)
{
    for (int i = 0; i < c->n_slots; i++)
        if (atomic_load(&c->slots[i].busy) &&
            atomic_load(&c->slots[i].listener) == nng_listener_id(l))
            return 0;
    return 1;
}

/* Close dead listeners, and with them the connections that came by them: clients that nobody took,
 * and idle ones, which connect again. Those with a request under way are let finish, within reason.
 */
static void bury(kwkd_control *c)
{
    int n = 0;

    for (int i = 0; i < c->n_old; i++) {
        if (is_quiet(c, c->old[i]) || c->n_old - i > OLD - 1)
            nng_listener_close(c->old[i]);
        else
            c->old[n++] = c->old[i];
    }
    c->n_old = n;
}

static void repair(kwkd_control *c)
{
    kwk_error err = {0};

    kwkd_count(&c->d->metrics.listener_repairs, 1);
    if (c->has_listener)
        c->old[c->n_old++] = c->listener; // bury() leaves room
    c->has_listener = 0;
    c->repair_probes = REPAIR_PROBES;
    if (listen_now(c, &err) < 0)
        kwkd_log(KWKD_ERROR, "control listener not made", "message=%s", err.msg);
    else
        kwkd_log(KWKD_NOTICE, "control listener made anew", "path=%s", c->dir->control);
    bury(c);
    kwkd_timer_set(c->timer_fd, REPAIR_MS, 0);
}

/* ---- the probe ------------------------------------------------------------------------------- */

static void probe_end(kwkd_control *c)
{
    close(c->probe_fd);
    c->probe_fd = -1;
    if (c->repair_probes) { // whoever broke it may go on
        c->repair_probes--;
        kwkd_timer_set(c->timer_fd, REPAIR_MS, 0);
    } else {
        kwkd_timer_set(c->timer_fd, 0, 0);
    }
}

static void timer_ready(kwkd_source *src)
{
    kwkd_control *c = KWKD_OWNER(kwkd_control, timer, src);

    kwkd_timer_clear(c->timer_fd);
    if (c->probe_fd < 0) {
        kwkd_control_probe(c);
        return;
    }
    probe_end(c);
    if (atomic_load(&c->n_pipes) == c->pipes_before)
        repair(c);
}

/* Connect and greet like a REQ socket. The dead listener still greets back: its transport lives,
 * only nobody takes the connections from it. So what is waited for is the pipe that NNG makes of
 * the connection, ours or anybody's. */
void kwkd_control_probe(kwkd_control *c)
{
    static const uint8_t hello[8] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int fd, rc;

    if (c->n_old)
        bury(c);
    if (c->probe_fd >= 0)
        return;
    if (!c->has_listener) { // it could not be made anew the last time
        repair(c);
        return;
    }
    strcpy(to.sun_path, c->dir->control); // the same size
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return; // no descriptor left: says nothing about the listener
    c->pipes_before = atomic_load(&c->n_pipes);
    rc = connect(fd, (struct sockaddr *)&to, sizeof to);
    if (rc < 0 && errno != EAGAIN) { // nobody listens, or the path is gone
        close(fd);
        repair(c);
        return;
    }
    c->probe_fd = fd;
    if (rc == 0) // else the backlog is full: the listener has until the timer to take from it
        (void)send(fd, hello, sizeof hello, MSG_DONTWAIT | MSG_NOSIGNAL);
    kwkd_timer_set(c->timer_fd, SILENT_MS, 0);
}
_Static_assert(sizeof(((kwkd_rundir *)0)->control) == sizeof(((struct sockaddr_un *)0)->sun_path),
               "control path fits an address");

/* ---- open, close
 * ---------------------------------------------------------------------------------------------- */

static int open_slots(kwkd_control *c, int n, kwk_error *err)
{
    c->slots = calloc((size_t)n, sizeof *c->slots);
    if (!c->slots)
        return kwk_fail(err, KWK_ENOMEM, "%d control contexts", n);
    for (; c->n_slots < n; c->n_slots++) {
        slot *sl = &c->slots[c->n_slots];
        int rc = nng_aio_alloc(&sl->aio, aio_done, sl);
        if (rc)
            return nng_failed(rc, "control context", err);
        sl->control = c;
        rc = nng_ctx_open(&sl->ctx, c->socket);
        if (rc) {
            nng_aio_free(sl->aio);
            return nng_failed(rc, "control context", err);
        }
    }
    return KWK_OK;
}

int kwkd_control_open(kwkd_control **out, struct kwkd *d, const kwkd_rundir *dir, int loop,
                      int n_contexts, kwk_error *err)
{
    kwkd_control *c = calloc(1, sizeof *c);
    int rc;

    if (!c)
        return kwk_fail(err, KWK_ENOMEM, "the control socket");
    c->d = d;
    c->dir = dir;
    c->loop = loop;
    snprintf(c->path, sizeof c->path, "%s.new", dir->control);
    c->timer.fd = c->probe_fd = -1;
    c->timer_fd = kwkd_timer_open(err);
    rc = c->timer_fd < 0 ? c->timer_fd
                         : kwkd_loop_add(loop, &c->timer, c->timer_fd, timer_ready, err);
    if (rc < 0)
        goto out;
    rc = nng_rep0_open(&c->socket);
    if (rc) {
        rc = nng_failed(rc, "control socket", err);
        goto out;
    }
    c->has_socket = 1;
    // before anyone can send: a length of the peer's choice is allocated before its bytes come
    rc = nng_socket_set_size(c->socket, NNG_OPT_RECVMAXSZ, KWK_MSG_MAX);
    if (!rc)
        rc = nng_pipe_notify(c->socket, NNG_PIPE_EV_ADD_PRE, pipe_added, c);
    if (!rc)
        rc = nng_pipe_notify(c->socket, NNG_PIPE_EV_REM_POST, pipe_gone, c);
    if (rc) {
        rc = nng_failed(rc, "control socket", err);
        goto out;
    }
    rc = open_slots(c, n_contexts, err);
    if (rc == KWK_OK)
        rc = listen_now(c, err);
    if (rc < 0)
        goto out;
    for (int i = 0; i < c->n_slots; i++)
        receive(&c->slots[i]);
    *out = c;
out:
    if (rc < 0)
        kwkd_control_close(c);
    return rc;
}

static void let_replies_go(kwkd_control *c)
{
    for (int ms = 0; ms < CLOSE_MS; ms += 5) {
        int busy = 0;
        for (int i = 0; i < c->n_slots; i++)
            busy += atomic_load(&c->slots[i].busy);
        if (!busy)
            return;
        nng_msleep(5);
    }
}

/* In this order for NNG 1.5: all aios stopped, then freed, then one close. */
void kwkd_control_close(kwkd_control *c)
{
    if (!c)
        return;
    let_replies_go(c);
    atomic_store(&c->closing, 1);
    kwkd_loop_remove(c->loop, &c->timer);
    if (c->probe_fd >= 0)
        close(c->probe_fd);
    if (c->timer_fd >= 0)
        close(c->timer_fd);
    for (int i = 0; i < c->n_slots; i++)
        nng_aio_stop(c->slots[i].aio);
    for (int i = 0; i < c->n_slots; i++) {
        nng_aio_free(c->slots[i].aio);
        kwk_buf_fini(&c->slots[i].call.reply);
    }
    if (c->has_socket)
        nng_close(c->socket); // its contexts and listeners
    if (c->has_listener)
        (void)unlink(c->dir->control);
    free(c->slots);
    free(c);
}

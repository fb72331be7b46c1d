/* SPDX-License-Identifier: Apache-2.0
 *
 * Producer and consumer of the out ring, and the submission ring that runs the other way. Each
 * word that the peer writes is read once, into a local, and checked; the true indices are the
 * callers' private ones. One thread per side; nothing here blocks but kwk_out_wait().
 */
#include "proto/ring.h"

#include <errno.h>
#include <linux/futex.h>
#include <limits.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long futex(const _Atomic uint32_t *word, int op, uint32_t value, const struct timespec *ts)
{
    return syscall(SYS_futex, (const uint32_t *)word, op, value, ts, NULL, 0);
}

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t now_us(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

/* Copy from shared memory, then forbid the compiler to look there again. */
static void copy_once(void *dst, const void *shared, size_t n)
{
    memcpy(dst, shared, n);
    __asm__ volatile("" ::: "memory");
}

/* ---- producer -------------------------------------------------------------------------------- */

void kwk_out_producer_init(kwk_out_producer *p, void *out, void *in, uint32_t n_slots,
                           uint32_t data_bytes)
{
    kwk_out_header *oh = out;
    kwk_in_header *ih = in;

    oh->version = ih->version = KWK_RING_VERSION;
    oh->n_slots = n_slots;
    ih->data_bytes = data_bytes;
    oh->magic = KWK_OUT_MAGIC;
    ih->magic = KWK_IN_MAGIC;
    *p = (kwk_out_producer){
        .out = oh,
        .in = ih,
        .records = (kwk_record *)((uint8_t *)out + KWK_RING_PAGE),
        .n_slots = n_slots,
    };
}

int64_t kwk_out_free(kwk_out_producer *p, kwk_error *err)
{
    const uint64_t head = atomic_load_explicit(&p->in->head, memory_order_acquire);

    if (head < p->seen_head || head > p->tail)
        return kwk_fail(err, KWK_EPROTO,
                        "ring head %llu is outside %llu to %llu", (unsigned long long)head,
                        (unsigned long long)p->seen_head, (unsigned long long)p->tail);
    p->seen_head = head;
    return (int64_t)(p->n_slots - (p->tail - head));
}

void kwk_out_put(kwk_out_producer *p, const kwk_record *rec)
{
    kwk_record *slot = &p->records[p->tail % p->n_slots];

    *slot = *rec;
    slot->seq = p->tail++;
}

int kwk_out_publish(kwk_out_producer *p)
{
    atomic_store_explicit(&p->out->tail, p->tail, memory_order_seq_cst);
    atomic_fetch_add_explicit(&p->out->wake, 1, memory_order_seq_cst);
    // The client sets `waiting`, then looks at `tail`; here it is the other way round, so that at
    // least one of the two sees the other.
    if (atomic_load_explicit(&p->in->waiting, memory_order_seq_cst))
        (void)futex(&p->out->wake, FUTEX_WAKE, INT_MAX, NULL);
    return atomic_load_explicit(&p->in->want_door, memory_order_relaxed) != 0;
}

int kwk_sub_take(uint64_t *sub_head, kwk_out_header *out, const void *in, kwk_submission *sub,
                 kwk_error *err)
{
    const kwk_in_header *ih = in;
    const kwk_submission *subs =
        (const kwk_submission *)((const uint8_t *)in + KWK_IN_SUBS_AT);
    const uint64_t tail = atomic_load_explicit(&ih->sub_tail, memory_order_seq_cst);

    if (tail == *sub_head)
        return 0;
    if (tail - *sub_head > KWK_SUB_SLOTS) // a tail behind the head wraps to a huge difference
        return kwk_fail(err, KWK_EPROTO, "submission tail %llu does not follow head %llu",
                        (unsigned long long)tail, (unsigned long long)*sub_head);
    copy_once(sub, &subs[*sub_head % KWK_SUB_SLOTS], sizeof *sub);
    ++*sub_head;
    atomic_store_explicit(&out->sub_head, *sub_head, memory_order_release);
    return 1;
}

/* ---- consumer -------------------------------------------------------------------------------- */

int kwk_out_consumer_init(kwk_out_consumer *c, const void *out, size_t out_size, void *in,
                          size_t in_size, kwk_error *err)
{
    const kwk_out_header *oh = out;
    kwk_in_header *ih = in;
    uint32_t n_slots, data_bytes;

    if (out_size < KWK_RING_PAGE || in_size < KWK_IN_DATA_AT)
        return kwk_fail(err, KWK_EPROTO, "rings of %zu and %zu bytes are too small", out_size,
                        in_size);
    n_slots = *(const volatile uint32_t *)&oh->n_slots;
    data_bytes = *(const volatile uint32_t *)&ih->data_bytes;
    if (oh->magic != KWK_OUT_MAGIC || ih->magic != KWK_IN_MAGIC)
        return kwk_fail(err, KWK_EPROTO, "no ring: magic %08x, %08x", oh->magic, ih->magic);
    if (oh->version != KWK_RING_VERSION || ih->version != KWK_RING_VERSION)
        return kwk_fail(err, KWK_EPROTO, "ring version %u, %u; this side speaks %d", oh->version,
                        ih->version, KWK_RING_VERSION);
    if (n_slots < KWK_OUT_SLOTS_MIN || n_slots > KWK_OUT_SLOTS_MAX ||
        out_size < kwk_out_size(n_slots))
        return kwk_fail(err, KWK_EPROTO, "ring of %u records in %zu bytes", n_slots, out_size);
    if (data_bytes > KWK_IN_DATA_MAX || in_size < kwk_in_size(data_bytes))
        return kwk_fail(err, KWK_EPROTO, "data area of %u bytes in %zu bytes", data_bytes,
                        in_size);
    *c = (kwk_out_consumer){
        .out = oh,
        .in = ih,
        .records = (const kwk_record *)((const uint8_t *)out + KWK_RING_PAGE),
        .n_slots = n_slots,
    };
    return KWK_OK;
}

int kwk_out_take(kwk_out_consumer *c, kwk_record *rec, kwk_error *err)
{
    const uint64_t tail = atomic_load_explicit(&c->out->tail, memory_order_acquire);

    if (tail == c->head)
        return 0;
    if (tail - c->head > c->n_slots)
        return kwk_fail(err, KWK_EPROTO, "ring tail %llu does not follow head %llu",
                        (unsigned long long)tail, (unsigned long long)c->head);
    copy_once(rec, &c->records[c->head % c->n_slots], sizeof *rec);
    if (rec->seq != c->head || rec->n_bytes > KWK_RECORD_PAYLOAD)
        return kwk_fail(err, KWK_EPROTO, "damaged record %llu: number %llu, %u bytes",
                        (unsigned long long)c->head, (unsigned long long)rec->seq, rec->n_bytes);
    c->head++;
    atomic_store_explicit(&c->in->head, c->head, memory_order_release);
    return 1;
}

static int has_more(const kwk_out_consumer *c)
{
    return atomic_load_explicit(&c->out->tail, memory_order_seq_cst) != c->head;
}

int kwk_out_wait(kwk_out_consumer *c, int timeout_ms, int spin_us)
{
    struct timespec ts = {timeout_ms / 1000, timeout_ms % 1000 * 1000000L};
    uint32_t seen;
    int more;

    if (has_more(c))
        return 1;
    if (spin_us > 0) {
        const int64_t end = now_us() + spin_us;
        do {
            for (int i = 0; i < 32; i++)
                relax();
            if (has_more(c))
                return 1;
        } while (now_us() < end);
    }
    if (timeout_ms <= 0)
        return 0;

    seen = atomic_load_explicit(&c->out->wake, memory_order_seq_cst);
    atomic_store_explicit(&c->in->waiting, 1, memory_order_seq_cst);
    more = has_more(c);
    if (!more) // a signal, a wake-up or a changed word: look again
        more = futex(&c->out->wake, FUTEX_WAIT, seen, &ts) == 0 || errno != ETIMEDOUT ||
               has_more(c);
    atomic_store_explicit(&c->in->waiting, 0, memory_order_relaxed);
    return more;
}

int kwk_sub_put(uint64_t *sub_tail, const kwk_out_header *out, void *in,
                const kwk_submission *sub, kwk_error *err)
{
    kwk_in_header *ih = in;
    kwk_submission *subs = (kwk_submission *)((uint8_t *)in + KWK_IN_SUBS_AT);
    const uint64_t head = atomic_load_explicit(&out->sub_head, memory_order_acquire);

    if (*sub_tail - head > KWK_SUB_SLOTS)
        return kwk_fail(err, KWK_EPROTO, "submission head %llu passed tail %llu",
                        (unsigned long long)head, (unsigned long long)*sub_tail);
    if (*sub_tail - head == KWK_SUB_SLOTS)
        return kwk_fail(err, KWK_EFULL, "%d submissions are in flight", KWK_SUB_SLOTS);
    subs[*sub_tail % KWK_SUB_SLOTS] = *sub;
    ++*sub_tail;
    atomic_store_explicit(&ih->sub_tail, *sub_tail, memory_order_seq_cst);
    return atomic_load_explicit(&out->sub_sleeping, memory_order_seq_cst) != 0;
}

/* What raw verbs reach with the one duty that sockets add: the receiver names each of
 * its buffers before the sender may write there, and learns of each that is full.
 *
 *   announced serve ADDR PORT              one client, then it ends
 *   announced ADDR PORT SIZE COUNT         prints GB/s (10^9 bytes)
 *
 * SLOTS buffers of SIZE bytes at each end. The receiver announces them in one SEND for
 * a quarter of them at a time, {address be64, key be32, zero} for each. The sender writes
 * to each and tells: by RDMA WRITE WITH IMMEDIATE, or where the device has none (iWARP)
 * by WRITE and an empty SEND. Both ends poll. The time is that from the first post until
 * the last write was reported and announced again, so nothing is left in any queue.
 *
 * ib_write_bw writes to one buffer over and over and reports nothing.
 */
#include <arpa/inet.h>
#include <endian.h>
#include <rdma/rdma_cma.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SLOTS = 32, BATCH = SLOTS / 4, RECVS = 2 * SLOTS };
/* What a completion is of: receives have their places, below RECVS. */
enum { MESSAGES = RECVS, OTHER };

struct shape { uint64_t size, count; };
struct note { uint64_t addr; uint32_t key, zero; };

/* One end of the connection. */
struct end {
    struct rdma_event_channel *channel;
    struct rdma_cm_id *id;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_mr *data, *notes;
    char *bytes;
    struct note *in, *out; /* RECVS times BATCH that come, SLOTS that leave */
    struct shape shape;
    int iwarp;
};

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static void *must(void *p, const char *what)
{
    if (!p)
        die(what);
    return p;
}

static void ok(int status, const char *what)
{
    if (status)
        die(what);
}

/* Waits for an event; the connection it is about (a listener's: the new one). */
static struct rdma_cm_id *await(struct end *e, enum rdma_cm_event_type type, struct shape *shape)
{
    struct rdma_cm_event *event;
    ok(rdma_get_cm_event(e->channel, &event), "rdma_get_cm_event");
    if (event->event != type) {
        fprintf(stderr, "%s, not %s\n", rdma_event_str(event->event), rdma_event_str(type));
        exit(1);
    }
    struct rdma_cm_id *id = event->id;
    if (shape)
        memcpy(shape, event->param.conn.private_data, sizeof *shape);
    rdma_ack_cm_event(event);
    return id;
}

static void post_recv(struct end *e, uint64_t at)
{
    struct ibv_sge sge = { (uintptr_t)&e->in[at * BATCH], BATCH * sizeof *e->in, e->notes->lkey };
    struct ibv_recv_wr wr = { .wr_id = at, .sg_list = &sge, .num_sge = 1 }, *bad;
    ok(ibv_post_recv(e->id->qp, &wr, &bad), "ibv_post_recv");
}

/* The queue pair and the memory, with all receives posted. */
static void prepare(struct end *e)
{
    size_t notes = (RECVS * BATCH + SLOTS) * sizeof *e->in;
    e->iwarp = e->id->verbs->device->transport_type == IBV_TRANSPORT_IWARP;
    e->pd = must(ibv_alloc_pd(e->id->verbs), "ibv_alloc_pd");
    e->cq = must(ibv_create_cq(e->id->verbs, 4 * RECVS, NULL, NULL, 0), "ibv_create_cq");
    struct ibv_qp_init_attr attr = {
        .send_cq = e->cq, .recv_cq = e->cq, .qp_type = IBV_QPT_RC,
        .cap = { .max_send_wr = 4 * SLOTS, .max_recv_wr = RECVS, .max_send_sge = 1, .max_recv_sge = 1 },
    };
    ok(rdma_create_qp(e->id, e->pd, &attr), "rdma_create_qp");
    e->bytes = must(aligned_alloc(4096, SLOTS * e->shape.size), "aligned_alloc");
    memset(e->bytes, 7, SLOTS * e->shape.size);
    e->in = must(calloc(1, notes), "calloc");
    e->out = e->in + RECVS * BATCH;
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    e->data = must(ibv_reg_mr(e->pd, e->bytes, SLOTS * e->shape.size, access), "ibv_reg_mr");
    e->notes = must(ibv_reg_mr(e->pd, e->in, notes, IBV_ACCESS_LOCAL_WRITE), "ibv_reg_mr");
    for (int i = 0; i < RECVS; i++)
        post_recv(e, i);
}

/* The next completion. */
static void next(struct end *e, struct ibv_wc *wc)
{
    int n;
    while ((n = ibv_poll_cq(e->cq, 1, wc)) == 0)
        ;
    if (n < 0)
        die("ibv_poll_cq");
    if (wc->status != IBV_WC_SUCCESS) {
        fprintf(stderr, "completion: %s\n", ibv_wc_status_str(wc->status));
        exit(1);
    }
}

/* A quarter of the receiver's buffers, from this one on. */
static void announce(struct end *e, int from)
{
    for (int i = from; i < from + BATCH; i++) {
        uint64_t addr = (uintptr_t)e->bytes + i * e->shape.size;
        e->out[i] = (struct note){ htobe64(addr), htobe32(e->data->rkey), 0 };
    }
    struct ibv_sge sge = { (uintptr_t)&e->out[from], BATCH * sizeof *e->out, e->notes->lkey };
    struct ibv_send_wr wr = { .wr_id = OTHER, .sg_list = &sge, .num_sge = 1,
        .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
    ok(ibv_post_send(e->id->qp, &wr, &bad), "ibv_post_send");
}

static void serve(struct end *e, struct sockaddr *at)
{
    struct rdma_cm_id *listener = e->id;
    ok(rdma_bind_addr(listener, at), "rdma_bind_addr");
    ok(rdma_listen(listener, 1), "rdma_listen");
    e->id = await(e, RDMA_CM_EVENT_CONNECT_REQUEST, &e->shape);
    prepare(e);
    struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
    ok(rdma_accept(e->id, &param), "rdma_accept");
    await(e, RDMA_CM_EVENT_ESTABLISHED, NULL);
    /* On iWARP the side that connects speaks first: an empty message. */
    uint64_t told = 0, heard = 0, left = e->shape.count + 1;
    while (left || told < heard) {
        struct ibv_wc wc;
        next(e, &wc);
        if (wc.opcode != IBV_WC_RECV && wc.opcode != IBV_WC_RECV_RDMA_WITH_IMM)
            continue;
        post_recv(e, wc.wr_id);
        if (left-- == e->shape.count + 1) {
            for (int at = 0; at < SLOTS; at += BATCH)
                announce(e, at);
            continue;
        }
        if (++heard - told == BATCH) {
            announce(e, told % SLOTS);
            told += BATCH;
        }
    }
    await(e, RDMA_CM_EVENT_DISCONNECTED, NULL);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* A write to a buffer of the receiver's, and word of it. */
static void send_one(struct end *e, uint64_t number, const struct note *to)
{
    struct ibv_sge sge = { (uintptr_t)e->bytes + number % SLOTS * e->shape.size, e->shape.size, e->data->lkey };
    struct ibv_send_wr *bad, tell = { .wr_id = MESSAGES, .opcode = IBV_WR_SEND };
    struct ibv_send_wr wr = { .wr_id = MESSAGES, .sg_list = &sge, .num_sge = 1,
        .opcode = e->iwarp ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_WRITE_WITH_IMM,
        .wr.rdma = { be64toh(to->addr), be32toh(to->key) } };
    struct ibv_send_wr *last = e->iwarp ? &tell : &wr;
    if (e->iwarp)
        wr.next = &tell;
    if (number % BATCH == BATCH - 1)
        last->send_flags = IBV_SEND_SIGNALED;
    ok(ibv_post_send(e->id->qp, &wr, &bad), "ibv_post_send");
}

static void run(struct end *e, struct sockaddr *at)
{
    struct ibv_wc wc;
    ok(rdma_resolve_addr(e->id, NULL, at, 2000), "rdma_resolve_addr");
    await(e, RDMA_CM_EVENT_ADDR_RESOLVED, NULL);
    ok(rdma_resolve_route(e->id, 2000), "rdma_resolve_route");
    await(e, RDMA_CM_EVENT_ROUTE_RESOLVED, NULL);
    prepare(e);
    struct rdma_conn_param param = { .private_data = &e->shape, .private_data_len = sizeof e->shape,
        .responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7 };
    ok(rdma_connect(e->id, &param), "rdma_connect");
    await(e, RDMA_CM_EVENT_ESTABLISHED, NULL);
    struct ibv_send_wr *bad, hello = { .wr_id = OTHER, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
    ok(ibv_post_send(e->id->qp, &hello, &bad), "ibv_post_send");

    double begun = now();
    struct note known[SLOTS];
    uint64_t sent = 0, named = 0, gone = 0;
    while (gone < e->shape.count || named < e->shape.count + SLOTS) {
        while (sent < named && sent < e->shape.count && sent - gone < SLOTS + BATCH) {
            send_one(e, sent, &known[sent % SLOTS]);
            sent++;
        }
        next(e, &wc);
        if (wc.opcode == IBV_WC_RECV) {
            for (int i = 0; i < BATCH; i++)
                known[named++ % SLOTS] = e->in[wc.wr_id * BATCH + i];
            post_recv(e, wc.wr_id);
        } else if (wc.wr_id == MESSAGES) {
            gone += BATCH;
        }
    }
    printf("%.4f\n", (double)(e->shape.count * e->shape.size) / (now() - begun) / 1e9);
    rdma_disconnect(e->id);
}

int main(int argc, char **argv)
{
    int serves = argc == 4 && strcmp(argv[1], "serve") == 0;
    if (!serves && argc != 5) {
        fprintf(stderr, "usage: announced serve ADDR PORT | announced ADDR PORT SIZE COUNT\n");
        return 2;
    }
    const char **where = (const char **)argv + (serves ? 2 : 1);
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(where[1])) };
    if (inet_pton(AF_INET, where[0], &at.sin_addr) != 1) {
        fprintf(stderr, "%s is no IPv4 address\n", where[0]);
        return 2;
    }
    struct end e = { .channel = must(rdma_create_event_channel(), "rdma_create_event_channel") };
    if (!serves) /* whole batches */
        e.shape = (struct shape){ strtoull(argv[3], NULL, 10), strtoull(argv[4], NULL, 10) / SLOTS * SLOTS };
    ok(rdma_create_id(e.channel, &e.id, NULL, RDMA_PS_TCP), "rdma_create_id");
    if (serves)
        serve(&e, (struct sockaddr *)&at);
    else
        run(&e, (struct sockaddr *)&at);
    return 0;
}

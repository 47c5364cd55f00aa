/* mqttload: a load generator for MQTT 3.1.1 brokers, one thread, epoll.
 *
 *   cc -O2 -o mqttload mqttload.c
 *   mqttload -p 1883 -P 4 -S 0 -q 1 -s 100 -T 1000 -t 5 -w 512
 *
 * It connects S subscribers and P publishers over loopback, publishes for -t seconds
 * (or -n messages in all), then waits for what is still owed, and prints one line of JSON:
 *   acked_per_s   publishes acknowledged (QoS 1: PUBACK, QoS 2: PUBCOMP, QoS 0: handed to the kernel)
 *   recv_per_s    messages that reached the subscribers, up to the last one that did
 *   p50/p99/max   microseconds from publish() to arrival at a subscriber
 *   ack_p50/p99   microseconds from publish() to its acknowledgement
 *   sent, acked, received, expected, out_of_order, duplicates
 * Exit status: 0; 1 when something owed never came (-e seconds, 10 by default); 2 on a usage or socket error.
 *
 * Options: -h host  -p port  -P publishers  -S subscribers  -q qos (publish and subscribe)
 *          -s payload bytes (16 at least)  -T topics per publisher
 *          -F subscription filter, which may have one %d for the subscriber
 *          -x topic pattern, with one %d for the publisher and one %d for the topic
 *          -t seconds  -n messages in all  -w unacknowledged publishes allowed per publisher
 *          -r messages per second in all (0: as fast as it goes)
 *          -R replay: subscribe with clean session 0, disconnect, publish, reconnect, time the catch-up
 *          -Z print the time of the catch-up from a session left behind by an earlier run (with -n messages expected
 *             per subscriber): connects the subscribers only
 *          -L leave: like -R, but stop after publishing, leaving the sessions behind for -Z
 *          -D durable: subscribers have clean session 0 while they are connected, too
 *          -G group: each message is owed to one of the subscribers, not to all of them
 *          -J JSON payloads of -s bytes (100 at least), without the times that subscribers need; with -S 0
 *          -I client id prefix  -u user  -k password  -e seconds to wait for what is owed
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define INBUF (1 << 18)
#define OUTBUF (1 << 18)
#define MAXLAT 4000000

typedef struct {
    int fd, sub, id, ready, want_out;
    uint8_t *in; size_t in_len;
    uint8_t *out; size_t out_len, out_pos;
    uint64_t sent, acked, received;
    uint16_t next_pid;
    uint64_t *t_pub;              /* by packet id: when it was published */
    uint64_t *last_seq; size_t n_last; /* subscriber: last sequence seen by publisher */
} conn;

static struct {
    const char *host, *filter, *pattern, *prefix, *user, *pass;
    int port, pubs, subs, qos, size, topics, window, replay, resume, leave, durable, group, json;
    double seconds, rate, patience; uint64_t count;
} o = {"127.0.0.1", "bench/#", "bench/%d/device/%d/telemetry", "load", NULL, NULL,
       1883, 4, 0, 1, 100, 1000, 512, 0, 0, 0, 0, 0, 0, 5, 0, 10, 0};

static int ep;
static uint32_t *lat, *alat; static size_t n_lat, n_alat, seen_lat, seen_alat;
static uint64_t out_of_order, duplicates;

static uint64_t now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000000ull + t.tv_nsec; }
static void die(const char *what) { fprintf(stderr, "mqttload: %s: %s\n", what, strerror(errno)); exit(2); }

static void keep(uint32_t *a, size_t *n, size_t *seen, uint64_t ns) {   /* reservoir sample */
    uint32_t us = ns / 1000; (*seen)++;
    if (*n < MAXLAT) a[(*n)++] = us;
    else { size_t k = (size_t)(drand48() * *seen); if (k < MAXLAT) a[k] = us; }
}

static void arm(conn *c, int out) {
    struct epoll_event e = {.events = EPOLLIN | (out ? EPOLLOUT : 0), .data.ptr = c};
    if (c->want_out != out) { epoll_ctl(ep, EPOLL_CTL_MOD, c->fd, &e); c->want_out = out; }
}

static int flush_out(conn *c) {
    while (c->out_pos < c->out_len) {
        ssize_t k = send(c->fd, c->out + c->out_pos, c->out_len - c->out_pos, MSG_NOSIGNAL);
        if (k < 0) { if (errno == EAGAIN) { arm(c, 1); return 0; } die("send"); }
        c->out_pos += k;
    }
    c->out_len = c->out_pos = 0; arm(c, 0);
    return 1;
}

static uint8_t *room(conn *c, size_t n) {
    if (c->out_len + n > OUTBUF) { if (!flush_out(c)) return NULL; if (c->out_len + n > OUTBUF) return NULL; }
    uint8_t *p = c->out + c->out_len; c->out_len += n; return p;
}

static size_t put_len(uint8_t *p, size_t n) { size_t k = 0; do { uint8_t b = n & 127; n >>= 7; p[k++] = b | (n ? 128 : 0); } while (n); return k; }

static void send_connect(conn *c, int clean) {
    char id[64]; int n = snprintf(id, sizeof id, "%s-%s-%d", o.prefix, c->sub ? "s" : "p", c->id);
    uint8_t b[512]; size_t k = 0;
    memcpy(b, "\0\4MQTT\4", 7); k = 7;
    b[k++] = (clean ? 2 : 0) | (o.user ? 0x80 : 0) | (o.pass ? 0x40 : 0);
    b[k++] = 0; b[k++] = 0;
    b[k++] = n >> 8; b[k++] = n; memcpy(b + k, id, n); k += n;
    if (o.user) { size_t m = strlen(o.user); b[k++] = m >> 8; b[k++] = m; memcpy(b + k, o.user, m); k += m; }
    if (o.pass) { size_t m = strlen(o.pass); b[k++] = m >> 8; b[k++] = m; memcpy(b + k, o.pass, m); k += m; }
    uint8_t h[5]; h[0] = 0x10; size_t hl = 1 + put_len(h + 1, k);
    uint8_t *p = room(c, hl + k); memcpy(p, h, hl); memcpy(p + hl, b, k);
    flush_out(c);
}

static void send_subscribe(conn *c) {
    char filter[256]; size_t n = snprintf(filter, sizeof filter, o.filter, c->id), k = 2 + 2 + n + 1; uint8_t h[5]; h[0] = 0x82; size_t hl = 1 + put_len(h + 1, k);
    uint8_t *p = room(c, hl + k); memcpy(p, h, hl); p += hl;
    p[0] = 0; p[1] = 1; p[2] = n >> 8; p[3] = n; memcpy(p + 4, filter, n); p[4 + n] = o.qos;
    flush_out(c);
}

static int publish(conn *c) {
    char topic[256]; int tl = snprintf(topic, sizeof topic, o.pattern, c->id, (int)(c->sent % o.topics));
    size_t body = 2 + tl + (o.qos ? 2 : 0) + o.size; uint8_t h[5]; h[0] = 0x30 | o.qos << 1; size_t hl = 1 + put_len(h + 1, body);
    uint8_t *p = room(c, hl + body); if (!p) return 0;
    memcpy(p, h, hl); p += hl; *p++ = tl >> 8; *p++ = tl; memcpy(p, topic, tl); p += tl;
    uint64_t t = now();
    if (o.qos) { uint16_t pid = c->next_pid; c->next_pid = pid == 65535 ? 1 : pid + 1; *p++ = pid >> 8; *p++ = pid; c->t_pub[pid] = t; }
    uint32_t who = c->id, seq = (uint32_t)++c->sent;
    if (o.json) {
        char text[100]; uint32_t mixed = (who * 7919 + seq) * 2654435761u;
        int n = snprintf(text, sizeof text, "{\"value\": %u.%03u, \"unit\": \"C\", \"sequence\": %u, \"state\": \"", mixed % 90, mixed / 90 % 1000, seq);
        memcpy(p, text, n); memset(p + n, 'x', o.size - n - 2); memcpy(p + o.size - 2, "\"}", 2);
    } else {
        memcpy(p, &t, 8); memcpy(p + 8, &who, 4); memcpy(p + 12, &seq, 4);
        if (o.size > 16) memset(p + 16, 'x', o.size - 16);
    }
    if (!o.qos) c->acked++;
    return 1;
}

static void on_packet(conn *c, uint8_t head, uint8_t *p, size_t n) {
    switch (head >> 4) {
    case 2: if (n < 2 || p[1]) { fprintf(stderr, "mqttload: connection refused, code %d\n", n > 1 ? p[1] : -1); exit(2); }
        if (c->sub && !o.resume && c->ready == 0 && !(p[0] & 1)) send_subscribe(c); else c->ready = 1;
        break;
    case 9: if (p[2] & 0x80) { fprintf(stderr, "mqttload: subscription refused\n"); exit(2); } c->ready = 1; break;
    case 3: { size_t tl = p[0] << 8 | p[1]; uint8_t *q = p + 2 + tl; int qos = head >> 1 & 3; uint64_t t; uint32_t who, seq;
        if (qos) { uint8_t *a = room(c, 4); if (a) { a[0] = qos == 1 ? 0x40 : 0x50; a[1] = 2; a[2] = q[0]; a[3] = q[1]; } q += 2; }
        c->received++; memcpy(&t, q, 8); memcpy(&who, q + 8, 4); memcpy(&seq, q + 12, 4);
        keep(lat, &n_lat, &seen_lat, now() - t);
        if (who < c->n_last) { if (seq == c->last_seq[who]) duplicates++; else if (seq < c->last_seq[who]) out_of_order++; else c->last_seq[who] = seq; }
        break; }
    case 4: case 7: { uint16_t pid = p[0] << 8 | p[1]; keep(alat, &n_alat, &seen_alat, now() - c->t_pub[pid]); c->acked++; break; }
    case 5: { uint8_t *a = room(c, 4); if (a) { a[0] = 0x62; a[1] = 2; a[2] = p[0]; a[3] = p[1]; } break; }
    case 6: { uint8_t *a = room(c, 4); if (a) { a[0] = 0x70; a[1] = 2; a[2] = p[0]; a[3] = p[1]; } break; }
    }
}

static void on_readable(conn *c) {
    ssize_t k = recv(c->fd, c->in + c->in_len, INBUF - c->in_len, 0);
    if (k == 0) { fprintf(stderr, "mqttload: the broker closed %s %d\n", c->sub ? "subscriber" : "publisher", c->id); exit(2); }
    if (k < 0) { if (errno == EAGAIN) return; die("recv"); }
    c->in_len += k; size_t pos = 0;
    while (c->in_len - pos >= 2) {
        size_t p = pos + 1, n = 0; int shift = 0, whole = 0;
        while (p < c->in_len && shift < 28) { uint8_t b = c->in[p++]; n |= (size_t)(b & 127) << shift; shift += 7; if (!(b & 128)) { whole = 1; break; } }
        if (!whole || c->in_len - p < n) break;
        on_packet(c, c->in[pos], c->in + p, n); pos = p + n;
    }
    memmove(c->in, c->in + pos, c->in_len - pos); c->in_len -= pos;
    flush_out(c);
}

static conn *dial(int sub, int id, int clean) {
    conn *c = calloc(1, sizeof *c); c->sub = sub; c->id = id; c->next_pid = 1;
    c->in = malloc(INBUF); c->out = malloc(OUTBUF); c->t_pub = calloc(65536, 8);
    c->n_last = o.pubs + 1; c->last_seq = calloc(c->n_last, 8);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(o.port)}; inet_pton(AF_INET, o.host, &a.sin_addr);
    c->fd = socket(AF_INET, SOCK_STREAM, 0); if (connect(c->fd, (void *)&a, sizeof a)) die("connect");
    int one = 1; setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); fcntl(c->fd, F_SETFL, O_NONBLOCK);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = c}; epoll_ctl(ep, EPOLL_CTL_ADD, c->fd, &e);
    send_connect(c, clean); return c;
}
static void hang_up(conn *c) { uint8_t b[2] = {0xE0, 0}; send(c->fd, b, 2, MSG_NOSIGNAL); close(c->fd); }

static void turn(int ms) { struct epoll_event e[256]; int n = epoll_wait(ep, e, 256, ms);
    for (int i = 0; i < n; i++) { conn *c = e[i].data.ptr; if (e[i].events & EPOLLOUT) flush_out(c); if (e[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) on_readable(c); } }
static void until_ready(conn **v, int n) { uint64_t stop = now() + 20000000000ull; for (int i = 0; i < n; i++) while (!v[i]->ready) { turn(100); if (now() > stop) { fprintf(stderr, "mqttload: no CONNACK or SUBACK in 20 s\n"); exit(2); } } }
static int cmp(const void *a, const void *b) { uint32_t x = *(uint32_t *)a, y = *(uint32_t *)b; return x < y ? -1 : x > y; }
static uint32_t pct(uint32_t *a, size_t n, double p) { return n ? a[(size_t)((n - 1) * p)] : 0; }

int main(int argc, char **argv) {
    int ch; while ((ch = getopt(argc, argv, "h:p:P:S:q:s:T:F:x:t:n:w:r:RZLDGJI:u:k:e:")) != -1) switch (ch) {
        case 'h': o.host = optarg; break; case 'p': o.port = atoi(optarg); break; case 'P': o.pubs = atoi(optarg); break;
        case 'S': o.subs = atoi(optarg); break; case 'q': o.qos = atoi(optarg); break; case 's': o.size = atoi(optarg); break;
        case 'T': o.topics = atoi(optarg); break; case 'F': o.filter = optarg; break; case 'x': o.pattern = optarg; break;
        case 't': o.seconds = atof(optarg); break; case 'n': o.count = strtoull(optarg, 0, 10); break; case 'w': o.window = atoi(optarg); break;
        case 'r': o.rate = atof(optarg); break; case 'R': o.replay = 1; break; case 'Z': o.resume = 1; break; case 'L': o.replay = o.leave = 1; break;
        case 'D': o.durable = 1; break; case 'G': o.group = 1; break; case 'J': o.json = 1; break;
        case 'I': o.prefix = optarg; break; case 'u': o.user = optarg; break; case 'k': o.pass = optarg; break; case 'e': o.patience = atof(optarg); break;
        default: fprintf(stderr, "usage: see the top of mqttload.c\n"); return 2; }
    if (o.size < 16) o.size = 16;
    if (o.json && (o.size < 100 || o.subs)) { fprintf(stderr, "mqttload: -J needs -s 100 or more, and -S 0\n"); return 2; }
    if (o.window > 60000) o.window = 60000;
    lat = malloc(MAXLAT * 4); alat = malloc(MAXLAT * 4); ep = epoll_create1(0);
    conn **s = calloc(o.subs + 1, sizeof *s), **p = calloc(o.pubs + 1, sizeof *p);
    uint64_t t0, t1, sent = 0, acked = 0, received = 0, expected = 0;
    if (!o.resume) {
        for (int i = 0; i < o.subs; i++) { s[i] = dial(1, i, !o.replay && !o.durable); }
        until_ready(s, o.subs);
        if (o.replay) { for (int i = 0; i < o.subs; i++) hang_up(s[i]); usleep(200000); }
        for (int i = 0; i < o.pubs; i++) p[i] = dial(0, i, 1);
        until_ready(p, o.pubs);
    } else o.pubs = 0;
    t0 = now(); uint64_t stop = t0 + (uint64_t)(o.seconds * 1e9), quota = 0, done_at = 0;
    int publishing = !o.resume; unsigned first = 0;
    while (publishing) {
        uint64_t t = now(); int more = 0, busy = 0;
        quota = o.rate > 0 ? (uint64_t)((t - t0) / 1e9 * o.rate) + 1 : UINT64_MAX;
        int time_up = o.count ? 0 : t >= stop;
        /* At a given rate the first to ask gets all there is to send: each is first in turn. */
        if (o.rate > 0) first++;
        for (int i = 0; i < o.pubs; i++) { conn *c = p[(first + i) % o.pubs];
            for (int b = 0; b < 64 && !time_up && sent < quota && (!o.count || sent < o.count); b++) {
                if (o.qos && c->sent - c->acked >= (uint64_t)o.window) break;
                if (!o.qos && c->out_len > OUTBUF / 2) break;
                if (!publish(c)) break;
                sent++; busy = 1; }
            if (c->out_len && !c->want_out) flush_out(c);
            if (c->acked < c->sent || c->out_len) more = 1; }
        turn(busy ? 0 : 1);
        int finished = o.count ? sent >= o.count : time_up;
        if (finished && !done_at) done_at = now();
        if (finished && (!more || now() > done_at + (uint64_t)(o.patience * 1e9))) publishing = 0;
    }
    t1 = now();
    for (int i = 0; i < o.pubs; i++) acked += p[i]->acked;
    double pub_s = (t1 - t0) / 1e9; uint64_t r0 = t0, r1 = t1;
    if (!o.leave) {
        if (o.replay || o.resume) { r0 = now(); n_lat = seen_lat = 0; for (int i = 0; i < o.subs; i++) s[i] = dial(1, i, 0); }
        expected = (o.resume ? o.count : sent) * (o.group ? 1 : o.subs); uint64_t last = now(), was = 0;
        for (;;) { received = 0; for (int i = 0; i < o.subs; i++) received += s[i]->received;
            if (received != was) { was = received; last = now(); }
            if (received >= expected || now() > last + (uint64_t)(o.patience * 1e9)) break;
            turn(1); }
        r1 = last;
    }
    double recv_s = (r1 - r0) / 1e9;
    if (!o.leave) { uint64_t drain = now() + 50000000ull; while (now() < drain) turn(1); received = 0; for (int i = 0; i < o.subs; i++) received += s[i]->received; }
    qsort(lat, n_lat, 4, cmp); qsort(alat, n_alat, 4, cmp);
    printf("{\"acked_per_s\": %.0f, \"recv_per_s\": %.0f, \"p50_us\": %u, \"p99_us\": %u, \"max_us\": %u, \"ack_p50_us\": %u, \"ack_p99_us\": %u, "
           "\"sent\": %lu, \"acked\": %lu, \"received\": %lu, \"expected\": %lu, \"out_of_order\": %lu, \"duplicates\": %lu, \"pub_s\": %.3f, \"recv_s\": %.3f}\n",
           o.resume ? 0 : acked / pub_s, received / recv_s, pct(lat, n_lat, .5), pct(lat, n_lat, .99), pct(lat, n_lat, 1),
           pct(alat, n_alat, .5), pct(alat, n_alat, .99), sent, acked, received, expected, out_of_order, duplicates, pub_s, recv_s);
    for (int i = 0; i < o.pubs; i++) hang_up(p[i]);
    if (!o.leave) for (int i = 0; i < o.subs; i++) hang_up(s[i]);
    return acked < sent || received < expected;
}

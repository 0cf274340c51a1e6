/* SPDX-License-Identifier: MIT */

/*
 * Metrics
 *
 * As much of HTTP as a scraper needs: one request, one answer, and the connection is closed. Who
 * asks is not known here and may be anybody who reaches the socket, so everything has a bound: how
 * many there are, what each may send, and how long each may take from the first byte to the last;
 * and no one of them is waited for. Above the number they wait in the backlog.
 *
 * After the answer only the sending half is closed, and what still comes is read and forgotten until
 * the other end closes too: a close with bytes unread would be a reset, which can overtake the answer.
 */

#include "daemon/metrics.h"
#include <errno.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>
#include "daemon/server.h"
#include "daemon/stats.h"

#define METRICS_SCRAPES_MAX   16u
#define METRICS_REQUEST_BYTES 8192u
#define METRICS_DEADLINE_MS   5000u
#define METRICS_HEAD_BYTES    256u
#define METRICS_TYPE          "application/openmetrics-text; version=1.0.0; charset=utf-8"

struct metrics_part {
        const char *at;
        size_t n;
};

struct metrics_scrape {
        struct nd_server *server;
        struct nd_list in_metrics;
        uv_poll_t poll;
        uv_timer_t deadline;
        size_t n_handles; /* that the loop still knows */
        int fd;
        bool is_tcp;
        bool is_answered;
        char request[METRICS_REQUEST_BYTES + 1];
        size_t n_request;
        char head[METRICS_HEAD_BYTES];
        char *body;
        uint64_t charged_bytes;
        struct metrics_part parts[2]; /* head and body: what is still to be sent */
};

void nd_metrics_init(struct nd_metrics *metrics)
{
        *metrics = (struct nd_metrics){0};
        nd_list_init(&metrics->scrapes);
}

bool nd_metrics_has_room(const struct nd_metrics *metrics)
{
        return metrics->n_scrapes < METRICS_SCRAPES_MAX;
}

/* --------------------------------------------------------------------------------------- closing */

static void metrics_on_closed(uv_handle_t *handle)
{
        struct metrics_scrape *scrape = handle->data;
        struct nd_server *server = scrape->server;
        bool was_full = !nd_metrics_has_room(&server->metrics);

        if (--scrape->n_handles > 0)
                return;
        nd_closer_close_socket(&server->closer, scrape->fd);
        free(scrape);
        --server->metrics.n_scrapes;
        if (was_full)
                nd_server_pause_listeners(server, ND_LISTENER_METRICS, false);
}

static void metrics_end(struct metrics_scrape *scrape)
{
        nd_list_unlink(&scrape->in_metrics);
        nd_memory_discharge(&scrape->server->store.memory, scrape->charged_bytes);
        free(scrape->body);
        uv_close((uv_handle_t *)&scrape->poll, metrics_on_closed);
        uv_close((uv_handle_t *)&scrape->deadline, metrics_on_closed);
}

void nd_metrics_close(struct nd_metrics *metrics)
{
        while (!nd_list_is_empty(&metrics->scrapes))
                metrics_end(
                        nd_list_entry(metrics->scrapes.next, struct metrics_scrape, in_metrics));
}

static void metrics_on_deadline(uv_timer_t *timer)
{
        struct metrics_scrape *scrape = timer->data;
        struct nd_server *server = scrape->server;

        server->now_ns = uv_hrtime();
        if (!scrape->is_answered)
                ++server->counters.metrics_timeouts;
        metrics_end(scrape);
        nd_server_settle(server);
}

/* -------------------------------------------------------------------------------------- answering */

/* The body is kept until it is sent, and charged as long. */
static void metrics_answer(struct metrics_scrape *scrape,
                           const char *status,
                           const char *more,
                           const char *type,
                           const char *body,
                           size_t n_body)
{
        int n = snprintf(scrape->head, sizeof(scrape->head),
                         "HTTP/1.1 %s\r\n%sContent-Type: %s\r\nContent-Length: %zu\r\n"
                         "Connection: close\r\n\r\n",
                         status, more, type, n_body);

        nd_assert(n > 0 && (size_t)n < sizeof(scrape->head));
        scrape->parts[0] = (struct metrics_part){scrape->head, (size_t)n};
        scrape->parts[1] = (struct metrics_part){body, n_body};
}

static void metrics_refuse(struct metrics_scrape *scrape, const char *status, const char *more)
{
        ++scrape->server->counters.metrics_refused;
        metrics_answer(scrape, status, more, "text/plain; charset=utf-8", status, strlen(status));
}

static void metrics_answer_text(struct metrics_scrape *scrape)
{
        struct nd_server *server = scrape->server;
        struct nd_fault fault;
        size_t n;

        if (nd_stats_openmetrics(server, &scrape->body, &n, &fault) < 0) {
                nd_log_limited(&server->metrics_log, server->now_ns, ND_LOG_WARNING,
                               "metrics refused: %s: %s", fault.field, fault.text);
                metrics_refuse(scrape, "503 Service Unavailable", "");
                return;
        }
        ++server->counters.metrics_answered;
        nd_memory_charge_anyway(&server->store.memory, n);
        scrape->charged_bytes = n;
        metrics_answer(scrape, "200 OK", "", METRICS_TYPE, scrape->body, n);
}

/* --------------------------------------------------------------------------------------- reading */

/* Cuts the word at @text off; NULL if it is empty, or does not end in @end. */
static char *metrics_cut(char *text, char end)
{
        char *at = strchr(text, end);

        if (!at || at == text)
                return NULL;
        *at = '\0';
        return at + 1;
}

/* @request: complete to the empty line, without it; it is cut into pieces */
static void metrics_handle(struct metrics_scrape *scrape, char *request)
{
        const char *method = request;
        char *target = metrics_cut(request, ' ');
        char *version = target ? metrics_cut(target, ' ') : NULL;
        char *headers = version ? metrics_cut(version, '\n') : NULL;
        bool has_host = headers && strncasecmp(headers, "host:", 5) == 0;

        if (version)
                version[strcspn(version, "\r\n")] = '\0';
        has_host = has_host || (headers && strcasestr(headers, "\nhost:"));
        if (!version || target[0] != '/' ||
            !(strcmp(version, "HTTP/1.0") == 0 || (strcmp(version, "HTTP/1.1") == 0 && has_host))) {
                metrics_refuse(scrape, "400 Bad Request", "");
                return;
        }
        target[strcspn(target, "?")] = '\0';
        if (strcmp(target, "/metrics") != 0)
                metrics_refuse(scrape, "404 Not Found", "");
        else if (strcmp(method, "GET") != 0)
                metrics_refuse(scrape, "405 Method Not Allowed", "Allow: GET\r\n");
        else
                metrics_answer_text(scrape);
}

/* Where the request's empty line begins; NULL: it has not come yet. */
static char *metrics_find_end(struct metrics_scrape *scrape)
{
        char *crlf, *lf;

        scrape->request[scrape->n_request] = '\0';
        crlf = strstr(scrape->request, "\n\r\n");
        lf = strstr(scrape->request, "\n\n");
        return crlf && (!lf || crlf < lf) ? crlf : lf;
}

/* Return: bytes; 0: nothing is there, or -1: the other end is gone. Descriptors are of no use here. */
static ssize_t metrics_receive(struct metrics_scrape *scrape, char *out, size_t n_out)
{
        struct nd_server *server = scrape->server;
        struct nd_descriptors none = {0};
        struct iovec iov = {out, n_out};
        union nd_descriptors_room room;
        struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
        ssize_t n;

        if (!scrape->is_tcp && nd_closer_is_full(&server->closer) &&
            nd_descriptors_are_next(scrape->fd, &iov, 1)) {
                (void)nd_server_refuse_descriptors(server, NULL);
                return -1;
        }
        if (!scrape->is_tcp) {
                message.msg_control = &room;
                message.msg_controllen = sizeof(room);
        }
        n = recvmsg(scrape->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (n < 0)
                return errno == EAGAIN || errno == EINTR ? 0 : -1;
        (void)nd_descriptors_add(&none, &server->closer, &message, false, &(struct nd_fault){0});
        return n > 0 ? n : -1;
}

/* Return: false if the connection is to be closed */
static bool metrics_read(struct metrics_scrape *scrape)
{
        ssize_t n = metrics_receive(scrape, scrape->request + scrape->n_request,
                                    METRICS_REQUEST_BYTES - scrape->n_request);
        char *end;

        if (n <= 0)
                return n == 0;
        scrape->n_request += (size_t)n;
        if (memchr(scrape->request, '\0', scrape->n_request)) {
                metrics_refuse(scrape, "400 Bad Request", "");
                return true;
        }
        end = metrics_find_end(scrape);
        if (end) {
                end[1] = '\0';
                metrics_handle(scrape, scrape->request);
        } else if (scrape->n_request == METRICS_REQUEST_BYTES) {
                metrics_refuse(scrape, "400 Bad Request", "");
        }
        return true;
}

/* -------------------------------------------------------------------------------------- writing */

/* Return: false if the connection is to be closed */
static bool metrics_write(struct metrics_scrape *scrape)
{
        for (size_t i = 0; i < nd_array_size(scrape->parts); ++i) {
                struct metrics_part *part = &scrape->parts[i];

                while (part->n > 0) {
                        ssize_t n = send(scrape->fd, part->at, part->n,
                                         MSG_DONTWAIT | MSG_NOSIGNAL | (i == 0 ? MSG_MORE : 0));

                        if (n < 0)
                                return errno == EAGAIN || errno == EINTR;
                        part->at += n;
                        part->n -= (size_t)n;
                }
        }
        scrape->is_answered = true;
        (void)shutdown(scrape->fd, SHUT_WR);
        return true;
}

static bool metrics_is_writing(const struct metrics_scrape *scrape)
{
        return scrape->parts[0].n + scrape->parts[1].n > 0;
}

static void metrics_on_event(uv_poll_t *poll, int status, int events)
{
        struct metrics_scrape *scrape = poll->data;
        struct nd_server *server = scrape->server;
        bool lives = status == 0;

        (void)events;
        server->now_ns = uv_hrtime();
        if (lives && scrape->is_answered)
                lives = metrics_receive(scrape, scrape->request, METRICS_REQUEST_BYTES) >= 0;
        else if (lives && !metrics_is_writing(scrape))
                lives = metrics_read(scrape);
        if (lives && metrics_is_writing(scrape))
                lives = metrics_write(scrape);
        if (lives)
                lives = uv_poll_start(poll, metrics_is_writing(scrape) ? UV_WRITABLE : UV_READABLE,
                                      metrics_on_event) == 0;
        if (!lives)
                metrics_end(scrape);
        nd_server_settle(server);
}

int nd_metrics_accept(struct nd_server *server, int fd, bool is_tcp)
{
        struct metrics_scrape *scrape = calloc(1, sizeof(*scrape));

        if (!scrape || uv_poll_init(&server->loop, &scrape->poll, fd) < 0) {
                free(scrape);
                nd_closer_close_socket(&server->closer, fd);
                return -ENOMEM;
        }
        uv_timer_init(&server->loop, &scrape->deadline);
        scrape->server = server;
        scrape->fd = fd;
        scrape->is_tcp = is_tcp;
        scrape->poll.data = scrape;
        scrape->deadline.data = scrape;
        scrape->n_handles = 2;
        nd_list_push_tail(&server->metrics.scrapes, &scrape->in_metrics);
        ++server->metrics.n_scrapes;
        (void)uv_timer_start(&scrape->deadline, metrics_on_deadline, METRICS_DEADLINE_MS, 0);
        if (uv_poll_start(&scrape->poll, UV_READABLE, metrics_on_event) < 0)
                metrics_end(scrape);
        return 0;
}

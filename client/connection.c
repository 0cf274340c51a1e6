/* SPDX-License-Identifier: MIT */

/*
 * The connection to the daemon
 *
 * A state machine that never waits: DOWN, CONNECTING, HELLO, WELCOME, READY. Opening a bus drives
 * it until it is READY; a connection that is lost goes DOWN, and whatever call comes next drives
 * it again, with growing pauses between attempts. So there is one way in, and reconnecting is
 * nothing special.
 *
 * Losing a connection is said once, by a receiving call, in its turn behind the messages that had
 * come before. Everything else that depended on it is told at once: requests fail, half-received
 * messages go, windows and watches are forgotten and asked for anew by the next WELCOME.
 *
 * Names are looked up with getaddrinfo(), which blocks. It is asked only when an attempt begins.
 */

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>
#include "client/bus.h"
#include "client/detail.h"
#include "client/outgoing.h"
#include "client/supply.h"
#include "protocol/hello.h"

#define BACKOFF_MS_MIN   50u
#define BACKOFF_MS_MAX   2000u
#define BACKLOG_RETRY_MS 10u

/* The URL to use when the caller gave none. */
static const char *default_url(char *out, size_t n_out)
{
        const char *url = getenv("NDBUS_URL");
        const char *dir = getenv("XDG_RUNTIME_DIR");
        int n;

        if (url && *url)
                return url;
        if (dir && *dir == '/') {
                n = snprintf(out, n_out, "unix:%s/ndbus/ndbus.sock", dir);
                if (n > 0 && (size_t)n < n_out && access(out + strlen("unix:"), F_OK) == 0)
                        return out;
        }
        return "unix:/run/ndbus/ndbus.sock";
}

/* On a Unix socket the kernel says who this is. */
static int connection_init_token(struct nd_connection *c, const char *option)
{
        const char *text = option ? option : getenv("NDBUS_TOKEN");
        struct nd_fault fault = {0};

        if (c->url.type != ND_URL_TCP || !text || !*text)
                return 0;
        if (nd_token_parse(text, option ? "options.token" : "NDBUS_TOKEN", &c->token, &fault))
                return nd_detail_fault(&fault);
        return 0;
}

int nd_connection_init(struct ndbus *bus, const char *url)
{
        struct nd_connection *c = &bus->connection;
        struct nd_fault fault = {0};
        char text[200];
        int r;

        r = nd_url_parse(url ? url : default_url(text, sizeof(text)), url ? "url" : "NDBUS_URL",
                         &c->url, &fault);
        if (r)
                return nd_detail_fault(&fault);
        nd_url_format(&c->url, c->url_text, sizeof(c->url_text));
        r = connection_init_token(c, bus->options.token);
        if (r)
                return r;
        c->backoff_ms = BACKOFF_MS_MIN;
        c->attempt_ns = ND_NEVER;
        return 0;
}

/* Fills the list of addresses: 0, or why there is none. */
static int connection_resolve(struct nd_connection *c, struct nd_fault *fault)
{
        struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
        struct addrinfo *list = NULL;
        char port[8];
        int r;

        c->i_address = 0;
        c->n_addresses = 0;
        if (c->url.type == ND_URL_UNIX) {
                c->addresses[0].local = (struct sockaddr_un){.sun_family = AF_UNIX};
                memcpy(c->addresses[0].local.sun_path, c->url.path, strlen(c->url.path) + 1);
                c->address_bytes[0] = sizeof(struct sockaddr_un);
                c->n_addresses = 1;
                return 0;
        }
        snprintf(port, sizeof(port), "%u", c->url.port);
        r = getaddrinfo(c->url.host, port, &hints, &list);
        if (r)
                return nd_fault_set(fault, NDBUS_ENOTCONN, "", "%s: %s", c->url_text,
                                    gai_strerror(r));
        for (struct addrinfo *i = list; i && c->n_addresses < ND_ADDRESSES_MAX; i = i->ai_next) {
                if (i->ai_addrlen > sizeof(c->addresses[0]))
                        continue;
                memcpy(&c->addresses[c->n_addresses], i->ai_addr, i->ai_addrlen);
                c->address_bytes[c->n_addresses++] = i->ai_addrlen;
        }
        freeaddrinfo(list);
        if (c->n_addresses == 0)
                return nd_fault_set(fault, NDBUS_ENOTCONN, "", "%s: no address", c->url_text);
        return 0;
}

static void socket_close(struct ndbus *bus)
{
        int *fd = &bus->guard.fds[ND_FD_SOCKET];

        if (*fd >= 0)
                close(*fd);
        *fd = -1;
}

static void socket_set(int fd, int level, int name, int value)
{
        (void)setsockopt(fd, level, name, &value, sizeof(value)); /* a matter of speed alone */
}

/* Never one of the first three: what a program whose stdout is closed prints must not be sent. */
static int socket_open(int family)
{
        int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), above;

        if (fd < 0 || fd > STDERR_FILENO)
                return fd;
        above = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
        close(fd);
        return above;
}

/* A socket with a connect() under way: 0, or a positive errno. */
static int socket_connect(struct ndbus *bus)
{
        struct nd_connection *c = &bus->connection;
        union nd_address *address = &c->addresses[c->i_address];
        int fd;

        fd = socket_open(address->any.sa_family);
        if (fd < 0)
                return errno;
        bus->guard.fds[ND_FD_SOCKET] = fd;
        ++c->generation;
        if (c->url.type == ND_URL_TCP) {
                socket_set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
                socket_set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
                socket_set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 10);
                socket_set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
                socket_set(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
        } else {
                socket_set(fd, SOL_SOCKET, SO_SNDBUF, ND_UNIX_SEND_BUFFER_BYTES);
        }
        if (connect(fd, &address->any, c->address_bytes[c->i_address]) < 0)
                return errno;
        return 0;
}

static void connection_pause(struct nd_connection *c, uint64_t pause_ms)
{
        c->state = ND_STATE_DOWN;
        c->attempt_ns = ND_NEVER;
        c->retry_ns = nd_clock_ns() + pause_ms * ND_NS_PER_MS;
}

static void connection_say_hello(struct ndbus *bus)
{
        struct nd_connection *c = &bus->connection;
        uint8_t hello[ND_HELLO_BYTES];
        ssize_t n;

        nd_hello_pack(&(struct nd_hello){ND_VERSION, ND_VERSION}, hello);
        n = send(nd_bus_socket(bus), hello, sizeof(hello), MSG_NOSIGNAL);
        if (n != (ssize_t)sizeof(hello) && errno != EPIPE && errno != ECONNRESET) {
                nd_connection_lose_errno(bus, errno);
                return;
        }
        /* one that closed at once may have said why: that is read next */
        c->n_hello = 0;
        c->state = ND_STATE_HELLO;
}

/* Begins an attempt at the next address. */
static void connection_start(struct ndbus *bus)
{
        struct nd_connection *c = &bus->connection;
        struct nd_fault fault = {0};
        int r;

        if (c->i_address >= c->n_addresses && connection_resolve(c, &fault)) {
                nd_connection_lose(bus, &fault);
                return;
        }
        c->state = ND_STATE_CONNECTING;
        c->attempt_ns = nd_clock_ns() + (uint64_t)bus->options.connect_timeout_ms * ND_NS_PER_MS;
        r = socket_connect(bus);
        if (r == EAGAIN && c->url.type == ND_URL_UNIX) {
                /* its backlog is full: neither an error nor something to wait for */
                socket_close(bus);
                connection_pause(c, BACKLOG_RETRY_MS);
        } else if (r == 0) {
                connection_say_hello(bus);
        } else if (r != EINPROGRESS && r != EINTR) {
                nd_connection_lose_errno(bus, r);
        }
}

static void connection_finish_connect(struct ndbus *bus)
{
        struct pollfd p = {.fd = nd_bus_socket(bus), .events = POLLOUT};
        int error = 0;
        socklen_t n = sizeof(error);

        if (poll(&p, 1, 0) <= 0)
                return;
        if (getsockopt(p.fd, SOL_SOCKET, SO_ERROR, &error, &n) < 0)
                error = errno;
        if (error)
                nd_connection_lose_errno(bus, error);
        else
                connection_say_hello(bus);
}

/* What this end can do on this connection. */
static uint32_t connection_features(const struct ndbus *bus)
{
        bool is_local = bus->connection.url.type == ND_URL_UNIX;

        return is_local && !bus->options.no_shm ? ND_FEATURE_SHM | ND_FEATURE_RING | ND_FEATURE_BELL
                                                : 0;
}

static void connection_say_connect(struct ndbus *bus)
{
        struct nd_connect connect = {
                .features = connection_features(bus),
                .client = {bus->client_name, strlen(bus->client_name)},
                .pid = (uint64_t)getpid(),
        };
        const char *token = bus->connection.token.name;
        struct nd_control_bytes bytes;

        if (*token)
                connect.token = (struct nd_string){token, strlen(token)};
        bus->connection.has_proved = false;

        nd_connect_pack(&connect, &bytes);
        bus->connection.n_requests = 1;
        bus->connection.state = ND_STATE_WELCOME;
        if (nd_output_packet(&bus->output,
                             &(struct nd_prelude){.kind = ND_KIND_CONNECT, .sequence = 1},
                             bytes.data, bytes.n, NULL, 0))
                nd_connection_lose_text(bus, NDBUS_ENOMEM, "out of memory");
}

static void connection_take_hello(struct ndbus *bus, const struct nd_hello_reply *reply)
{
        const char *url = bus->connection.url_text;

        if (reply->version == ND_VERSION)
                connection_say_connect(bus);
        else if (reply->version == 0 && reply->reason == -NDBUS_ESERVER_FULL)
                nd_connection_lose_text(bus, NDBUS_ESERVER_FULL,
                                        "%s: the daemon has as many clients as it may have", url);
        else if (reply->version == 0)
                nd_connection_lose_text(bus, NDBUS_EVERSION,
                                        "%s: the daemon speaks versions %u to %u, this library %u",
                                        url, reply->version_min, reply->version_max, ND_VERSION);
        else
                nd_connection_lose_text(bus, NDBUS_EPROTOCOL,
                                        "%s: version %u was chosen, which was not offered", url,
                                        reply->version);
}

static void connection_read_hello(struct ndbus *bus)
{
        struct nd_connection *c = &bus->connection;
        struct nd_hello_reply reply;
        ssize_t n;
        int r;

        n = recv(nd_bus_socket(bus), c->hello + c->n_hello, sizeof(c->hello) - c->n_hello, 0);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
                return;
        if (n < 0) {
                nd_connection_lose_errno(bus, errno);
                return;
        }
        if (n == 0) {
                nd_connection_lose_text(bus, NDBUS_ENOTCONN,
                                        "%s: closed by the other end before any answer",
                                        c->url_text);
                return;
        }
        c->n_hello += (size_t)n;
        r = nd_hello_reply_unpack(c->hello, c->n_hello, &reply);
        if (r == 0)
                connection_take_hello(bus, &reply);
        else if (r == ND_HELLO_E_ALIEN)
                nd_connection_lose_text(bus, NDBUS_EPROTOCOL,
                                        "%s: what answers there is no ndbus daemon", c->url_text);
}

void nd_connection_advance(struct ndbus *bus)
{
        struct nd_connection *c = &bus->connection;
        uint64_t now;

        if (c->state == ND_STATE_READY || c->is_closing)
                return;
        now = nd_clock_ns();
        if (c->state == ND_STATE_DOWN && now >= c->retry_ns)
                connection_start(bus);
        else if (c->state != ND_STATE_DOWN && now >= c->attempt_ns)
                nd_connection_lose_text(bus, NDBUS_ETIMEDOUT, "%s: no answer within %d ms",
                                        c->url_text, bus->options.connect_timeout_ms);
        if (c->state == ND_STATE_CONNECTING)
                connection_finish_connect(bus);
        if (c->state == ND_STATE_HELLO)
                connection_read_hello(bus);
}

void nd_connection_take_auth(struct ndbus *bus, const struct nd_packet *packet)
{
        struct nd_connection *c = &bus->connection;
        struct nd_token_exchange exchange = {.name = ""};
        uint8_t proof[ND_TOKEN_PROOF_BYTES];
        struct nd_control_bytes bytes;
        struct nd_fault fault = {0};
        struct nd_auth auth;

        if (nd_auth_unpack(packet->header, packet->prelude.header_bytes, &auth, &fault)) {
                nd_connection_lose(bus, &fault);
                return;
        }
        nd_hello_pack(&(struct nd_hello){ND_VERSION, ND_VERSION}, exchange.client_hello);
        memcpy(exchange.daemon_hello, c->hello, sizeof(exchange.daemon_hello));
        memcpy(exchange.daemon_nonce, auth.nonce.at, sizeof(exchange.daemon_nonce));
        if (getrandom(exchange.client_nonce, sizeof(exchange.client_nonce), 0) !=
            sizeof(exchange.client_nonce)) {
                nd_connection_lose_text(bus, NDBUS_ESYSTEM, "no random bytes");
                return;
        }
        if (nd_token_prove(&c->token, &exchange, proof, c->their_proof, &fault)) {
                nd_connection_lose_text(bus, fault.code, "%s: token %s: %.150s", c->url_text,
                                        c->token.name, fault.text);
                return;
        }
        c->has_proved = true;
        auth = (struct nd_auth){
                .nonce = {(const char *)exchange.client_nonce, sizeof(exchange.client_nonce)},
                .proof = {(const char *)proof, sizeof(proof)},
        };
        nd_auth_pack(&auth, &bytes);
        if (nd_output_packet(&bus->output,
                             &(struct nd_prelude){.kind = ND_KIND_AUTH, .sequence = 1}, bytes.data,
                             bytes.n, NULL, 0))
                nd_connection_lose_text(bus, NDBUS_ENOMEM, "out of memory");
}

/* Who has a token talks to nobody who does not know it too. */
static bool connection_is_trusted(const struct nd_connection *c, const struct nd_welcome *welcome)
{
        if (c->token.name[0] == '\0')
                return true;
        return c->has_proved && welcome->proof.at &&
               nd_token_proofs_are_equal(c->their_proof, (const uint8_t *)welcome->proof.at);
}

int nd_connection_take_welcome(struct ndbus *bus, const struct nd_packet *packet)
{
        struct nd_connection *c = &bus->connection;
        struct nd_fault fault = {0};
        struct nd_welcome welcome;
        int r;

        r = nd_welcome_unpack(packet->header, packet->prelude.header_bytes, &welcome, &fault);
        if (r) {
                nd_connection_lose(bus, &fault);
                return r;
        }
        if (!connection_is_trusted(c, &welcome)) {
                nd_connection_lose_text(bus, NDBUS_EDENIED,
                                        "%s: the daemon did not prove that it knows the token %s",
                                        c->url_text, c->token.name);
                return NDBUS_EDENIED;
        }
        welcome.server = (struct nd_string){NULL, 0};
        welcome.proof = (struct nd_string){NULL, 0};
        c->limits = welcome;
        c->source = welcome.source;
        c->features = welcome.features & connection_features(bus);
        c->state = ND_STATE_READY;
        c->attempt_ns = ND_NEVER;
        c->backoff_ms = BACKOFF_MS_MIN;
        c->n_failures = 0;
        c->i_address = c->n_addresses = 0;
        c->is_stopping = false;
        c->ping_ns = 0;
        nd_connection_heard(bus);
        nd_credit_start(&bus->credit, welcome.grant_bytes);
        nd_supply_start(bus);
        if (nd_subscriptions_renew(bus) || nd_watches_renew(bus)) {
                nd_connection_lose_text(bus, NDBUS_ENOMEM, "out of memory");
                return NDBUS_ENOMEM;
        }
        return 0;
}

void nd_connection_heard(struct ndbus *bus)
{
        bus->connection.heard_ns = nd_clock_coarse_ns();
        bus->connection.ping_ns = 0;
}

/* What an established connection takes with it; @has_output: but not the output. */
static void connection_lost(struct ndbus *bus, const struct nd_fault *fault, bool has_output)
{
        struct nd_credit *credit = &bus->credit;
        uint64_t n;

        if (bus->outgoing)
                nd_outgoing_lost(bus, bus->outgoing, has_output);
        n = credit->n_complete > credit->n_routed ? credit->n_complete - credit->n_routed : 0;
        bus->n_lost += n;
        bus->n_lost_unflushed += n;
        *credit = (struct nd_credit){0};
        bus->connection.lost = bus->connection.is_stopping ? NDBUS_ESHUTDOWN : fault->code;
        nd_subscriptions_lost(bus);
        nd_watches_lost(bus);
        nd_offline_lost(bus);
        nd_supply_lost(bus);
        nd_outlet_close(bus);
}

void nd_connection_lose(struct ndbus *bus, const struct nd_fault *fault)
{
        struct nd_connection *c = &bus->connection;
        bool was_ready = c->state == ND_STATE_READY;
        bool has_output = nd_hold_part(bus, c->is_over);

        socket_close(bus);
        c->is_over = false;
        c->features = 0;
        nd_input_reset(bus);
        nd_output_reset(&bus->output);
        c->source = 0;
        c->why = *fault;
        if (was_ready) {
                connection_lost(bus, fault, has_output);
                connection_pause(c, BACKOFF_MS_MIN);
        } else if (++c->i_address < c->n_addresses) {
                connection_pause(c, 0);
        } else {
                ++c->n_failures;
                connection_pause(c, c->backoff_ms);
                c->backoff_ms = nd_min_u64(c->backoff_ms * 2, BACKOFF_MS_MAX);
        }
        nd_request_fail_all(bus, fault);
}

void nd_connection_lose_text(struct ndbus *bus, int code, const char *format, ...)
{
        struct nd_fault fault = {.code = code};
        va_list args;

        va_start(args, format);
        vsnprintf(fault.text, sizeof(fault.text), format, args);
        va_end(args);
        nd_connection_lose(bus, &fault);
}

void nd_connection_lose_errno(struct ndbus *bus, int error)
{
        const char *url = bus->connection.url_text;

        switch (error) {
        case EPIPE:
        case ECONNRESET:
                bus->connection.is_over = true;
                nd_connection_lose_text(bus, NDBUS_ENOTCONN, "%s: the daemon closed the connection",
                                        url);
                return;
        case EACCES:
        case EPERM:
                nd_connection_lose_text(bus, NDBUS_EDENIED, "%s: %s", url, strerror(error));
                return;
        default:
                nd_connection_lose_text(bus, NDBUS_ENOTCONN, "%s: %s", url, strerror(error));
        }
}

int nd_connection_fail_down(const struct ndbus *bus)
{
        const struct nd_connection *c = &bus->connection;

        if (c->is_stopping)
                return nd_detail_fail(NDBUS_ENOTCONN, "%s: the daemon is stopping", c->url_text);
        if (c->why.code)
                return nd_detail_fault_as(NDBUS_ENOTCONN, &c->why);
        return nd_detail_fail(NDBUS_ENOTCONN, "%s: not connected yet", c->url_text);
}

/* A daemon that closes says why before it does; that is read before the loss is taken for what a
 * failed write makes of it. */
void nd_connection_fail_write(struct ndbus *bus, int error)
{
        uint64_t generation = bus->connection.generation;

        for (int i = 0; i < 256 && bus->connection.state >= ND_STATE_WELCOME; ++i)
                if (nd_input_read(bus) == 0)
                        break;
        if (bus->connection.state >= ND_STATE_WELCOME && bus->connection.generation == generation)
                nd_connection_lose_errno(bus, error);
}

int nd_connection_send(struct ndbus *bus)
{
        int r;

        if (bus->outgoing && bus->outgoing->generation == bus->connection.generation &&
            nd_outgoing_is_torn(bus->outgoing))
                return 0; /* whoever sends it goes on; then it is this one's turn */
        r = nd_output_send(&bus->output, nd_bus_socket(bus));
        if (r && r != EAGAIN)
                nd_connection_fail_write(bus, r);
        return r == 0;
}

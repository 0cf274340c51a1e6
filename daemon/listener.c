/* SPDX-License-Identifier: MIT */

/*
 * Listener
 *
 * Sockets are made here rather than by libuv: that truncates long paths silently, and does not say
 * when accept fails. One file descriptor is kept in reserve, so that at the limit a client can
 * still be told SERVER_FULL instead of waiting in the backlog for ever.
 */

#include "daemon/listener.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include "daemon/reach.h"
#include "daemon/server.h"
#include "protocol/hello.h"

#define LISTENER_BACKLOG     512
#define LISTENER_ACCEPTS_MAX 64 /* of one wake-up */

static int listener_fail(struct nd_fault *fault, const struct nd_url *url, const char *what)
{
        char text[ND_HOST_BYTES_MAX + 32];
        int error = errno;

        return nd_fault_set(fault, NDBUS_ESYSTEM, nd_url_format(url, text, sizeof(text)), "%s: %s",
                            what, strerror(error));
}

static const char *listener_option(enum nd_listener_purpose purpose)
{
        return purpose == ND_LISTENER_METRICS ? "--metrics" : "--listen";
}

static struct nd_listener *listener_new(struct nd_server *server,
                                        int fd,
                                        const struct nd_url *url,
                                        enum nd_listener_purpose purpose)
{
        struct nd_listener *listener = calloc(1, sizeof(*listener));

        if (!listener)
                return NULL;
        listener->server = server;
        listener->fd = fd;
        listener->lock_fd = -1;
        listener->purpose = purpose;
        listener->url = *url;
        listener->is_tcp = url->type == ND_URL_TCP;
        if (uv_poll_init(&server->loop, &listener->poll, fd) < 0) {
                free(listener);
                return NULL;
        }
        nd_list_push_tail(&server->listeners, &listener->in_server);
        return listener;
}

/* ---------------------------------------------------------------------------------- Unix sockets */

static int listener_make_folder(const struct nd_url *url, struct nd_fault *fault)
{
        char folder[sizeof(url->path)];
        char *slash;

        memcpy(folder, url->path, sizeof(folder));
        slash = strrchr(folder, '/');
        if (slash == folder)
                return 0;
        *slash = '\0';
        if (mkdir(folder, 0755) < 0 && errno != EEXIST)
                return listener_fail(fault, url, "cannot make its folder");
        return 0;
}

static int
listener_lock(const struct nd_url *url, const char *option, int *ret_fd, struct nd_fault *fault)
{
        char path[sizeof(url->path) + 8];
        int fd;

        snprintf(path, sizeof(path), "%s.lock", url->path);
        fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0)
                return listener_fail(fault, url, "cannot open its lock file");
        if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
                int r = errno == EWOULDBLOCK
                                ? nd_fault_set(fault, NDBUS_ESYSTEM, option,
                                               "unix:%s: another ndbusd serves there", url->path)
                                : listener_fail(fault, url, "cannot lock its lock file");

                close(fd);
                return r;
        }
        *ret_fd = fd;
        return 0;
}

/* With the lock held, a socket at the path belongs to nobody alive. */
static int
listener_remove_dead(const struct nd_url *url, const char *option, struct nd_fault *fault)
{
        struct stat status;

        if (lstat(url->path, &status) < 0)
                return errno == ENOENT ? 0 : listener_fail(fault, url, "cannot look at the path");
        if (!S_ISSOCK(status.st_mode))
                return nd_fault_set(fault, NDBUS_ESYSTEM, option,
                                    "unix:%s: there is a file that is not a socket", url->path);
        if (unlink(url->path) < 0)
                return listener_fail(fault, url, "cannot remove the dead socket");
        return 0;
}

static int listener_bind_unix(const struct nd_url *url, int *ret_fd, struct nd_fault *fault)
{
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        mode_t mask;
        int r;

        if (fd < 0)
                return listener_fail(fault, url, "socket");
        _Static_assert(sizeof(address.sun_path) == sizeof(url->path), "a path fits");
        memcpy(address.sun_path, url->path, sizeof(address.sun_path));
        mask = umask(0117);
        r = bind(fd, (struct sockaddr *)&address, sizeof(address));
        (void)umask(mask);
        if (r < 0 || listen(fd, LISTENER_BACKLOG) < 0) {
                r = listener_fail(fault, url, r < 0 ? "bind" : "listen");
                close(fd);
                return r;
        }
        *ret_fd = fd;
        return 0;
}

static int listener_open_unix(struct nd_server *server,
                              const struct nd_url *url,
                              enum nd_listener_purpose purpose,
                              struct nd_fault *fault)
{
        const char *option = listener_option(purpose);
        struct nd_listener *listener;
        int lock_fd = -1;
        int fd = -1;
        int r;

        r = listener_make_folder(url, fault);
        if (r == 0)
                r = listener_lock(url, option, &lock_fd, fault);
        if (r < 0)
                return r;
        r = listener_remove_dead(url, option, fault);
        if (r == 0)
                r = listener_bind_unix(url, &fd, fault);
        if (r < 0) {
                close(lock_fd);
                return r;
        }
        listener = listener_new(server, fd, url, purpose);
        if (!listener) {
                close(fd);
                close(lock_fd);
                return nd_fault_set(fault, NDBUS_ENOMEM, option, "no memory");
        }
        listener->lock_fd = lock_fd;
        listener->is_owned = true;
        return 0;
}

/* ------------------------------------------------------------------------------------------ TCP */

static uint16_t listener_port(int fd)
{
        struct sockaddr_storage address;
        socklen_t n = sizeof(address);

        if (getsockname(fd, (struct sockaddr *)&address, &n) < 0)
                return 0;
        return ntohs(address.ss_family == AF_INET
                             ? ((struct sockaddr_in *)(void *)&address)->sin_port
                             : ((struct sockaddr_in6 *)(void *)&address)->sin6_port);
}

static int
listener_bind_tcp(const struct addrinfo *info, const struct nd_url *url, struct nd_fault *fault)
{
        int fd = socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        int on = 1;

        if (fd < 0)
                return listener_fail(fault, url, "socket");
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
        if (info->ai_family == AF_INET6)
                (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
        if (bind(fd, info->ai_addr, info->ai_addrlen) < 0 || listen(fd, LISTENER_BACKLOG) < 0) {
                int r = listener_fail(fault, url, "cannot listen");

                close(fd);
                return r;
        }
        return fd;
}

static int listener_open_tcp(struct nd_server *server,
                             const struct nd_url *url,
                             enum nd_listener_purpose purpose,
                             struct nd_fault *fault)
{
        const char *option = listener_option(purpose);
        bool is_bus = purpose == ND_LISTENER_BUS;
        struct nd_listener *listener;
        struct addrinfo *info;
        int fd;
        int r;

        r = nd_reach_find(url, true, option, &info, fault);
        if (r < 0)
                return r;
        r = nd_reach_check(&server->options, info->ai_addr, url, !is_bus, option, fault);
        if (r < 0) {
                freeaddrinfo(info);
                return r;
        }
        fd = listener_bind_tcp(info, url, fault);
        if (fd >= 0 && is_bus && nd_reach_is_local(info->ai_addr) && !server->options.rules &&
            !server->options.tokens)
                nd_log(ND_LOG_NOTICE,
                       "tcp://%s is open to every user of this machine, whatever the Unix socket's "
                       "mode",
                       url->host);
        freeaddrinfo(info);
        if (fd < 0)
                return fd;
        listener = listener_new(server, fd, url, purpose);
        if (!listener) {
                close(fd);
                return nd_fault_set(fault, NDBUS_ENOMEM, option, "no memory");
        }
        listener->url.port = listener_port(fd);
        return 0;
}

int nd_listener_open(struct nd_server *server,
                     const struct nd_url *url,
                     enum nd_listener_purpose purpose,
                     struct nd_fault *fault)
{
        return url->type == ND_URL_UNIX ? listener_open_unix(server, url, purpose, fault)
                                        : listener_open_tcp(server, url, purpose, fault);
}

/* ----------------------------------------------------------------------------- socket activation */

bool nd_listener_format_address(const struct sockaddr_storage *address, char *out, size_t n_out)
{
        char host[NI_MAXHOST];
        char port[NI_MAXSERV];

        if (getnameinfo((const struct sockaddr *)(const void *)address, sizeof(*address), host,
                        sizeof(host), port, sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) != 0)
                return false;
        snprintf(out, n_out, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
        return true;
}

static void adopt_describe(const struct sockaddr_storage *address, struct nd_url *ret)
{
        *ret = (struct nd_url){0};
        if (address->ss_family == AF_UNIX) {
                ret->type = ND_URL_UNIX;
                memcpy(ret->path, ((const struct sockaddr_un *)(const void *)address)->sun_path,
                       sizeof(ret->path) - 1);
                return;
        }
        ret->type = ND_URL_TCP;
        (void)getnameinfo((const struct sockaddr *)(const void *)address, sizeof(*address),
                          ret->host, sizeof(ret->host), NULL, 0, NI_NUMERICHOST);
}

int nd_listener_adopt(struct nd_server *server, int fd, struct nd_fault *fault)
{
        struct sockaddr_storage address = {0};
        socklen_t n_address = sizeof(address);
        socklen_t n = sizeof(int);
        int type = 0;
        int accepts = 0;
        struct nd_listener *listener;
        struct nd_url url;
        char field[24];

        snprintf(field, sizeof(field), "LISTEN_FDS fd %d", fd);
        if (getsockname(fd, (struct sockaddr *)&address, &n_address) < 0 ||
            getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &n) < 0 ||
            getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &accepts, &n) < 0)
                return nd_fault_set(fault, NDBUS_ESYSTEM, field, "is not a socket");
        if (type != SOCK_STREAM || !accepts ||
            (address.ss_family != AF_UNIX && address.ss_family != AF_INET &&
             address.ss_family != AF_INET6))
                return nd_fault_set(fault, NDBUS_ESYSTEM, field,
                                    "is not a listening stream socket, Unix or TCP");

        adopt_describe(&address, &url);
        if (url.type == ND_URL_TCP) {
                int r = nd_reach_check(&server->options, (struct sockaddr *)(void *)&address, &url,
                                       false, field, fault);

                if (r < 0)
                        return r;
        }
        if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) < 0)
                return nd_fault_set(fault, NDBUS_ESYSTEM, field, "%s", strerror(errno));
        listener = listener_new(server, fd, &url, ND_LISTENER_BUS);
        if (!listener)
                return nd_fault_set(fault, NDBUS_ENOMEM, field, "no memory");
        if (listener->is_tcp)
                listener->url.port = listener_port(fd);
        return 0;
}

/* ------------------------------------------------------------------------------------- accepting */

/* At the limit of descriptors: the reserve is lent to one client, which is told so at once. */
static void listener_refuse(struct nd_listener *listener)
{
        struct nd_server *server = listener->server;
        const struct nd_hello_reply reply = {
                .reason = -NDBUS_ESERVER_FULL,
                .version_min = ND_VERSION,
                .version_max = ND_VERSION,
        };
        uint8_t bytes[ND_HELLO_BYTES];
        int fd;

        ++server->counters.accept_errors;
        nd_log_limited(&server->accept_log, server->now_ns, ND_LOG_ERROR, "accept: %s",
                       strerror(errno));
        if (server->reserve_fd < 0)
                return;
        close(server->reserve_fd);
        fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0 && listener->purpose == ND_LISTENER_BUS) {
                nd_hello_reply_pack(&reply, bytes);
                (void)send(fd, bytes, sizeof(bytes), MSG_NOSIGNAL);
                (void)shutdown(fd, SHUT_WR);
                ++server->counters.clients_refused;
        }
        if (fd >= 0)
                nd_closer_close_socket(&server->closer, fd);
        server->reserve_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static bool listener_has_room(const struct nd_listener *listener)
{
        const struct nd_server *server = listener->server;

        if (nd_closer_is_full(&server->closer))
                return false;
        return listener->purpose == ND_LISTENER_METRICS ? nd_metrics_has_room(&server->metrics)
                                                        : server->n_refused < ND_REFUSED_MAX;
}

static void listener_take(struct nd_listener *listener, int fd)
{
        struct nd_server *server = listener->server;
        bool is_full = server->n_connections - server->n_refused >= server->options.clients_max;

        if (listener->purpose == ND_LISTENER_METRICS) {
                if (nd_metrics_accept(server, fd, listener->is_tcp) < 0)
                        ++server->counters.accept_errors;
        } else if (nd_connection_new(server, fd, listener->is_tcp,
                                     is_full ? -NDBUS_ESERVER_FULL : 0) < 0) {
                ++server->counters.accept_errors;
        } else {
                ++server->counters.clients_accepted;
        }
}

static void listener_on_client(uv_poll_t *poll, int status, int events)
{
        struct nd_listener *listener = nd_container_of(poll, struct nd_listener, poll);
        struct nd_server *server = listener->server;

        (void)status;
        (void)events;
        server->now_ns = uv_hrtime();
        for (int i = 0; i < LISTENER_ACCEPTS_MAX && listener_has_room(listener); ++i) {
                int fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

                if (fd < 0) {
                        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM ||
                            errno == ENOBUFS)
                                listener_refuse(listener);
                        break;
                }
                listener_take(listener, fd);
        }
        /* who waits in the backlog is not asked about again and again: closing one wakes us, or the
         * tick when it was the closer */
        if (nd_closer_is_full(&server->closer)) {
                server->awaits_closer = true;
                nd_server_say_closer_full(server);
        }
        if (!listener_has_room(listener))
                nd_server_pause_listeners(server, listener->purpose, true);
        nd_server_settle(server);
}

int nd_listener_start(struct nd_listener *listener)
{
        return uv_poll_start(&listener->poll, UV_READABLE, listener_on_client);
}

void nd_listener_pause(struct nd_listener *listener, bool is_paused)
{
        if (uv_is_closing((uv_handle_t *)&listener->poll))
                return;
        if (is_paused)
                uv_poll_stop(&listener->poll);
        else
                (void)nd_listener_start(listener);
}

static void listener_on_closed(uv_handle_t *handle)
{
        struct nd_listener *listener =
                nd_container_of((uv_poll_t *)handle, struct nd_listener, poll);

        if (listener->is_owned) /* who was not accepted may have sent descriptors */
                nd_closer_close_socket(&listener->server->closer, listener->fd);
        else
                close(listener->fd);
        if (listener->lock_fd >= 0)
                close(listener->lock_fd);
        free(listener);
}

void nd_listener_stop(struct nd_listener *listener)
{
        nd_list_unlink(&listener->in_server);
        if (listener->is_owned)
                (void)unlink(listener->url.path);
        uv_close((uv_handle_t *)&listener->poll, listener_on_closed);
}

/* SPDX-License-Identifier: MIT */

/*
 * Server
 *
 * Every callback of the loop ends with nd_server_settle(): output is written after all input of the
 * callback has been taken in, so that many small messages leave together; what waited for memory is
 * admitted in order of arrival; what was marked for closing is closed, when nobody is in the middle
 * of anything.
 */

#include "daemon/server.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <malloc.h>
#include <signal.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include "daemon/admission.h"
#include "daemon/credit.h"
#include "daemon/request.h"
#include "daemon/slow.h"
#include "protocol/topic.h"

#define SERVER_TICK_MS        1000u
#define SERVER_LEAD_MS        10u
#define SERVER_STATUS_BYTES   4096u
#define SERVER_PROTOCOL_LINES 20u /* a second, of clients that broke the protocol */
#define SERVER_TROUBLE_LINES  20u /* a second, of subscriptions that lose or take nothing */
#define SERVER_SHM_LOG_NS     (UINT64_C(60) * 1000000000)
#define SERVER_ASIDE_PART     16u /* of the memory: for first windows of clients to come */
#define SERVER_SHARES_PART    4u  /* of all descriptors: for segments, and those to be closed */
#define SERVER_BELLS_PART     16u /* of all descriptors: for bells */
#define SERVER_CLOSERS        8u  /* threads for what peers sent, which may all hang */

/* ---------------------------------------------------------------------------------------- memory */

/* A block queue, a retained value or a client that reads it where it lies keeps a message; and in one of
 * the daemon's own blocks it takes no memory that another one could have. */
static bool server_is_kept(const struct nd_message *message)
{
        return message->n_pins > 0 || nd_block_is_own(message->block) ||
               (message->block && message->block->n_holds > 0);
}

/* The droppable queue that holds most; its oldest message that nobody else needs. */
static struct nd_message *server_find_victim(struct nd_server *server)
{
        struct nd_message *victim = NULL;
        uint64_t n_most = 0;

        nd_list_for_each (i, &server->connections) {
                struct nd_connection *connection =
                        nd_list_entry(i, struct nd_connection, in_server);
                struct nd_subscription *subscription;

                RB_FOREACH (subscription, nd_subscription_tree, &connection->subscriptions) {
                        const struct nd_queue *queue = &subscription->sink->queue;

                        if (queue->policy == ND_POLICY_BLOCK || queue->n_bytes < n_most)
                                continue;
                        nd_list_for_each (k, &queue->entries) {
                                struct nd_entry *entry =
                                        nd_list_entry(k, struct nd_entry, in_queue);

                                if (server_is_kept(entry->message))
                                        continue;
                                victim = entry->message;
                                n_most = queue->n_bytes;
                                break;
                        }
                }
        }
        return victim;
}

static void server_take_back(struct nd_message *message)
{
        nd_message_ref(message);
        nd_list_for_each_safe (i, &message->entries)
                nd_entry_taken_back(nd_list_entry(i, struct nd_entry, in_message));
        nd_message_unref(message);
}

bool nd_server_make_room(struct nd_server *server, uint64_t n_bytes)
{
        struct nd_memory *memory = &server->store.memory;
        struct nd_message *victim;

        if (n_bytes > memory->max_bytes)
                return false;
        while (!nd_memory_has_room(memory, n_bytes)) {
                if (nd_own_trim(server, 0))
                        continue;
                victim = server_find_victim(server);
                if (!victim)
                        return false;
                server_take_back(victim);
        }
        return true;
}

bool nd_server_charge(struct nd_server *server, uint64_t n_bytes)
{
        struct nd_memory *memory = &server->store.memory;

        return nd_memory_charge(memory, n_bytes) ||
               (nd_server_make_room(server, n_bytes) && nd_memory_charge(memory, n_bytes));
}

void nd_server_set_aside(struct nd_server *server)
{
        struct nd_memory *memory = &server->store.memory;
        uint64_t all = nd_min_u64(server->options.clients_max * ND_PUBLISH_WINDOW_BYTES_MIN,
                                  memory->max_bytes / SERVER_ASIDE_PART);

        memory->aside_bytes =
                all - nd_min_u64(all, server->n_windows * ND_PUBLISH_WINDOW_BYTES_MIN);
}

static void server_forget_retained(struct nd_server *server, struct nd_topic *topic)
{
        struct nd_message *message = nd_steal(topic->retained);

        if (!message)
                return;
        --message->n_pins;
        message->is_retained = false;
        server->retained_bytes -= message->charged_bytes;
        topic->retained_by->used[ND_LIMIT_RETAINED] -= message->cost_bytes;
        topic->retained_by = nd_account_unref(topic->retained_by);
        nd_message_unref(message);
}

static int server_check_retain(const struct nd_server *server,
                               const struct nd_message *message,
                               const struct nd_quota *quota,
                               struct nd_fault *fault)
{
        uint64_t most = server->store.memory.max_bytes / 4;
        uint64_t n = server->retained_bytes + message->charged_bytes;

        if (n > most)
                return nd_fault_set_numbers(fault, NDBUS_ERETAIN_FULL, "retained", n, most,
                                            "with it all retained values are %" PRIu64
                                            " bytes, the limit is "
                                            "%" PRIu64 ", a quarter of memory-max",
                                            n, most);
        if (nd_quota_is_over(quota, ND_LIMIT_RETAINED, message->cost_bytes))
                return nd_quota_fault(quota, NDBUS_ERETAIN_FULL, ND_LIMIT_RETAINED,
                                      quota->account->used[ND_LIMIT_RETAINED] + message->cost_bytes,
                                      fault);
        return 0;
}

int nd_server_retain(struct nd_server *server,
                     struct nd_message *message,
                     const struct nd_quota *quota,
                     struct nd_fault *fault)
{
        struct nd_topic *topic = nd_topic_ref(message->topic);
        int r = 0;

        server_forget_retained(server, topic);
        if (!message->is_clearing)
                r = server_check_retain(server, message, quota, fault);
        if (r == 0 && !message->is_clearing) {
                topic->retained = nd_message_ref(message);
                topic->retained_by = nd_account_ref(quota->account);
                ++message->n_pins;
                server->retained_bytes += message->charged_bytes;
                nd_quota_charge(quota, ND_LIMIT_RETAINED, message->cost_bytes);
        } else {
                message->is_retained = false;
        }
        nd_topic_unref(topic);
        return r;
}

/* ------------------------------------------------------------------------------------- settling */

void nd_server_subscriptions_changed(struct nd_server *server, const char *pattern, size_t n)
{
        nd_list_for_each (i, &server->router.watched) {
                struct nd_topic *topic = nd_list_entry(i, struct nd_topic, in_watched);

                if (!nd_pattern_match(pattern, n, topic->name, topic->n_name))
                        continue;
                nd_list_for_each (k, &topic->watches) {
                        struct nd_watch *watch = nd_list_entry(k, struct nd_watch, in_topic);

                        if (nd_list_is_empty(&watch->in_dirty))
                                nd_list_push_tail(&watch->connection->dirty_watches,
                                                  &watch->in_dirty);
                        nd_connection_mark_dirty(watch->connection);
                }
        }
}

static void server_write(struct nd_connection *connection)
{
        const struct nd_outbox *outbox = &connection->outbox;

        nd_request_write_news(connection);
        nd_lender_write_released(connection);
        nd_credit_grant(&connection->publisher, false);
        if (!outbox->is_blocked)
                nd_outbox_write(&connection->outbox);
        nd_connection_resume(connection);
        nd_connection_update_events(connection); /* also where nothing could be written */
        if (connection->closes_after_output && !connection->is_shut && !outbox->half.is_active &&
            outbox->n_control == outbox->i_control) {
                connection->is_shut = true;
                (void)shutdown(connection->fd, SHUT_WR);
        }
}

static void server_admit(struct nd_server *server)
{
        while (!nd_list_is_empty(&server->memory_waiters)) {
                struct nd_publisher *publisher =
                        nd_list_entry(server->memory_waiters.next, struct nd_publisher, in_waiters);

                if (!nd_publisher_admit(publisher))
                        return;
        }
}

void nd_server_pause_listeners(struct nd_server *server,
                               enum nd_listener_purpose purpose,
                               bool is_paused)
{
        nd_list_for_each (i, &server->listeners) {
                struct nd_listener *listener = nd_list_entry(i, struct nd_listener, in_server);

                if (listener->purpose == purpose)
                        nd_listener_pause(listener, is_paused);
        }
}

void nd_server_say_closer_full(struct nd_server *server)
{
        nd_log_limited(
                &server->closer_log, server->now_ns, ND_LOG_ERROR,
                "descriptors that peers sent do not close pending=%zu limit=%zu: no more are "
                "taken, and new connections wait",
                nd_closer_pending_received(&server->closer), server->closer.n_received_max);
}

int nd_server_refuse_descriptors(struct nd_server *server, struct nd_fault *fault)
{
        size_t n = nd_closer_pending_received(&server->closer);

        ++server->counters.fds_refused;
        nd_server_say_closer_full(server);
        return nd_fault_set_numbers(
                fault, NDBUS_EFDS, "fd", n + 1, server->closer.n_received_max,
                "would be one more than the %zu descriptors that are still being "
                "closed, the limit is %zu",
                n, server->closer.n_received_max);
}

/* Those who wait in the backlog may come. */
static void server_resume_listeners(struct nd_server *server)
{
        if (!server->awaits_closer || nd_closer_is_full(&server->closer))
                return;
        server->awaits_closer = false;
        nd_server_pause_listeners(server, ND_LISTENER_BUS, false);
        nd_server_pause_listeners(server, ND_LISTENER_METRICS, false);
}

static void server_close_marked(struct nd_server *server)
{
        bool was_full = server->n_refused >= ND_REFUSED_MAX;

        while (!nd_list_is_empty(&server->closing))
                nd_connection_close(
                        nd_list_entry(server->closing.next, struct nd_connection, in_closing));
        if (was_full && server->n_refused < ND_REFUSED_MAX)
                nd_server_pause_listeners(server, ND_LISTENER_BUS, false);
}

static bool connection_is_drained(struct nd_connection *connection)
{
        struct nd_subscription *subscription;

        if (nd_outbox_has_output(&connection->outbox) ||
            nd_publisher_is_busy(&connection->publisher) || nd_connection_has_input(connection))
                return false;
        RB_FOREACH (subscription, nd_subscription_tree, &connection->subscriptions) {
                if (subscription->sink->queue.n_messages > 0 || subscription->stream ||
                    subscription->cut)
                        return false;
        }
        return true;
}

static bool server_is_drained(struct nd_server *server)
{
        nd_list_for_each (i, &server->connections) {
                if (!connection_is_drained(nd_list_entry(i, struct nd_connection, in_server)))
                        return false;
        }
        return true;
}

void nd_server_settle(struct nd_server *server)
{
        do {
                while (!nd_list_is_empty(&server->dirty)) {
                        struct nd_list *node = server->dirty.next;

                        nd_list_unlink(node);
                        server_write(nd_list_entry(node, struct nd_connection, in_dirty));
                }
                while (!nd_list_is_empty(&server->broken))
                        nd_connection_read_last(nd_list_entry(server->broken.next,
                                                              struct nd_connection, in_closing));
                server_close_marked(server);
                server_admit(server); /* behind both, because both free memory */
        } while (!nd_list_is_empty(&server->dirty) || !nd_list_is_empty(&server->closing));

        if (server->drain_deadline_ns != 0 && server_is_drained(server))
                uv_stop(&server->loop);
}

/* ---------------------------------------------------------------------------------------- timers */

static void server_on_lead(uv_timer_t *timer)
{
        struct nd_server *server = nd_container_of(timer, struct nd_server, lead_timer);

        server->now_ns = uv_hrtime();
        nd_list_for_each_safe (i, &server->lead) {
                if (!nd_credit_pace(nd_list_entry(i, struct nd_publisher, in_lead)))
                        nd_list_unlink(i);
        }
        if (nd_list_is_empty(&server->lead))
                uv_timer_stop(&server->lead_timer);
        nd_server_settle(server);
}

void nd_server_watch_lead(struct nd_server *server)
{
        if (!uv_is_active((uv_handle_t *)&server->lead_timer))
                (void)uv_timer_start(&server->lead_timer, server_on_lead, SERVER_LEAD_MS,
                                     SERVER_LEAD_MS);
}

static void server_on_rescue(uv_idle_t *idle)
{
        struct nd_server *server = nd_container_of(idle, struct nd_server, rescue);

        server->now_ns = uv_hrtime();
        if (!nd_rescue_step(server))
                uv_idle_stop(idle);
        nd_server_settle(server);
}

void nd_server_watch_rescues(struct nd_server *server)
{
        (void)uv_idle_start(&server->rescue, server_on_rescue);
}

static void server_on_intake(uv_idle_t *idle)
{
        struct nd_server *server = nd_container_of(idle, struct nd_server, intake);

        server->now_ns = uv_hrtime();
        if (!nd_intakes_look(server))
                uv_idle_stop(idle);
        nd_server_settle(server);
}

void nd_server_watch_intakes(struct nd_server *server)
{
        (void)uv_idle_start(&server->intake, server_on_intake);
}

static void server_on_tick(uv_timer_t *timer)
{
        struct nd_server *server = nd_container_of(timer, struct nd_server, tick);

        server->now_ns = uv_hrtime();
        nd_list_for_each (i, &server->connections)
                nd_connection_tick(nd_list_entry(i, struct nd_connection, in_server),
                                   server->now_ns);
        nd_arena_trim(&server->store.arena);
        nd_accounts_sweep(&server->accounts, server->now_ns);
        (void)nd_own_trim(server, ND_OWN_IDLE_NS);
        nd_notify_again(&server->notifier);
        server_resume_listeners(server);
        nd_server_settle(server);
}

static void server_on_watchdog(uv_timer_t *timer)
{
        (void)timer;
        nd_notify_alive();
}

/* -------------------------------------------------------------------------------------- stopping */

static void server_on_drain_deadline(uv_timer_t *timer)
{
        uv_stop(timer->loop);
}

void nd_server_drain(struct nd_server *server)
{
        nd_notify(&server->notifier, "STOPPING=1");
        server->drain_deadline_ns = server->now_ns + server->options.drain_timeout_ms * 1000000 + 1;
        while (!nd_list_is_empty(&server->listeners))
                nd_listener_stop(
                        nd_list_entry(server->listeners.next, struct nd_listener, in_server));
        nd_list_for_each (i, &server->connections) {
                struct nd_connection *connection =
                        nd_list_entry(i, struct nd_connection, in_server);

                nd_intake_take(connection); /* who stands still before WAKE is not waited for */
                if (connection->state == ND_CONNECTION_OPEN) /* others hear it after WELCOME */
                        nd_request_say_goodbye(connection, NDBUS_ESHUTDOWN,
                                               "the daemon is stopping");
        }
        (void)uv_timer_start(&server->drain, server_on_drain_deadline,
                             server->options.drain_timeout_ms, 0);
}

static void server_on_signal(uv_signal_t *signal, int number)
{
        struct nd_server *server = signal->data;

        server->now_ns = uv_hrtime();
        if (server->drain_deadline_ns != 0) {
                nd_log(ND_LOG_NOTICE, "signal=%d again: stopping at once", number);
                uv_stop(&server->loop);
                return;
        }
        nd_log(ND_LOG_NOTICE, "signal=%d: stopping", number);
        nd_server_drain(server);
        nd_server_settle(server);
}

/* The old rules go when nothing refers to them any more. */
void nd_server_apply(struct nd_server *server, const struct nd_options *changed)
{
        struct nd_options old = server->options;

        nd_options_reload(&server->options, changed);
        nd_server_set_aside(server);
        nd_log_set_level(server->options.log_level);
        nd_list_for_each (i, &server->connections)
                nd_admission_renew(nd_list_entry(i, struct nd_connection, in_server), old.tokens);
        if (!nd_rules_are_equal(old.rules, server->options.rules))
                nd_shares_retire_left(server);
        ++server->router.generation;
        nd_server_subscriptions_changed(server, "**", 2);
        nd_slow_set_timer(server);
        nd_options_deinit(&old);
}

static void server_on_hangup(uv_signal_t *signal, int number)
{
        struct nd_server *server = signal->data;
        struct nd_options changed;
        struct nd_fault fault;
        char text[64];
        int r;

        (void)number;
        if (server->drain_deadline_ns != 0)
                return;
        server->now_ns = uv_hrtime();
        snprintf(text, sizeof(text), "RELOADING=1\nMONOTONIC_USEC=%llu",
                 (unsigned long long)(server->now_ns / 1000));
        nd_notify(&server->notifier, text);
        r = nd_options_parse(server->options.argc, server->options.argv, &changed, &fault);
        if (r == 0 && server->options.config && !changed.config) {
                /* without it there might be no rules, and everything allowed */
                nd_options_deinit(&changed);
                r = nd_fault_set(&fault, NDBUS_EINVAL, server->options.config, "%s",
                                 strerror(ENOENT));
        }
        if (r == 0 && server->options.tokens && !changed.tokens) {
                nd_options_deinit(&changed);
                r = nd_fault_set(&fault, NDBUS_EINVAL, "token",
                                 "the last one can be taken away at the next start only");
        }
        if (r == 0) {
                nd_server_apply(server, &changed);
                nd_log(ND_LOG_NOTICE, "reloaded config=%s",
                       server->options.config ? server->options.config : "none");
        } else {
                nd_log(ND_LOG_ERROR, "not reloaded, the old settings stay in force: %s: %s",
                       fault.field, fault.text);
        }
        nd_notify(&server->notifier, "READY=1");
        nd_server_settle(server);
}

/* Nothing is waited for any more. What will not be delivered is told to whom it was for, and how
 * far the daemon came to whom it was from, as far as their sockets take it. Returns how many messages
 * are lost. */
static uint64_t server_give_up(struct nd_server *server)
{
        struct nd_subscription *subscription;
        struct nd_connection *connection;
        uint64_t n_lost = 0;

        nd_list_for_each (i, &server->connections) {
                connection = nd_list_entry(i, struct nd_connection, in_server);
                RB_FOREACH (subscription, nd_subscription_tree, &connection->subscriptions)
                        nd_subscription_stop(subscription);
        }
        nd_list_for_each (i, &server->connections) {
                connection = nd_list_entry(i, struct nd_connection, in_server);
                RB_FOREACH (subscription, nd_subscription_tree, &connection->subscriptions)
                        n_lost += nd_subscription_give_up(subscription);
                if (connection->state != ND_CONNECTION_OPEN)
                        continue;
                nd_request_say_goodbye(connection, NDBUS_ESHUTDOWN, "the daemon has stopped");
                nd_outbox_write(&connection->outbox);
        }
        return n_lost;
}

/* -------------------------------------------------------------------------------------- the whole */

uint64_t nd_server_new_source(struct nd_server *server)
{
        uint64_t source = 0;

        while (source == 0) {
                if (getrandom(&source, sizeof(source), 0) != sizeof(source))
                        source = server->now_ns * UINT64_C(0x9e3779b97f4a7c15) + 1;
        }
        return source;
}

static size_t server_descriptors(void)
{
        struct rlimit limit;

        return getrlimit(RLIMIT_NOFILE, &limit) < 0 ? 1024 : (size_t)limit.rlim_cur;
}

int nd_server_init(struct nd_server *server, const struct nd_options *options)
{
        int r;

        memset(server, 0, sizeof(*server));
        server->options = *options;
        nd_list_init(&server->connections);
        nd_list_init(&server->listeners);
        nd_list_init(&server->dirty);
        nd_list_init(&server->broken);
        nd_list_init(&server->closing);
        nd_list_init(&server->groups);
        nd_list_init(&server->slow);
        nd_list_init(&server->lead);
        nd_list_init(&server->memory_waiters);
        nd_metrics_init(&server->metrics);
        nd_list_init(&server->shares);
        nd_list_init(&server->rescues);
        nd_list_init(&server->intakes);
        nd_own_init(server);
        server->bells.set = -1;
        server->shares_max = server_descriptors() / SERVER_SHARES_PART;
        server->protocol_log.n_more = SERVER_PROTOCOL_LINES - 1;
        server->trouble_log.n_more = SERVER_TROUBLE_LINES - 1;
        server->segment_log.period_ns = SERVER_SHM_LOG_NS;
        server->fallback_log.period_ns = SERVER_SHM_LOG_NS;
        server->own_log.period_ns = SERVER_SHM_LOG_NS;
        server->closer_log.period_ns = SERVER_SHM_LOG_NS;
        server->reserve_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
        server->now_ns = uv_hrtime();
        server->started_ns = server->now_ns;

        /* what is freed below the blocks' size goes back at once when there is much of it, and is
         * never mapped one by one */
        (void)mallopt(M_MMAP_THRESHOLD, 1 << 20);
        (void)mallopt(M_TRIM_THRESHOLD, 4 << 20);

        r = nd_store_init(&server->store, options->memory_max);
        nd_server_set_aside(server);
        nd_accounts_init(&server->accounts, &server->counters);
        if (r == 0)
                r = nd_router_init(&server->router);
        if (r == 0)
                r = nd_closer_init(&server->closer, server->shares_max, SERVER_CLOSERS);
        if (r == 0)
                r = uv_loop_init(&server->loop);
        if (r == 0)
                r = nd_bells_init(server, server_descriptors() / SERVER_BELLS_PART);
        if (r < 0) {
                nd_log(ND_LOG_ERROR, "cannot start: %s", strerror(-r));
                return r;
        }
        uv_timer_init(&server->loop, &server->tick);
        uv_timer_init(&server->loop, &server->lead_timer);
        uv_timer_init(&server->loop, &server->slow_timer);
        uv_timer_init(&server->loop, &server->watchdog);
        uv_idle_init(&server->loop, &server->rescue);
        uv_idle_init(&server->loop, &server->intake);
        uv_timer_init(&server->loop, &server->drain);
        uv_signal_init(&server->loop, &server->sigterm);
        uv_signal_init(&server->loop, &server->sigint);
        uv_signal_init(&server->loop, &server->sighup);
        server->sigterm.data = server;
        server->sigint.data = server;
        server->sighup.data = server;
        return 0;
}

static int server_open_listeners(struct nd_server *server)
{
        int n_passed = nd_notify_listen_fds();
        struct nd_fault fault = {0};
        int r = 0;

        if (n_passed < 0)
                r = nd_fault_set(&fault, NDBUS_ESYSTEM, "LISTEN_FDS", "is malformed");
        for (int i = 0; i < n_passed && r == 0; ++i)
                r = nd_listener_adopt(server, 3 + i, &fault);
        if (r == 0 && n_passed == 0)
                r = nd_options_default_listen(&server->options, &fault);
        for (size_t i = 0; i < server->options.n_listen && r == 0; ++i)
                r = nd_listener_open(server, &server->options.listen[i], ND_LISTENER_BUS, &fault);
        for (size_t i = 0; i < server->options.n_metrics && r == 0; ++i)
                r = nd_listener_open(server, &server->options.metrics[i], ND_LISTENER_METRICS,
                                     &fault);
        if (r < 0)
                nd_log(ND_LOG_ERROR, "%s: %s", fault.field, fault.text);
        return r;
}

static void server_say_ready(struct nd_server *server)
{
        char status[SERVER_STATUS_BYTES] = "READY=1\nSTATUS=listening on";
        uint64_t watchdog_us = nd_notify_watchdog_us();

        nd_list_for_each (i, &server->listeners) {
                struct nd_listener *listener = nd_list_entry(i, struct nd_listener, in_server);
                char url[ND_HOST_BYTES_MAX + 32];
                size_t n = strlen(status);

                (void)nd_listener_start(listener);
                nd_url_format(&listener->url, url, sizeof(url));
                nd_log(ND_LOG_INFO, "%s on %s",
                       listener->purpose == ND_LISTENER_METRICS ? "metrics" : "listening", url);
                snprintf(status + n, sizeof(status) - n, "%s %s",
                         listener->purpose == ND_LISTENER_METRICS ? ", metrics on" : "", url);
        }
        nd_notify(&server->notifier, status);
        if (watchdog_us > 0)
                (void)uv_timer_start(&server->watchdog, server_on_watchdog, 0,
                                     watchdog_us / 2000 > 0 ? watchdog_us / 2000 : 1);
}

int nd_server_run(struct nd_server *server)
{
        uint64_t n_lost;
        int r = server_open_listeners(server);

        if (r < 0)
                return r == NDBUS_EINVAL ? ND_EXIT_USAGE : EXIT_FAILURE;
        uv_signal_start(&server->sigterm, server_on_signal, SIGTERM);
        uv_signal_start(&server->sigint, server_on_signal, SIGINT);
        if (server->options.reloads) /* else it means what it means to every program */
                uv_signal_start(&server->sighup, server_on_hangup, SIGHUP);
        uv_timer_start(&server->tick, server_on_tick, SERVER_TICK_MS, SERVER_TICK_MS);
        server_say_ready(server);
        uv_run(&server->loop, UV_RUN_DEFAULT);

        n_lost = server_give_up(server);
        nd_log(n_lost > 0 ? ND_LOG_WARNING : ND_LOG_NOTICE,
               "stopped messages_in=%llu messages_out=%llu lost=%llu",
               (unsigned long long)server->counters.messages_in,
               (unsigned long long)server->counters.messages_out, (unsigned long long)n_lost);
        return EXIT_SUCCESS;
}

static void server_close_handle(uv_handle_t *handle, void *data)
{
        (void)data;
        if (!uv_is_closing(handle))
                uv_close(handle, NULL);
}

void nd_server_deinit(struct nd_server *server)
{
        struct nd_topic *topic;
        struct nd_topic *next;

        while (!nd_list_is_empty(&server->listeners))
                nd_listener_stop(
                        nd_list_entry(server->listeners.next, struct nd_listener, in_server));
        nd_metrics_close(&server->metrics);
        nd_list_for_each (i, &server->connections)
                nd_connection_mark_closing(nd_list_entry(i, struct nd_connection, in_server));
        server_close_marked(server);
        while (!nd_list_is_empty(&server->rescues))
                nd_rescue_end(
                        nd_list_entry(server->rescues.next, struct nd_share, rescue.in_server));
        RB_FOREACH_SAFE (topic, nd_topic_tree, &server->router.topics, next)
                server_forget_retained(server, topic);
        nd_own_deinit(server);
        uv_walk(&server->loop, server_close_handle, NULL);
        uv_run(&server->loop, UV_RUN_DEFAULT);
        nd_assert(uv_loop_close(&server->loop) == 0);
        nd_bells_deinit(&server->bells);
        nd_router_deinit(&server->router);
        nd_accounts_sweep(&server->accounts, UINT64_MAX);
        nd_assert(server->accounts.n == 0);
        nd_store_deinit(&server->store);
        nd_assert(server->store.memory.used_bytes == 0);
        nd_options_deinit(&server->options);
        nd_closer_deinit(&server->closer);
        if (server->reserve_fd >= 0)
                close(server->reserve_fd);
}

/* SPDX-License-Identifier: MIT */

/*
 * Intake
 *
 * A send and a receive for each message cost more than all that is done for one whose body does not
 * move. So a client that publishes in blocks writes its PUBLISHes into a ring, and as long as the
 * daemon finds something there whenever its loop comes round it asks for no more than that. When it
 * finds nothing it says so, and the next one is announced by the bell, or by WAKE.
 *
 * Order is that of the numbers of PUBLISH: one in the ring waits until those before it have come by the
 * socket. And what is in the ring is taken before any packet of the socket, so whatever a client sends by
 * its socket comes behind what it has published.
 */

#include "daemon/intake.h"
#include "daemon/server.h"

/* Of all rings in one turn of the loop; who has only a socket waits no longer for many who have rings. */
#define INTAKE_TURN_BYTES (4u * ND_RING_BYTES)

void nd_intake_init(struct nd_intake *intake)
{
        *intake = (struct nd_intake){.bell = -1};
        nd_list_init(&intake->in_awake);
}

void nd_intake_deinit(struct nd_connection *connection)
{
        struct nd_intake *intake = &connection->intake;

        nd_list_unlink(&intake->in_awake);
        nd_bell_close(&connection->server->bells, &intake->bell);
        nd_ring_close(&intake->ring);
}

int nd_intake_open(struct nd_connection *connection,
                   const struct nd_prelude *prelude,
                   int fd,
                   struct nd_fault *fault)
{
        struct nd_prelude answer = {.kind = ND_KIND_RING, .sequence = prelude->sequence};
        struct nd_intake *intake = &connection->intake;
        int r;

        if (intake->ring.head)
                r = nd_fault_set(fault, NDBUS_EPROTOCOL, "kind",
                                 "RING comes again, and there is one ring for a connection");
        else if (fd < 0)
                r = nd_fault_set(fault, NDBUS_ENO_FD, "fd", "none came with the packet");
        else
                r = nd_ring_map(fd, prelude->place, &intake->ring, fault);
        if (fd >= 0)
                nd_closer_close(&connection->server->closer, &fd, 1);
        if (r == NDBUS_EPROTOCOL)
                return r;
        if (r < 0) {
                ++connection->server->counters.shm_refused;
                nd_connection_error(connection, fault, ND_KIND_RING, prelude->sequence);
                return 0;
        }
        (void)nd_ring_sleep(&intake->ring);
        if (connection->features & ND_FEATURE_BELL)
                intake->bell = nd_bell_open(connection);
        nd_outbox_control_with_fd(&connection->outbox, &answer, intake->bell);
        return 0;
}

/* The next packet, while no PUBLISH is under way. Return: its bytes; 0: it is not its turn; else a negative
 * enum ndbus_err */
static ssize_t intake_take_packet(struct nd_connection *connection,
                                  const uint8_t *data,
                                  size_t n_data,
                                  struct nd_packet *packet,
                                  struct nd_fault *fault)
{
        struct nd_publisher *publisher = &connection->publisher;
        const struct nd_reader_limits limits = {
                .direction = ND_FROM_CLIENT,
                .header_bytes_max = (uint32_t)connection->server->options.header_max,
                .meta_bytes_max = (uint32_t)connection->server->options.meta_max,
                .features = connection->features,
        };
        size_t n_wanted;
        int r = nd_reader_next(&limits, data, n_data, packet, &n_wanted, fault);

        if (r < 0)
                return r;
        if (r > 0)
                return nd_fault_set_exact(fault, NDBUS_EPROTOCOL, "written", n_data, n_wanted,
                                          "bytes");
        if (packet->prelude.kind != ND_KIND_PUBLISH ||
            !(packet->prelude.flags & ND_FLAG_BODY_IN_BLOCK))
                return nd_fault_set(fault, NDBUS_EPROTOCOL, "kind",
                                    "%s comes through the ring, which is for PUBLISH with "
                                    "BODY_IN_BLOCK",
                                    nd_kind_name(packet->prelude.kind));
        if (packet->prelude.sequence > publisher->n_received + 1) {
                connection->intake.waits_for = packet->prelude.sequence - 1;
                return 0;
        }
        r = nd_publisher_publish(publisher, packet, fault);
        if (r < 0)
                return r;
        ++connection->server->counters.ring_messages;
        return (ssize_t)packet->n_bytes;
}

/* Has something come by the socket since it was found that it is not its turn? */
static bool intake_may_go_on(const struct nd_connection *connection)
{
        const struct nd_publisher *publisher = &connection->publisher;

        return connection->intake.ring.head && connection->state == ND_CONNECTION_OPEN &&
               !connection->closes_after_output && !connection->is_held &&
               !nd_publisher_is_busy(publisher) &&
               publisher->n_received >= connection->intake.waits_for;
}

void nd_intake_keep_awake(struct nd_connection *connection)
{
        struct nd_intake *intake = &connection->intake;

        if (!nd_list_is_empty(&intake->in_awake))
                return;
        nd_ring_wake(&intake->ring);
        nd_list_push_tail(&connection->server->intakes, &intake->in_awake);
        nd_server_watch_intakes(connection->server);
}

void nd_intake_take(struct nd_connection *connection)
{
        static uint8_t data[ND_RING_BYTES]; /* one loop, one thread */
        struct nd_intake *intake = &connection->intake;
        struct nd_packet packet = {0};
        struct nd_fault fault;
        size_t n = 0, i = 0;
        ssize_t r;

        if (!intake_may_go_on(connection))
                return;
        intake->waits_for = 0;
        r = nd_ring_look(&intake->ring, data, &n, &fault);
        while (r >= 0 && i < n && intake_may_go_on(connection)) {
                if (nd_outbox_is_full(&connection->outbox)) {
                        connection->is_held = true;
                        nd_connection_mark_dirty(connection);
                        break;
                }
                r = intake_take_packet(connection, data + i, n - i, &packet, &fault);
                if (r > 0)
                        i += (size_t)r;
        }
        if (r < 0)
                nd_connection_fail(connection, &fault, packet.prelude.kind,
                                   packet.prelude.sequence);
        if (i == 0)
                return;
        nd_ring_take(&intake->ring, i);
        nd_intake_keep_awake(connection);
}

int nd_intake_wake(struct nd_connection *connection, struct nd_fault *fault)
{
        if (!connection->intake.ring.head)
                return nd_fault_set(fault, NDBUS_EPROTOCOL, "kind", "WAKE comes without a ring");
        ++connection->server->counters.ring_calls;
        /* also if nothing is there any more: it does not say that it sleeps */
        nd_intake_keep_awake(connection);
        return 0;
}

/* One that is awake; false: it has fallen asleep. */
static bool intake_look(struct nd_connection *connection)
{
        struct nd_ring *ring = &connection->intake.ring;
        uint64_t position = ring->position;

        nd_intake_take(connection);
        if (ring->position != position)
                return true;
        if (nd_ring_sleep(ring) || !intake_may_go_on(connection))
                return false;
        nd_ring_wake(ring);
        return true;
}

bool nd_intakes_look(struct nd_server *server)
{
        const struct nd_list *last = server->intakes.prev;
        struct nd_list *node = NULL;
        uint64_t n_taken = 0;

        while (node != last && n_taken < INTAKE_TURN_BYTES &&
               (node = nd_list_first(&server->intakes))) {
                struct nd_connection *connection =
                        nd_list_entry(node, struct nd_connection, intake.in_awake);
                uint64_t position = connection->intake.ring.position;
                bool is_awake = intake_look(connection);

                nd_list_unlink(node);
                if (is_awake)
                        nd_list_push_tail(&server->intakes, node);
                n_taken += connection->intake.ring.position - position;
        }
        return !nd_list_is_empty(&server->intakes);
}

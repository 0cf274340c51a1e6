/* SPDX-License-Identifier: MIT */

/*
 * Publishing
 *
 * Checks that need no daemon come first, then those against its limits, then the wait for leave:
 * a connection, no pause of the topic, credit, an output that is not stuck. Before leave nothing
 * of the message has left and nothing is lost but time; after it the message is sent to its end.
 *
 * Small messages are written into the output and leave with one call, together if the caller says
 * that more follow; those in blocks are written into a ring, if there is one, and need none. Large ones
 * are sent from where they lie.
 *
 * The socket is read when half the window is used, and then after every further eighth, not before
 * every message: a read that finds nothing would cost as much as a third of a send.
 */

#include <string.h>
#include "client/bus.h"
#include "client/detail.h"
#include "client/export.h"
#include "client/loan.h"
#include "client/offline.h"
#include "client/outgoing.h"
#include "protocol/byteorder.h"
#include "protocol/scan.h"

/* Messages up to so many bytes on the wire are copied rather than described to the kernel. */
#define COPY_BYTES_MAX ((uint64_t)8 << 10)

/* So many bytes of blocks may be published that the daemon is not known to have routed. Few, so that
 * blocks are filled again while they are in the caches. */
#define BLOCK_LEAD_BYTES ((uint64_t)32 << 20)

/* Of loaned blocks more: what is in them is not touched here, and processes that take turns on few cores do
 * more in each. But a publisher that goes on where it could have waited for a block makes memory instead,
 * and new pages cost more than waiting. So the most is for what leaves as much as the least free. */
#define LOAN_LEAD_BYTES     ((uint64_t)64 << 20)
#define LOAN_LEAD_BYTES_MAX ((uint64_t)256 << 20)

/* What a message that may wait waits for the daemon's word on a segment. */
#define ANSWER_MS_MAX 1000

/* The socket is read before the next block when so much was copied, or about four messages: what was released is
 * then filled again, and still in the caches. */
#define COPY_READ_BYTES_MIN ((uint64_t)256 << 10)
#define COPY_READ_BYTES_MAX ((uint64_t)1 << 20)

/* With `more`, so much may wait before it is sent all the same. */
#define MORE_BYTES_MAX ((size_t)64 << 10)

/* What took longer to copy than a call takes does not wait for more: its reader can begin, and its block comes
 * back while it is in the caches. */
#define SLOW_COPY_BYTES_MIN ((uint64_t)256 << 10)

/* ------------------------------------------------------------------------------- credit */

void nd_credit_start(struct nd_credit *credit, uint64_t grant_bytes)
{
        *credit = (struct nd_credit){
                .bytes = grant_bytes,
                .window_bytes = grant_bytes,
                .read_at = grant_bytes / 2,
                .sent_ns = nd_clock_coarse_ns(),
        };
}

void nd_credit_routed(struct nd_credit *credit, uint64_t place)
{
        if (place > credit->n_routed && place <= credit->n_published)
                credit->n_routed = place;
}

bool nd_credit_granted(struct nd_credit *credit, uint64_t bytes, uint64_t place)
{
        if (nd_add_overflow(credit->bytes, bytes, &credit->bytes))
                return false;
        while (credit->bytes > credit->window_bytes) {
                if (credit->window_bytes >= ND_PUBLISH_WINDOW_BYTES_MAX)
                        return false;
                credit->window_bytes =
                        nd_min_u64(2 * credit->window_bytes, ND_PUBLISH_WINDOW_BYTES_MAX);
        }
        credit->read_at = credit->window_bytes / 2;
        nd_credit_routed(credit, place);
        return true;
}

/* After a second without a PUBLISH, what is more than the first window goes back to the daemon. */
static int credit_lapse(struct ndbus *bus)
{
        struct nd_credit *credit = &bus->credit;
        uint64_t now = nd_clock_coarse_ns(), more;
        uint8_t body[16] = {0};

        if (now - credit->sent_ns < ND_PUBLISH_WINDOW_IDLE_MS * ND_NS_PER_MS ||
            credit->bytes <= ND_PUBLISH_WINDOW_BYTES_MIN)
                return 0;
        more = credit->bytes - ND_PUBLISH_WINDOW_BYTES_MIN;
        nd_store_le64(body + 8, more);
        if (nd_output_packet(&bus->output, &(struct nd_prelude){.kind = ND_KIND_CREDIT}, NULL, 0,
                             body, sizeof(body)))
                return nd_detail_say(NDBUS_ENOMEM, "out of memory");
        credit->bytes -= more;
        credit->window_bytes -= more;
        credit->read_at = credit->window_bytes / 2;
        credit->sent_ns = now;
        return 0;
}

/* Sets how far ahead this one may bring it, when @ahead_bytes are not routed. Of loans that is looked up when
 * what it was does not do: it becomes less only by an answer. */
static void credit_set_lead(struct ndbus *bus, const struct nd_outgoing *out, uint64_t ahead_bytes)
{
        struct nd_credit *credit = &bus->credit;
        uint64_t free_bytes;

        if (!out->is_loan) {
                credit->lead_bytes = BLOCK_LEAD_BYTES;
                return;
        }
        if (credit->lead_bytes >= LOAN_LEAD_BYTES &&
            ahead_bytes + out->block_bytes <= credit->lead_bytes)
                return;
        free_bytes = nd_shm_pool_free_bytes(&bus->supply->pool);
        free_bytes -= nd_min_u64(free_bytes, LOAN_LEAD_BYTES);
        credit->lead_bytes = nd_max_u64(LOAN_LEAD_BYTES,
                                        nd_min_u64(ahead_bytes + free_bytes, LOAN_LEAD_BYTES_MAX));
}

/* Asks how far the daemon is, about all up to @number. */
static void credit_ask(struct ndbus *bus, uint64_t number)
{
        struct nd_credit *credit = &bus->credit;

        if (nd_request_ping(bus))
                return;
        credit->asked_number = number;
        credit->asked_bytes = credit->ahead_bytes;
        credit->ahead_bytes = 0;
}

/* Blocks take no credit. So that a publisher that is faster than the daemon reads does not make memory
 * without end, for what is about to be held back by a full queue or to be released, it is as far ahead as
 * its lead, or one message. What is released was routed; for the rest PONG says how far the daemon is. */
static bool credit_may_lead(struct ndbus *bus, const struct nd_outgoing *out)
{
        struct nd_credit *credit = &bus->credit;
        uint64_t ahead_bytes;
        bool may_lead, is_far;

        if (!out->segment)
                return true;
        if (credit->asked_bytes > 0 && credit->n_routed >= credit->asked_number)
                credit->asked_bytes = credit->lead_bytes = 0;
        ahead_bytes = credit->asked_bytes + credit->ahead_bytes;
        credit_set_lead(bus, out, ahead_bytes);
        may_lead = ahead_bytes == 0 || ahead_bytes + out->block_bytes <= credit->lead_bytes;
        is_far = !may_lead || ahead_bytes >= credit->lead_bytes / 2;
        if (is_far && bus->supply->n_published == 0) {
                credit->asked_bytes = credit->ahead_bytes = 0;
                return true;
        }
        if (is_far && credit->asked_bytes == 0)
                credit_ask(bus, credit->n_published);
        return may_lead;
}

/* One that is about to leave is counted. If another one like it would have to wait for the daemon's word, since
 * readers keep what they get, the question leaves with it. */
static void credit_lead(struct ndbus *bus, const struct nd_outgoing *out)
{
        struct nd_credit *credit = &bus->credit;

        if (!out->segment)
                return;
        credit->ahead_bytes += out->block_bytes;
        if (credit->asked_bytes == 0 &&
            credit->ahead_bytes + out->block_bytes > credit->lead_bytes &&
            bus->supply->n_published > 1)
                credit_ask(bus, out->number);
}

/* Reads if so much was sent since the last time that something may have come. */
static void credit_read(struct ndbus *bus)
{
        struct nd_credit *credit = &bus->credit;
        uint64_t step = credit->window_bytes / 8;

        if (credit->bytes > credit->read_at)
                return;
        credit->read_at = credit->bytes > step ? credit->bytes - step : 0;
        nd_input_read(bus);
}

/* ------------------------------------------------------------------------------- checks */

static int options_check(const struct ndbus_publish_options *o)
{
        struct nd_fault fault;

        if (o->size < sizeof(*o))
                return nd_detail_fail(NDBUS_EINVAL, "options.size: is %zu, must be %zu", o->size,
                                      sizeof(*o));
        if (o->n_meta == 0)
                return 0;
        if (!o->meta)
                return nd_detail_say(NDBUS_EINVAL, "options.meta: is NULL, but n_meta is not 0");
        if (o->n_meta > ND_META_BYTES_MAX)
                return nd_detail_fail(NDBUS_ETOO_BIG, "meta: has %zu bytes, the limit is %u",
                                      o->n_meta, ND_META_BYTES_MAX);
        if (nd_scan(o->meta, o->n_meta, ND_SCAN_META, "meta", &fault))
                return nd_detail_fault(&fault);
        return 0;
}

int nd_publish_check_limits(const struct ndbus *bus, const struct nd_publish_sizes *sizes)
{
        const struct nd_welcome *limits = &bus->connection.limits;

        if (sizes->body_bytes > limits->message_bytes_max)
                return nd_detail_fail(NDBUS_ETOO_BIG,
                                      "body: has %llu bytes, the daemon's limit is %llu",
                                      (unsigned long long)sizes->body_bytes,
                                      (unsigned long long)limits->message_bytes_max);
        if (sizes->n_header > limits->header_bytes_max)
                return nd_detail_fail(
                        NDBUS_ETOO_BIG, "header: has %zu bytes, the daemon's limit is %llu",
                        sizes->n_header, (unsigned long long)limits->header_bytes_max);
        if (sizes->n_meta > limits->meta_bytes_max)
                return nd_detail_fail(NDBUS_ETOO_BIG,
                                      "meta: has %zu bytes, the daemon's limit is %llu",
                                      sizes->n_meta, (unsigned long long)limits->meta_bytes_max);
        if ((uint64_t)sizes->ndim_max > limits->dims_max)
                return nd_detail_fail(NDBUS_ESHAPE,
                                      "shape: has %d dimensions, the daemon's limit is %llu",
                                      sizes->ndim_max, (unsigned long long)limits->dims_max);
        return 0;
}

/* ---------------------------------------------------------------------------- the message */

static bool topic_is_paused(struct ndbus *bus, const char *topic, size_t n_topic)
{
        const struct nd_watch *w;

        if (bus->watches.n_paused == 0)
                return false;
        w = nd_watch_find(bus, topic, n_topic);
        return w && w->is_paused;
}

/* Is the output stuck? What is in it is tried first. */
static bool output_is_free(struct ndbus *bus, uint64_t bytes)
{
        size_t n = nd_output_bytes(&bus->output);

        if (n == 0 || n + bytes <= MORE_BYTES_MAX)
                return true;
        return nd_connection_send(bus) == 1;
}

/* The daemon holds credit back to keep a publisher in step with its receivers, and gives it to one
 * that asks: by a PING, before a message is refused for want of it. But not for small messages, which
 * without a timeout never wait for anything; and who did not answer is not asked again before it is
 * heard of. 1: it has answered; 0: there is no answer; NDBUS_EINTERRUPTED. */
static int ask_for_credit(struct ndbus *bus, const struct nd_outgoing *out)
{
        const struct nd_connection *c = &bus->connection;
        struct nd_request request;
        int r;

        if ((!out->segment && nd_outgoing_bytes(out) <= COPY_BYTES_MAX) ||
            bus->credit.unheard_ns == c->heard_ns)
                return 0;
        if (nd_request_start(bus, &request, ND_KIND_PING, 0, NULL, 0))
                return 0;
        r = nd_request_wait(bus, &request, nd_deadline_in_ms(bus->options.stall_ms));
        if (r == NDBUS_ETIMEDOUT)
                bus->credit.unheard_ns = c->heard_ns;
        return r == 0 ? 1 : r == NDBUS_EINTERRUPTED ? r : 0;
}

/* Waits for leave to begin: 0, or why there is none. */
static int wait_for_leave(struct ndbus *bus,
                          const struct nd_outgoing *out,
                          const char *topic,
                          size_t n_topic,
                          int timeout_ms)
{
        uint64_t deadline_ns = 0;
        bool has_deadline = false, has_asked = false, is_poor;
        const char *why;
        int r;

        for (;;) {
                is_poor = false;
                if (!nd_bus_is_ready(bus))
                        return nd_connection_fail_down(bus);
                if (topic_is_paused(bus, topic, n_topic))
                        why = "a full subscription of policy block has paused the topic";
                else if (bus->offline.n > 0)
                        why = "messages that were kept while offline are still being sent";
                else if ((is_poor = !nd_outgoing_may_begin(bus, out)))
                        why = "the daemon has not granted the bytes";
                else if ((is_poor = !credit_may_lead(bus, out)))
                        why = "the daemon has not read what was published in shared memory before";
                else if (!output_is_free(bus, nd_outgoing_bytes(out)))
                        why = "the socket takes nothing";
                else if (nd_bus_is_ready(bus))
                        return 0;
                else
                        continue;

                if (!has_deadline)
                        deadline_ns = nd_deadline_in_ms(timeout_ms);
                has_deadline = true;
                r = nd_bus_turn(bus, deadline_ns, false);
                if (r == 0 && is_poor && !has_asked) {
                        has_asked = true;
                        r = ask_for_credit(bus, out);
                }
                if (r == 0)
                        return nd_detail_say(NDBUS_EWOULDBLOCK, why);
                if (r < 0)
                        return r;
        }
}

/* Sends a message that has begun, to its end if bytes move. */
static int send_to_end(struct ndbus *bus, struct nd_outgoing *out)
{
        uint64_t stall_ns = (uint64_t)bus->options.stall_ms * ND_NS_PER_MS;
        uint64_t deadline_ns = ND_NEVER;
        enum nd_outgoing_result result;
        bool has_moved;
        int r;

        for (;;) {
                has_moved = false;
                result = nd_outgoing_step(bus, out, &has_moved);
                if (result == ND_OUTGOING_LOST)
                        return nd_connection_fail_down(bus);
                if (bus->refusal.code) { /* also if its last byte has left meanwhile */
                        r = nd_outgoing_give_up(bus, out);
                        return r < 0 ? r : nd_detail_fault(&bus->refusal);
                }
                if (result == ND_OUTGOING_DONE)
                        return 0;
                if (has_moved || deadline_ns == ND_NEVER)
                        deadline_ns = nd_clock_ns() + stall_ns;
                r = nd_bus_turn(bus, deadline_ns, result == ND_OUTGOING_NEEDS_SOCKET);
                if (r > 0)
                        continue;
                if (nd_outgoing_is_lost(bus, out))
                        return nd_connection_fail_down(bus);
                if (nd_outgoing_give_up(bus, out) == 1)
                        return 0;
                if (r == 0)
                        return nd_detail_fail(
                                NDBUS_ETIMEDOUT,
                                "the message moved no byte for %d ms and was given up",
                                bus->options.stall_ms);
                return r;
        }
}

/* Sends what is in the output. A caller that may wait does so until all of it is out, as long as bytes
 * move. */
static void send_output(struct ndbus *bus, const struct nd_outgoing *out, int timeout_ms)
{
        uint64_t deadline_ns;
        size_t n_before;
        int r;

        while (!nd_connection_send(bus) && !nd_outgoing_is_lost(bus, out) && timeout_ms != 0) {
                n_before = nd_output_bytes(&bus->output);
                deadline_ns = nd_clock_ns() + (uint64_t)bus->options.stall_ms * ND_NS_PER_MS;
                do
                        r = nd_bus_turn(bus, deadline_ns, false);
                while (r > 0 && nd_output_bytes(&bus->output) == n_before);
                if (r <= 0)
                        return;
        }
}

/* Small messages: into the output, and out unless more follow. What stays there is sent later. But a
 * message of which something was left when the connection was lost is not published: that is said
 * here, and not once more by those who count what is not confirmed. */
static int
send_small(struct ndbus *bus, struct nd_outgoing *out, const struct ndbus_publish_options *o)
{
        if (nd_outgoing_put(bus, out))
                return nd_detail_say(NDBUS_ENOMEM, "out of memory");
        credit_lead(bus, out);
        if (!o->more || nd_output_bytes(&bus->output) >= MORE_BYTES_MAX || out->is_slow) {
                bus->outgoing = out;
                send_output(bus, out, o->timeout_ms);
                bus->outgoing = NULL;
        }
        if (!nd_outgoing_is_lost(bus, out))
                nd_outgoing_finish(bus, out);
        return out->is_done ? 0 : nd_connection_fail_down(bus);
}

static uint64_t copy_read_bytes(uint64_t body_bytes)
{
        return nd_max_u64(COPY_READ_BYTES_MIN, nd_min_u64(4 * body_bytes, COPY_READ_BYTES_MAX));
}

/* The block that a body is sent in, or copied into first; none if that cannot be. */
static struct nd_supply_block
choose_block(struct ndbus *bus, const struct ndbus_loan *loan, uint64_t body_bytes, int timeout_ms)
{
        struct nd_supply_block block = {0};

        if (loan) {
                nd_supply_hear(bus);
                block = loan->block;
        } else if (body_bytes >= ND_SHM_COPY_BYTES_MIN) {
                nd_supply_take(bus, body_bytes, copy_read_bytes(body_bytes), &block);
        }
        if (timeout_ms < 0 || timeout_ms > ANSWER_MS_MAX)
                timeout_ms = ANSWER_MS_MAX;
        if (block.segment && !nd_supply_wait_open(bus, &block, nd_deadline_in_ms(timeout_ms))) {
                if (!loan)
                        nd_supply_give(bus->supply, &block);
                block.segment = NULL;
        }
        if (!block.segment && bus->supply->is_on && body_bytes >= ND_SHM_COPY_BYTES_MIN)
                ++bus->supply->n_fallback;
        return block;
}

/* Sends it, when there is leave to. */
static int
send_message(struct ndbus *bus, struct nd_outgoing *out, const struct ndbus_publish_options *o)
{
        int r;

        if (nd_outgoing_bytes(out) <= COPY_BYTES_MAX && nd_outgoing_bytes(out) <= bus->credit.bytes)
                return send_small(bus, out, o);
        bus->outgoing = out;
        nd_outgoing_begin(bus, out);
        r = send_to_end(bus, out);
        bus->outgoing = NULL;
        if (!r)
                credit_lead(bus, out);
        return r;
}

/* The same for one whose body is in @block: copied there now, or written there before. */
static int send_in_block(struct ndbus *bus,
                         struct nd_outgoing *out,
                         const struct ndbus_publish_options *o,
                         struct nd_body *copied,
                         const struct nd_supply_block *block)
{
        int r;

        if (!nd_supply_is_open(block))
                return nd_connection_fail_down(bus);
        if (copied)
                nd_body_copy(copied, 0, copied->bytes, nd_supply_data(block));
        nd_outlet_ask(bus);
        nd_supply_publish(bus->supply, block);
        r = send_message(bus, out, o);
        nd_supply_published(bus->supply, block, out->block_bytes, r == 0);
        return r;
}

static int publish_online(struct ndbus *bus,
                          struct nd_outgoing *out,
                          const struct nd_encoded *encoded,
                          const char *topic,
                          const struct ndbus_publish_options *o,
                          struct ndbus_loan *loan)
{
        struct nd_body *body = out->body, elsewhere;
        struct nd_supply_block block;
        const struct nd_publish_sizes sizes = {
                .body_bytes = encoded->body_bytes,
                .n_header = encoded->n_header,
                .n_meta = o->n_meta,
                .ndim_max = encoded->ndim_max,
        };
        int r;

        r = nd_publish_check_limits(bus, &sizes);
        r = r ? r : credit_lapse(bus);
        if (r)
                return r;
        for (;;) {
                block = choose_block(bus, loan, body->bytes, o->timeout_ms);
                if (block.segment)
                        nd_body_init_flat(&elsewhere, &bus->body_store, NULL, NULL, 0);
                out->body = block.segment ? &elsewhere : body;
                out->segment = block.segment ? block.segment->number : 0;
                out->place = block.place;
                out->block_bytes = block.segment ? body->bytes : 0;
                out->is_loan = block.segment && loan;
                out->is_slow = block.segment && !loan && body->bytes >= SLOW_COPY_BYTES_MIN;
                r = wait_for_leave(bus, out, topic, encoded->n_topic, o->timeout_ms);
                if (r || !block.segment || !nd_supply_is_retired(&block))
                        break;
                if (!loan) /* it goes elsewhere */
                        nd_supply_give(bus->supply, &block);
        }
        if (!r && bus->calls.now) /* the daemon may answer while it is still being sent */
                bus->calls.now->number = bus->credit.n_published + 1;
        if (!r && block.segment)
                r = send_in_block(bus, out, o, loan ? NULL : body, &block);
        else if (!r)
                r = send_message(bus, out, o);
        if (block.segment && !loan && r)
                nd_supply_give(bus->supply, &block);
        if (block.segment && loan && !r)
                loan->block.segment = NULL;
        if (!r && bus->connection.state == ND_STATE_READY)
                credit_read(bus);
        return r;
}

/* Whether anybody wants it: 1, 0, or an error. */
static int is_wanted(struct ndbus *bus, const char *topic, int timeout_ms)
{
        struct nd_watch *w;
        int r;

        r = nd_watch_wait(bus, topic, nd_deadline_in_ms(timeout_ms), &w);
        if (r)
                return r == NDBUS_ETIMEDOUT ? NDBUS_EWOULDBLOCK : r;
        return w->n_subscribers > 0;
}

/* With the connection that there is. */
static int publish_now(struct ndbus *bus,
                       struct nd_outgoing *out,
                       const struct nd_encoded *encoded,
                       const char *topic,
                       const struct ndbus_publish_options *o,
                       struct ndbus_loan *loan)
{
        int r = 1;

        if (!nd_bus_is_ready(bus))
                return nd_connection_fail_down(bus);
        if (o->if_wanted)
                r = is_wanted(bus, topic, o->timeout_ms);
        return r <= 0 ? r : publish_online(bus, out, encoded, topic, o, loan);
}

static int publish(struct ndbus *bus,
                   const struct nd_encode_input *input,
                   const struct ndbus_publish_options *o,
                   struct ndbus_loan *loan)
{
        const struct nd_encoded *encoded;
        struct nd_fault fault;
        struct nd_outgoing out, attempt;
        struct nd_body body;
        bool may_keep;
        int r;

        r = options_check(o);
        if (r)
                return r;
        if (nd_encode(&bus->encoder, input, &encoded, &fault))
                return nd_detail_fault(&fault);
        if (nd_body_init(&body, &bus->body_store, input->arrays, encoded->plans, input->n_arrays,
                         encoded->body_bytes))
                return nd_detail_say(NDBUS_ENOMEM, "out of memory");
        out = (struct nd_outgoing){
                .header = encoded->header,
                .n_header = encoded->n_header,
                .meta = o->meta,
                .n_meta = o->n_meta,
                .body = &body,
                .flags = o->retain ? ND_FLAG_RETAINED : 0,
        };

        if (!nd_bus_is_ready(bus))
                nd_bus_move(bus);
        may_keep = bus->options.offline_messages > 0 && !bus->calls.now;
        if (may_keep && (!nd_bus_is_ready(bus) || bus->offline.n > 0))
                return nd_offline_publish(bus, &out, encoded->ndim_max, o->timeout_ms);
        attempt = out;
        r = publish_now(bus, &attempt, encoded, input->topic, o, loan);
        /* the one by which the loss is found out; it was not published */
        if (r == NDBUS_ENOTCONN && may_keep)
                r = nd_offline_publish(bus, &out, encoded->ndim_max, o->timeout_ms);
        return r;
}

ND_PUBLIC int ndbus_publish(struct ndbus *bus,
                            const char *topic,
                            const struct ndbus_array *arrays,
                            size_t n_arrays,
                            const struct ndbus_publish_options *options)
{
        static const struct ndbus_publish_options defaults = NDBUS_PUBLISH_OPTIONS_INIT;
        struct nd_encode_input input = {.topic = topic, .arrays = arrays, .n_arrays = n_arrays};
        int r = nd_bus_enter(bus);

        if (r)
                return r;
        if (!topic)
                return nd_bus_leave(bus, nd_detail_say(NDBUS_EINVAL, "topic: is NULL"));
        if (!arrays && n_arrays > 0)
                return nd_bus_leave(
                        bus, nd_detail_say(NDBUS_EINVAL, "arrays: is NULL, but n_arrays is not 0"));
        options = options ? options : &defaults;
        input.reply = options->reply;
        input.encoding = options->encoding;
        return nd_bus_leave(bus, publish(bus, &input, options, NULL));
}

ND_PUBLIC int ndbus_publish_loan(struct ndbus *bus,
                                 const char *topic,
                                 struct ndbus_loan *loan,
                                 const struct ndbus_publish_options *options)
{
        static const struct ndbus_publish_options defaults = NDBUS_PUBLISH_OPTIONS_INIT;
        struct nd_encode_input input = {.topic = topic};
        int r = nd_bus_enter(bus);

        if (r)
                return r;
        if (!topic || !loan)
                return nd_bus_leave(bus, nd_detail_say(NDBUS_EINVAL, "topic, loan: are NULL"));
        if (loan->supply != bus->supply)
                return nd_bus_leave(bus, nd_detail_say(NDBUS_EINVAL, "loan: is of another bus"));
        options = options ? options : &defaults;
        input.reply = options->reply;
        input.encoding = options->encoding;
        input.arrays = loan->arrays;
        input.n_arrays = loan->n_arrays;
        r = publish(bus, &input, options, loan);
        if (!r)
                ndbus_loan_cancel(loan);
        return nd_bus_leave(bus, r);
}

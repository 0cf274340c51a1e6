/* SPDX-License-Identifier: MIT */

/*
 * Rights that are taken away at a reload: who was handed shared memory and keeps its mapping sees nothing in
 * it of what is published later
 *
 * The one who loses them is a raw client that keeps what it was given. The others are the library, which
 * goes on without loss, and a raw publisher.
 */

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "tests/support/client.h"
#include "tests/support/pattern.h"
#include "tests/support/raw-shm.h"
#include "tests/support/temporary.h"

#define MIB     (UINT64_C(1) << 20)
#define BYTES   (UINT64_C(100000))
#define SECRETS 60u

static const char everything[] = "allow = anyone publish,subscribe,stats\n";
static const char only_c[] = "allow = anyone publish,stats\nallow = anyone subscribe c/**\n";

static const struct nd_transport *const shm = &nd_transports[ND_WAYS_N - 1];

struct world {
        struct nd_harness *h;
        char config[256];
        const char *args[3];
        size_t n_reloads;
};

static void write_config(const struct world *w, const char *text)
{
        FILE *file = fopen(w->config, "w");

        cr_assert(file);
        fputs(text, file);
        cr_assert_eq(fclose(file), 0);
}

static bool has_reloaded(void *userdata)
{
        const struct world *w = userdata;
        nd_autofree char *log = nd_harness_log(w->h);
        size_t n = 0;

        for (const char *at = log; (at = strstr(at, "reloaded config=")); ++at)
                ++n;
        return n == w->n_reloads;
}

static void reload(struct world *w, const char *text)
{
        write_config(w, text);
        ++w->n_reloads;
        nd_harness_signal(w->h, SIGHUP);
        nd_harness_wait_until(w->h, "the reload", has_reloaded, w,
                              nd_harness_deadline_ms(ND_CLIENT_WAIT_MS));
}

static void world_init(struct world *w)
{
        int fd;

        *w = (struct world){0};
        nd_temporary_name(w->config, sizeof(w->config), "revoked");
        fd = mkstemp(w->config);
        cr_assert_geq(fd, 0);
        close(fd);
        write_config(w, everything);
        w->args[0] = "--config";
        w->args[1] = w->config;
        w->h = nd_harness_start(&(struct nd_harness_options){.args = w->args});
}

static void world_deinit(struct world *w)
{
        nd_harness_stop(w->h);
        unlink(w->config);
}

static struct nd_raw *subscriber(struct world *w)
{
        struct nd_raw *raw = nd_raw_open_shm(w->h);

        nd_raw_subscribe(raw, 1, &(struct nd_raw_subscribe){.pattern = "**"});
        return raw;
}

/* What a mapping shows, to be compared with what it shows later. */
struct view {
        struct nd_segment segment;
        uint8_t *before;
};

/* Takes the mapping of a segment that @raw was handed, which goes on when its connection ends. */
static struct view view_take(struct nd_raw *raw, uint32_t segment)
{
        struct view view = {.segment = raw->handed[segment], .before = NULL};

        raw->handed[segment] = (struct nd_segment)ND_SEGMENT_NULL;
        view.before = malloc(view.segment.bytes);
        cr_assert(view.before);
        memcpy(view.before, view.segment.base, view.segment.bytes);
        return view;
}

static void view_expect_the_same(struct view *view)
{
        cr_assert_eq(memcmp(view->before, view->segment.base, view->segment.bytes), 0,
                     "the mapping shows what was published after the reload");
        free(view->before);
        nd_segment_close(&view->segment);
}

static struct ndbus_shm_stats stats_of(struct ndbus *bus)
{
        struct ndbus_shm_stats stats = {.size = sizeof(stats)};

        cr_assert_eq(ndbus_shm_stats(bus, &stats), 0);
        return stats;
}

/* Waits until the daemon has nothing to say to it that it has not heard. */
static void hear(struct ndbus *bus)
{
        cr_assert_eq(ndbus_ping(bus, NULL, ND_CLIENT_WAIT_MS), 0, "%s", ndbus_detail());
}

/* A library publisher whose reader loses its rights: a client that is there, or that has gone. */
static void revoke_library(bool is_gone)
{
        const int64_t n = BYTES;
        struct ndbus_array array = {.dtype = "uint8", .ndim = 1, .shape = &n};
        struct ndbus *publisher, *reader;
        struct ndbus_shm_stats before;
        struct ndbus_loan *loan;
        struct nd_prelude block;
        struct nd_raw *thief;
        struct view view;
        struct world w;
        uint64_t number = 0;

        world_init(&w);
        reader = nd_client_open(w.h, shm, NULL);
        nd_client_subscribe(reader, "c/**", NULL);
        publisher = nd_client_open(w.h, shm, NULL);
        thief = subscriber(&w);
        cr_assert_eq(ndbus_loan(publisher, &array, 1, &loan), 0, "%s", ndbus_detail());
        nd_pattern_fill((uint8_t *)(uintptr_t)array.data, 0, BYTES);
        cr_assert_eq(ndbus_publish_loan(publisher, "open", loan, NULL), 0, "%s", ndbus_detail());
        block = nd_raw_receive_block(thief);
        for (unsigned i = 0; i < 5; ++i)
                nd_client_publish(publisher, "c/x", ++number, BYTES);
        cr_assert_eq(ndbus_loan(publisher, &array, 1, &loan), 0, "%s", ndbus_detail());
        nd_pattern_fill((uint8_t *)(uintptr_t)array.data, 0, BYTES);
        hear(publisher);
        view = view_take(thief, block.segment);
        if (is_gone)
                nd_raw_close(thief);
        reload(&w, only_c);
        hear(publisher);

        /* what is copied, what was loaned before, and what is loaned now */
        before = stats_of(publisher);
        for (unsigned i = 0; i < SECRETS; ++i) {
                nd_client_publish(publisher, "secret", i, BYTES);
                nd_client_publish(publisher, "c/x", ++number, BYTES);
        }
        cr_assert_eq(stats_of(publisher).published, before.published + 2 * SECRETS);
        cr_assert_eq(ndbus_publish_loan(publisher, "secret", loan, NULL), 0, "%s", ndbus_detail());
        cr_assert_eq(stats_of(publisher).fallback, before.fallback + 1, "by the socket");
        cr_assert_eq(ndbus_loan(publisher, &array, 1, &loan), 0, "%s", ndbus_detail());
        memset((uint8_t *)(uintptr_t)array.data, 0x5e, BYTES);
        cr_assert_eq(ndbus_publish_loan(publisher, "secret", loan, NULL), 0, "%s", ndbus_detail());
        cr_assert_eq(stats_of(publisher).published, before.published + 2 * SECRETS + 1);
        view_expect_the_same(&view);

        for (uint64_t i = 1; i <= number; ++i)
                nd_client_expect(reader, i);
        if (!is_gone)
                nd_raw_close(thief);
        nd_client_close(reader);
        nd_client_close(publisher);
        world_deinit(&w);
}

Test(revoked, a_client_sees_nothing_new_of_a_publisher)
{
        revoke_library(false);
}

Test(revoked, a_client_that_has_gone_sees_nothing_new_of_a_publisher)
{
        revoke_library(true);
}

/* The daemon's word, and what it does with what is published in the segment all the same. */
Test(revoked, a_segment_is_handed_to_nobody_more_and_goes_on)
{
        struct nd_raw *publisher, *thief, *other;
        struct nd_segment segment, another;
        struct nd_raw_message message;
        const struct nd_raw_packet *packet;
        struct nd_prelude block;
        struct world w;

        world_init(&w);
        publisher = nd_raw_open_shm(w.h);
        segment = nd_raw_segment(MIB);
        another = nd_raw_segment(MIB);
        nd_raw_announce(publisher, 7, &segment);
        nd_raw_announce(publisher, 8, &another);
        thief = subscriber(&w);
        nd_raw_publish_block(publisher, "t", &segment, 7, 0, BYTES);
        block = nd_raw_receive_block(thief);
        reload(&w, only_c);
        packet = nd_raw_expect(publisher, ND_KIND_SEGMENT_GONE);
        cr_assert_eq(packet->prelude.segment, 7, "nobody was handed the other one");
        cr_assert_eq(packet->prelude.sequence, 1);
        reload(&w, everything);
        nd_raw_flush(publisher); /* it is said once */

        other = subscriber(&w);
        nd_raw_publish_block(publisher, "t", &segment, 7, MIB / 2, BYTES);
        message = nd_raw_receive(other);
        cr_assert_not(message.prelude.flags & ND_FLAG_BODY_IN_BLOCK);
        nd_raw_message_free(&message);
        nd_raw_publish_block(publisher, "t", &another, 8, 0, BYTES);
        nd_raw_receive_block(other);
        nd_raw_receive_block(thief); /* it may again, and has the one */
        nd_raw_receive_block(thief);
        nd_raw_release(thief, block.segment, 0);
        nd_raw_release(thief, block.segment, MIB / 2);
        nd_raw_expect_released(publisher, 2, NULL);
        nd_raw_send_prelude(publisher,
                            (struct nd_prelude){.kind = ND_KIND_SEGMENT_GONE, .segment = 7});
        cr_assert_eq(nd_raw_expect(thief, ND_KIND_SEGMENT_GONE)->prelude.segment, block.segment);
        nd_raw_close(other);
        nd_raw_close(thief);
        nd_raw_close(publisher);
        nd_segment_close(&segment);
        nd_segment_close(&another);
        world_deinit(&w);
}

/* What nobody was handed who loses anything is not retired: who may see all all the time, and a reload that
 * changes no rules. */
Test(revoked, nothing_is_retired_without_need)
{
        struct nd_raw *publisher, *reader;
        struct nd_segment segment;
        struct world w;

        world_init(&w);
        publisher = nd_raw_open_shm(w.h);
        segment = nd_raw_segment(MIB);
        nd_raw_announce(publisher, 1, &segment);
        reader = subscriber(&w);
        nd_raw_publish_block(publisher, "t", &segment, 1, 0, BYTES);
        nd_raw_receive_block(reader);
        reload(&w, "allow = anyone publish,subscribe,retain,stats\n");
        nd_raw_publish_block(publisher, "t", &segment, 1, MIB / 2, BYTES);
        nd_raw_receive_block(reader);
        nd_raw_close(reader);
        nd_raw_expect_released(publisher, 2, NULL);
        reload(&w, "block-timeout = 1000\nallow = anyone publish,subscribe,retain,stats\n");
        reader = subscriber(&w);
        nd_raw_publish_block(publisher, "t", &segment, 1, 0, BYTES);
        nd_raw_receive_block(reader);
        reload(&w, everything); /* now one has gone that may have had what it has not any more */
        cr_assert_eq(nd_raw_expect(publisher, ND_KIND_SEGMENT_GONE)->prelude.sequence, 1);
        nd_raw_close(reader);
        nd_raw_close(publisher);
        nd_segment_close(&segment);
        world_deinit(&w);
}

Test(revoked, a_client_sees_nothing_new_of_the_daemons_own)
{
        struct nd_raw *publisher, *thief, *reader;
        struct nd_prelude block;
        struct view view;
        struct world w;

        world_init(&w);
        publisher = nd_raw_open(w.h, true);
        thief = subscriber(&w);
        nd_raw_publish(publisher, "open", 2 * BYTES);
        block = nd_raw_receive_block(thief);
        nd_raw_release(thief, block.segment, block.place);
        nd_raw_publish(publisher, "open", BYTES);
        block = nd_raw_receive_block(thief);
        view = view_take(thief, block.segment);
        reload(&w, only_c);
        nd_raw_close(thief);
        reload(&w, everything); /* so that somebody wants blocks */
        reader = subscriber(&w);
        for (unsigned i = 0; i < 10; ++i) {
                nd_raw_publish(publisher, "secret", 10 * BYTES);
                nd_raw_receive_block(reader);
        }
        cr_assert_eq(nd_raw_stat(reader, "counters", "shm_own_messages"), 12);
        view_expect_the_same(&view);
        nd_raw_close(reader);
        nd_raw_close(publisher);
        world_deinit(&w);
}

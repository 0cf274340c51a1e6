/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Requests: control packets of a client and their answers
 */

#include "daemon/connection.h"
#include "protocol/hello.h"

/* Its hello is whole: the version is chosen, or it is refused. */
void nd_request_answer_hello(struct nd_connection *connection, const struct nd_hello *hello);

/* Any packet but PUBLISH, CHUNK and RESET. Return: 0, or a negative enum ndbus_err that closes. */
int nd_request_take(struct nd_connection *connection,
                    const struct nd_packet *packet,
                    struct nd_fault *fault);

void nd_request_unwatch_all(struct nd_connection *connection);

/* Output that is made when there is room for it: news of watched topics. */
void nd_request_write_news(struct nd_connection *connection);

/* The daemon stops, or has nothing more to say: GOODBYE, unasked. */
void nd_request_say_goodbye(struct nd_connection *connection, int code, const char *text);

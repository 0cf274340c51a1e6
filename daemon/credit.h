/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Credit: what a client may publish, and when it gets it back
 */

#include "daemon/publisher.h"

#define ND_CREDIT_BULK_BYTES (64u * 1024u) /* bodies from here on are paced by their receivers */
#define ND_CREDIT_LOW_BYTES  (2u * ND_CHUNK_BYTES_MIN) /* a client left with less has stopped */

/* Charges and returns the first grant; 0: no memory. */
uint64_t nd_credit_open(struct nd_publisher *publisher);

/* Discharges the window. */
void nd_credit_close(struct nd_publisher *publisher);

/* Charges the window to memory, at this size from now on; false if there is no room. */
bool nd_credit_charge(struct nd_publisher *publisher, uint64_t window_bytes);

/**
 * nd_credit_use() - a packet has come
 * @n_bytes:  of the packet; what it took of the window is written here
 * @is_bare:  it is a PUBLISH without body bytes: when nothing is outstanding, one always passes
 *
 * Return: 0, NDBUS_ECREDIT
 */
int nd_credit_use(struct nd_publisher *publisher,
                  uint64_t *n_bytes,
                  bool is_bare,
                  struct nd_fault *fault);

/**
 * nd_credit_count() - one more message of an identity that has a rate
 *
 * Return: 0; NDBUS_ELIMIT if so many came before their time that it cannot be for want of knowing: a
 *         client that takes a new connection for a new window
 */
int nd_credit_count(struct nd_publisher *publisher, struct nd_fault *fault);

/* So many bytes of packets are done with: they are due. */
void nd_credit_return(struct nd_publisher *publisher, uint64_t n_bytes);

/* A routed message: its credit is due now, or when a receiver has it, or when a queue has. */
void nd_credit_hold(struct nd_publisher *publisher, struct nd_message *message);

/* Something is due or held: nd_credit_pace() is called from now on. */
void nd_credit_watch(struct nd_publisher *publisher);

/* CREDIT from the client: it gives back leave that it has not used for a while. */
int nd_credit_give_back(struct nd_publisher *publisher, uint64_t n_bytes, struct nd_fault *fault);

/* Queues a CREDIT if it is worth a packet, or if there is anything due and @is_all. */
void nd_credit_grant(struct nd_publisher *publisher, bool is_all);
/* The client asks for what there is: it gets also what was held for its receivers' pace. */
void nd_credit_ask(struct nd_publisher *publisher);
/* A receiver of a message for which a connection is owed credit moved on, perhaps to its end. */
void nd_credit_progress(struct nd_message *message, bool is_end);
/* No block queue holds this message beyond its limits any more. */
void nd_credit_settled(struct nd_message *message);
/* The message goes; the credit that waited for it is due. */
void nd_credit_release(struct nd_message *message);
/* 10 ms have passed: grants what is due, and does not let slow receivers hold anything. Return: is
 * anything held, or due later? */
bool nd_credit_pace(struct nd_publisher *publisher);

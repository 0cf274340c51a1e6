/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Every limit and fixed number of the protocol, with where its value comes from. A number that
 * is not here is not a limit. Units are in the name, the qualifier comes last. What an operator
 * may change is in daemon/option.h; these are what the wire itself bounds or the defaults that
 * both ends assume before WELCOME.
 */

#include <stdint.h>

#define ND_KIB (UINT64_C(1) << 10)
#define ND_MIB (UINT64_C(1) << 20)
#define ND_GIB (UINT64_C(1) << 30)

#define ND_VERSION 1u
#define ND_PORT    6328u

/* PROTOCOL.md 3: fixed layouts */
#define ND_HELLO_BYTES   16u
#define ND_PRELUDE_BYTES 64u

/* frames start at multiples of this: a cache line, and the widest vector load */
#define ND_ALIGN_BYTES 64u

/* PROTOCOL.md 4: hello and CONNECT, which are read before anything is known of the peer */
#define ND_HANDSHAKE_TIMEOUT_MS 5000u

/* tokens, PROTOCOL.md 4.6: what each end makes up, and what proves that it knows the secret */
#define ND_TOKEN_NONCE_BYTES    32u
#define ND_TOKEN_PROOF_BYTES    32u /* HMAC-SHA-256 */
#define ND_TOKEN_NAME_BYTES_MAX 64u
#define ND_TOKEN_KEY_BYTES_MIN  16u
#define ND_TOKEN_KEY_BYTES_MAX  1024u

/* header bytes; decides how many frames a message has (some 25,000) */
#define ND_HEADER_BYTES_MAX (1u << 20)
#define ND_META_BYTES_MAX   (1u << 20)

/* body bytes of one packet: one turn of a connection */
#define ND_PACKET_BODY_BYTES_MAX (1u << 20)

/* what a client puts into one CHUNK when its credit allows; with less credit it sends smaller ones,
 * but waits rather than send less than the second of these before the end of the body; that must
 * be well below the first window of 64 KiB, of which the PUBLISH itself has taken a part */
#define ND_CHUNK_BYTES     (256u * 1024u)
#define ND_CHUNK_BYTES_MIN (16u * 1024u)

/* send buffer that both ends ask for on Unix sockets: one chunk and what the kernel adds for its own
 * bookkeeping, so that a chunk is one system call on each side. The usual 208 KiB cut it in two. */
#define ND_UNIX_SEND_BUFFER_BYTES (256u * 1024u)

/* body bytes of a control packet (RELEASE lists, STATS_REPLY pieces, CREDIT): it is parsed whole */
#define ND_CONTROL_BODY_BYTES_MAX (64u * 1024u)

/* header bytes of a control packet: a pattern, a group, a text */
#define ND_CONTROL_HEADER_BYTES_MAX (4u * 1024u)

/* body bytes of a message that no daemon exceeds; keeps all sums below 2^63 */
#define ND_BODY_BYTES_MAX (UINT64_C(1) << 62)

/* msgpack scan: nesting, keys of a map, bytes of a key; nodes are capped by the bytes there are */
#define ND_SCAN_DEPTH_MAX 16u
#define ND_MAP_KEYS_MAX   32u
#define ND_KEY_BYTES_MAX  64u

#define ND_TOPIC_BYTES_MAX 255u
#define ND_GLOBSTARS_MAX   8u    /* "**" in one pattern: each multiplies the ways to match */
#define ND_NAME_BYTES_MAX  255u  /* dtype, frame, field, unit, codec, device, group, encoding */
#define ND_FIELDS_MAX      1024u /* of one frame's record dtype, nested ones included */

/* records within records: each takes two levels of the scan, below header, frame list and frame,
 * and has a list (dtype, shape, unit) within it */
#define ND_FIELD_DEPTH_MAX ((ND_SCAN_DEPTH_MAX - 4u) / 2u)

/* parsed headers that each end keeps for a connection and direction */
#define ND_HEADER_CACHE_N 8u

/* publishing window: what WELCOME grants, and how far it grows when it is used up */
#define ND_PUBLISH_WINDOW_BYTES_MIN (64u * 1024u)
#define ND_PUBLISH_WINDOW_BYTES_MAX (17u << 20)
#define ND_PUBLISH_WINDOW_IDLE_MS   1000u

/* messages, and bytes, of a subscription's window: what is left and what is returned stay below 2^63 */
#define ND_WINDOW_MAX ((UINT64_C(1) << 62) - 1)

/* subscription defaults that a client asks for when its user does not say */
#define ND_WINDOW_MESSAGES_DEFAULT   256u
#define ND_WINDOW_BYTES_TCP_DEFAULT  (UINT64_C(4) << 20)
#define ND_WINDOW_BYTES_UNIX_DEFAULT (UINT64_C(64) << 20)
#define ND_DEPTH_MESSAGES_DEFAULT    1000u
#define ND_DEPTH_BYTES_DEFAULT       (UINT64_C(64) << 20)

/* shared memory: sizes of segments are multiples of the first, and blocks in them lie at multiples of
 * ND_ALIGN_BYTES; segments that a connection has announced at a time, in each direction; descriptors
 * that came and whose packet has not been read yet */
#define ND_SEGMENT_UNIT_BYTES 4096u
#define ND_SEGMENTS_MAX       64u
#define ND_FDS_MAX            8u

/* a ring: some 400 PUBLISHes of bodies in blocks, about what a socket's buffer holds of them; before them
 * the page of its positions */
#define ND_RING_BYTES      (64u * 1024u)
#define ND_RING_HEAD_BYTES 4096u
#define ND_RING_FILE_BYTES (ND_RING_HEAD_BYTES + ND_RING_BYTES)

/* files */
#define ND_RECORD_HEAD_BYTES 64u

/* of an index: what is kept in memory while a file is written, a mebibyte and half a one */
#define ND_INDEX_PLACES_MAX 65536u
#define ND_INDEX_TOPICS_MAX 2048u

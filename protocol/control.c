/* SPDX-License-Identifier: MIT */

/*
 * Headers of control packets
 *
 * One table a kind: key, type, place in its struct, range, and whether it must be there. Packing
 * and unpacking read the same table, so that they cannot disagree, and PROTOCOL.md 4 shows it.
 *
 * Packing never fails. Numbers have a bounded size; texts that come from outside (a program's
 * name, a sentence about an error) are cut between two characters; what has been checked before
 * (topics, patterns) is asserted. The sum of all that is below the size of the buffer.
 *
 * Unpacking trusts nothing: a bounded scan, then msgpack-c, then the table. Strings stay where
 * they are, in the packet's bytes.
 */

#include "protocol/control.h"
#include <msgpack.h>
#include <string.h>
#include "protocol/prelude.h"
#include "protocol/scan.h"
#include "protocol/topic.h"

enum field_type {
        FIELD_U8,
        FIELD_U32,
        FIELD_U64,
        FIELD_BOOL,
        FIELD_TEXT,     /* from outside: cut to max bytes when packed */
        FIELD_NAME,     /* min to max bytes */
        FIELD_BYTES,    /* bytes, not text: max of them */
        FIELD_TOPIC,    /* a name that is a topic */
        FIELD_PATTERN,  /* a name that is a pattern */
        FIELD_FEATURES, /* list of names <-> bits */
        FIELD_POLICY,   /* name <-> enum nd_policy */
};

enum field_need {
        FIELD_REQUIRED,
        FIELD_OPTIONAL, /* a string is left out when absent, a number when 0 */
        FIELD_DEFAULT,  /* always written; what the struct has before unpacking stays if absent */
        FIELD_PAIR,     /* both of the two, or none: has_numbers */
};

struct field {
        const char *key;
        enum field_type type;
        enum field_need need;
        size_t offset;
        uint64_t min; /* a number's range; of a string, its bytes */
        uint64_t max;
};

struct schema {
        const struct field *fields;
        size_t n_fields;
        size_t has_numbers; /* offset of a bool; 0: the kind has no pair */
};

/* Bytes of a text that says what went wrong. With ND_NAME_BYTES_MAX for each of the names, the
 * greatest header is an ERROR of some 1,400 bytes. */
#define CONTROL_TEXT_BYTES_MAX 1024u

#define FIELDS(_name, ...)                                                                         \
        static const struct field _name##_fields[] = {__VA_ARGS__};                                \
        static const struct schema _name##_schema = {                                              \
                .fields = _name##_fields,                                                          \
                .n_fields = nd_array_size(_name##_fields),                                         \
                .has_numbers = NAME_HAS_NUMBERS,                                                   \
        }

#define AT(_struct, _member) offsetof(struct _struct, _member)
#define CODE_MAX             0x7fffffffu /* so that its negative is an int */

#define NAME_HAS_NUMBERS 0
FIELDS(connect,
       {"features", FIELD_FEATURES, FIELD_REQUIRED, AT(nd_connect, features), 0, 0},
       {"client", FIELD_TEXT, FIELD_OPTIONAL, AT(nd_connect, client), 0, ND_NAME_BYTES_MAX},
       {"pid", FIELD_U64, FIELD_OPTIONAL, AT(nd_connect, pid), 0, UINT64_MAX},
       {"token", FIELD_NAME, FIELD_OPTIONAL, AT(nd_connect, token), 1, ND_TOKEN_NAME_BYTES_MAX});

FIELDS(auth,
       {"nonce", FIELD_BYTES, FIELD_REQUIRED, AT(nd_auth, nonce), 0, ND_TOKEN_NONCE_BYTES},
       {"proof", FIELD_BYTES, FIELD_OPTIONAL, AT(nd_auth, proof), 0, ND_TOKEN_PROOF_BYTES});

FIELDS(welcome,
       {"features", FIELD_FEATURES, FIELD_REQUIRED, AT(nd_welcome, features), 0, 0},
       {"source", FIELD_U64, FIELD_REQUIRED, AT(nd_welcome, source), 1, UINT64_MAX},
       {"grant", FIELD_U64, FIELD_REQUIRED, AT(nd_welcome, grant_bytes), 0, UINT64_MAX},
       {"message_max", FIELD_U64, FIELD_REQUIRED, AT(nd_welcome, message_bytes_max), 0, UINT64_MAX},
       {"header_max", FIELD_U64, FIELD_REQUIRED, AT(nd_welcome, header_bytes_max), 0, UINT64_MAX},
       {"meta_max", FIELD_U64, FIELD_REQUIRED, AT(nd_welcome, meta_bytes_max), 0, UINT64_MAX},
       {"dims_max", FIELD_U64, FIELD_REQUIRED, AT(nd_welcome, dims_max), 0, UINT64_MAX},
       {"subscriptions_max", FIELD_U64, FIELD_REQUIRED, AT(nd_welcome, subscriptions_max), 0,
        UINT64_MAX},
       {"shm_max", FIELD_U64, FIELD_REQUIRED, AT(nd_welcome, shm_bytes_max), 0, UINT64_MAX},
       {"server", FIELD_TEXT, FIELD_OPTIONAL, AT(nd_welcome, server), 0, ND_NAME_BYTES_MAX},
       {"proof", FIELD_BYTES, FIELD_OPTIONAL, AT(nd_welcome, proof), 0, ND_TOKEN_PROOF_BYTES});

FIELDS(subscribe,
       {"pattern", FIELD_PATTERN, FIELD_REQUIRED, AT(nd_subscribe, pattern), 0, ND_TOPIC_BYTES_MAX},
       {"policy", FIELD_POLICY, FIELD_DEFAULT, AT(nd_subscribe, policy), 0, 0},
       {"depth", FIELD_U64, FIELD_DEFAULT, AT(nd_subscribe, depth_messages), 1, UINT64_MAX},
       {"bytes", FIELD_U64, FIELD_DEFAULT, AT(nd_subscribe, depth_bytes), 1, UINT64_MAX},
       {"window", FIELD_U64, FIELD_REQUIRED, AT(nd_subscribe, window_messages), 0, UINT64_MAX},
       {"window_bytes", FIELD_U64, FIELD_REQUIRED, AT(nd_subscribe, window_bytes), 0, UINT64_MAX},
       {"group", FIELD_NAME, FIELD_OPTIONAL, AT(nd_subscribe, group), 1, ND_NAME_BYTES_MAX},
       {"retained", FIELD_BOOL, FIELD_DEFAULT, AT(nd_subscribe, retained), 0, 0});

FIELDS(subscribed,
       {"depth", FIELD_U64, FIELD_REQUIRED, AT(nd_subscribed, depth_messages), 1, UINT64_MAX},
       {"bytes", FIELD_U64, FIELD_REQUIRED, AT(nd_subscribed, depth_bytes), 1, UINT64_MAX});

/* TOPIC asks in one direction and tells in the other */
FIELDS(topic_ask,
       {"topic", FIELD_TOPIC, FIELD_REQUIRED, AT(nd_topic_header, topic), 0, ND_TOPIC_BYTES_MAX},
       {"watch", FIELD_BOOL, FIELD_DEFAULT, AT(nd_topic_header, watch), 0, 0});

FIELDS(topic_tell,
       {"topic", FIELD_TOPIC, FIELD_REQUIRED, AT(nd_topic_header, topic), 0, ND_TOPIC_BYTES_MAX},
       {"allowed", FIELD_BOOL, FIELD_REQUIRED, AT(nd_topic_header, allowed), 0, 0},
       {"subscribers", FIELD_U64, FIELD_REQUIRED, AT(nd_topic_header, subscribers), 0, UINT64_MAX},
       {"paused", FIELD_BOOL, FIELD_REQUIRED, AT(nd_topic_header, paused), 0, 0});

FIELDS(goodbye,
       {"code", FIELD_U32, FIELD_DEFAULT, AT(nd_goodbye, code), 0, CODE_MAX},
       {"text", FIELD_TEXT, FIELD_OPTIONAL, AT(nd_goodbye, text), 0, CONTROL_TEXT_BYTES_MAX});
#undef NAME_HAS_NUMBERS

#define NAME_HAS_NUMBERS offsetof(struct nd_error_header, has_numbers)
FIELDS(error,
       {"code", FIELD_U32, FIELD_REQUIRED, AT(nd_error_header, code), 1, CODE_MAX},
       {"of", FIELD_U8, FIELD_REQUIRED, AT(nd_error_header, of), 0, UINT8_MAX},
       {"closes", FIELD_BOOL, FIELD_DEFAULT, AT(nd_error_header, closes), 0, 0},
       {"field", FIELD_TEXT, FIELD_OPTIONAL, AT(nd_error_header, field), 0, ND_NAME_BYTES_MAX},
       {"text", FIELD_TEXT, FIELD_REQUIRED, AT(nd_error_header, text), 0, CONTROL_TEXT_BYTES_MAX},
       {"value", FIELD_U64, FIELD_PAIR, AT(nd_error_header, value), 0, UINT64_MAX},
       {"limit", FIELD_U64, FIELD_PAIR, AT(nd_error_header, limit), 0, UINT64_MAX});
#undef NAME_HAS_NUMBERS

#define NAME_HAS_NUMBERS offsetof(struct nd_unsubscribed, has_numbers)
FIELDS(unsubscribed,
       {"code", FIELD_U32, FIELD_REQUIRED, AT(nd_unsubscribed, code), 0, CODE_MAX},
       {"text", FIELD_TEXT, FIELD_OPTIONAL, AT(nd_unsubscribed, text), 0, CONTROL_TEXT_BYTES_MAX},
       {"value", FIELD_U64, FIELD_PAIR, AT(nd_unsubscribed, value), 0, UINT64_MAX},
       {"limit", FIELD_U64, FIELD_PAIR, AT(nd_unsubscribed, limit), 0, UINT64_MAX});
#undef NAME_HAS_NUMBERS

_Static_assert(CONTROL_TEXT_BYTES_MAX + ND_NAME_BYTES_MAX + 512 < ND_CONTROL_HEADER_BYTES_MAX,
               "the greatest header fits, with room for keys and numbers");
_Static_assert(sizeof(enum nd_policy) == sizeof(uint32_t), "policies are stored as u32");

static const struct {
        uint32_t bit;
        const char *name;
} features[] = {
        {ND_FEATURE_SHM, "shm"},
        {ND_FEATURE_LINK, "link"},
        {ND_FEATURE_RING, "ring"},
        {ND_FEATURE_BELL, "bell"},
};

const char *nd_policy_name(enum nd_policy policy)
{
        switch (policy) {
#define XX(_name, _num, _text)                                                                     \
        case ND_POLICY_##_name:                                                                    \
                return _text;
                ND_POLICY_MAP(XX)
#undef XX
        }
        return "?";
}

int nd_policy_parse(const char *text, size_t n_text, enum nd_policy *ret)
{
#define XX(_name, _num, _text)                                                                     \
        if (n_text == sizeof(_text) - 1 && memcmp(text, _text, n_text) == 0) {                     \
                *ret = ND_POLICY_##_name;                                                          \
                return 0;                                                                          \
        }
        ND_POLICY_MAP(XX)
#undef XX
        return NDBUS_EINVAL;
}

/* ---------------------------------------------------------------------------------- packing */

static int pack_write(void *data, const char *bytes, size_t n)
{
        struct nd_control_bytes *out = data;

        nd_assert(n <= sizeof(out->data) - out->n);
        memcpy(out->data + out->n, bytes, n);
        out->n += n;
        return 0;
}

static void pack_str(msgpack_packer *packer, const char *text, size_t n)
{
        msgpack_pack_str(packer, n);
        msgpack_pack_str_body(packer, text, n);
}

/* At most @max bytes, and not in the middle of a UTF-8 character. */
static size_t cut_text(const struct nd_string *text, size_t max)
{
        size_t n = text->n;

        if (n <= max)
                return n;
        for (n = max; n > 0 && ((uint8_t)text->at[n] & 0xc0) == 0x80;)
                --n;
        return n;
}

static void pack_features(msgpack_packer *packer, uint32_t bits)
{
        size_t n_known = 0;

        for (size_t i = 0; i < nd_array_size(features); ++i)
                n_known += (bits & features[i].bit) != 0;

        msgpack_pack_array(packer, n_known);
        for (size_t i = 0; i < nd_array_size(features); ++i)
                if (bits & features[i].bit)
                        pack_str(packer, features[i].name, strlen(features[i].name));
}

static uint64_t load_number(const struct field *field, const void *at)
{
        switch (field->type) {
        case FIELD_U8:
                return *(const uint8_t *)at;
        case FIELD_U32:
                return *(const uint32_t *)at;
        default:
                return *(const uint64_t *)at;
        }
}

static bool pack_is_wanted(const struct schema *schema, const struct field *field, const char *in)
{
        if (field->need == FIELD_PAIR)
                return *(const bool *)(const void *)(in + schema->has_numbers);
        if (field->need != FIELD_OPTIONAL)
                return true;
        if (field->type == FIELD_TEXT || field->type == FIELD_NAME || field->type == FIELD_BYTES)
                return ((const struct nd_string *)(const void *)(in + field->offset))->at;
        return load_number(field, in + field->offset) != 0;
}

static void pack_value(msgpack_packer *packer, const struct field *field, const void *at)
{
        const struct nd_string *text = at;

        switch (field->type) {
        case FIELD_U8:
        case FIELD_U32:
        case FIELD_U64:
                msgpack_pack_uint64(packer, load_number(field, at));
                break;
        case FIELD_BOOL:
                if (*(const bool *)at)
                        msgpack_pack_true(packer);
                else
                        msgpack_pack_false(packer);
                break;
        case FIELD_TEXT:
                pack_str(packer, text->at ? text->at : "", cut_text(text, field->max));
                break;
        case FIELD_BYTES:
                nd_assert(text->at && text->n == field->max);
                msgpack_pack_bin(packer, text->n);
                msgpack_pack_bin_body(packer, text->at, text->n);
                break;
        case FIELD_NAME:
        case FIELD_TOPIC:
        case FIELD_PATTERN:
                nd_assert(text->at && text->n >= field->min && text->n <= field->max);
                pack_str(packer, text->at, text->n);
                break;
        case FIELD_FEATURES:
                pack_features(packer, *(const uint32_t *)at);
                break;
        case FIELD_POLICY: {
                const char *name = nd_policy_name(*(const enum nd_policy *)at);

                pack_str(packer, name, strlen(name));
                break;
        }
        }
}

static void pack(const struct schema *schema, const void *in, struct nd_control_bytes *out)
{
        const char *base = in;
        msgpack_packer packer;
        size_t n_wanted = 0;

        for (size_t i = 0; i < schema->n_fields; ++i)
                n_wanted += pack_is_wanted(schema, &schema->fields[i], base);

        out->n = 0;
        msgpack_packer_init(&packer, out, pack_write);
        msgpack_pack_map(&packer, n_wanted);
        for (size_t i = 0; i < schema->n_fields; ++i) {
                const struct field *field = &schema->fields[i];

                if (!pack_is_wanted(schema, field, base))
                        continue;
                pack_str(&packer, field->key, strlen(field->key));
                pack_value(&packer, field, base + field->offset);
        }
}

/* -------------------------------------------------------------------------------- unpacking */

static int refuse_type(const struct field *field, const char *wanted, struct nd_fault *fault)
{
        return nd_fault_set(fault, NDBUS_EHEADER, field->key, "has the wrong type; %s is wanted",
                            wanted);
}

static int unpack_number(const struct field *field,
                         const msgpack_object *value,
                         void *ret,
                         struct nd_fault *fault)
{
        uint64_t number = value->via.u64;

        if (value->type != MSGPACK_OBJECT_POSITIVE_INTEGER)
                return refuse_type(field, "an unsigned integer", fault);
        if (number > field->max)
                return nd_fault_set_limit(fault, NDBUS_EHEADER, field->key, number, field->max, "");
        if (number < field->min)
                return nd_fault_set(fault, NDBUS_EHEADER, field->key,
                                    "is %llu, at least %llu is wanted", (unsigned long long)number,
                                    (unsigned long long)field->min);

        if (field->type == FIELD_U8)
                *(uint8_t *)ret = (uint8_t)number;
        else if (field->type == FIELD_U32)
                *(uint32_t *)ret = (uint32_t)number;
        else
                *(uint64_t *)ret = number;
        return 0;
}

static int unpack_string(const struct field *field,
                         const msgpack_object *value,
                         void *ret,
                         struct nd_fault *fault)
{
        const char *text = value->via.str.ptr;
        size_t n = value->via.str.size;
        int r;

        if (value->type != MSGPACK_OBJECT_STR)
                return refuse_type(field, "a string", fault);

        /* these say themselves what they are called and how long they may be */
        if (field->type == FIELD_TOPIC || field->type == FIELD_PATTERN) {
                r = (field->type == FIELD_TOPIC ? nd_topic_check : nd_pattern_check)(text, n,
                                                                                     fault);
                if (r)
                        return r;
        } else if (field->type == FIELD_NAME && n > field->max) {
                return nd_fault_set_limit(fault, NDBUS_EHEADER, field->key, n, field->max, "bytes");
        } else if (n < field->min) {
                return nd_fault_set(fault, NDBUS_EHEADER, field->key, "is empty");
        }

        *(struct nd_string *)ret = (struct nd_string){text, n};
        return 0;
}

static int unpack_bytes(const struct field *field,
                        const msgpack_object *value,
                        struct nd_string *ret,
                        struct nd_fault *fault)
{
        if (value->type != MSGPACK_OBJECT_BIN)
                return refuse_type(field, "bytes", fault);
        if (value->via.bin.size != field->max)
                return nd_fault_set_exact(fault, NDBUS_EHEADER, field->key, value->via.bin.size,
                                          field->max, "bytes");
        *ret = (struct nd_string){value->via.bin.ptr, value->via.bin.size};
        return 0;
}

static int unpack_features(const struct field *field,
                           const msgpack_object *value,
                           void *ret,
                           struct nd_fault *fault)
{
        uint32_t bits = 0;

        if (value->type != MSGPACK_OBJECT_ARRAY)
                return refuse_type(field, "a list of strings", fault);

        for (uint32_t i = 0; i < value->via.array.size; ++i) {
                const msgpack_object *name = &value->via.array.ptr[i];

                if (name->type != MSGPACK_OBJECT_STR)
                        return refuse_type(field, "a list of strings", fault);
                for (size_t k = 0; k < nd_array_size(features); ++k)
                        if (name->via.str.size == strlen(features[k].name) &&
                            memcmp(name->via.str.ptr, features[k].name, name->via.str.size) == 0)
                                bits |= features[k].bit;
        }

        *(uint32_t *)ret = bits;
        return 0;
}

static int unpack_value(const struct field *field,
                        const msgpack_object *value,
                        void *ret,
                        struct nd_fault *fault)
{
        switch (field->type) {
        case FIELD_U8:
        case FIELD_U32:
        case FIELD_U64:
                return unpack_number(field, value, ret, fault);
        case FIELD_BOOL:
                if (value->type != MSGPACK_OBJECT_BOOLEAN)
                        return refuse_type(field, "true or false", fault);
                *(bool *)ret = value->via.boolean;
                return 0;
        case FIELD_TEXT:
        case FIELD_NAME:
        case FIELD_TOPIC:
        case FIELD_PATTERN:
                return unpack_string(field, value, ret, fault);
        case FIELD_BYTES:
                return unpack_bytes(field, value, ret, fault);
        case FIELD_FEATURES:
                return unpack_features(field, value, ret, fault);
        case FIELD_POLICY:
                if (value->type != MSGPACK_OBJECT_STR)
                        return refuse_type(field, "a string", fault);
                if (nd_policy_parse(value->via.str.ptr, value->via.str.size, ret) != 0)
                        return nd_fault_set(
                                fault, NDBUS_EHEADER, field->key, "is \"%.*s\", which is no policy",
                                (int)nd_min_u64(value->via.str.size, 64), value->via.str.ptr);
                return 0;
        }
        nd_assert(false);
}

/* Index in the schema of a key; n_fields if it is not known. */
static size_t find_field(const struct schema *schema, const msgpack_object *key)
{
        size_t i;

        for (i = 0; i < schema->n_fields; ++i)
                if (key->type == MSGPACK_OBJECT_STR &&
                    key->via.str.size == strlen(schema->fields[i].key) &&
                    memcmp(key->via.str.ptr, schema->fields[i].key, key->via.str.size) == 0)
                        break;
        return i;
}

static int
check_presence(const struct schema *schema, uint32_t seen, char *ret, struct nd_fault *fault)
{
        size_t n_pair = 0;
        const struct field *missing = NULL;

        for (size_t i = 0; i < schema->n_fields; ++i) {
                const struct field *field = &schema->fields[i];
                bool is_seen = seen & 1u << i;

                if (field->need == FIELD_PAIR)
                        n_pair += is_seen;
                if (!is_seen &&
                    (field->need == FIELD_REQUIRED || (field->need == FIELD_PAIR && !missing)))
                        missing = field;
                if (missing && missing->need == FIELD_REQUIRED)
                        return nd_fault_set(fault, NDBUS_EHEADER, missing->key, "is missing");
        }

        if (n_pair == 1)
                return nd_fault_set(fault, NDBUS_EHEADER, missing->key,
                                    "is missing; value and limit come together");
        if (schema->has_numbers)
                *(bool *)(void *)(ret + schema->has_numbers) = n_pair == 2;
        return 0;
}

static int unpack_map(const struct schema *schema,
                      const msgpack_object_map *map,
                      char *ret,
                      struct nd_fault *fault)
{
        uint32_t seen = 0;

        for (uint32_t i = 0; i < map->size; ++i) {
                size_t i_field = find_field(schema, &map->ptr[i].key);
                const struct field *field = &schema->fields[i_field];
                int r;

                if (i_field == schema->n_fields)
                        continue;
                r = unpack_value(field, &map->ptr[i].val, ret + field->offset, fault);
                if (r)
                        return r;
                seen |= 1u << i_field;
        }
        return check_presence(schema, seen, ret, fault);
}

/* @ret has the defaults, and is a copy that the caller throws away on failure. */
static int
unpack(const struct schema *schema, const void *data, size_t n, void *ret, struct nd_fault *fault)
{
        msgpack_unpacked unpacked;
        int r;

        r = nd_scan(data, n, ND_SCAN_HEADER, "header", fault);
        if (r)
                return r;

        msgpack_unpacked_init(&unpacked);
        switch (msgpack_unpack_next(&unpacked, data, n, NULL)) {
        case MSGPACK_UNPACK_SUCCESS:
                r = unpacked.data.type == MSGPACK_OBJECT_MAP
                            ? unpack_map(schema, &unpacked.data.via.map, ret, fault)
                            : nd_fault_set(fault, NDBUS_EHEADER, "header", "is not a map");
                break;
        case MSGPACK_UNPACK_NOMEM_ERROR:
                r = nd_fault_set(fault, NDBUS_ENOMEM, "header", "could not be unpacked");
                break;
        default:
                r = nd_fault_set(fault, NDBUS_EHEADER, "header", "is not msgpack");
                break;
        }
        msgpack_unpacked_destroy(&unpacked);
        return r;
}

/* ------------------------------------------------------------------------------- each kind */

void nd_connect_pack(const struct nd_connect *in, struct nd_control_bytes *out)
{
        pack(&connect_schema, in, out);
}

void nd_auth_pack(const struct nd_auth *in, struct nd_control_bytes *out)
{
        pack(&auth_schema, in, out);
}

void nd_welcome_pack(const struct nd_welcome *in, struct nd_control_bytes *out)
{
        pack(&welcome_schema, in, out);
}

void nd_error_header_pack(const struct nd_error_header *in, struct nd_control_bytes *out)
{
        pack(&error_schema, in, out);
}

void nd_subscribe_pack(const struct nd_subscribe *in, struct nd_control_bytes *out)
{
        pack(&subscribe_schema, in, out);
}

void nd_subscribed_pack(const struct nd_subscribed *in, struct nd_control_bytes *out)
{
        pack(&subscribed_schema, in, out);
}

void nd_unsubscribed_pack(const struct nd_unsubscribed *in, struct nd_control_bytes *out)
{
        pack(&unsubscribed_schema, in, out);
}

void nd_topic_header_pack(const struct nd_topic_header *in,
                          bool from_daemon,
                          struct nd_control_bytes *out)
{
        pack(from_daemon ? &topic_tell_schema : &topic_ask_schema, in, out);
}

void nd_goodbye_pack(const struct nd_goodbye *in, struct nd_control_bytes *out)
{
        pack(&goodbye_schema, in, out);
}

int nd_connect_unpack(const void *data, size_t n, struct nd_connect *ret, struct nd_fault *fault)
{
        struct nd_connect v = {0};
        int r = unpack(&connect_schema, data, n, &v, fault);

        if (!r)
                *ret = v;
        return r;
}

int nd_auth_unpack(const void *data, size_t n, struct nd_auth *ret, struct nd_fault *fault)
{
        struct nd_auth v = {0};
        int r = unpack(&auth_schema, data, n, &v, fault);

        if (!r)
                *ret = v;
        return r;
}

int nd_welcome_unpack(const void *data, size_t n, struct nd_welcome *ret, struct nd_fault *fault)
{
        struct nd_welcome v = {0};
        int r = unpack(&welcome_schema, data, n, &v, fault);

        if (!r)
                *ret = v;
        return r;
}

int nd_error_header_unpack(const void *data,
                           size_t n,
                           struct nd_error_header *ret,
                           struct nd_fault *fault)
{
        struct nd_error_header v = {0};
        int r = unpack(&error_schema, data, n, &v, fault);

        if (!r)
                *ret = v;
        return r;
}

int nd_subscribe_unpack(const void *data,
                        size_t n,
                        struct nd_subscribe *ret,
                        struct nd_fault *fault)
{
        struct nd_subscribe v = {
                .policy = ND_POLICY_DROP_OLDEST,
                .depth_messages = ND_DEPTH_MESSAGES_DEFAULT,
                .depth_bytes = ND_DEPTH_BYTES_DEFAULT,
                .retained = true,
        };
        int r = unpack(&subscribe_schema, data, n, &v, fault);

        if (r)
                return r;
        if (v.group.at)
                v.retained = false;

        *ret = v;
        return 0;
}

int nd_subscribed_unpack(const void *data,
                         size_t n,
                         struct nd_subscribed *ret,
                         struct nd_fault *fault)
{
        struct nd_subscribed v = {0};
        int r = unpack(&subscribed_schema, data, n, &v, fault);

        if (!r)
                *ret = v;
        return r;
}

int nd_unsubscribed_unpack(const void *data,
                           size_t n,
                           struct nd_unsubscribed *ret,
                           struct nd_fault *fault)
{
        struct nd_unsubscribed v = {0};
        int r = unpack(&unsubscribed_schema, data, n, &v, fault);

        if (!r)
                *ret = v;
        return r;
}

int nd_topic_header_unpack(const void *data,
                           size_t n,
                           bool from_daemon,
                           struct nd_topic_header *ret,
                           struct nd_fault *fault)
{
        struct nd_topic_header v = {.watch = !from_daemon};
        int r = unpack(from_daemon ? &topic_tell_schema : &topic_ask_schema, data, n, &v, fault);

        if (!r)
                *ret = v;
        return r;
}

int nd_goodbye_unpack(const void *data, size_t n, struct nd_goodbye *ret, struct nd_fault *fault)
{
        struct nd_goodbye v = {0};
        int r = n ? unpack(&goodbye_schema, data, n, &v, fault) : 0; /* it may have no header */

        if (!r)
                *ret = v;
        return r;
}

struct nd_error_header
nd_error_header_from_fault(const struct nd_fault *fault, uint8_t of, bool closes)
{
        nd_assert(fault->code < 0);

        return (struct nd_error_header){
                .code = (uint32_t)-fault->code,
                .of = of,
                .closes = closes,
                .field = {fault->field[0] ? fault->field : NULL, strlen(fault->field)},
                .text = {fault->text, strlen(fault->text)},
                .has_numbers = fault->has_numbers,
                .value = fault->value,
                .limit = fault->limit,
        };
}

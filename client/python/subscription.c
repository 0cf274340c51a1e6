/* SPDX-License-Identifier: MIT */

/*
 * Subscription: an iterator of messages
 *
 * It refers to its bus, never the other way round. The library's subscription belongs to the library's
 * bus and goes with it, so each use asks first whether there still is one. Forgetting the object does
 * not end the subscription: a bus may be received from as a whole.
 */

#include "client/python/ndpy.h"
#include "protocol/limit.h"

struct ndpy_subscription {
        PyObject_HEAD struct ndpy_bus *bus;
        struct ndbus_subscription *sub; /* NULL: closed */
        PyObject *pattern;
        uint32_t id;
};

PyTypeObject *ndpy_subscription_type;
static PyTypeObject *stats_type;

static const char *const policies[] = {
        [NDBUS_DROP_OLDEST] = "drop-oldest", [NDBUS_DROP_NEWEST] = "drop-newest",
        [NDBUS_LATEST] = "latest",           [NDBUS_BLOCK] = "block",
        [NDBUS_DISCONNECT] = "disconnect",
};

#define N_POLICIES (sizeof(policies) / sizeof(policies[0]))

static int convert_policy(PyObject *name, void *ret_policy)
{
        if (PyUnicode_Check(name)) {
                for (size_t i = 0; i < N_POLICIES; ++i) {
                        if (PyUnicode_CompareWithASCIIString(name, policies[i]) == 0) {
                                *(enum ndbus_policy *)ret_policy = (enum ndbus_policy)i;
                                return 1;
                        }
                }
        }
        ndpy_raise_value(NDBUS_EINVAL, "policy", name,
                         "must be \"drop-oldest\", \"drop-newest\", \"latest\", \"block\" or "
                         "\"disconnect\"");
        return 0;
}

PyObject *ndpy_subscribe(PyObject *bus, PyObject *args, PyObject *keywords)
{
        static char *names[] = {"pattern", "policy",       "depth", "bytes",
                                "window",  "window_bytes", "group", "retained",
                                "objects", "timeout",      NULL};
        struct ndbus_subscribe_options options = NDBUS_SUBSCRIBE_OPTIONS_INIT;
        struct ndpy_count depth = {"depth", options.depth, 1, UINT64_MAX};
        struct ndpy_count bytes = {"bytes", options.bytes, 1, UINT64_MAX};
        struct ndpy_count window = {"window", options.window, 0, ND_WINDOW_MAX};
        struct ndpy_count window_bytes = {"window_bytes", options.window_bytes, 0, ND_WINDOW_MAX};
        int retained = options.retained, may_unpickle = 0, r;
        struct ndpy_bus *owner = (struct ndpy_bus *)bus;
        struct ndpy_subscription *self;
        struct ndbus_subscription *sub;
        PyObject *pattern;
        const char *text;

        if (!PyArg_ParseTupleAndKeywords(
                    args, keywords, "U|$O&O&O&O&O&zpO&O&:subscribe", names, &pattern,
                    convert_policy, &options.policy, ndpy_convert_count, &depth, ndpy_convert_count,
                    &bytes, ndpy_convert_count, &window, ndpy_convert_count, &window_bytes,
                    &options.group, &retained, ndpy_convert_objects, &may_unpickle,
                    ndpy_convert_timeout, &options.timeout_ms) ||
            !(text = PyUnicode_AsUTF8(pattern)))
                return NULL;
        if (PyUnicode_FindChar(pattern, 0, 0, PyUnicode_GET_LENGTH(pattern), 1) >= 0)
                return ndpy_raise_text(NDBUS_ETOPIC, "pattern: has a NUL in it");
        if (window.value == 0 && options.policy != NDBUS_LATEST)
                return ndpy_raise_text(NDBUS_EINVAL, "window: is 0, must be 1 to %llu",
                                       (unsigned long long)window.max);
        options.depth = depth.value;
        options.bytes = bytes.value;
        options.window = window.value;
        options.window_bytes = window_bytes.value;
        options.retained = (uint8_t)retained;
        options.userdata = may_unpickle ? &ndpy_may_unpickle : NULL;
        self = PyObject_GC_New(struct ndpy_subscription, ndpy_subscription_type);
        if (!self)
                return NULL;
        self->bus = (struct ndpy_bus *)Py_NewRef(bus);
        self->sub = NULL;
        self->pattern = Py_NewRef(pattern);
        self->id = 0;
        PyObject_GC_Track(self);
        if (ndpy_bus_enter(owner)) {
                Py_DECREF(self);
                return NULL;
        }
        r = ndbus_subscribe(owner->bus, text, &options, &sub);
        ndpy_bus_leave(owner);
        if (r) {
                Py_DECREF(self);
                return ndpy_raise(r);
        }
        self->sub = sub;
        self->id = ndbus_subscription_id(sub);
        return (PyObject *)self;
}

static int subscription_traverse(PyObject *object, visitproc visit, void *arg)
{
        Py_VISIT(Py_TYPE(object));
        Py_VISIT(((struct ndpy_subscription *)object)->bus);
        return 0;
}

static void subscription_dealloc(PyObject *object)
{
        struct ndpy_subscription *self = (struct ndpy_subscription *)object;
        PyTypeObject *type = Py_TYPE(object);

        PyObject_GC_UnTrack(object);
        Py_XDECREF(self->bus);
        Py_XDECREF(self->pattern);
        PyObject_GC_Del(object);
        Py_DECREF(type);
}

static bool subscription_is_closed(const struct ndpy_subscription *self)
{
        return !self->sub || !self->bus->bus;
}

static PyObject *receive_in(struct ndpy_subscription *self, int timeout_ms)
{
        struct ndbus_message *m;
        int r;

        if (subscription_is_closed(self))
                return ndpy_raise_text(NDBUS_EENDED, "the subscription is closed");
        if (ndpy_bus_enter(self->bus))
                return NULL;
        r = ndbus_receive_from(self->sub, &m, timeout_ms);
        ndpy_bus_leave(self->bus);
        if (r)
                return ndpy_raise(r);
        return ndpy_message_new(m, self->bus, NULL,
                                ndbus_message_userdata(m) == &ndpy_may_unpickle);
}

static PyObject *subscription_receive(PyObject *object, PyObject *args, PyObject *keywords)
{
        static char *names[] = {"timeout", NULL};
        int timeout_ms = -1;

        if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O&:receive", names, ndpy_convert_timeout,
                                         &timeout_ms))
                return NULL;
        return receive_in((struct ndpy_subscription *)object, timeout_ms);
}

static PyObject *subscription_next(PyObject *object)
{
        PyObject *message = receive_in((struct ndpy_subscription *)object, -1);

        if (!message && ndpy_error_is_set(NDBUS_EENDED))
                PyErr_Clear(); /* the iteration is over */
        return message;
}

static PyObject *subscription_receive_async(PyObject *object, PyObject *args, PyObject *keywords)
{
        return ndpy_call_python("ndbus._aio", "receive", object, args, keywords);
}

static PyObject *subscription_aiter(PyObject *object)
{
        PyObject *function = ndpy_import("ndbus._aio", "iterate"), *result;

        if (!function)
                return NULL;
        result = PyObject_CallOneArg(function, object);
        Py_DECREF(function);
        return result;
}

static PyObject *subscription_close(PyObject *object, PyObject *unused)
{
        struct ndpy_subscription *self = (struct ndpy_subscription *)object;
        int r;

        (void)unused;
        if (subscription_is_closed(self))
                Py_RETURN_NONE;
        if (ndpy_bus_enter(self->bus))
                return NULL;
        r = ndbus_unsubscribe(self->sub);
        self->sub = NULL;
        ndpy_bus_leave(self->bus);
        if (r)
                return ndpy_raise(r);
        Py_RETURN_NONE;
}

static PyObject *subscription_enter(PyObject *object, PyObject *unused)
{
        (void)unused;
        return Py_NewRef(object);
}

static PyObject *subscription_exit(PyObject *object, PyObject *args)
{
        (void)args;
        return subscription_close(object, NULL);
}

static PyObject *subscription_get_stats(PyObject *object, void *unused)
{
        struct ndpy_subscription *self = (struct ndpy_subscription *)object;
        struct ndbus_subscription_stats stats = {.size = sizeof(stats)};
        int r;

        (void)unused;
        if (subscription_is_closed(self))
                return ndpy_raise_text(NDBUS_EENDED, "the subscription is closed");
        if (ndpy_bus_enter(self->bus))
                return NULL;
        r = ndbus_subscription_stats(self->sub, &stats);
        ndpy_bus_leave(self->bus);
        if (r)
                return ndpy_raise(r);
        const uint64_t counts[] = {stats.received, stats.received_bytes, stats.dropped,
                                   stats.gaps_unknown, stats.waiting};

        return ndpy_counts(stats_type, counts, sizeof(counts) / sizeof(counts[0]));
}

static PyObject *subscription_get_pattern(PyObject *object, void *unused)
{
        (void)unused;
        return Py_NewRef(((struct ndpy_subscription *)object)->pattern);
}

static PyObject *subscription_get_id(PyObject *object, void *unused)
{
        (void)unused;
        return PyLong_FromUnsignedLong(((struct ndpy_subscription *)object)->id);
}

static PyObject *subscription_get_bus(PyObject *object, void *unused)
{
        (void)unused;
        return Py_NewRef((PyObject *)((struct ndpy_subscription *)object)->bus);
}

static PyObject *subscription_get_closed(PyObject *object, void *unused)
{
        (void)unused;
        return PyBool_FromLong(subscription_is_closed((struct ndpy_subscription *)object));
}

static PyObject *subscription_repr(PyObject *object)
{
        struct ndpy_subscription *self = (struct ndpy_subscription *)object;

        return PyUnicode_FromFormat("<ndbus.Subscription %u %R%s>", (unsigned int)self->id,
                                    self->pattern, subscription_is_closed(self) ? " closed" : "");
}

PyDoc_STRVAR(
        subscription_doc,
        "What matches a pattern: an iterator of messages, also an asynchronous one.\n\n"
        "`for message in subscription` waits for each; it ends when the subscription is closed.\n"
        "An exception says what happened to it (QueueOverflowError, SlowError, DeniedError) or\n"
        "to the connection (NotConnectedError, after which the loop may be begun again: the\n"
        "library connects and subscribes again, and the next message has an unknown number of\n"
        "dropped ones before it).\n\n"
        "It lasts until close(), the end of its `with`, or the end of its bus.");

static PyMethodDef subscription_methods[] = {
        {"receive", (PyCFunction)(void (*)(void))subscription_receive, METH_VARARGS | METH_KEYWORDS,
         "receive(timeout=None)\n--\n\nThe next message. TimedOutError, a TimeoutError, if none comes "
         "in time;\nEndedError after the end."},
        {"receive_async", (PyCFunction)(void (*)(void))subscription_receive_async,
         METH_VARARGS | METH_KEYWORDS,
         "receive_async(timeout=None)\n--\n\nAs receive(), as a coroutine for asyncio."},
        {"close", subscription_close, METH_NOARGS,
         "close()\n--\n\nUnsubscribe; messages that were not received are dropped."},
        {"__enter__", subscription_enter, METH_NOARGS, NULL},
        {"__exit__", subscription_exit, METH_VARARGS, NULL},
        {NULL, NULL, 0, NULL},
};

static PyGetSetDef subscription_attributes[] = {
        {"stats", subscription_get_stats, NULL, "totals since it was made: SubscriptionStats",
         NULL},
        {"pattern", subscription_get_pattern, NULL, "as it was given", NULL},
        {"id", subscription_get_id, NULL, "its number, as in messages", NULL},
        {"bus", subscription_get_bus, NULL, "the bus that it belongs to", NULL},
        {"closed", subscription_get_closed, NULL, "whether it or its bus was closed", NULL},
        {NULL, NULL, NULL, NULL, NULL},
};

int ndpy_subscription_init(PyObject *module)
{
        static PyType_Slot slots[] = {
                {Py_tp_doc, (void *)(uintptr_t)subscription_doc},
                {Py_tp_dealloc, subscription_dealloc},
                {Py_tp_traverse, subscription_traverse},
                {Py_tp_repr, subscription_repr},
                {Py_tp_iter, PyObject_SelfIter},
                {Py_tp_iternext, subscription_next},
                {Py_am_aiter, subscription_aiter},
                {Py_tp_methods, subscription_methods},
                {Py_tp_getset, subscription_attributes},
                {0, NULL},
        };
        static PyType_Spec spec = {.name = "ndbus.Subscription",
                                   .basicsize = sizeof(struct ndpy_subscription),
                                   .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                                   .slots = slots};
        static PyStructSequence_Field stats_fields[] = {
                {"received", "messages handed to the application"},
                {"received_bytes", "and bytes of their arrays"},
                {"dropped", "messages announced as dropped, known counts only"},
                {"gaps_unknown", "gaps of unknown size: one for each reconnect"},
                {"waiting", "messages taken in and not yet handed out"},
                {NULL, NULL},
        };
        static PyStructSequence_Desc stats = {
                .name = "ndbus.SubscriptionStats",
                .doc = "Totals of a subscription.",
                .fields = stats_fields,
                .n_in_sequence = 5,
        };

        stats_type = ndpy_add_counts_type(module, &stats);
        if (!stats_type)
                return -1;
        ndpy_subscription_type = ndpy_add_type(module, &spec);
        if (ndpy_subscription_type)
                ndpy_subscription_type->tp_new = NULL; /* made by Bus.subscribe() alone */
        return ndpy_subscription_type ? 0 : -1;
}

/* SPDX-License-Identifier: MIT */

/*
 * Bus: a connection to a daemon
 *
 * The library's bus belongs to one thread at a time, and a call of it may take long; so every call marks
 * the bus as busy and gives up the GIL, and a second thread that comes meanwhile is refused: it would
 * wait for something that may never happen. While the library waits it asks now and then whether a
 * signal came; its handler runs then, and what it raises ends the wait.
 */

#include "client/python/ndpy.h"
#include "protocol/scan.h"

PyTypeObject *ndpy_bus_type;
static PyTypeObject *shm_stats_type;

int ndpy_bus_enter(struct ndpy_bus *self)
{
        if (!self->bus) {
                ndpy_raise_text(NDBUS_EINVAL, "the bus is closed");
                return -1;
        }
        if (self->is_busy) {
                PyErr_SetString(PyExc_RuntimeError,
                                "the bus is in a call already: it belongs to one thread at a time, "
                                "give each thread a bus of its own");
                return -1;
        }
        self->is_busy = true;
        self->thread = PyEval_SaveThread();
        return 0;
}

void ndpy_bus_leave(struct ndpy_bus *self)
{
        PyObject *type, *value, *trace, *result;

        PyEval_RestoreThread(self->thread);
        self->is_busy = false;
        ndpy_loan_give_back(self);
        if (!self->on_moved)
                return;
        PyErr_Fetch(&type, &value, &trace);
        result = PyObject_CallNoArgs(self->on_moved);
        if (!result)
                PyErr_WriteUnraisable(self->on_moved);
        Py_XDECREF(result);
        PyErr_Restore(type, value, trace);
}

/* Asked by the library in its waits, without the GIL. */
static int bus_interrupted(void *userdata)
{
        struct ndpy_bus *self = userdata;
        int r;

        if (self->is_ending)
                return 0;
        PyEval_RestoreThread(self->thread);
        r = PyErr_CheckSignals();
        self->thread = PyEval_SaveThread();
        return r;
}

/* ------------------------------------------------------------------------------ making and closing */

static PyObject *bus_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
        static char *names[] = {"url",
                                "client",
                                "connect_timeout",
                                "stall",
                                "ping",
                                "ping_timeout",
                                "offline_messages",
                                "offline_bytes",
                                "shm_max",
                                "no_shm",
                                "token",
                                NULL};
        struct ndbus_options options = NDBUS_OPTIONS_INIT;
        struct ndpy_time connect_timeout = {"connect_timeout", options.connect_timeout_ms, true};
        struct ndpy_time stall = {"stall", options.stall_ms, true};
        struct ndpy_time ping = {"ping", options.ping_ms, false};
        struct ndpy_time ping_timeout = {"ping_timeout", options.ping_timeout_ms, true};
        struct ndpy_count offline_messages = {"offline_messages", options.offline_messages, 0,
                                              UINT32_MAX};
        struct ndpy_count offline_bytes = {"offline_bytes", options.offline_bytes, 0, UINT64_MAX};
        struct ndpy_count shm_max = {"shm_max", options.shm_max, 0, UINT64_MAX};
        const char *url = NULL;
        struct ndpy_bus *self;
        int no_shm = 0, r;

        if (!PyArg_ParseTupleAndKeywords(args, keywords, "|z$zO&O&O&O&O&O&O&pz:Bus", names, &url,
                                         &options.client, ndpy_convert_time, &connect_timeout,
                                         ndpy_convert_time, &stall, ndpy_convert_time, &ping,
                                         ndpy_convert_time, &ping_timeout, ndpy_convert_count,
                                         &offline_messages, ndpy_convert_count, &offline_bytes,
                                         ndpy_convert_count, &shm_max, &no_shm, &options.token))
                return NULL;
        self = (struct ndpy_bus *)type->tp_alloc(type, 0);
        if (!self)
                return NULL;
        options.connect_timeout_ms = connect_timeout.ms;
        options.stall_ms = stall.ms;
        options.ping_ms = ping.ms < 0 ? 0 : ping.ms; /* None: never */
        options.ping_timeout_ms = ping_timeout.ms;
        options.offline_messages = (uint32_t)offline_messages.value;
        options.offline_bytes = offline_bytes.value;
        options.shm_max = shm_max.value;
        options.no_shm = (uint8_t)no_shm;
        options.interrupted = bus_interrupted;
        options.userdata = self;
        self->thread = PyEval_SaveThread();
        r = ndbus_open(&self->bus, url, &options);
        PyEval_RestoreThread(self->thread);
        if (r) {
                ndpy_raise(r);
                Py_CLEAR(self);
        }
        return (PyObject *)self;
}

static int bus_traverse(PyObject *object, visitproc visit, void *arg)
{
        struct ndpy_bus *self = (struct ndpy_bus *)object;

        Py_VISIT(Py_TYPE(object));
        Py_VISIT(self->on_moved);
        return 0;
}

static int bus_clear(PyObject *object)
{
        Py_CLEAR(((struct ndpy_bus *)object)->on_moved);
        return 0;
}

static void bus_finalize(PyObject *object)
{
        struct ndpy_bus *self = (struct ndpy_bus *)object;
        PyObject *type, *value, *trace;

        if (!self->bus)
                return;
        PyErr_Fetch(&type, &value, &trace);
        if (PyErr_ResourceWarning(object, 1, "a bus was not closed: %R", object))
                PyErr_WriteUnraisable(object);
        PyErr_Restore(type, value, trace);
}

static void bus_dealloc(PyObject *object)
{
        struct ndpy_bus *self = (struct ndpy_bus *)object;
        PyTypeObject *type = Py_TYPE(object);

        if (PyObject_CallFinalizerFromDealloc(object))
                return;
        PyObject_GC_UnTrack(object);
        bus_clear(object);
        if (self->bus) {
                self->is_ending = true;
                Py_BEGIN_ALLOW_THREADS ndbus_close(self->bus, 0, NULL);
                Py_END_ALLOW_THREADS
        }
        type->tp_free(object);
        Py_DECREF(type);
}

static PyObject *bus_close_in(struct ndpy_bus *self, int timeout_ms)
{
        struct ndbus *bus = self->bus;
        size_t n_unconfirmed = 0;
        PyObject *type, *value, *trace, *number;
        int r;

        if (!bus)
                Py_RETURN_NONE;
        if (ndpy_bus_enter(self))
                return NULL;
        r = ndbus_close(bus, timeout_ms, &n_unconfirmed);
        self->bus = NULL;
        ndpy_bus_leave(self);
        if (!r)
                Py_RETURN_NONE;
        ndpy_raise(r);
        PyErr_Fetch(&type, &value, &trace);
        PyErr_NormalizeException(&type, &value, &trace);
        number = PyLong_FromSize_t(n_unconfirmed);
        if (!number || PyObject_SetAttrString(value, "unconfirmed", number))
                PyErr_Clear();
        Py_XDECREF(number);
        PyErr_Restore(type, value, trace);
        return NULL;
}

static PyObject *bus_close(PyObject *object, PyObject *args, PyObject *keywords)
{
        static char *names[] = {"timeout", NULL};
        int timeout_ms = 5000;

        if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O&:close", names, ndpy_convert_timeout,
                                         &timeout_ms))
                return NULL;
        return bus_close_in((struct ndpy_bus *)object, timeout_ms);
}

static PyObject *bus_enter(PyObject *object, PyObject *unused)
{
        (void)unused;
        return Py_NewRef(object);
}

/* After an exception nobody waits for the daemon, and that exception is the one to be seen. */
static PyObject *bus_exit(PyObject *object, PyObject *args)
{
        PyObject *type = PyTuple_Size(args) > 0 ? PyTuple_GET_ITEM(args, 0) : Py_None;
        PyObject *result = bus_close_in((struct ndpy_bus *)object, type == Py_None ? 5000 : 0);

        if (!result && type != Py_None) {
                PyErr_Clear();
                Py_RETURN_NONE;
        }
        return result;
}

/* -------------------------------------------------------------------------------------- publishing */

int ndpy_publish_init(struct ndpy_publish *publish, PyObject *arrays, PyObject *meta)
{
        publish->meta = NULL;
        if (ndpy_views_init(&publish->views, arrays))
                return -1;
        if (meta != Py_None) {
                publish->meta = ndpy_meta_pack(meta);
                if (!publish->meta) {
                        ndpy_views_deinit(&publish->views);
                        return -1;
                }
                publish->options.meta = PyBytes_AS_STRING(publish->meta);
                publish->options.n_meta = (size_t)PyBytes_GET_SIZE(publish->meta);
        }
        return 0;
}

void ndpy_publish_deinit(struct ndpy_publish *publish)
{
        ndpy_views_deinit(&publish->views);
        Py_CLEAR(publish->meta);
}

PyObject *ndpy_bus_publish(struct ndpy_bus *self,
                           const char *topic,
                           const struct ndbus_message *request,
                           struct ndpy_publish *publish)
{
        const struct ndpy_views *views = &publish->views;
        int r;

        if (ndpy_bus_enter(self))
                return NULL;
        if (request)
                r = ndbus_reply(self->bus, request, views->arrays, views->n, &publish->options);
        else
                r = ndbus_publish(self->bus, topic, views->arrays, views->n, &publish->options);
        ndpy_bus_leave(self);
        if (r || PyErr_Occurred())
                return ndpy_raise(r);
        Py_RETURN_NONE;
}

static PyObject *bus_publish(PyObject *object, PyObject *args, PyObject *keywords)
{
        static char *names[] = {"topic", "arrays", "meta",      "retain",   "timeout",
                                "reply", "more",   "if_wanted", "encoding", NULL};
        struct ndpy_publish publish = {.options = NDBUS_PUBLISH_OPTIONS_INIT};
        int retain = 0, more = 0, if_wanted = 0;
        PyObject *arrays = NULL, *meta = Py_None, *none = NULL, *result;
        const char *topic;

        if (!PyArg_ParseTupleAndKeywords(args, keywords, "s|OO$pO&zppz:publish", names, &topic,
                                         &arrays, &meta, &retain, ndpy_convert_timeout,
                                         &publish.options.timeout_ms, &publish.options.reply, &more,
                                         &if_wanted, &publish.options.encoding))
                return NULL;
        publish.options.retain = (uint8_t)retain;
        publish.options.more = (uint8_t)more;
        publish.options.if_wanted = (uint8_t)if_wanted;
        if (!arrays || arrays == Py_None)
                arrays = none = PyTuple_New(0);
        if (!arrays || ndpy_publish_init(&publish, arrays, meta)) {
                Py_XDECREF(none);
                return NULL;
        }
        result = ndpy_bus_publish((struct ndpy_bus *)object, topic, NULL, &publish);
        ndpy_publish_deinit(&publish);
        Py_XDECREF(none);
        return result;
}

static PyObject *bus_publish_object(PyObject *object, PyObject *args, PyObject *keywords)
{
        return ndpy_call_python("ndbus._objects", "publish", object, args, keywords);
}

static PyObject *bus_publish_async(PyObject *object, PyObject *args, PyObject *keywords)
{
        return ndpy_call_python("ndbus._aio", "publish", object, args, keywords);
}

/* None, or "pickle" */
int ndpy_convert_objects(PyObject *how, void *ret_may_unpickle)
{
        int *may = ret_may_unpickle;

        *may = PyUnicode_Check(how) && PyUnicode_CompareWithASCIIString(how, "pickle") == 0;
        if (*may || how == Py_None)
                return 1;
        ndpy_raise_value(NDBUS_EINVAL, "objects", how,
                         "must be None or \"pickle\", which allows publishers to run code here");
        return 0;
}

static PyObject *bus_request(PyObject *object, PyObject *args, PyObject *keywords)
{
        static char *names[] = {"topic", "arrays", "meta", "timeout", "objects", NULL};
        struct ndpy_publish publish = {.options = NDBUS_PUBLISH_OPTIONS_INIT};
        struct ndpy_bus *self = (struct ndpy_bus *)object;
        PyObject *arrays, *meta = Py_None;
        struct ndbus_message *answer;
        int timeout_ms = 5000, may_unpickle = 0, r;
        const char *topic;

        if (!PyArg_ParseTupleAndKeywords(args, keywords, "sO|O$O&O&:request", names, &topic,
                                         &arrays, &meta, ndpy_convert_timeout, &timeout_ms,
                                         ndpy_convert_objects, &may_unpickle) ||
            ndpy_publish_init(&publish, arrays, meta))
                return NULL;
        publish.options.timeout_ms = -1; /* as long as the whole may take */
        if (ndpy_bus_enter(self)) {
                ndpy_publish_deinit(&publish);
                return NULL;
        }
        r = ndbus_request(self->bus, topic, publish.views.arrays, publish.views.n, &publish.options,
                          timeout_ms, &answer);
        ndpy_bus_leave(self);
        ndpy_publish_deinit(&publish);
        return r ? ndpy_raise(r) : ndpy_message_new(answer, self, NULL, may_unpickle);
}

/* --------------------------------------------------------------------------------------- receiving */

static PyObject *bus_receive_in(struct ndpy_bus *self, int timeout_ms)
{
        struct ndbus_message *m;
        int r;

        if (ndpy_bus_enter(self))
                return NULL;
        r = ndbus_receive(self->bus, &m, timeout_ms);
        ndpy_bus_leave(self);
        if (r)
                return ndpy_raise(r);
        return ndpy_message_new(m, self, NULL, ndbus_message_userdata(m) == &ndpy_may_unpickle);
}

static PyObject *bus_receive(PyObject *object, PyObject *args, PyObject *keywords)
{
        static char *names[] = {"timeout", NULL};
        int timeout_ms = -1;

        if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O&:receive", names, ndpy_convert_timeout,
                                         &timeout_ms))
                return NULL;
        return bus_receive_in((struct ndpy_bus *)object, timeout_ms);
}

static PyObject *bus_next(PyObject *object)
{
        struct ndpy_bus *self = (struct ndpy_bus *)object;

        return self->bus ? bus_receive_in(self, -1) : NULL;
}

/* ------------------------------------------------------------------------------ asking the daemon */

static PyObject *bus_flush(PyObject *object, PyObject *args, PyObject *keywords)
{
        static char *names[] = {"timeout", NULL};
        struct ndpy_bus *self = (struct ndpy_bus *)object;
        int timeout_ms = 5000, r;

        if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O&:flush", names, ndpy_convert_timeout,
                                         &timeout_ms) ||
            ndpy_bus_enter(self))
                return NULL;
        r = ndbus_flush(self->bus, timeout_ms);
        ndpy_bus_leave(self);
        if (r)
                return ndpy_raise(r);
        Py_RETURN_NONE;
}

static PyObject *bus_ping(PyObject *object, PyObject *args, PyObject *keywords)
{
        static char *names[] = {"timeout", NULL};
        struct ndpy_bus *self = (struct ndpy_bus *)object;
        int timeout_ms = 5000, r;
        uint64_t ns;

        if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O&:ping", names, ndpy_convert_timeout,
                                         &timeout_ms) ||
            ndpy_bus_enter(self))
                return NULL;
        r = ndbus_ping(self->bus, &ns, timeout_ms);
        ndpy_bus_leave(self);
        return r ? ndpy_raise(r) : PyFloat_FromDouble((double)ns / 1e9);
}

static PyObject *bus_stats(PyObject *object, PyObject *args, PyObject *keywords)
{
        static char *names[] = {"timeout", NULL};
        struct ndpy_bus *self = (struct ndpy_bus *)object;
        int timeout_ms = 5000, r;
        struct nd_fault fault = {0};
        PyObject *result;
        void *data;
        size_t n;

        if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O&:stats", names, ndpy_convert_timeout,
                                         &timeout_ms) ||
            ndpy_bus_enter(self))
                return NULL;
        r = ndbus_stats(self->bus, &data, &n, timeout_ms);
        ndpy_bus_leave(self);
        if (r)
                return ndpy_raise(r);
        if (nd_scan(data, n, ND_SCAN_META, "stats",
                    &fault)) /* the library hands it out as it came */
                result = ndpy_raise_text(fault.code, "%s: %s", fault.field, fault.text);
        else
                result = ndpy_meta_unpack(data, n);
        free(data);
        return result;
}

static PyObject *bus_subscribers(PyObject *object, PyObject *args, PyObject *keywords)
{
        static char *names[] = {"topic", "timeout", NULL};
        struct ndpy_bus *self = (struct ndpy_bus *)object;
        int timeout_ms = 5000, r;
        const char *topic;
        uint64_t n;

        if (!PyArg_ParseTupleAndKeywords(args, keywords, "s|O&:subscribers", names, &topic,
                                         ndpy_convert_timeout, &timeout_ms) ||
            ndpy_bus_enter(self))
                return NULL;
        r = ndbus_subscribers(self->bus, topic, &n, timeout_ms);
        ndpy_bus_leave(self);
        return r ? ndpy_raise(r) : PyLong_FromUnsignedLongLong(n);
}

static PyObject *bus_wait_subscribers(PyObject *object, PyObject *args, PyObject *keywords)
{
        static char *names[] = {"topic", "n", "timeout", NULL};
        struct ndpy_bus *self = (struct ndpy_bus *)object;
        int timeout_ms = -1, r;
        struct ndpy_count n = {"n", 1, 0, UINT_MAX};
        const char *topic;

        if (!PyArg_ParseTupleAndKeywords(args, keywords, "s|O&O&:wait_subscribers", names, &topic,
                                         ndpy_convert_count, &n, ndpy_convert_timeout,
                                         &timeout_ms) ||
            ndpy_bus_enter(self))
                return NULL;
        r = ndbus_wait_subscribers(self->bus, topic, (unsigned int)n.value, timeout_ms);
        ndpy_bus_leave(self);
        if (r)
                return ndpy_raise(r);
        Py_RETURN_NONE;
}

static PyObject *bus_fileno(PyObject *object, PyObject *unused)
{
        struct ndpy_bus *self = (struct ndpy_bus *)object;
        int fd;

        (void)unused;
        if (ndpy_bus_enter(self))
                return NULL;
        fd = ndbus_fd(self->bus);
        ndpy_bus_leave(self);
        return fd < 0 ? ndpy_raise(fd) : PyLong_FromLong(fd);
}

static PyObject *bus_get_source(PyObject *object, void *unused)
{
        struct ndpy_bus *self = (struct ndpy_bus *)object;
        uint64_t source;

        (void)unused;
        if (ndpy_bus_enter(self))
                return NULL;
        source = ndbus_source(self->bus);
        ndpy_bus_leave(self);
        return PyLong_FromUnsignedLongLong(source);
}

static PyObject *bus_get_message_max(PyObject *object, void *unused)
{
        struct ndpy_bus *self = (struct ndpy_bus *)object;
        uint64_t n_bytes;

        (void)unused;
        if (ndpy_bus_enter(self))
                return NULL;
        n_bytes = ndbus_message_max(self->bus);
        ndpy_bus_leave(self);
        return PyLong_FromUnsignedLongLong(n_bytes);
}

static PyObject *bus_get_shm_stats(PyObject *object, void *unused)
{
        struct ndpy_bus *self = (struct ndpy_bus *)object;
        struct ndbus_shm_stats stats = {.size = sizeof(stats)};
        int r;

        (void)unused;
        if (ndpy_bus_enter(self))
                return NULL;
        r = ndbus_shm_stats(self->bus, &stats);
        ndpy_bus_leave(self);
        if (r)
                return ndpy_raise(r);
        const uint64_t counts[] = {stats.published,     stats.fallback, stats.segments,
                                   stats.segment_bytes, stats.blocks,   stats.held};

        return ndpy_counts(shm_stats_type, counts, sizeof(counts) / sizeof(counts[0]));
}

static PyObject *bus_get_closed(PyObject *object, void *unused)
{
        (void)unused;
        return PyBool_FromLong(!((struct ndpy_bus *)object)->bus);
}

static PyObject *bus_get_on_moved(PyObject *object, void *unused)
{
        PyObject *callable = ((struct ndpy_bus *)object)->on_moved;

        (void)unused;
        return Py_NewRef(callable ? callable : Py_None);
}

static int bus_set_on_moved(PyObject *object, PyObject *callable, void *unused)
{
        (void)unused;
        Py_XSETREF(((struct ndpy_bus *)object)->on_moved,
                   callable && callable != Py_None ? Py_NewRef(callable) : NULL);
        return 0;
}

/* ---------------------------------------------------------------------------------------- the type */

PyDoc_STRVAR(
        bus_doc,
        "Bus(url=None, *, client=None, connect_timeout=5.0, stall=3.0, ping=5.0,\n"
        "    ping_timeout=10.0, offline_messages=0, offline_bytes=67108864, shm_max=0,\n"
        "    no_shm=False, token=None)\n--\n\n"
        "A connection to a daemon; ndbus.connect() makes one.\n\n"
        "client: name shown to the operator.\n"
        "stall: a message under way that moves no byte for this long is given up.\n"
        "ping, ping_timeout: a wait asks the daemon whether it lives after so long without a\n"
        "  byte from it, and takes it for dead when it has not answered for so long.\n"
        "offline_messages, offline_bytes: how much of what is published without a connection is\n"
        "  kept until there is one, also what finds it lost; otherwise publishing then fails.\n"
        "shm_max: bytes of shared memory to publish in; 0: as many as the daemon allows.\n"
        "no_shm: everything goes by the socket, both ways.\n"
        "token: \"NAME:FILE\", the secret that is proved to daemons on TCP; None: $NDBUS_TOKEN.\n\n"
        "All times are seconds; None, where a wait is meant, has no limit.\n\n"
        "A bus belongs to one thread at a time: a call while another thread is in one raises\n"
        "RuntimeError. Give each thread a bus of its own. After a fork the child gets\n"
        "ForkedError; it opens its own. Every wait ends at once with KeyboardInterrupt or with\n"
        "whatever else a signal handler raises.\n\n"
        "A connection that is lost is made again by later calls, with all subscriptions.");

PyDoc_STRVAR(
        publish_doc,
        "publish(topic, arrays=(), meta=None, *, retain=False, timeout=5.0, reply=None,\n"
        "        more=False, if_wanted=False, encoding=None)\n--\n\n"
        "Send one message: an array, or a list of arrays, and a dict.\n\n"
        "An array is anything with a buffer (NumPy arrays, bytes, memoryview, array.array), with\n"
        "__dlpack__ (tensors), __array_interface__ or __array__. It is sent from where it lies;\n"
        "dtype, shape and the order of its axes arrive as they are. When this returns, the\n"
        "message is on its way and the memory may be written again.\n\n"
        "meta: a dict of what msgpack can say.\n"
        "retain: keep it as the topic's value for later subscribers; without arrays and meta\n"
        "  that value is cleared.\n"
        "timeout: how long to wait for leave to begin, while a slow subscriber whose policy is\n"
        "  \"block\" holds the topic, or the daemon is busy; then WouldBlockError.\n"
        "reply: where an answer is awaited, $reply/SOURCE/N with this bus's source, any other is\n"
        "  denied; request() does that by itself.\n"
        "more: further messages follow at once, so this one may wait to be sent with them.\n"
        "if_wanted: do nothing if nobody subscribes.\n"
        "encoding: how to read the frames when they are not plain arrays.");

PyDoc_STRVAR(
        loan_doc,
        "loan(topic, shape, dtype='float64', meta=None, *, retain=False, timeout=5.0, reply=None,\n"
        "     more=False, if_wanted=False, encoding=None)\n--\n\n"
        "An array to be written in place, published at the end of its with block: a Loan.\n\n"
        "    with bus.loan(\"camera\", (480, 640), \"uint16\") as a:\n"
        "        a[...] = x\n\n"
        "In shared memory that is where subscribers read it, and nothing is copied; elsewhere it\n"
        "is ordinary memory and is sent. Its content is anything until it is written. An exception\n"
        "in the block cancels it. BufferError at the end of the block, and nothing is published, if\n"
        "arrays that were taken from it still exist: see help(ndbus.Loan).\n\n"
        "dtype: its name, or what numpy.dtype() takes. meta is read when the block ends; the\n"
        "options are those of publish().");

PyDoc_STRVAR(
        subscribe_doc,
        "subscribe(pattern, *, policy=\"drop-oldest\", depth=1000, bytes=67108864, window=256,\n"
        "          window_bytes=0, group=None, retained=True, objects=None, timeout=5.0)\n--\n\n"
        "Receive what is published on matching topics: a Subscription, to be iterated.\n\n"
        "pattern: a topic in which * stands for one whole segment and ** for any number.\n"
        "policy: what happens when more wait in the daemon than depth messages or that many\n"
        "  bytes: \"drop-oldest\", \"drop-newest\", \"latest\" (only the newest of each topic),\n"
        "  \"block\" (nothing is lost, publishers wait), \"disconnect\".\n"
        "window, window_bytes: how much is on the way to this program beyond that queue; 0 for\n"
        "  bytes: 4 MiB on TCP, 64 MiB on Unix.\n"
        "group: share the messages with the other members of this name.\n"
        "retained: begin with the topics' retained values.\n"
        "objects: \"pickle\" lets Message.object() unpickle, which runs code that the publisher\n"
        "  chose: only where all publishers are trusted.\n\n"
        "It exists when this returns: every message after that is delivered or counted as\n"
        "dropped.");

PyDoc_STRVAR(request_doc,
             "request(topic, arrays, meta=None, *, timeout=5.0, objects=None)\n--\n\n"
             "Publish a question and return the message that answers it.\n\n"
             "Whoever subscribes to the topic answers by Message.reply(); let them subscribe in a\n"
             "group, so that one of them does. NoSubscriberError at once if there is nobody.");

#define METHOD(_name, _function, _doc)                                                             \
        {                                                                                          \
                _name, (PyCFunction)(void (*)(void))_function, METH_VARARGS | METH_KEYWORDS, _doc  \
        }

static PyMethodDef bus_methods[] = {
        METHOD("publish", bus_publish, publish_doc),
        METHOD("publish_object",
               bus_publish_object,
               "publish_object(topic, obj, meta=None, *, out_of_band=True, **options)\n--\n\n"
               "Pickle any object and send it, its buffers beside the pickle and not copied into it.\n\n"
               "Options are those of publish(). out_of_band=False sends one plain pickle, which any\n"
               "pickle.loads() reads."),
        METHOD("publish_async",
               bus_publish_async,
               "publish_async(topic, arrays=(), meta=None, **options)\n--\n\n"
               "As publish(), as a coroutine: while there is no leave to send, other tasks run."),
        METHOD("loan", ndpy_loan, loan_doc),
        METHOD("subscribe", ndpy_subscribe, subscribe_doc),
        METHOD("receive",
               bus_receive,
               "receive(timeout=None)\n--\n\nThe next message of any subscription of this bus.\n\n"
               "TimedOutError, a TimeoutError, if none comes in time. NotConnectedError, once, when "
               "the\nconnection is lost; the next calls connect again. A subscription that the "
               "daemon ended is\nsaid once, by its reason."),
        METHOD("request", bus_request, request_doc),
        METHOD("flush",
               bus_flush,
               "flush(timeout=5.0)\n--\n\nWait until the daemon has routed all that was published.\n\n"
               "Raises the first error that the daemon reported about a message since the last flush."),
        METHOD("ping",
               bus_ping,
               "ping(timeout=5.0)\n--\n\nOne round trip to the daemon; seconds that it took."),
        METHOD("stats",
               bus_stats,
               "stats(timeout=5.0)\n--\n\nWhat the daemon counts, as nested dicts."),
        METHOD("subscribers",
               bus_subscribers,
               "subscribers(topic, timeout=5.0)\n--\n\nHow many subscriptions match a topic now, a "
               "group as one."),
        METHOD("wait_subscribers",
               bus_wait_subscribers,
               "wait_subscribers(topic, n=1, timeout=None)\n--\n\nWait until at least n "
               "subscriptions match a topic."),
        METHOD("close",
               bus_close,
               "close(timeout=5.0)\n--\n\nSend what is under way, hear of errors, and end the bus.\n\n"
               "It is closed whatever is raised; the exception's attribute unconfirmed says how many\n"
               "messages the daemon has not confirmed. Messages and arrays stay valid."),
        {"fileno", bus_fileno, METH_NOARGS,
         "fileno()\n--\n\nA descriptor for select() and event loops: readable when a call would\n"
         "progress; then receive(0) until it raises TimedOutError."},
        {"__enter__", bus_enter, METH_NOARGS, NULL},
        {"__exit__", bus_exit, METH_VARARGS, NULL},
        {NULL, NULL, 0, NULL},
};

static PyGetSetDef bus_attributes[] = {
        {"source", bus_get_source, NULL,
         "this connection's number, as in messages; changes with every reconnect; 0 without one",
         NULL},
        {"message_max", bus_get_message_max, NULL,
         "most bytes of a message's arrays together that the daemon takes; 0 before the first "
         "connection",
         NULL},
        {"shm_stats", bus_get_shm_stats, NULL, "shared memory of this bus: ShmStats", NULL},
        {"closed", bus_get_closed, NULL, "whether close() was called", NULL},
        {"_on_moved", bus_get_on_moved, bus_set_on_moved,
         "called after each call, which may have taken in messages; used by the asyncio side",
         NULL},
        {NULL, NULL, NULL, NULL, NULL},
};

int ndpy_bus_init(PyObject *module)
{
        static PyType_Slot slots[] = {
                {Py_tp_doc, (void *)(uintptr_t)bus_doc},
                {Py_tp_new, bus_new},
                {Py_tp_dealloc, bus_dealloc},
                {Py_tp_finalize, bus_finalize},
                {Py_tp_traverse, bus_traverse},
                {Py_tp_clear, bus_clear},
                {Py_tp_iter, PyObject_SelfIter},
                {Py_tp_iternext, bus_next},
                {Py_tp_methods, bus_methods},
                {Py_tp_getset, bus_attributes},
                {0, NULL},
        };
        static PyType_Spec spec = {.name = "ndbus.Bus",
                                   .basicsize = sizeof(struct ndpy_bus),
                                   .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                                   .slots = slots};
        static PyStructSequence_Field shm_stats_fields[] = {
                {"published", "messages published in shared memory"},
                {"fallback", "messages large enough for it that went by the socket"},
                {"segments", "pieces of shared memory to publish in"},
                {"segment_bytes", "and their bytes"},
                {"blocks", "in them: loans, and messages that somebody still needs"},
                {"held",
                 "received messages in shared memory that are still needed here, or of which "
                 "the daemon has not been told yet"},
                {NULL, NULL},
        };
        static PyStructSequence_Desc shm_stats = {
                .name = "ndbus.ShmStats",
                .doc = "Shared memory of a bus.",
                .fields = shm_stats_fields,
                .n_in_sequence = 6,
        };

        shm_stats_type = ndpy_add_counts_type(module, &shm_stats);
        if (!shm_stats_type)
                return -1;
        ndpy_bus_type = ndpy_add_type(module, &spec);
        return ndpy_bus_type ? 0 : -1;
}

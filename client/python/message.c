/* SPDX-License-Identifier: MIT */

/*
 * Message: what was received, or unpacked
 *
 * Its parts become Python objects when they are first asked for. Arrays keep their own memory alive and
 * not the message, so the message ends when the last reference to it does, which in a group says that
 * it is finished, whatever became of its arrays.
 */

#include <math.h>
#include "client/python/ndpy.h"

static PyTypeObject *message_type;

char ndpy_may_unpickle;

PyObject *
ndpy_message_new(struct ndbus_message *m, struct ndpy_bus *bus, PyObject *owner, bool may_unpickle)
{
        struct ndpy_message *self = PyObject_GC_New(struct ndpy_message, message_type);

        if (!self) {
                ndbus_message_free(m);
                return NULL;
        }
        self->m = m;
        Py_XINCREF(bus);
        self->bus = bus;
        self->owner = Py_XNewRef(owner);
        self->frames = NULL;
        self->arrays = NULL;
        self->meta = NULL;
        self->may_unpickle = may_unpickle;
        self->is_busy = false;
        PyObject_GC_Track(self);
        return (PyObject *)self;
}

static int message_traverse(PyObject *object, visitproc visit, void *arg)
{
        struct ndpy_message *self = (struct ndpy_message *)object;

        Py_VISIT(Py_TYPE(object));
        Py_VISIT(self->bus);
        Py_VISIT(self->owner);
        Py_VISIT(self->frames);
        Py_VISIT(self->arrays);
        Py_VISIT(self->meta);
        return 0;
}

static int message_clear(PyObject *object)
{
        struct ndpy_message *self = (struct ndpy_message *)object;

        Py_CLEAR(self->frames);
        Py_CLEAR(self->arrays);
        Py_CLEAR(self->meta);
        ndbus_message_free(self->m);
        self->m = NULL;
        Py_CLEAR(self->owner);
        Py_CLEAR(self->bus);
        return 0;
}

static void message_dealloc(PyObject *object)
{
        PyTypeObject *type = Py_TYPE(object);

        PyObject_GC_UnTrack(object);
        message_clear(object);
        PyObject_GC_Del(object);
        Py_DECREF(type);
}

/* The library's message, or NULL with an exception. */
static struct ndbus_message *message_get(PyObject *object)
{
        struct ndpy_message *self = (struct ndpy_message *)object;

        if (self->m && !self->is_busy)
                return self->m;
        PyErr_SetString(self->m ? PyExc_RuntimeError : PyExc_ValueError,
                        self->m ? "another thread is in a call of this message"
                                : "the message is finished");
        return NULL;
}

/* ------------------------------------------------------------------------------------- its arrays */

static PyObject *message_get_frames(PyObject *object, void *unused)
{
        struct ndpy_message *self = (struct ndpy_message *)object;
        const struct ndbus_array *arrays;
        PyObject *frames;
        size_t n;

        (void)unused;
        if (self->frames)
                return Py_NewRef(self->frames);
        if (!message_get(object))
                return NULL;
        n = ndbus_message_arrays(self->m, &arrays);
        frames = PyTuple_New((Py_ssize_t)n);
        for (size_t i = 0; frames && i < n; ++i) {
                struct ndpy_array *array = ndpy_array_new();

                if (!array || ndpy_view_from_message(&array->view, self->m, i, self->owner)) {
                        Py_XDECREF(array);
                        Py_CLEAR(frames);
                } else {
                        PyTuple_SET_ITEM(frames, (Py_ssize_t)i, (PyObject *)array);
                }
        }
        self->frames = frames;
        return Py_XNewRef(frames);
}

static PyObject *message_get_arrays(PyObject *object, void *unused)
{
        struct ndpy_message *self = (struct ndpy_message *)object;
        PyObject *frames, *arrays;
        Py_ssize_t n;

        if (self->arrays)
                return Py_NewRef(self->arrays);
        frames = message_get_frames(object, unused);
        if (!frames)
                return NULL;
        n = PyTuple_GET_SIZE(frames);
        arrays = PyList_New(n);
        for (Py_ssize_t i = 0; arrays && i < n; ++i) {
                PyObject *array = ndpy_array_best((struct ndpy_array *)PyTuple_GET_ITEM(frames, i));

                if (array)
                        PyList_SET_ITEM(arrays, i, array);
                else
                        Py_CLEAR(arrays);
        }
        Py_DECREF(frames);
        self->arrays = arrays;
        return Py_XNewRef(arrays);
}

static PyObject *message_get_array(PyObject *object, void *unused)
{
        PyObject *arrays = message_get_arrays(object, unused), *array = NULL;

        if (arrays && PyList_GET_SIZE(arrays) == 1)
                array = Py_NewRef(PyList_GET_ITEM(arrays, 0));
        else if (arrays)
                PyErr_Format(PyExc_ValueError, "the message has %zd arrays, not one: use arrays",
                             PyList_GET_SIZE(arrays));
        Py_XDECREF(arrays);
        return array;
}

static PyObject *message_own(PyObject *object, PyObject *unused)
{
        struct ndpy_message *self = (struct ndpy_message *)object;
        struct ndbus_message *m = message_get(object);
        int r;

        (void)unused;
        if (!m)
                return NULL;
        /* whatever else refers to these keeps the old memory; nothing new should */
        Py_CLEAR(self->arrays);
        Py_CLEAR(self->frames);
        self->is_busy = true;
        Py_BEGIN_ALLOW_THREADS r = ndbus_message_own(m);
        Py_END_ALLOW_THREADS self->is_busy = false;
        return r ? ndpy_raise(r) : Py_NewRef(object);
}

/* ----------------------------------------------------------------------------------- its header */

static PyObject *message_get_topic(PyObject *object, void *unused)
{
        struct ndbus_message *m = message_get(object);

        (void)unused;
        return m ? PyUnicode_FromString(ndbus_message_topic(m)) : NULL;
}

static PyObject *optional_string(const char *string)
{
        return string ? PyUnicode_FromString(string) : Py_NewRef(Py_None);
}

static PyObject *message_get_reply_topic(PyObject *object, void *unused)
{
        struct ndbus_message *m = message_get(object);

        (void)unused;
        return m ? optional_string(ndbus_message_reply(m)) : NULL;
}

static PyObject *message_get_encoding(PyObject *object, void *unused)
{
        struct ndbus_message *m = message_get(object);

        (void)unused;
        return m ? optional_string(ndbus_message_encoding(m)) : NULL;
}

static PyObject *message_get_meta(PyObject *object, void *unused)
{
        struct ndpy_message *self = (struct ndpy_message *)object;
        struct ndbus_message *m;
        const void *meta;
        size_t n_meta;
        int r;

        (void)unused;
        if (!self->meta) {
                m = message_get(object);
                if (!m)
                        return NULL;
                r = ndbus_message_check_meta(m);
                if (r)
                        return ndpy_raise(r);
                n_meta = ndbus_message_meta(m, &meta);
                self->meta = ndpy_meta_unpack(meta, n_meta);
        }
        return Py_XNewRef(self->meta);
}

static PyObject *message_get_source(PyObject *object, void *unused)
{
        struct ndbus_message *m = message_get(object);

        (void)unused;
        return m ? PyLong_FromUnsignedLongLong(ndbus_message_source(m)) : NULL;
}

static PyObject *message_get_sequence(PyObject *object, void *unused)
{
        struct ndbus_message *m = message_get(object);

        (void)unused;
        return m ? PyLong_FromUnsignedLongLong(ndbus_message_sequence(m)) : NULL;
}

static PyObject *message_get_time(PyObject *object, void *unused)
{
        struct ndbus_message *m = message_get(object);

        (void)unused;
        return m ? PyFloat_FromDouble((double)ndbus_message_time_ns(m) / 1e9) : NULL;
}

static PyObject *message_get_time_ns(PyObject *object, void *unused)
{
        struct ndbus_message *m = message_get(object);

        (void)unused;
        return m ? PyLong_FromUnsignedLongLong(ndbus_message_time_ns(m)) : NULL;
}

static PyObject *message_get_dropped(PyObject *object, void *unused)
{
        struct ndbus_message *m = message_get(object);

        (void)unused;
        if (!m)
                return NULL;
        if (ndbus_message_dropped(m) == NDBUS_UNKNOWN)
                return PyFloat_FromDouble(INFINITY);
        return PyLong_FromUnsignedLongLong(ndbus_message_dropped(m));
}

static PyObject *message_get_retained(PyObject *object, void *unused)
{
        struct ndbus_message *m = message_get(object);

        (void)unused;
        return m ? PyBool_FromLong(ndbus_message_retained(m)) : NULL;
}

static PyObject *message_get_redelivered(PyObject *object, void *unused)
{
        struct ndbus_message *m = message_get(object);

        (void)unused;
        return m ? PyBool_FromLong(ndbus_message_redelivered(m)) : NULL;
}

static PyObject *message_get_subscription(PyObject *object, void *unused)
{
        struct ndbus_message *m = message_get(object);

        (void)unused;
        return m ? PyLong_FromUnsignedLong(ndbus_message_subscription(m)) : NULL;
}

static PyObject *message_get_nbytes(PyObject *object, void *unused)
{
        struct ndbus_message *m = message_get(object);

        (void)unused;
        return m ? PyLong_FromUnsignedLongLong(ndbus_message_bytes(m)) : NULL;
}

static PyObject *message_get_may_unpickle(PyObject *object, void *unused)
{
        (void)unused;
        return PyBool_FromLong(((struct ndpy_message *)object)->may_unpickle);
}

static PyObject *message_repr(PyObject *object)
{
        struct ndpy_message *self = (struct ndpy_message *)object;
        const struct ndbus_array *arrays;

        if (!self->m)
                return PyUnicode_FromString("<ndbus.Message finished>");
        return PyUnicode_FromFormat("<ndbus.Message %s %llu: %zu arrays, %llu bytes>",
                                    ndbus_message_topic(self->m),
                                    (unsigned long long)ndbus_message_sequence(self->m),
                                    ndbus_message_arrays(self->m, &arrays),
                                    (unsigned long long)ndbus_message_bytes(self->m));
}

/* --------------------------------------------------------------------------- what is done with it */

static PyObject *message_object(PyObject *object, PyObject *unused)
{
        PyObject *function = ndpy_import("ndbus._objects", "load"), *result;

        (void)unused;
        if (!function)
                return NULL;
        result = PyObject_CallOneArg(function, object);
        Py_DECREF(function);
        return result;
}

static PyObject *message_finish(PyObject *object, PyObject *unused)
{
        struct ndpy_message *self = (struct ndpy_message *)object;

        (void)unused;
        if (self->is_busy) {
                message_get(object); /* says so */
                return NULL;
        }
        Py_CLEAR(self->frames);
        Py_CLEAR(self->arrays);
        Py_CLEAR(self->meta);
        ndbus_message_free(self->m);
        self->m = NULL;
        Py_RETURN_NONE;
}

static PyObject *message_enter(PyObject *object, PyObject *unused)
{
        (void)unused;
        return message_get(object) ? Py_NewRef(object) : NULL;
}

static PyObject *message_exit(PyObject *object, PyObject *args)
{
        (void)args;
        return message_finish(object, NULL);
}

static PyObject *message_reply(PyObject *object, PyObject *args, PyObject *keywords)
{
        static char *names[] = {"arrays", "meta", "timeout", NULL};
        struct ndpy_message *self = (struct ndpy_message *)object;
        struct ndpy_publish publish = {.options = NDBUS_PUBLISH_OPTIONS_INIT};
        struct ndbus_message *m;
        PyObject *arrays, *meta = Py_None, *result;

        if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|O$O&:reply", names, &arrays, &meta,
                                         ndpy_convert_timeout, &publish.options.timeout_ms))
                return NULL;
        if (!self->bus) {
                PyErr_SetString(PyExc_ValueError, "the message came from no bus");
                return NULL;
        }
        if (ndpy_publish_init(&publish, arrays, meta))
                return NULL;
        m = message_get(object); /* last: what is above may run anything */
        if (!m) {
                ndpy_publish_deinit(&publish);
                return NULL;
        }
        self->is_busy = true; /* another thread must not finish it meanwhile */
        result = ndpy_bus_publish(self->bus, NULL, m, &publish);
        self->is_busy = false;
        ndpy_publish_deinit(&publish);
        return result;
}

/* ---------------------------------------------------------------------------------------- the type */

PyDoc_STRVAR(
        message_doc,
        "A message that was received, or unpacked.\n\n"
        "arrays are NumPy arrays on the memory into which the message was received; each keeps its\n"
        "own memory alive, so keep one and forget the message if you like. frames are the same as\n"
        "ndbus.Array, for DLPack, for the buffer protocol, and for dtypes that NumPy does not have.\n\n"
        "The message of a group is finished, and not delivered to another member, when the last\n"
        "reference to it is gone, at the end of `with message:`, or by finish().");

static PyMethodDef message_methods[] = {
        {"own", message_own, METH_NOARGS,
         "own()\n--\n\nMake every array private and writable, by a copy where it is not; returns\n"
         "the message. Arrays that were taken before keep the memory that they have."},
        {"object", message_object, METH_NOARGS,
         "object()\n--\n\nThe object that publish_object() sent.\n\n"
         "Unpickling runs whatever code the publisher chose. So it is refused, with DeniedError,\n"
         "unless the subscription was made with objects=\"pickle\"."},
        {"reply", (PyCFunction)(void (*)(void))message_reply, METH_VARARGS | METH_KEYWORDS,
         "reply(arrays, meta=None, *, timeout=5.0)\n--\n\nAnswer a request, on the bus that it "
         "came by."},
        {"finish", message_finish, METH_NOARGS,
         "finish()\n--\n\nEnd the message now. Arrays that were taken from it stay valid."},
        {"__enter__", message_enter, METH_NOARGS, NULL},
        {"__exit__", message_exit, METH_VARARGS, NULL},
        {NULL, NULL, 0, NULL},
};

static PyGetSetDef message_attributes[] = {
        {"arrays", message_get_arrays, NULL,
         "list of its arrays: NumPy arrays, without a copy; an ndbus.Array where NumPy is missing "
         "or has no such dtype",
         NULL},
        {"array", message_get_array, NULL, "its one array; ValueError if it has not exactly one",
         NULL},
        {"frames", message_get_frames, NULL, "tuple of its arrays as ndbus.Array", NULL},
        {"topic", message_get_topic, NULL, "what it was published on", NULL},
        {"meta", message_get_meta, NULL, "the publisher's dict; empty if there was none", NULL},
        {"encoding", message_get_encoding, NULL,
         "how to read the frames when they are not plain arrays, or None", NULL},
        {"reply_topic", message_get_reply_topic, NULL,
         "where an answer is awaited, or None; reply() answers", NULL},
        {"source", message_get_source, NULL,
         "the publishing connection: a number that no other has; a restart is a new source", NULL},
        {"sequence", message_get_sequence, NULL,
         "counts the messages of one source on one topic, from 1", NULL},
        {"time", message_get_time, NULL,
         "when it was published, in seconds as of time.time(), by the publisher's clock", NULL},
        {"time_ns", message_get_time_ns, NULL, "the same in nanoseconds", NULL},
        {"dropped", message_get_dropped, NULL,
         "how many messages of the subscription were lost just before this one; ndbus.UNKNOWN, "
         "which is infinity, after a reconnect",
         NULL},
        {"retained", message_get_retained, NULL,
         "whether it is a value from before the subscription", NULL},
        {"redelivered", message_get_redelivered, NULL,
         "whether another member of the group was sent it before and did not finish it", NULL},
        {"subscription", message_get_subscription, NULL, "id of the subscription", NULL},
        {"nbytes", message_get_nbytes, NULL, "bytes of all arrays", NULL},
        {"may_unpickle", message_get_may_unpickle, NULL,
         "whether its subscription was made with objects=\"pickle\"", NULL},
        {NULL, NULL, NULL, NULL, NULL},
};

int ndpy_message_init(PyObject *module)
{
        static PyType_Slot slots[] = {
                {Py_tp_doc, (void *)(uintptr_t)message_doc},
                {Py_tp_dealloc, message_dealloc},
                {Py_tp_traverse, message_traverse},
                {Py_tp_clear, message_clear},
                {Py_tp_repr, message_repr},
                {Py_tp_methods, message_methods},
                {Py_tp_getset, message_attributes},
                {0, NULL},
        };
        static PyType_Spec spec = {.name = "ndbus.Message",
                                   .basicsize = sizeof(struct ndpy_message),
                                   .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                                   .slots = slots};

        message_type = ndpy_add_type(module, &spec);
        if (message_type)
                message_type->tp_new = NULL; /* made by receiving alone */
        return message_type ? 0 : -1;
}

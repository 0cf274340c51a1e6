/* SPDX-License-Identifier: MIT */

/*
 * Exceptions
 *
 * One class for each row of the library's table of errors, all of them under ndbus.Error, and each also
 * under the built-in class that a Python programmer would catch, if there is one. A code that gets a row
 * in the table and none here does not compile.
 *
 * Under TimeoutError is what ends a wait that may be begun again, and nothing else: `except TimeoutError:
 * continue` must not pass over what is said once, such as the end of a subscription.
 */

#include <stdarg.h>
#include "client/python/ndpy.h"

/* NDPY_ERROR_name: the class, and the built-in one that it is too, or NULL */
#define NDPY_ERROR_NOMEM         "OutOfMemoryError", &PyExc_MemoryError
#define NDPY_ERROR_INVAL         "InvalidError", &PyExc_ValueError
#define NDPY_ERROR_NOTCONN       "NotConnectedError", &PyExc_ConnectionError
#define NDPY_ERROR_WOULDBLOCK    "WouldBlockError", &PyExc_TimeoutError
#define NDPY_ERROR_TIMEDOUT      "TimedOutError", &PyExc_TimeoutError
#define NDPY_ERROR_FORKED        "ForkedError", &PyExc_RuntimeError
#define NDPY_ERROR_ENDED         "EndedError", &PyExc_EOFError
#define NDPY_ERROR_SYSTEM        "SystemCallError", &PyExc_OSError
#define NDPY_ERROR_INTERRUPTED   "InterruptedError", &PyExc_InterruptedError
#define NDPY_ERROR_DEVICE        "DeviceError", &PyExc_BufferError
#define NDPY_ERROR_ENDIAN        "EndianError", &PyExc_BufferError
#define NDPY_ERROR_PROTOCOL      "ProtocolError", &PyExc_ConnectionError
#define NDPY_ERROR_VERSION       "VersionError", &PyExc_ConnectionError
#define NDPY_ERROR_SERVER_FULL   "ServerFullError", &PyExc_ConnectionRefusedError
#define NDPY_ERROR_HEADER        "HeaderError", &PyExc_ValueError
#define NDPY_ERROR_CREDIT        "CreditError", &PyExc_ConnectionError
#define NDPY_ERROR_FDS           "FdsError", &PyExc_ConnectionError
#define NDPY_ERROR_CHUNK         "ChunkError", &PyExc_ConnectionError
#define NDPY_ERROR_HANDSHAKE     "HandshakeError", &PyExc_ConnectionError
#define NDPY_ERROR_SHUTDOWN      "ShutdownError", &PyExc_ConnectionError
#define NDPY_ERROR_DEAD          "DeadError", &PyExc_ConnectionError
#define NDPY_ERROR_TOO_BIG       "TooBigError", &PyExc_ValueError
#define NDPY_ERROR_LENGTH        "LengthError", &PyExc_ValueError
#define NDPY_ERROR_SHAPE         "ShapeError", &PyExc_ValueError
#define NDPY_ERROR_DTYPE         "DTypeError", &PyExc_TypeError
#define NDPY_ERROR_TOPIC         "TopicError", &PyExc_ValueError
#define NDPY_ERROR_DENIED        "DeniedError", &PyExc_PermissionError
#define NDPY_ERROR_NO_SPACE      "NoSpaceError", &PyExc_MemoryError
#define NDPY_ERROR_NO_SUBSCRIBER "NoSubscriberError", &PyExc_LookupError
#define NDPY_ERROR_STALLED       "StalledError", NULL
#define NDPY_ERROR_RETAIN_FULL   "RetainFullError", &PyExc_MemoryError
#define NDPY_ERROR_UNSUPPORTED   "UnsupportedError", &PyExc_NotImplementedError
#define NDPY_ERROR_META          "MetaError", &PyExc_ValueError
#define NDPY_ERROR_LIMIT         "LimitError", &PyExc_ValueError
#define NDPY_ERROR_GROUP         "GroupError", &PyExc_ValueError
#define NDPY_ERROR_SLOW          "SlowError", &PyExc_BufferError
#define NDPY_ERROR_OVERFLOW      "QueueOverflowError", &PyExc_BufferError
#define NDPY_ERROR_NO_FD         "NoFdError", &PyExc_OSError
#define NDPY_ERROR_SUBSCRIPTION  "SubscriptionError", &PyExc_LookupError
#define NDPY_ERROR_SHM           "ShmError", &PyExc_OSError
#define NDPY_ERROR_CORRUPT       "CorruptError", &PyExc_ValueError
#define NDPY_ERROR_TRUNCATED     "TruncatedError", &PyExc_EOFError

static const struct {
        int code;
        const char *name;
        PyObject **base;
} errors[] = {

#define NDPY_ERROR_ROW(_name, _num, _text) {-(_num), NDPY_ERROR_##_name},
        NDBUS_ERROR_MAP(NDPY_ERROR_ROW)
#undef NDPY_ERROR_ROW
};

#define N_ERRORS (sizeof(errors) / sizeof(errors[0]))

static PyObject *error_class;
static PyObject *error_classes[N_ERRORS];

PyDoc_STRVAR(
        error_doc,
        "Base of everything that ndbus raises about messages, connections and data.\n\n"
        "code is the number and name the symbol of the C library's error. Each error has a\n"
        "class of its own, which is also a subclass of the built-in that fits: TimedOutError\n"
        "is a TimeoutError, NotConnectedError a ConnectionError, DTypeError a TypeError.\n\n"
        "A TimeoutError, TimedOutError or WouldBlockError, is a wait that has run out, and may be\n"
        "waited again. The end of a subscription never is one: SlowError and QueueOverflowError\n"
        "are BufferErrors.");

/* The class of errors[i]. */
static PyObject *error_new_class(size_t i)
{
        PyObject *bases, *dict, *class;
        char name[64];

        snprintf(name, sizeof(name), "ndbus.%s", errors[i].name);
        bases = errors[i].base ? PyTuple_Pack(2, error_class, *errors[i].base)
                               : PyTuple_Pack(1, error_class);
        dict = Py_BuildValue("{s:i,s:s}", "code", errors[i].code, "name",
                             ndbus_errname(errors[i].code));
        class = bases && dict ? PyErr_NewExceptionWithDoc(name, ndbus_strerror(errors[i].code),
                                                          bases, dict)
                              : NULL;
        Py_XDECREF(bases);
        Py_XDECREF(dict);
        return class;
}

int ndpy_error_init(PyObject *module)
{
        PyObject *dict = Py_BuildValue("{s:i,s:s}", "code", 0, "name", "");

        error_class = dict ? PyErr_NewExceptionWithDoc("ndbus.Error", error_doc, NULL, dict) : NULL;
        Py_XDECREF(dict);
        if (!error_class || PyModule_AddObjectRef(module, "Error", error_class))
                return -1;
        for (size_t i = 0; i < N_ERRORS; ++i) {
                error_classes[i] = error_new_class(i);
                if (!error_classes[i] ||
                    PyModule_AddObjectRef(module, errors[i].name, error_classes[i]))
                        return -1;
        }
        return 0;
}

/* Borrowed; the base of all for a code that a newer library has. */
static PyObject *error_find(int error)
{
        for (size_t i = 0; i < N_ERRORS; ++i)
                if (errors[i].code == error)
                        return error_classes[i];
        return error_class;
}

bool ndpy_error_is_set(int error)
{
        return PyErr_Occurred() && PyErr_ExceptionMatches(error_find(error));
}

PyObject *ndpy_raise(int error)
{
        const char *detail = ndbus_detail();

        if (PyErr_Occurred())
                return NULL;
        if (detail[0])
                return PyErr_Format(error_find(error), "%s (%s)", detail, ndbus_strerror(error));
        PyErr_SetString(error_find(error), ndbus_strerror(error));
        return NULL;
}

PyObject *ndpy_raise_text(int error, const char *format, ...)
{
        PyObject *text;
        va_list args;

        va_start(args, format);
        text = PyUnicode_FromFormatV(format, args);
        va_end(args);
        if (text) {
                PyErr_SetObject(error_find(error), text);
                Py_DECREF(text);
        }
        return NULL;
}

PyObject *ndpy_raise_value(int error, const char *name, PyObject *value, const char *format, ...)
{
        PyObject *text = PyObject_Repr(value);
        const char *utf8 = text ? PyUnicode_AsUTF8(text) : NULL;
        char rule[160];
        va_list args;

        PyErr_Clear(); /* there are more digits than Python likes to write */
        va_start(args, format);
        vsnprintf(rule, sizeof(rule), format, args);
        va_end(args);
        ndpy_raise_text(error, "%s: is %.100s, %s", name, utf8 ? utf8 : "longer than can be said",
                        rule);
        Py_XDECREF(text);
        return NULL;
}

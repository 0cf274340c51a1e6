/* SPDX-License-Identifier: MIT */

/*
 * Loan: an array that is written where subscribers read it
 *
 * Once it is published nobody may write there, and a NumPy array cannot be taken back from whoever has
 * one. So the loan itself is what the application gets; it hands out arrays, and publishes only when
 * all of them are gone. To know that, the memory has one Array, which nobody but the loan holds and
 * everything that is handed out keeps alive: if the loan's reference is the last, nobody can write.
 * Counting exported buffers would not do, because NumPy gives the buffer back and keeps the object.
 *
 * A loan that is not published stays valid as long as somebody has an array of it. The last one may go
 * on any thread, and while the bus is in a call on another; then the call gives the loan back at its end.
 */

#include "client/python/ndpy.h"

#define MEMORY_NAME "ndbus loan"

/* What a loan's arrays depend on; within a capsule, which they own. */
struct ndpy_memory {
        struct ndpy_memory *next; /* of those that the bus gives back at the end of its call */
        struct ndpy_bus *bus;
        struct ndbus_loan *loan; /* NULL: published */
};

struct ndpy_loan {
        PyObject_HEAD struct ndpy_bus *bus;
        struct ndpy_array *array; /* NULL: over, or not begun */
        struct ndpy_memory *memory;
        struct ndbus_publish_options
                options; /* its strings, and topic, are those of args, keywords */
        const char *topic;
        PyObject *args;
        PyObject *keywords;
        PyObject *meta;
};

static PyTypeObject *loan_type;

/* ------------------------------------------------------------------------------------- its memory */

static void memory_free(struct ndpy_memory *memory)
{
        ndbus_loan_cancel(memory->loan);
        Py_DECREF(memory->bus);
        PyMem_Free(memory);
}

void ndpy_loan_give_back(struct ndpy_bus *bus)
{
        while (bus->ended_loans) {
                struct ndpy_memory *memory = bus->ended_loans;

                bus->ended_loans = memory->next;
                memory_free(memory);
        }
}

static void memory_ended(PyObject *capsule)
{
        struct ndpy_memory *memory = PyCapsule_GetPointer(capsule, MEMORY_NAME);

        if (memory->loan && memory->bus->is_busy) {
                memory->next = memory->bus->ended_loans;
                memory->bus->ended_loans = memory;
        } else {
                memory_free(memory);
        }
}

/* An integer, or a sequence of them. */
static int view_set_shape(struct ndpy_view *view, PyObject *shape)
{
        PyObject *dims = PyIndex_Check(shape)
                                 ? PyTuple_Pack(1, shape)
                                 : PySequence_Fast(shape, "shape: must be an int or a sequence");
        int r = dims ? ndpy_view_set_ndim(view, PySequence_Fast_GET_SIZE(dims)) : -1;

        for (int32_t i = 0; !r && i < view->array.ndim; ++i)
                r = ndpy_convert_dim(PySequence_Fast_GET_ITEM(dims, i), "shape", &view->dims[i]);
        Py_XDECREF(dims);
        return r;
}

/* Asks the library for memory of this shape, and makes it the array's. */
static int loan_take(struct ndpy_loan *self, struct ndpy_array *array)
{
        struct ndbus_array asked = array->view.array;
        struct ndpy_memory *memory;
        int r;

        memory = PyMem_Calloc(1, sizeof(*memory));
        if (!memory) {
                PyErr_NoMemory();
                return -1;
        }
        memory->bus = (struct ndpy_bus *)Py_NewRef((PyObject *)self->bus);
        array->view.owner = PyCapsule_New(memory, MEMORY_NAME, memory_ended);
        if (!array->view.owner) {
                memory_free(memory);
                return -1;
        }
        array->view.keeper = NDPY_KEEPER_OBJECT;
        asked.strides =
                NULL; /* C order; what they are is known when the library accepts the shape */
        if (ndpy_bus_enter(self->bus))
                return -1;
        r = ndbus_loan(self->bus->bus, &asked, 1, &memory->loan);
        ndpy_bus_leave(self->bus);
        if (r || PyErr_Occurred()) {
                ndpy_raise(r);
                return -1;
        }
        array->view.array.data = asked.data;
        ndpy_view_fill_strides(&array->view);
        self->memory = memory;
        return 0;
}

static int loan_begin(struct ndpy_loan *self, PyObject *shape, PyObject *any_dtype)
{
        struct ndpy_array *array = ndpy_array_new();
        struct ndpy_dtype *dtype = array ? ndpy_dtype_from_any(any_dtype) : NULL;

        if (dtype)
                ndpy_view_set_dtype(&array->view, dtype);
        if (!dtype || view_set_shape(&array->view, shape) || loan_take(self, array)) {
                Py_XDECREF(array);
                return -1;
        }
        self->array = array;
        return 0;
}

PyObject *ndpy_loan(PyObject *bus, PyObject *args, PyObject *keywords)
{
        static char *names[] = {"topic", "shape", "dtype",     "meta",     "retain", "timeout",
                                "reply", "more",  "if_wanted", "encoding", NULL};
        struct ndbus_publish_options options = NDBUS_PUBLISH_OPTIONS_INIT;
        PyObject *shape, *dtype = NULL, *meta = Py_None, *name = NULL;
        int retain = 0, more = 0, if_wanted = 0, r;
        struct ndpy_loan *self;
        const char *topic;

        if (!PyArg_ParseTupleAndKeywords(args, keywords, "sO|OO$pO&zppz:loan", names, &topic,
                                         &shape, &dtype, &meta, &retain, ndpy_convert_timeout,
                                         &options.timeout_ms, &options.reply, &more, &if_wanted,
                                         &options.encoding))
                return NULL;
        options.retain = (uint8_t)retain;
        options.more = (uint8_t)more;
        options.if_wanted = (uint8_t)if_wanted;
        self = PyObject_GC_New(struct ndpy_loan, loan_type);
        if (!self)
                return NULL;
        self->bus = (struct ndpy_bus *)Py_NewRef(bus);
        self->array = NULL;
        self->memory = NULL;
        self->options = options;
        self->topic = topic;
        self->args = Py_NewRef(args);
        self->keywords = keywords ? PyDict_Copy(keywords) : NULL;
        self->meta = Py_NewRef(meta);
        PyObject_GC_Track(self);
        if (!dtype)
                dtype = name = PyUnicode_FromString("float64");
        r = !dtype || (keywords && !self->keywords) || loan_begin(self, shape, dtype);
        Py_XDECREF(name);
        if (r)
                Py_CLEAR(self);
        return (PyObject *)self;
}

static int loan_traverse(PyObject *object, visitproc visit, void *arg)
{
        struct ndpy_loan *self = (struct ndpy_loan *)object;

        Py_VISIT(Py_TYPE(object));
        Py_VISIT(self->bus);
        Py_VISIT(self->array);
        Py_VISIT(self->args);
        Py_VISIT(self->keywords);
        Py_VISIT(self->meta);
        return 0;
}

static int loan_clear(PyObject *object)
{
        struct ndpy_loan *self = (struct ndpy_loan *)object;

        Py_CLEAR(self->array);
        Py_CLEAR(self->args);
        Py_CLEAR(self->keywords);
        Py_CLEAR(self->meta);
        Py_CLEAR(self->bus);
        return 0;
}

static void loan_dealloc(PyObject *object)
{
        PyTypeObject *type = Py_TYPE(object);

        PyObject_GC_UnTrack(object);
        loan_clear(object);
        PyObject_GC_Del(object);
        Py_DECREF(type);
}

/* ------------------------------------------------------------------------------------ writing to it */

/* Borrowed; NULL with ValueError when it is over. */
static struct ndpy_array *loan_get(PyObject *object)
{
        struct ndpy_loan *self = (struct ndpy_loan *)object;

        if (!self->array)
                PyErr_SetString(PyExc_ValueError,
                                "the loan is over: it was published or cancelled");
        return self->array;
}

static PyObject *loan_get_array(PyObject *object, void *unused)
{
        struct ndpy_array *array = loan_get(object);

        (void)unused;
        return array ? ndpy_array_best(array) : NULL;
}

static PyObject *loan_get_frame(PyObject *object, void *unused)
{
        (void)unused;
        return Py_XNewRef((PyObject *)loan_get(object));
}

static int loan_set_item(PyObject *object, PyObject *key, PyObject *value)
{
        PyObject *array = loan_get_array(object, NULL);
        int r = -1;

        if (array)
                r = value ? PyObject_SetItem(array, key, value) : PyObject_DelItem(array, key);
        Py_XDECREF(array);
        return r;
}

/* The buffer is the Array's, so it counts as an array that was handed out. */
static int loan_getbuffer(PyObject *object, Py_buffer *buffer, int flags)
{
        struct ndpy_array *array = loan_get(object);

        buffer->obj = NULL;
        return array ? PyObject_GetBuffer((PyObject *)array, buffer, flags) : -1;
}

/* ------------------------------------------------------------------------------------- publishing */

static PyObject *loan_enter(PyObject *object, PyObject *unused)
{
        (void)unused;
        return loan_get(object) ? Py_NewRef(object) : NULL;
}

/* With the array taken out of the loan: nobody gets at the memory any more. */
static PyObject *loan_publish(struct ndpy_loan *self, struct ndpy_array *array)
{
        PyObject *meta = NULL;
        int r;

        if (self->meta != Py_None) {
                meta = ndpy_meta_pack(self->meta);
                if (!meta)
                        return NULL;
                self->options.meta = PyBytes_AS_STRING(meta);
                self->options.n_meta = (size_t)PyBytes_GET_SIZE(meta);
        }
        if (Py_REFCNT(array) > 1) {
                PyErr_SetString(PyExc_BufferError,
                                "the loan was not published: arrays of it, or views of them, are "
                                "still there and could be written; delete them within the block");
                Py_XDECREF(meta);
                return NULL;
        }
        if (ndpy_bus_enter(self->bus)) {
                Py_XDECREF(meta);
                return NULL;
        }
        r = ndbus_publish_loan(self->bus->bus, self->topic, self->memory->loan, &self->options);
        if (!r)
                self->memory->loan = NULL;
        ndpy_bus_leave(self->bus);
        Py_XDECREF(meta);
        if (r || PyErr_Occurred())
                return ndpy_raise(r);
        Py_RETURN_NONE;
}

static PyObject *loan_exit(PyObject *object, PyObject *args)
{
        struct ndpy_loan *self = (struct ndpy_loan *)object;
        PyObject *type = PyTuple_Size(args) > 0 ? PyTuple_GET_ITEM(args, 0) : Py_None;
        struct ndpy_array *array = loan_get(object);
        PyObject *result;

        if (!array)
                return NULL;
        self->array = NULL;
        result = type == Py_None ? loan_publish(self, array) : Py_NewRef(Py_None);
        Py_DECREF(array);
        return result;
}

/* ---------------------------------------------------------------------------------------- the type */

PyDoc_STRVAR(
        loan_doc,
        "An array to be written where subscribers read it; Bus.loan() makes one.\n\n"
        "    with bus.loan(\"camera\", (480, 640), \"uint16\", meta) as a:\n"
        "        a[...] = x                      # any index that NumPy knows\n"
        "        np.add(x, y, out=a.array)       # or where an array is needed\n\n"
        "It is published when the block ends, and cancelled if by an exception. Others read it\n"
        "then, so nothing may be left that could write: if an array of the loan, a view of one, a\n"
        "tensor or a memoryview still exists, the end of the block raises BufferError and nothing\n"
        "is published. Names that were given to such arrays must be deleted within the block. The\n"
        "loan itself may be kept; it is of no use afterwards. What is not published may be used as\n"
        "long as it is kept.");

static PyMethodDef loan_methods[] = {
        {"__enter__", loan_enter, METH_NOARGS, NULL},
        {"__exit__", loan_exit, METH_VARARGS, NULL},
        {NULL, NULL, 0, NULL},
};

static PyGetSetDef loan_attributes[] = {
        {"array", loan_get_array, NULL,
         "a new NumPy array on the memory, to be gone when the block ends; an ndbus.Array where "
         "NumPy is missing or has no such dtype",
         NULL},
        {"frame", loan_get_frame, NULL,
         "the same as ndbus.Array, for DLPack; to be gone when the block ends", NULL},
        {NULL, NULL, NULL, NULL, NULL},
};

int ndpy_loan_init(PyObject *module)
{
        static PyType_Slot slots[] = {
                {Py_tp_doc, (void *)(uintptr_t)loan_doc},
                {Py_tp_dealloc, loan_dealloc},
                {Py_tp_traverse, loan_traverse},
                {Py_tp_clear, loan_clear},
                {Py_tp_methods, loan_methods},
                {Py_tp_getset, loan_attributes},
                {Py_mp_ass_subscript, loan_set_item},
                {Py_bf_getbuffer, loan_getbuffer},
                {0, NULL},
        };
        static PyType_Spec spec = {.name = "ndbus.Loan",
                                   .basicsize = sizeof(struct ndpy_loan),
                                   .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                                   .slots = slots};

        loan_type = ndpy_add_type(module, &spec);
        if (!loan_type)
                return -1;
        loan_type->tp_new = NULL; /* Bus.loan() makes them */
        return 0;
}

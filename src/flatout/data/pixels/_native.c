/* CPython glue: checks and locks every buffer, lets go of the GIL, and calls native/. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#include "native/native.h"

#define MAX_SIZE 16384
#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

static PyObject *fail(PyObject *kind, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    PyErr_FormatV(kind, format, arguments);
    va_end(arguments);
    return NULL;
}

/* C-contiguous, of one of the item codes of `codes`, and of exactly `items` items (any number if negative).
 * True with `view` untouched for None. */
static bool lock(PyObject *object, Py_buffer *view, const char *name, const char *codes, Py_ssize_t items,
                 bool writable) {
    if (object == Py_None) return true;
    if (PyObject_GetBuffer(object, view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0)) != 0)
        return false;
    const char *format = view->format ? view->format : "B";
    if (*format == '@' || *format == '=') format++;
    if (!*format || format[1] || !strchr(codes, *format))
        return fail(PyExc_TypeError, "%s has items of format %s, expected one of %s", name, format, codes);
    if (items >= 0 && view->len != items * view->itemsize)
        return fail(PyExc_ValueError, "%s has %zd items, expected %zd", name, view->len / view->itemsize, items);
    return true;
}

static bool read_scale_bias(PyObject *object, float scale[3], float bias[3]) {
    Py_buffer view = {0};
    bool ok = lock(object, &view, "scale_bias", "fd", 6, false);
    if (ok && !view.obj) ok = fail(PyExc_TypeError, "scale_bias must be 6 floats when floats are written");
    for (int i = 0; ok && i < 6; i++) {
        double value = view.itemsize == 8 ? ((double *)view.buf)[i] : (double)((float *)view.buf)[i];
        (i < 3 ? scale : bias)[i % 3] = (float)value;
    }
    if (view.obj) PyBuffer_Release(&view);
    return ok;
}

/* Everything a slice borrows from Python, so that one function can give it all back. */
typedef struct {
    slice s;
    source *sources;
    size_t objects; /* lent by Python for the sources: one for each, or a few that all of them lie in */
    Py_buffer *source_views;
    PyObject **paths; /* encoded */
    int *fds;         /* of open files and folders, else -1; the caller's list keeps them open */
    arena keep;
    Py_buffer which, offsets, lengths, raw_shapes, geometry, out, status, keep_rows, arena_views[3], digests;
} borrowed;

static const uint8_t nothing;

static bool borrow_source(borrowed *b, PyObject *item, Py_ssize_t i) {
    if (item == Py_None || PyExceptionInstance_Check(item)) return true;
    if (PyUnicode_Check(item)) {
        if (!PyUnicode_FSConverter(item, &b->paths[i])) return false; /* refuses an embedded NUL */
        b->sources[i] = (source){.kind = AT_PATH, .path = PyBytes_AsString(b->paths[i]), .fd = AT_FDCWD};
        return true;
    }
    if (PyObject_GetBuffer(item, &b->source_views[i], PyBUF_SIMPLE) != 0) return false;
    b->sources[i] = (source){.kind = IN_MEMORY, .data = b->source_views[i].len ? b->source_views[i].buf : &nothing,
                             .bytes = (size_t)b->source_views[i].len};
    return true;
}

static bool reserve_sources(borrowed *b, Py_ssize_t count, Py_ssize_t objects) {
    b->sources = PyMem_Calloc((size_t)count + 1, sizeof *b->sources);
    b->source_views = PyMem_Calloc((size_t)objects + 1, sizeof *b->source_views);
    b->paths = PyMem_Calloc((size_t)objects + 1, sizeof *b->paths);
    b->fds = PyMem_Calloc((size_t)objects + 1, sizeof *b->fds);
    b->objects = (size_t)objects;
    b->s.sources = b->sources;
    b->s.count = (size_t)count;
    return (b->sources && b->source_views && b->paths && b->fds) || PyErr_NoMemory();
}

/* A name in a folder, ended by a zero byte, and the bytes that its file had. */
static bool name_file(source *to, const Py_buffer *names, int fd, int64_t offset, int64_t length) {
    if (offset >= names->len || !memchr((const char *)names->buf + offset, 0, (size_t)(names->len - offset))) return false;
    *to = (source){.kind = AT_PATH, .path = (const char *)names->buf + offset, .fd = fd, .bytes = (size_t)length};
    return true;
}

static bool cut_extents(borrowed *b, size_t bases) {
    const int32_t *which = b->which.buf;
    const int64_t *offsets = b->offsets.buf, *lengths = b->lengths.buf;
    for (size_t i = 0; i < b->s.count; i++) {
        int64_t base = which[i], offset = offsets[i], length = lengths[i]; /* read once: only these are checked */
        if (base < 0 || (size_t)base >= bases || offset < 0 || length < 0)
            return fail(PyExc_ValueError, "extent %zu lies in none of the buffers and files", i);
        if (b->source_views[base].obj && b->fds[base] >= 0) {
            if (!name_file(&b->sources[i], &b->source_views[base], b->fds[base], offset, length))
                return fail(PyExc_ValueError, "extent %zu is no name in its folder", i);
            continue;
        }
        if (!b->source_views[base].obj) {
            b->sources[i] = (source){.kind = IN_FILE, .fd = b->fds[base], .offset = offset, .bytes = (size_t)length};
            continue;
        }
        int64_t left = b->source_views[base].len - offset;
        if (length > left) length = left > 0 ? left : 0; /* of a file that became shorter: its end is judged as damage */
        b->sources[i] = (source){.kind = IN_MEMORY,
                                 .data = length ? (const uint8_t *)b->source_views[base].buf + offset : &nothing,
                                 .bytes = (size_t)length};
    }
    return true;
}

/* A buffer; an open file; or a pair of an open folder and names. */
static bool borrow_base(borrowed *b, PyObject *base, Py_ssize_t i) {
    PyObject *file = base, *bytes = base;
    b->fds[i] = -1;
    bool is_folder = PyTuple_Check(base);
    if (is_folder && !PyArg_ParseTuple(base, "OO:folder", &file, &bytes)) return false;
    if (is_folder || !PyObject_CheckBuffer(base))
        if ((b->fds[i] = PyObject_AsFileDescriptor(file)) < 0) return false;
    if (!is_folder && b->fds[i] >= 0) return true;
    return PyObject_GetBuffer(bytes, &b->source_views[i], PyBUF_SIMPLE) == 0;
}

static bool borrow_extents(borrowed *b, PyObject *tuple) {
    PyObject *bases, *which, *offsets, *lengths;
    if (!PyArg_ParseTuple(tuple, "OOOO:sources", &bases, &which, &offsets, &lengths)) return false;
    if (!PyList_Check(bases) || which == Py_None || offsets == Py_None || lengths == Py_None)
        return fail(PyExc_TypeError, "extents are a list of buffers or files, and three arrays");
    if (!lock(offsets, &b->offsets, "offsets", "lq", -1, false)) return false;
    Py_ssize_t count = b->offsets.len / 8, objects = PyList_Size(bases);
    if (!lock(lengths, &b->lengths, "lengths", "lq", count, false) || !lock(which, &b->which, "which", "il", count, false))
        return false;
    if (b->offsets.itemsize != 8 || b->lengths.itemsize != 8 || b->which.itemsize != 4)
        return fail(PyExc_TypeError, "offsets and lengths must be int64, which int32");
    if (!reserve_sources(b, count, objects)) return false;
    for (Py_ssize_t i = 0; i < objects; i++) {
        PyObject *base = PyList_GetItem(bases, i);
        if (!base || !borrow_base(b, base, i)) return false;
    }
    return cut_extents(b, (size_t)objects);
}

static bool borrow_sources(borrowed *b, PyObject *list) {
    if (PyTuple_Check(list)) return borrow_extents(b, list);
    if (!PyList_Check(list)) return fail(PyExc_TypeError, "sources must be a list, or a tuple of extents");
    Py_ssize_t count = PyList_Size(list);
    if (!reserve_sources(b, count, count)) return false;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PyList_GetItem(list, i); /* checked: a buffer's exporter may run code that shrinks the list */
        if (!item) return false;
        Py_INCREF(item);
        bool ok = borrow_source(b, item, i);
        Py_DECREF(item);
        if (!ok) return false;
    }
    return true;
}

static bool check_geometry(const slice *s) {
    for (size_t i = 0; i < s->count; i++) {
        if (s->sources[i].kind == NOTHING) continue;
        const char *fault = geometry_fault(s->geometry + i * GEOMETRY_COLUMNS);
        if (fault) return fail(PyExc_ValueError, "geometry row %zu: %s", i, fault);
    }
    return true;
}

static void give_back(borrowed *b) {
    for (size_t i = 0; i < b->objects; i++) {
        if (b->source_views && b->source_views[i].obj) PyBuffer_Release(&b->source_views[i]);
        if (b->paths) Py_XDECREF(b->paths[i]);
    }
    Py_buffer *all[] = {&b->which, &b->offsets,   &b->lengths,        &b->raw_shapes,     &b->geometry,      &b->out,
                        &b->status, &b->keep_rows, &b->arena_views[0], &b->arena_views[1], &b->arena_views[2],
                        &b->digests};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]->obj) PyBuffer_Release(all[i]);
    PyMem_Free(b->sources);
    PyMem_Free(b->source_views);
    PyMem_Free(b->paths);
    PyMem_Free(b->fds);
}

/* An arena as Python has it: pixels, index (int64 pairs), bytes used (and one more int64, ours), and None or their file. */
static bool borrow_arena(PyObject *tuple, Py_buffer views[3], arena *a) {
    PyObject *pixels, *index, *used, *file;
    int fd = -1;
    if (!PyTuple_Check(tuple)) return fail(PyExc_TypeError, "an arena is a tuple of pixels, index, bytes used and file");
    if (!PyArg_ParseTuple(tuple, "OOOO:arena", &pixels, &index, &used, &file)) return false;
    if (file != Py_None && (fd = PyObject_AsFileDescriptor(file)) < 0) return false;
    if (pixels == Py_None || index == Py_None || used == Py_None)
        return fail(PyExc_TypeError, "pixels, index and bytes used cannot be None");
    if (!lock(pixels, &views[0], "pixels", "B", -1, true) || !lock(index, &views[1], "index", "lq", -1, true) ||
        !lock(used, &views[2], "bytes used", "lq", 2, true))
        return false;
    if (views[1].itemsize != 8 || views[2].itemsize != 8)
        return fail(PyExc_TypeError, "index and bytes used must be int64");
    *a = (arena){.pixels = views[0].buf, .capacity = views[0].len, .index = views[1].buf,
                 .rows = views[1].len / (Py_ssize_t)sizeof *a->index, .used = views[2].buf,
                 .small_stretches = (int64_t *)views[2].buf + 1, .fd = fd};
    return true;
}

static bool borrow_keep(borrowed *b, PyObject *keep) {
    PyObject *tuple, *rows;
    if (keep == Py_None) return true;
    if (!PyTuple_Check(keep)) return fail(PyExc_TypeError, "keep must be a tuple of an arena and rows");
    if (!PyArg_ParseTuple(keep, "OO:keep", &tuple, &rows)) return false;
    if (rows == Py_None) return fail(PyExc_TypeError, "rows cannot be None");
    if (!lock(rows, &b->keep_rows, "rows", "lq", (Py_ssize_t)b->s.count, false) ||
        !borrow_arena(tuple, b->arena_views, &b->keep))
        return false;
    if (b->keep_rows.itemsize != 8) return fail(PyExc_TypeError, "rows must be int64");
    b->s.keep = &b->keep;
    b->s.keep_rows = b->keep_rows.buf;
    return true;
}

static bool borrow(borrowed *b, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"sources", "raw_shapes", "geometry", "size", "fill", "out", "status", "keep", "scaled",
                            "digests", NULL};
    PyObject *sources, *raw_shapes, *geometry, *out, *status, *keep = Py_None, *digests = Py_None;
    int size, fill, scaled = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOiiOO|OpO:load_slice", names, &sources, &raw_shapes, &geometry,
                                     &size, &fill, &out, &status, &keep, &scaled, &digests))
        return false;
    if (size < 1 || size > MAX_SIZE) return fail(PyExc_ValueError, "size is %d, expected 1 to %d", size, MAX_SIZE);
    if (fill < 0 || fill > 255) return fail(PyExc_ValueError, "fill is %d, expected 0 to 255", fill);
    if (scaled && keep != Py_None) return fail(PyExc_ValueError, "what is decoded scaled is not whole: keep must be None");
    if (geometry == Py_None || out == Py_None || status == Py_None)
        return fail(PyExc_TypeError, "geometry, out and status cannot be None");
    if (!borrow_sources(b, sources)) return false;
    Py_ssize_t n = (Py_ssize_t)b->s.count, pixels = n * 3 * size * size;
    if (!lock(raw_shapes, &b->raw_shapes, "raw_shapes", "il", 2 * n, false) ||
        !lock(geometry, &b->geometry, "geometry", "d", GEOMETRY_COLUMNS * n, false) ||
        !lock(out, &b->out, "out", "B", pixels, true) ||
        !lock(status, &b->status, "status", "il", n, true) || !borrow_keep(b, keep) ||
        !lock(digests, &b->digests, "digests", "B", DIGEST_BYTES * n, true))
        return false;
    if ((b->raw_shapes.obj && b->raw_shapes.itemsize != 4) || b->status.itemsize != 4)
        return fail(PyExc_TypeError, "raw_shapes and status must be int32");
    b->s.raw_shapes = b->raw_shapes.buf;
    b->s.geometry = b->geometry.buf;
    b->s.size = size;
    b->s.fill = (uint8_t)fill;
    b->s.scaled = scaled;
    b->s.out = b->out.buf;
    b->s.status = b->status.buf;
    b->s.digests = b->digests.buf;
    return check_geometry(&b->s);
}

static PyObject *py_load_slice(PyObject *module, PyObject *args, PyObject *kwargs) {
    (void)module;
    borrowed b = {0};
    slice_times times = {0};
    PyObject *result = NULL;
    if (borrow(&b, args, kwargs)) {
        Py_BEGIN_ALLOW_THREADS
        load_slice(&b.s, &times);
        Py_END_ALLOW_THREADS
        result = Py_BuildValue("dddK", times.fetch_seconds, times.decode_seconds, times.augment_seconds,
                               (unsigned long long)times.bytes_read);
    }
    give_back(&b);
    return result;
}

static PyObject *py_keep(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *tuple, *pixels, *result = NULL;
    long long row;
    Py_buffer views[3] = {{0}, {0}, {0}}, picture = {0};
    arena a;
    if (!PyArg_ParseTuple(args, "OLO:keep", &tuple, &row, &pixels)) return NULL;
    if (pixels == Py_None) return fail(PyExc_TypeError, "pixels cannot be None");
    if (borrow_arena(tuple, views, &a) && lock(pixels, &picture, "pixels", "B", -1, false)) {
        if (picture.ndim != 3 || picture.shape[2] != 3 || picture.shape[0] > MAX_PIXELS || picture.shape[1] > MAX_PIXELS)
            fail(PyExc_ValueError, "pixels must have the shape [height, width, 3]");
        else
            result = PyBool_FromLong(arena_put(&a, row, picture.buf, (int)picture.shape[0], (int)picture.shape[1]));
    }
    for (int i = 0; i < 3; i++)
        if (views[i].obj) PyBuffer_Release(&views[i]);
    if (picture.obj) PyBuffer_Release(&picture);
    return result;
}

static PyObject *py_normalize(PyObject *module, PyObject *args, PyObject *kwargs) {
    (void)module;
    static char *names[] = {"src", "dst", "scale_bias", NULL};
    PyObject *src_object, *dst_object, *scale_bias, *result = NULL;
    Py_buffer src = {0}, dst = {0};
    float scale[3], bias[3];
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO:normalize", names, &src_object, &dst_object, &scale_bias))
        return NULL;
    if (src_object == Py_None || dst_object == Py_None) return fail(PyExc_TypeError, "src and dst cannot be None");
    if (!read_scale_bias(scale_bias, scale, bias)) return NULL;
    if (lock(src_object, &src, "src", "B", -1, false) && lock(dst_object, &dst, "dst", "f", src.len, true)) {
        if (src.ndim < 3 || src.shape[1] != 3) {
            fail(PyExc_ValueError, "src must have the shape [N, 3, ...]");
        } else {
            size_t planes = 3 * (size_t)src.shape[0], plane = planes ? (size_t)src.len / planes : 0;
            Py_BEGIN_ALLOW_THREADS
            for (size_t p = 0; p < planes; p++)
                normalize_plane((const uint8_t *)src.buf + p * plane, (float *)dst.buf + p * plane, plane, scale[p % 3],
                                bias[p % 3]);
            Py_END_ALLOW_THREADS
            result = Py_NewRef(Py_None);
        }
    }
    if (src.obj) PyBuffer_Release(&src);
    if (dst.obj) PyBuffer_Release(&dst);
    return result;
}

static PyObject *py_jpeg_size(PyObject *module, PyObject *data) {
    (void)module;
    Py_buffer view = {0};
    if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE) != 0) return NULL;
    jpeg_header header;
    bool sound = jpeg_inspect(view.buf, (size_t)view.len, &header);
    PyBuffer_Release(&view);
    return sound ? Py_BuildValue("iii", header.width, header.height, header.components) : Py_NewRef(Py_None);
}

/* What an arena keeps of these bytes: as planes where they are such a JPEG of ours, else as RGB. */
static PyObject *py_kept_bytes(PyObject *module, PyObject *data) {
    (void)module;
    Py_buffer view = {0};
    if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE) != 0) return NULL;
    jpeg_header header;
    bool ours = jpeg_is_ours(view.buf, (size_t)view.len, &header), sound = ours || jpeg_inspect(view.buf, (size_t)view.len, &header);
    PyBuffer_Release(&view);
    if (!sound) return Py_NewRef(Py_None);
    int width = ours && header.planes_420 ? -header.width : header.width;
    return PyLong_FromUnsignedLongLong(kept_bytes(header.height, width));
}

static PyObject *py_uniforms(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *ids_object, *out_object, *result = NULL;
    Py_buffer ids = {0}, out = {0};
    unsigned long long seed;
    unsigned int epoch, stream;
    if (!PyArg_ParseTuple(args, "KIOIO:uniforms", &seed, &epoch, &ids_object, &stream, &out_object)) return NULL;
    if (ids_object == Py_None || out_object == Py_None) return fail(PyExc_TypeError, "ids and out cannot be None");
    if (lock(ids_object, &ids, "ids", "lq", -1, false) && lock(out_object, &out, "out", "d", -1, true)) {
        size_t count = (size_t)ids.len / 8, numbers = (size_t)out.len / 8;
        if (ids.itemsize != 8 || (count ? numbers % count : numbers) != 0) {
            fail(PyExc_ValueError, "out must hold the same number of doubles for each id");
        } else {
            if (count) uniforms(seed, epoch, ids.buf, count, stream, numbers / count, out.buf);
            result = Py_NewRef(Py_None);
        }
    }
    if (ids.obj) PyBuffer_Release(&ids);
    if (out.obj) PyBuffer_Release(&out);
    return result;
}

static PyObject *bytes_of(const text *t) { return PyBytes_FromStringAndSize((const char *)t->bytes, (Py_ssize_t)t->used); }

/* What a folder holds: see _native.pyi. */
static PyObject *py_list_folder(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *path = NULL, *prefix = NULL, *result = NULL;
    if (!PyArg_ParseTuple(args, "O&O&:list_folder", PyUnicode_FSConverter, &path, PyUnicode_FSConverter, &prefix))
        return NULL;
    folder_listing found = {0};
    int status;
    Py_BEGIN_ALLOW_THREADS
    status = list_folder(PyBytes_AsString(path), PyBytes_AsString(prefix), &found);
    Py_END_ALLOW_THREADS
    if (status) {
        errno = status;
        PyErr_SetFromErrno(PyExc_OSError);
    } else {
        result = Py_BuildValue("NNNNN", bytes_of(&found.names), bytes_of(&found.sizes), bytes_of(&found.locators),
                               bytes_of(&found.folders), bytes_of(&found.links));
    }
    listing_free(&found);
    Py_DECREF(path);
    Py_DECREF(prefix);
    return result;
}

static PyObject *py_own_huffman(PyObject *module, PyObject *allow) {
    (void)module;
    return PyBool_FromLong(huffman_allow(PyObject_IsTrue(allow) == 1));
}

static PyMethodDef methods[] = {
    {"own_huffman", py_own_huffman, METH_O, NULL},
    {"list_folder", py_list_folder, METH_VARARGS, NULL},
    {"load_slice", (PyCFunction)(void (*)(void))py_load_slice, METH_VARARGS | METH_KEYWORDS, NULL},
    {"keep", py_keep, METH_VARARGS, NULL},
    {"normalize", (PyCFunction)(void (*)(void))py_normalize, METH_VARARGS | METH_KEYWORDS, NULL},
    {"uniforms", py_uniforms, METH_VARARGS, NULL},
    {"jpeg_size", py_jpeg_size, METH_O, NULL},
    {"kept_bytes", py_kept_bytes, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

/* Equal to the Pillow that decodes what we decline. */
static bool follow_pillow(void) {
    PyObject *pillow = PyImport_ImportModule("PIL");
    PyObject *version = pillow ? PyObject_GetAttrString(pillow, "__version__") : NULL;
    PyObject *text = version ? PyUnicode_AsASCIIString(version) : NULL;
    if (text) pillow_may_go_down_first = atoi(PyBytes_AsString(text)) >= 13;
    Py_XDECREF(text);
    Py_XDECREF(version);
    Py_XDECREF(pillow);
    return text != NULL;
}

static int on_import(PyObject *module) {
    if (!follow_pillow()) return -1;
    decoder *probe = decoder_new();
    if (!probe) return fail(PyExc_ImportError, "libjpeg differs from the one flatout was built with"), -1;
    decoder_free(probe);
    if (PyModule_AddIntConstant(module, "ABI", 9)) return -1;
    if (PyModule_AddIntConstant(module, "MAX_PIXELS", MAX_PIXELS)) return -1;
    if (PyModule_AddIntConstant(module, "CAN_DIGEST", can_digest)) return -1;
    return PyModule_AddStringConstant(module, "LIBJPEG_VERSION", TEXT(LIBJPEG_TURBO_VERSION));
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, on_import}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_native", .m_methods = methods, .m_slots = slots};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }

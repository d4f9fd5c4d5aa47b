/* CPython glue of native/: numbers and addresses in, nothing out. fused.py alone calls it, and checks what it gives. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "native/native.h"

typedef unsigned long long address;
#define AT(type, from) ((type *)(uintptr_t)(from))
#define WITHOUT_GIL(call) \
    Py_BEGIN_ALLOW_THREADS; \
    call; \
    Py_END_ALLOW_THREADS; \
    Py_RETURN_NONE

#define GEOMETRY "(iiiiiiiiiiiiiiii)"
#define FIELDS(g) \
    &g.samples, &g.in_rows, &g.in_columns, &g.out_rows, &g.out_columns, &g.kernel_rows, &g.kernel_columns, \
        &g.stride_rows, &g.stride_columns, &g.padding_rows, &g.padding_columns, &g.inputs, &g.outputs, &g.row_pairs, \
        &g.column_pairs, &threads

static PyObject *supported(PyObject *module, PyObject *nothing) {
    (void)module, (void)nothing;
#if defined(__x86_64__) && defined(__GNUC__)
    return PyBool_FromLong(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                           __builtin_cpu_supports("avx512bf16"));
#else
    Py_RETURN_FALSE;
#endif
}

static PyObject *call_pack(PyObject *module, PyObject *arguments) {
    (void)module;
    address images, to;
    int samples, rows, columns, step, before, elements, threads;
    if (!PyArg_ParseTuple(arguments, "KKiiiiiii:pack", &images, &to, &samples, &rows, &columns, &step, &before, &elements,
                          &threads))
        return NULL;
    WITHOUT_GIL(pack_images(AT(float, images), AT(bf16_pair, to), samples, rows, columns, step, before, elements, threads));
}

static PyObject *call_pool(PyObject *module, PyObject *arguments) {
    (void)module;
    address from, to, places;
    int backward, groups, rows, columns, pairs, threads;
    if (!PyArg_ParseTuple(arguments, "pKKKiiiii:pool", &backward, &from, &to, &places, &groups, &rows, &columns, &pairs,
                          &threads))
        return NULL;
    WITHOUT_GIL((backward ? pool_backward(AT(bf16_pair, from), AT(bf16_pair, places), AT(bf16_pair, to), groups, rows,
                                          columns, pairs, threads)
                          : pool_forward(AT(bf16_pair, from), AT(bf16_pair, to), AT(bf16_pair, places), groups, rows,
                                         columns, pairs, threads)));
}

static PyObject *call_conv(PyObject *module, PyObject *arguments) {
    (void)module;
    geometry g;
    address x, weights, packed, z, partial;
    int threads;
    if (!PyArg_ParseTuple(arguments, GEOMETRY "KKKKK:conv", FIELDS(g), &x, &weights, &packed, &z, &partial)) return NULL;
    g.groups = (g.samples + GROUP - 1) / GROUP;
    WITHOUT_GIL(conv_forward(&g, AT(bf16_pair, x), AT(float, weights), AT(bf16_pair, packed), AT(bf16_pair, z),
                             AT(float, partial), threads));
}

static PyObject *call_conv_to_inputs(PyObject *module, PyObject *arguments) {
    (void)module;
    geometry g;
    address gradient, weights, packed, x_gradient;
    int threads;
    if (!PyArg_ParseTuple(arguments, GEOMETRY "KKKK:conv_to_inputs", FIELDS(g), &gradient, &weights, &packed, &x_gradient))
        return NULL;
    g.groups = (g.samples + GROUP - 1) / GROUP;
    WITHOUT_GIL(conv_to_inputs(&g, AT(bf16_pair, gradient), AT(float, weights), AT(bf16_pair, packed),
                               AT(bf16_pair, x_gradient), threads));
}

static PyObject *call_conv_to_weights(PyObject *module, PyObject *arguments) {
    (void)module;
    geometry g;
    address x, gradient, scratch, weight_gradient;
    int threads;
    if (!PyArg_ParseTuple(arguments, GEOMETRY "KKKK:conv_to_weights", FIELDS(g), &x, &gradient, &scratch, &weight_gradient))
        return NULL;
    g.groups = (g.samples + GROUP - 1) / GROUP;
    WITHOUT_GIL(conv_to_weights(&g, AT(bf16_pair, x), AT(bf16_pair, gradient), AT(bf16_pair, scratch),
                                AT(float, weight_gradient), threads));
}

#define NORM "(iiiii)(KKKKKKddp)"

static PyObject *call_norm(PyObject *module, PyObject *arguments) {
    (void)module;
    extent e;
    norm n;
    address weight, bias, mean, inverse, running_mean, running_variance, partial, z, residual, factors, y;
    int threads, trains, relu;
    if (!PyArg_ParseTuple(arguments, NORM "KKKpKK:norm", &e.samples, &e.rows, &e.columns, &e.channels, &threads, &weight,
                          &bias, &mean, &inverse, &running_mean, &running_variance, &n.epsilon, &n.momentum, &trains,
                          &partial, &z, &residual, &relu, &factors, &y))
        return NULL;
    e.groups = (e.samples + GROUP - 1) / GROUP;
    n.weight = AT(float, weight), n.bias = AT(float, bias), n.mean = AT(float, mean), n.inverse = AT(float, inverse);
    n.running_mean = AT(float, running_mean), n.running_variance = AT(float, running_variance), n.trains = trains;
    WITHOUT_GIL(norm_forward(&e, &n, AT(float, partial), AT(bf16_pair, z), AT(bf16_pair, residual), relu,
                             AT(float, factors), AT(bf16_pair, y), threads));
}

static PyObject *call_norm_backward(PyObject *module, PyObject *arguments) {
    (void)module;
    extent e;
    norm n;
    address weight, bias, mean, inverse, running_mean, running_variance, gradient, y, z, partial, factors, z_gradient;
    address masked, weight_gradient, bias_gradient;
    int threads, trains;
    if (!PyArg_ParseTuple(arguments, NORM "KKKKKKKKK:norm_backward", &e.samples, &e.rows, &e.columns, &e.channels,
                          &threads, &weight, &bias, &mean, &inverse, &running_mean, &running_variance, &n.epsilon,
                          &n.momentum, &trains, &gradient, &y, &z, &partial, &factors, &z_gradient, &masked,
                          &weight_gradient, &bias_gradient))
        return NULL;
    e.groups = (e.samples + GROUP - 1) / GROUP;
    n.weight = AT(float, weight), n.mean = AT(float, mean), n.inverse = AT(float, inverse), n.trains = trains;
    WITHOUT_GIL(norm_backward(&e, &n, AT(bf16_pair, gradient), AT(bf16_pair, y), AT(bf16_pair, z), AT(float, partial),
                              AT(float, factors), AT(bf16_pair, z_gradient), AT(bf16_pair, masked),
                              AT(float, weight_gradient), AT(float, bias_gradient), threads));
}

static PyObject *call_scratch_pairs(PyObject *module, PyObject *arguments) {
    (void)module;
    geometry g;
    int threads;
    if (!PyArg_ParseTuple(arguments, GEOMETRY ":scratch_pairs", FIELDS(g))) return NULL;
    g.groups = (g.samples + GROUP - 1) / GROUP;
    return PyLong_FromSize_t(transposed_pairs(&g, threads));
}

static PyMethodDef methods[] = {
    {"supported", supported, METH_NOARGS, "Whether this processor has what the others need."},
    {"pack", call_pack, METH_VARARGS, NULL},
    {"pool", call_pool, METH_VARARGS, NULL},
    {"conv", call_conv, METH_VARARGS, NULL},
    {"conv_to_inputs", call_conv_to_inputs, METH_VARARGS, NULL},
    {"conv_to_weights", call_conv_to_weights, METH_VARARGS, NULL},
    {"scratch_pairs", call_scratch_pairs, METH_VARARGS, NULL},
    {"norm", call_norm, METH_VARARGS, NULL},
    {"norm_backward", call_norm_backward, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_fused", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__fused(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module && PyModule_AddIntConstant(module, "ABI", 1) < 0) Py_CLEAR(module);
    return module;
}

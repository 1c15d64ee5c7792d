/* C versions of the encoders that bwtui/encode/encoder_generator.py writes, and of other work for each row.

   It handles only the plain forms of values, in which PostgreSQL writes nearly all of them. It leaves any other
   value, row or object to the encoder in Python, which defines the bytes of a row: the code here makes the same
   bytes or none. So it reports no errors, and every unusual case may be left to Python. bwtui/compiled.py loads
   it; tests/property/test_compiled.py compares the two. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The version of the interface to bwtui/compiled.py: raised with every change of it. */
#define ABI_VERSION 10

/* Larger rows are encoded in Python, for which docs/bounds.md has memory figures. */
#define LARGEST_ROW (64 << 10)

/* The result for a row: encoded, left to Python, or an exception that is not an Exception (KeyboardInterrupt). */
enum { FAILED = -1, UNKNOWN = 0, DONE = 1 };

enum { CALL, INTEGER, BOOLEAN, TEXT, DECIMAL, DATE, TIMESTAMP, TIMESTAMPTZ, FLOAT4, FLOAT8, KINDS };

typedef struct {
    Py_ssize_t index;
    int kind;
    int scale;      /* of a DECIMAL */
    PyObject *call; /* of a CALL: converts the text to the bytes after the branch byte */
} Column;

typedef struct {
    PyObject *head;
    Column *columns;
    Py_ssize_t count;
    int has_tail;
} Record;

typedef struct {
    const char *text; /* NULL: the value is NULL */
    Py_ssize_t size;
} Field;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *fallback;
    Record *key; /* NULL: the table has none */
    Record *value;
    Py_ssize_t width;
    Field *fields;
} Encoder;

/* One row is encoded at a time, under the interpreter lock. A CALL may release it to another thread, which then
   finds `busy` set and leaves its row to Python. */
static int busy = 0;
static char unescaped[LARGEST_ROW];
static char *out = NULL;
static size_t out_size = 0, out_room = 0;

/* -- writing ------------------------------------------------------------------------------------------- */

static int
reserve(size_t more)
{
    if (out_room - out_size >= more)
        return 1;
    size_t room = 2 * (out_size + more) + 4096;
    char *moved = PyMem_Realloc(out, room);
    if (moved == NULL)
        return 0;
    out = moved;
    out_room = room;
    return 1;
}

static int
put(const char *bytes, size_t size)
{
    if (!reserve(size))
        return 0;
    memcpy(out + out_size, bytes, size);
    out_size += size;
    return 1;
}

static int
put_byte(char byte)
{
    return put(&byte, 1);
}

/* Write the byte of the second branch, and an unsigned number in groups of seven bits, low first. */
static int
put_union_varint(uint64_t number)
{
    if (!reserve(11))
        return 0;
    out[out_size++] = 2;
    while (number > 0x7F) {
        out[out_size++] = (char)((number & 0x7F) | 0x80);
        number >>= 7;
    }
    out[out_size++] = (char)number;
    return 1;
}

static int
put_union_long(int64_t number)
{
    uint64_t bits = (uint64_t)number;
    return put_union_varint(number >= 0 ? bits << 1 : ~(bits << 1));
}

/* -- reading ------------------------------------------------------------------------------------------- */

/* Only digits, at most 18 of them, so that no number overflows. */
static int
digits(const char *text, Py_ssize_t size, int64_t *number)
{
    if (size < 1 || size > 18)
        return 0;
    int64_t sum = 0;
    for (Py_ssize_t i = 0; i < size; i++) {
        unsigned digit = (unsigned)(unsigned char)text[i] - '0';
        if (digit > 9)
            return 0;
        sum = 10 * sum + digit;
    }
    *number = sum;
    return 1;
}

static int
is_text(const char *text, Py_ssize_t size)
{
    uint64_t bits = 0, eight;
    Py_ssize_t i = 0;
    for (; i + 8 <= size; i += 8) {
        memcpy(&eight, text + i, 8);
        bits |= eight;
    }
    for (; i < size; i++)
        bits |= (unsigned char)text[i];
    if ((bits & UINT64_C(0x8080808080808080)) == 0)
        return 1;
    PyObject *decoded = PyUnicode_DecodeUTF8(text, size, "strict");
    if (decoded == NULL) {
        PyErr_Clear();
        return 0;
    }
    Py_DECREF(decoded);
    return 1;
}

/* The full range of bigint: identifiers made of a time and a counter have 19 digits. */
static int
integer(const char *text, Py_ssize_t size, int64_t *number)
{
    int is_negative = size > 0 && text[0] == '-', has_last = size - is_negative == 19;
    int64_t last = 0;
    if (!digits(text + is_negative, size - is_negative - has_last, number)
        || (has_last && !digits(text + size - 1, 1, &last)))
        return 0;
    if (has_last) {
        /* 19 digits are below 2^64. */
        uint64_t sum = (uint64_t)*number * 10 + (uint64_t)last;
        if (sum > (uint64_t)INT64_MAX)
            return 0;
        *number = (int64_t)sum;
    }
    if (is_negative)
        *number = -*number;
    return 1;
}

static const int DAYS_BEFORE[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 365};

/* Convert YYYY-MM-DD to the days since 1970-01-01. */
static int
date(const char *text, int64_t *days)
{
    int64_t year, month, day;
    if (text[4] != '-' || text[7] != '-' || !digits(text, 4, &year) || !digits(text + 5, 2, &month)
        || !digits(text + 8, 2, &day))
        return 0;
    if (year < 1 || month < 1 || month > 12 || day < 1)
        return 0;
    int is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    int last = DAYS_BEFORE[month] - DAYS_BEFORE[month - 1] + (month == 2 && is_leap);
    if (day > last)
        return 0;
    int64_t before = year - 1;
    *days = 365 * before + before / 4 - before / 100 + before / 400 + DAYS_BEFORE[month - 1]
            + (month > 2 && is_leap) + day - 1 - 719162;
    return 1;
}

/* Convert YYYY-MM-DD HH:MM:SS[.f], one to six digits after the point, to microseconds since 1970-01-01 00:00. */
static int
timestamp(const char *text, Py_ssize_t size, int64_t *micros)
{
    int64_t days, hours, minutes, seconds, fraction = 0;
    if (size < 19 || size == 20 || size > 26 || text[10] != ' ' || text[13] != ':' || text[16] != ':')
        return 0;
    if (!date(text, &days) || !digits(text + 11, 2, &hours) || !digits(text + 14, 2, &minutes)
        || !digits(text + 17, 2, &seconds) || hours > 23 || minutes > 59 || seconds > 59)
        return 0;
    if (size > 19) {
        if (text[19] != '.' || !digits(text + 20, size - 20, &fraction))
            return 0;
        for (Py_ssize_t i = size; i < 26; i++)
            fraction *= 10;
    }
    *micros = ((days * 24 + hours) * 60 + minutes) * 60 + seconds;
    *micros = *micros * 1000000 + fraction;
    return 1;
}

/* -- one value ----------------------------------------------------------------------------------------- */

/* The shortest two's complement, big-endian, like Java's BigInteger. */
static int
put_decimal(const char *text, Py_ssize_t size, int scale)
{
    int is_negative = size > 0 && text[0] == '-';
    int64_t whole, fraction = 0;
    text += is_negative;
    size -= is_negative;
    if (scale > 0) {
        size -= scale + 1;
        if (size < 1 || size + scale > 18 || text[size] != '.' || !digits(text + size + 1, scale, &fraction))
            return UNKNOWN;
    }
    if (!digits(text, size, &whole))
        return UNKNOWN;
    for (int i = 0; i < scale; i++)
        whole *= 10;
    int64_t number = is_negative ? -(whole + fraction) : whole + fraction;
    int length = 1;
    /* A negative number is inverted: division would round it toward zero, not down. */
    for (int64_t rest = number < 0 ? ~number : number; rest > 0x7F; rest >>= 8)
        length++;
    if (!put_union_varint((uint64_t)length * 2))
        return UNKNOWN;
    for (int i = length - 1; i >= 0; i--)
        if (!put_byte((char)((uint64_t)number >> (8 * i))))
            return UNKNOWN;
    return DONE;
}

/* Return whether a double lies halfway between two floats; then only its text decides: see types/numbers.py. */
static int
is_halfway(double number)
{
    float near = (float)number;
    double other = number + (number - near);
    return other != near && (float)other == other;
}

static int
put_float(const char *text, Py_ssize_t size, int width)
{
    char copy[64], *end, bytes[8];
    if (size < 1 || size >= (Py_ssize_t)sizeof copy)
        return UNKNOWN;
    for (Py_ssize_t i = 0; i < size; i++)
        if (text[i] == 0 || strchr("0123456789+-.e", text[i]) == NULL)
            return UNKNOWN;
    memcpy(copy, text, size);
    copy[size] = 0;
    double number = PyOS_string_to_double(copy, &end, NULL);
    if (PyErr_Occurred() || end != copy + size) {
        PyErr_Clear();
        return UNKNOWN;
    }
    if (width == 4 && is_halfway(number))
        return UNKNOWN;
    if ((width == 4 ? PyFloat_Pack4(number, bytes, 1) : PyFloat_Pack8(number, bytes, 1)) < 0) {
        PyErr_Clear();
        return UNKNOWN;
    }
    return put_byte(2) && put(bytes, width) ? DONE : UNKNOWN;
}

static int
put_call(PyObject *call, const char *text, Py_ssize_t size)
{
    PyObject *bytes = PyBytes_FromStringAndSize(text, size);
    PyObject *encoded = bytes == NULL ? NULL : PyObject_CallOneArg(call, bytes);
    Py_XDECREF(bytes);
    if (encoded == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_Exception))
            return FAILED;
        PyErr_Clear();
        return UNKNOWN;
    }
    int is_done = PyBytes_CheckExact(encoded) && put_byte(2)
                  && put(PyBytes_AS_STRING(encoded), PyBytes_GET_SIZE(encoded));
    Py_DECREF(encoded);
    return is_done ? DONE : UNKNOWN;
}

static int
put_value(const Column *column, const Field *field)
{
    const char *text = field->text;
    Py_ssize_t size = field->size;
    int64_t number;
    if (text == NULL)
        return put_byte(0) ? DONE : UNKNOWN;
    switch (column->kind) {
    case INTEGER:
        return integer(text, size, &number) && put_union_long(number) ? DONE : UNKNOWN;
    case BOOLEAN:
        if (size != 1 || (text[0] != 't' && text[0] != 'f'))
            return UNKNOWN;
        return put_byte(2) && put_byte(text[0] == 't') ? DONE : UNKNOWN;
    case TEXT:
        return is_text(text, size) && put_union_varint((uint64_t)size * 2) && put(text, size) ? DONE : UNKNOWN;
    case DECIMAL:
        return put_decimal(text, size, column->scale);
    case DATE:
        return size == 10 && date(text, &number) && put_union_long(number) ? DONE : UNKNOWN;
    case TIMESTAMPTZ:
        if (size < 3 || memcmp(text + size - 3, "+00", 3) != 0)
            return UNKNOWN;
        size -= 3;
        /* fall through */
    case TIMESTAMP:
        return timestamp(text, size, &number) && put_union_long(number) ? DONE : UNKNOWN;
    case FLOAT4:
        return put_float(text, size, 4);
    case FLOAT8:
        return put_float(text, size, 8);
    default:
        return put_call(column->call, text, size);
    }
}

/* -- a row --------------------------------------------------------------------------------------------- */

static int
put_record(const Record *record, const Field *fields, PyObject **bytes)
{
    out_size = 0;
    if (!put(PyBytes_AS_STRING(record->head), PyBytes_GET_SIZE(record->head)))
        return UNKNOWN;
    for (Py_ssize_t i = 0; i < record->count; i++) {
        int end = put_value(&record->columns[i], &fields[record->columns[i].index]);
        if (end != DONE)
            return end;
    }
    if (record->has_tail && !put_byte(0))
        return UNKNOWN;
    *bytes = PyBytes_FromStringAndSize(out, out_size);
    if (*bytes == NULL) {
        PyErr_Clear();
        return UNKNOWN;
    }
    return DONE;
}

/* Encode the row to which the encoder's `fields` point. */
static int
encode(Encoder *self, PyObject **key, PyObject **value)
{
    if (self->key != NULL) {
        int end = put_record(self->key, self->fields, key);
        if (end != DONE)
            return end;
    }
    else {
        *key = Py_NewRef(Py_None);
    }
    int end = put_record(self->value, self->fields, value);
    if (end != DONE)
        Py_CLEAR(*key);
    return end;
}

/* Point `fields` at a tuple of bytes and None. */
static int
take_fields(Encoder *self, PyObject *row)
{
    if (!PyTuple_CheckExact(row) || PyTuple_GET_SIZE(row) != self->width)
        return 0;
    PyObject **items = PySequence_Fast_ITEMS(row);
    Py_ssize_t size = 0;
    for (Py_ssize_t i = 0; i < self->width; i++) {
        if (items[i] == Py_None) {
            self->fields[i] = (Field){NULL, 0};
            continue;
        }
        if (!PyBytes_CheckExact(items[i]))
            return 0;
        self->fields[i] = (Field){PyBytes_AS_STRING(items[i]), PyBytes_GET_SIZE(items[i])};
        size += self->fields[i].size;
        if (size > LARGEST_ROW)
            return 0;
    }
    return 1;
}

/* Point a field at a text of COPY, unescaped into `to`; return the place for the next one. */
static char *
unescape(Field *field, const char *text, Py_ssize_t size, char *to)
{
    if (size == 2 && text[1] == 'N' && text[0] == '\\') {
        *field = (Field){NULL, 0};
        return to;
    }
    const char *end = text + size, *begin = to;
    while (text < end) {
        if (*text != '\\') {
            *to++ = *text++;
            continue;
        }
        if (++text == end)
            return NULL;
        switch (*text++) {
        case '\\': *to++ = '\\'; break;
        case 'b': *to++ = '\b'; break;
        case 'f': *to++ = '\f'; break;
        case 'n': *to++ = '\n'; break;
        case 'r': *to++ = '\r'; break;
        case 't': *to++ = '\t'; break;
        case 'v': *to++ = '\v'; break;
        default: return NULL; /* PostgreSQL writes no others, but bwtui/pgoutput/transcode.py does. */
        }
    }
    *field = (Field){begin, to - begin};
    return to;
}

/* Point `fields` at a line of COPY. */
static int
take_line(Encoder *self, PyObject *object)
{
    if (!PyBytes_CheckExact(object))
        return 0;
    const char *text = PyBytes_AS_STRING(object);
    Py_ssize_t size = PyBytes_GET_SIZE(object);
    if (size > LARGEST_ROW)
        return 0;
    if (size > 0 && text[size - 1] == '\n')
        size--;
    const char *end = text + size;
    char *to = memchr(text, '\\', size) == NULL ? NULL : unescaped;
    for (Py_ssize_t i = 0; i < self->width; i++) {
        const char *stop = memchr(text, '\t', end - text);
        if ((stop == NULL) != (i == self->width - 1))
            return 0;
        if (stop == NULL)
            stop = end;
        if (to != NULL && memchr(text, '\\', stop - text) != NULL) {
            to = unescape(&self->fields[i], text, stop - text, to);
            if (to == NULL)
                return 0;
        }
        else {
            self->fields[i] = (Field){text, stop - text};
        }
        text = stop + 1;
    }
    return 1;
}

/* Return the entry of `values` for the identity of a frame, borrowed: (frame, size, value, ...). NULL, without
   an exception, if there is none. */
static PyObject *
values_of(PyObject *values, PyObject *frame)
{
    PyObject *identity = PyLong_FromVoidPtr(frame);
    PyObject *found = identity == NULL ? NULL : PyDict_GetItemWithError(values, identity);
    Py_XDECREF(identity);
    if (found == NULL)
        PyErr_Clear();
    else if (!PyTuple_CheckExact(found) || PyTuple_GET_SIZE(found) < 2 || PyTuple_GET_ITEM(found, 0) != frame)
        return NULL;
    return found;
}

/* Point `fields` at a row in pgoutput's form (TupleData), from offset to the end of frame. Unchanged values are
   taken from the dictionary; *held keeps them alive. Return the size of the row in bytes, or 0. */
static Py_ssize_t
take_tuple(Encoder *self, PyObject *frame, Py_ssize_t offset, PyObject *values, PyObject **held)
{
    const unsigned char *at = (const unsigned char *)PyBytes_AS_STRING(frame) + offset;
    Py_ssize_t size = PyBytes_GET_SIZE(frame) - offset, used = 2;
    if (size > LARGEST_ROW || size < 2 || (at[0] << 8 | at[1]) != self->width)
        return 0;
    const unsigned char *end = at + size;
    at += 2;
    for (Py_ssize_t i = 0; i < self->width; i++) {
        if (at == end)
            return 0;
        unsigned char kind = *at++;
        if (kind == 'n') {
            self->fields[i] = (Field){NULL, 0};
            continue;
        }
        if (kind == 'u') {
            if (*held == NULL)
                *held = Py_XNewRef(values_of(values, frame));
            if (*held == NULL || used >= PyTuple_GET_SIZE(*held))
                return 0;
            PyObject *value = PyTuple_GET_ITEM(*held, used++);
            if (value == Py_None) {
                self->fields[i] = (Field){NULL, 0};
                continue;
            }
            /* A value that could not be fetched is left to Python. */
            if (!PyBytes_CheckExact(value) || (size += PyBytes_GET_SIZE(value)) > LARGEST_ROW)
                return 0;
            self->fields[i] = (Field){PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value)};
            continue;
        }
        if (kind != 't' || end - at < 4)
            return 0;
        uint32_t length = (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
        at += 4;
        if (length > (size_t)(end - at))
            return 0;
        self->fields[i] = (Field){(const char *)at, length};
        at += length;
    }
    return at == end && (*held == NULL || used == PyTuple_GET_SIZE(*held)) ? size : 0;
}

static PyObject *
pair(PyObject *key, PyObject *value)
{
    PyObject *both = PyTuple_New(2);
    if (both == NULL) {
        Py_DECREF(key);
        Py_DECREF(value);
        return NULL;
    }
    PyTuple_SET_ITEM(both, 0, key);
    PyTuple_SET_ITEM(both, 1, value);
    return both;
}

/* Return (key, value, timestamp, headers) of the row to which `fields` point; NULL, without an exception, if it
   is left to Python. */
static PyObject *
message(Encoder *self, PyObject *timestamp, PyObject *headers, Py_ssize_t *size)
{
    PyObject *key = NULL, *value = NULL;
    int end = encode(self, &key, &value);
    if (end != DONE)
        return NULL;
    *size = PyBytes_GET_SIZE(value) + (key == Py_None ? 0 : PyBytes_GET_SIZE(key));
    PyObject *made = PyTuple_New(4);
    if (made == NULL) {
        Py_DECREF(key);
        Py_DECREF(value);
        return NULL;
    }
    PyTuple_SET_ITEM(made, 0, key);
    PyTuple_SET_ITEM(made, 1, value);
    PyTuple_SET_ITEM(made, 2, Py_NewRef(timestamp));
    PyTuple_SET_ITEM(made, 3, Py_NewRef(headers));
    return made;
}

/* Return whether a frame begins like `first`: with the same kind, and the same bytes from `from` to `to`. */
static int
is_alike(PyObject *first, PyObject *frame, Py_ssize_t from, Py_ssize_t to)
{
    if (frame == first)
        return 1;
    if (!PyBytes_CheckExact(frame) || PyBytes_GET_SIZE(frame) < to)
        return 0;
    const char *one = PyBytes_AS_STRING(first), *other = PyBytes_AS_STRING(frame);
    return one[0] == other[0] && memcmp(one + from, other + from, to - from) == 0;
}

PyDoc_STRVAR(rows_doc,
"rows(frame, frames, begin, offset, timestamp, most, most_bytes, most_message, keep, values, /)\n--\n\n"
"Take frame, and the frames that follow from the iterator and are alike: each ends with a row at offset, and\n"
"is the same between begin and there. Under the identity of a frame, values has (frame, size, value, ...): the\n"
"unchanged values of its row. Return (messages, taken, size, held, rest): the messages without headers; their\n"
"frames, with keep or where there are values; the bytes of the messages, and with keep those of frames and\n"
"values. rest is the first frame that is not alike, or that Python must encode, or whose message has more than\n"
"most_message bytes; None: there were no more, or there are most messages, or most_bytes are reached.");

static PyObject *
encoder_rows(PyObject *object, PyObject *args)
{
    Encoder *self = (Encoder *)object;
    PyObject *first, *frames, *timestamp, *filled, *values = NULL, *taken = NULL;
    Py_ssize_t begin, offset, most, most_bytes, most_message, size = 0, held = 0;
    int keep;
    if (!PyArg_ParseTuple(args, "SOnnOnnnpO!", &first, &frames, &begin, &offset, &timestamp, &most, &most_bytes,
                          &most_message, &keep, &PyDict_Type, &filled))
        return NULL;
    if (!PyIter_Check(frames) || begin < 1 || begin > offset || offset > PyBytes_GET_SIZE(first)) {
        PyErr_SetString(PyExc_ValueError, "wanted: an iterator, and offsets within the frame");
        return NULL;
    }
    int has_values = PyDict_GET_SIZE(filled) > 0;
    PyObject *messages = PyList_New(0), *frame = Py_NewRef(first);
    if (messages == NULL || (taken = PyList_New(0)) == NULL)
        goto failed;
    while (frame != NULL && is_alike(first, frame, begin, offset)) {
        Py_ssize_t bytes = 0, row = busy ? 0 : take_tuple(self, frame, offset, filled, &values);
        PyObject *made = NULL;
        if (row == 0)
            break;
        busy = 1;
        made = message(self, timestamp, Py_None, &bytes);
        busy = 0;
        Py_CLEAR(values);
        if (made == NULL && PyErr_Occurred())
            goto failed;
        if (made == NULL || bytes > most_message) {
            Py_XDECREF(made);
            break;
        }
        int added = PyList_Append(messages, made);
        Py_DECREF(made);
        if (added < 0 || ((keep || has_values) && PyList_Append(taken, frame) < 0))
            goto failed;
        size += bytes;
        held += keep ? offset + row : 0;
        Py_CLEAR(frame);
        if (PyList_GET_SIZE(messages) >= most || size + held >= most_bytes)
            break;
        frame = PyIter_Next(frames);
        if (frame == NULL && PyErr_Occurred())
            goto failed;
    }
    Py_XDECREF(values);
    return Py_BuildValue("NNnnN", messages, taken, size, held, frame == NULL ? Py_NewRef(Py_None) : frame);
failed:
    Py_XDECREF(messages);
    Py_XDECREF(taken);
    Py_XDECREF(frame);
    return NULL;
}

/* What the next updates of a table need to have: the columns that PostgreSQL left out, and the key's. */
typedef struct {
    Py_ssize_t width;
    PyObject *missing; /* a tuple of their indexes, in order */
    PyObject *key;     /* a tuple of (index, name), in order */
} Lacking;

enum { OTHERS = 2 }; /* The row lacks other columns. */

/* Read a number of the wire, of at most four bytes. */
static uint32_t
number_at(const unsigned char *at, int bytes)
{
    uint32_t number = 0;
    while (bytes--)
        number = number << 8 | *at++;
    return number;
}

/* Put the key of a row in pgoutput's form into a dictionary. Return DONE, OTHERS, UNKNOWN if the row is left to
   Python, or FAILED. */
static int
key_of_lacking(const Lacking *of, const unsigned char *at, const unsigned char *end, PyObject *key)
{
    Py_ssize_t missing = 0, named = 0, lacks = PyTuple_GET_SIZE(of->missing), names = PyTuple_GET_SIZE(of->key);
    int is_other = 0;
    if (end - at < 2 || number_at(at, 2) != of->width)
        return UNKNOWN;
    at += 2;
    for (Py_ssize_t i = 0; i < of->width; i++) {
        if (at == end)
            return UNKNOWN;
        unsigned char kind = *at++;
        int is_missing = missing < lacks && PyLong_AsSsize_t(PyTuple_GET_ITEM(of->missing, missing)) == i;
        PyObject *column = named < names ? PyTuple_GET_ITEM(of->key, named) : NULL, *name = NULL;
        if (column != NULL && PyLong_AsSsize_t(PyTuple_GET_ITEM(column, 0)) == i)
            name = PyTuple_GET_ITEM(column, 1);
        named += name != NULL;
        missing += is_missing;
        /* A row without its key can't be read. */
        is_other |= (kind == 'u') != is_missing || (name != NULL && kind != 't');
        if (kind == 'n' || kind == 'u')
            continue;
        if (kind != 't' || end - at < 4)
            return UNKNOWN;
        uint32_t length = number_at(at, 4);
        at += 4;
        if (length > (size_t)(end - at))
            return UNKNOWN;
        if (name != NULL && !is_other) {
            PyObject *text = PyBytes_FromStringAndSize((const char *)at, length);
            int added = text == NULL ? -1 : PyDict_SetItem(key, name, text);
            Py_XDECREF(text);
            if (added < 0)
                return FAILED;
        }
        at += length;
    }
    if (at != end || missing != lacks || named != names)
        return UNKNOWN;
    return is_other ? OTHERS : DONE;
}

static int
is_index(PyObject *number)
{
    int is_one = PyLong_CheckExact(number) && PyLong_AsSsize_t(number) >= 0;
    PyErr_Clear();
    return is_one;
}

/* Return whether the tuples are as Lacking has them. */
static int
is_lacking(const Lacking *of)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(of->missing); i++)
        if (!is_index(PyTuple_GET_ITEM(of->missing, i)))
            return 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(of->key); i++) {
        PyObject *one = PyTuple_GET_ITEM(of->key, i);
        if (!PyTuple_CheckExact(one) || PyTuple_GET_SIZE(one) != 2 || !is_index(PyTuple_GET_ITEM(one, 0))
            || !PyUnicode_CheckExact(PyTuple_GET_ITEM(one, 1)))
            return 0;
    }
    return 1;
}

/* Add (frame, xid, key) to a list if the frame has an update that lacks the columns, or (frame, xid) if it is left
   to Python. Return whether further frames are of the same table; FAILED with an exception. */
static int
add_lacking(const Lacking *of, PyObject *frame, Py_ssize_t begin, uint32_t oid, uint32_t *xid, PyObject *known,
            PyObject *found)
{
    const unsigned char *at = (const unsigned char *)PyBytes_AS_STRING(frame);
    const unsigned char *end = at + PyBytes_GET_SIZE(frame);
    if (at != end && *at != 'w')
        return 1;
    int is_whole = 0;
    PyObject *key = NULL, *one;
    if (end - at > begin) {
        at += begin;
        unsigned char tag = *at++;
        if (tag == 'B' && end - at >= 20) {
            *xid = number_at(at + 16, 4);
            return 1;
        }
        if (tag != 'B' && tag != 'R' && tag != 'U')
            return 1;
        if (tag != 'B' && end - at >= 4) {
            if (number_at(at, 4) != oid)
                return 1;
            if (tag == 'R')
                return 0;
            PyObject *identity = PyLong_FromVoidPtr(frame);
            int is_known = identity == NULL ? -1 : PyDict_Contains(known, identity);
            Py_XDECREF(identity);
            if (is_known)
                return is_known;
            is_whole = end - at > 4 && at[4] == 'N';
        }
    }
    if (is_whole) {
        int made = (key = PyDict_New()) == NULL ? FAILED : key_of_lacking(of, at + 5, end, key);
        if (made != DONE)
            Py_CLEAR(key);
        if (made == FAILED || made == OTHERS)
            return made == FAILED ? FAILED : 1;
    }
    one = key == NULL ? Py_BuildValue("OI", frame, *xid) : Py_BuildValue("OIN", frame, *xid, key);
    int added = one == NULL ? -1 : PyList_Append(found, one);
    Py_XDECREF(one);
    return added < 0 ? FAILED : 1;
}

PyDoc_STRVAR(lacking_doc,
"lacking(frames, known, begin, oid, xid, missing, key, most, /)\n--\n\n"
"Find the table's updates among frames whose messages begin at an offset, up to a RELATION of the table or most\n"
"rows. Return a list: (frame, xid, key) for each row that lacks exactly the missing columns and kept its key,\n"
"which is a tuple of (index, name); (frame, xid) for each frame that Python must take apart. Frames whose\n"
"identities are keys of known are left out.");

static PyObject *
encoder_lacking(PyObject *object, PyObject *args)
{
    PyObject *frames, *known;
    Lacking of = {.width = ((Encoder *)object)->width};
    Py_ssize_t begin, most;
    unsigned int oid, xid;
    if (!PyArg_ParseTuple(args, "OO!nIIO!O!n", &frames, &PyDict_Type, &known, &begin, &oid, &xid, &PyTuple_Type,
                          &of.missing, &PyTuple_Type, &of.key, &most))
        return NULL;
    if (begin < 1 || !is_lacking(&of)) {
        PyErr_SetString(PyExc_ValueError, "expected an offset after the first byte, indexes, and the names of a key");
        return NULL;
    }
    PyObject *found = PyList_New(0), *from = PyObject_GetIter(frames), *frame = NULL;
    int goes_on = found != NULL && from != NULL ? 1 : FAILED;
    uint32_t at_xid = xid;
    while (goes_on == 1 && PyList_GET_SIZE(found) < most && (frame = PyIter_Next(from)) != NULL) {
        if (PyBytes_CheckExact(frame))
            goes_on = add_lacking(&of, frame, begin, oid, &at_xid, known, found);
        else {
            PyErr_SetString(PyExc_TypeError, "wanted: frames, as bytes");
            goes_on = FAILED;
        }
        Py_DECREF(frame);
    }
    Py_XDECREF(from);
    if (goes_on == FAILED || PyErr_Occurred())
        Py_CLEAR(found);
    return found;
}

static PyObject *
encoder_call(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *names)
{
    Encoder *self = (Encoder *)object;
    PyObject *key = NULL, *value = NULL;
    if (PyVectorcall_NARGS(nargsf) != 1 || (names != NULL && PyTuple_GET_SIZE(names) > 0)) {
        PyErr_SetString(PyExc_TypeError, "a row is one argument");
        return NULL;
    }
    PyObject *row = args[0];
    /* No other code may change the row while it is encoded. Creating the tuple may itself run other code: before
       3.12 the garbage collector may run there, and finalizers may call this very encoder. */
    PyObject *kept = PyList_CheckExact(row) ? PyList_AsTuple(row) : Py_NewRef(row);
    if (kept == NULL)
        return NULL;
    if (!busy && take_fields(self, kept)) {
        busy = 1;
        int end = encode(self, &key, &value);
        busy = 0;
        Py_DECREF(kept);
        kept = NULL;
        if (end == FAILED)
            return NULL;
        if (end == DONE)
            return pair(key, value);
    }
    Py_XDECREF(kept);
    return PyObject_CallOneArg(self->fallback, row);
}

PyDoc_STRVAR(lines_doc,
"lines(lines, timestamp, headers, /)\n--\n\n"
"Return a list with the message of each line of COPY, or None, and the bytes of all and of the largest.");

static PyObject *
encoder_lines(PyObject *object, PyObject *const *args, Py_ssize_t nargs)
{
    Encoder *self = (Encoder *)object;
    if (nargs != 3 || !PyList_CheckExact(args[0])) {
        PyErr_SetString(PyExc_TypeError, "wanted: a list, a timestamp and headers");
        return NULL;
    }
    /* A CALL could change the list. */
    PyObject *lines = PyList_AsTuple(args[0]);
    if (lines == NULL)
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(lines), all = 0, largest = 0;
    PyObject *messages = PyList_New(count);
    if (messages == NULL) {
        Py_DECREF(lines);
        return NULL;
    }
    int was_busy = busy;
    busy = 1;
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_ssize_t size = 0;
        PyObject *made = NULL;
        if (!was_busy && take_line(self, PyTuple_GET_ITEM(lines, i)))
            made = message(self, args[1], args[2], &size);
        if (made == NULL && PyErr_Occurred()) {
            busy = was_busy;
            Py_DECREF(lines);
            Py_DECREF(messages);
            return NULL;
        }
        if (made == NULL)
            made = Py_NewRef(Py_None);
        PyList_SET_ITEM(messages, i, made);
        all += size;
        if (size > largest)
            largest = size;
    }
    busy = was_busy;
    Py_DECREF(lines);
    return Py_BuildValue("Nnn", messages, all, largest);
}

/* Return whether there are no keyword arguments; set an exception if there are. */
static int
go_by_position(PyObject *kwargs)
{
    if (kwargs == NULL || PyDict_GET_SIZE(kwargs) == 0)
        return 1;
    PyErr_SetString(PyExc_TypeError, "arguments go by position");
    return 0;
}

/* -- the object ---------------------------------------------------------------------------------------- */

static void
free_record(Record *record)
{
    if (record == NULL)
        return;
    for (Py_ssize_t i = 0; i < record->count; i++)
        Py_XDECREF(record->columns[i].call);
    Py_XDECREF(record->head);
    PyMem_Free(record->columns);
    PyMem_Free(record);
}

/* Takes (head, columns, whether a tail follows); a column is (index, kind, scale, function or None). */
static Record *
new_record(PyObject *from, Py_ssize_t width)
{
    PyObject *head, *columns;
    int has_tail;
    if (!PyArg_ParseTuple(from, "O!O!p", &PyBytes_Type, &head, &PyTuple_Type, &columns, &has_tail))
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(columns);
    Record *record = PyMem_Calloc(1, sizeof *record);
    if (record != NULL)
        record->columns = PyMem_Calloc(count ? count : 1, sizeof(Column));
    if (record == NULL || record->columns == NULL) {
        PyMem_Free(record);
        PyErr_NoMemory();
        return NULL;
    }
    record->head = Py_NewRef(head);
    record->has_tail = has_tail;
    for (Py_ssize_t i = 0; i < count; i++) {
        Column *column = &record->columns[i];
        PyObject *call;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(columns, i), "niiO", &column->index, &column->kind,
                              &column->scale, &call))
            goto refused;
        if (column->index < 0 || column->index >= width || column->kind < 0 || column->kind >= KINDS
            || column->scale < 0 || column->scale > 1 << 16 || (column->kind == CALL && !PyCallable_Check(call))) {
            PyErr_SetString(PyExc_ValueError, "no such column");
            goto refused;
        }
        column->call = column->kind == CALL ? Py_NewRef(call) : NULL;
        record->count = i + 1;
    }
    return record;
refused:
    free_record(record);
    return NULL;
}

static PyObject *
encoder_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *key, *value, *fallback;
    Py_ssize_t width;
    if (!go_by_position(kwargs) || !PyArg_ParseTuple(args, "OO!nO", &key, &PyTuple_Type, &value, &width, &fallback))
        return NULL;
    if (width < 1 || width > 1 << 16 || !PyCallable_Check(fallback) || (key != Py_None && !PyTuple_Check(key))) {
        PyErr_SetString(PyExc_ValueError, "no such table");
        return NULL;
    }
    Encoder *self = (Encoder *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->vectorcall = encoder_call;
    self->width = width;
    self->fallback = Py_NewRef(fallback);
    self->fields = PyMem_Calloc(width, sizeof(Field));
    if (self->fields == NULL)
        PyErr_NoMemory();
    else if ((key == Py_None || (self->key = new_record(key, width)) != NULL)
             && (self->value = new_record(value, width)) != NULL)
        return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

static int
encoder_traverse(PyObject *object, visitproc visit, void *arg)
{
    Encoder *self = (Encoder *)object;
    Record *records[] = {self->key, self->value};
    Py_VISIT(self->fallback);
    for (int r = 0; r < 2; r++)
        for (Py_ssize_t i = 0; records[r] != NULL && i < records[r]->count; i++)
            Py_VISIT(records[r]->columns[i].call);
    return 0;
}

static void
encoder_dealloc(PyObject *object)
{
    Encoder *self = (Encoder *)object;
    PyObject_GC_UnTrack(object);
    Py_XDECREF(self->fallback);
    free_record(self->key);
    free_record(self->value);
    PyMem_Free(self->fields);
    Py_TYPE(object)->tp_free(object);
}

static PyMethodDef encoder_methods[] = {
    {"lacking", encoder_lacking, METH_VARARGS, lacking_doc},
    {"lines", (PyCFunction)(void (*)(void))encoder_lines, METH_FASTCALL, lines_doc},
    {"rows", encoder_rows, METH_VARARGS, rows_doc},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject EncoderType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "bwtui_compiled.Encoder",
    .tp_doc = PyDoc_STR("Encoder(key, value, width, fallback, /): from a row's fields to its key and its value."),
    .tp_basicsize = sizeof(Encoder),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC,
    .tp_new = encoder_new,
    .tp_dealloc = encoder_dealloc,
    .tp_traverse = encoder_traverse,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Encoder, vectorcall),
    .tp_methods = encoder_methods,
};

/* -- cells of a recording's batch ---------------------------------------------------------------------- */

/* The bytes or None of one of `pack`'s cells, borrowed; NULL, without an exception, if it is neither. */
static PyObject *
cell_of(PyObject *from, Py_ssize_t item)
{
    if (item >= 0) {
        if (!PyTuple_CheckExact(from) || item >= PyTuple_GET_SIZE(from))
            return NULL;
        from = PyTuple_GET_ITEM(from, item);
    }
    return from == Py_None || PyBytes_CheckExact(from) ? from : NULL;
}

PyDoc_STRVAR(pack_doc,
"pack(cells, item, most, /)\n--\n\n"
"Return the length of each of some bytes, little-endian in four bytes, -1 for None, and all of them joined. They\n"
"are in a list, or in tuples in a list at the place item, if that is not -1. None: one is larger than most, or is\n"
"neither, or all are more than can be.");

static PyObject *
pack(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *cells, *lengths = NULL, *joined = NULL;
    Py_ssize_t item, most, all = 0;
    if (!PyArg_ParseTuple(args, "O!nn", &PyList_Type, &cells, &item, &most))
        return NULL;
    Py_ssize_t count = PyList_GET_SIZE(cells);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *cell = cell_of(PyList_GET_ITEM(cells, i), item);
        Py_ssize_t size = cell == NULL || cell == Py_None ? 0 : PyBytes_GET_SIZE(cell);
        if (cell == NULL || size > most || size > INT32_MAX || all > PY_SSIZE_T_MAX / 2 - size)
            Py_RETURN_NONE;
        all += size;
    }
    lengths = PyBytes_FromStringAndSize(NULL, 4 * count);
    joined = PyBytes_FromStringAndSize(NULL, all);
    if (lengths == NULL || joined == NULL) {
        Py_XDECREF(lengths);
        Py_XDECREF(joined);
        return NULL;
    }
    unsigned char *length = (unsigned char *)PyBytes_AS_STRING(lengths);
    char *to = PyBytes_AS_STRING(joined);
    /* No other code runs meanwhile that could change the list. */
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *cell = cell_of(PyList_GET_ITEM(cells, i), item);
        uint32_t size = cell == Py_None ? UINT32_MAX : (uint32_t)PyBytes_GET_SIZE(cell);
        for (int byte = 0; byte < 4; byte++)
            *length++ = (unsigned char)(size >> (8 * byte));
        if (cell != Py_None) {
            memcpy(to, PyBytes_AS_STRING(cell), size);
            to += size;
        }
    }
    return Py_BuildValue("NN", lengths, joined);
}

PyDoc_STRVAR(tags_doc,
"tags(frames, at, /)\n--\n\n"
"Return the byte at a place of each of some bytes in a list. None: one is too short, or is no bytes.");

static PyObject *
tags(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *frames;
    Py_ssize_t at;
    if (!PyArg_ParseTuple(args, "O!n", &PyList_Type, &frames, &at))
        return NULL;
    Py_ssize_t count = PyList_GET_SIZE(frames);
    PyObject *made = PyBytes_FromStringAndSize(NULL, count);
    for (Py_ssize_t i = 0; made != NULL && i < count; i++) {
        PyObject *frame = PyList_GET_ITEM(frames, i);
        if (at < 0 || !PyBytes_CheckExact(frame) || PyBytes_GET_SIZE(frame) <= at) {
            Py_DECREF(made);
            Py_RETURN_NONE;
        }
        PyBytes_AS_STRING(made)[i] = PyBytes_AS_STRING(frame)[at];
    }
    return made;
}

/* -- properties of messages ---------------------------------------------------------------------------- */

/* A method without arguments, looked up once, of an immutable type. */
typedef struct {
    PyObject *name;
    PyTypeObject *type;
    PyCFunction function;
} Method;

static Method key_of, offset_of, partition_of, timestamp_of, value_of;

static PyObject *
call_method(Method *method, PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    if (type == method->type)
        return method->function(object, NULL);
    if (!PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) {
        PyObject *found = PyObject_GetAttr((PyObject *)type, method->name);
        if (found == NULL) {
            /* An instance may have its own attribute. */
            if (!PyErr_ExceptionMatches(PyExc_AttributeError))
                return NULL;
            PyErr_Clear();
        }
        int is_plain = found != NULL && Py_IS_TYPE(found, &PyMethodDescr_Type);
        PyMethodDef *said = is_plain ? ((PyMethodDescrObject *)found)->d_method : NULL;
        Py_XDECREF(found);
        if (said != NULL && said->ml_flags == METH_NOARGS) {
            method->type = type;
            method->function = said->ml_meth;
            return method->function(object, NULL);
        }
    }
    return PyObject_CallMethodNoArgs(object, method->name);
}

/* The collected cells of an Arrow array of binary. */
typedef struct {
    PyObject **cells;
    Py_ssize_t count, size, missing;
} Cells;

/* Collect a message's key or value, by method: 1, or 0 if it is not bytes, or -1 with an exception. */
static int
take_cell(Cells *into, Method *method, PyObject *message)
{
    PyObject *cell = call_method(method, message);
    if (cell == NULL)
        return -1;
    into->cells[into->count++] = cell;
    if (cell == Py_None)
        into->missing++;
    else if (!PyBytes_CheckExact(cell) || PyBytes_GET_SIZE(cell) > INT32_MAX - into->size)
        return 0;
    else
        into->size += PyBytes_GET_SIZE(cell);
    return 1;
}

static void
free_cells(Cells *cells)
{
    while (cells->count > 0)
        Py_DECREF(cells->cells[--cells->count]);
    PyMem_Free(cells->cells);
}

/* The buffers of an Arrow array of the cells: the validity bitmap, or None for all; offsets; data. */
static PyObject *
buffers_of(const Cells *from)
{
    Py_ssize_t count = from->count;
    PyObject *there = from->missing ? PyBytes_FromStringAndSize(NULL, (count + 7) / 8) : Py_NewRef(Py_None);
    PyObject *offsets = PyBytes_FromStringAndSize(NULL, 4 * (count + 1));
    PyObject *data = PyBytes_FromStringAndSize(NULL, from->size);
    if (there == NULL || offsets == NULL || data == NULL) {
        Py_XDECREF(there);
        Py_XDECREF(offsets);
        Py_XDECREF(data);
        return NULL;
    }
    char *bits = from->missing ? PyBytes_AS_STRING(there) : NULL, *to = PyBytes_AS_STRING(data);
    if (bits != NULL)
        memset(bits, 0, (count + 7) / 8);
    int32_t end = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *cell = from->cells[i];
        memcpy(PyBytes_AS_STRING(offsets) + 4 * i, &end, 4);
        if (cell == Py_None)
            continue;
        if (bits != NULL)
            bits[i / 8] |= 1 << i % 8;
        memcpy(to + end, PyBytes_AS_STRING(cell), PyBytes_GET_SIZE(cell));
        end += (int32_t)PyBytes_GET_SIZE(cell);
    }
    memcpy(PyBytes_AS_STRING(offsets) + 4 * count, &end, 4);
    return Py_BuildValue("NNN", there, offsets, data);
}

/* The timestamp of a message; returns the same as take_cell. */
static int
take_time(char *into, PyObject *message)
{
    PyObject *said = call_method(&timestamp_of, message);
    if (said == NULL)
        return -1;
    int overflow = 1;
    long long time = 0;
    if (PyTuple_CheckExact(said) && PyTuple_GET_SIZE(said) == 2 && PyLong_CheckExact(PyTuple_GET_ITEM(said, 1)))
        time = PyLong_AsLongLongAndOverflow(PyTuple_GET_ITEM(said, 1), &overflow);
    Py_DECREF(said);
    memcpy(into, &time, 8);
    return !overflow;
}

PyDoc_STRVAR(columns_doc,
"columns(messages, /)\n--\n\n"
"Return the timestamps of Kafka's messages in a list, of 8 bytes each, and the buffers of their keys and of their\n"
"values as Arrow has them: a bitmap or None, offsets, data. None: one has a key or a value that is no bytes.");

static PyObject *
columns(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *messages, *made = NULL;
    if (!PyArg_ParseTuple(args, "O!", &PyList_Type, &messages))
        return NULL;
    /* The methods of a message could change the list. */
    if ((messages = PyList_AsTuple(messages)) == NULL)
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(messages);
    PyObject *times = PyBytes_FromStringAndSize(NULL, 8 * count);
    Cells keys = {PyMem_New(PyObject *, count), 0, 0, 0}, values = {PyMem_New(PyObject *, count), 0, 0, 0};
    int done = 1;
    if (times == NULL || keys.cells == NULL || values.cells == NULL) {
        PyErr_NoMemory();
        done = -1;
    }
    for (Py_ssize_t i = 0; done == 1 && i < count; i++) {
        PyObject *message = PyTuple_GET_ITEM(messages, i);
        if ((done = take_time(PyBytes_AS_STRING(times) + 8 * i, message)) == 1
            && (done = take_cell(&keys, &key_of, message)) == 1)
            done = take_cell(&values, &value_of, message);
    }
    if (done == 1) {
        PyObject *key = buffers_of(&keys), *value = key == NULL ? NULL : buffers_of(&values);
        made = value == NULL ? NULL : PyTuple_Pack(3, times, key, value);
        Py_XDECREF(key);
        Py_XDECREF(value);
    }
    else if (done == 0)
        made = Py_NewRef(Py_None);
    free_cells(&keys);
    free_cells(&values);
    Py_XDECREF(times);
    Py_DECREF(messages);
    return made;
}

/* -- delivery reports ---------------------------------------------------------------------------------- */

/* Records where the messages of a section are from their reports; see bwtui/sink/delivery.py. */
typedef struct {
    PyObject_HEAD
    PyObject *other, *over;
    Py_buffer partitions, offsets;
    Py_ssize_t count; /* number of messages */
    Py_ssize_t left;  /* messages without a report so far */
} Places;

/* The callback of librdkafka's report on one message: one for each place, reused. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Places *places;
    Py_ssize_t index;
} Report;

static void
forget_places(Places *self)
{
    /* Releasing a buffer that was never requested is allowed. */
    PyBuffer_Release(&self->partitions);
    PyBuffer_Release(&self->offsets);
    self->count = self->left = 0;
}

/* Return the result of a message's method, a number from 0 to most; -1 for any other; -2 with an exception. */
static int64_t
number_of(PyObject *message, Method *method, int64_t most)
{
    PyObject *said = call_method(method, message);
    if (said == NULL)
        return -2;
    int overflow = 0;
    long long number = PyLong_CheckExact(said) ? PyLong_AsLongLongAndOverflow(said, &overflow) : -1;
    Py_DECREF(said);
    return overflow || number < 0 || number > most ? -1 : number;
}

/* Record where a message is: DONE, UNKNOWN if the report has no place, or FAILED with an exception. */
static int
note_place(Places *places, Py_ssize_t index, PyObject *message)
{
    int64_t offset = number_of(message, &offset_of, INT64_MAX);
    int64_t partition = offset < 0 ? offset : number_of(message, &partition_of, INT32_MAX);
    if (partition < 0)
        return partition == -2 ? FAILED : UNKNOWN;
    /* The methods called may have begun a new section. */
    if (index >= places->count)
        return UNKNOWN;
    ((int32_t *)places->partitions.buf)[index] = (int32_t)partition;
    ((int64_t *)places->offsets.buf)[index] = offset;
    return DONE;
}

static PyObject *
report_call(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *names)
{
    Report *self = (Report *)object;
    Places *places = self->places;
    if (PyVectorcall_NARGS(nargsf) != 2 || (names != NULL && PyTuple_GET_SIZE(names) > 0)) {
        PyErr_SetString(PyExc_TypeError, "wanted: an error and a message");
        return NULL;
    }
    PyObject *error = args[0], *message = args[1];
    int noted = error == Py_None ? note_place(places, self->index, message) : UNKNOWN;
    if (noted == FAILED)
        return NULL;
    if (noted == UNKNOWN) {
        PyObject *index = PyLong_FromSsize_t(self->index);
        if (index == NULL)
            return NULL;
        PyObject *all[] = {NULL, index, error, message};
        PyObject *said = PyObject_Vectorcall(places->other, all + 1, 3 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
        Py_DECREF(index);
        if (said == NULL)
            return NULL;
        Py_DECREF(said);
    }
    if (places->left > 0 && --places->left == 0) {
        forget_places(places);
        return PyObject_CallNoArgs(places->over);
    }
    Py_RETURN_NONE;
}

static int
report_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(((Report *)object)->places);
    return 0;
}

static void
report_dealloc(PyObject *object)
{
    PyObject_GC_UnTrack(object);
    Py_XDECREF(((Report *)object)->places);
    PyObject_GC_Del(object);
}

static PyTypeObject ReportType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "bwtui_compiled.Report",
    .tp_doc = PyDoc_STR("Takes an error, or None, and a message: what became of one message."),
    .tp_basicsize = sizeof(Report),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL
                | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = report_dealloc,
    .tp_traverse = report_traverse,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Report, vectorcall),
};

PyDoc_STRVAR(begin_doc,
"begin(partitions, offsets, /)\n--\n\n"
"Note the places of as many messages as there are in two arrays, of 4 and of 8 bytes each, from now on.");

static PyObject *
places_begin(PyObject *object, PyObject *args)
{
    Places *self = (Places *)object;
    PyObject *partitions, *offsets;
    if (!PyArg_ParseTuple(args, "OO", &partitions, &offsets))
        return NULL;
    forget_places(self);
    int flags = PyBUF_WRITABLE | PyBUF_FORMAT | PyBUF_ND;
    if (PyObject_GetBuffer(partitions, &self->partitions, flags) < 0)
        return NULL;
    if (PyObject_GetBuffer(offsets, &self->offsets, flags) < 0) {
        forget_places(self);
        return NULL;
    }
    Py_ssize_t count = self->partitions.len / 4;
    if (strcmp(self->partitions.format, "i") || strcmp(self->offsets.format, "q")
        || self->partitions.itemsize != 4 || self->offsets.itemsize != 8 || self->offsets.len / 8 != count) {
        forget_places(self);
        PyErr_SetString(PyExc_ValueError, "these are no two arrays of the same length");
        return NULL;
    }
    self->count = self->left = count;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(reports_doc,
"reports(first, stop, /)\n--\n\n"
"Return what is to be called with the error, or None, and the message of each place from first to stop.");

static PyObject *
places_reports(PyObject *object, PyObject *args)
{
    Py_ssize_t first, stop;
    if (!PyArg_ParseTuple(args, "nn", &first, &stop))
        return NULL;
    if (first < 0 || stop < first) {
        PyErr_SetString(PyExc_ValueError, "there are no such places");
        return NULL;
    }
    PyObject *made = PyList_New(stop - first);
    for (Py_ssize_t i = first; made != NULL && i < stop; i++) {
        Report *report = PyObject_GC_New(Report, &ReportType);
        if (report == NULL) {
            Py_CLEAR(made);
            break;
        }
        report->vectorcall = report_call;
        report->places = (Places *)Py_NewRef(object);
        report->index = i;
        PyObject_GC_Track(report);
        PyList_SET_ITEM(made, i - first, (PyObject *)report);
    }
    return made;
}

static PyObject *
places_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *other, *over;
    if (!go_by_position(kwargs) || !PyArg_ParseTuple(args, "OO", &other, &over))
        return NULL;
    Places *self = (Places *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->other = Py_NewRef(other);
    self->over = Py_NewRef(over);
    return (PyObject *)self;
}

static int
places_traverse(PyObject *object, visitproc visit, void *arg)
{
    Places *self = (Places *)object;
    Py_VISIT(self->other);
    Py_VISIT(self->over);
    Py_VISIT(self->partitions.obj);
    Py_VISIT(self->offsets.obj);
    return 0;
}

static void
places_dealloc(PyObject *object)
{
    Places *self = (Places *)object;
    PyObject_GC_UnTrack(object);
    forget_places(self);
    Py_XDECREF(self->other);
    Py_XDECREF(self->over);
    Py_TYPE(object)->tp_free(object);
}

static PyMethodDef places_methods[] = {
    {"begin", places_begin, METH_VARARGS, begin_doc},
    {"reports", places_reports, METH_VARARGS, reports_doc},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject PlacesType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "bwtui_compiled.Places",
    .tp_doc = PyDoc_STR("Places(other, over, /): notes where messages are, or calls other; and over behind the last."),
    .tp_basicsize = sizeof(Places),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = places_new,
    .tp_dealloc = places_dealloc,
    .tp_traverse = places_traverse,
    .tp_methods = places_methods,
};

/* -- handing messages over, and counting reports ------------------------------------------------------- */

PyDoc_STRVAR(hand_over_doc,
"hand_over(produce, topic, messages, first, reports, refusals, /)\n--\n\n"
"Hand messages over, from the first on, each with its report of a list, or all of the same headers with one.\n"
"Return the place behind the last that was tried, and the exception of refusals that it was refused with, or None.");

/* Return whether produce accepted a message; FAILED with an exception. */
static int
hand_over_one(PyObject *produce, PyObject *topic, PyObject *message, PyObject *report)
{
    static PyObject *any = NULL; /* partition: chosen by the key */
    if (any == NULL && (any = PyLong_FromLong(-1)) == NULL)
        return FAILED;
    PyObject *key = PyTuple_GET_ITEM(message, 0), *value = PyTuple_GET_ITEM(message, 1);
    PyObject *all[] = {NULL, topic, value, key, any, report, Py_None, PyTuple_GET_ITEM(message, 2),
                       PyTuple_GET_ITEM(message, 3)};
    PyObject *said = PyObject_Vectorcall(produce, all + 1, 8 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    Py_XDECREF(said);
    return said == NULL ? FAILED : DONE;
}

static PyObject *
hand_over(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    Py_ssize_t place = nargs == 6 && PyList_CheckExact(args[2]) ? PyNumber_AsSsize_t(args[3], PyExc_IndexError) : -1;
    if (place < 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "wanted: produce, a topic, a list, a place in it, reports, refusals");
        return NULL;
    }
    PyObject *produce = args[0], *topic = args[1], *messages = args[2], *reports = args[4], *headers = NULL;
    int has_each = PyList_CheckExact(reports);
    /* The functions called could change a list. */
    for (; place < PyList_GET_SIZE(messages); place++) {
        PyObject *message = PyList_GET_ITEM(messages, place);
        if (!PyTuple_Check(message) || PyTuple_GET_SIZE(message) != 4
            || (has_each && place >= PyList_GET_SIZE(reports))) {
            PyErr_SetString(PyExc_TypeError, "wanted: a message of four, and its report");
            return NULL;
        }
        if (headers == NULL)
            headers = PyTuple_GET_ITEM(message, 3);
        else if (!has_each && headers != PyTuple_GET_ITEM(message, 3))
            break;
        Py_INCREF(message);
        PyObject *report = Py_NewRef(has_each ? PyList_GET_ITEM(reports, place) : reports);
        int handed = hand_over_one(produce, topic, message, report);
        Py_DECREF(report);
        Py_DECREF(message);
        if (handed == FAILED) {
            PyObject *type, *error, *trace;
            if (!PyErr_ExceptionMatches(args[5]))
                return NULL;
            PyErr_Fetch(&type, &error, &trace);
            PyErr_NormalizeException(&type, &error, &trace);
            Py_XDECREF(type);
            Py_XDECREF(trace);
            return Py_BuildValue("nN", place + 1, error);
        }
    }
    return Py_BuildValue("nO", place, Py_None);
}

/* Counts the reports of messages that share a callback, and calls over after the last. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *failed, *over;
    Py_ssize_t reported, delivered;
    Py_ssize_t expected; /* -1: not set yet */
} Tally;

static PyObject *
tally_end(Tally *self)
{
    if (self->reported != self->expected)
        Py_RETURN_NONE;
    PyObject *delivered = PyLong_FromSsize_t(self->delivered);
    PyObject *said = delivered == NULL ? NULL : PyObject_CallOneArg(self->over, delivered);
    Py_XDECREF(delivered);
    return said;
}

static PyObject *
tally_call(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *names)
{
    Tally *self = (Tally *)object;
    if (PyVectorcall_NARGS(nargsf) != 2 || (names != NULL && PyTuple_GET_SIZE(names) > 0)) {
        PyErr_SetString(PyExc_TypeError, "wanted: an error and a message");
        return NULL;
    }
    if (args[0] == Py_None)
        self->delivered++;
    else {
        PyObject *said = PyObject_Vectorcall(self->failed, args, 2, NULL);
        if (said == NULL)
            return NULL;
        Py_DECREF(said);
    }
    self->reported++;
    return tally_end(self);
}

PyDoc_STRVAR(expect_doc,
"expect(count, /)\n--\n\n"
"Call over with how many were delivered, once so many reports have come.");

static PyObject *
tally_expect(PyObject *object, PyObject *count)
{
    Tally *self = (Tally *)object;
    self->expected = PyNumber_AsSsize_t(count, PyExc_OverflowError);
    if (PyErr_Occurred())
        return NULL;
    return tally_end(self);
}

static PyObject *
tally_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *failed, *over;
    if (!go_by_position(kwargs) || !PyArg_ParseTuple(args, "OO", &failed, &over))
        return NULL;
    Tally *self = (Tally *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->vectorcall = tally_call;
    self->failed = Py_NewRef(failed);
    self->over = Py_NewRef(over);
    self->expected = -1;
    return (PyObject *)self;
}

static int
tally_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(((Tally *)object)->failed);
    Py_VISIT(((Tally *)object)->over);
    return 0;
}

static void
tally_dealloc(PyObject *object)
{
    PyObject_GC_UnTrack(object);
    Py_XDECREF(((Tally *)object)->failed);
    Py_XDECREF(((Tally *)object)->over);
    Py_TYPE(object)->tp_free(object);
}

static PyMethodDef tally_methods[] = {
    {"expect", tally_expect, METH_O, expect_doc},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject TallyType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "bwtui_compiled.Tally",
    .tp_doc = PyDoc_STR("Tally(failed, over, /): takes reports of delivery, and counts them."),
    .tp_basicsize = sizeof(Tally),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = tally_new,
    .tp_dealloc = tally_dealloc,
    .tp_traverse = tally_traverse,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Tally, vectorcall),
    .tp_methods = tally_methods,
};

/* -- gathering lines ----------------------------------------------------------------------------------- */

/* Gathers the lines of COPY; see bwtui/relay/snapshot/snapshot_copier.py. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *give, *lines;
    Py_ssize_t size, most_lines, most_bytes;
} Gathering;

static PyObject *
gathering_end(PyObject *object, PyObject *Py_UNUSED(nothing))
{
    Gathering *self = (Gathering *)object;
    if (PyList_GET_SIZE(self->lines) == 0)
        Py_RETURN_NONE;
    PyObject *next = PyList_New(0);
    if (next == NULL)
        return NULL;
    /* The function that receives the lines may call this object again. */
    PyObject *lines = self->lines, *size = PyLong_FromSsize_t(self->size);
    self->lines = next;
    self->size = 0;
    PyObject *all[] = {NULL, lines, size};
    PyObject *said = size == NULL
        ? NULL : PyObject_Vectorcall(self->give, all + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    Py_DECREF(lines);
    Py_XDECREF(size);
    return said;
}

static PyObject *
gathering_call(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *names)
{
    Gathering *self = (Gathering *)object;
    if (PyVectorcall_NARGS(nargsf) != 1 || (names != NULL && PyTuple_GET_SIZE(names) > 0)
        || !PyBytes_CheckExact(args[0])) {
        PyErr_SetString(PyExc_TypeError, "wanted: a line, as bytes");
        return NULL;
    }
    if (PyList_Append(self->lines, args[0]) < 0)
        return NULL;
    self->size += PyBytes_GET_SIZE(args[0]);
    if (self->size >= self->most_bytes || PyList_GET_SIZE(self->lines) >= self->most_lines)
        return gathering_end(object, NULL);
    Py_RETURN_NONE;
}

static PyObject *
gathering_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *give;
    Py_ssize_t most_lines, most_bytes;
    if (!go_by_position(kwargs) || !PyArg_ParseTuple(args, "Onn", &give, &most_lines, &most_bytes))
        return NULL;
    PyObject *lines = PyList_New(0);
    Gathering *self = lines == NULL ? NULL : (Gathering *)type->tp_alloc(type, 0);
    if (self == NULL) {
        Py_XDECREF(lines);
        return NULL;
    }
    self->vectorcall = gathering_call;
    self->give = Py_NewRef(give);
    self->lines = lines;
    self->most_lines = most_lines;
    self->most_bytes = most_bytes;
    return (PyObject *)self;
}

static int
gathering_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(((Gathering *)object)->give);
    Py_VISIT(((Gathering *)object)->lines);
    return 0;
}

static void
gathering_dealloc(PyObject *object)
{
    PyObject_GC_UnTrack(object);
    Py_XDECREF(((Gathering *)object)->give);
    Py_XDECREF(((Gathering *)object)->lines);
    Py_TYPE(object)->tp_free(object);
}

static PyMethodDef gathering_methods[] = {
    {"end", gathering_end, METH_NOARGS, PyDoc_STR("end()\n--\n\nGive what there is.")},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject GatheringType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "bwtui_compiled.Gathering",
    .tp_doc = PyDoc_STR("Gathering(give, lines, bytes, /): gives lines and their size, once there are so many."),
    .tp_basicsize = sizeof(Gathering),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = gathering_new,
    .tp_dealloc = gathering_dealloc,
    .tp_traverse = gathering_traverse,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Gathering, vectorcall),
    .tp_methods = gathering_methods,
};

/* -- digests of an audit's cells ----------------------------------------------------------------------- */

#define ROTATED(x, by) (((x) << (by)) | ((x) >> (64 - (by))))

/* Compilers turn this into one instruction. */
static inline uint64_t
word_at(const unsigned char *from)
{
    return (uint64_t)from[0] | (uint64_t)from[1] << 8 | (uint64_t)from[2] << 16 | (uint64_t)from[3] << 24
           | (uint64_t)from[4] << 32 | (uint64_t)from[5] << 40 | (uint64_t)from[6] << 48 | (uint64_t)from[7] << 56;
}

static inline void
sip_rounds(uint64_t v[4], int rounds)
{
    while (rounds--) {
        v[0] += v[1]; v[1] = ROTATED(v[1], 13); v[1] ^= v[0]; v[0] = ROTATED(v[0], 32);
        v[2] += v[3]; v[3] = ROTATED(v[3], 16); v[3] ^= v[2];
        v[0] += v[3]; v[3] = ROTATED(v[3], 21); v[3] ^= v[0];
        v[2] += v[1]; v[1] = ROTATED(v[1], 17); v[1] ^= v[2]; v[2] = ROTATED(v[2], 32);
    }
}

/* SipHash-2-4 (Aumasson and Bernstein, 2012), whose words are little-endian. */
static uint64_t
siphash(const unsigned char *from, Py_ssize_t size, const uint64_t key[2])
{
    uint64_t v[4] = {key[0] ^ 0x736f6d6570736575u, key[1] ^ 0x646f72616e646f6du,
                     key[0] ^ 0x6c7967656e657261u, key[1] ^ 0x7465646279746573u};
    Py_ssize_t whole = size & ~(Py_ssize_t)7;
    for (Py_ssize_t at = 0; at < whole; at += 8) {
        uint64_t word = word_at(from + at);
        v[3] ^= word;
        sip_rounds(v, 2);
        v[0] ^= word;
    }
    uint64_t last = (uint64_t)size << 56;
    for (Py_ssize_t i = whole; i < size; i++)
        last |= (uint64_t)from[i] << (8 * (i - whole));
    v[3] ^= last;
    sip_rounds(v, 2);
    v[0] ^= last;
    v[2] ^= 0xff;
    sip_rounds(v, 4);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* Return whether the offsets of count cells increase and lie within size bytes, as in a valid Arrow array. */
static int
are_within(const int32_t *offsets, Py_ssize_t count, Py_ssize_t size)
{
    for (Py_ssize_t i = 0; i < count; i++)
        if (offsets[i] < 0 || offsets[i] > offsets[i + 1])
            return 0;
    return offsets[count] >= 0 && offsets[count] <= size;
}

PyDoc_STRVAR(digests_doc,
"digests(offsets, data, first, count, key, /)\n--\n\n"
"Return a number for each of count cells behind the first of an Arrow array of bytes or text: 63 bits of its\n"
"SipHash-2-4 with a key of 16 bytes, as integers of 8 bytes. Raises ValueError for buffers that are none.");

static PyObject *
digests(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer offsets, data, key;
    Py_ssize_t first, count;
    PyObject *made = NULL;
    if (!PyArg_ParseTuple(args, "y*y*nny*", &offsets, &data, &first, &count, &key))
        return NULL;
    const int32_t *from = offsets.buf;
    Py_ssize_t known = offsets.len / (Py_ssize_t)sizeof(int32_t);
    if (first < 0 || count < 0 || key.len != 16 || first >= known || count >= known - first
        || (uintptr_t)from % sizeof(int32_t) || !are_within(from += first, count, data.len)) {
        PyErr_SetString(PyExc_ValueError, "these are no cells of an array and a key");
    }
    else if ((made = PyBytes_FromStringAndSize(NULL, 8 * count)) != NULL) {
        char *to = PyBytes_AS_STRING(made);
        const unsigned char *bytes = data.buf;
        uint64_t keys[2] = {word_at(key.buf), word_at((unsigned char *)key.buf + 8)};
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t i = 0; i < count; i++, to += 8) {
            uint64_t digest = siphash(bytes + from[i], from[i + 1] - from[i], keys) >> 1;
            memcpy(to, &digest, 8);
        }
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&offsets);
    PyBuffer_Release(&data);
    PyBuffer_Release(&key);
    return made;
}

static PyMethodDef functions[] = {
    {"columns", columns, METH_VARARGS, columns_doc},
    {"digests", digests, METH_VARARGS, digests_doc},
    {"hand_over", (PyCFunction)(void (*)(void))hand_over, METH_FASTCALL, hand_over_doc},
    {"pack", pack, METH_VARARGS, pack_doc},
    {"tags", tags, METH_VARARGS, tags_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "bwtui_compiled",
    .m_doc = "The compiled twin of what bwtui does for each row.",
    .m_methods = functions,
    .m_size = -1,
};

static int
name_methods(void)
{
    static const struct {
        Method *method;
        const char *name;
    } all[] = {{&key_of, "key"}, {&offset_of, "offset"}, {&partition_of, "partition"},
               {&timestamp_of, "timestamp"}, {&value_of, "value"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if ((all[i].method->name = PyUnicode_InternFromString(all[i].name)) == NULL)
            return 0;
    return 1;
}

PyMODINIT_FUNC
PyInit_bwtui_compiled(void)
{
    PyObject *made = NULL;
    if (PyType_Ready(&ReportType) < 0 || !name_methods() || (made = PyModule_Create(&module)) == NULL)
        return NULL;
    if (PyModule_AddType(made, &EncoderType) < 0 || PyModule_AddType(made, &GatheringType) < 0
        || PyModule_AddType(made, &PlacesType) < 0 || PyModule_AddType(made, &TallyType) < 0
        || PyModule_AddIntConstant(made, "ABI_VERSION", ABI_VERSION) < 0) {
        Py_DECREF(made);
        return NULL;
    }
    return made;
}

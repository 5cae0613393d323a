/* Streams, and copies that are made when somebody waits for them. */
#define _GNU_SOURCE
#include "driver.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

struct copy {
    CUdeviceptr device;
    char *host;
    size_t bytes;
    bool to_device;
    struct copy *next;
};

struct stream {
    struct context *context;
    struct copy *first, **last;
};

#define STREAMS 64

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct stream *streams[STREAMS];

static bool is_stream(const struct stream *stream)
{
    for (int i = 0; stream && i < STREAMS; i++)
        if (streams[i] == stream)
            return true;
    return false;
}

int open_streams(void)
{
    int open = 0;
    for (int i = 0; i < STREAMS; i++)
        open += streams[i] != NULL;
    return open;
}

/* Whether all bytes of a range can be used by the device. */
static bool is_usable(CUdeviceptr at, size_t bytes)
{
    while (bytes) {
        int fd;
        uint64_t offset, there;
        if (!resolve(at, &fd, &offset, &there))
            return false;
        uint64_t step = there < bytes ? there : bytes;
        at += step;
        bytes -= step;
    }
    return true;
}

static CUresult make(struct context *context, const struct copy *copy)
{
    if (context->broken)
        return context->broken;
    int ordered_code = failure("copy"), gpu = gpu_of(context->device);
    if (!ordered_code && lost(gpu))
        ordered_code = UNKNOWN;
    if (!ordered_code && ordered("ecc", gpu) > 0)
        ordered_code = ECC_UNCORRECTABLE;
    if (ordered_code)
        return context->broken = ordered_code;
    CUdeviceptr at = copy->device;
    char *host = copy->host;
    size_t left = copy->bytes;
    while (left) {
        int fd;
        uint64_t offset, there;
        if (!resolve(at, &fd, &offset, &there)) {
            violation("a copy", "to memory that the device cannot use (any more)");
            return context->broken = ILLEGAL_ADDRESS;
        }
        size_t step = there < left ? there : left;
        ssize_t done = copy->to_device ? pwrite(fd, host, step, offset)
                                       : pread(fd, host, step, offset);
        if (done <= 0)
            return context->broken = UNKNOWN;
        at += done;
        host += done;
        left -= done;
    }
    return SUCCESS;
}

/* The mutex is held. */
static CUresult make_stream(struct stream *stream)
{
    CUresult result = stream->context->broken;
    while (stream->first) {
        struct copy *copy = stream->first;
        if (!result)
            result = make(stream->context, copy);
        stream->first = copy->next;
        free(copy);
    }
    stream->last = &stream->first;
    return result;
}

CUresult make_all(struct context *context)
{
    CUresult result = SUCCESS;
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < STREAMS; i++)
        if (streams[i] && streams[i]->context == context) {
            CUresult made = make_stream(streams[i]);
            result = result ? result : made;
        }
    pthread_mutex_unlock(&mutex);
    return result;
}

bool is_waiting(uint64_t start, uint64_t bytes)
{
    bool found = false;
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < STREAMS; i++)
        /* What waits in a context that has failed is never made. */
        for (struct copy *copy = streams[i] && !streams[i]->context->broken ? streams[i]->first : NULL;
             copy; copy = copy->next) {
            uint64_t host = (uint64_t)copy->host;
            found |= start < host + copy->bytes && host < start + bytes;
            found |= start < copy->device + copy->bytes && copy->device < start + bytes;
        }
    pthread_mutex_unlock(&mutex);
    return found;
}

EXPORT CUresult cuStreamCreate(struct stream **stream, unsigned int flags)
{
    BEGIN(CONTEXT);
    if (flags & ~1u)
        return wrong(&call, INVALID_VALUE, "with unknown flags");
    pthread_mutex_lock(&mutex);
    int place = 0;
    while (place < STREAMS && streams[place])
        place++;
    if (place < STREAMS) {
        *stream = streams[place] = calloc(1, sizeof **stream);
        (*stream)->context = call.context;
        (*stream)->last = &(*stream)->first;
    }
    pthread_mutex_unlock(&mutex);
    return place < STREAMS ? SUCCESS : OUT_OF_MEMORY;
}

EXPORT CUresult cuStreamSynchronize(struct stream *stream)
{
    BEGIN(CONTEXT);
    pthread_mutex_lock(&mutex);
    bool known = is_stream(stream);
    CUresult result = known ? make_stream(stream) : INVALID_HANDLE;
    pthread_mutex_unlock(&mutex);
    return known ? result : wrong(&call, result, "no stream");
}

EXPORT CUresult cuStreamDestroy_v2(struct stream *stream)
{
    BEGIN(CONTEXT);
    pthread_mutex_lock(&mutex);
    bool known = is_stream(stream);
    if (known) {
        make_stream(stream);
        for (int i = 0; i < STREAMS; i++)
            if (streams[i] == stream)
                streams[i] = NULL;
        free(stream);
    }
    pthread_mutex_unlock(&mutex);
    return known ? SUCCESS : wrong(&call, INVALID_HANDLE, "no stream");
}

EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes,
                                     struct stream *stream)
{
    BEGIN(CONTEXT);
    if (!is_usable(to, bytes))
        return wrong(&call, INVALID_VALUE, "to memory that the device cannot use");
    if (!is_pinned(from, bytes))
        violation(call.name, "from memory that is not pinned: the copy is none that one can wait for");
    struct copy *copy = calloc(1, sizeof *copy);
    *copy = (struct copy){to, (char *)from, bytes, true, NULL};
    pthread_mutex_lock(&mutex);
    CUresult result = SUCCESS;
    if (!is_stream(stream))
        result = INVALID_HANDLE;
    else if (stream->context != call.context)
        result = INVALID_CONTEXT;
    if (!result) {
        *stream->last = copy;
        stream->last = &copy->next;
    }
    pthread_mutex_unlock(&mutex);
    if (result)
        free(copy);
    return result ? wrong(&call, result, "a stream that is not this context's") : SUCCESS;
}

static CUresult now(const struct call *call, struct copy copy)
{
    if (!is_usable(copy.device, copy.bytes))
        return wrong(call, INVALID_VALUE, "memory that the device cannot use");
    return make(call->context, &copy);
}

EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes)
{
    BEGIN(CONTEXT);
    return now(&call, (struct copy){to, (char *)from, bytes, true, NULL});
}

EXPORT CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes)
{
    BEGIN(CONTEXT);
    return now(&call, (struct copy){from, to, bytes, false, NULL});
}

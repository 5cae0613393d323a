/* Ranges of addresses, what is mapped there, and who may use it. They are never backed by
 * anything that the processor could touch. */
#define _GNU_SOURCE
#include "memory.h"

#include <sys/mman.h>

#define RANGES 128
#define MAPPINGS 1024
#define READ_WRITE 3

struct access {
    struct location location;
    int flags;
};

struct mapping {
    CUdeviceptr at;
    uint64_t bytes;
    struct handle *handle;
    int access;
};

static struct { CUdeviceptr at; uint64_t bytes; bool allocated; } ranges[RANGES];
static struct mapping mappings[MAPPINGS];

int open_ranges(void)
{
    int open = 0;
    for (int i = 0; i < RANGES; i++)
        open += ranges[i].bytes != 0;
    return open;
}

static CUresult reserve(CUdeviceptr *out, uint64_t bytes, CUdeviceptr wished, bool allocated)
{
    int place = 0;
    while (place < RANGES && ranges[place].bytes)
        place++;
    if (place == RANGES)
        return OUT_OF_MEMORY;
    /* Aligned as a device's memory is. */
    size_t more = bytes + GRANULARITY;
    char *start = mmap((void *)wished, more, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED)
        return OUT_OF_MEMORY;
    char *at = (char *)(((uint64_t)start + GRANULARITY - 1) / GRANULARITY * GRANULARITY);
    if (at > start)
        munmap(start, at - start);
    if (start + more > at + bytes)
        munmap(at + bytes, start + more - (at + bytes));
    ranges[place].at = *out = (CUdeviceptr)at;
    ranges[place].bytes = bytes;
    ranges[place].allocated = allocated;
    return SUCCESS;
}

static bool overlaps(const struct mapping *mapping, CUdeviceptr at, uint64_t bytes)
{
    return mapping->bytes && at < mapping->at + mapping->bytes && mapping->at < at + bytes;
}

/* Whether the mappings that begin and end inside a range fill it. */
static bool is_filled(CUdeviceptr at, uint64_t bytes)
{
    uint64_t filled = 0;
    for (int i = 0; i < MAPPINGS; i++) {
        if (!overlaps(&mappings[i], at, bytes))
            continue;
        if (mappings[i].at < at || mappings[i].at + mappings[i].bytes > at + bytes)
            return false;
        filled += mappings[i].bytes;
    }
    return bytes && filled == bytes;
}

static CUresult map(CUdeviceptr at, struct handle *handle, int access)
{
    for (int i = 0; i < MAPPINGS; i++) {
        if (mappings[i].bytes)
            continue;
        mappings[i] = (struct mapping){at, handle->bytes, handle, access};
        handle->mapped++;
        hold(handle->inode, 1);
        return SUCCESS;
    }
    return OUT_OF_MEMORY;
}

static void unmap(CUdeviceptr at, uint64_t bytes)
{
    for (int i = 0; i < MAPPINGS; i++) {
        if (!overlaps(&mappings[i], at, bytes))
            continue;
        mappings[i].bytes = 0;
        mappings[i].handle->mapped--;
        drop(mappings[i].handle);
    }
}

bool resolve(CUdeviceptr at, int *fd, uint64_t *offset, uint64_t *bytes)
{
    bool found = false;
    pthread_mutex_lock(&memory_mutex);
    for (int i = 0; i < MAPPINGS && !found; i++) {
        struct mapping *mapping = &mappings[i];
        if (!overlaps(mapping, at, 1) || mapping->access != READ_WRITE)
            continue;
        *fd = mapping->handle->fd;
        *offset = at - mapping->at;
        *bytes = mapping->bytes - *offset;
        found = true;
    }
    pthread_mutex_unlock(&memory_mutex);
    return found;
}

EXPORT CUresult cuMemAddressReserve(CUdeviceptr *at, size_t bytes, size_t alignment,
                                    CUdeviceptr wished, unsigned long long flags)
{
    BEGIN_ALONE(INITIALIZED);
    REFUSE(!bytes || odd(bytes), "the size must be a multiple of 2 MiB");
    REFUSE(alignment & (alignment - 1), "the alignment must be a power of two");
    REFUSE(flags, "flags must be 0");
    return reserve(at, bytes, wished, false);
}

EXPORT CUresult cuMemAddressFree(CUdeviceptr at, size_t bytes)
{
    BEGIN_ALONE(INITIALIZED);
    for (int i = 0; i < MAPPINGS; i++)
        REFUSE(overlaps(&mappings[i], at, bytes), "something is mapped there");
    for (int i = 0; i < RANGES; i++) {
        if (!bytes || ranges[i].at != at || ranges[i].bytes != bytes || ranges[i].allocated)
            continue;
        munmap((void *)at, bytes);
        ranges[i].bytes = 0;
        return SUCCESS;
    }
    REFUSE(true, "not as it was reserved");
}

EXPORT CUresult cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, uint64_t number,
                         unsigned long long flags)
{
    BEGIN_ALONE(INITIALIZED);
    struct handle *handle = kept(number);
    REFUSE(!handle, "no handle (any more)");
    REFUSE(offset || flags, "offset and flags must be 0");
    REFUSE(odd(at) || bytes != handle->bytes, "not the whole of what the handle is");
    bool reserved = false;
    for (int i = 0; i < RANGES; i++)
        reserved |= ranges[i].bytes && !ranges[i].allocated && at >= ranges[i].at &&
                    at + bytes <= ranges[i].at + ranges[i].bytes;
    REFUSE(!reserved, "a range that is not reserved");
    for (int i = 0; i < MAPPINGS; i++)
        REFUSE(overlaps(&mappings[i], at, bytes), "something is mapped there");
    return map(at, handle, 0);
}

EXPORT CUresult cuMemSetAccess(CUdeviceptr at, size_t bytes, const struct access *what,
                               size_t count)
{
    BEGIN_ALONE(INITIALIZED);
    REFUSE(!what || count != 1, "the fake takes one description");
    REFUSE(what->location.type != DEVICE || gpu_of(what->location.id) < 0, "no such device");
    REFUSE(what->flags != 0 && what->flags != 1 && what->flags != READ_WRITE, "no such right");
    REFUSE(!is_filled(at, bytes), "a range that is not mapped in whole");
    for (int i = 0; i < MAPPINGS; i++) {
        if (!overlaps(&mappings[i], at, bytes))
            continue;
        REFUSE(gpu_with(mappings[i].handle) != gpu_of(what->location.id),
               "a device that does not have this memory");
        mappings[i].access = what->flags;
    }
    return SUCCESS;
}

EXPORT CUresult cuMemUnmap(CUdeviceptr at, size_t bytes)
{
    /* Not alone yet: what makes copies waits for that too. */
    if (is_waiting(at, bytes))
        violation(__func__, "while copies to it are under way");
    BEGIN_ALONE(INITIALIZED);
    REFUSE(!is_filled(at, bytes), "not the whole of what was mapped");
    unmap(at, bytes);
    return SUCCESS;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *at, size_t bytes)
{
    BEGIN_ALONE(CONTEXT);
    REFUSE(!bytes, "of no bytes");
    uint64_t whole = (bytes + GRANULARITY - 1) / GRANULARITY * GRANULARITY;
    struct handle *handle;
    CUresult result = create(&handle, gpu_of(call.context->device), whole, false);
    if (!result)
        result = reserve(at, whole, 0, true);
    if (!result)
        result = map(*at, handle, READ_WRITE);
    if (!result) {
        handle->kept = false;
        drop(handle);
    }
    return result;
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr at)
{
    BEGIN_ALONE(CONTEXT);
    for (int i = 0; i < RANGES; i++) {
        if (!at || ranges[i].at != at || !ranges[i].bytes || !ranges[i].allocated)
            continue;
        unmap(at, ranges[i].bytes);
        munmap((void *)at, ranges[i].bytes);
        ranges[i].bytes = 0;
        return SUCCESS;
    }
    REFUSE(true, "what cuMemAlloc did not give");
}


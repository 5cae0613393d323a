/* What the parts of the fake libcuda share. Names and numbers are those of the driver's API. */
#pragma once
#include "device.h"

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    ECC_UNCORRECTABLE = 214,
    INVALID_HANDLE = 400,
    ILLEGAL_STATE = 401,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    CONTEXT_IS_DESTROYED = 709,
    NOT_SUPPORTED = 801,
    UNKNOWN = 999,
};

/* The primary context of a device. */
struct context {
    int device;
    int retained;
    /* An error that ends it: all later calls have it too. */
    int broken;
};

/* What a call needs before it can begin. */
enum needs { NOTHING, INITIALIZED, CONTEXT };

/* A call under way; `error` is why it cannot be made. */
struct call {
    const char *name;
    struct context *context;
    CUresult error;
    bool counted;
};

struct call begin(const char *name, enum needs needs);
void end(struct call *call);
/* Says why a call is wrong. */
CUresult wrong(const struct call *call, CUresult error, const char *why);

/* Begins the function that it stands in. */
#define BEGIN(needs)                                                          \
    struct call call __attribute__((cleanup(end))) = begin(__func__, needs); \
    if (call.error)                                                           \
        return call.error

/* The place of this process among those of the machine. */
int here(void);
/* Devices that this process sees, and which of NVML's a device is; -1 for none. */
int visible(void);
int gpu_of(CUdevice device);

/* Memory of the device at an address: the file that holds it, the offset there, and how many
 * bytes follow. False where nothing is mapped, or the device was not given access. */
bool resolve(CUdeviceptr at, int *fd, uint64_t *offset, uint64_t *bytes);
/* Whether a range lies in pinned memory of the node. */
bool is_pinned(const void *start, size_t bytes);
/* Whether copies are waiting that read or write a range, of the node or of a device. */
bool is_waiting(uint64_t start, uint64_t bytes);
/* Makes the waiting copies of all streams of a context. */
CUresult make_all(struct context *context);
/* What this process has not given back, by part. */
int open_streams(void);
int open_ranges(void);
int open_handles(void);
int open_pins(void);

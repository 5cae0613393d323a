// A SIMULATED engine for benchmarks of proxies: fixed replies for the least CPU, no model.
//
//   engine TOKENS INTERVAL_MS PORT...
//
// Reads a chat to its end, as real engines do, and answers it with one fixed reply, or, where
// the body asks for `"stream":true`, with TOKENS server-sent events, one each INTERVAL_MS.

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { HEAD = 8192 };

struct connection {
    int fd, listener;
    long left;        // bytes of the body to come; -1 until the head is complete
    char chunked, stream, *head;
    int held;         // bytes in `head`
    int tokens;       // of the stream, still to be sent
    double due;       // when the next one is
    struct connection *next; // in the line of streams: all wait equally long
};

static struct connection *first, *last;
static char *reply, *event, *end;
static int tokens;
static double interval;

#define MODEL "engine-sim"
static const char *ANSWERS[][2] = {
    {"/health", "{}"},
    {"/is_paused", "{\"is_paused\":false}"},
    {"/v1/models", "{\"object\":\"list\",\"data\":[{\"id\":\"" MODEL "\",\"object\":\"model\"}]}"},
    {"/get_model_info", "{\"model_path\":\"" MODEL "\",\"is_generation\":true}"},
    {"/model_info", "{\"model_path\":\"" MODEL "\",\"is_generation\":true}"},
    {"/get_server_info", "{\"served_model_name\":\"" MODEL "\"}"},
    {"/server_info", "{\"served_model_name\":\"" MODEL "\"}"},
};

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}

static void die(const char *what) {
    perror(what);
    exit(1);
}

static char *json(int status, const char *body) {
    char *text;
    if (asprintf(&text, "HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n%s",
            status, status == 200 ? "OK" : "Not Found", strlen(body), body) < 0) die("asprintf");
    return text;
}

static char *chunk(const char *data, const char *after) {
    char *text;
    if (asprintf(&text, "%zx\r\n%s\r\n%s", strlen(data), data, after) < 0) die("asprintf");
    return text;
}

static void drop(struct connection *connection) {
    close(connection->fd);
    connection->fd = -1;
    // One in the line is freed when its turn comes.
    if (!connection->tokens) {
        free(connection->head);
        free(connection);
    }
}

// Replies are far shorter than a socket's buffer; a peer that does not read is dropped.
static int put(struct connection *connection, const char *text) {
    long length = strlen(text);
    return send(connection->fd, text, length, MSG_NOSIGNAL) == length;
}

static void enqueue(struct connection *connection) {
    connection->due = now() + interval;
    connection->next = NULL;
    *(first ? &last->next : &first) = connection;
    last = connection;
}

// The request is here as a whole.
static int answer(struct connection *connection) {
    connection->left = -1;
    connection->held = 0;
    if (!strncmp(connection->head, "GET ", 4)) {
        char *path = connection->head + 4, *text = NULL;
        for (unsigned i = 0; i < sizeof ANSWERS / sizeof *ANSWERS; i++) {
            size_t length = strlen(ANSWERS[i][0]);
            if (!strncmp(path, ANSWERS[i][0], length) && path[length] == ' ')
                text = json(200, ANSWERS[i][1]);
        }
        if (!text) text = json(404, "{}");
        int ok = put(connection, text);
        free(text);
        return ok;
    }
    if (!connection->stream) return put(connection, reply);
    connection->stream = 0;
    connection->tokens = tokens;
    enqueue(connection);
    return put(connection, "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
                           "transfer-encoding: chunked\r\n\r\n") && put(connection, event);
}

// Takes in what was read; a second request before the first is answered is not supported.
static int take(struct connection *connection, const char *bytes, long length) {
    if (connection->left < 0) {
        if (connection->held + length > HEAD && connection->held) return 0;
        long kept = length < HEAD - connection->held ? length : HEAD - connection->held;
        memcpy(connection->head + connection->held, bytes, kept);
        connection->held += kept;
        connection->head[connection->held] = 0;
        char *body = strstr(connection->head, "\r\n\r\n");
        if (!body) return connection->held < HEAD;
        body += 4;
        *(body - 2) = 0;
        char *field = strcasestr(connection->head, "\r\ncontent-length:");
        connection->chunked = !!strcasestr(connection->head, "\r\ntransfer-encoding: chunked");
        connection->left = field ? atol(field + 17) : 0;
        long before = connection->held - kept;
        bytes += body - connection->head - before;
        length -= body - connection->head - before;
    }
    if (length > 0 && memmem(bytes, length < HEAD ? length : HEAD, "\"stream\":true", 13))
        connection->stream = 1;
    if (connection->chunked) {
        if (length < 5 || memcmp(bytes + length - 5, "0\r\n\r\n", 5)) return 1;
        return answer(connection);
    }
    connection->left -= length;
    return connection->left > 0 ? 1 : answer(connection);
}

static void open_port(int poll, int port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    struct connection *listener = calloc(1, sizeof *listener);
    if (!listener) die("calloc");
    int yes = 1;
    listener->listener = 1;
    listener->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(listener->fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    struct epoll_event ready = {.events = EPOLLIN, .data.ptr = listener};
    if (bind(listener->fd, (struct sockaddr *)&at, sizeof at) < 0 || listen(listener->fd, 4096) < 0
        || epoll_ctl(poll, EPOLL_CTL_ADD, listener->fd, &ready) < 0) die("listen");
}

static void accept_all(int poll, int listener) {
    int fd, yes = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        struct connection *connection = calloc(1, sizeof *connection);
        if (!connection || !(connection->head = malloc(HEAD + 1))) die("malloc");
        connection->fd = fd;
        connection->left = -1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        struct epoll_event ready = {.events = EPOLLIN, .data.ptr = connection};
        if (epoll_ctl(poll, EPOLL_CTL_ADD, fd, &ready) < 0) die("epoll_ctl");
    }
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: engine TOKENS INTERVAL_MS PORT...\n");
        return 2;
    }
    tokens = atoi(argv[1]);
    interval = atof(argv[2]) / 1000;
    reply = json(200, "{\"id\":\"chatcmpl-fixed\",\"object\":\"chat.completion\",\"created\":0,"
        "\"model\":\"" MODEL "\",\"choices\":[{\"index\":0,\"finish_reason\":\"stop\",\"logprobs\":null,"
        "\"message\":{\"role\":\"assistant\",\"content\":\"The fixed reply of a simulated engine, as "
        "long as a short answer.\"}}],\"usage\":{\"prompt_tokens\":16,\"completion_tokens\":16,"
        "\"total_tokens\":32}}");
    event = chunk("data: {\"id\":\"chatcmpl-fixed\",\"object\":\"chat.completion.chunk\",\"created\":0,"
        "\"model\":\"" MODEL "\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"},"
        "\"finish_reason\":null}]}\n\n", "");
    end = chunk("data: [DONE]\n\n", "0\r\n\r\n");
    int poll = epoll_create1(0);
    for (int i = 3; i < argc; i++) open_port(poll, atoi(argv[i]));

    static char bytes[1 << 18];
    for (;;) {
        struct epoll_event ready[256];
        double wait = first ? first->due - now() : 3600;
        int count = epoll_wait(poll, ready, 256, wait > 0 ? (int)(wait * 1000) + 1 : 0);
        for (int i = 0; i < count; i++) {
            struct connection *connection = ready[i].data.ptr;
            if (connection->listener) {
                accept_all(poll, connection->fd);
                continue;
            }
            long length = read(connection->fd, bytes, sizeof bytes);
            if (length < 0 && errno == EAGAIN) continue;
            if (length <= 0 || !take(connection, bytes, length)) drop(connection);
        }
        for (double at = now(); first && first->due <= at;) {
            struct connection *connection = first;
            first = connection->next;
            int open = connection->fd >= 0;
            int sent = open && put(connection, --connection->tokens > 0 ? event : end);
            if (sent && connection->tokens > 0) {
                enqueue(connection);
            } else if (!sent) {
                connection->tokens = 0;
                if (open) close(connection->fd);
                free(connection->head);
                free(connection);
            }
        }
    }
}

// Holds many streams of server-sent events open at once, with little memory and CPU.
//
//   streams PORT STREAMS HEADER [AUTHORIZATION]
//
// Each stream is one chat of a trajectory of its own, named in HEADER. Streams are opened a few
// at a time. Prints `OK FAILED MOST SECONDS` at the end: MOST were open at once.

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { OPENING = 128, LIMIT_SECONDS = 90 };
static const char END[] = "data: [DONE]";
static const char BODY[] =
    "{\"model\":\"engine-sim\",\"messages\":[{\"role\":\"user\",\"content\":\"go on\"}],\"stream\":true}";

struct stream {
    int fd;
    char sent, begun;
    unsigned char matched; // characters of END that the last bytes were
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

static void start(int poll, struct stream *stream, int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    stream->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (stream->fd < 0) die("socket");
    if (connect(stream->fd, (struct sockaddr *)&to, sizeof to) < 0 && errno != EINPROGRESS)
        die("connect");
    struct epoll_event event = {.events = EPOLLOUT, .data.ptr = stream};
    if (epoll_ctl(poll, EPOLL_CTL_ADD, stream->fd, &event) < 0) die("epoll_ctl");
}

// Sends the request; it is short enough for the socket's empty buffer.
static int ask(int poll, struct stream *stream, long number, char **argv, int argc) {
    char text[1024];
    int length = snprintf(text, sizeof text,
        "POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        "Connection: close\r\n%s: stream-%ld\r\n%s%s%sContent-Length: %zu\r\n\r\n%s",
        argv[3], number, argc > 4 ? "Authorization: " : "", argc > 4 ? argv[4] : "",
        argc > 4 ? "\r\n" : "", sizeof BODY - 1, BODY);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = stream};
    stream->sent = 1;
    return send(stream->fd, text, length, MSG_NOSIGNAL) == length
        && epoll_ctl(poll, EPOLL_CTL_MOD, stream->fd, &event) == 0;
}

// Counts events, and says whether the last of them was END.
static int scan(struct stream *stream, const char *bytes, long length, long *events) {
    for (const char *at = bytes; at < bytes + length; at++) {
        stream->matched = *at == END[stream->matched] ? stream->matched + 1 : *at == END[0];
        if (stream->matched == 6) ++*events;
        if (stream->matched == sizeof END - 1) return 1;
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: streams PORT STREAMS HEADER [AUTHORIZATION]\n");
        return 2;
    }
    int port = atoi(argv[1]);
    long all = atol(argv[2]);
    struct stream *streams = calloc(all, sizeof *streams);
    int poll = epoll_create1(0);
    if (!streams || poll < 0) die("start");

    long started = 0, opening = 0, open = 0, most = 0, ok = 0, failed = 0, events = 0;
    double began = now();
    while (ok + failed < all && now() - began < LIMIT_SECONDS) {
        for (; opening < OPENING && started < all; started++, opening++)
            start(poll, &streams[started], port);
        struct epoll_event ready[256];
        int count = epoll_wait(poll, ready, 256, 1000);
        for (int i = 0; i < count; i++) {
            struct stream *stream = ready[i].data.ptr;
            char bytes[16384];
            int over = 0;
            if (!stream->sent) {
                over = ask(poll, stream, stream - streams, argv, argc) ? 0 : -1;
            } else {
                long length = read(stream->fd, bytes, sizeof bytes);
                if (length < 0 && errno == EAGAIN) continue;
                long before = events;
                over = length <= 0 ? -1 : scan(stream, bytes, length, &events);
                if (!stream->begun && events > before) {
                    stream->begun = 1;
                    opening--;
                    open++;
                }
            }
            if (over) {
                *(over > 0 ? &ok : &failed) += 1;
                *(stream->begun ? &open : &opening) -= 1;
                close(stream->fd);
            }
        }
        if (open > most) most = open;
    }
    printf("%ld %ld %ld %.1f\n", ok, all - ok, most, now() - began);
    return 0;
}

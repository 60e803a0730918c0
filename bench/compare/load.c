/*
 * A load generator that uses little CPU: connections send a batch of pipelined requests, and the next batch when all
 * replies are there. Replies are counted by their newlines.
 *
 *     load PORT CONNECTIONS DEPTH NEWLINES MS < batches
 *
 * Standard input has the batches, each after its length (4 bytes, little endian). A batch and its replies fit into the
 * buffers of a socket, so a blocking write does not wait for the server. Prints replies and nanoseconds.
 */

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_BATCHES 64
#define MAX_CONNECTIONS 1024
#define MAX_BATCH_BYTES (1 << 20)
#define EVENTS 64
#define GRACE_SECONDS 10

struct connection {
  int fd;
  long missing; /* newlines of the batch in flight */
  unsigned next;
};

static struct connection connections[MAX_CONNECTIONS];
static char *batches[MAX_BATCHES];
static uint32_t lengths[MAX_BATCHES];
static int batch_count;
static char buffer[1 << 18];

static void fail(const char *what) {
  perror(what);
  exit(1);
}

static int64_t now_ns(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return (int64_t)at.tv_sec * 1000000000 + at.tv_nsec;
}

static void read_batches(void) {
  uint32_t length;
  while (batch_count < MAX_BATCHES && fread(&length, 4, 1, stdin) == 1) {
    if (length == 0 || length > MAX_BATCH_BYTES) fail("length of a batch");
    batches[batch_count] = malloc(length);
    lengths[batch_count] = length;
    if (fread(batches[batch_count++], 1, length, stdin) != length) fail("batch");
  }
  if (batch_count == 0) fail("no batches");
}

static void send_batch(struct connection *own, long newlines) {
  const unsigned batch = own->next++ % (unsigned)batch_count;
  own->missing = newlines;
  for (size_t sent = 0; sent < lengths[batch];) {
    const ssize_t count = send(own->fd, batches[batch] + sent, lengths[batch] - sent, MSG_NOSIGNAL);
    if (count <= 0) fail("send");
    sent += (size_t)count;
  }
}

static long count_newlines(ssize_t length) {
  long count = 0;
  for (ssize_t n = 0; n < length; n++) count += buffer[n] == '\n';
  return count;
}

int main(int argc, char **argv) {
  if (argc != 6) {
    fputs("usage: load PORT CONNECTIONS DEPTH NEWLINES MS < batches\n", stderr);
    return 2;
  }
  const struct sockaddr_in server = {.sin_family = AF_INET,
                                     .sin_port = htons((uint16_t)atoi(argv[1])),
                                     .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  const int count = atoi(argv[2]);
  const long depth = atol(argv[3]);
  const long newlines = depth * atol(argv[4]);
  const int64_t span_ns = atoll(argv[5]) * 1000000;
  if (count < 1 || count > MAX_CONNECTIONS || depth < 1 || newlines < 1) fail("arguments");
  read_batches();
  alarm((unsigned)(span_ns / 1000000000) + GRACE_SECONDS);

  const int poll = epoll_create1(0);
  for (int n = 0; n < count; n++) {
    struct connection *own = &connections[n];
    const int yes = 1;
    own->fd = socket(AF_INET, SOCK_STREAM, 0);
    own->next = (unsigned)n;
    if (own->fd < 0 || connect(own->fd, (const struct sockaddr *)&server, sizeof server) != 0) fail("connect");
    setsockopt(own->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = own};
    if (epoll_ctl(poll, EPOLL_CTL_ADD, own->fd, &event) != 0) fail("epoll_ctl");
  }

  long replies = 0;
  const int64_t start = now_ns();
  const int64_t end = start + span_ns;
  for (int n = 0; n < count; n++) send_batch(&connections[n], newlines);
  for (int open = count; open > 0;) {
    struct epoll_event events[EVENTS];
    const int ready = epoll_wait(poll, events, EVENTS, -1);
    for (int n = 0; n < ready; n++) {
      struct connection *own = events[n].data.ptr;
      const ssize_t length = recv(own->fd, buffer, sizeof buffer, MSG_DONTWAIT);
      if (length <= 0) fail("recv");
      own->missing -= count_newlines(length);
      if (own->missing < 0) {
        fputs("more newlines than expected\n", stderr);
        return 1;
      }
      if (own->missing > 0) continue;
      replies += depth;
      if (now_ns() < end) send_batch(own, newlines);
      else open--;
    }
  }
  printf("%ld %lld\n", replies, (long long)(now_ns() - start));
  return 0;
}

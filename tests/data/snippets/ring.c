#include <stdlib.h>
#include <string.h>

#include "ring.h"

#define RING_MIN 16
#ifndef RING_MAX
#define RING_MAX (1u << 20)
#endif

static const unsigned char header[] = {
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x52, 0x49, 0x4e, 0x47, 0x00, 0x01, 0x00, 0x00,
};

struct ring {
    char *data;
    size_t size;
    size_t head, tail;
};

/* Returns NULL if there's no memory. */
struct ring *ring_new(size_t size)
{
    struct ring *ring;

    if (size < RING_MIN || size > RING_MAX) {
        return NULL;
    }
    ring = malloc(sizeof(*ring));
    if (ring == NULL)
        return NULL;
    ring->data = malloc(size);
    if (ring->data == NULL)
        goto out;
    ring->size = size;
    ring->head = ring->tail = 0;
    memcpy(ring->data, header, sizeof(header));
    return ring;
out:
    free(ring);
    return NULL;
}

size_t ring_write(struct ring *ring, const char *text, size_t length)
{
    size_t done = 0;

    while (done < length) {
        size_t next = (ring->head + 1) % ring->size;
        if (next == ring->tail) {
            break;
        }
        ring->data[ring->head] = text[done++];
        ring->head = next;
    }
    return done;
}

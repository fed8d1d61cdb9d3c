// Mutated packets through the program: stands behind the generated code, compiled with the sanitizers.
static void forget(void *to, uint32_t port, uint32_t priority, const uint8_t *frame, uint32_t bytes) {
    // Read it all, so that a byte that was never written or is not ours is noticed.
    uint64_t *sum = to;
    for (uint32_t i = 0; i < bytes; i++) *sum += frame[i];
    *sum += port + priority;
}

static uint64_t below(uint64_t *state, uint64_t bound) {
    uint64_t z = *state += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return (z ^ z >> 31) % bound;
}

// `count` packets made of `seeds` (each `room` bytes apart, `lengths` long): bits flipped, bytes replaced, cut, pieces of
// others put in. Each is a block of its own, so that reading beyond it is noticed. Returns a checksum of what left.
uint64_t nf_fuzz(uint64_t seed, uint64_t count, const uint8_t *seeds, const uint32_t *lengths, uint32_t seed_count,
                 uint32_t room, uint32_t ports) {
    uint64_t sum = 0;
    for (uint64_t n = 0; n < count; n++) {
        uint32_t chosen = (uint32_t)below(&seed, seed_count), bytes = lengths[chosen];
        uint8_t frame[room];
        memcpy(frame, seeds + (size_t)chosen * room, bytes);
        for (uint64_t changes = below(&seed, 4); changes > 0; changes--) {
            switch (below(&seed, 5)) {
            case 0: if (bytes > 0) frame[below(&seed, bytes)] ^= (uint8_t)(1u << below(&seed, 8)); break;
            case 1: if (bytes > 0) frame[below(&seed, bytes)] = (uint8_t)below(&seed, 256); break;
            case 2: bytes = (uint32_t)below(&seed, bytes + 1); break;
            case 3: {
                uint32_t other = (uint32_t)below(&seed, seed_count), at = (uint32_t)below(&seed, room);
                uint32_t piece = (uint32_t)below(&seed, room - at + 1);
                if (at > bytes) memset(frame + bytes, 0, at - bytes);
                memcpy(frame + at, seeds + (size_t)other * room + at, piece);
                if (at + piece > bytes) bytes = at + piece;
                break;
            }
            default: if (bytes > 60) frame[below(&seed, 60)] = (uint8_t)(below(&seed, 2) ? 255 : 0); break;
            }
        }
        uint8_t *alone = malloc(bytes + 1);
        memcpy(alone, frame, bytes);
        process_packet((uint32_t)below(&seed, ports), alone, bytes, forget, &sum);
        free(alone);
    }
    return sum;
}

# The CRC of batches and the hash of keys, in C: they run without the GIL. Part of _accelerated.pyx.

cdef extern from *:
    """
    static uint64_t odradek_big(const uint8_t *p, int size) {
        uint64_t number = 0;
        for (int i = 0; i < size; i++) number = number << 8 | p[i];
        return number;
    }

    static uint64_t odradek_little64(const uint8_t *p) {
        return (uint64_t)p[0] | (uint64_t)p[1] << 8 | (uint64_t)p[2] << 16 | (uint64_t)p[3] << 24
             | (uint64_t)p[4] << 32 | (uint64_t)p[5] << 40 | (uint64_t)p[6] << 48
             | (uint64_t)p[7] << 56;
    }

    static void odradek_put_big(uint8_t *p, uint64_t number, int size) {
        while (size--) { p[size] = (uint8_t)number; number >>= 8; }
    }

    /* CRC-32C, polynomial 0x1EDC6F41 with its bits reversed. Tables make it eight bytes at a time;
       by the processor's instruction, which takes three cycles and may begin in each, three
       stretches are done at once, and their remainders joined by tables that say what a remainder
       becomes when a stretch, or two, of zeros follow. */
    #define ODRADEK_STRETCH 512

    static uint32_t odradek_crc_table[8][256];
    static uint32_t odradek_crc_one[4][256];
    static uint32_t odradek_crc_two[4][256];
    static int odradek_crc_native = 0;

    static uint32_t odradek_crc_tables(uint32_t crc, const uint8_t *p, size_t size) {
        const uint32_t (*table)[256] = (const uint32_t (*)[256])odradek_crc_table;
        while (size >= 8) {
            uint64_t word = odradek_little64(p) ^ crc;
            crc = table[7][word & 255] ^ table[6][word >> 8 & 255]
                ^ table[5][word >> 16 & 255] ^ table[4][word >> 24 & 255]
                ^ table[3][word >> 32 & 255] ^ table[2][word >> 40 & 255]
                ^ table[1][word >> 48 & 255] ^ table[0][word >> 56];
            p += 8;
            size -= 8;
        }
        while (size--) crc = crc >> 8 ^ table[0][(crc ^ *p++) & 255];
        return crc;
    }

    #if defined(__x86_64__) && defined(__GNUC__)
    #define ODRADEK_CRC_INSTRUCTION __attribute__((target("sse4.2")))
    #define ODRADEK_CRC64(crc, word) ((uint32_t)__builtin_ia32_crc32di(crc, word))
    #define ODRADEK_CRC8(crc, byte) __builtin_ia32_crc32qi(crc, byte)
    #elif defined(__ARM_FEATURE_CRC32)
    #include <arm_acle.h>
    #define ODRADEK_CRC_INSTRUCTION
    #define ODRADEK_CRC64(crc, word) __crc32cd(crc, word)
    #define ODRADEK_CRC8(crc, byte) __crc32cb(crc, byte)
    #endif

    #ifdef ODRADEK_CRC_INSTRUCTION
    static uint32_t odradek_crc_follow(uint32_t table[4][256], uint32_t crc) {
        return table[0][crc & 255] ^ table[1][crc >> 8 & 255] ^ table[2][crc >> 16 & 255]
             ^ table[3][crc >> 24];
    }

    ODRADEK_CRC_INSTRUCTION
    static uint32_t odradek_crc_instruction(uint32_t crc, const uint8_t *p, size_t size) {
        while (size >= 3 * ODRADEK_STRETCH) {
            uint32_t second = 0;
            uint32_t third = 0;
            for (int i = 0; i < ODRADEK_STRETCH; i += 8) {
                crc = ODRADEK_CRC64(crc, odradek_little64(p + i));
                second = ODRADEK_CRC64(second, odradek_little64(p + i + ODRADEK_STRETCH));
                third = ODRADEK_CRC64(third, odradek_little64(p + i + 2 * ODRADEK_STRETCH));
            }
            crc = odradek_crc_follow(odradek_crc_two, crc)
                ^ odradek_crc_follow(odradek_crc_one, second) ^ third;
            p += 3 * ODRADEK_STRETCH;
            size -= 3 * ODRADEK_STRETCH;
        }
        for (; size >= 8; p += 8, size -= 8) crc = ODRADEK_CRC64(crc, odradek_little64(p));
        while (size--) crc = ODRADEK_CRC8(crc, *p++);
        return crc;
    }
    #else
    #define odradek_crc_instruction odradek_crc_tables
    #endif

    static void odradek_crc_prepare(void) {
        static const uint8_t zeros[2 * ODRADEK_STRETCH];
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t crc = byte;
            for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78U : 0);
            odradek_crc_table[0][byte] = crc;
        }
        for (int i = 1; i < 8; i++)
            for (int byte = 0; byte < 256; byte++) {
                uint32_t crc = odradek_crc_table[i - 1][byte];
                odradek_crc_table[i][byte] = crc >> 8 ^ odradek_crc_table[0][crc & 255];
            }
        for (int i = 0; i < 4; i++)
            for (uint32_t byte = 0; byte < 256; byte++) {
                uint32_t crc = byte << 8 * i;
                odradek_crc_one[i][byte] = odradek_crc_tables(crc, zeros, ODRADEK_STRETCH);
                odradek_crc_two[i][byte] = odradek_crc_tables(crc, zeros, 2 * ODRADEK_STRETCH);
            }
    #if defined(__x86_64__) && defined(__GNUC__)
        __builtin_cpu_init();
        odradek_crc_native = __builtin_cpu_supports("sse4.2") != 0;
    #elif defined(__ARM_FEATURE_CRC32)
        odradek_crc_native = 1;
    #endif
    }

    static uint32_t odradek_crc(const uint8_t *p, size_t size, int native) {
        if (native && odradek_crc_native) return ~odradek_crc_instruction(~0U, p, size);
        return ~odradek_crc_tables(~0U, p, size);
    }

    /* SipHash-2-4 with 128 bits of output (Aumasson and Bernstein, 2012). */
    #define ODRADEK_TURN(word, bits) ((word) << (bits) | (word) >> (64 - (bits)))
    #define ODRADEK_ROUND                                              \\
        v0 += v1; v1 = ODRADEK_TURN(v1, 13) ^ v0; v0 = ODRADEK_TURN(v0, 32); \\
        v2 += v3; v3 = ODRADEK_TURN(v3, 16) ^ v2;                      \\
        v0 += v3; v3 = ODRADEK_TURN(v3, 21) ^ v0;                      \\
        v2 += v1; v1 = ODRADEK_TURN(v1, 17) ^ v2; v2 = ODRADEK_TURN(v2, 32);

    static void odradek_hash(
        const uint8_t *p, size_t size, const uint64_t *seed, uint64_t *low, uint64_t *high
    ) {
        uint64_t v0 = seed[0] ^ 0x736F6D6570736575ULL;
        uint64_t v1 = seed[1] ^ 0x646F72616E646F6DULL ^ 0xEE;
        uint64_t v2 = seed[0] ^ 0x6C7967656E657261ULL;
        uint64_t v3 = seed[1] ^ 0x7465646279746573ULL;
        uint64_t last = (uint64_t)size << 56;
        size_t left = size;
        for (; left >= 8; p += 8, left -= 8) {
            uint64_t word = odradek_little64(p);
            v3 ^= word;
            ODRADEK_ROUND
            ODRADEK_ROUND
            v0 ^= word;
        }
        for (size_t i = 0; i < left; i++) last |= (uint64_t)p[i] << 8 * i;
        v3 ^= last;
        ODRADEK_ROUND
        ODRADEK_ROUND
        v0 ^= last;
        v2 ^= 0xEE;
        for (int i = 0; i < 4; i++) { ODRADEK_ROUND }
        *low = v0 ^ v1 ^ v2 ^ v3;
        v1 ^= 0xDD;
        for (int i = 0; i < 4; i++) { ODRADEK_ROUND }
        *high = v0 ^ v1 ^ v2 ^ v3;
    }

    #if defined(__GNUC__)
    #define odradek_prefetch(p) __builtin_prefetch(p)
    #else
    #define odradek_prefetch(p) ((void)(p))
    #endif
    """
    uint64_t odradek_big(const uint8_t *p, int size) noexcept nogil
    uint64_t odradek_little64(const uint8_t *p) noexcept nogil
    void odradek_put_big(uint8_t *p, uint64_t number, int size) noexcept nogil
    void odradek_crc_prepare() noexcept
    uint32_t odradek_crc(const uint8_t *p, size_t size, bint native) noexcept nogil
    void odradek_hash(
        const uint8_t *p, size_t size, const uint64_t *seed, uint64_t *low, uint64_t *high
    ) noexcept nogil
    void odradek_prefetch(const void *p) noexcept nogil

odradek_crc_prepare()


def crc32c(data, *, bint native=True):
    """Return the CRC-32C of `data`; by tables alone where `native` is false. For tests."""
    cdef Window window = Window(data)
    return odradek_crc(window.start, window.end - window.start, native)


def siphash(data, bytes seed not None):
    """Return the 16 bytes of SipHash-2-4 of `data` under a seed of 16 bytes. For tests."""
    cdef Window window = Window(data)
    cdef uint64_t words[2]
    cdef uint64_t low
    cdef uint64_t high
    read_seed(seed, words)
    odradek_hash(window.start, window.end - window.start, words, &low, &high)
    return low.to_bytes(8, "little") + high.to_bytes(8, "little")


cdef int read_seed(bytes seed, uint64_t *words) except -1:
    cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(seed)
    if PyBytes_GET_SIZE(seed) != 16:
        raise ValueError(f"a seed has 16 bytes, not {PyBytes_GET_SIZE(seed)}")
    words[0] = odradek_little64(p)
    words[1] = odradek_little64(p + 8)
    return 0

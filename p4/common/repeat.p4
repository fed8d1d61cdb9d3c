// FOR_EACH_ELEMENT(M) expands M(00) M(01) ... once per element; P4 has no loops over registers or fields.
#ifndef NETFOLD_REPEAT_P4
#define NETFOLD_REPEAT_P4

#define FOR_16(M, p) \
    M(p##0) M(p##1) M(p##2) M(p##3) M(p##4) M(p##5) M(p##6) M(p##7) \
    M(p##8) M(p##9) M(p##a) M(p##b) M(p##c) M(p##d) M(p##e) M(p##f)
#define FOR_32(M) FOR_16(M, 0) FOR_16(M, 1)
#define FOR_64(M) FOR_16(M, 0) FOR_16(M, 1) FOR_16(M, 2) FOR_16(M, 3)
#define FOR_256(M) \
    FOR_64(M) FOR_16(M, 4) FOR_16(M, 5) FOR_16(M, 6) FOR_16(M, 7) FOR_16(M, 8) FOR_16(M, 9) \
    FOR_16(M, a) FOR_16(M, b) FOR_16(M, c) FOR_16(M, d) FOR_16(M, e) FOR_16(M, f)
// 256 with a digit in front: M(p00) M(p01) ...
#define FOR_256_OF(M, p) \
    FOR_16(M, p##0) FOR_16(M, p##1) FOR_16(M, p##2) FOR_16(M, p##3) \
    FOR_16(M, p##4) FOR_16(M, p##5) FOR_16(M, p##6) FOR_16(M, p##7) \
    FOR_16(M, p##8) FOR_16(M, p##9) FOR_16(M, p##a) FOR_16(M, p##b) \
    FOR_16(M, p##c) FOR_16(M, p##d) FOR_16(M, p##e) FOR_16(M, p##f)
#define FOR_1024(M) FOR_256_OF(M, 0) FOR_256_OF(M, 1) FOR_256_OF(M, 2) FOR_256_OF(M, 3)
#define FOR_2048(M) FOR_1024(M) FOR_256_OF(M, 4) FOR_256_OF(M, 5) FOR_256_OF(M, 6) FOR_256_OF(M, 7)

// FOR_32_PAIRS(M) expands M(00, 20) M(01, 21) ...: an element and the one 32 later.
#define FOR_16_PAIRS(M, p, q) \
    M(p##0, q##0) M(p##1, q##1) M(p##2, q##2) M(p##3, q##3) M(p##4, q##4) M(p##5, q##5) M(p##6, q##6) M(p##7, q##7) \
    M(p##8, q##8) M(p##9, q##9) M(p##a, q##a) M(p##b, q##b) M(p##c, q##c) M(p##d, q##d) M(p##e, q##e) M(p##f, q##f)
#define FOR_32_PAIRS(M) FOR_16_PAIRS(M, 0, 2) FOR_16_PAIRS(M, 1, 3)

#if ELEMENTS == 32
#define FOR_EACH_ELEMENT(M) FOR_32(M)
#elif ELEMENTS == 64
#define FOR_EACH_ELEMENT(M) FOR_64(M)
#elif ELEMENTS == 256
#define FOR_EACH_ELEMENT(M) FOR_256(M)
#elif ELEMENTS == 1024
#define FOR_EACH_ELEMENT(M) FOR_1024(M)
#elif ELEMENTS == 2048
#define FOR_EACH_ELEMENT(M) FOR_2048(M)
#else
#error "ELEMENTS is 32, 64, 256, 1024 or 2048"
#endif

#endif

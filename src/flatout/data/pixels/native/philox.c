/* flatout.sampling.uniforms, to the bit: Philox 4x32-10 over (id, epoch, stream), four numbers a block. */
#include "native.h"

void uniforms(uint64_t seed, uint32_t epoch, const int64_t *ids, size_t count, uint32_t stream, size_t each,
              double *out) {
    for (size_t i = 0; i < count; i++) {
        for (uint32_t block = 0; block * (size_t)4 < each; block++) {
            uint32_t c[4] = {(uint32_t)ids[i], (uint32_t)((uint64_t)ids[i] >> 32), epoch, block + (stream << 16)};
            uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
            for (int round = 0; round < 10; round++, key[0] += 0x9E3779B9u, key[1] += 0xBB67AE85u) {
                uint64_t a = (uint64_t)c[0] * 0xD2511F53u, b = (uint64_t)c[2] * 0xCD9E8D57u;
                c[0] = (uint32_t)(b >> 32) ^ c[1] ^ key[0];
                c[1] = (uint32_t)b;
                c[2] = (uint32_t)(a >> 32) ^ c[3] ^ key[1];
                c[3] = (uint32_t)a;
            }
            for (size_t k = 0; k < 4 && 4 * (size_t)block + k < each; k++)
                out[i * each + 4 * (size_t)block + k] = c[k] / 4294967296.0;
        }
    }
}

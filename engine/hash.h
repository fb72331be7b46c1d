/* SPDX-License-Identifier: Apache-2.0
 *
 * Checksums of packed weights: they find damage (truncation, flipped bits, mixed-up files), they do
 * not resist somebody who builds two inputs with one sum. So a model's id must not be taken for
 * proof that a stranger's pack holds what another one with the same id holds. Pure; any thread.
 */
#ifndef KWK_ENGINE_HASH_H
#define KWK_ENGINE_HASH_H

#include <stddef.h>
#include <stdint.h>

/* 64-bit checksum of n bytes. The same on every machine; no alignment needed. */
uint64_t kwk_hash64(const void *data, size_t n, uint64_t seed);

/* 128 bits from two seeds, for identities. */
void kwk_hash128(uint8_t out[16], const void *data, size_t n);

#endif

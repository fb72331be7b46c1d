/* SPDX-License-Identifier: Apache-2.0
 *
 * The tokenizer in a GGUF file's metadata, as Hugging Face's tokenizer.json: the same ids from the
 * `tokenizers` library as from the tokenizer that the file was made of. Any thread.
 */
#ifndef KWK_ENGINE_TOKENIZER_GGUF_H
#define KWK_ENGINE_TOKENIZER_GGUF_H

#include "engine/gguf.h"
#include "engine/tokenizer.h"

/**
 * @param out  zeroed; what the file has is filled, on KWK_EUNSUPPORTED too: token bytes and chat
 *             template do not depend on how text is split
 *
 * @return KWK_OK (also without any tokenizer); KWK_EUNSUPPORTED its kind cannot be expressed
 *         (named); KWK_EFORMAT; KWK_ENOMEM
 */
int kwk_gguf_tokenizer(const kwk_gguf *g, kwk_tokenizer *out, kwk_error *err);

#endif

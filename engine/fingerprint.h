// The fingerprint of a model: equal for two files exactly when they give the same KV for the same
// tokens (up to 128-bit collisions). It covers every tensor (name, type, shape, bytes) and the part
// of the configuration that the forward pass reads, and neither the file's name nor its tokenizer.
//
// Hashing reads the whole file, gigabytes for some. So the result is kept beside the model, in
// "<file>.fingerprint", with the file's size, modification time and inode; it is used only while
// all three are the same, and ignored when it is damaged. A folder that cannot be written only
// means hashing again next time.
#pragma once

#include <string>

#include "base/digest.h"
#include "engine/checkpoint.h"

namespace cairn {

// Hashes; reads and writes no other file.
Digest ComputeFingerprint(const Checkpoint& checkpoint);

// From the file beside the model if it still fits, else computed and written there.
Digest CachedFingerprint(const Checkpoint& checkpoint);

// The fingerprint of the same weights run with a context extension (engine/rope.h), which changes
// every rotated key. Equal to `weights` for an extension of 1.
Digest ExtendedFingerprint(const Digest& weights, double extension);

}  // namespace cairn

// Xxh3 in terms of xxhash.h; included once per build, inside a namespace of its own.

std::uint64_t hash64(const void* bytes, std::size_t num_bytes) {
  return XXH3_64bits(bytes, num_bytes);
}

void* create() {
  XXH3_state_t* state = XXH3_createState();
  if (state != nullptr) XXH3_128bits_reset(state);
  return state;
}

void update(void* state, const void* bytes, std::size_t num_bytes) {
  XXH3_128bits_update(static_cast<XXH3_state_t*>(state), bytes, num_bytes);
}

void digest(const void* state, unsigned char (&out)[kHashBytes]) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical,
                           XXH3_128bits_digest(static_cast<const XXH3_state_t*>(state)));
  std::memcpy(out, canonical.digest, sizeof out);
}

void destroy(void* state) { XXH3_freeState(static_cast<XXH3_state_t*>(state)); }

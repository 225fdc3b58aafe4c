/**
 * The keys and values of the tokens that a decoder has read, kept so that the next token needs no second look at them.
 *
 * Without it, token t computes t + 1 rows of keys and values, T (T + 1) / 2 in all; with it one each, T in all.
 */
import { type Tensor, zeros } from './tensor'

/** Per layer keys and values (S, K, D); the first `length` of the S rows are filled. */
export interface Cache {
  length: number // tokens; only the end of a whole pass moves it
  readonly capacity: number
  readonly keys: readonly Tensor[]
  readonly values: readonly Tensor[]
}

export interface CacheShape {
  readonly n_layers: number
  readonly n_kv_heads: number
  readonly head_dim: number
}

export function createCache({ n_layers, n_kv_heads, head_dim }: CacheShape, capacity: number): Cache {
  const make = (): Tensor[] => Array.from({ length: n_layers }, () => zeros(capacity, n_kv_heads, head_dim))
  return { length: 0, capacity, keys: make(), values: make() }
}

/** Forget all but the first n tokens. */
export function truncate(cache: Cache, n: number): void {
  if (!Number.isInteger(n) || n < 0 || n > cache.length) throw new RangeError(`truncate to ${n}: the cache holds ${cache.length} tokens`)
  cache.length = n
}

/** Bytes of the keys and values of so many tokens: 2 x layers x kv heads x head width x tokens x bytes of a number. */
export function cacheBytes({ n_layers, n_kv_heads, head_dim }: CacheShape, tokens: number, bytesPerNumber = 4): number {
  return 2 * n_layers * n_kv_heads * head_dim * tokens * bytesPerNumber
}

/** A text that a model has read so far: its tokens, what each of them read, and what comes next. */
import { type Cache, createCache } from './kvcache'
import { type Model, type Pass, forward } from './model'

export interface Text {
  readonly model: Model
  readonly ids: readonly number[]
  readonly prompt: number // how many of the ids were given; the rest was written
  readonly cache: Cache
  readonly rows: readonly { readonly pass: Pass; readonly row: number }[] // where each token's attention stands
  readonly logits: Float32Array // (V) after the last token
  readonly computed: number // rows of keys and values so far, counting again what was computed again
  readonly fresh: number // of them in the last pass
}

/** Read a whole text; it yields between layers. */
export function* begin(model: Model, ids: readonly number[], capacity: number): Generator<void, Text> {
  const cache = createCache(model.config, Math.max(capacity, ids.length))
  const pass = yield* forward(model, ids, cache)
  return { model, ids, prompt: ids.length, cache, rows: rowsOf(pass, ids.length), logits: last(pass), computed: ids.length, fresh: ids.length }
}

/** Add one token: alone with the cache, the whole text anew without it. The text comes out the same to the last bit. */
export function* extend(text: Text, id: number, useCache: boolean): Generator<void, Text> {
  const { model, prompt } = text
  const ids = [...text.ids, id]
  if (useCache) {
    const pass = yield* forward(model, [id], text.cache)
    return { model, ids, prompt, cache: text.cache, rows: [...text.rows, ...rowsOf(pass, 1)], logits: last(pass), computed: text.computed + 1, fresh: 1 }
  }
  const again = yield* begin(model, ids, text.cache.capacity)
  return { ...again, prompt, computed: text.computed + ids.length }
}

/** How much token i reads of token j, in this layer and head; 0 for what comes later. */
export function weight({ rows }: Pick<Text, 'rows'>, layer: number, head: number, i: number, j: number): number {
  const { pass, row } = rows[i]!
  const { shape: [, T = 0, S = 0], data } = pass.attention[layer]!
  return j < S ? data[(head * T + row) * S + j]! : 0
}

/** The last row of logits. */
function last({ logits: { shape: [, V = 0], data } }: Pass): Float32Array {
  return data.slice(data.length - V)
}

export function rowsOf(pass: Pass, tokens: number): { pass: Pass; row: number }[] {
  return Array.from({ length: tokens }, (_, row) => ({ pass, row }))
}

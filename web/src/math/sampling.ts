/**
 * Which token comes next? As octlm/sampling.py has it, in float64:
 *
 *   temperature -> top-k -> top-p -> renormalise -> draw
 *
 * Every filter sees the distribution that the one before it left; the most likely id survives all of them.
 */

export interface Settings {
  readonly temperature: number // 0 = always the most likely id (the lowest of equals)
  readonly topK: number // 0 = off
  readonly topP: number // 1 = off
}

/** What became of an id: kept, or the filter that dropped it. */
export type Fate = 'kept' | 'greedy' | 'top-k' | 'top-p'

export interface Distribution {
  readonly full: Float64Array // over the whole vocabulary, as the model gives it
  readonly probabilities: Float64Array // what is drawn from
  readonly fate: readonly Fate[]
  readonly entropy: number // of `full`, in bits
}

/**
 * Shape the distribution of logits (V); ids that the tokenizer does not have are never drawn.
 *
 * Raises RangeError for settings out of range, and for logits from which nothing can be drawn.
 */
export function distribution(
  logits: ArrayLike<number>, { temperature, topK, topP }: Settings, has: (id: number) => boolean = () => true,
): Distribution {
  if (!(temperature >= 0)) throw new RangeError(`temperature must be a number >= 0; got ${temperature}`)
  if (!(Number.isInteger(topK) && topK >= 0)) throw new RangeError(`top-k must be an integer >= 0; got ${topK}`)
  if (!(topP > 0 && topP <= 1)) throw new RangeError(`top-p must be above 0 and at most 1; got ${topP}`)
  const raw = Float64Array.from(logits, (value, id) => (has(id) ? value : -Infinity))
  const largest = raw.reduce((most, value) => Math.max(most, value), -Infinity)
  if (raw.some(Number.isNaN) || !Number.isFinite(largest)) throw new RangeError('nothing can be drawn from logits that are not finite')

  const full = softmax(raw)
  const order = ranked(raw, raw.length)
  const fate = new Array<Fate>(raw.length).fill('kept')
  // a temperature can round different logits to equals, so ranks are those before it
  const scaled = raw.map((value) => (value === largest ? 0 : (value - largest) / temperature)) // at 0: -Infinity
  const drop = (ids: readonly number[], why: Fate): void => {
    for (const id of ids) {
      if (fate[id] === 'kept') fate[id] = why
      scaled[id] = -Infinity
    }
  }
  if (temperature === 0) drop(order.slice(1), 'greedy')
  if (topK > 0) drop(order.slice(topK), 'top-k')
  if (topP < 1) {
    const left = softmax(scaled)
    let before = 0
    drop(order.filter((id) => {
      const beyond = before >= topP
      before += left[id]!
      return beyond
    }), 'top-p')
  }
  const entropy = full.reduce((bits, p) => (p > 0 ? bits - p * Math.log2(p) : bits), 0)
  return { full, probabilities: softmax(scaled), fate, entropy }
}

/** The ids of the n largest values, the largest first, the lowest id first among equals. */
export function ranked(values: ArrayLike<number>, n: number): number[] {
  return Array.from(values, (_, id) => id).sort((a, b) => values[b]! - values[a]! || a - b).slice(0, n)
}

/** The first id whose cumulative probability exceeds u in [0, 1). */
export function draw(probabilities: Float64Array, u: number): number {
  const total = probabilities.reduce((sum, p) => sum + p, 0)
  let reached = 0
  for (const [id, p] of probabilities.entries()) {
    reached += p
    if (reached > u * total) return id
  }
  throw new RangeError('nothing can be drawn: every probability is 0')
}

function softmax(logits: Float64Array): Float64Array {
  const largest = logits.reduce((most, value) => Math.max(most, value), -Infinity)
  const parts = logits.map((value) => Math.exp(value - largest))
  const total = parts.reduce((sum, part) => sum + part, 0)
  return parts.map((part) => part / total)
}

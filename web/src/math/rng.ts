/**
 * Random numbers that are a function of (seed, row): numpy's PCG64 behind its SeedSequence, bit for bit, so that a seed
 * gives here the text that `generate.py --seed` gives. PCG XSL-RR 128/64: O'Neill 2014, "PCG: A Family of Simple Fast
 * Space-Efficient Statistically Good Algorithms for Random Number Generation".
 */
const POOL = 4 // words of 32 bits
const MASK128 = (1n << 128n) - 1n
const MASK64 = (1n << 64n) - 1n
const MULTIPLIER = 0x2360ed051fc65da44385df649fccf645n

/** Numbers in [0, 1), one a call. */
export function uniforms(seed: number, row = 0): () => number {
  const words = seedSequence(seed, row, 8)
  const joined = (i: number): bigint => BigInt(words[i]!) | (BigInt(words[i + 1]!) << 32n)
  const increment = (((joined(4) << 64n) | joined(6)) << 1n | 1n) & MASK128
  const step = (state: bigint): bigint => (state * MULTIPLIER + increment) & MASK128
  let state = step((step(0n) + ((joined(0) << 64n) | joined(2))) & MASK128)
  return () => {
    state = step(state)
    const [folded, turn] = [(state >> 64n) ^ (state & MASK64), state >> 122n]
    const bits = ((folded >> turn) | (folded << ((64n - turn) & 63n))) & MASK64
    return Number(bits >> 11n) * 2 ** -53
  }
}

/** numpy.random.SeedSequence(seed, spawn_key=(row,)).generate_state(n), all in 32-bit words. */
function seedSequence(seed: number, row: number, n: number): Uint32Array {
  if (!(Number.isSafeInteger(seed) && seed >= 0)) throw new RangeError(`seed must be an integer >= 0; got ${seed}`)
  const low = seed >>> 0
  const high = Math.floor(seed / 2 ** 32)
  const entropy = high > 0 ? [low, high] : [low]
  while (entropy.length < POOL) entropy.push(0) // so that a spawned sequence is none that a longer seed gives
  entropy.push(row)

  let hash = 0x43b0d7e5
  const hashed = (value: number): number => {
    value ^= hash
    hash = Math.imul(hash, 0x931e8875)
    value = Math.imul(value, hash)
    return value ^ (value >>> 16)
  }
  const mix = (x: number, y: number): number => {
    const value = Math.imul(x, 0xca01f9dd) - Math.imul(y, 0x4973f715)
    return value ^ (value >>> 16)
  }
  const pool = new Uint32Array(POOL)
  for (let i = 0; i < POOL; i++) pool[i] = hashed(entropy[i]!)
  for (let from = 0; from < POOL; from++) {
    for (let to = 0; to < POOL; to++) if (from !== to) pool[to] = mix(pool[to]!, hashed(pool[from]!))
  }
  for (const word of entropy.slice(POOL)) for (let to = 0; to < POOL; to++) pool[to] = mix(pool[to]!, hashed(word))

  hash = 0x8b51f9dd
  return Uint32Array.from({ length: n }, (_, i) => {
    let value = pool[i % POOL]! ^ hash
    hash = Math.imul(hash, 0x58f38ded)
    value = Math.imul(value, hash)
    return value ^ (value >>> 16)
  })
}

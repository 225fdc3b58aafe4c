/** SHA-256 (FIPS 180-4), since crypto.subtle is missing on plain http pages. Bytes in, lower-case hex out. */
const ROOTS = (power: number, n: number): Uint32Array => {
  const out = new Uint32Array(n)
  for (let candidate = 2, found = 0; found < n; candidate++) {
    let prime = true
    for (let d = 2; d * d <= candidate; d++) if (candidate % d === 0) prime = false
    if (prime) {
      const root = candidate ** power
      out[found++] = Math.floor((root - Math.floor(root)) * 2 ** 32) // the first 32 bits after the point
    }
  }
  return out
}
const K = ROOTS(1 / 3, 64)
const START = ROOTS(1 / 2, 8)

export function sha256(bytes: Uint8Array): string {
  const padded = new Uint8Array(Math.ceil((bytes.length + 9) / 64) * 64)
  padded.set(bytes)
  padded[bytes.length] = 0x80
  const view = new DataView(padded.buffer)
  view.setUint32(padded.length - 8, Math.floor(bytes.length / 2 ** 29))
  view.setUint32(padded.length - 4, (bytes.length << 3) >>> 0)

  const state = START.slice()
  const w = new Uint32Array(64)
  const turn = (x: number, n: number): number => (x >>> n) | (x << (32 - n))
  for (let block = 0; block < padded.length; block += 64) {
    for (let t = 0; t < 16; t++) w[t] = view.getUint32(block + 4 * t)
    for (let t = 16; t < 64; t++) {
      const [a, b] = [w[t - 15]!, w[t - 2]!]
      const s0 = turn(a, 7) ^ turn(a, 18) ^ (a >>> 3)
      const s1 = turn(b, 17) ^ turn(b, 19) ^ (b >>> 10)
      w[t] = w[t - 16]! + s0 + w[t - 7]! + s1
    }
    let [a, b, c, d, e, f, g, h] = state as unknown as [number, number, number, number, number, number, number, number]
    for (let t = 0; t < 64; t++) {
      const one = h + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + ((e & f) ^ (~e & g)) + K[t]! + w[t]!
      const two = (turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & b) ^ (a & c) ^ (b & c))
      ;[h, g, f, e, d, c, b, a] = [g, f, e, (d + one) >>> 0, c, b, a, (one + two) >>> 0]
    }
    for (const [i, value] of [a, b, c, d, e, f, g, h].entries()) state[i] = state[i]! + value
  }
  return Array.from(state, (word) => word.toString(16).padStart(8, '0')).join('')
}

/**
 * How much memory does one attention layer take at T tokens? By formula, and as somebody measured it.
 *
 * The scores are heads x T x T numbers; queries, keys, values and output are 4 x heads x width x T.
 */
export const LAYER = { heads: 8, width: 32, bytes: 4 } as const // float32, one text at a time
export const WINDOW = 512 // the sliding window that the page compares with
export const FEWEST = 16
export const MOST = 16_384

export const BACKENDS = ['math', 'fused'] as const
export const DTYPES = ['fp32', 'bf16'] as const

export interface Point {
  readonly backend: (typeof BACKENDS)[number]
  readonly dtype: (typeof DTYPES)[number]
  readonly tokens: number
  readonly growth_bytes: number
  readonly seconds: number
}

export interface Memory {
  readonly schema: string
  readonly device: string
  readonly torch: string
  readonly commit: string
  readonly points: readonly Point[]
}

export interface Need {
  readonly tokens: number
  readonly scores: number // one head's T x T
  readonly square: number // bytes of all heads' scores
  readonly rows: number // bytes of queries, keys, values and output
  readonly ratio: number // square / rows
  readonly windowed: number // bytes of the scores that a sliding window leaves
}

export function need(tokens: number): Need {
  const { heads, width, bytes } = LAYER
  const square = heads * tokens * tokens * bytes
  const rows = 4 * heads * width * tokens * bytes
  return { tokens, scores: tokens * tokens, square, rows, ratio: square / rows, windowed: heads * tokens * Math.min(tokens, WINDOW) * bytes }
}

/** Where the slider stops: four steps for each doubling, and every length that was measured. */
export function lengths(memory: Memory | null): number[] {
  const steps = Math.log2(MOST / FEWEST) * 4
  const even = Array.from({ length: steps + 1 }, (_, i) => Math.round(FEWEST * 2 ** (i / 4)))
  return [...new Set([...even, ...(memory?.points.map(({ tokens }) => tokens) ?? [])])].sort((a, b) => a - b)
}

/** The powers of two from low to high, each `by` times the one before. */
export function powers(low: number, high: number, by: number): number[] {
  const out: number[] = []
  for (let n = low; n <= high; n *= by) out.push(n)
  return out
}

export interface Group {
  readonly backend: Point['backend']
  readonly dtype: Point['dtype']
  readonly points: readonly Point[] // by length
}

/** The measured points, one group for each way to compute; empty groups are left out. */
export function groups(memory: Memory | null): Group[] {
  return BACKENDS.flatMap((backend) => DTYPES.map((dtype): Group => ({
    backend, dtype,
    points: (memory?.points ?? []).filter((point) => point.backend === backend && point.dtype === dtype).sort((a, b) => a.tokens - b.tokens),
  }))).filter(({ points }) => points.length > 0)
}

/** Raises Error where the measurements are of another schema, or a number of theirs cannot be drawn. */
export function checkMemory(memory: Memory | null): Memory | null {
  if (memory === null) return null
  if (memory.schema !== 'octlm-web-memory/1') throw new Error(`schema ${memory.schema}: this page reads octlm-web-memory/1`)
  const positive = (n: unknown): boolean => typeof n === 'number' && Number.isFinite(n) && n > 0
  for (const point of memory.points) {
    if (!BACKENDS.includes(point.backend) || !DTYPES.includes(point.dtype)) throw new Error(`no line for ${point.backend}, ${point.dtype}`)
    if (!positive(point.tokens) || !Number.isFinite(point.growth_bytes) || !positive(point.seconds)) {
      throw new Error(`a point at ${point.tokens} tokens is no measurement`)
    }
  }
  return memory
}

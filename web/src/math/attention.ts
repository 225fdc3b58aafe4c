/**
 * One causal attention layer, step by step:
 *
 *   weights = softmax(q k^T / sqrt(D) + mask)      output = (weights v, heads side by side) o_proj^T
 *
 * Each step's tensor is float32, as in PyTorch; sums run in float64 and are rounded once, at the end.
 */
import { type Tensor, at, zeros } from './tensor'

export type Mask = 'causal' | 'none'

/** Matrices as nn.Linear keeps them: a row for each output, so y = x W^T. */
export interface Weights {
  readonly q: Tensor
  readonly k: Tensor
  readonly v: Tensor
  readonly o: Tensor
}

/** Every tensor of one forward pass, in the order in which they come to be. */
export interface Trace {
  readonly x: Tensor // (T, C)
  readonly q: Tensor // (H, T, D)
  readonly k: Tensor // (H, T, D)
  readonly v: Tensor // (H, T, D)
  readonly raw: Tensor // (H, T, T)
  readonly scaled: Tensor // (H, T, T)
  readonly masked: Tensor // (H, T, T)
  readonly weights: Tensor // (H, T, T)
  readonly values: Tensor // (H, T, D)
  readonly joined: Tensor // (T, C)
  readonly output: Tensor // (T, C)
}

export const TENSORS = [
  'x', 'q', 'k', 'v', 'raw', 'scaled', 'masked', 'weights', 'values', 'joined', 'output',
] as const satisfies readonly (keyof Trace)[]
export type TensorName = (typeof TENSORS)[number]

/** May the reader (a query) at this position read the key at that one? */
export function mayRead(query: number, key: number, mask: Mask): boolean {
  return mask === 'none' || key <= query
}

/** Fill a tensor (H, T, N) or (T, N) from a function of head, row and column. */
function fill(heads: number, rows: number, columns: number, value: (h: number, i: number, j: number) => number): Tensor {
  const tensor = heads > 0 ? zeros(heads, rows, columns) : zeros(rows, columns)
  let place = 0
  for (let h = 0; h < Math.max(heads, 1); h++) {
    for (let i = 0; i < rows; i++) for (let j = 0; j < columns; j++) tensor.data[place++] = value(h, i, j)
  }
  return tensor
}

/** The sum of n products, in float64; storing it in a tensor rounds it. */
function dot(n: number, left: (d: number) => number, right: (d: number) => number): number {
  let sum = 0
  for (let d = 0; d < n; d++) sum += left(d) * right(d)
  return sum
}

/** Run the layer on x (T, C). Raises where x holds a number that is not finite: one would reach every row as NaN. */
export function attention(x: Tensor, w: Weights, options: { heads: number; mask: Mask }): Trace {
  const [T = 0, C = 0] = x.shape
  const { heads: H, mask } = options
  const D = C / H
  if (x.shape.length !== 2 || T < 1 || !Number.isInteger(D)) {
    throw new RangeError(`x of shape [${x.shape.join(', ')}] cannot be split into ${H} heads`)
  }
  if (!x.data.every(Number.isFinite)) throw new RangeError('x holds a number that is not finite')

  const project = (weight: Tensor): Tensor =>
    fill(H, T, D, (h, i, j) => dot(C, (c) => at(x, 0, i, c), (c) => at(weight, 0, h * D + j, c)))
  const q = project(w.q)
  const k = project(w.k)
  const v = project(w.v)
  const raw = fill(H, T, T, (h, i, j) => dot(D, (d) => at(q, h, i, d), (d) => at(k, h, j, d)))
  const scaled = fill(H, T, T, (h, i, j) => at(raw, h, i, j) / Math.sqrt(D))
  const masked = fill(H, T, T, (h, i, j) => (mayRead(i, j, mask) ? at(scaled, h, i, j) : -Infinity))
  const weights = fill(H, T, T, (h, i, j) => {
    const { largest, sum } = softmaxParts(masked, h, i)
    return Math.exp(at(masked, h, i, j) - largest) / sum
  })
  const values = fill(H, T, D, (h, i, j) => dot(T, (s) => at(weights, h, i, s), (s) => at(v, h, s, j)))
  const joined = fill(0, T, C, (_, i, c) => at(values, Math.floor(c / D), i, c % D))
  const output = fill(0, T, C, (_, i, j) => dot(C, (c) => at(joined, 0, i, c), (c) => at(w.o, 0, j, c)))
  return { x, q, k, v, raw, scaled, masked, weights, values, joined, output }
}

/** What the softmax of one row needs: its largest score, and the sum of exp(score - largest). */
export function softmaxParts(masked: Tensor, head: number, row: number): { largest: number; sum: number } {
  const T = masked.shape[2] ?? 0
  let largest = -Infinity
  for (let j = 0; j < T; j++) largest = Math.max(largest, at(masked, head, row, j))
  let sum = 0
  for (let j = 0; j < T; j++) sum += Math.exp(at(masked, head, row, j) - largest)
  return { largest, sum }
}

/**
 * How did this cell come to its number? The one source of what the arithmetic panel shows.
 *
 * `result` is computed here a second time, from the tensors before it, and is the trace's cell bit for bit.
 */
import { type Mask, type TensorName, type Trace, type Weights, mayRead, softmaxParts } from './attention'
import { type Tensor, at, size } from './tensor'

/** A cell of a tensor that the result was computed from. */
export interface Source {
  readonly tensor: TensorName | 'q_proj' | 'k_proj' | 'v_proj' | 'o_proj'
  readonly head: number
  readonly row: number
  readonly column: number
  readonly value: number
}

export interface Product {
  readonly left: Source
  readonly right: Source
  readonly product: number
}

export interface Candidate {
  readonly source: Source
  readonly shifted: number // score - largest
  readonly exponential: number
}

export type Explanation =
  | { readonly kind: 'given'; readonly result: number }
  | { readonly kind: 'products'; readonly terms: readonly Product[]; readonly sum: number; readonly result: number }
  | { readonly kind: 'scale'; readonly source: Source; readonly divisor: number; readonly result: number }
  | { readonly kind: 'mask'; readonly source: Source; readonly visible: boolean; readonly result: number }
  | {
      readonly kind: 'softmax'
      readonly candidates: readonly Candidate[]
      readonly largest: number
      readonly sum: number
      readonly chosen: number // which candidate is this cell's
      readonly result: number
    }
  | { readonly kind: 'copy'; readonly source: Source; readonly result: number }

/** Explain the cell [head, row, column] of one tensor of the trace; head is 0 where the tensor has no heads. */
export function explain(
  trace: Trace, weights: Weights, mask: Mask, name: TensorName, head: number, row: number, column: number,
): Explanation {
  const D = size(trace.q).columns
  const cell = (tensor: Exclude<Source['tensor'], `${string}_proj`>, h: number, i: number, j: number): Source => ({
    tensor, head: h, row: i, column: j, value: at(trace[tensor], h, i, j),
  })
  const weight = (which: 'q' | 'k' | 'v' | 'o', i: number, j: number): Source => ({
    tensor: `${which}_proj`, head: 0, row: i, column: j, value: at(weights[which], 0, i, j),
  })
  switch (name) {
    case 'x':
      return { kind: 'given', result: at(trace.x, 0, row, column) }
    case 'q':
    case 'k':
    case 'v':
      return products(columns(trace.x), (c) => cell('x', 0, row, c), (c) => weight(name, head * D + column, c))
    case 'raw':
      return products(D, (d) => cell('q', head, row, d), (d) => cell('k', head, column, d))
    case 'scaled': {
      const source = cell('raw', head, row, column)
      const divisor = Math.sqrt(D)
      return { kind: 'scale', source, divisor, result: Math.fround(source.value / divisor) }
    }
    case 'masked': {
      const source = cell('scaled', head, row, column)
      const visible = mayRead(row, column, mask)
      return { kind: 'mask', source, visible, result: visible ? source.value : -Infinity }
    }
    case 'weights': {
      const { largest, sum } = softmaxParts(trace.masked, head, row)
      const candidates = Array.from({ length: columns(trace.masked) }, (_, j): Candidate => {
        const source = cell('masked', head, row, j)
        return { source, shifted: source.value - largest, exponential: Math.exp(source.value - largest) }
      })
      const result = Math.fround(candidates[column]!.exponential / sum)
      return { kind: 'softmax', candidates, largest, sum, chosen: column, result }
    }
    case 'values':
      return products(columns(trace.weights), (s) => cell('weights', head, row, s), (s) => cell('v', head, s, column))
    case 'joined': {
      const source = cell('values', Math.floor(column / D), row, column % D)
      return { kind: 'copy', source, result: source.value }
    }
    case 'output':
      return products(columns(trace.joined), (c) => cell('joined', 0, row, c), (c) => weight('o', column, c))
  }
}

function columns(tensor: Tensor): number {
  return size(tensor).columns
}

function products(n: number, left: (i: number) => Source, right: (i: number) => Source): Explanation {
  const terms = Array.from({ length: n }, (_, i): Product => {
    const pair = { left: left(i), right: right(i) }
    return { ...pair, product: pair.left.value * pair.right.value }
  })
  const sum = terms.reduce((total, term) => total + term.product, 0)
  return { kind: 'products', terms, sum, result: Math.fround(sum) }
}

/** What moves when one position of the input is edited? Edits, and how far each row of each step moved. */
import { TENSORS, type TensorName, type Trace } from './attention'
import { type Tensor, at, difference, size } from './tensor'

export const LIMIT = 1000 // a larger number is cut: infinity times a weight of 0 would be NaN in every row

export type Edit =
  | { readonly kind: 'nudge'; readonly amount: number } // add amount x a fixed random direction
  | { readonly kind: 'zero' }
  | { readonly kind: 'copy'; readonly from: number } // the vector of another position
  | { readonly kind: 'set'; readonly column: number; readonly value: number }

export type Change = Record<TensorName, number[]> // the largest |difference| of each row

/** Give x (T, C) with the vector at one position edited. Raises for what is not finite or lies outside. */
export function edited(x: Tensor, direction: Tensor, position: number, edit: Edit): Tensor {
  const { rows, columns } = size(x)
  const inside = (n: number, end: number): boolean => Number.isInteger(n) && n >= 0 && n < end
  if (!inside(position, rows)) throw new RangeError(`position ${position}: x has ${rows} rows`)
  const data = x.data.slice()
  const put = (value: (c: number) => number): void => {
    for (let c = 0; c < columns; c++) data[position * columns + c] = clamp(value(c))
  }
  switch (edit.kind) {
    case 'nudge':
      put((c) => at(x, 0, position, c) + clamp(edit.amount) * direction.data[c]!)
      break
    case 'zero':
      put(() => 0)
      break
    case 'copy':
      if (!inside(edit.from, rows)) throw new RangeError(`copy of row ${edit.from}: x has ${rows} rows`)
      put((c) => at(x, 0, edit.from, c))
      break
    case 'set':
      if (!inside(edit.column, columns)) throw new RangeError(`column ${edit.column}: x has ${columns} columns`)
      put((c) => (c === edit.column ? edit.value : at(x, 0, position, c)))
      break
  }
  return { shape: x.shape, data }
}

/** Hold a number within +-LIMIT. Raises for NaN and infinities. */
export function clamp(value: number): number {
  if (!Number.isFinite(value)) throw new RangeError('an edit needs a finite number')
  return Math.min(LIMIT, Math.max(-LIMIT, value))
}

/** How far did each row of each tensor move between two passes? Exactly 0 where every bit is the same. */
export function change(before: Trace, after: Trace): Change {
  const rows = size(before.x).rows
  const perTensor = TENSORS.map((name) => [name, Array.from({ length: rows }, (_, i) => rowChange(before[name], after[name], i))])
  return Object.fromEntries(perTensor) as Change
}

function rowChange(a: Tensor, b: Tensor, row: number): number {
  const { heads, columns } = size(a)
  let worst = 0
  for (let h = 0; h < heads; h++) {
    for (let j = 0; j < columns; j++) worst = Math.max(worst, difference(at(a, h, row, j), at(b, h, row, j)))
  }
  return worst
}

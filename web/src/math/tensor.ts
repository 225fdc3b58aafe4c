/** A float32 tensor, rows first: the element [h, i, j] of shape [H, T, D] is data[(h * T + i) * D + j]. */
export interface Tensor {
  readonly shape: readonly number[]
  readonly data: Float32Array
}

export function zeros(...shape: number[]): Tensor {
  return { shape, data: new Float32Array(shape.reduce((product, size) => product * size, 1)) }
}

/** The last two axes as a table; a tensor with two axes counts as one head. */
export function size(tensor: Tensor): { heads: number; rows: number; columns: number } {
  const [columns = 1, rows = 1, heads = 1] = [...tensor.shape].reverse()
  return { heads, rows, columns }
}

/** The element [head, row, column]; head is ignored where the tensor has two axes. */
export function at(tensor: Tensor, head: number, row: number, column: number): number {
  const { heads, rows, columns } = size(tensor)
  const value = tensor.data[((heads > 1 ? head : 0) * rows + row) * columns + column]
  if (value === undefined || row >= rows || column >= columns || row < 0 || column < 0) {
    throw new RangeError(`[${head}, ${row}, ${column}] lies outside of a tensor of shape [${tensor.shape.join(', ')}]`)
  }
  return value
}

/** The largest |a - b|: 0 where both are the same infinity, NaN as soon as one of them is NaN. */
export function largestDifference(a: Tensor, b: Tensor): number {
  if (a.shape.join() !== b.shape.join()) {
    throw new RangeError(`shapes [${a.shape.join(', ')}] and [${b.shape.join(', ')}] do not match`)
  }
  let worst = 0
  for (let i = 0; i < a.data.length; i++) worst = Math.max(worst, difference(a.data[i]!, b.data[i]!))
  return worst
}

/** |a - b|, and 0 for equal infinities. */
export function difference(a: number, b: number): number {
  return a === b ? 0 : Math.abs(a - b)
}

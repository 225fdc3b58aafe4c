import { expect, it } from 'vitest'
import { TENSORS, attention } from '../../src/math/attention'
import { explain } from '../../src/math/explain'
import { at, size } from '../../src/math/tensor'
import { MASKS, heads, layer } from './layer'

it.each(MASKS)('explains every cell of every step to the bit (mask %s)', (mask) => {
  const trace = attention(layer.x, layer.weights, { heads, mask })
  let cells = 0
  for (const name of TENSORS) {
    const shape = size(trace[name])
    for (let h = 0; h < shape.heads; h++) {
      for (let i = 0; i < shape.rows; i++) {
        for (let j = 0; j < shape.columns; j++) {
          const told = explain(trace, layer.weights, mask, name, h, i, j)
          expect(Object.is(told.result, at(trace[name], h, i, j)), `${name}[${h}, ${i}, ${j}]`).toBe(true)
          cells++
        }
      }
    }
  }
  expect(cells).toBe(11 * 128)
})

it('sums what it shows, and names where each number stands', () => {
  const trace = attention(layer.x, layer.weights, { heads, mask: 'causal' })
  const score = explain(trace, layer.weights, 'causal', 'raw', 1, 5, 2)
  if (score.kind !== 'products') throw new Error(score.kind)
  expect(score.terms).toHaveLength(8)
  let sum = 0
  for (const [d, { left, right, product }] of score.terms.entries()) {
    // nine digits carry a float32 whole, so the panel at "all digits" can be added up by hand
    const [a, b] = [Math.fround(Number(left.value.toPrecision(9))), Math.fround(Number(right.value.toPrecision(9)))]
    expect(a * b).toBe(product)
    expect([left.tensor, left.row, left.column, right.tensor, right.row, right.column]).toEqual(['q', 5, d, 'k', 2, d])
    sum += a * b
  }
  expect(Math.fround(sum)).toBe(at(trace.raw, 1, 5, 2))

  const copied = explain(trace, layer.weights, 'causal', 'joined', 0, 3, 10)
  expect(copied).toMatchObject({ kind: 'copy', source: { tensor: 'values', head: 1, row: 3, column: 2 } })
  const hidden = explain(trace, layer.weights, 'causal', 'masked', 0, 5, 6)
  expect(hidden).toMatchObject({ kind: 'mask', visible: false, result: -Infinity })
  const weight = explain(trace, layer.weights, 'causal', 'weights', 0, 5, 6)
  expect(weight).toMatchObject({ kind: 'softmax', chosen: 6, result: 0 })
})

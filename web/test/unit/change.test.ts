import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { TENSORS, attention } from '../../src/math/attention'
import { type Edit, change, edited } from '../../src/math/change'
import { at } from '../../src/math/tensor'
import { MASKS, heads, layer } from './layer'

const runs = { seed: 5, numRuns: 150 }
const kinds: readonly Edit[] = [
  { kind: 'nudge', amount: 1.5 }, { kind: 'zero' }, { kind: 'copy', from: 0 }, { kind: 'copy', from: 7 },
  { kind: 'set', column: 3, value: 1000 },
]
const finite = fc.float({ noNaN: true, noDefaultInfinity: true, min: -1000, max: 1000 })
const anyInput = fc.array(finite, { minLength: 128, maxLength: 128 }).map((numbers) => ({
  shape: [8, 16], data: Float32Array.from(numbers),
}))
const anyEdit: fc.Arbitrary<Edit> = fc.oneof(
  fc.record({ kind: fc.constant('nudge' as const), amount: finite }),
  fc.constant({ kind: 'zero' as const }),
  fc.record({ kind: fc.constant('copy' as const), from: fc.nat(7) }),
  fc.record({ kind: fc.constant('set' as const), column: fc.nat(15), value: finite }),
)

function moved(x: typeof layer.x, p: number, edit: Edit, mask: 'causal' | 'none'): ReturnType<typeof change> {
  const run = (rows: typeof layer.x): ReturnType<typeof attention> => attention(rows, layer.weights, { heads, mask })
  return change(run(x), run(edited(x, layer.direction, p, edit)))
}

describe('the future', () => {
  it.each([0, 1, 2, 3, 4, 5, 6, 7])('an edit at t%i reaches no earlier row through the mask, and all without it', (p) => {
    for (const edit of kinds) {
      if (edit.kind === 'copy' && edit.from === p) continue
      const held = moved(layer.x, p, edit, 'causal')
      const open = moved(layer.x, p, edit, 'none')
      for (let t = 0; t < 8; t++) {
        for (const name of ['masked', 'weights', 'values', 'joined', 'output'] as const) {
          if (t < p) expect(held[name][t]).toBe(0)
        }
        if (t < p) expect(held.raw[t]).toBeGreaterThan(0) // the scores saw it: the mask is where it is cut
        expect(open.output[t]).toBeGreaterThan(0)
        for (const name of ['x', 'q', 'k', 'v'] as const) {
          if (t === p) expect(held[name][t]).toBeGreaterThan(0)
          else expect(held[name][t]).toBe(0)
        }
      }
    }
  })

  it('holds for any finite input, position and edit', () => {
    fc.assert(
      fc.property(anyInput, fc.nat(7), anyEdit, (x, p, edit) => {
        const held = moved(x, p, edit, 'causal')
        for (const name of TENSORS) {
          if (name === 'raw' || name === 'scaled') continue
          for (let t = 0; t < p; t++) expect(held[name][t]).toBe(0)
        }
      }),
      runs,
    )
  })

  it('editing nothing changes nothing', () => {
    for (const mask of MASKS) {
      for (const edit of [{ kind: 'nudge', amount: 0 }, { kind: 'copy', from: 4 }] as const) {
        for (const rows of Object.values(moved(layer.x, 4, edit, mask))) expect(rows).toEqual(new Array(8).fill(0))
      }
    }
  })

  it('refuses numbers that are not finite and places that are not there, and cuts huge ones', () => {
    const make = (p: number, edit: Edit) => () => edited(layer.x, layer.direction, p, edit)
    for (const bad of [NaN, Infinity, -Infinity]) {
      expect(make(5, { kind: 'nudge', amount: bad })).toThrow('finite')
      expect(make(5, { kind: 'set', column: 0, value: bad })).toThrow('finite')
    }
    for (const p of [-1, 8, 1.5]) expect(make(p, { kind: 'zero' })).toThrow('position')
    expect(make(5, { kind: 'copy', from: 8 })).toThrow('copy of row 8')
    expect(make(5, { kind: 'set', column: 16, value: 0 })).toThrow('column 16')
    expect(at(make(5, { kind: 'set', column: 2, value: 1e9 })(), 0, 5, 2)).toBe(1000)
  })
})

describe('softmax and order', () => {
  it('rows sum to 1 and are 0 above the diagonal, for any input', () => {
    fc.assert(
      fc.property(anyInput, (x) => {
        const { weights } = attention(x, layer.weights, { heads, mask: 'causal' })
        for (let h = 0; h < heads; h++) {
          for (let i = 0; i < 8; i++) {
            let sum = 0
            for (let j = 0; j < 8; j++) {
              sum += at(weights, h, i, j)
              if (j > i) expect(at(weights, h, i, j)).toBe(0)
            }
            expect(Math.abs(sum - 1)).toBeLessThanOrEqual(1e-6)
          }
        }
      }),
      runs,
    )
  })

  it('two earlier positions that swap places swap their columns for every later reader', () => {
    fc.assert(
      fc.property(fc.nat(3), fc.nat(3), (a, b) => {
        const x = { ...layer.x, data: layer.x.data.slice() }
        for (let c = 0; c < 16; c++) {
          x.data[a * 16 + c] = at(layer.x, 0, b, c)
          x.data[b * 16 + c] = at(layer.x, 0, a, c)
        }
        const before = attention(layer.x, layer.weights, { heads, mask: 'causal' }).weights
        const after = attention(x, layer.weights, { heads, mask: 'causal' }).weights
        for (let h = 0; h < heads; h++) {
          for (let i = 4; i < 8; i++) {
            expect(Math.abs(at(after, h, i, a) - at(before, h, i, b))).toBeLessThanOrEqual(1e-6)
            expect(Math.abs(at(after, h, i, b) - at(before, h, i, a))).toBeLessThanOrEqual(1e-6)
          }
        }
      }),
      runs,
    )
  })
})

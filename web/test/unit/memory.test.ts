/** What the square of scores takes, by formula and as measured. */
import { memory as built } from 'virtual:memory'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { FEWEST, LAYER, MOST, type Memory, WINDOW, checkMemory, groups, lengths, need, powers } from '../../src/math/memory'
import { measured } from './measured'

describe('the formula', () => {
  it('gives what one can count by hand', () => {
    expect(LAYER).toEqual({ heads: 8, width: 32, bytes: 4 })
    expect(need(16)).toEqual({ tokens: 16, scores: 256, square: 8192, rows: 65_536, ratio: 0.125, windowed: 8192 })
    expect(need(1024)).toMatchObject({ scores: 2 ** 20, square: 2 ** 25, rows: 2 ** 22, ratio: 8, windowed: 2 ** 24 })
    expect(need(128).ratio).toBe(1) // four times the width of a head
  })

  it('twice the text: four times the square, twice the rows; a window makes it twice, too', () => {
    fc.assert(fc.property(fc.integer({ min: 1, max: 2 ** 20 }), (T) => {
      const [one, two] = [need(T), need(2 * T)]
      expect(two.square).toBe(4 * one.square)
      expect(two.rows).toBe(2 * one.rows)
      if (T >= WINDOW) expect(two.windowed).toBe(2 * one.windowed)
      else expect(one.windowed).toBe(one.square)
    }), { seed: 5, numRuns: 300 })
  })

  it('the slider stops at every power of two, at its ends, and at every length that was measured, once', () => {
    const stops = lengths(measured)
    expect([stops[0], stops.at(-1)]).toEqual([FEWEST, MOST])
    for (const T of [...powers(FEWEST, MOST, 2), 1000]) expect(stops.filter((stop) => stop === T)).toHaveLength(1)
    expect(stops).toEqual([...stops].sort((a, b) => a - b))
    expect(lengths(null)).toHaveLength(41)
    expect(powers(1024, 2 ** 30, 32)).toEqual([2 ** 10, 2 ** 15, 2 ** 20, 2 ** 25, 2 ** 30])
  })
})

describe('the measurements', () => {
  it('come in groups, by length, none lost', () => {
    const found = groups(measured)
    expect(found.map(({ backend, dtype, points }) => [backend, dtype, points.map(({ tokens }) => tokens)])).toEqual([
      ['math', 'fp32', [1024]], ['math', 'bf16', [1024]], ['fused', 'fp32', [1000, 4096]],
    ])
    expect(groups(null)).toEqual([])
  })

  it('that this page is built with can be drawn', () => {
    expect(checkMemory(built)).toBe(built)
  })

  it('of another schema, or with what is no number, are refused in words', () => {
    const [point] = measured.points
    const wrong = (patch: object): Memory => ({ ...measured, points: [{ ...point!, ...patch }] })
    expect(() => checkMemory({ ...measured, schema: 'octlm-web-memory/2' })).toThrow('schema octlm-web-memory/2: this page reads octlm-web-memory/1')
    for (const patch of [{ tokens: 0 }, { tokens: NaN }, { growth_bytes: Infinity }, { growth_bytes: null }, { seconds: -1 }]) {
      expect(() => checkMemory(wrong(patch))).toThrow('is no measurement')
    }
    for (const patch of [{ backend: 'magic' }, { dtype: 'fp8' }]) expect(() => checkMemory(wrong(patch))).toThrow('no line for')
  })
})

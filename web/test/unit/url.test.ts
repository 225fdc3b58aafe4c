import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { Edit } from '../../src/math/change'
import { createStore } from '../../src/state/store'
import { PARTS, START, STEPS, type State, columnsOf, decimal, format, parse, settle } from '../../src/state/url'

const limits = { heads: 2, positions: 8, dim: 16 }
const amount = fc.double({ noNaN: true, noDefaultInfinity: true, min: -1000, max: 1000 }).map((x) => x + 0)
const anyEdit: fc.Arbitrary<Edit> = fc.oneof(
  fc.record({ kind: fc.constant('nudge' as const), amount }),
  fc.constant({ kind: 'zero' as const }),
  fc.record({ kind: fc.constant('copy' as const), from: fc.nat(7) }),
  fc.record({ kind: fc.constant('set' as const), column: fc.nat(15), value: amount }),
)
const anyState: fc.Arbitrary<State> = fc
  .record({
    step: fc.constantFrom(...STEPS), head: fc.nat(1), part: fc.constantFrom(...PARTS), row: fc.nat(7), column: fc.nat(15),
    mask: fc.constantFrom('causal' as const, 'none' as const), digits: fc.constantFrom(6 as const, 9 as const), p: fc.nat(7), edit: anyEdit,
  })
  .map((state) => settle(state, limits))

describe('the address', () => {
  it('parse(format(state)) is the state', () => {
    fc.assert(fc.property(anyState, (state) => {
      expect(parse(`#${format(state)}`, limits)).toEqual(state)
    }), { seed: 5, numRuns: 500 })
  })

  it('is empty at the start, and an empty one is the start', () => {
    expect(format(START)).toBe('')
    for (const hash of ['', '#', '#walk', '#step']) expect(parse(hash, limits)).toEqual(START)
  })

  it('reads what people were promised', () => {
    expect(parse('#step=softmax&head=2&cell=5,2&mask=none&p=5&edit=nudge:1.5', limits)).toEqual({
      ...START, step: 'softmax', head: 1, mask: 'none',
    })
    expect(parse('#edit=set:3:1e9', limits).edit).toEqual({ kind: 'set', column: 3, value: 1000 })
  })

  const hostile = [
    'step=evil', 'step=__proto__', 'step=constructor', 'head=0', 'head=3', 'head=-1', 'head=1e9', 'head=NaN', 'cell=99,99', 'cell=-1,-1', 'cell=a,b', 'cell=5',
    'cell=1.5,2', 'mask=', 'mask=causal2', 'p=8', 'p=-1', 'p=Infinity', 'p=%00', 'edit=nudge', 'edit=nudge:', 'edit=nudge:NaN', 'edit=nudge:Infinity',
    'edit=nudge:1e999', 'edit=nudge:0x10', 'edit=copy:8', 'edit=copy:-1', 'edit=set:16:1', 'edit=set:1:NaN', 'edit=set::', 'edit=boom', '&&&===&', '=', 'digits=7',
    `cell=${'9'.repeat(10_000)},1`, `x=${'y'.repeat(10_000)}`, '%E0%A4%A', '<script>', 'step=input&step=evil',
  ]
  it.each(hostile)('%s leaves the start', (hash) => {
    expect(parse(`#${hash}`, limits)).toEqual(START)
  })

  it('never throws and never leaves the limits', () => {
    const noise = fc.oneof(fc.string({ maxLength: 300 }), fc.array(fc.tuple(
      fc.constantFrom('step', 'head', 'part', 'cell', 'mask', 'digits', 'p', 'edit'), fc.string({ maxLength: 12 }),
    )).map((pairs) => pairs.map((pair) => pair.join('=')).join('&')))
    fc.assert(fc.property(noise, (hash) => {
      const state = parse(hash, limits)
      expect(state.row).toBeLessThan(8)
      expect(state.column).toBeLessThan(columnsOf(state.step, limits))
      expect(parse(`#${format(state)}`, limits)).toEqual(state)
    }), { seed: 5, numRuns: 1000 })
  })

  it('brings the cell inside the table of its step', () => {
    expect(parse('#step=scores&cell=5,15', limits)).toMatchObject({ row: 5, column: 7 })
    expect(parse('#step=qkv&cell=0,9', limits)).toMatchObject({ row: 0, column: 7 })
    expect(parse('#step=output&cell=7,15', limits)).toMatchObject({ row: 7, column: 15 })
  })

  it('takes plain decimals only', () => {
    expect(['1.5', '-20', '+.5', '1e-3', '2.'].map(decimal)).toEqual([1.5, -20, 0.5, 0.001, 2])
    expect(['', '-', '.', 'e5', '1,5', ' 1', '0x1', 'Infinity', '1e999', undefined].map(decimal)).toEqual(new Array(10).fill(undefined))
    expect(Object.is(decimal('-0'), 0)).toBe(true)
  })
})

it('the store tells of changes only, and keeps the cell inside its table', () => {
  const store = createStore(START, (state) => settle(state, limits))
  const heard: string[] = []
  store.onChange((state) => heard.push(format(state)))
  store.set({ row: 5 })
  expect(heard).toEqual([])
  store.set({ column: 15 })
  store.set({ step: 'scores' })
  expect(store.get().column).toBe(7)
  expect(heard).toEqual(['cell=5,15', 'step=scores&cell=5,7'])
})

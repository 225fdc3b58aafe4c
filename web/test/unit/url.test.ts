import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { Edit } from '../../src/math/change'
import { createStore } from '../../src/state/store'
import { LAST, MAX_TEXT, OFF, PARTS, START, STEPS, type State, columnsOf, decimal, format, parse, settle } from '../../src/state/url'

const limits = { heads: 2, positions: 8, dim: 16 }
const amount = fc.double({ noNaN: true, noDefaultInfinity: true, min: -1000, max: 1000 }).map((x) => x + 0)
const anyEdit: fc.Arbitrary<Edit> = fc.oneof(
  fc.record({ kind: fc.constant('nudge' as const), amount }),
  fc.constant({ kind: 'zero' as const }),
  fc.record({ kind: fc.constant('copy' as const), from: fc.nat(7) }),
  fc.record({ kind: fc.constant('set' as const), column: fc.nat(15), value: amount }),
)
const within = (min: number, max: number): fc.Arbitrary<number> => fc.double({ noNaN: true, min, max }).map((x) => x + 0)
// whole code points and what means something in an address; half a surrogate pair has no spelling there
const anyText = fc.oneof(fc.string({ unit: 'binary', maxLength: 60 }), fc.array(fc.constantFrom('&', '=', '+', '%', '#', ' ', '\n', 'é', '火', '🦊'), { maxLength: 60 }).map((all) => all.join('')))
const anyState: fc.Arbitrary<State> = fc
  .record({
    step: fc.constantFrom(...STEPS), head: fc.nat(1), part: fc.constantFrom(...PARTS), row: fc.nat(7), column: fc.nat(15),
    both: fc.boolean(), mask: fc.constantFrom('causal' as const, 'none' as const), digits: fc.constantFrom(2 as const, 6 as const, 9 as const),
    colours: fc.constantFrom('fixed' as const, 'row' as const), p: fc.nat(7), edit: anyEdit,
    text: anyText, layer: fc.nat(31), modelHead: fc.nat(31), query: fc.oneof(fc.nat(300), fc.constant(LAST)),
    temperature: within(0, 2), topK: fc.nat(9998), topP: within(0.001, 1), seed: fc.nat(2 ** 31 - 1), cache: fc.boolean(),
    swap: fc.option(fc.record({ swapAt: fc.nat(300), swapId: fc.nat(5000) }), { nil: { swapAt: OFF, swapId: START.swapId } }),
  })
  .map(({ swap, ...state }) => ({ ...state, ...swap }))
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
    expect(parse('#heads=both&digits=2&colour=row&text=One+cold%20%F0%9F%A6%8A&layer=2&mhead=3&token=4&swap=5:60&temp=9&k=40&topp=0.95&seed=1&cache=off', limits)).toEqual({
      ...START, both: true, digits: 2, colours: 'row', text: 'One cold 🦊', layer: 1, modelHead: 2, query: 4, swapAt: 5, swapId: 60, temperature: 2, topK: 40, topP: 0.95,
      seed: 1, cache: false,
    })
    expect(parse('#edit=set:3:1e9', limits).edit).toEqual({ kind: 'set', column: 3, value: 1000 })
  })

  const hostile = [
    'step=evil', 'step=__proto__', 'step=constructor', 'head=0', 'head=3', 'head=-1', 'head=1e9', 'head=NaN', 'cell=99,99', 'cell=-1,-1', 'cell=a,b', 'cell=5',
    'cell=1.5,2', 'mask=', 'mask=causal2', 'p=8', 'p=-1', 'p=Infinity', 'p=%00', 'edit=nudge', 'edit=nudge:', 'edit=nudge:NaN', 'edit=nudge:Infinity',
    'edit=nudge:1e999', 'edit=nudge:0x10', 'edit=copy:8', 'edit=copy:-1', 'edit=set:16:1', 'edit=set:1:NaN', 'edit=set::', 'edit=boom', '&&&===&', '=', 'digits=7',
    'text=%E0%A4%A', 'text=%', `text=${'y'.repeat(MAX_TEXT + 1)}`, 'layer=-1', 'layer=1.5', 'layer=1e9', 'layer=99999', 'mhead=NaN', 'mhead=', 'mhead=<b>', 'token=-1',
    'token=1e3', 'token=10000', 'swap=', 'swap=1', 'swap=1:', 'swap=:1', 'swap=-1:5', 'swap=1:NaN', 'swap=99999:1', 'temp=', 'temp=NaN', 'temp=hot', 'temp=1e999', 'k=-1',
    'k=1.5', 'k=10000', 'topp=NaN', 'topp=0', 'topp=-3', 'seed=-1', 'seed=4294967296', 'seed=1e5', 'cache=', 'cache=maybe', 'heads=2', 'heads=', 'colour=red', 'colour=',
    `cell=${'9'.repeat(10_000)},1`, `x=${'y'.repeat(10_000)}`, '%E0%A4%A', '<script>', 'step=input&step=evil',
  ]
  it.each(hostile)('%s leaves the start', (hash) => {
    expect(parse(`#${hash}`, limits)).toEqual(START)
  })

  it('never throws and never leaves the limits', () => {
    const noise = fc.oneof(fc.string({ maxLength: 300 }), fc.array(fc.tuple(
      fc.constantFrom('step', 'head', 'heads', 'part', 'cell', 'mask', 'digits', 'colour', 'p', 'edit', 'text', 'layer', 'mhead', 'token', 'swap', 'temp', 'k', 'topp', 'seed', 'cache'),
      fc.oneof(fc.string({ maxLength: 12 }), fc.double().map(String), fc.integer().map(String), fc.tuple(fc.nat(20_000), fc.nat(20_000)).map((two) => two.join(':'))),
    )).map((pairs) => pairs.map((pair) => pair.join('=')).join('&')))
    fc.assert(fc.property(noise, (hash) => {
      const state = parse(hash, limits)
      expect(state.row).toBeLessThan(8)
      expect(state.column).toBeLessThan(columnsOf(state.step, limits))
      expect(state.text.length).toBeLessThanOrEqual(MAX_TEXT)
      expect(state.temperature).toBeGreaterThanOrEqual(0)
      expect(state.temperature).toBeLessThanOrEqual(2)
      expect(state.topP).toBeGreaterThan(0)
      expect(state.topP).toBeLessThanOrEqual(1)
      for (const whole of [state.layer, state.modelHead, state.query, state.topK, state.seed]) expect(Number.isSafeInteger(whole) && whole >= 0).toBe(true)
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

/** Axes, ticks and labels of the charts; what the two charts draw and say, and what is refused. */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { need } from '../../src/math/memory'
import { bytes, count } from '../../src/ui/format'
import { share, spread, ticks } from '../../src/ui/linechart'
import { type Run, lossChart, readRuns, readingAt } from '../../src/views/runs'
import { memoryChart, readingOf, source } from '../../src/views/square'
import { measured } from './measured'

describe('axes', () => {
  it('places on a line or by powers; a logarithm has no place for zero', () => {
    expect(share({ log: false, low: 10, high: 20 }, 15)).toBe(0.5)
    expect(share({ log: true, low: 1, high: 10_000 }, 100)).toBeCloseTo(0.5, 12)
    expect(share({ log: true, low: 1, high: 10 }, 0)).toBeNaN()
  })

  it.each([
    [{ log: false, low: 0.25, high: 0.37 }, [0.26, 0.28, 0.3, 0.32, 0.34, 0.36]],
    [{ log: false, low: 0, high: 1500 }, [0, 200, 400, 600, 800, 1000, 1200, 1400]],
    [{ log: true, low: 1, high: 100 }, [1, 2, 5, 10, 20, 50, 100]],
    [{ log: true, low: 1, high: 1e6 }, [1, 10, 100, 1000, 10_000, 100_000, 1e6]],
  ])('%o has round ticks', (axis, expected) => expect(ticks(axis)).toEqual(expected))

  it('ticks lie on the axis, rise, and are neither one nor too many', () => {
    const positive = fc.double({ min: 1e-6, max: 1e9, noNaN: true })
    fc.assert(fc.property(positive, fc.double({ min: 1.01, max: 1e6, noNaN: true }), (low, times) => {
      const found = ticks({ log: false, low, high: low * times })
      expect(found.length).toBeGreaterThanOrEqual(3)
      expect(found.length).toBeLessThanOrEqual(11)
      for (const [i, tick] of found.entries()) {
        expect(share({ log: false, low, high: low * times }, tick)).toBeGreaterThan(-1e-6)
        expect(share({ log: false, low, high: low * times }, tick)).toBeLessThan(1 + 1e-6)
        if (i > 0) expect(tick).toBeGreaterThan(found[i - 1]!)
      }
    }), { seed: 5, numRuns: 500 })
  })

  it('labels do not lie on each other and keep their order', () => {
    expect(spread([50, 52, 300], 16, 310)).toEqual([50, 66, 300])
    expect(spread([305, 300, 309], 16, 310)).toEqual([294, 278, 310])
    fc.assert(fc.property(fc.array(fc.double({ min: 0, max: 300, noNaN: true }), { minLength: 1, maxLength: 6 }), (wanted) => {
      const sorted = spread(wanted, 16, 310).sort((a, b) => a - b)
      for (const [i, place] of sorted.entries()) if (i > 0) expect(place - sorted[i - 1]!).toBeGreaterThanOrEqual(16 - 1e-9)
      expect(sorted.at(-1)).toBeLessThanOrEqual(310)
    }), { seed: 5, numRuns: 300 })
  })

  it('bytes are told in units of 1,024', () => {
    expect([0, 1, 1023, 1024, 1536, 2 ** 20, 3 * 2 ** 28, 2 ** 33, 2 ** 50].map(bytes)).toEqual(
      ['0 bytes', '1 bytes', '1,023 bytes', '1 KiB', '1.5 KiB', '1 MiB', '768 MiB', '8 GiB', '1,024 TiB'])
  })
})

describe('the chart of the square', () => {
  it('without measurements: two lines by formula, and a sentence that says so', () => {
    const { series, stops } = memoryChart(null)
    expect(series.map(({ name }) => name)).toEqual(['T × T scores', 'q, k, v, output'])
    for (const [i, stop] of stops.entries()) {
      expect(series[0]!.points[i]).toEqual([stop, need(stop).square])
      expect(series[1]!.points[i]).toEqual([stop, need(stop).rows])
    }
    expect(source(null)).toContain('Nothing was measured')
  })

  it('with measurements: every point where the file has it, told with the file’s numbers', () => {
    const chart = memoryChart(measured)
    const marks = chart.series.filter(({ line }) => line === false)
    expect(marks.map(({ name }) => name)).toEqual(['math fp32', 'math bf16', 'fused fp32'])
    const told = marks.flatMap(({ points, told: tell }) => points.map((point, i) => [point, tell?.(i)] as const))
    const drawn = measured.points.filter(({ growth_bytes: grown }) => grown > 0)
    expect(told).toHaveLength(drawn.length) // the 0 stands in the table only: a logarithm has no place for it
    for (const { backend, dtype, tokens, growth_bytes: grown, seconds } of drawn) {
      expect(told).toContainEqual([[tokens, grown], `${backend} ${dtype}, ${count(tokens)} tokens: ${count(grown)} bytes, ${seconds} s`])
    }
    for (const [x, y] of marks.flatMap(({ points }) => points)) {
      for (const place of [share(chart.x, x), share(chart.y, y)]) expect(place >= 0 && place <= 1).toBe(true)
    }
    expect(source(measured)).toMatch(/measured on a test with PyTorch 2\.13\.0, commit 0123456789/)
  })

  it('says in words how large the square is', () => {
    expect(readingOf(need(1024))).toBe('1,024 tokens: the scores take 32 MiB, queries, keys, values and output 4 MiB; the square is 8 times as much.')
    expect(readingOf(need(16))).toContain('the square is 12.5 % of it')
    expect(readingOf(need(128))).toContain('the square is just as large')
  })
})

const one: Run = {
  name: 'a', parameters: 10, tokenizer: 'byte', data: 'd', torch: '2.13.0', steps: 20, floor_bits_per_byte: 0.25,
  train: [[1, 2.5, 3.5], [10, 1.25, 1.25]], val: [[5, 1.125, 0.5], [20, 1.0625, 0.4375]],
}
const two: Run = { ...one, name: 'b', floor_bits_per_byte: null, train: [], val: [[0, 4, 2], [30, 3, 1]] }
const file = (runs: unknown, schema = 'octlm-web-runs/1'): string => JSON.stringify({ schema, runs })

describe('the chart of the losses', () => {
  it('draws the file’s numbers in either unit, the band only where its unit is', () => {
    const bits = lossChart([one, two], { unit: 'bits', log: false, only: null })
    expect(bits.series.map(({ name }) => name)).toEqual(['a', 'floor of a', 'b'])
    expect(bits.series[0]!.points).toEqual([[5, 0.5], [20, 0.4375]])
    expect(bits.series[0]!.told?.(1)).toBe('a, step 20: 0.4375 bits per byte')
    expect(bits.series[1]!.points).toEqual([[1, 0.25], [20, 0.25]])
    expect(bits.series.some(({ band }) => band)).toBe(false)
    const nats = lossChart([one, two], { unit: 'nats', log: false, only: 0 })
    expect(nats.series.map(({ points, band }) => [points, band])).toEqual([[[[5, 1.125], [20, 1.0625]], one.train]])
    expect(nats.y.high).toBeGreaterThanOrEqual(3.5)
  })

  it('each run keeps its look, and step 0 has no place on a logarithm', () => {
    expect(lossChart([one, two], { unit: 'bits', log: false, only: 1 }).series.map(({ look }) => look)).toEqual([1])
    expect(lossChart([one, two], { unit: 'bits', log: false, only: null }).stops).toEqual([0, 1, 5, 10, 20, 30])
    const { stops, x } = lossChart([one, two], { unit: 'bits', log: true, only: null })
    expect([stops[0], x.low]).toEqual([1, 1])
  })

  it('a run that was never validated, or has one step only, still has axes', () => {
    for (const run of [{ ...one, val: [], floor_bits_per_byte: null }, { ...one, train: [], val: [[0, 1, 1]] as const }, { ...one, train: [], val: [[7, 1, 1]] as const }]) {
      for (const unit of ['bits', 'nats'] as const) {
        for (const log of [true, false]) {
          const { x, y } = lossChart([run], { unit, log, only: null })
          expect(x.high > x.low && y.high > y.low && (!log || x.low > 0)).toBe(true)
        }
      }
    }
  })

  it('reads out the exact step and loss, or the last one and its step', () => {
    expect(readingAt([one, two], { unit: 'nats', log: false, only: null }, 10)).toBe(
      'Step 10, nats per token. a: validation 1.125 (of step 5), train 1.25; b: validation 4 (of step 0).')
    expect(readingAt([one], { unit: 'nats', log: false, only: null }, 1)).toBe('Step 1, nats per token. a: train 2.5 to 3.5.')
    expect(readingAt([one], { unit: 'bits', log: false, only: null }, 1)).toBe('Step 1, bits per byte. a: nothing yet.')
    expect(readingAt([one, two], { unit: 'bits', log: false, only: 0 }, 20)).toBe('Step 20, bits per byte. a: validation 0.4375.')
  })
})

describe('runs.json', () => {
  it('is read', () => expect(readRuns(file([one, two]))).toEqual([one, two]))

  it('cut off anywhere, it is refused', () => {
    const whole = file([one])
    for (let end = 0; end < whole.length; end++) expect(() => readRuns(whole.slice(0, end))).toThrow('no whole JSON')
  })

  it.each([
    ['null', 'its schema is undefined'], ['[]', 'its schema is undefined'], [file([one], 'octlm-web-runs/2'), 'its schema is octlm-web-runs/2; this page reads octlm-web-runs/1'],
    [file([]), 'it holds no run'], [file({}), 'it holds no run'], [file([null]), 'run 1 does not say what it is'], [file([{ ...one, torch: 2 }]), 'run 1 does not say'],
    [file([one, { ...one, parameters: 'many' }]), 'run 2 does not say'], [file([{ ...one, train: [], val: [] }]), 'losses of run a'], [file([{ ...one, val: [[1, 2]] }]), 'losses of run a'],
    [file([{ ...one, val: [[1, null, 2]] }]), 'losses of run a'], [file([{ ...one, train: [[5, 1, 2], [5, 1, 2]] }]), 'losses of run a'],
    [file([{ ...one, train: Array.from({ length: 2001 }, (_, i) => [i, 1, 1]) }]), 'losses of run a'], [file([{ ...one, floor_bits_per_byte: 'low' }]), 'floor of run a'],
  ])('%.60s is refused in words', (text, words) => expect(() => readRuns(text)).toThrow(words))
})

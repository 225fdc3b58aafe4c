/** What the page shows: numbers, colours, words, and that it keeps to its own origin and its own randomness. */
import { readFileSync, readdirSync } from 'node:fs'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { TENSORS, attention } from '../../src/math/attention'
import { change, edited } from '../../src/math/change'
import { at } from '../../src/math/tensor'
import { STEPS } from '../../src/state/url'
import { background, ink, luminance } from '../../src/ui/colour'
import { difference, inCell, long, short } from '../../src/ui/format'
import { judge, wordFor } from '../../src/views/causality'
import { STEP_LIST } from '../../src/views/steps'
import { MASKS, heads, layer } from './layer'

const root = new URL('../../', import.meta.url)
const read = (path: string): string => readFileSync(new URL(path, root), 'utf8')

describe('numbers', () => {
  it.each([
    [0, '0'], [-0, '0'], [0.004, '~0'], [-0.0049, '~0'], [0.005, '0.01'], [-0.317, '\u22120.32'], [9.99, '9.99'], [9.996, '10.0'], [-12.34, '\u221212.3'],
    [-Infinity, '\u2212\u221e'], [NaN, 'NaN'],
  ])('%f in a cell', (value, text) => expect(inCell(value)).toBe(text))

  it('the panel gives 2 or 6 digits, or the 9 that carry a float32 whole', () => {
    expect([long(-0.31702104, 2), long(12.5, 2), long(1e-9, 2)]).toEqual(['\u22120.32', '13', '1.0e\u22129'])
    expect(long(-0.31702104, 6)).toBe('\u22120.317021')
    expect([long(0, 6), long(-Infinity, 9), long(NaN, 6)]).toEqual(['0', '\u2212\u221e', 'NaN'])
    fc.assert(fc.property(fc.float({ noNaN: true, noDefaultInfinity: true }), (value) => {
      expect(Math.fround(Number(long(value, 9).replaceAll('\u2212', '-')))).toBe(value + 0)
    }), { seed: 5, numRuns: 500 })
  })

  it('calls exact only what is', () => {
    expect([difference(0), difference(1e-30), short(0.12), short(1.6)]).toEqual(['0 (exact)', '1.0e\u221230', '1.2e\u22121', '1.6'])
  })
})

describe('colours', () => {
  it('text stands out at least 4.5 to 1 on any cell, in both themes', () => {
    for (const theme of ['light', 'dark'] as const) {
      for (const ramp of ['diverging', 'sequential'] as const) {
        for (let share = -1; share <= 1; share += 1 / 64) {
          const below = background(share, 1, ramp, theme)
          const [a, b] = [luminance(below), luminance(ink(below))]
          expect((Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), `${theme} ${ramp} ${share}`).toBeGreaterThanOrEqual(4.5)
        }
      }
    }
  })

  it('ends where the scale ends, and is symmetric about zero', () => {
    expect(background(-3, 3, 'diverging', 'light')).toBe('#7f3b08')
    expect(background(99, 3, 'diverging', 'light')).toBe('#053061')
    expect(background(0, 1, 'sequential', 'light')).toBe('#ffffff')
    expect(background(5, 0, 'diverging', 'dark')).toBe(background(0, 1, 'diverging', 'dark'))
  })
})

describe('words', () => {
  const run = (p: number, amount: number, mask: 'causal' | 'none'): string => {
    const before = attention(layer.x, layer.weights, { heads, mask })
    const after = attention(edited(layer.x, layer.direction, p, { kind: 'nudge', amount }), layer.weights, { heads, mask })
    return judge({ p, mask }, change(before, after))
  }

  it('says what the numbers say', () => {
    expect(run(5, 1.5, 'causal')).toBe('Rows t0 to t4 moved by exactly 0: no bit of t5 reached its past.')
    expect(run(1, 1.5, 'causal')).toContain('Row t0 moved by exactly 0')
    expect(run(5, 1.5, 'none')).toMatch(/^LEAK\. Rows t0 to t4 moved, by \S+ to \S+: they have read t5/)
    for (const mask of MASKS) {
      expect(run(0, 1.5, mask)).toContain('no earlier rows to check')
      expect(run(5, 0, mask)).toContain('nothing moves')
    }
    expect([wordFor(2, 5, 0), wordFor(2, 5, 1e-9), wordFor(5, 5, 1), wordFor(5, 5, 0), wordFor(6, 5, 1), wordFor(6, 5, 0)]).toEqual(
      ['unchanged', 'LEAK', 'edited', 'edited, same result', 'changed', 'unchanged'])
  })

  it('the steps give every tensor once, in order', () => {
    expect(STEP_LIST.map(({ id }) => id)).toEqual([...STEPS])
    expect(STEP_LIST.flatMap(({ gives }) => gives)).toEqual([...TENSORS])
  })

  it('what the text claims holds: swapped earlier rows give a later reader the same mixture', () => {
    const x = { ...layer.x, data: layer.x.data.slice() }
    x.data.copyWithin(16, 0, 16)
    x.data.set(layer.x.data.slice(16, 32), 0)
    const [a, b] = [layer.x, x].map((rows) => attention(rows, layer.weights, { heads, mask: 'causal' }).output)
    for (let c = 0; c < 16; c++) expect(Math.abs(at(a!, 0, 7, c) - at(b!, 0, 7, c))).toBeLessThanOrEqual(1e-6)
  })

  it('the table of the square follows its formula', () => {
    const table = /<table class="plain"[\s\S]*?<\/table>/.exec(read('index.html'))?.[0] ?? ''
    const rows = [...table.matchAll(/<tr><th scope="row">(.*?)<\/th><td>(.*?)<\/td><td>(.*?)<\/td><td>(.*?)<\/td>/g)]
    const bytes = (text = ''): number => Number.parseFloat(text) * { KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30 }[text.split(' ')[1] ?? '']!
    const whole = (text = ''): number => Number(text.replaceAll(',', ''))
    const [, heads = '', width = ''] = /<caption>(One|\d+) heads? of width (\d+) in float32/.exec(table) ?? []
    const H = heads === 'One' ? 1 : Number(heads)
    expect(rows).toHaveLength(5)
    for (const [, T, scores, square, rest] of rows) {
      expect(whole(scores)).toBe(H * whole(T) ** 2)
      expect(bytes(square)).toBe(4 * H * whole(T) ** 2)
      expect(bytes(rest)).toBe(4 * 4 * H * Number(width) * whole(T))
    }
  })
})

const FETCHING = ['io/load.ts', 'views/runs.ts'] // the model and the records, each from a folder of the page's own

it('the sources use no random numbers, no clock and no address', () => {
  const files = (readdirSync(new URL('src', root), { recursive: true }) as string[]).filter((name) => /\.(ts|css)$/.test(name))
  expect(files.length).toBeGreaterThan(15)
  const banned = (text: string, where: RegExp): string[] => text.match(where) ?? []
  for (const file of files) {
    expect(banned(read(`src/${file}`), /Math\.random|Date\.now|new Date|https?:/g), file).toEqual([])
    if (!FETCHING.includes(file)) expect(banned(read(`src/${file}`), /fetch\(|XMLHttpRequest|WebSocket|sendBeacon/g), file).toEqual([])
  }
  expect(banned(read('index.html'), /https?:/g)).toEqual([])
})

/** The table of scores that grows with the square of the text: by formula, and as it was measured. */
import { memory as measured } from 'virtual:memory'
import { FEWEST, LAYER, type Memory, MOST, type Need, WINDOW, checkMemory, groups, lengths, need, powers } from '../math/memory'
import { byId, h, scalable, scrollBox, setText } from '../ui/dom'
import { bytes, count } from '../ui/format'
import { type Chart, LineChart, type Series } from '../ui/linechart'

const START = 2048
const FIXED = 1024 // the square that the chosen one is drawn against
const MARKS = { fp32: { math: 'square', fused: 'dot' }, bf16: { math: 'frame', fused: 'ring' } } as const
const SIDE = 200 // px, of the larger square
const { heads, width } = LAYER

/** The two lines of the formula, and the points that were measured. */
export function memoryChart(memory: Memory | null): Chart {
  const stops = lengths(memory)
  const x = { low: stops[0]!, high: stops.at(-1)! }
  const points = groups(memory).map(({ backend, dtype, points: all }): Series => {
    const drawn = all.filter(({ growth_bytes: grown }) => grown > 0) // a logarithm has no place for 0; the table has it
    return {
      name: `${backend} ${dtype}`, look: backend === 'math' ? 0 : 1, line: false, mark: MARKS[dtype][backend],
      points: drawn.map((point) => [point.tokens, point.growth_bytes]),
      told: (i) => `${backend} ${dtype}, ${count(drawn[i]!.tokens)} tokens: ${count(drawn[i]!.growth_bytes)} bytes, ${drawn[i]!.seconds} s`,
    }
  })
  const every = [...points.flatMap((one) => one.points.map(([, grown]) => grown)), need(x.low).square, need(x.low).rows, need(x.high).square]
  const y = { low: Math.min(...every), high: Math.max(...every) }
  return {
    title: `Memory of one attention layer, from ${count(x.low)} to ${count(x.high)} tokens`,
    description: 'Both axes are logarithmic. The line of the scores rises twice as steeply as that of queries, keys, values and output; they cross where T is four times the width of a head.',
    x: { label: 'tokens T', log: true, ...x, ticks: powers(FEWEST, x.high, 4), text: count },
    y: { label: 'bytes', log: true, ...y, ticks: powers(2 ** 10, y.high, 32), text: bytes },
    series: [
      { name: 'T × T scores', look: 0, points: stops.map((tokens) => [tokens, need(tokens).square]) },
      { name: 'q, k, v, output', look: 1, points: stops.map((tokens) => [tokens, need(tokens).rows]) },
      ...points,
    ],
    stops,
  }
}

/** What the cursor says of one length. */
export function readingOf({ tokens, square, rows, ratio }: Need): string {
  const times = ratio === 1 ? 'just as large' : ratio > 1 ? `${Number(ratio.toPrecision(3))} times as much` : `${Number((100 * ratio).toPrecision(3))} % of it`
  return `${count(tokens)} tokens: the scores take ${bytes(square)}, queries, keys, values and output ${bytes(rows)}; the square is ${times}.`
}

export function square(memory: Memory | null = measured): void {
  const body = byId('square-body')
  let data: Memory | null = null
  let problem = ''
  try {
    data = checkMemory(memory)
  } catch (error) {
    problem = `The measurements cannot be shown: ${error instanceof Error ? error.message : String(error)}. `
  }
  const chosen = scalable('rect', { class: 'now' })
  const fixed = scalable('rect', { class: 'fixed' })
  const words = { now: h('p', { class: 'swatch-now' }), fixed: h('p', { class: 'swatch-fixed' }, `T = ${count(FIXED)}, to compare`) }
  const output = h('output', { for: 'square-cursor' })
  const facts = { scores: h('dd'), square: h('dd'), rows: h('dd'), windowed: h('dd') }
  const reading = h('p', { class: 'reading' })

  const chart = new LineChart('square', (tokens) => {
    const now = need(tokens)
    const scale = SIDE / Math.max(tokens, FIXED)
    for (const [rect, side] of [[chosen, tokens * scale], [fixed, FIXED * scale]] as const) {
      rect.setAttribute('width', String(side))
      rect.setAttribute('height', String(side))
      rect.setAttribute('x', '1')
      rect.setAttribute('y', String(1 + SIDE - side))
    }
    setText(words.now, `T = ${count(tokens)}`)
    setText(output, `${count(tokens)} tokens`)
    setText(facts.scores, count(now.scores))
    setText(facts.square, bytes(now.square))
    setText(facts.rows, bytes(now.rows))
    setText(facts.windowed, bytes(now.windowed))
    setText(reading, readingOf(now))
    return readingOf(now)
  })
  const row = (label: string, value: HTMLElement): HTMLElement[] => [h('dt', {}, label), value]
  body.replaceChildren(
    h('div', { class: 'controls' }, h('div', { class: 'field wide' }, h('label', { for: 'square-cursor' }, 'Length of the text, T'), chart.slider, output)),
    reading,
    h('div', { class: 'square-parts' },
      h('div', { class: 'to-scale' },
        scalable('svg', { viewBox: `0 0 ${SIDE + 2} ${SIDE + 2}`, width: SIDE + 2, height: SIDE + 2, 'aria-hidden': 'true' }, chosen, fixed),
        words.now, words.fixed,
        h('dl', { class: 'facts' }, ...row('scores of one head', facts.scores), ...row(`all ${heads} heads, float32`, facts.square),
          ...row('q, k, v and output', facts.rows), ...row(`scores, window of ${WINDOW}`, facts.windowed))),
      h('div', {}, h('h3', { class: 'chart-title' }, 'Bytes against tokens, both by powers'), chart.element)),
    h('p', { class: 'intro' }, `A sliding window of ${WINDOW} lets each token read the ${WINDOW} before it, itself among them: past that length the scores, too, only grow in step with the text. A fused kernel computes the same scores tile by tile and never holds the square; what stays is the lower line. It saves the memory, not the products.`),
    h('p', { id: 'memory-source', class: 'quiet' }, problem + source(data)),
    h('details', { class: 'numbers' }, h('summary', {}, 'Show all numbers'), tables(data)),
  )
  chart.draw(memoryChart(data), START)
}

/** Where the points come from, or that there are none. */
export function source(memory: Memory | null): string {
  const formula = `Lines: by formula, for one layer of ${heads} heads of width ${width}, one text, float32.`
  if (memory === null) return `${formula} Nothing was measured for this page.`
  return `${formula} Points: growth of memory during the call, measured on ${memory.device} with PyTorch ${memory.torch}, commit ${memory.commit}. “math” is plain PyTorch with all that it holds in between, “fused” its fused kernel.`
}

function tables(memory: Memory | null): HTMLElement {
  const head = (...names: string[]): HTMLElement => h('thead', {}, h('tr', {}, ...names.map((name) => h('th', { scope: 'col' }, name))))
  const row = (first: string, ...cells: string[]): HTMLElement => h('tr', {}, h('th', { scope: 'row' }, first), ...cells.map((text) => h('td', {}, text)))
  const formula = h('table', { class: 'plain', id: 'square-formula' }, h('caption', {}, `${heads} heads of width ${width}, float32, by formula; in bytes`),
    head('T', 'scores of one head', 'the square', 'q, k, v, output', `window of ${WINDOW}`),
    h('tbody', {}, ...powers(FEWEST, MOST, 2).map(need).map((one) =>
      row(count(one.tokens), count(one.scores), count(one.square), count(one.rows), count(one.windowed)))))
  const points = groups(memory).flatMap((group) => group.points)
  return h('div', { class: 'tables' }, scrollBox('The formula in numbers', formula),
    points.length === 0 ? null : scrollBox('What was measured', h('table', { class: 'plain', id: 'square-measured' },
      h('caption', {}, 'Measured'), head('backend', 'dtype', 'T', 'growth in bytes', 'seconds'),
      h('tbody', {}, ...points.map((point) => row(point.backend, point.dtype, count(point.tokens), count(point.growth_bytes), String(point.seconds)))))))
}

/** How the models were trained: the losses that training wrote down, fetched when the reader comes near. */
import { byId, choice, h, scrollBox, setText } from '../ui/dom'
import { count } from '../ui/format'
import { type Axis, type Chart, LineChart, type Series } from '../ui/linechart'

export interface Run {
  readonly name: string
  readonly parameters: number
  readonly tokenizer: string
  readonly data: string
  readonly torch: string
  readonly steps: number
  readonly train: readonly (readonly [step: number, low: number, high: number])[]
  readonly val: readonly (readonly [step: number, loss: number, bitsPerByte: number])[]
  readonly floor_bits_per_byte: number | null
}
export type Unit = 'bits' | 'nats'

export interface View {
  readonly unit: Unit
  readonly log: boolean
  readonly only: number | null // which run; null = all
}

const MOST_POINTS = 2000

/** Read runs.json; raises Error that says what is wrong with it. */
export function readRuns(text: string): Run[] {
  let file: unknown
  try {
    file = JSON.parse(text)
  } catch {
    throw new Error('the file is no whole JSON: it was cut off or changed')
  }
  const record = (value: unknown): value is Record<string, unknown> => typeof value === 'object' && value !== null && !Array.isArray(value)
  const { schema, runs } = record(file) ? file : {}
  if (schema !== 'octlm-web-runs/1') throw new Error(`its schema is ${String(schema).slice(0, 40)}; this page reads octlm-web-runs/1`)
  if (!Array.isArray(runs) || runs.length === 0) throw new Error('it holds no run')
  const triples = (value: unknown): boolean => Array.isArray(value) && value.length <= MOST_POINTS && value.every((triple, i) =>
    Array.isArray(triple) && triple.length === 3 && triple.every(Number.isFinite) && (i === 0 || triple[0] > value[i - 1][0]))
  for (const [i, run] of runs.entries()) {
    const named = record(run) && ['name', 'tokenizer', 'data', 'torch'].every((key) => typeof run[key] === 'string')
    if (!named || !Number.isFinite(run['parameters']) || !Number.isFinite(run['steps'])) throw new Error(`run ${i + 1} does not say what it is`)
    if (!triples(run['train']) || !triples(run['val']) || (run['train'] as []).length + (run['val'] as []).length === 0) {
      throw new Error(`the losses of run ${String(run['name'])} are not steps that rise with two finite numbers each`)
    }
    if (run['floor_bits_per_byte'] !== null && !Number.isFinite(run['floor_bits_per_byte'])) throw new Error(`the floor of run ${String(run['name'])} is no number`)
  }
  return runs as Run[]
}

const valueOf = (unit: Unit, [, loss, bits]: Run['val'][number]): number => (unit === 'bits' ? bits : loss)
const WORDS = { bits: 'bits per byte', nats: 'nats per token' } as const

/** What is drawn: validation as a line with marks; in nats per token also the losses of training, as a band. */
export function lossChart(runs: readonly Run[], { unit, log, only }: View): Chart {
  const shown = runs.map((run, look) => ({ run, look })).filter(({ look }) => only === null || only === look)
  const series = shown.flatMap(({ run, look }): Series[] => {
    const name = runs.length > 1 ? run.name : 'validation'
    const floor = run.floor_bits_per_byte
    const edge = { low: Math.min(...stepsOf([run])), high: Math.max(...stepsOf([run])) }
    return [
      {
        name, look, mark: 'dot', points: run.val.map((point) => [point[0], valueOf(unit, point)]),
        told: (i) => `${run.name}, step ${run.val[i]![0]}: ${valueOf(unit, run.val[i]!)} ${WORDS[unit]}`,
        ...(unit === 'nats' ? { band: run.train } : {}),
      },
      ...(unit === 'bits' && floor !== null ? [{ name: shown.length > 1 ? `floor of ${run.name}` : 'floor', look: 8, points: [[edge.low, floor], [edge.high, floor]] } satisfies Series] : []),
    ]
  })
  const stops = stepsOf(shown.map(({ run }) => run)).filter((step) => !log || step > 0)
  const heights = series.flatMap(({ points, band = [] }) => [...points.map(([, y]) => y), ...band.flatMap(([, low, high]) => [low, high])])
  const [low, high] = heights.length > 0 ? [Math.min(...heights), Math.max(...heights)] : [0, 1] // a run that was never validated
  const room = (high - low || 1) * 0.06
  const first = log ? stops[0] ?? 1 : 0
  const y: Axis = { label: WORDS[unit], log: false, low: Math.max(0, low - room), high: high + room, text: (value) => String(value) }
  return {
    title: `Loss of ${shown.map(({ run }) => run.name).join(' and ')} in ${WORDS[unit]}, by step`,
    description: unit === 'bits' ? 'Validation losses, one line with marks for each run.' : 'Validation losses, one line with marks for each run, and the training losses as a band from the lowest to the highest of each stretch.',
    x: { label: `steps${log ? ', by powers' : ''}`, log, low: first, high: Math.max(stops.at(-1) ?? 1, first + 1), text: count },
    y, series, stops,
  }
}

/** Every step at which something was written down. */
function stepsOf(runs: readonly Run[]): number[] {
  return [...new Set(runs.flatMap(({ train, val }) => [...train, ...val].map(([step]) => step)))].sort((a, b) => a - b)
}

/** The exact losses at a step, or the last ones before it. */
export function readingAt(runs: readonly Run[], { unit, only }: View, step: number): string {
  const last = <P extends readonly [number, number, number]>(points: readonly P[]): P | undefined => points.filter(([at]) => at <= step).at(-1)
  const when = (at: number): string => (at === step ? '' : ` (of step ${count(at)})`)
  const told = runs.filter((_, i) => only === null || only === i).map(({ name, train, val }) => {
    const [seen, held] = [last(train), last(val)]
    const parts = [
      held ? `validation ${valueOf(unit, held)}${when(held[0])}` : '',
      seen && unit === 'nats' ? `train ${seen[1] === seen[2] ? seen[1] : `${seen[1]} to ${seen[2]}`}${when(seen[0])}` : '',
    ].filter((part) => part !== '')
    return `${name}: ${parts.join(', ') || 'nothing yet'}`
  })
  return `Step ${count(step)}, ${WORDS[unit]}. ${told.join('; ')}.`
}

export function runs(url: string): void {
  const body = byId('runs-body')
  if (location.protocol === 'file:') {
    body.replaceChildren(h('p', {}, 'The records lie in a file of their own, and browsers do not let a page that was opened from a file read other files. Serve the folder (python -m http.server) to see them.'))
    return
  }
  const status = h('p', { class: 'load-state', role: 'status' }, 'The records are fetched when you come near.')
  const place = h('div')
  body.replaceChildren(status, place)

  async function load(): Promise<void> {
    setText(status, 'Fetching the records …')
    place.replaceChildren()
    try {
      const found = readRuns(await fetchText(url))
      setText(status, '')
      show(place, found)
    } catch (error) {
      setText(status, `The records could not be shown: ${error instanceof Error ? error.message : String(error)}.`)
      place.replaceChildren(h('button', { type: 'button', onclick: () => void load() }, 'Retry'))
    }
  }
  const watch = new IntersectionObserver((entries) => {
    if (!entries.some(({ isIntersecting }) => isIntersecting)) return
    watch.disconnect()
    void load()
  }, { rootMargin: '400px' })
  watch.observe(body)
}

async function fetchText(url: string): Promise<string> {
  let response: Response
  try {
    response = await fetch(url)
  } catch {
    throw new Error('the connection failed')
  }
  if (!response.ok) throw new Error(`the server answered ${response.status}, so the file is not there`)
  try {
    return await response.text()
  } catch {
    throw new Error('the connection failed before the file was whole')
  }
}

function show(place: HTMLElement, all: readonly Run[]): void {
  let view: View = { unit: 'bits', log: false, only: 0 } // one curve fills its chart; runs on other data share one poorly
  const reading = h('p', { class: 'reading' })
  const legend = h('p', { class: 'quiet' })
  const chart = new LineChart('runs', (step) => {
    const text = readingAt(all, view, step)
    setText(reading, text)
    return text
  })
  const set = (patch: Partial<View>): void => {
    view = { ...view, ...patch }
    unit.show(view.unit)
    axis.show(view.log ? 'log' : 'linear')
    which.show(String(view.only))
    setText(legend, view.unit === 'bits' ? `Line with marks: loss on text that was held out, in bits for each byte of it.${all.some((run) => run.floor_bits_per_byte !== null) ? ' Floor: the entropy of the source, known where a grammar makes the text; no honest model stays below it.' : ''}`
      : 'Line with marks: loss on text that was held out. Band: the losses of training, from the lowest to the highest of each stretch. A token is another amount of text for another tokenizer, so compare such runs in bits per byte only.')
    chart.draw(lossChart(all, view))
  }
  const unit = choice<Unit>('Loss in', 'runs-unit', [{ value: 'bits', label: 'bits per byte' }, { value: 'nats', label: 'nats per token' }], (value) => set({ unit: value }))
  const axis = choice('Steps', 'runs-axis', [{ value: 'linear', label: 'evenly' }, { value: 'log', label: 'by powers' }], (value) => set({ log: value === 'log' }))
  const which = choice('Run', 'runs-only', [...all.map(({ name }, i) => ({ value: String(i), label: name })), { value: 'null', label: 'all' }],
    (value) => set({ only: value === 'null' ? null : Number(value) }))
  place.replaceChildren(
    h('div', { class: 'controls' }, unit.element, axis.element, all.length > 1 ? which.element : null),
    chart.element,
    h('div', { class: 'field wide' }, h('label', { for: 'runs-cursor' }, 'Step'), chart.slider), reading, legend,
    h('p', { class: 'quiet' }, all.length > 1 ? 'Bits per byte also carry across tokenizers, but only on the same text: a lower curve on easier text is no better model.' : ''),
    h('ul', { class: 'quiet run-list' }, ...all.map((run) => h('li', {},
      `${run.name}: ${count(run.parameters)} parameters, tokenizer ${run.tokenizer}, data ${run.data}, ${count(run.steps)} steps, PyTorch ${run.torch}.`))),
    ...all.map(numbers),
  )
  set({})
}

/** All numbers of one run, as they stand in the file; made when they are asked for. */
function numbers(run: Run): HTMLElement {
  const box = h('div', { class: 'tables' })
  const table = (caption: string, names: readonly string[], rows: readonly (readonly number[])[]): HTMLElement =>
    scrollBox(caption, h('table', { class: 'plain' }, h('caption', {}, caption),
      h('thead', {}, h('tr', {}, ...names.map((name) => h('th', { scope: 'col' }, name)))),
      h('tbody', {}, ...rows.map(([step, ...rest]) => h('tr', {}, h('th', { scope: 'row' }, String(step)), ...rest.map((value) => h('td', {}, String(value))))))))
  const details = h('details', { class: 'numbers', ontoggle: () => {
    if (!details.open || box.childElementCount > 0) return
    box.append(
      table(`${run.name}: validation`, ['step', 'nats per token', 'bits per byte'], run.val),
      table(`${run.name}: training, nats per token`, ['step', 'lowest', 'highest'], run.train))
  } }, h('summary', {}, `Show all numbers of ${run.name}`), box)
  return details
}

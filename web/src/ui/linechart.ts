/** One small SVG chart: lines, bands and marks on linear or logarithmic axes, with a cursor that is a native slider. */
import { h, scalable } from './dom'

export interface Axis {
  readonly label: string
  readonly log: boolean
  readonly low: number
  readonly high: number
  readonly ticks?: readonly number[] // else round numbers
  readonly text: (value: number) => string
}

export interface Series {
  readonly name: string // written at its end
  readonly look: number // its colour and dash
  readonly points: readonly (readonly [x: number, y: number])[]
  readonly band?: readonly (readonly [x: number, low: number, high: number])[]
  readonly line?: boolean // false: marks only
  readonly mark?: 'dot' | 'ring' | 'square' | 'frame'
  readonly told?: (point: number) => string // of each mark
}

export interface Chart {
  readonly title: string
  readonly description: string
  readonly x: Axis
  readonly y: Axis
  readonly series: readonly Series[]
  readonly stops: readonly number[] // where the cursor may stand, rising
}

/** Where a value lies on an axis, 0 to 1; NaN for what a logarithm cannot place. */
export function share({ log, low, high }: Pick<Axis, 'log' | 'low' | 'high'>, value: number): number {
  const f = log ? Math.log : (n: number): number => n
  return value <= 0 && log ? NaN : (f(value) - f(low)) / (f(high) - f(low))
}

/** Round numbers inside an axis: about five, or on a logarithm 1, 2, 5, 10, ... as long as they are few. */
export function ticks({ log, low, high }: Pick<Axis, 'log' | 'low' | 'high'>): number[] {
  const within = (n: number): boolean => n >= low * (1 - 1e-9) && n <= high * (1 + 1e-9)
  if (log) {
    const decades = Array.from({ length: 31 }, (_, i) => i - 15)
    const all = [[1, 2, 5], [1, 3], [1]].map((steps) => decades.flatMap((e) => steps.map((m) => Number(`${m}e${e}`))).filter(within))
    return all.find((some) => some.length <= 7) ?? all[2]!
  }
  const unit = 10 ** Math.floor(Math.log10((high - low) / 4))
  const step = unit * ([5, 2, 1].find((m) => (high - low) / (m * unit) >= 4) ?? 1)
  return Array.from({ length: 12 }, (_, i) => Number(((Math.ceil(low / step - 1e-9) + i) * step).toPrecision(12))).filter(within)
}

/** Push labels apart, down from the first, then up from the bottom; in the order given by their height. */
export function spread(wanted: readonly number[], gap: number, bottom: number): number[] {
  const order = wanted.map((_, i) => i).sort((a, b) => wanted[a]! - wanted[b]!)
  const out = [...wanted]
  for (const [n, i] of order.entries()) out[i] = Math.max(wanted[i]!, n > 0 ? out[order[n - 1]!]! + gap : -Infinity)
  for (const [n, i] of order.reverse().entries()) out[i] = Math.min(out[i]!, n > 0 ? out[order[n - 1]!]! - gap : bottom)
  return out
}

/** Which stop is the least away? */
const nearest = (stops: readonly number[], away: (stop: number) => number): number =>
  stops.reduce((best, stop, i) => (away(stop) < away(stops[best]!) || Number.isNaN(away(stops[best]!)) ? i : best), 0)

const TOP = 12
const FOOT = 42
const LETTER = 6.6 // px, of the labels

export class LineChart {
  readonly slider = h('input', { type: 'range', min: 0, step: 1, oninput: () => this.move(Number(this.slider.value)) })
  readonly element: HTMLElement
  private readonly plot = h('div', { class: 'plot' })
  private chart: Chart | null = null
  private box = { left: 0, width: 0, height: 0 }
  private cursor: SVGElement | null = null

  /** `read` is told where the cursor went, and gives the words for it. */
  constructor(private readonly name: string, private readonly read: (x: number) => string) {
    this.slider.id = `${name}-cursor`
    this.element = h('div', { class: 'chart' }, this.plot)
    new ResizeObserver(() => this.paint()).observe(this.plot)
    const point = (event: PointerEvent): void => {
      const x = (event.clientX - this.plot.getBoundingClientRect().left - this.box.left) / this.box.width
      if (this.chart && x > -0.05 && x < 1.05) this.move(nearest(this.chart.stops, (stop) => Math.abs(share(this.chart!.x, stop) - x)))
    }
    this.plot.addEventListener('pointermove', (event) => {
      if (event.pointerType === 'mouse' || event.buttons > 0) point(event)
    })
    this.plot.addEventListener('pointerdown', (event) => {
      point(event)
      event.preventDefault() // else the plot would take the focus from the cursor again
      this.slider.focus({ preventScroll: true })
    })
  }

  /** Draw another chart; the cursor stays near `x`, where it was. */
  draw(chart: Chart, x = this.chart?.stops[Number(this.slider.value)] ?? chart.stops.at(-1) ?? 0): void {
    this.chart = chart
    this.slider.max = String(chart.stops.length - 1)
    this.paint()
    this.move(nearest(chart.stops, (stop) => Math.abs(stop - x)))
  }

  private move(stop: number): void {
    const x = this.chart?.stops[stop]
    if (x === undefined) return
    this.slider.value = String(stop)
    this.slider.setAttribute('aria-valuetext', this.read(x))
    const at = this.box.left + share(this.chart!.x, x) * this.box.width
    if (Number.isFinite(at)) this.cursor?.setAttribute('transform', `translate(${at.toFixed(1)} 0)`)
  }

  private paint(): void {
    const { chart, plot: { clientWidth: whole, clientHeight: height } } = this
    if (!chart || whole === 0) return
    const { x, y, series } = chart
    const yTicks = (y.ticks ?? ticks(y)).filter((tick) => share(y, tick) >= 0 && share(y, tick) <= 1)
    const left = 10 + LETTER * Math.max(...yTicks.map((tick) => y.text(tick).length))
    const box = this.box = { left, width: Math.max(60, whole - left - 36 - LETTER * Math.max(...series.map(({ name }) => name.length))), height: height - TOP - FOOT }
    const px = (value: number): number => left + share(x, value) * box.width
    const py = (value: number): number => TOP + (1 - share(y, value)) * box.height
    const path = (points: readonly (readonly [number, number])[]): string =>
      points.filter(([a]) => Number.isFinite(px(a))).map(([a, b], i) => `${i ? 'L' : 'M'}${px(a).toFixed(1)} ${py(b).toFixed(1)}`).join('')
    const heights = spread(series.map(({ points }) => py(points.at(-1)?.[1] ?? y.low)), 16, TOP + box.height)
    const ends = series.map(({ points, line }) => px((line === false ? undefined : points.at(-1)?.[0]) ?? x.high)) // a short line has its name where it stops
    const few = (all: readonly number[]): readonly number[] => (box.width / all.length < 46 ? all.filter((_, i) => i % 2 === 0) : all)
    this.cursor = scalable('path', { class: 'cursor', d: `M0 ${TOP}V${TOP + box.height}` })
    this.plot.replaceChildren(scalable('svg', { role: 'img', 'aria-labelledby': `${this.name}-name ${this.name}-desc`, width: whole, height },
      scalable('title', { id: `${this.name}-name` }, chart.title), scalable('desc', { id: `${this.name}-desc` }, chart.description),
      ...yTicks.map((tick) => scalable('g', {}, scalable('path', { class: 'rule', d: `M${left} ${py(tick)}h${box.width}` }),
        scalable('text', { x: left - 6, y: py(tick) + 4, 'text-anchor': 'end' }, y.text(tick)))),
      ...few(x.ticks ?? ticks(x)).map((tick) => scalable('g', {}, scalable('path', { class: 'rule', d: `M${px(tick)} ${TOP + box.height}v5` }),
        scalable('text', { x: px(tick), y: TOP + box.height + 18, 'text-anchor': 'middle' }, x.text(tick)))),
      scalable('path', { class: 'base', d: `M${left} ${TOP}V${TOP + box.height}h${box.width}` }),
      scalable('text', { class: 'axis', x: left + box.width / 2, y: height - 4, 'text-anchor': 'middle' }, x.label),
      ...series.map(({ look, points, band, line, mark, told, name }, i) => scalable('g', { class: `look-${look}` },
        !band ? null : scalable('path', { class: 'band', d: `${path(band.map(([a, , high]) => [a, high]))}${path([...band].reverse().map(([a, low]) => [a, low])).replace('M', 'L')}Z` }),
        line === false ? null : scalable('path', { class: 'line', d: path(points) }),
        ...(mark ? points.flatMap(([a, b], n) => (Number.isFinite(px(a)) ? [shape(mark, px(a), py(b), told?.(n) ?? '')] : [])) : []),
        line === false ? shape(mark ?? 'dot', ends[i]! + 20, heights[i]!, name) : scalable('path', { class: 'line', d: `M${ends[i]! + 8} ${heights[i]}h14` }),
        scalable('text', { class: 'label', x: ends[i]! + 30, y: heights[i]! + 4 }, name))),
      this.cursor))
    this.move(Number(this.slider.value))
  }
}

function shape(mark: NonNullable<Series['mark']>, x: number, y: number, told: string): SVGElement {
  const round = mark === 'dot' || mark === 'ring'
  const place = round ? { cx: x, cy: y, r: 4 } : { x: x - 4, y: y - 4, width: 8, height: 8 }
  return scalable(round ? 'circle' : 'rect', { class: `mark ${mark === 'ring' || mark === 'frame' ? 'open' : ''}`, ...place }, scalable('title', {}, told))
}

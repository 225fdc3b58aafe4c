/** The arithmetic of one cell, in numbers, with PyTorch's value beside it. */
import type { Mask, TensorName } from '../math/attention'
import type { Explanation, Source } from '../math/explain'
import { difference as gap } from '../math/tensor'
import { h, markup } from '../ui/dom'
import { difference, long } from '../ui/format'
import { FORMULAS, SYMBOLS, UNMASKED } from './steps'

export interface Shown {
  readonly name: TensorName
  readonly mask: Mask
  readonly label: string // of the cell, as `score[t5, t2] of head 1`
  readonly told: Explanation
  readonly torch: number
  readonly digits: 2 | 6 | 9
}

const BY_POSITION: readonly string[] = ['raw', 'scaled', 'masked', 'weights']

/** A cell's indices: rows are positions except in a weight matrix, columns are positions in the T x T tables. */
export function place(source: Pick<Source, 'tensor' | 'row' | 'column'>): string {
  const row = source.tensor.endsWith('_proj') ? String(source.row) : `t${source.row}`
  return `${SYMBOLS[source.tensor]}[${row}, ${BY_POSITION.includes(source.tensor) ? `t${source.column}` : source.column}]`
}

/** One sentence for the status line: what the cell is, and how far PyTorch's value lies. */
export function sentence({ label, told, torch, digits }: Shown): string {
  return `${label} is ${long(told.result, digits)}; PyTorch has ${long(torch, digits)}; difference ${difference(gap(told.result, torch))}.`
}

export function renderPanel(body: HTMLElement, shown: Shown): void {
  const { name, told, torch, digits } = shown
  const off = gap(told.result, torch)
  body.replaceChildren(
    h('p', { class: 'cell-name' }, shown.label),
    markup(name === 'masked' && shown.mask === 'none' ? UNMASKED : FORMULAS[name]),
    ...arithmetic(told, digits, name),
    h('dl', { class: 'verdict' },
      h('dt', {}, 'this page'), h('dd', { id: 'panel-result' }, long(told.result, digits)),
      h('dt', {}, 'PyTorch'), h('dd', { id: 'panel-torch' }, long(torch, digits)),
      h('dt', {}, 'difference'), h('dd', { id: 'panel-difference', class: off <= 1e-6 ? 'good' : 'bad' }, difference(off))),
  )
}

function arithmetic(told: Explanation, digits: 2 | 6 | 9, name: TensorName): Node[] {
  const n = (value: number): string => long(value, digits)
  switch (told.kind) {
    case 'given':
      return [h('p', {}, 'Given: one of 128 random numbers. The page computes all that follows from them.')]
    case 'products': {
      const [first] = told.terms
      const by = name === 'values' ? 'from' : 'no.'
      const rows = told.terms.map(({ left, right, product }) => {
        const index = name === 'values' ? `t${left.column}` : String(left.column)
        return h('tr', left.value === 0 ? { class: 'nothing' } : {},
          h('th', { scope: 'row' }, index), h('td', {}, n(left.value)), h('td', {}, n(right.value)), h('td', {}, n(product)))
      })
      return [
        sums([by, first ? heading(first.left, name) : '', first ? heading(first.right, name) : '', 'product'], rows,
          h('tr', {}, h('th', { scope: 'row', colspan: 3 }, `sum of ${told.terms.length} products`), h('td', {}, n(told.sum)))),
        note(digits, name === 'values' && told.terms.some(({ left }) => left.value === 0) ? 'A position with weight 0 adds exactly 0, whatever its value.' : ''),
      ]
    }
    case 'scale':
      return [equation(`${n(told.source.value)} / √8 = ${n(told.source.value)} / ${n(told.divisor)} = ${n(told.result)}`), from(told.source)]
    case 'mask': {
      const { row, column } = told.source
      const why = !told.visible ? `t${column} comes after t${row}: t${row} must not read it, so −∞ takes the place of ${n(told.source.value)}.`
        : column === row ? `t${row} may read itself: the score stays.`
          : column < row ? `t${column} comes before t${row}: the score stays.`
            : `t${column} comes after t${row}, but the mask is off: the score stays, and t${row} reads the future.`
      return [h('p', {}, why), from(told.source)]
    }
    case 'softmax': {
      const rows = told.candidates.map(({ source, exponential }, j) =>
        h('tr', { class: j === told.chosen ? 'chosen' : exponential === 0 ? 'nothing' : '' },
          h('th', { scope: 'row' }, `t${j}`), h('td', {}, n(source.value)), h('td', {}, n(exponential))))
      return [
        h('p', {}, `The largest score of this row, ${n(told.largest)}, is subtracted first: it changes no share and keeps e^ from overflowing.`),
        sums(['key', 'masked', 'e^(masked − max)'], rows,
          h('tr', {}, h('th', { scope: 'row', colspan: 2 }, 'sum'), h('td', {}, n(told.sum)))),
        equation(`${n(told.candidates[told.chosen]!.exponential)} / ${n(told.sum)} = ${n(told.result)}`),
        note(digits, ''),
      ]
    }
    case 'copy':
      return [h('p', {}, `Copied from head ${told.source.head + 1}, ${place(told.source)}.`)]
  }
}

const from = (source: Source): HTMLElement => h('p', { class: 'quiet' }, `from ${place(source)}`)
const equation = (text: string): HTMLElement => h('p', { class: 'equation' }, text)

/** `q[t5, ·]`: the index that runs is a dot. */
function heading(source: Source, name: TensorName): string {
  if (source.tensor.endsWith('_proj')) return `${SYMBOLS[source.tensor]}[${source.row}, ·]`
  return name === 'values' && source.tensor === 'v' ? `v[·, ${source.column}]` : `${SYMBOLS[source.tensor]}[t${source.row}, ·]`
}

function sums(heads: readonly string[], rows: readonly HTMLElement[], total: HTMLElement): HTMLElement {
  return h('div', { class: 'terms' }, h('table', {},
    h('thead', {}, h('tr', {}, ...heads.map((text) => h('th', { scope: 'col' }, text)))),
    h('tbody', {}, ...rows), h('tfoot', {}, total)))
}

function note(digits: 2 | 6 | 9, more: string): HTMLElement {
  const rounding = digits < 9 ? `Shown to ${digits} digits; the sum is of the full numbers, rounded once to float32.`
    : 'Factors are shown whole: 9 digits carry a float32. The sum runs in float64 and is rounded once.'
  return h('p', { class: 'quiet' }, more ? `${more} ${rounding}` : rounding)
}

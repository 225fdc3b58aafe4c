/** Can it see the future? Edit one position, and see which rows of which step moved, and by how much. */
import type { Fixture } from '../io/fixture'
import { type Mask, TENSORS, type TensorName, type Trace, attention } from '../math/attention'
import { type Change, type Edit, change, edited } from '../math/change'
import type { Store } from '../state/store'
import { START, type State, decimal } from '../state/url'
import { byId, choice, h, scrollBox, setText } from '../ui/dom'
import { paint } from '../ui/colour'
import { difference, position, short } from '../ui/format'
import { legend } from '../ui/grid'

const SHORT: Readonly<Record<TensorName, string>> = {
  x: 'x', q: 'q', k: 'k', v: 'v', raw: 'scores', scaled: 'scaled', masked: 'masked', weights: 'weights', values: 'values', joined: 'joined', output: 'output',
}
const KINDS: readonly { readonly value: Edit['kind']; readonly label: string }[] = [
  { value: 'nudge', label: 'nudge it' }, { value: 'zero', label: 'set it to zero' },
  { value: 'copy', label: 'copy another row' }, { value: 'set', label: 'change one number' },
]

/** Where a change stands between nothing and large, on a logarithmic scale from 1e-4 to 10. */
export const level = (value: number): number => (value === 0 ? 0 : Math.min(1, Math.max(0.06, (Math.log10(value) + 4) / 5)))

export function causality(layer: Fixture, traces: Readonly<Record<Mask, Trace>>, store: Store): void {
  const T = layer.manifest.context_length
  const dim = layer.x.shape[1] ?? 0
  const rows = Array.from({ length: T }, (_, t) => t)
  const kept: Record<Edit['kind'], Edit> = { // what each kind was last set to
    nudge: START.edit, zero: { kind: 'zero' }, copy: { kind: 'copy', from: 0 }, set: { kind: 'set', column: 0, value: 3 },
  }

  const where = choice('Edit position', 'p', rows.map((t) => ({ value: String(t), label: position(t) })), (value) => store.set({ p: Number(value) }))
  const maskChoice = choice('Mask', 'future-mask', [{ value: 'causal', label: 'on' }, { value: 'none', label: 'off' }], (mask) => store.set({ mask }))
  const kind = h('select', { id: 'edit-kind', onchange: () => store.set({ edit: kept[kind.value as Edit['kind']] }) },
    ...KINDS.map(({ value, label }) => h('option', { value }, label)))
  const amount = h('input', { id: 'edit-amount', type: 'range', min: -3, max: 3, step: 0.1, oninput: () => store.set({ edit: { kind: 'nudge', amount: Number(amount.value) } }) })
  const amountText = h('output', { for: 'edit-amount' })
  const source = h('select', { id: 'edit-from', onchange: () => store.set({ edit: { kind: 'copy', from: Number(source.value) } }) },
    ...rows.map((t) => h('option', { value: t }, position(t))))
  const column = h('select', { id: 'edit-column', onchange: () => setOne() }, ...Array.from({ length: dim }, (_, c) => h('option', { value: c }, String(c))))
  const number = h('input', { id: 'edit-value', type: 'text', inputmode: 'decimal', autocomplete: 'off', size: 8, 'aria-describedby': 'edit-problem', onchange: () => setOne() })
  const problem = h('p', { id: 'edit-problem', class: 'problem', role: 'alert' })
  const fields: Record<Edit['kind'], HTMLElement> = {
    nudge: h('div', { class: 'field' }, h('label', { for: 'edit-amount' }, 'by'), amount, amountText, h('span', { class: 'quiet' }, '× a fixed random direction')),
    zero: h('div', { class: 'field' }),
    copy: h('div', { class: 'field' }, h('label', { for: 'edit-from' }, 'from'), source),
    set: h('div', { class: 'field' }, h('label', { for: 'edit-column' }, 'column'), column, h('label', { for: 'edit-value' }, 'becomes'), number),
  }

  function setOne(): void {
    const value = decimal(number.value.trim().replace('\u2212', '-'))
    number.setAttribute('aria-invalid', String(value === undefined))
    setText(problem, value === undefined ? `“${number.value.slice(0, 20)}” is not a finite number; try 1.5 or −20.` : '')
    if (value !== undefined) store.set({ edit: { kind: 'set', column: Number(column.value), value } })
  }

  const verdict = h('p', { class: 'verdict-line', role: 'status' })
  const bars = rows.map(() => ({ size: h('td', { class: 'size' }), bar: h('span', { class: 'change-bar' }), word: h('td', { class: 'word' }), row: h('tr') }))
  for (const [t, { size, bar, word, row }] of bars.entries()) {
    row.append(h('th', { scope: 'row' }, position(t)), size, h('td', { class: 'bar-cell' }, bar), word)
  }
  const outputTable = h('table', { class: 'change-list' }, h('caption', {}, 'How far each output row moved'),
    h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, 'row'), h('th', { scope: 'col' }, 'largest change'), h('td'), h('th', { scope: 'col' }, 'verdict'))),
    h('tbody', {}, ...bars.map(({ row }) => row)))
  const cells = rows.map(() => TENSORS.map((name) => h('td', name === 'masked' ? { class: 'cut' } : {})))
  const map = h('table', { class: 'matrix change-map' }, h('caption', {}, 'Change map, row by row and step by step'),
    h('thead', {}, h('tr', {}, h('td', { class: 'corner' }), ...TENSORS.map((name) => h('th', name === 'masked' ? { scope: 'col', class: 'cut' } : { scope: 'col' }, SHORT[name])))),
    h('tbody', {}, ...cells.map((row, t) => h('tr', {}, h('th', { scope: 'row' }, position(t)), ...row))))
  const reading = h('p', { class: 'quiet' })

  byId('future-body').replaceChildren(
    h('div', { class: 'controls' }, where.element, maskChoice.element,
      h('div', { class: 'edit' }, h('label', { for: 'edit-kind' }, 'and'), kind, ...Object.values(fields))),
    problem, verdict,
    h('div', { class: 'two' }, h('div', {}, outputTable), h('div', {}, scrollBox('Change map', map), legend('sequential', '0.0001', '10, each step tenfold'), reading)),
  )

  function show(state: State): void {
    const { p, edit, mask } = state
    kept[edit.kind] = edit
    where.show(String(p))
    maskChoice.show(mask)
    kind.value = edit.kind
    for (const [name, field] of Object.entries(fields)) field.hidden = name !== edit.kind
    if (edit.kind === 'nudge') {
      amount.value = String(edit.amount)
      setText(amountText, String(edit.amount).replace('-', '\u2212'))
    }
    if (edit.kind === 'copy') source.value = String(edit.from)
    if (edit.kind === 'set') {
      column.value = String(edit.column)
      if (decimal(number.value) !== edit.value) number.value = String(edit.value)
    }
    if (edit.kind !== 'set') setText(problem, '')

    const after = attention(edited(layer.x, layer.direction, p, edit), layer.weights, { heads: layer.manifest.n_heads, mask })
    const moved = change(traces[mask], after)
    for (const [t, { size, bar, word, row }] of bars.entries()) {
      const value = moved.output[t] ?? 0
      const said = wordFor(t, p, value)
      setText(size, difference(value))
      bar.style.inlineSize = `${100 * level(value)}%`
      setText(word, said)
      row.className = said === 'LEAK' ? 'leak' : t === p ? 'edited' : ''
      for (const [s, name] of TENSORS.entries()) {
        const cell = cells[t]![s]!
        setText(cell, short(moved[name][t] ?? 0))
        paint(cell, level(moved[name][t] ?? 0), 1, 'sequential')
        cell.classList.toggle('still', moved[name][t] === 0)
      }
    }
    setText(verdict, judge(state, moved))
    verdict.classList.toggle('bad', moved.output.slice(0, p).some((value) => value !== 0))
    setText(reading, p === 0 ? 'No row comes before t0; edit a later position to see the mask at work.'
      : mask === 'causal' ? `Rows t0 to ${position(p - 1)}: the edit reaches their scores in column ${position(p)} (every query meets every key), and ends at the double line: from Mask on, 0.`
        : `Rows t0 to ${position(p - 1)}: the edit reaches their scores in column ${position(p)}, nothing stops it at the double line, and it runs on into their output.`)
  }

  store.onChange((state, before) => {
    if (state.p !== before.p || state.edit !== before.edit || state.mask !== before.mask) show(state)
  })
  show(store.get())
}

export function wordFor(row: number, p: number, value: number): string {
  if (row < p) return value === 0 ? 'unchanged' : 'LEAK'
  if (row === p) return value === 0 ? 'edited, same result' : 'edited'
  return value === 0 ? 'unchanged' : 'changed'
}

/** One sentence: did a row before the edit move? */
export function judge({ p, mask }: Pick<State, 'p' | 'mask'>, moved: Change): string {
  const earlier = moved.output.slice(0, p)
  if (moved.x.every((value) => value === 0)) return `This edit leaves ${position(p)} as it was, so nothing moves.`
  if (p === 0) return mask === 'causal' ? 'There are no earlier rows to check: every row comes at or after t0, and may read it.'
    : 'There are no earlier rows to check: t0 is the first.'
  const names = p === 1 ? 'Row t0' : `Rows t0 to ${position(p - 1)}`
  const leaks = earlier.filter((value) => value !== 0)
  if (leaks.length === 0) return `${names} moved by exactly 0: no bit of ${position(p)} reached its past.`
  return `LEAK. ${names} moved, by ${short(Math.min(...leaks))} to ${short(Math.max(...leaks))}: ${leaks.length === 1 ? 'it has' : 'they have'} read ${position(p)}, which comes later.`
}

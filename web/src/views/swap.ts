/** The experiment again, on the trained model: swap one token, and see which rows of which layer moved. */
import { begin, type Text, weight } from '../math/text'
import { distribution, ranked } from '../math/sampling'
import type { Tokenizer } from '../math/tokenizer'
import type { Store } from '../state/store'
import { OFF } from '../state/url'
import { paint } from '../ui/colour'
import { h, scrollBox, setText } from '../ui/dom'
import { position, short } from '../ui/format'
import { legend } from '../ui/grid'
import { level } from './causality'

const OFFERED = 40 // tokens that may take the place: the likeliest there

/** The largest |change| of each row: of every layer's attention, then of the logits. */
export function moved(before: Text, after: Text, layers: number, heads: number): number[][] {
  const logitsOf = ({ rows }: Text, t: number): Float32Array => {
    const { pass, row } = rows[t]!
    const [, V = 0] = pass.logits.shape
    return pass.logits.data.subarray(row * V, (row + 1) * V)
  }
  return before.ids.map((_, t) => {
    const read = Array.from({ length: layers }, (_, l) => {
      let most = 0
      for (let head = 0; head < heads; head++) {
        for (let s = 0; s <= t; s++) most = Math.max(most, Math.abs(weight(before, l, head, t, s) - weight(after, l, head, t, s)))
      }
      return most
    })
    const [a, b] = [logitsOf(before, t), logitsOf(after, t)]
    return [...read, a.reduce((most, value, id) => Math.max(most, Math.abs(value - b[id]!)), 0)]
  })
}

/** One sentence: did a row before the swap move? */
export function verdictOf(at: number, rows: readonly (readonly number[])[]): string {
  const earlier = rows.slice(0, at).flat()
  if (at === 0) return 'There are no earlier tokens to check: t0 is the first.'
  const leaks = earlier.filter((value) => value !== 0)
  const names = at === 1 ? 'Token t0' : `Tokens t0 to ${position(at - 1)}`
  return leaks.length === 0 ? `${names}: all attention and all logits moved by exactly 0. Nothing of ${position(at)} reached its past.`
    : `LEAK. ${names} moved by up to ${short(Math.max(...leaks))}: they have read ${position(at)}, which comes later.`
}

export interface Swap {
  readonly element: HTMLElement
  readonly show: (text: Text, tokenizer: Tokenizer) => Promise<void>
}

export function swap(store: Store, drive: <T>(steps: Generator<void, T>) => Promise<T | null>): Swap {
  let shown: { text: Text; tokenizer: Tokenizer } | null = null
  const where = h('select', { id: 'swap-at', onchange: () => store.set({ swapAt: Number(where.value), ...(where.value === String(OFF) ? {} : { swapId: replacements()[0] ?? 0 }) }) })
  const what = h('select', { id: 'swap-id', onchange: () => store.set({ swapId: Number(what.value) }) })
  const field = h('div', { class: 'field' }, h('label', { for: 'swap-id' }, 'becomes'), what)
  const verdict = h('p', { class: 'saying', role: 'status', id: 'swap-verdict' })
  const head = h('tr')
  const body = h('tbody')
  const table = h('table', { class: 'matrix change-map' }, h('caption', {}, 'How far each row moved'), h('thead', {}, head), body)
  const result = h('div', { class: 'swap-result' }, verdict, scrollBox('How far each row moved', table), legend('sequential', '0.0001', '10, each step tenfold'))
  result.hidden = true

  /** The likeliest tokens at the chosen place, but for the one that stands there. */
  function replacements(at = Number(where.value)): number[] {
    if (!shown || at === OFF || at >= shown.text.ids.length) return []
    const { text: { rows, ids }, tokenizer } = shown
    if (at === 0) return ranked(Array.from({ length: tokenizer.size }, (_, id) => (tokenizer.has(id) ? 0 : -1)), OFFERED).filter((id) => id !== ids[0])
    const { pass, row } = rows[at - 1]!
    const [, V = 0] = pass.logits.shape
    const { full } = distribution(pass.logits.data.subarray(row * V, (row + 1) * V), { temperature: 1, topK: 0, topP: 1 }, tokenizer.has)
    return ranked(full, OFFERED + 1).filter((id) => id !== ids[at]).slice(0, OFFERED)
  }

  async function update(): Promise<void> {
    if (!shown) return
    const { text, tokenizer } = shown
    const { swapAt, swapId } = store.get()
    const off = swapAt === OFF || swapAt >= text.ids.length || !tokenizer.has(swapId)
    where.value = String(off ? OFF : swapAt)
    field.hidden = off
    result.hidden = off
    if (off) return
    const offered = replacements(swapAt)
    what.replaceChildren(...[...new Set([...offered, swapId])].map((id) => h('option', { value: id }, tokenizer.piece(id))))
    what.value = String(swapId)
    const { n_layers: layers, n_heads: heads } = text.model.config
    const after = await drive(begin(text.model, text.ids.map((id, t) => (t === swapAt ? swapId : id)), text.ids.length))
    if (!after || shown.text !== text) return // another text has come meanwhile
    const rows = moved(text, after, layers, heads)
    head.replaceChildren(h('td', { class: 'corner' }), ...Array.from({ length: layers }, (_, l) => h('th', { scope: 'col' }, `layer ${l + 1}`)), h('th', { scope: 'col' }, 'logits'))
    body.replaceChildren(...rows.map((values, t) => h('tr', t === swapAt ? { class: 'edited' } : {},
      h('th', { scope: 'row' }, `${position(t)} ${tokenizer.piece(after.ids[t]!)}`), ...values.map((value) => {
        const cell = h('td', value === 0 ? { class: 'still' } : {}, short(value))
        paint(cell, level(value), 1, 'sequential')
        return cell
      }))))
    setText(verdict, swapId === text.ids[swapAt] ? `This is the token that stands at ${position(swapAt)}, so nothing moves.` : verdictOf(swapAt, rows))
    verdict.classList.toggle('bad', rows.slice(0, swapAt).flat().some((value) => value !== 0))
    const row = body.children[Math.max(0, swapAt - 2)] as HTMLElement | undefined
    if (row) table.parentElement!.scrollTop = row.offsetTop - 40
  }

  store.onChange((state, before) => {
    if (state.swapAt !== before.swapAt || state.swapId !== before.swapId) void update()
  })
  return {
    element: h('div', { class: 'swap' }, h('h3', {}, 'Can it see the future?'),
      h('div', { class: 'edit' }, h('label', { for: 'swap-at' }, 'Swap the token'), where, field), result),
    async show(text, tokenizer) {
      shown = { text, tokenizer }
      where.replaceChildren(h('option', { value: OFF }, 'none'), ...text.ids.map((id, t) => h('option', { value: t }, `${position(t)} ${tokenizer.piece(id)}`)))
      await update()
    },
  }
}

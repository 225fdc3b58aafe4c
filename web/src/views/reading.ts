/** What each head reads: the text with its shares, a small picture of every head, a large one, and the numbers. */
import { type Text, weight } from '../math/text'
import { ranked } from '../math/sampling'
import type { Store } from '../state/store'
import type { State } from '../state/url'
import { paint } from '../ui/colour'
import { choice, h, setText } from '../ui/dom'
import { percent, position } from '../ui/format'
import { legend } from '../ui/grid'
import { draw, onTheme } from '../ui/pixels'

export const SHOWN = 64 // tokens in the pictures
const LISTED = 8 // keys in the table of a reader

/** Enough of a text to show what it read: of a model at hand, or of the example that PyTorch computed beforehand. */
export interface Read {
  readonly rows: Text['rows']
  readonly pieces: readonly string[]
  readonly ids: readonly number[]
  readonly prompt: number
  readonly layers: number
  readonly heads: number
}

export interface Reading {
  readonly element: HTMLElement
  readonly show: (read: Read) => void
}

/** The token whose reading is shown: the chosen one, or the last. */
export function reader(state: State, tokens: number): number {
  return Math.min(state.query, tokens - 1)
}

export function reading(store: Store): Reading {
  let read: Read | null = null
  let cells: { input: HTMLInputElement; label: HTMLElement }[] = []
  let thumbnails: { input: HTMLInputElement; canvas: HTMLCanvasElement }[] = []
  let shape = ''
  let hover: number | null = null // a reader that is pointed at

  const chips = h('div', { class: 'chips' })
  const cut = h('p', { class: 'quiet' })
  const heads = h('div', { class: 'heads' })
  const large = h('canvas', { class: 'triangle', 'aria-hidden': 'true' })
  const marker = h('div', { class: 'marker' })
  const ticks = h('div', { class: 'ticks', 'aria-hidden': 'true' })
  const title = h('h3', { id: 'reads-title' })
  const body = h('tbody')
  const most = h('span')
  const scale = choice('Colours', 'model-colours', [{ value: 'fixed', label: '0 to 1' }, { value: 'row', label: 'to each row’s largest' }],
    (colours) => store.set({ colours }))
  const picture = h('div', { class: 'picture' }, ticks, h('div', { class: 'square' }, large, marker))
  picture.addEventListener('pointermove', (event) => point(event, false))
  picture.addEventListener('pointerdown', (event) => point(event, true))
  picture.addEventListener('pointerleave', () => { hover = null; update() })

  const element = h('div', { class: 'attending' },
    h('fieldset', { class: 'text' }, h('legend', {}, 'The text: choose a token, and the others are shaded by how much of each it reads'), chips), cut,
    h('div', { class: 'looking' },
      h('fieldset', { class: 'overview' }, h('legend', {}, 'Every head of every layer'), heads),
      h('div', { class: 'one' }, h('p', { class: 'role' }, 'the chosen head: rows read columns'), picture, legend('sequential', '0', most), scale.element),
      h('div', { class: 'reads' }, title, h('table', { class: 'plain bars' },
        h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, 'token'), h('th', { scope: 'col' }, 'share'), h('td'))), body),
      h('p', { class: 'quiet' }, 'The shares of one reader sum to 100 %. A large share says where a value came from, not that it mattered.'))))

  function point(event: PointerEvent, choose: boolean): void {
    if (!read) return
    const box = large.getBoundingClientRect()
    const { first, n } = span(read)
    const row = Math.floor(((event.clientY - box.top) / box.height) * n)
    if (row < 0 || row >= n) return
    if (choose) store.set({ query: first + row })
    hover = choose ? null : first + row
    update()
  }

  /** Where the pictures begin, and how many tokens they show: the last ones of a long text. */
  function span({ rows }: Read): { first: number; n: number } {
    const first = Math.max(0, rows.length - SHOWN)
    return { first, n: rows.length - first }
  }

  /** The elements of another text or another model. */
  function build(now: Read): void {
    const { first, n } = span(now)
    cells = Array.from({ length: n }, (_, i) => {
      const t = first + i
      const input = h('input', { type: 'radio', name: 'token', id: `token-${t}`, 'aria-label': `${position(t)}: ${now.pieces[t]}, id ${now.ids[t]}`, onchange: () => store.set({ query: t }) })
      const label = h('label', { for: `token-${t}`, title: `${position(t)}, id ${now.ids[t]}`, class: t >= now.prompt ? 'written' : '' }, now.pieces[t]!)
      return { input, label }
    })
    chips.replaceChildren(...cells.flatMap(({ input, label }) => [input, label]))
    setText(cut, first > 0 ? `The pictures show the last ${SHOWN} of ${now.rows.length} tokens.` : '')
    const steps = [0.25, 0.5, 0.75].map((part) => Math.round(n * part)).filter((i) => i > 0 && n > 8)
    ticks.replaceChildren(...[0, ...steps].map((i) => h('span', { style: `inset-block-start:${(100 * i) / n}%` }, position(first + i))))
    const wanted = `${now.layers} ${now.heads}`
    if (wanted === shape) return
    shape = wanted
    thumbnails = Array.from({ length: now.layers * now.heads }, (_, i) => {
      const [layer, head] = [Math.floor(i / now.heads), i % now.heads]
      const input = h('input', {
        type: 'radio', name: 'model-head', id: `head-${layer}-${head}`, 'aria-label': `layer ${layer + 1}, head ${head + 1}`,
        onchange: () => store.set({ layer, modelHead: head }),
      })
      return { input, canvas: h('canvas', { class: 'triangle', 'aria-hidden': 'true' }) }
    })
    heads.style.setProperty('--heads', String(now.heads))
    heads.replaceChildren(h('span'), ...Array.from({ length: now.heads }, (_, i) => h('span', { class: 'name', 'aria-hidden': 'true' }, `head ${i + 1}`)),
      ...thumbnails.flatMap(({ input, canvas }, i) => [
        ...(i % now.heads === 0 ? [h('span', { class: 'name', 'aria-hidden': 'true' }, `layer ${i / now.heads + 1}`)] : []),
        h('div', {}, input, h('label', { for: input.id }, canvas)),
      ]))
  }

  function update(): void {
    if (!read) return
    const now = read
    const state = store.get()
    const { first, n } = span(now)
    const [layer, head] = [Math.min(state.layer, now.layers - 1), Math.min(state.modelHead, now.heads - 1)]
    const chosen = hover ?? reader(state, now.rows.length)
    const share = (i: number, j: number): number => weight(now, layer, head, first + i, first + j)
    scale.show(state.colours)
    setText(most, state.colours === 'row' ? 'the row’s largest' : '1')
    const top = Array.from({ length: n }, (_, i) => // what the darkest colour of a row stands for
      (state.colours === 'row' ? Math.max(...Array.from({ length: i + 1 }, (_, j) => share(i, j))) : 1))
    draw(large, n, n, (i, j) => (j > i ? undefined : share(i, j) / top[i]!), 1)
    marker.style.inset = `${(100 * (chosen - first)) / n}% 0 auto`
    marker.style.blockSize = `${100 / n}%`
    marker.hidden = chosen < first
    thumbnails.forEach(({ input, canvas }, i) => {
      const [l, k] = [Math.floor(i / now.heads), i % now.heads]
      input.checked = l === layer && k === head
      draw(canvas, n, n, (row, column) => (column > row ? undefined : weight(now, l, k, first + row, first + column)), 1)
    })
    cells.forEach(({ input, label }, i) => {
      const t = first + i
      input.checked = t === chosen
      label.classList.toggle('later', t > chosen)
      paint(label, t > chosen ? 0 : weight(now, layer, head, chosen, t), top[chosen - first] ?? 1, 'sequential')
    })
    const shares = Array.from({ length: chosen + 1 }, (_, t) => weight(now, layer, head, chosen, t))
    setText(title, `${position(chosen)} “${now.pieces[chosen]}” reads, in layer ${layer + 1}, head ${head + 1}:`)
    body.replaceChildren(...ranked(shares, LISTED).map((t) => h('tr', {},
      h('th', { scope: 'row' }, `${position(t)} `, h('b', {}, now.pieces[t]!)), h('td', {}, percent(shares[t]!)),
      h('td', { class: 'bar-cell' }, h('span', { class: 'change-bar', style: `inline-size:${100 * shares[t]!}%` })))))
  }

  store.onChange((state, before) => {
    if (state.layer !== before.layer || state.modelHead !== before.modelHead || state.query !== before.query || state.colours !== before.colours) update()
  })
  onTheme(update)
  return {
    element,
    show(next) {
      const focused = cells.findIndex(({ input }) => input === document.activeElement)
      read = next
      hover = null
      build(next)
      update()
      if (focused >= 0) cells[Math.min(focused, cells.length - 1)]?.input.focus()
    },
  }
}

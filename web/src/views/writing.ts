/** What comes next: the whole distribution, the filters, a draw, and the cache that makes the next one cheap. */
import { cacheBytes } from '../math/kvcache'
import { uniforms } from '../math/rng'
import { type Distribution, distribution, draw as drawId, ranked } from '../math/sampling'
import type { Text } from '../math/text'
import type { Tokenizer } from '../math/tokenizer'
import type { Store } from '../state/store'
import type { State } from '../state/url'
import { choice, h, scrollBox, setText } from '../ui/dom'
import { count, percent, position, short } from '../ui/format'
import { legend } from '../ui/grid'
import { draw, onTheme } from '../ui/pixels'

export const LISTED = 20 // tokens of the next-token list

/** A list of what may come next, the likeliest first: of a model at hand, or of the example. */
export interface Candidate {
  readonly piece: string
  readonly id: number
  readonly probability: number // of the whole vocabulary
  readonly drawn?: number // after the filters
  readonly fate?: Distribution['fate'][number]
}

export function candidates({ full, probabilities, fate }: Distribution, tokenizer: Tokenizer): Candidate[] {
  return ranked(full, LISTED).map((id) => ({ id, piece: tokenizer.piece(id), probability: full[id]!, drawn: probabilities[id]!, fate: fate[id]! }))
}

const REASONS = { 'greedy': 'cut: not the likeliest', 'top-k': 'cut by top-k', 'top-p': 'cut by top-p', 'kept': '' } as const

/** The list as a table; `note` says of how many tokens it is. */
export function nextTable(): { element: HTMLElement; show: (list: readonly Candidate[], note: string) => void } {
  const body = h('tbody')
  const note = h('p', { class: 'quiet' })
  const head = h('tr')
  const table = h('table', { class: 'plain bars' }, h('caption', {}, 'The likeliest next tokens'), h('thead', {}, head), body)
  const element = h('div', { class: 'next' }, scrollBox('The likeliest next tokens', table), note)
  return {
    element,
    show(list, text) {
      const filtered = list.some(({ fate }) => fate !== undefined)
      head.replaceChildren(...['token', 'model', '', ...(filtered ? ['drawn with', ''] : [])].map((name) => (name ? h('th', { scope: 'col' }, name) : h('td'))))
      body.replaceChildren(...list.map(({ piece, id, probability, drawn, fate }) => h('tr', fate && fate !== 'kept' ? { class: 'cut' } : {},
        h('th', { scope: 'row', title: `id ${id}` }, fate && fate !== 'kept' ? h('s', {}, piece) : piece),
        h('td', {}, percent(probability)),
        h('td', { class: 'bar-cell' }, h('span', { class: 'change-bar', style: `inline-size:${100 * probability}%` })),
        ...(filtered ? [h('td', {}, fate === 'kept' ? percent(drawn ?? 0) : '–'), h('td', { class: 'word' }, REASONS[fate ?? 'kept'])] : []))))
      setText(note, text)
    },
  }
}

/** The token that the seed draws after this text: the n-th number of the seed for the n-th written token. */
export function choose(text: Text, tokenizer: Tokenizer, state: State): { id: number; found: Distribution } {
  const found = distribution(text.logits, state, tokenizer.has)
  const next = uniforms(state.seed)
  let u = next()
  for (let written = text.ids.length - text.prompt; written > 0; written--) u = next()
  return { id: drawId(found.probabilities, u), found }
}

export interface Controls {
  readonly onStep: () => void
  readonly onRun: () => void
  readonly onStop: () => void
  readonly onBack: () => void
}

/** The knobs of sampling, and the buttons. */
export function sampler(store: Store, actions: Controls, written: HTMLElement): { element: HTMLElement; show: (running: boolean, ended: string, tokens: number) => void } {
  const number = (key: 'topK' | 'seed', id: string, max: number): HTMLInputElement => {
    const input = h('input', { id, type: 'number', min: 0, max, step: 1, inputmode: 'numeric', onchange: () => {
      const value = Math.round(Number(input.value))
      if (input.value !== '' && Number.isFinite(value)) store.set({ [key]: Math.min(max, Math.max(0, value)) })
      input.value = String(store.get()[key])
    } })
    return input
  }
  const temperature = h('input', { id: 'temperature', type: 'range', min: 0, max: 2, step: 0.05, oninput: () => store.set({ temperature: Number(temperature.value) }) })
  const temperatureText = h('output', { for: 'temperature' })
  const topP = h('input', { id: 'top-p', type: 'range', min: 0.01, max: 1, step: 0.01, oninput: () => store.set({ topP: Number(topP.value) }) })
  const topPText = h('output', { for: 'top-p' })
  const topK = number('topK', 'top-k', 1024)
  const seed = number('seed', 'seed', 2 ** 32 - 1)
  const step = h('button', { type: 'button', id: 'write-one', class: 'primary', onclick: actions.onStep }, 'Next token')
  const run = h('button', { type: 'button', id: 'write-on', onclick: () => (running ? actions.onStop() : actions.onRun()) }, 'Write on')
  const back = h('button', { type: 'button', id: 'write-back', onclick: actions.onBack }, 'Back to my text')
  const said = h('p', { class: 'quiet', role: 'status', id: 'written-status' })
  let running = false
  const field = (id: string, label: string, ...more: (HTMLElement | string)[]): HTMLElement => h('div', { class: 'field' }, h('label', { for: id }, label), ...more)
  const element = h('div', { class: 'sampler' },
    h('div', { class: 'buttons' }, step, run, back), said, written,
    field('temperature', 'temperature', temperature, temperatureText), field('top-k', 'top-k', topK, h('span', { class: 'quiet' }, '0 = off')),
    field('top-p', 'top-p', topP, topPText), field('seed', 'seed', seed),
    h('p', { class: 'quiet' }, 'In this order: temperature → top-k → top-p → renormalise → draw. A seed gives here the text that `generate.py --seed` gives: the draws are numpy’s PCG64.'))

  function show(): void {
    const state = store.get()
    temperature.value = String(state.temperature)
    setText(temperatureText, state.temperature === 0 ? '0: the likeliest' : state.temperature.toFixed(2))
    topP.value = String(state.topP)
    setText(topPText, state.topP === 1 ? '1: off' : state.topP.toFixed(2))
    // what is being typed stays until it is entered, whatever else changes meanwhile
    if (document.activeElement !== topK) topK.value = String(state.topK)
    if (document.activeElement !== seed) seed.value = String(state.seed)
  }
  store.onChange(show)
  show()
  return {
    element,
    show(now, ended, tokens) {
      running = now
      setText(run, now ? 'Stop' : 'Write on')
      // not `disabled`, which would take the keyboard's focus away
      step.ariaDisabled = String(ended !== '')
      run.ariaDisabled = String(!now && ended !== '')
      back.ariaDisabled = String(tokens === 0)
      setText(said, ended)
    },
  }
}

/** The cache, a column a token: how large its keys and values are, and what was computed for the last one. */
export function cacheStrip(store: Store): { element: HTMLElement; show: (text: Text, milliseconds: readonly number[]) => void } {
  const toggle = choice('KV cache', 'cache', [{ value: 'on', label: 'on' }, { value: 'off', label: 'off' }], (value) => store.set({ cache: value === 'on' }))
  const canvas = h('canvas', { class: 'strip', 'aria-hidden': 'true' })
  const names = h('div', { class: 'strip-names', 'aria-hidden': 'true' })
  const fresh = h('div', { class: 'fresh', 'aria-hidden': 'true' })
  const most = h('span')
  const facts = h('dl', { class: 'cache-facts' })
  const verdict = h('p', { class: 'saying', id: 'cache-verdict' })
  let last: { text: Text; milliseconds: readonly number[] } | null = null

  function show(): void {
    if (!last) return
    const { text: { model: { config }, cache, computed, fresh: now }, milliseconds } = last
    const T = cache.length
    const width = config.n_kv_heads * config.head_dim
    const rows = [...cache.keys, ...cache.values] // keys of every layer, then values
    const size = rows.map(({ data }) => Array.from({ length: T }, (_, t) =>
      data.subarray(t * width, (t + 1) * width).reduce((large, value) => Math.max(large, Math.abs(value)), 0)))
    const limit = Math.max(...size.flat())
    draw(canvas, rows.length, T, (row, t) => size[row]![t]!, limit)
    setText(most, short(limit))
    names.replaceChildren(...rows.map((_, i) => h('span', {}, `${i < config.n_layers ? 'k' : 'v'} ${(i % config.n_layers) + 1}`)))
    fresh.style.inlineSize = `${(100 * now) / T}%`
    fresh.textContent = now === T ? 'all computed now' : '' // one column is too narrow for a word; the list below says it
    toggle.show(store.get().cache ? 'on' : 'off')
    const sorted = [...milliseconds].sort((a, b) => a - b)
    const fact = (name: string, value: string, id = ''): Node[] => [h('dt', {}, name), h('dd', id ? { id } : {}, value)]
    facts.replaceChildren(
      ...fact('tokens held', count(T)),
      ...fact('for the last one', now === T ? `all ${count(T)} rows computed` : `${count(now)} row computed, ${count(T - now)} reused`, 'cache-last'),
      ...fact('rows computed so far', count(computed), 'cache-computed'),
      ...fact('bytes', `2 × ${config.n_layers} layers × ${config.n_kv_heads} heads × ${config.head_dim} × ${count(T)} tokens × 4 = ${count(cacheBytes(config, T))}`, 'cache-bytes'),
      ...fact('time of a token', sorted.length === 0 ? 'none written yet' : `${sorted[Math.floor(sorted.length / 2)]!.toFixed(1)} ms here (median of ${sorted.length})`, 'cache-time'))
    setText(verdict, store.get().cache ? 'On: each new token computes its own key and value once, and reads the others from here.'
      : 'Off: each new token computes the keys and values of all before it again, and comes to the same text, bit for bit.')
  }
  store.onChange((state, before) => {
    if (state.cache !== before.cache) show()
  })
  onTheme(show)
  return {
    element: h('div', { class: 'cache' }, h('h3', {}, 'The cache fills up'), toggle.element,
      h('div', { class: 'strip-box' }, names, h('div', { class: 'strip-picture' }, canvas, fresh)),
      legend('sequential', '0', most), h('p', { class: 'quiet' }, `A column a token, from ${position(0)}; the colour is the largest |number| of its keys (k) or values (v) in that layer. Framed: computed for the last token.`),
      facts, verdict),
    show(text, milliseconds) {
      last = { text, milliseconds }
      show()
    },
  }
}

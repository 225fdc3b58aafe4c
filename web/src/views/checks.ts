/** How far is the page from PyTorch? Computed here and now, in this browser. */
import { type Fixture, type Parity, parity } from '../io/fixture'
import type { Mask, Trace } from '../math/attention'
import { byId, h, setText } from '../ui/dom'
import { count, difference, short } from '../ui/format'
import { NAMES } from './steps'

export const BOUND = 1e-5

export function checks(layer: Fixture, traces: Readonly<Record<Mask, Trace>>): void {
  const both = { causal: parity(traces.causal, layer.reference.causal), none: parity(traces.none, layer.reference.none) }
  const worst = Math.max(both.causal.worst, both.none.worst)
  const numbers = both.causal.count + both.none.count
  const good = worst <= BOUND // false for NaN, too
  const badge = byId('badge')
  setText(badge, `${good ? '✓' : '✗'} within ${short(worst)} of PyTorch`)
  badge.className = `badge ${good ? 'good' : 'bad'}`
  badge.title = `The largest |page − PyTorch| over ${count(numbers)} numbers, computed in this browser`

  const cell = (found: Parity, i: number): HTMLElement => {
    const off = found.rows[i]?.worst ?? NaN
    return h('td', { class: off <= BOUND ? 'good' : 'bad' }, difference(off))
  }
  const { manifest } = layer
  byId('checks-body').replaceChildren(
    h('p', { id: 'checks-verdict' }, `${good ? 'Every tensor agrees' : 'The page and PyTorch do not agree'}: the largest difference over ${count(numbers)} numbers is ${short(worst)}${good ? `, and ${short(BOUND)} would turn the sign at the top red` : ''}.`),
    h('table', { class: 'parity' }, h('caption', {}, 'Largest |page − PyTorch|, tensor by tensor'),
      h('thead', {}, h('tr', {}, ...['tensor', 'numbers', 'mask on', 'mask off'].map((text) => h('th', { scope: 'col' }, text)))),
      h('tbody', {}, ...both.causal.rows.map(({ name, count: n }, i) =>
        h('tr', {}, h('th', { scope: 'row' }, NAMES[name]), h('td', {}, count(n)), cell(both.causal, i), cell(both.none, i))))),
    h('p', { class: 'provenance' }, `Data: attention.safetensors (${count(manifest.bytes)} bytes), sha256 ${manifest.sha256.slice(0, 16)}…, checked on loading. PyTorch ${manifest.torch}, seed ${manifest.seed}, CausalSelfAttention of octlm with nn.Linear’s own initialisation.${__COMMIT__ ? ` Built from commit ${__COMMIT__}.` : ''}`),
  )
  const line = `Source: attention.safetensors, sha256 ${manifest.sha256.slice(0, 12)}…; PyTorch ${manifest.torch}, seed ${manifest.seed}${__COMMIT__ ? `; commit ${__COMMIT__}` : ''}; untrained, so no pattern here means anything.`
  for (const place of document.querySelectorAll('[data-provenance]')) setText(place, line)
}

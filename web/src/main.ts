import { base64, manifest } from 'virtual:attention'
import { bytesOf, readFixture } from './io/fixture'
import { attention } from './math/attention'
import { createStore } from './state/store'
import { START, format, parse, settle } from './state/url'
import { byId, setText } from './ui/dom'
import { causality } from './views/causality'
import { checks } from './views/checks'
import { model } from './views/model'
import { runs } from './views/runs'
import { square } from './views/square'
import { walk } from './views/walk'

function start(): void {
  const layer = readFixture(bytesOf(base64), manifest)
  const { n_heads: heads, context_length: positions } = layer.manifest
  const limits = { heads, positions, dim: layer.x.shape[1] ?? 0 }
  const traces = {
    causal: attention(layer.x, layer.weights, { heads, mask: 'causal' }),
    none: attention(layer.x, layer.weights, { heads, mask: 'none' }),
  }
  const store = createStore(parse(location.hash, limits), (state) => settle(state, limits))

  let timer = 0
  store.onChange(() => {
    clearTimeout(timer)
    timer = window.setTimeout(() => {
      const text = format(store.get())
      history.replaceState(null, '', text ? `#${text}` : location.pathname + location.search)
    }, 150)
  })
  window.addEventListener('hashchange', () => store.set(parse(location.hash, limits)))
  byId('reset').addEventListener('click', () => store.set(START))

  checks(layer, traces)
  walk(layer, traces, store)
  causality(layer, traces, store)
  model(store)
  square()
  runs('./data/runs.json')
}

/** The address holds the state, so links within the page must not overwrite it. */
function links(): void {
  for (const link of document.querySelectorAll<HTMLAnchorElement>('a[href^="#"]')) {
    link.addEventListener('click', (event) => {
      event.preventDefault()
      const target = byId(link.hash.slice(1))
      target.scrollIntoView()
      target.focus({ preventScroll: true })
    })
  }
}

function theme(): void {
  const select = byId('theme') as HTMLSelectElement
  const dark = matchMedia('(prefers-color-scheme: dark)')
  const apply = (): void => {
    document.documentElement.dataset.theme = select.value === 'system' ? (dark.matches ? 'dark' : 'light') : select.value
  }
  try {
    select.value = localStorage.getItem('octlm-theme') ?? 'system'
  } catch {
    select.value = 'system' // storage is closed to us: follow the system
  }
  if (select.value === '') select.value = 'system'
  select.addEventListener('change', () => {
    apply()
    try {
      localStorage.setItem('octlm-theme', select.value)
    } catch {
      return // it holds until the page is left
    }
  })
  dark.addEventListener('change', apply)
  apply()
}

function help(): void {
  const dialog = byId('keys') as HTMLDialogElement
  byId('open-keys').addEventListener('click', () => dialog.showModal())
}

theme()
links()
help()
try {
  start()
} catch (error) {
  const message = error instanceof Error ? error.message : String(error)
  for (const id of ['walk-body', 'future-body', 'checks-body']) setText(byId(id), `The page could not start: ${message}`)
  setText(byId('badge'), '✗ not checked')
  byId('badge').className = 'badge bad'
}

/** The nine steps, one at a time: tables of what the step reads and gives, and the arithmetic of any cell. */
import type { Fixture } from '../io/fixture'
import { type Mask, type TensorName, type Trace, mayRead } from '../math/attention'
import { type Explanation, type Source, explain } from '../math/explain'
import { type Tensor, at, size } from '../math/tensor'
import type { Store } from '../state/store'
import { PARTS, STEPS, type Part, type State, type StepId } from '../state/url'
import { byId, choice, h, setText } from '../ui/dom'
import { position } from '../ui/format'
import { Grid, type GridActions } from '../ui/grid'
import { type Shown, place, renderPanel, sentence } from './panel'
import { NAMES, STEP_LIST, type Step, type Table, type WeightName } from './steps'

const SQUARE: readonly string[] = ['raw', 'scaled', 'masked', 'weights']
const MASKED: readonly string[] = ['masked', 'weights']

interface Placed {
  readonly grid: Grid
  readonly table: Table
  readonly result: boolean
}

export function walk(layer: Fixture, traces: Readonly<Record<Mask, Trace>>, store: Store): void {
  const root = byId('walk-body')
  const H = layer.manifest.n_heads
  let placed: Placed[] = []
  let pinned = false
  let hover: { name: TensorName; row: number; column: number } | null = null

  const stepOf = (id: StepId): Step => STEP_LIST.find((step) => step.id === id)!
  const go = (by: number): void => {
    const next = STEPS[STEPS.indexOf(store.get().step) + by]
    if (next) store.set({ step: next })
  }

  // the frame, built once
  const tabs = STEP_LIST.map((step, i) => h('button', {
    type: 'button', role: 'tab', id: `tab-${step.id}`, 'aria-controls': 'walk-step', 'aria-label': `Step ${i + 1}: ${step.name}`,
    onclick: () => store.set({ step: step.id }),
  }, h('span', { class: 'number' }, String(i + 1)), h('span', { class: 'name' }, step.name)))
  const tablist = h('div', { role: 'tablist', class: 'steps', 'aria-label': 'The nine steps of the layer' }, ...tabs)
  tablist.addEventListener('keydown', (event) => {
    const now = STEPS.indexOf(store.get().step)
    const target = { ArrowRight: (now + 1) % 9, ArrowLeft: (now + 8) % 9, Home: 0, End: 8 }[event.key]
    if (target === undefined || event.altKey || event.ctrlKey || event.metaKey) return
    event.preventDefault()
    store.set({ step: STEPS[target]! })
    tabs[target]?.focus()
  })
  const headChoice = choice('Head', 'head', Array.from({ length: H }, (_, i) => ({ value: String(i), label: String(i + 1) })),
    (value) => store.set({ head: Number(value) }))
  const maskChoice = choice('Mask', 'walk-mask', [{ value: 'causal', label: 'on' }, { value: 'none', label: 'off' }],
    (mask) => store.set({ mask }))
  const digitChoice = choice('Digits', 'digits', [{ value: '6', label: '6' }, { value: '9', label: 'all' }],
    (value) => store.set({ digits: value === '9' ? 9 : 6 }))
  const title = h('h3', { id: 'step-title' })
  const text = h('div', { class: 'prose' })
  const figure = h('div', { class: 'figure' })
  const panelBody = h('div')
  const pinNote = h('p', { class: 'pin-note' })
  const status = h('p', { class: 'unseen', role: 'status' })
  const back = h('button', { type: 'button', onclick: () => go(-1) }, '← Back')
  const next = h('button', { type: 'button', class: 'primary', onclick: () => go(1) }, 'Next →')
  const counter = h('span', { class: 'counter' })
  root.replaceChildren(
    tablist,
    h('div', { class: 'controls' }, headChoice.element, maskChoice.element, digitChoice.element),
    h('div', { id: 'walk-step', role: 'tabpanel', class: 'step' },
      h('div', { class: 'step-text' }, h('div', { class: 'step-head' }, title, h('div', { class: 'stepper' }, back, counter, next)), text),
      figure,
      h('section', { class: 'panel', tabindex: 0, 'aria-labelledby': 'panel-title' }, h('h4', { id: 'panel-title' }, 'The arithmetic of one cell'), panelBody, pinNote)),
    status,
  )

  const actionsFor = (name: TensorName): GridActions => ({
    onFocus(row, column) {
      if (!pinned) choose(name, row, column)
    },
    onHover(cell) {
      hover = cell && !pinned ? { name, row: cell[0], column: cell[1] } : null
      refresh(store.get())
    },
    onPin(row, column) {
      const state = store.get()
      const same = pinned && resultOf(state) === name && state.row === row && state.column === column
      pinned = !same
      choose(name, row, column)
      refresh(store.get())
      setText(status, pinned ? `Pinned. ${sentence(shownNow(store.get()))}` : 'Unpinned.')
    },
    onUnpin() {
      if (!pinned) return
      pinned = false
      refresh(store.get())
      setText(status, 'Unpinned.')
    },
    onKey(key) {
      if (key === '[' || key === ']') {
        store.set({ head: Math.min(H - 1, Math.max(0, store.get().head + (key === ']' ? 1 : -1))) })
        return true
      }
      if (key !== 'PageUp' && key !== 'PageDown') return false
      go(key === 'PageDown' ? 1 : -1)
      const { row, column } = store.get()
      placed.find((one) => one.result && one.table.tensor === resultOf(store.get()))?.grid.focus(row, column)
      return true
    },
  })

  /** The table of the step that the chosen cell stands in. */
  function resultOf(state: State): TensorName {
    return state.step === 'qkv' ? state.part : stepOf(state.step).gives[0]!
  }

  function choose(name: TensorName, row: number, column: number): void {
    hover = null
    const part = PARTS.find((one) => one === name)
    store.set({ row, column, ...(part ? { part: part satisfies Part } : {}) })
  }

  function build(state: State): void {
    const step = stepOf(state.step)
    const n = STEPS.indexOf(step.id)
    setText(title, `${n + 1}. ${step.name}`)
    text.replaceChildren(...step.text.map((paragraph) => h('p', {}, paragraph)))
    setText(counter, `Step ${n + 1} of ${STEPS.length}`)
    back.disabled = n === 0
    next.disabled = n === STEPS.length - 1
    byId('walk-step').setAttribute('aria-labelledby', `tab-${step.id}`)
    for (const [i, tab] of tabs.entries()) {
      tab.setAttribute('aria-selected', String(i === n))
      tab.tabIndex = i === n ? 0 : -1
    }
    placed = []
    const make = (table: Table, result: boolean): HTMLElement => {
      const tensor = tensorOf(table.tensor, state)
      const { columns } = size(tensor)
      const weight = table.tensor.endsWith('_proj')
      const whole = !weight || table.tensor === 'o_proj'
      const rows = whole ? size(tensor).rows : layer.manifest.head_dim
      const square = SQUARE.includes(table.tensor)
      const grid = new Grid({
        caption: NAMES[table.tensor],
        note: `${rows} × ${columns}`,
        rows: Array.from({ length: rows }, (_, i) => (weight ? String(i) : position(i))),
        columns: Array.from({ length: columns }, (_, j) => (square ? position(j) : String(j))),
        ramp: table.tensor === 'weights' ? 'sequential' : 'diverging',
        ...(result ? { actions: actionsFor(table.tensor as TensorName) } : {}),
      })
      placed.push({ grid, table, result })
      return grid.element
    }
    const gives = step.gives.map((tensor) => make({ tensor }, true))
    const reads = step.reads.map((table) => make(table, false))
    const matrices = h('div', { class: 'tables' })
    const weights = step.weights.length === 0 ? null : h('details', { ontoggle: () => {
      if (matrices.childElementCount > 0) return
      matrices.append(...step.weights.map((tensor) => make({ tensor }, false))) // 384 cells that few people open
      write(store.get())
      refresh(store.get())
    } }, h('summary', {}, step.weights.length > 1 ? 'Show the three weight matrices' : 'Show the weight matrix'), matrices)
    figure.replaceChildren(
      ...(reads.length === 0 ? [] : [h('div', { class: 'group' }, h('p', { class: 'role' }, 'reads'), h('div', { class: 'tables' }, ...reads))]),
      h('div', { class: 'group result' }, h('p', { class: 'role' }, reads.length === 0 ? 'given' : 'gives'), h('div', { class: 'tables' }, ...gives)),
      ...(weights ? [weights] : []),
    )
  }

  function tensorOf(name: TensorName | WeightName, state: State): Tensor {
    return name === 'q_proj' ? layer.weights.q : name === 'k_proj' ? layer.weights.k : name === 'v_proj' ? layer.weights.v
      : name === 'o_proj' ? layer.weights.o : traces[state.mask][name]
  }

  function write(state: State): void {
    for (const { grid, table } of placed) {
      const tensor = tensorOf(table.tensor, state)
      const head = table.head ?? state.head
      const slice = table.tensor.endsWith('_proj') && table.tensor !== 'o_proj'
      const shift = slice ? head * layer.manifest.head_dim : 0
      const many = slice || size(tensor).heads > 1
      const hides = MASKED.includes(table.tensor)
      grid.update(many ? `${NAMES[table.tensor]}, head ${head + 1}` : NAMES[table.tensor], {
        value: (i, j) => at(tensor, head, i + shift, j),
        limit: table.tensor === 'weights' ? 1 : largest(tensor),
        ...(hides ? { hidden: (i: number, j: number) => (mayRead(i, j, state.mask) ? undefined : `masked, t${j} is after t${i}`) } : {}),
      })
    }
  }

  function shownNow(state: State): Shown {
    const { name, row, column } = hover ?? { name: resultOf(state), row: state.row, column: state.column }
    const trace = traces[state.mask]
    const many = size(trace[name]).heads > 1
    const head = many ? state.head : 0
    const told = explain(trace, layer.weights, state.mask, name, head, row, column)
    return {
      name, told, mask: state.mask, digits: state.digits,
      label: `${place({ tensor: name, row, column })}${many ? ` of head ${head + 1}` : ''}`,
      torch: at(layer.reference[state.mask][name], head, row, column),
    }
  }

  function refresh(state: State): void {
    const chosen = resultOf(state)
    const shown = shownNow(state)
    const from = new Set(sources(shown.told).map((s) => `${s.tensor}:${s.head}:${s.row}:${s.column}`))
    for (const { grid, table, result } of placed) {
      const head = table.head ?? (size(tensorOf(table.tensor, state)).heads > 1 ? state.head : 0)
      if (result) {
        const here = hover ? (hover.name === table.tensor ? ([hover.row, hover.column] as const) : null)
          : table.tensor === chosen ? ([state.row, state.column] as const) : null
        grid.select(here, pinned, hover === null)
      } else {
        const shift = table.tensor.endsWith('_proj') && table.tensor !== 'o_proj' ? state.head * layer.manifest.head_dim : 0
        grid.light((i, j) => from.has(`${table.tensor}:${head}:${i + shift}:${j}`))
      }
    }
    renderPanel(panelBody, shown)
    setText(pinNote, pinned ? 'Pinned: Esc, or the cell again, lets go.' : 'Point at a cell or move with the arrow keys; Enter, a click or a tap pins it.')
  }

  function show(state: State): void {
    headChoice.show(String(state.head))
    maskChoice.show(state.mask)
    digitChoice.show(String(state.digits) as '6' | '9')
    write(state)
    refresh(state)
  }

  store.onChange((state, before) => {
    hover = null
    if (state.step !== before.step) {
      pinned = false
      build(state)
    }
    const onlyTheCell = state.step === before.step && state.head === before.head && state.mask === before.mask && state.digits === before.digits
    if (onlyTheCell) refresh(state)
    else show(state)
  })
  build(store.get())
  show(store.get())
}

/** The largest finite |number| of a tensor: one scale for all heads. */
function largest(tensor: Tensor): number {
  return tensor.data.reduce((most, value) => (Number.isFinite(value) ? Math.max(most, Math.abs(value)) : most), 0)
}

/** Every cell that an explanation names. */
function sources(told: Explanation): readonly Source[] {
  switch (told.kind) {
    case 'given':
      return []
    case 'products':
      return told.terms.flatMap(({ left, right }) => [left, right])
    case 'softmax':
      return told.candidates.map(({ source }) => source)
    default:
      return [told.source]
  }
}

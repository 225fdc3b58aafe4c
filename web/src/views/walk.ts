/** The nine steps, one at a time: tables of what the step reads and gives, and the arithmetic of any cell. */
import type { Fixture } from '../io/fixture'
import { type Mask, type TensorName, type Trace, mayRead } from '../math/attention'
import { type Explanation, type Source, explain } from '../math/explain'
import { type Tensor, at, size } from '../math/tensor'
import type { Store } from '../state/store'
import { PARTS, STEPS, type Part, type State, type StepId } from '../state/url'
import { paint } from '../ui/colour'
import { byId, choice, h, setText } from '../ui/dom'
import { position } from '../ui/format'
import { Grid, type GridActions } from '../ui/grid'
import { type Shown, place, renderPanel, sentence } from './panel'
import { NAMES, STEP_LIST, type Step, type Table, type WeightName } from './steps'

const SQUARE: readonly string[] = ['raw', 'scaled', 'masked', 'weights']
const MASKED: readonly string[] = ['masked', 'weights']

/** What the walk shows of the state; no other change concerns it. */
const SHOWN = ['step', 'head', 'both', 'part', 'row', 'column', 'mask', 'digits', 'colours'] as const
const CELL: readonly string[] = ['part', 'row', 'column'] // these change no number, only which one is looked at

interface Placed {
  readonly grid: Grid
  readonly table: Table
  readonly result: boolean
  readonly head?: number // fixed; else the chosen one
}

interface Cell {
  readonly name: TensorName
  readonly head: number
  readonly row: number
  readonly column: number
}

export function walk(layer: Fixture, traces: Readonly<Record<Mask, Trace>>, store: Store): void {
  const root = byId('walk-body')
  const H = layer.manifest.n_heads
  let placed: Placed[] = []
  let pinned = false
  let hover: Cell | null = null

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
  const every = Array.from({ length: H }, (_, i) => i)
  const headChoice = choice('Head', 'head', [...every.map((i) => ({ value: String(i), label: String(i + 1) })), { value: 'both', label: 'both' }],
    (value) => store.set(value === 'both' ? { both: true } : { head: Number(value), both: false }))
  const maskChoice = choice('Mask', 'walk-mask', [{ value: 'causal', label: 'on' }, { value: 'none', label: 'off' }],
    (mask) => store.set({ mask }))
  const digitChoice = choice('Digits', 'digits', [{ value: '2', label: '2' }, { value: '6', label: '6' }, { value: '9', label: 'all' }],
    (value) => store.set({ digits: value === '9' ? 9 : value === '2' ? 2 : 6 }))
  const colourChoice = choice('Colours', 'colours', [{ value: 'fixed', label: '0 to 1' }, { value: 'row', label: 'by row’s largest' }],
    (colours) => store.set({ colours }))
  const small = every.map((i) => thumbnail(i, layer.manifest.context_length, () => store.set({ head: i })))
  const thumbnails = h('div', { class: 'group all-heads' }, h('p', { class: 'role' }, 'all heads'),
    h('div', { class: 'thumbnails', role: 'group', 'aria-label': 'The weights of all heads' }, ...small.map(({ button }) => button)))
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
    h('div', { class: 'controls' }, headChoice.element, maskChoice.element, digitChoice.element, colourChoice.element),
    h('div', { id: 'walk-step', role: 'tabpanel', class: 'step' },
      h('div', { class: 'step-text' }, h('div', { class: 'step-head' }, title, h('div', { class: 'stepper' }, back, counter, next)), text),
      figure,
      h('section', { class: 'panel', tabindex: 0, 'aria-labelledby': 'panel-title' }, h('h4', { id: 'panel-title' }, 'The arithmetic of one cell'), panelBody, pinNote)),
    status,
  )

  const actionsFor = (name: TensorName, own: number | undefined): GridActions => ({
    onFocus(row, column) {
      if (!pinned) choose(name, own, row, column)
    },
    onHover(cell) {
      hover = cell && !pinned ? { name, head: own ?? store.get().head, row: cell[0], column: cell[1] } : null
      refresh(store.get())
    },
    onPin(row, column) {
      const state = store.get()
      const same = pinned && resultOf(state) === name && state.head === (own ?? state.head) && state.row === row && state.column === column
      pinned = !same
      choose(name, own, row, column)
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
        if (own !== undefined) focusChosen()
        return true
      }
      if (key !== 'PageUp' && key !== 'PageDown') return false
      go(key === 'PageDown' ? 1 : -1)
      focusChosen()
      return true
    },
  })

  function focusChosen(): void {
    const state = store.get()
    placed.find((one) => one.result && one.table.tensor === resultOf(state) && (one.head ?? state.head) === state.head)?.grid.focus(state.row, state.column)
  }

  /** The table of the step that the chosen cell stands in. */
  function resultOf(state: State): TensorName {
    return state.step === 'qkv' ? state.part : stepOf(state.step).gives[0]!
  }

  function choose(name: TensorName, head: number | undefined, row: number, column: number): void {
    hover = null
    const part = PARTS.find((one) => one === name)
    store.set({ row, column, ...(head === undefined ? {} : { head }), ...(part ? { part: part satisfies Part } : {}) })
  }

  /** Does this table show one head of several? */
  function many(tensor: TensorName | WeightName): boolean {
    return isSlice(tensor) || (!tensor.endsWith('_proj') && size(tensorOf(tensor, store.get())).heads > 1)
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
    const make = (table: Table, result: boolean, head = table.head): HTMLElement => {
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
        ...(result ? { actions: actionsFor(table.tensor as TensorName, head) } : {}),
      })
      placed.push({ grid, table, result, ...(head === undefined ? {} : { head }) })
      return grid.element
    }
    /** Tables in a row; where both heads are wanted, a row for each. */
    const rowsOf = (tables: readonly Table[], result: boolean): HTMLElement[] => {
      const apart = state.both && tables.some(({ tensor, head }) => head === undefined && many(tensor))
      return !apart ? [h('div', { class: 'tables' }, ...tables.map((table) => make(table, result)))]
        : every.map((head) => h('div', { class: 'tables' }, ...tables.map((table) => make(table, result, head))))
    }
    const gives = rowsOf(step.gives.map((tensor) => ({ tensor })), true)
    const reads = step.reads.length === 0 ? [] : rowsOf(step.reads, false)
    const matrices = h('div', { class: 'matrices' })
    const weights = step.weights.length === 0 ? null : h('details', { ontoggle: () => {
      if (matrices.childElementCount > 0) return
      matrices.append(...rowsOf(step.weights.map((tensor) => ({ tensor })), false)) // 384 cells that few people open
      write(store.get())
      refresh(store.get())
    } }, h('summary', {}, step.weights.length > 1 ? 'Show the three weight matrices' : 'Show the weight matrix'), matrices)
    figure.replaceChildren(
      ...(reads.length === 0 ? [] : [h('div', { class: 'group' }, h('p', { class: 'role' }, 'reads'), ...reads)]),
      h('div', { class: 'group result' }, h('p', { class: 'role' }, reads.length === 0 ? 'given' : 'gives'), ...gives),
      ...(step.id === 'softmax' && !state.both ? [thumbnails] : []),
      ...(weights ? [weights] : []),
    )
  }

  function tensorOf(name: TensorName | WeightName, state: State): Tensor {
    return name === 'q_proj' ? layer.weights.q : name === 'k_proj' ? layer.weights.k : name === 'v_proj' ? layer.weights.v
      : name === 'o_proj' ? layer.weights.o : traces[state.mask][name]
  }

  function write(state: State): void {
    for (const { grid, table, head: own } of placed) {
      const tensor = tensorOf(table.tensor, state)
      const head = own ?? state.head
      const shift = isSlice(table.tensor) ? head * layer.manifest.head_dim : 0
      const hides = MASKED.includes(table.tensor)
      grid.update(many(table.tensor) ? `${NAMES[table.tensor]}, head ${head + 1}` : NAMES[table.tensor], {
        value: (i, j) => at(tensor, head, i + shift, j),
        limit: table.tensor === 'weights' ? limitOf(tensor, head, state) : largest(tensor.data),
        ...(hides ? { hidden: (i: number, j: number) => (mayRead(i, j, state.mask) ? undefined : `masked, t${j} is after t${i}`) } : {}),
      })
    }
    if (state.step !== 'softmax' || state.both) return
    const { weights } = traces[state.mask]
    for (const [head, { button, paintCells }] of small.entries()) {
      button.setAttribute('aria-pressed', String(head === state.head))
      const limit = limitOf(weights, head, state)
      paintCells((i, j) => (mayRead(i, j, state.mask) ? at(weights, head, i, j) : null), typeof limit === 'number' ? () => limit : limit)
    }
  }

  /** Weights are coloured on [0, 1]; in their own step also, if the reader wants it, up to the largest of each row. */
  function limitOf(weights: Tensor, head: number, { colours, step }: State): number | ((row: number) => number) {
    const { columns } = size(weights)
    return colours === 'fixed' || step !== 'softmax' ? 1 : (i) => largest(Array.from({ length: columns }, (_, j) => at(weights, head, i, j)))
  }

  function shownNow(state: State): Shown {
    const { name, row, column, head: own } = hover ?? { ...state, name: resultOf(state) }
    const trace = traces[state.mask]
    const head = many(name) ? own : 0
    const told = explain(trace, layer.weights, state.mask, name, head, row, column)
    return {
      name, told, mask: state.mask, digits: state.digits,
      label: `${place({ tensor: name, row, column })}${many(name) ? ` of head ${head + 1}` : ''}`,
      torch: at(layer.reference[state.mask][name], head, row, column),
    }
  }

  function refresh(state: State): void {
    const chosen = resultOf(state)
    const shown = shownNow(state)
    const from = new Set(sources(shown.told).map((s) => `${s.tensor}:${s.head}:${s.row}:${s.column}`))
    for (const { grid, table, result, head: own } of placed) {
      if (result) {
        const cell = hover ?? { ...state, name: chosen }
        const here = cell.name === table.tensor && cell.head === (own ?? cell.head) ? ([cell.row, cell.column] as const) : null
        grid.select(here, pinned, hover === null)
      } else {
        const head = own ?? state.head
        const shift = isSlice(table.tensor) ? head * layer.manifest.head_dim : 0
        const axis = !isSlice(table.tensor) && many(table.tensor) ? head : 0
        grid.light((i, j) => from.has(`${table.tensor}:${axis}:${i + shift}:${j}`))
      }
    }
    renderPanel(panelBody, shown)
    setText(pinNote, pinned ? 'Pinned: Esc, or the cell again, lets go.' : 'Point at a cell or move with the arrow keys; Enter, a click or a tap pins it.')
  }

  function show(state: State): void {
    headChoice.show(state.both ? 'both' : String(state.head))
    maskChoice.show(state.mask)
    digitChoice.show(String(state.digits) as '2' | '6' | '9')
    colourChoice.show(state.colours)
    colourChoice.element.hidden = state.step !== 'softmax'
    write(state)
    refresh(state)
  }

  store.onChange((state, before) => {
    const changed = SHOWN.filter((key) => state[key] !== before[key])
    if (changed.length === 0) return
    hover = null
    if (state.step !== before.step) pinned = false
    if (state.step !== before.step || state.both !== before.both) build(state)
    const sameNumbers = changed.every((key) => CELL.includes(key) || (key === 'head' && state.both))
    if (sameNumbers) refresh(state)
    else show(state)
  })
  build(store.get())
  show(store.get())
}

/** The largest finite |number|; of a whole tensor it gives one scale for all heads. */
function largest(numbers: Iterable<number>): number {
  let most = 0
  for (const value of numbers) if (Number.isFinite(value)) most = Math.max(most, Math.abs(value))
  return most
}

/** The rows of these matrices are shared out among the heads; each table shows one head's. */
function isSlice(tensor: TensorName | WeightName): boolean {
  return tensor.endsWith('_proj') && tensor !== 'o_proj'
}

/** A head's weights in small: a button that shows them large. */
function thumbnail(head: number, T: number, onPick: () => void): {
  button: HTMLElement
  paintCells: (weight: (i: number, j: number) => number | null, limit: (row: number) => number) => void
} {
  const cells = Array.from({ length: T * T }, () => h('span'))
  const button = h('button', { type: 'button', class: 'thumbnail', onclick: onPick },
    h('span', { class: 'cells', style: `--columns:${T}`, 'aria-hidden': 'true' }, ...cells), `head ${head + 1}`)
  return {
    button,
    paintCells(weight, limit) {
      for (const [n, cell] of cells.entries()) {
        const value = weight(Math.floor(n / T), n % T)
        cell.classList.toggle('masked', value === null)
        paint(cell, value ?? 0, limit(Math.floor(n / T)), 'sequential')
      }
    },
  }
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

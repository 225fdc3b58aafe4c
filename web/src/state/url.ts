/**
 * The page's state and its spelling in the address:
 * `#step=softmax&head=2&cell=5,2&p=5&edit=nudge:1.5&text=One+cold&layer=2&mhead=1&temp=0.8&k=40&topp=0.95&seed=1`.
 */
import type { Mask } from '../math/attention'
import { type Edit, LIMIT } from '../math/change'

export const STEPS = ['input', 'qkv', 'scores', 'scale', 'mask', 'softmax', 'values', 'concat', 'output'] as const
export type StepId = (typeof STEPS)[number]
export const PARTS = ['q', 'k', 'v'] as const
export type Part = (typeof PARTS)[number]

export interface State {
  readonly step: StepId
  readonly head: number // 0, 1, ...; the address and the page count from 1
  readonly both: boolean // the tables of all heads side by side
  readonly part: Part // which of the three tables of the step qkv
  readonly row: number
  readonly column: number
  readonly mask: Mask
  readonly digits: 2 | 6 | 9
  readonly colours: 'fixed' | 'row' // weights on [0, 1], or each row up to its largest
  readonly p: number // the position that is edited
  readonly edit: Edit

  // the trained model; what the model at hand bounds (layers, heads, tokens) is held to it where it is shown
  readonly text: string
  readonly layer: number
  readonly modelHead: number
  readonly query: number // the token whose reading is shown; LAST is the last one, however many there are
  readonly swapAt: number // the token that is swapped for another; OFF = none
  readonly swapId: number
  readonly temperature: number // 0 = always the most likely token
  readonly topK: number // 0 = off
  readonly topP: number // 1 = off
  readonly seed: number
  readonly cache: boolean
}

export const TEXT = 'One misty autumn morning, a clever wren named Hazel walked softly to the rusty grey mill. Under a mossy stone, she found a tiny golden bell. Soon a proud fox named Otto came by. "Lend me the'
export const MAX_TEXT = 200 // characters
export const LAST = 9999
export const OFF = -1

export interface Limits {
  readonly heads: number
  readonly positions: number
  readonly dim: number
}

export const START: State = {
  step: 'input', head: 0, both: false, part: 'q', row: 5, column: 2, mask: 'causal', digits: 6, colours: 'fixed', p: 5,
  edit: { kind: 'nudge', amount: 1.5 },
  text: TEXT, layer: 0, modelHead: 2, query: LAST, swapAt: OFF, swapId: 0, temperature: 0.8, topK: 50, topP: 1, seed: 0, cache: true,
}

const MAX_HASH = 4000 // characters; nothing that the page writes is longer
const MAX_SEED = 2 ** 32 - 1
const MAX_INDEX = 9999 // of a layer, a head, a token, an id

/** How many columns the tables of a step have. */
export function columnsOf(step: StepId, limits: Limits): number {
  return step === 'input' || step === 'concat' || step === 'output' ? limits.dim
    : step === 'qkv' || step === 'values' ? limits.dim / limits.heads
      : limits.positions
}

/** Bring the chosen cell inside the step's table. */
export function settle(state: State, limits: Limits): State {
  const column = Math.min(state.column, columnsOf(state.step, limits) - 1)
  return column === state.column ? state : { ...state, column }
}

/** Write what differs from the start; '' when nothing does. */
export function format(state: State): string {
  const out: string[] = []
  const put = (key: string, value: string | number | boolean, start: string | number | boolean): void => {
    if (value !== start) out.push(`${key}=${value}`)
  }
  put('step', state.step, START.step)
  put('head', state.head + 1, START.head + 1)
  put('heads', state.both ? 'both' : 'one', 'one')
  put('part', state.part, START.part)
  put('cell', `${state.row},${state.column}`, `${START.row},${START.column}`)
  put('mask', state.mask, START.mask)
  put('digits', state.digits, START.digits)
  put('colour', state.colours, START.colours)
  put('p', state.p, START.p)
  put('edit', formatEdit(state.edit), formatEdit(START.edit))
  put('text', encodeURIComponent(state.text.replace(/\p{Surrogate}/gu, '\ufffd')), encodeURIComponent(START.text)) // half a character has no escape
  put('layer', state.layer + 1, START.layer + 1)
  put('mhead', state.modelHead + 1, START.modelHead + 1)
  put('token', state.query, START.query)
  put('swap', state.swapAt === OFF ? 'off' : `${state.swapAt}:${state.swapId}`, 'off')
  put('temp', state.temperature, START.temperature)
  put('k', state.topK, START.topK)
  put('topp', state.topP, START.topP)
  put('seed', state.seed, START.seed)
  put('cache', state.cache ? 'on' : 'off', 'on')
  return out.join('&')
}

function formatEdit(edit: Edit): string {
  switch (edit.kind) {
    case 'nudge':
      return `nudge:${edit.amount}`
    case 'zero':
      return 'zero'
    case 'copy':
      return `copy:${edit.from}`
    case 'set':
      return `set:${edit.column}:${edit.value}`
  }
}

/** Read an address; what is unknown, malformed or out of range is left at its start. Never throws. */
export function parse(hash: string, limits: Limits): State {
  const given = new Map<string, string>()
  if (hash.length <= MAX_HASH) {
    for (const pair of hash.replace(/^#/, '').split('&')) {
      const cut = pair.indexOf('=')
      if (cut > 0) given.set(pair.slice(0, cut), pair.slice(cut + 1))
    }
  }
  const choice = <T extends string>(key: string, all: readonly T[], start: T): T => all.find((one) => one === given.get(key)) ?? start
  const index = (text: string | undefined, end: number, start: number): number => {
    const n = text !== undefined && /^\d{1,10}$/.test(text) ? Number(text) : -1
    return n >= 0 && n < end ? n : start
  }
  const between = (key: string, low: number, high: number, start: number): number => {
    const n = decimal(given.get(key))
    return n === undefined ? start : Math.min(high, Math.max(low, n))
  }
  const [swapAt, swapId] = (given.get('swap') ?? '').split(':').map((word) => index(word, MAX_INDEX, OFF))
  const swapped = swapAt !== undefined && swapId !== undefined && swapAt !== OFF && swapId !== OFF
  const [row, column] = (given.get('cell') ?? '').split(',')
  const state: State = {
    step: choice('step', STEPS, START.step),
    head: index(given.get('head'), limits.heads + 1, START.head + 1) - 1,
    both: given.get('heads') === 'both',
    part: choice('part', PARTS, START.part),
    row: index(row, limits.positions, START.row),
    column: index(column, limits.dim, START.column),
    mask: choice('mask', ['causal', 'none'] as const, START.mask),
    digits: given.get('digits') === '9' ? 9 : given.get('digits') === '2' ? 2 : START.digits,
    colours: choice('colour', ['fixed', 'row'] as const, START.colours),
    p: index(given.get('p'), limits.positions, START.p),
    edit: parseEdit(given.get('edit') ?? '', limits, index),
    text: plain(given.get('text')) ?? START.text,
    layer: Math.max(0, index(given.get('layer'), MAX_INDEX, START.layer + 1) - 1),
    modelHead: Math.max(0, index(given.get('mhead'), MAX_INDEX, START.modelHead + 1) - 1),
    query: index(given.get('token'), MAX_INDEX, START.query),
    swapAt: swapped ? swapAt : OFF,
    swapId: swapped ? swapId : START.swapId,
    temperature: between('temp', 0, 2, START.temperature),
    topK: index(given.get('k'), MAX_INDEX, START.topK),
    topP: between('topp', 0, 1, START.topP) || START.topP,
    seed: index(given.get('seed'), MAX_SEED + 1, START.seed),
    cache: given.get('cache') !== 'off',
  }
  return settle(state.head < 0 ? { ...state, head: START.head } : state, limits)
}

/** The text of a percent-encoded word; undefined where it is none, or too long. */
function plain(word: string | undefined): string | undefined {
  try {
    const text = word === undefined ? undefined : decodeURIComponent(word.replaceAll('+', ' '))
    return text !== undefined && text.length <= MAX_TEXT ? text : undefined
  } catch {
    return undefined // half an escape
  }
}

type Index = (text: string | undefined, end: number, start: number) => number

function parseEdit(text: string, limits: Limits, index: Index): Edit {
  const [kind, one, two] = text.split(':')
  switch (kind) {
    case 'nudge': {
      const amount = decimal(one)
      return amount === undefined ? START.edit : { kind, amount }
    }
    case 'zero':
      return { kind }
    case 'copy': {
      const from = index(one, limits.positions, -1)
      return from < 0 ? START.edit : { kind, from }
    }
    case 'set': {
      const [column, value] = [index(one, limits.dim, -1), decimal(two)]
      return column < 0 || value === undefined ? START.edit : { kind, column, value }
    }
    default:
      return START.edit
  }
}

/** A decimal number, held within +-LIMIT; undefined for anything else. */
export function decimal(text: string | undefined): number | undefined {
  if (text === undefined || !/^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d{1,3})?$/i.test(text)) return undefined
  const value = Number(text)
  return Number.isFinite(value) ? Math.min(LIMIT, Math.max(-LIMIT, value)) + 0 : undefined
}

/** The page's state and its spelling in the address: `#step=softmax&head=2&cell=5,2&p=5&edit=nudge:1.5`. */
import type { Mask } from '../math/attention'
import { type Edit, LIMIT } from '../math/change'

export const STEPS = ['input', 'qkv', 'scores', 'scale', 'mask', 'softmax', 'values', 'concat', 'output'] as const
export type StepId = (typeof STEPS)[number]
export const PARTS = ['q', 'k', 'v'] as const
export type Part = (typeof PARTS)[number]

export interface State {
  readonly step: StepId
  readonly head: number // 0, 1, ...; the address and the page count from 1
  readonly part: Part // which of the three tables of the step qkv
  readonly row: number
  readonly column: number
  readonly mask: Mask
  readonly digits: 6 | 9
  readonly p: number // the position that is edited
  readonly edit: Edit
}

export interface Limits {
  readonly heads: number
  readonly positions: number
  readonly dim: number
}

export const START: State = {
  step: 'input', head: 0, part: 'q', row: 5, column: 2, mask: 'causal', digits: 6, p: 5, edit: { kind: 'nudge', amount: 1.5 },
}

const MAX_HASH = 2000 // characters; nothing that the page writes is longer

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
  const put = (key: string, value: string, start: string): void => {
    if (value !== start) out.push(`${key}=${value}`)
  }
  put('step', state.step, START.step)
  put('head', String(state.head + 1), String(START.head + 1))
  put('part', state.part, START.part)
  put('cell', `${state.row},${state.column}`, `${START.row},${START.column}`)
  put('mask', state.mask, START.mask)
  put('digits', String(state.digits), String(START.digits))
  put('p', String(state.p), String(START.p))
  put('edit', formatEdit(state.edit), formatEdit(START.edit))
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
    const n = text !== undefined && /^\d{1,4}$/.test(text) ? Number(text) : -1
    return n >= 0 && n < end ? n : start
  }
  const [row, column] = (given.get('cell') ?? '').split(',')
  const state: State = {
    step: choice('step', STEPS, START.step),
    head: index(given.get('head'), limits.heads + 1, START.head + 1) - 1,
    part: choice('part', PARTS, START.part),
    row: index(row, limits.positions, START.row),
    column: index(column, limits.dim, START.column),
    mask: choice('mask', ['causal', 'none'] as const, START.mask),
    digits: given.get('digits') === '9' ? 9 : 6,
    p: index(given.get('p'), limits.positions, START.p),
    edit: parseEdit(given.get('edit') ?? '', limits, index),
  }
  return settle(state.head < 0 ? { ...state, head: START.head } : state, limits)
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

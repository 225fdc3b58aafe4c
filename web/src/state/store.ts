/** The one place where the page's state changes. */
import type { State } from './url'

export interface Store {
  readonly get: () => State
  readonly set: (patch: Partial<State>) => void
  readonly onChange: (listener: (state: State, before: State) => void) => void
}

/** `settle` brings a patched state into its limits; listeners hear of real changes only. */
export function createStore(start: State, settle: (state: State) => State): Store {
  let state = start
  const listeners: ((state: State, before: State) => void)[] = []
  return {
    get: () => state,
    set(patch) {
      const before = state
      const next = settle({ ...state, ...patch })
      if ((Object.keys(next) as (keyof State)[]).every((key) => Object.is(next[key], before[key]))) return
      state = next
      for (const listener of listeners) listener(state, before)
    },
    onChange: (listener) => void listeners.push(listener),
  }
}

/** A matrix as a real table: read-only, or a grid with one tab stop whose cells are reached with the arrow keys. */
import { inCell } from './format'
import { type Ramp, gradient, paint } from './colour'
import { h, scrollBox, setText } from './dom'

export interface GridOptions {
  readonly caption: string
  readonly note?: string // beside the caption: the shape
  readonly rows: readonly string[]
  readonly columns: readonly string[]
  readonly ramp: Ramp
  readonly actions?: GridActions // none: read-only
}

export interface GridActions {
  readonly onFocus: (row: number, column: number) => void
  readonly onHover: (cell: readonly [number, number] | null) => void
  readonly onPin: (row: number, column: number) => void
  readonly onUnpin: () => void
  readonly onKey: (key: string) => boolean // true: taken
}

export interface Content {
  readonly value: (row: number, column: number) => number
  readonly limit: number | ((row: number) => number) // one for the table, or one for each row
  readonly hidden?: (row: number, column: number) => string | undefined // why a cell is masked
}

/** The bar of colours between its two end values. */
export function legend(ramp: Ramp, low: Node | string, high: Node | string): HTMLElement {
  return h('div', { class: 'legend' }, low, h('span', { class: 'bar', style: `--light:${gradient(ramp, 'light')};--dark:${gradient(ramp, 'dark')}` }), high)
}

export class Grid {
  readonly element: HTMLElement
  private readonly cells: HTMLTableCellElement[][]
  private readonly captionText = h('span')
  private readonly ends = [h('span'), h('span')] as const
  private active: readonly [number, number] = [0, 0]

  constructor(private readonly options: GridOptions) {
    const { rows, columns, actions, ramp, note } = options
    this.cells = rows.map(() => columns.map(() => h('td', actions ? { role: 'gridcell', tabindex: -1 } : {})))
    setText(this.captionText, options.caption)
    const table = h('table', actions ? { class: 'matrix', role: 'grid' } : { class: 'matrix' },
      h('caption', {}, this.captionText, note === undefined ? null : h('span', { class: 'shape' }, ` ${note}`)),
      h('thead', {}, h('tr', {}, h('td', { class: 'corner' }), ...columns.map((name) => h('th', { scope: 'col' }, name)))),
      h('tbody', {}, ...rows.map((name, i) => h('tr', {}, h('th', { scope: 'row' }, name), ...this.cells[i]!))))
    this.element = h('div', { class: actions ? 'grid' : 'grid source' }, scrollBox(options.caption, table), legend(ramp, ...this.ends))
    if (actions) this.listen(table, actions)
  }

  private listen(table: HTMLTableElement, actions: GridActions): void {
    const place = (event: Event): readonly [number, number] | null => {
      const cell = (event.target as Element).closest<HTMLTableCellElement>('td[role=gridcell]')
      if (!cell) return null
      return [(cell.parentElement as HTMLTableRowElement).sectionRowIndex, cell.cellIndex - 1]
    }
    table.addEventListener('pointerover', (event) => {
      if (event.pointerType === 'mouse') actions.onHover(place(event))
    })
    table.addEventListener('pointerleave', () => actions.onHover(null))
    table.addEventListener('focusin', (event) => {
      const at = place(event)
      if (at) {
        this.rove(...at)
        actions.onFocus(...at)
      }
    })
    table.addEventListener('click', (event) => {
      const at = place(event)
      if (at) actions.onPin(...at)
    })
    table.addEventListener('keydown', (event) => {
      if (event.altKey || event.metaKey) return
      const last = [this.options.rows.length - 1, this.options.columns.length - 1] as const
      const [i, j] = this.active
      const goTo = (row: number, column: number): void => {
        this.focus(Math.min(last[0], Math.max(0, row)), Math.min(last[1], Math.max(0, column)))
      }
      const keys: Record<string, () => void> = {
        ArrowUp: () => goTo(i - 1, j), ArrowDown: () => goTo(i + 1, j), ArrowLeft: () => goTo(i, j - 1), ArrowRight: () => goTo(i, j + 1),
        Home: () => (event.ctrlKey ? goTo(0, 0) : goTo(i, 0)),
        End: () => (event.ctrlKey ? goTo(...last) : goTo(i, last[1])),
        Enter: () => actions.onPin(i, j), ' ': () => actions.onPin(i, j), Escape: () => actions.onUnpin(),
      }
      const act = keys[event.key]
      if (act) act()
      else if (!actions.onKey(event.key)) return
      event.preventDefault()
    })
  }

  /** Write the numbers; the cells stay the same elements, so focus survives. */
  update(caption: string, { value, limit, hidden }: Content): void {
    setText(this.captionText, caption)
    const { ramp } = this.options
    const whole = typeof limit === 'number'
    setText(this.ends[0], ramp === 'diverging' && whole ? inCell(-limit) : '0')
    setText(this.ends[1], !whole ? 'the row’s largest' : ramp === 'diverging' ? `+${inCell(limit)}` : inCell(limit))
    for (const [i, row] of this.cells.entries()) {
      const most = whole ? limit : limit(i)
      for (const [j, cell] of row.entries()) {
        const number = value(i, j)
        const why = hidden?.(i, j)
        cell.classList.toggle('masked', why !== undefined)
        cell.replaceChildren(inCell(number), ...(why === undefined ? [] : [h('span', { class: 'unseen' }, ` ${why}`)]))
        paint(cell, Number.isFinite(number) ? number : 0, most, ramp)
      }
    }
  }

  /** Mark the chosen cell, and make it the tab stop. */
  select(cell: readonly [number, number] | null, pinned: boolean, rove: boolean): void {
    for (const [i, row] of this.cells.entries()) {
      for (const [j, element] of row.entries()) {
        const chosen = cell?.[0] === i && cell[1] === j
        element.classList.toggle('chosen', chosen)
        element.classList.toggle('pinned', chosen && pinned)
        if (this.options.actions) element.setAttribute('aria-selected', String(chosen && pinned))
      }
    }
    if (rove && cell) this.rove(...cell)
  }

  /** Mark the cells that the chosen one was computed from. */
  light(lit: (row: number, column: number) => boolean): void {
    for (const [i, row] of this.cells.entries()) {
      for (const [j, element] of row.entries()) element.classList.toggle('lit', lit(i, j))
    }
  }

  focus(row: number, column: number): void {
    this.rove(row, column)
    this.cells[row]?.[column]?.focus()
  }

  private rove(row: number, column: number): void {
    if (!this.options.actions) return
    this.cells[this.active[0]]?.[this.active[1]]?.setAttribute('tabindex', '-1')
    this.active = [Math.min(row, this.cells.length - 1), Math.min(column, this.options.columns.length - 1)]
    this.cells[this.active[0]]?.[this.active[1]]?.setAttribute('tabindex', '0')
  }
}

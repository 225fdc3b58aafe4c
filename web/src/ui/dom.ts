type Child = Node | string | null | undefined
type Attributes = Readonly<Record<string, string | number | boolean | ((event: never) => void)>>

/** Make an element: attributes by name, listeners as `onclick`, true = present, false = left out. */
export function h<K extends keyof HTMLElementTagNameMap>(tag: K, attributes: Attributes = {}, ...children: Child[]): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag)
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === 'function') element.addEventListener(name.slice(2), value as EventListener)
    else if (value === true) element.setAttribute(name, '')
    else if (value !== false) element.setAttribute(name, String(value))
  }
  element.append(...children.filter((child): child is Node | string => child !== null && child !== undefined))
  return element
}

let space: string | null = null // of SVG; asked of the parser, for our sources hold no address

/** The same for a part of a drawing. */
export function scalable<K extends keyof SVGElementTagNameMap>(tag: K, attributes: Attributes = {}, ...children: Child[]): SVGElementTagNameMap[K] {
  space ??= (markup('<svg/>').firstChild as Element).namespaceURI
  const element = document.createElementNS(space, tag) as SVGElementTagNameMap[K]
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value))
  element.append(...children.filter((child): child is Node | string => child !== null && child !== undefined))
  return element
}

/** Write text only where it changed, so that a live region stays silent otherwise. */
export function setText(element: Element, text: string): void {
  if (element.textContent !== text) element.textContent = text
}

/** The element of index.html with this id. */
export function byId(id: string): HTMLElement {
  const element = document.getElementById(id)
  if (!element) throw new Error(`index.html has no #${id}`)
  return element
}

/** A markup string of ours (MathML) as a node. */
export function markup(source: string): Node {
  const template = document.createElement('template')
  template.innerHTML = source
  return template.content
}

/** A box that scrolls; it takes the keyboard's focus only while there is something to scroll. */
export function scrollBox(label: string, ...children: Child[]): HTMLElement {
  const box = h('div', { class: 'scroll' }, ...children)
  const watch = new ResizeObserver(() => {
    const overflows = box.scrollWidth > box.clientWidth + 1 || box.scrollHeight > box.clientHeight + 1
    box.toggleAttribute('data-overflows', overflows)
    if (overflows && !box.querySelector('[tabindex="0"]')) {
      box.tabIndex = 0
      box.setAttribute('role', 'group')
      box.setAttribute('aria-label', label)
    } else box.removeAttribute('tabindex')
  })
  watch.observe(box)
  for (const child of box.children) watch.observe(child)
  return box
}

interface Option<T extends string> {
  readonly value: T
  readonly label: string
}

/** A row of native radio buttons that looks like one control. */
export function choice<T extends string>(
  legend: string, name: string, options: readonly Option<T>[], onPick: (value: T) => void,
): { element: HTMLElement; show: (value: T) => void } {
  const inputs = options.map(({ value }) =>
    h('input', { type: 'radio', name, value, id: `${name}-${value}`, onchange: () => onPick(value) }))
  const element = h('fieldset', { class: 'choice' }, h('legend', {}, legend),
    h('div', { class: 'segments' }, ...options.flatMap(({ value, label }, i) => [
      inputs[i], h('label', { for: `${name}-${value}` }, label),
    ])))
  return {
    element,
    show(value) {
      for (const input of inputs) input.checked = input.value === value
    },
  }
}

/** Pictures of many numbers: a canvas with one pixel a number, which the style sheet enlarges without smoothing. */
import { type Ramp, type Theme, background } from './colour'

/** Colour every number; undefined leaves the pixel clear, so that the hatch behind it shows. */
export function draw(canvas: HTMLCanvasElement, rows: number, columns: number, value: (row: number, column: number) => number | undefined, limit: number, ramp: Ramp = 'sequential'): void {
  const theme: Theme = document.documentElement.dataset.theme === 'dark' ? 'dark' : 'light'
  canvas.width = columns
  canvas.height = rows
  const context = canvas.getContext('2d')
  if (!context || rows === 0 || columns === 0) return
  const image = context.createImageData(columns, rows)
  for (let i = 0; i < rows; i++) {
    for (let j = 0; j < columns; j++) {
      const number = value(i, j)
      if (number === undefined) continue
      const rgb = parseInt(background(number, limit, ramp, theme).slice(1), 16)
      image.data.set([rgb >> 16, (rgb >> 8) & 255, rgb & 255, 255], 4 * (i * columns + j))
    }
  }
  context.putImageData(image, 0, 0)
}

/** Call again whenever the theme changes: pixels do not follow the style sheet. */
export function onTheme(redraw: () => void): void {
  new MutationObserver(redraw).observe(document.documentElement, { attributeFilter: ['data-theme'] })
}

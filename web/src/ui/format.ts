/** How numbers look: short in a cell, long in the panel, with a real minus sign. */
const MINUS = '\u2212'
const minus = (text: string): string => text.replaceAll('-', MINUS)

/** Two decimals; an exact zero is `0`, a number that would round to it `~0`. */
export function inCell(value: number): string {
  if (value === 0) return '0'
  if (value === -Infinity) return `${MINUS}\u221e`
  if (!Number.isFinite(value)) return String(value)
  if (Math.abs(value) < 0.005) return '~0'
  return minus(value.toFixed(Math.abs(value) >= 9.995 ? 1 : 2))
}

/** 2 or 6 significant digits, or the 9 that carry a float32 whole. */
export function long(value: number, digits: 2 | 6 | 9): string {
  if (value === 0) return '0'
  if (value === -Infinity) return `${MINUS}\u221e`
  return minus(Number.isFinite(value) ? value.toPrecision(digits) : String(value))
}

/** A difference: `0 (exact)` only when it is. */
export function difference(value: number): string {
  return value === 0 ? '0 (exact)' : short(value)
}

/** One digit after the point and the power of ten. */
export function short(value: number): string {
  return value === 0 ? '0' : minus(value.toExponential(1).replace('e+0', ''))
}

export function count(n: number): string {
  return n.toLocaleString('en')
}

export const position = (t: number): string => `t${t}`

/** Bytes in units of 1,024, three digits. */
export function bytes(n: number): string {
  const unit = Math.min(4, Math.floor(Math.log2(Math.max(1, n)) / 10))
  const size = n / 1024 ** unit
  return `${size >= 999.5 ? count(Math.round(size)) : String(Number(size.toPrecision(3)))} ${['bytes', 'KiB', 'MiB', 'GiB', 'TiB'][unit]}`
}

/** A share as a percentage with one decimal; `0 %` only when it is nothing at all. */
export function percent(share: number): string {
  return share === 0 ? '0 %' : share < 0.0005 ? '< 0.1 %' : `${(100 * share).toFixed(1)} %`
}

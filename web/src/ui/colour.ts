/** Colours of numbers: blue above zero, orange below, one hue for weights; mixed in OKLab, text black or white. */
type Triple = readonly [number, number, number]

const RAMPS = {
  diverging: {
    light: ['#7f3b08', '#b35806', '#e08214', '#fdb863', '#fee0b6', '#f7f7f7', '#d1e5f0', '#92c5de', '#4393c3', '#2166ac', '#053061'],
    dark: ['#ffd9a0', '#f2a04a', '#b86a1c', '#7a4512', '#46290f', '#1b1d1f', '#15304a', '#1f5480', '#3c84bd', '#7fb8e0', '#cfe6f7'],
  },
  sequential: {
    light: ['#ffffff', '#f2f0f7', '#cbc9e2', '#9e9ac8', '#756bb1', '#54278f'],
    dark: ['#1b1d1f', '#2b2940', '#453f74', '#6a62a8', '#9c96cf', '#d9d6ee'],
  },
} as const
export type Ramp = keyof typeof RAMPS
export type Theme = 'light' | 'dark'

const toLinear = (u: number): number => (u <= 0.04045 ? u / 12.92 : ((u + 0.055) / 1.055) ** 2.4)
const fromLinear = (u: number): number => (u <= 0.0031308 ? 12.92 * u : 1.055 * u ** (1 / 2.4) - 0.055)

function rgb(hex: string): Triple {
  const channel = (i: number): number => toLinear(parseInt(hex.slice(i, i + 2), 16) / 255)
  return [channel(1), channel(3), channel(5)]
}

// Ottosson 2020, "A perceptual color space for image processing"
function toLab([r, g, b]: Triple): Triple {
  const l = Math.cbrt(0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b)
  const m = Math.cbrt(0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b)
  const s = Math.cbrt(0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b)
  return [
    0.2104542553 * l + 0.793617785 * m - 0.0040720468 * s,
    1.9779984951 * l - 2.428592205 * m + 0.4505937099 * s,
    0.0259040371 * l + 0.7827717662 * m - 0.808675766 * s,
  ]
}

function fromLab([L, a, b]: Triple): Triple {
  const l = (L + 0.3963377774 * a + 0.2158037573 * b) ** 3
  const m = (L - 0.1055613458 * a - 0.0638541728 * b) ** 3
  const s = (L - 0.0894841775 * a - 1.291485548 * b) ** 3
  return [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ]
}

function table(stops: readonly string[]): string[] {
  const labs = stops.map((hex) => toLab(rgb(hex)))
  return Array.from({ length: 256 }, (_, i) => {
    const place = (i / 255) * (labs.length - 1)
    const left = Math.min(Math.floor(place), labs.length - 2)
    const mix = (k: 0 | 1 | 2): number => labs[left]![k] + (place - left) * (labs[left + 1]![k] - labs[left]![k])
    const channels = fromLab([mix(0), mix(1), mix(2)]).map((u) => Math.round(255 * Math.min(1, Math.max(0, fromLinear(Math.max(0, u))))))
    return `#${channels.map((c) => c.toString(16).padStart(2, '0')).join('')}`
  })
}

const TABLES = Object.fromEntries((Object.keys(RAMPS) as Ramp[]).map((ramp) =>
  [ramp, { light: table(RAMPS[ramp].light), dark: table(RAMPS[ramp].dark) }])) as Record<Ramp, Record<Theme, string[]>>

/** The colour of a value on [-limit, limit] (diverging) or [0, limit] (sequential). */
export function background(value: number, limit: number, ramp: Ramp, theme: Theme): string {
  const share = limit > 0 ? Math.min(1, Math.max(-1, value / limit)) : 0
  const place = ramp === 'diverging' ? (share + 1) / 2 : Math.max(0, share)
  return TABLES[ramp][theme][Math.round(place * 255)]!
}

/** Black or white, whichever stands out more: at least 4.58 to 1 on any background. */
export function ink(hex: string): '#000000' | '#ffffff' {
  return luminance(hex) > 0.179 ? '#000000' : '#ffffff'
}

export function luminance(hex: string): number {
  const [r, g, b] = rgb(hex)
  return 0.2126 * r + 0.7152 * g + 0.0722 * b
}

/** Give an element both themes' colours; the style sheet picks. */
export function paint(element: HTMLElement, value: number, limit: number, ramp: Ramp): void {
  for (const theme of ['light', 'dark'] as const) {
    const colour = background(value, limit, ramp, theme)
    element.style.setProperty(`--${theme}`, colour)
    element.style.setProperty(`--${theme}-ink`, ink(colour))
  }
}

export function gradient(ramp: Ramp, theme: Theme): string {
  return `linear-gradient(90deg, ${RAMPS[ramp][theme].join(', ')})`
}

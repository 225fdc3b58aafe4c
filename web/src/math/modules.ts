/** The parts of the decoder: norms, activations, rotary positions, and the one matrix product. */
import type { ModelConfig } from './model'
import { type Tensor, size, zeros } from './tensor'

/** As nn.Linear keeps it: a row for each output, so y = x W^T + b. */
export interface Matrix {
  readonly weight: Tensor
  readonly bias?: Tensor
}

export type Norm = (x: Tensor) => Tensor

/** Rows (T, in) times a matrix (out, in): rows (T, out). Four outputs at a time, so that the sums do not wait for one another. */
export function linear(x: Tensor, { weight, bias }: Matrix): Tensor {
  const { rows, columns: width } = size(x)
  const out = weight.shape[0]!
  const result = zeros(rows, out)
  const [from, w] = [x.data, weight.data]
  for (let t = 0; t < rows; t++) {
    const row = t * width
    let o = 0
    for (; o + 3 < out; o += 4) {
      let a = 0
      let b = 0
      let c = 0
      let d = 0
      let place = o * width
      for (let i = row; i < row + width; i++, place++) {
        const value = from[i]!
        a += value * w[place]!
        b += value * w[place + width]!
        c += value * w[place + 2 * width]!
        d += value * w[place + 3 * width]!
      }
      const to = t * out + o
      result.data[to] = a
      result.data[to + 1] = b
      result.data[to + 2] = c
      result.data[to + 3] = d
    }
    for (; o < out; o++) {
      let total = 0
      for (let i = 0; i < width; i++) total += from[row + i]! * w[o * width + i]!
      result.data[t * out + o] = total
    }
  }
  if (bias) for (let i = 0; i < result.data.length; i++) result.data[i]! += bias.data[i % out]!
  return result
}

/** Each row to mean 0 and variance 1 (layernorm), or to a root mean square of 1 (rmsnorm); then gain, and the bias of a layernorm. */
export const NORMS: Readonly<Record<ModelConfig['norm'], (gain: Tensor, bias: Tensor, eps: number) => Norm>> = {
  layernorm: (gain, bias, eps) => byRow((row, out) => {
    const mean = row.reduce((sum, value) => sum + value, 0) / row.length
    const variance = row.reduce((sum, value) => sum + (value - mean) ** 2, 0) / row.length
    const scale = 1 / Math.sqrt(variance + eps)
    for (let c = 0; c < row.length; c++) out[c] = (row[c]! - mean) * scale * gain.data[c]! + bias.data[c]!
  }),
  rmsnorm: (gain, _, eps) => byRow((row, out) => {
    const scale = 1 / Math.sqrt(row.reduce((sum, value) => sum + value * value, 0) / row.length + eps)
    for (let c = 0; c < row.length; c++) out[c] = row[c]! * scale * gain.data[c]!
  }),
}

function byRow(each: (row: Float32Array, out: Float32Array) => void): Norm {
  return (x) => {
    const { rows, columns } = size(x)
    const result = zeros(rows, columns)
    for (let t = 0; t < rows; t++) each(x.data.subarray(t * columns, (t + 1) * columns), result.data.subarray(t * columns, (t + 1) * columns))
    return result
  }
}

export const ACTIVATIONS: Readonly<Record<ModelConfig['mlp'], (x: number) => number>> = {
  gelu: (x) => 0.5 * x * (1 + erf(x / Math.SQRT2)),
  relu2: (x) => Math.max(x, 0) ** 2,
  swiglu: (x) => x / (1 + Math.exp(-x)), // silu, on the gate
}

/** erf(x) = 2 / sqrt(pi) exp(-x^2) sum 2^n x^(2n+1) / (2n+1)!! (Abramowitz, Stegun 1964, 7.1.6): no term cancels another. */
export function erf(x: number): number {
  if (Math.abs(x) > 6) return Math.sign(x) // within 1e-16
  let [term, total] = [x, x]
  for (let n = 1; Math.abs(term) > 1e-17 * Math.abs(total); n++) {
    term *= (2 * x * x) / (2 * n + 1)
    total += term
  }
  return (2 / Math.sqrt(Math.PI)) * Math.exp(-x * x) * total
}

/** Turn rows (T n, D) of queries or keys, n heads a token, by their positions: halves paired, as in Llama. */
export function rotation(config: ModelConfig): (x: Tensor, past: number, n: number) => Tensor {
  if (config.positions !== 'rope') return (x) => x
  const { head_dim: D, rope_theta: theta, rope_scale: scale } = config
  const half = D / 2
  // rounded where PyTorch rounds: its angles are float32
  const frequency = Array.from({ length: half }, (_, i) => Math.fround(theta ** -Math.fround((2 * i) / D)))
  return (x, past, n) => {
    const result = zeros(...x.shape)
    for (let row = 0; row < x.data.length / D; row++) {
      const position = Math.fround((past + Math.floor(row / n)) / scale)
      for (let i = 0; i < half; i++) {
        const angle = Math.fround(position * frequency[i]!)
        const [cos, sin] = [Math.fround(Math.cos(angle)), Math.fround(Math.sin(angle))]
        const [a, b] = [x.data[row * D + i]!, x.data[row * D + half + i]!]
        result.data[row * D + i] = a * cos - b * sin
        result.data[row * D + half + i] = b * cos + a * sin
      }
    }
    return result
  }
}

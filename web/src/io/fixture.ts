/** The layer that PyTorch built: its weights, its input, and every tensor that the page is held to. */
import { type Mask, TENSORS, type TensorName, type Trace, type Weights } from '../math/attention'
import { sha256 } from '../math/sha256'
import { type Tensor, largestDifference } from '../math/tensor'
import { readSafetensors } from './safetensors'

export interface Manifest {
  readonly schema: string
  readonly seed: number
  readonly torch: string
  readonly n_heads: number
  readonly head_dim: number
  readonly context_length: number
  readonly edited_position: number
  readonly edited_amount: number
  readonly sha256: string
  readonly bytes: number
}

export interface Fixture {
  readonly manifest: Manifest
  readonly x: Tensor
  readonly weights: Weights
  readonly direction: Tensor
  readonly reference: Readonly<Record<Mask, Readonly<Record<TensorName, Tensor>>>>
  readonly editedOutput: Readonly<Record<Mask, Tensor>>
}

/** Raises Error for another schema, a changed byte or a missing tensor. */
export function readFixture(bytes: Uint8Array, listing: unknown): Fixture {
  const manifest = listing as Manifest
  if (manifest.schema !== 'octlm-web/1') throw new Error(`schema ${manifest.schema}: this page reads octlm-web/1`)
  const sum = sha256(bytes)
  if (sum !== manifest.sha256) throw new Error(`sha256 ${sum.slice(0, 12)}…, not ${manifest.sha256.slice(0, 12)}…: the data was changed`)
  const { tensors } = readSafetensors(bytes)
  const get = (name: string): Tensor => {
    const tensor = tensors.get(name)
    if (!tensor) throw new Error(`the data has no tensor ${name}`)
    return tensor
  }
  const reference = (mask: Mask): Record<TensorName, Tensor> =>
    Object.fromEntries(TENSORS.map((name) => [name, get(name === 'x' ? 'x' : `${mask}.${name}`)])) as Record<TensorName, Tensor>
  return {
    manifest,
    x: get('x'),
    weights: {
      q: get('q_proj.weight'), k: get('k_proj.weight'), v: get('v_proj.weight'), o: get('o_proj.weight'),
    },
    direction: get('edited.direction'),
    reference: { causal: reference('causal'), none: reference('none') },
    editedOutput: { causal: get('edited.causal.output'), none: get('edited.none.output') },
  }
}

export function bytesOf(base64: string): Uint8Array {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0))
}

export interface Parity {
  readonly rows: readonly { readonly name: TensorName; readonly count: number; readonly worst: number }[]
  readonly worst: number
  readonly count: number
}

/** Hold every tensor of a trace to PyTorch's; the input is given and not counted. */
export function parity(trace: Trace, reference: Readonly<Record<TensorName, Tensor>>): Parity {
  const rows = TENSORS.filter((name) => name !== 'x').map((name) => ({
    name, count: trace[name].data.length, worst: largestDifference(trace[name], reference[name]),
  }))
  return {
    rows,
    worst: rows.reduce((worst, row) => Math.max(worst, row.worst), 0),
    count: rows.reduce((count, row) => count + row.count, 0),
  }
}

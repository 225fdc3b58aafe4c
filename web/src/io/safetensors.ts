/** Read a safetensors file: 8 bytes of header length, a JSON header, then the tensors. Refuses what is not whole. */
import type { Tensor } from '../math/tensor'

const MAX_HEADER = 1 << 20 // bytes

export interface Contents {
  readonly tensors: ReadonlyMap<string, Tensor>
  readonly metadata: ReadonlyMap<string, string>
}

/** Raises Error that says what is wrong with the file. */
export function readSafetensors(bytes: Uint8Array): Contents {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)
  if (bytes.length < 8) throw new Error('safetensors: the file ends before its header')
  const length = Number(view.getBigUint64(0, true))
  if (length > MAX_HEADER) throw new Error(`safetensors: a header of ${length} bytes is not one`)
  if (8 + length > bytes.length) throw new Error('safetensors: the file ends within its header')
  const header = parseHeader(new TextDecoder().decode(bytes.subarray(8, 8 + length)))
  const start = 8 + length

  const tensors = new Map<string, Tensor>()
  const metadata = new Map<string, string>()
  for (const [name, entry] of Object.entries(header)) {
    if (!isRecord(entry)) throw new Error(`safetensors: ${name} is not described by an object`)
    if (name === '__metadata__') {
      for (const [key, value] of Object.entries(entry)) metadata.set(key, String(value))
      continue
    }
    const { dtype, shape, data_offsets: offsets } = entry
    if (dtype !== 'F32') throw new Error(`safetensors: ${name} is ${String(dtype)}; this reader takes F32 only`)
    if (!isCounts(shape)) throw new Error(`safetensors: ${name} has no shape`)
    if (!isCounts(offsets) || offsets.length !== 2) throw new Error(`safetensors: ${name} has no data_offsets`)
    const [from, to] = offsets as [number, number]
    const count = shape.reduce((product, size) => product * size, 1)
    if (to - from !== 4 * count) throw new Error(`safetensors: ${name} has ${to - from} bytes, not 4 x ${count}`)
    if (start + to > bytes.length) throw new Error(`safetensors: the file ends within ${name}`)
    const data = new Float32Array(count)
    for (let i = 0; i < count; i++) data[i] = view.getFloat32(start + from + 4 * i, true)
    tensors.set(name, { shape, data })
  }
  return { tensors, metadata }
}

function parseHeader(text: string): Record<string, unknown> {
  let header: unknown
  try {
    header = JSON.parse(text)
  } catch {
    throw new Error('safetensors: the header is not JSON')
  }
  if (!isRecord(header)) throw new Error('safetensors: the header is not an object')
  return header
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

function isCounts(value: unknown): value is number[] {
  return Array.isArray(value) && value.every((n) => Number.isSafeInteger(n) && n >= 0)
}

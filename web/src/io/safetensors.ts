/** Read a safetensors file: 8 bytes of header length, a JSON header, then the tensors. Refuses what is not whole. */
import type { Tensor } from '../math/tensor'

const MAX_HEADER = 1 << 20 // bytes

export interface Contents {
  readonly tensors: ReadonlyMap<string, Tensor>
  readonly metadata: ReadonlyMap<string, string>
}

/** What a file may hold; all become float32, which keeps F16 whole, and I32 up to 2^24. */
const DTYPES: Readonly<Record<string, { readonly bytes: number; readonly read: (view: DataView, place: number) => number }>> = {
  F32: { bytes: 4, read: (view, place) => view.getFloat32(place, true) },
  F16: { bytes: 2, read: (view, place) => half(view.getUint16(place, true)) },
  I32: { bytes: 4, read: (view, place) => view.getInt32(place, true) },
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
    const type = typeof dtype === 'string' && Object.hasOwn(DTYPES, dtype) ? DTYPES[dtype] : undefined
    if (!type) throw new Error(`safetensors: ${name} is ${String(dtype)}; this reader takes ${Object.keys(DTYPES).join(', ')}`)
    if (!isCounts(shape)) throw new Error(`safetensors: ${name} has no shape`)
    if (!isCounts(offsets) || offsets.length !== 2) throw new Error(`safetensors: ${name} has no data_offsets`)
    const [from, to] = offsets as [number, number]
    const count = shape.reduce((product, size) => product * size, 1)
    if (to - from !== type.bytes * count) throw new Error(`safetensors: ${name} has ${to - from} bytes, not ${type.bytes} x ${count}`)
    if (start + to > bytes.length) throw new Error(`safetensors: the file ends within ${name}`)
    const data = new Float32Array(count)
    for (let i = 0; i < count; i++) data[i] = type.read(view, start + from + type.bytes * i)
    tensors.set(name, { shape, data })
  }
  return { tensors, metadata }
}

/** A float16 (IEEE 754-2008) from its bits: sign, 5 bits of exponent, 10 of fraction. */
function half(bits: number): number {
  const [exponent, fraction] = [(bits >> 10) & 31, bits & 1023]
  const size = exponent === 31 ? (fraction ? NaN : Infinity)
    : exponent === 0 ? fraction * 2 ** -24 // subnormal
      : (1 + fraction / 1024) * 2 ** (exponent - 15)
  return bits & 0x8000 ? -size : size
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

export function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

function isCounts(value: unknown): value is number[] {
  return Array.isArray(value) && value.every((n) => Number.isSafeInteger(n) && n >= 0)
}

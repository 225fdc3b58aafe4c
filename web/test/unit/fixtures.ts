/** What `python scripts/export.py model` and `fixtures` wrote for the tests, computed by PyTorch. */
import { readFileSync } from 'node:fs'
import { isRecord, readSafetensors } from '../../src/io/safetensors'
import type { Tensor } from '../../src/math/tensor'

export const file = (name: string): Uint8Array => new Uint8Array(readFileSync(new URL(`../../${name}`, import.meta.url)))
export const text = (name: string): string => new TextDecoder().decode(file(name))

export interface Data {
  readonly get: (name: string) => Tensor
  readonly ids: (name: string) => number[]
  readonly names: readonly string[]
  readonly about: Record<string, unknown>
}

export function read(name: string): Data {
  const { tensors, metadata } = readSafetensors(file(name))
  const about: unknown = JSON.parse(metadata.get('octlm') ?? 'null')
  if (!isRecord(about)) throw new Error(`${name} has no metadata`)
  const get = (key: string): Tensor => {
    const tensor = tensors.get(key)
    if (!tensor) throw new Error(`${name} has no ${key}`)
    return tensor
  }
  return { get, ids: (key) => [...get(key).data], names: [...tensors.keys()], about }
}

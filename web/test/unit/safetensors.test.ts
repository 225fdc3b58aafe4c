import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { readSafetensors } from '../../src/io/safetensors'
import { bytes, layer } from './layer'

function file(header: unknown, body = new Uint8Array(0), length?: number): Uint8Array {
  const text = new TextEncoder().encode(typeof header === 'string' ? header : JSON.stringify(header))
  const out = new Uint8Array(8 + text.length + body.length)
  new DataView(out.buffer).setBigUint64(0, BigInt(length ?? text.length), true)
  out.set(text, 8)
  out.set(body, 8 + text.length)
  return out
}
const one = (entry: object): Uint8Array => file({ a: { dtype: 'F32', shape: [2], data_offsets: [0, 8], ...entry } }, new Uint8Array(8))

describe('safetensors', () => {
  it('reads tensors, infinities and metadata, from any alignment', () => {
    const shifted = new Uint8Array(bytes.length + 3)
    shifted.set(bytes, 3)
    const { tensors, metadata } = readSafetensors(shifted.subarray(3))
    expect(tensors.size).toBe(31)
    expect(tensors.get('causal.masked')?.data[1]).toBe(-Infinity)
    expect(JSON.parse(metadata.get('octlm') ?? '')).toMatchObject({ seed: 0, torch: layer.manifest.torch })
    expect([...(readSafetensors(one({})).tensors.get('a')?.data ?? [])]).toEqual([0, 0])
  })

  it.each([
    [new Uint8Array(3), 'before its header'],
    [file({}, undefined, 2 ** 30), 'is not one'],
    [file({}, undefined, 500), 'within its header'],
    [file('{"a": '), 'not JSON'],
    [file('[1]'), 'not an object'],
    [file({ a: 3 }), 'not described'],
    [one({ dtype: 'BF16' }), 'BF16'],
    [one({ shape: [-2] }), 'no shape'],
    [one({ shape: 'x' }), 'no shape'],
    [one({ data_offsets: [0] }), 'no data_offsets'],
    [one({ data_offsets: [0, 4] }), 'not 4 x 2'],
    [one({ data_offsets: [4, 12] }), 'ends within a'],
  ])('refuses what is not whole (%#)', (bad, message) => {
    expect(() => readSafetensors(bad)).toThrow(message)
  })

  it('reads nothing from any beginning of the file', () => {
    fc.assert(
      fc.property(fc.nat(bytes.length - 1), (end) => {
        expect(() => readSafetensors(bytes.subarray(0, end))).toThrow('safetensors')
      }),
      { seed: 5, numRuns: 200 },
    )
  })
})

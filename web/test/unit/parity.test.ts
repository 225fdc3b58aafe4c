import { describe, expect, it } from 'vitest'
import { parity, readFixture } from '../../src/io/fixture'
import { TENSORS, attention } from '../../src/math/attention'
import { edited } from '../../src/math/change'
import { sha256 } from '../../src/math/sha256'
import { at, largestDifference } from '../../src/math/tensor'
import { MASKS, bytes, heads, layer, listing } from './layer'
import { MUTANTS } from './mutants'

const TOLERANCE = 1e-6

describe.each(MASKS)('mask %s', (mask) => {
  const trace = attention(layer.x, layer.weights, { heads, mask })

  it.each(TENSORS)('%s is PyTorch’s', (name) => {
    expect(trace[name].shape).toEqual(layer.reference[mask][name].shape)
    expect(largestDifference(trace[name], layer.reference[mask][name])).toBeLessThanOrEqual(TOLERANCE)
  })

  it('holds after an edit', () => {
    const { edited_position: position, edited_amount: amount } = layer.manifest
    const x = edited(layer.x, layer.direction, position, { kind: 'nudge', amount })
    const { output } = attention(x, layer.weights, { heads, mask })
    expect(largestDifference(output, layer.editedOutput[mask])).toBeLessThanOrEqual(TOLERANCE)
  })

  it('counts every number once', () => {
    const found = parity(trace, layer.reference[mask])
    expect(found.count).toBe(3 * 128 + 4 * 128 + 128 + 128 + 128)
    expect(found.worst).toBeGreaterThan(0) // two implementations never agree in every bit: 0 would mean a copy
    expect(found.worst).toBeLessThanOrEqual(TOLERANCE)
  })
})

describe('faults', () => {
  it.each(Object.keys(MUTANTS))('parity finds %s', async (fault) => {
    const mutant = (await import(/* @vite-ignore */ `../../src/math/attention.ts?mutant=${fault}`)) as {
      attention: typeof attention
    }
    const trace = mutant.attention(layer.x, layer.weights, { heads, mask: 'causal' })
    const { output } = layer.reference.causal
    expect(largestDifference(trace.output, output)).toBeGreaterThan(1e-3)
    expect(parity(trace, layer.reference.causal).worst).toBeGreaterThan(1e-3)
  })

  it.each(['q', 'k', 'v', 'o'] as const)('a weight of %s that moves by 0.01 is seen', (which) => {
    const moved = { ...layer.weights[which], data: layer.weights[which].data.slice() }
    moved.data[17]! += 0.01
    const trace = attention(layer.x, { ...layer.weights, [which]: moved }, { heads, mask: 'causal' })
    expect(parity(trace, layer.reference.causal).worst).toBeGreaterThan(1e-5)
  })

  it('any changed byte fails the sha256', () => {
    for (const place of [0, 9, 3000, bytes.length - 1]) {
      const changed = bytes.slice()
      changed[place]! ^= 1
      expect(() => readFixture(changed, listing)).toThrow('sha256')
    }
    expect(() => readFixture(bytes, { ...layer.manifest, schema: 'octlm-web/2' })).toThrow('schema')
  })
})

it('sha256 knows the published vectors', () => {
  const of = (text: string): string => sha256(new TextEncoder().encode(text))
  expect(of('')).toBe('e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855')
  expect(of('abc')).toBe('ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad')
  expect(of('abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq')).toBe(
    '248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1',
  )
})

describe('the shape of the result', () => {
  const trace = attention(layer.x, layer.weights, { heads, mask: 'causal' })

  it('rows sum to 1, nothing is read above the diagonal, t0 reads only itself', () => {
    for (let h = 0; h < heads; h++) {
      let hidden = 0
      for (let i = 0; i < 8; i++) {
        let sum = 0
        for (let j = 0; j < 8; j++) {
          const weight = at(trace.weights, h, i, j)
          sum += weight
          if (j > i) {
            hidden++
            expect(at(trace.masked, h, i, j)).toBe(-Infinity)
            expect(weight).toBe(0)
          } else expect(weight).toBeGreaterThan(0)
        }
        expect(Math.abs(sum - 1)).toBeLessThanOrEqual(1e-6)
      }
      expect(hidden).toBe(28)
      expect(at(trace.weights, h, 0, 0)).toBe(1)
    }
  })

  it('refuses what cannot be', () => {
    const run = (x: typeof layer.x, n: number): unknown => attention(x, layer.weights, { heads: n, mask: 'none' })
    expect(() => run(layer.x, 3)).toThrow('3 heads')
    const broken = { ...layer.x, data: layer.x.data.slice() }
    broken.data[3] = Infinity
    expect(() => run(broken, 2)).toThrow('not finite')
    expect(() => at(trace.q, 0, 8, 0)).toThrow('outside')
    expect(() => largestDifference(trace.q, trace.x)).toThrow('do not match')
  })
})

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { openModel } from '../../src/io/load'
import { createCache } from '../../src/math/kvcache'
import { run } from '../../src/math/model'
import { uniforms } from '../../src/math/rng'
import { type Settings, distribution, draw, ranked } from '../../src/math/sampling'
import { file, read, text } from './fixtures'

interface Case {
  readonly logits: readonly number[]
  readonly temperature: number
  readonly top_k: number
  readonly top_p: number
  readonly probabilities: readonly number[]
  readonly draws: readonly { readonly u: number; readonly id: number }[]
}
const ops = JSON.parse(text('test/fixtures/ops.json')) as {
  sampling: readonly Case[]
  uniforms: readonly { seed: number; row: number; values: readonly number[] }[]
}

describe('as octlm samples', () => {
  it.each(ops.sampling.map((one, i) => [i, one] as const))('case %i', (_, { logits, temperature, top_k: topK, top_p: topP, probabilities, draws }) => {
    const found = distribution(logits, { temperature, topK, topP })
    for (const [id, p] of probabilities.entries()) {
      expect(Math.abs(found.probabilities[id]! - p)).toBeLessThanOrEqual(1e-6)
      if (p > 0) expect(found.fate[id]).toBe('kept')
    }
    for (const { u, id } of draws) expect(draw(found.probabilities, u)).toBe(id)
  })

  it('the numbers of every seed are numpy’s, bit for bit', () => {
    expect(ops.uniforms.length).toBeGreaterThan(5)
    for (const { seed, row, values } of ops.uniforms) {
      const next = uniforms(seed, row)
      expect(values.map(() => next())).toEqual(values)
    }
    for (const seed of [-1, 1.5, NaN]) expect(() => uniforms(seed)).toThrow('seed')
  })

  it.each([0, 1, 2])('prompt %i: the text of a seed is that of generate.py', (n) => {
    const reference = read('test/fixtures/model-reference.safetensors')
    const { model, tokenizer } = openModel(file('public/data/model.safetensors'))
    const settings = reference.about['settings'] as { temperature: number; top_k: number; top_p: number; seed: number }
    const ids = reference.ids(`p${n}.ids`)
    const expected = reference.ids(`p${n}.sampled`)
    const cache = createCache(model.config, ids.length + expected.length)
    const next = uniforms(settings.seed)
    const found: number[] = []
    for (let fed = ids; found.length < expected.length; fed = found.slice(-1)) {
      const row = run(model, fed, cache).logits.data.slice(-model.config.vocab_size)
      const { temperature, top_k: topK, top_p: topP } = settings
      found.push(draw(distribution(row, { temperature, topK, topP }, tokenizer.has).probabilities, next()))
    }
    expect(found).toEqual(expected)
  })
})

describe('for any logits', () => {
  const logits = fc.array(fc.double({ min: -50, max: 50, noNaN: true }), { minLength: 1, maxLength: 40 })
  const settings: fc.Arbitrary<Settings> = fc.record({
    temperature: fc.oneof(fc.constant(0), fc.double({ min: 1e-40, max: 2, noNaN: true })), topK: fc.nat(50),
    topP: fc.double({ min: 1e-6, max: 1, noNaN: true }),
  })

  it('probabilities sum to 1, the likeliest survives, what is cut is 0, and no draw is of it', () => {
    fc.assert(fc.property(logits, settings, fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true }), (values, chosen, u) => {
      const { full, probabilities, fate, entropy } = distribution(values, chosen)
      for (const each of [full, probabilities]) expect(Math.abs(each.reduce((sum, p) => sum + p, 0) - 1)).toBeLessThan(1e-9)
      expect(fate[ranked(values, 1)[0]!]).toBe('kept')
      for (const [id, p] of probabilities.entries()) if (fate[id] !== 'kept') expect(p).toBe(0)
      expect(probabilities[draw(probabilities, u)]).toBeGreaterThan(0)
      expect(entropy).toBeGreaterThanOrEqual(0)
      expect(entropy).toBeLessThanOrEqual(Math.log2(values.length) + 1e-9)
      if (chosen.topK > 0) expect(fate.filter((one) => one === 'kept').length).toBeLessThanOrEqual(chosen.topK)
    }), { seed: 5, numRuns: 500 })
  })

  it('top-p keeps the smallest set that reaches p', () => {
    fc.assert(fc.property(logits, fc.double({ min: 1e-6, max: 0.999, noNaN: true }), (values, topP) => {
      const { full, fate } = distribution(values, { temperature: 1, topK: 0, topP })
      const kept = ranked(values, values.length).filter((id) => fate[id] === 'kept')
      const mass = (ids: readonly number[]): number => ids.reduce((sum, id) => sum + full[id]!, 0)
      expect(mass(kept)).toBeGreaterThanOrEqual(topP - 1e-12)
      expect(mass(kept.slice(0, -1))).toBeLessThan(topP)
    }), { seed: 5, numRuns: 500 })
  })

  it('a number added to all of them changes nothing', () => {
    fc.assert(fc.property(logits, fc.integer({ min: -1000, max: 1000 }), (values, shift) => {
      const plain = { temperature: 0.7, topK: 0, topP: 1 }
      const [a, b] = [distribution(values, plain), distribution(values.map((value) => value + shift), plain)]
      for (const [id, p] of a.probabilities.entries()) expect(Math.abs(p - b.probabilities[id]!)).toBeLessThan(1e-9)
    }), { seed: 5, numRuns: 200 })
  })
})

it('ids without a token are never drawn', () => {
  const { probabilities, full } = distribution([9, 1, 0], { temperature: 1, topK: 0, topP: 1 }, (id) => id > 0)
  expect([probabilities[0], full[0]]).toEqual([0, 0])
})

it('says why nothing can be drawn', () => {
  const plain = { temperature: 1, topK: 0, topP: 1 }
  for (const bad of [[NaN, 1], [Infinity, 1], [-Infinity, -Infinity], []]) expect(() => distribution(bad, plain)).toThrow('not finite')
  expect(() => distribution([1], { ...plain, temperature: NaN })).toThrow('temperature')
  expect(() => distribution([1], { ...plain, temperature: -1 })).toThrow('temperature')
  expect(() => distribution([1], { ...plain, topK: 1.5 })).toThrow('top-k')
  for (const topP of [0, 1.1, NaN]) expect(() => distribution([1], { ...plain, topP })).toThrow('top-p')
  expect(() => draw(new Float64Array(3), 0.5)).toThrow('nothing can be drawn')
})

import fc from 'fast-check'
import { beforeEach, describe, expect, it, vi } from 'vitest'
import { cacheBytes, createCache, truncate } from '../../src/math/kvcache'
import { type Model, type ModelConfig, type Pass, buildModel, forward, run } from '../../src/math/model'
import { erf } from '../../src/math/modules'
import { type Tensor, largestDifference } from '../../src/math/tensor'
import { read, text } from './fixtures'
import { MODEL_MUTANTS, MODULE_MUTANTS } from './mutants'

const LOGITS = 1e-4
const ATTENTION = 1e-5

const variants = read('test/fixtures/variants.safetensors')
const configs = variants.about['variants'] as Readonly<Record<string, ModelConfig>>
const names = Object.keys(configs)
const weightsOf = (name: string): Map<string, Tensor> => {
  const prefix = `${name}.weights.`
  return new Map(variants.names.filter((key) => key.startsWith(prefix)).map((key) => [key.slice(prefix.length), variants.get(key)]))
}
const variant = (name: string): Model => buildModel(configs[name]!, weightsOf(name))

/** The largest |page - PyTorch| of a variant's logits and attention. */
function distance(name: string, build: typeof buildModel, go: typeof run): { logits: number; attention: number } {
  const pass = go(build(configs[name]!, weightsOf(name)), variants.ids(`${name}.ids`))
  return {
    logits: largestDifference(pass.logits, variants.get(`${name}.logits`)),
    attention: Math.max(0, ...pass.attention.map((read, l) => largestDifference(read, variants.get(`${name}.attention.${l}`)))),
  }
}

describe('every variant of the decoder', () => {
  it.each(names)('%s is PyTorch’s', (name) => {
    const { logits, attention } = distance(name, buildModel, run)
    expect(logits).toBeLessThanOrEqual(LOGITS)
    expect(attention).toBeLessThanOrEqual(ATTENTION)
  })

  it('covers every norm, MLP, kind of position, grouped heads, windows, softcap, biases', () => {
    const all = Object.values(configs)
    const has = (is: (config: ModelConfig) => boolean): void => expect(all.some(is)).toBe(true)
    for (const norm of ['layernorm', 'rmsnorm']) has((config) => config.norm === norm)
    for (const mlp of ['gelu', 'swiglu', 'relu2']) has((config) => config.mlp === mlp)
    for (const positions of ['learned', 'sinusoidal', 'rope', 'none']) has((config) => config.positions === positions)
    has((config) => config.n_kv_heads === 1)
    has((config) => config.n_kv_heads > 1 && config.n_kv_heads < config.n_heads)
    has((config) => config.windows.some((window, l) => window > 0 && config.strides[l]! > 0))
    for (const key of ['qk_norm', 'bias', 'logit_softcap'] as const) has((config) => Boolean(config[key]))
    has((config) => config.norm_placement === 'post')
    has((config) => !config.tie_head)
    has((config) => config.n_layers === 0)
  })
})

describe('faults', () => {
  beforeEach(() => vi.resetModules())
  type Code = { buildModel: typeof buildModel; run: typeof run }
  const worst = (code: Code): number => Math.max(...names.map((name) => distance(name, code.buildModel, code.run).logits))

  it.each(Object.keys(MODEL_MUTANTS))('parity finds %s', async (fault) => {
    expect(worst((await import(/* @vite-ignore */ `../../src/math/model.ts?mutant=${fault}`)) as Code)).toBeGreaterThan(1e-3)
  })

  it.each(Object.keys(MODULE_MUTANTS))('parity finds %s', async (fault) => {
    vi.doMock('../../src/math/modules', () => import(/* @vite-ignore */ `../../src/math/modules.ts?mutant=${fault}`))
    expect(worst(await import('../../src/math/model'))).toBeGreaterThan(1e-3)
    vi.doUnmock('../../src/math/modules')
  })
})

describe('the cache', () => {
  const same = (a: Float32Array, b: Float32Array): boolean => a.length === b.length && a.every((value, i) => Object.is(value, b[i]))
  const lastRow = ({ logits: { shape: [rows = 0, width = 0], data } }: Pass): Float32Array => data.slice((rows - 1) * width)

  it.each(names)('%s: token by token, or in parts, is the whole pass to the last bit', (name) => {
    const model = variant(name)
    const ids = variants.ids(`${name}.ids`)
    const whole = run(model, ids)
    const width = model.config.vocab_size
    for (const part of [1, 3, 5]) {
      const cache = createCache(model.config, ids.length)
      for (let t = 0; t < ids.length; t += part) {
        const { logits } = run(model, ids.slice(t, t + part), cache)
        expect(same(logits.data, whole.logits.data.slice(t * width, t * width + logits.data.length))).toBe(true)
      }
      expect(cache.length).toBe(ids.length)
    }
  })

  it('truncated, it goes on as if the rest had never been', () => {
    const model = variant(names[0]!)
    const ids = variants.ids(`${names[0]!}.ids`)
    const cache = createCache(model.config, ids.length)
    run(model, [...ids.slice(0, 5), 1, 2, 3], cache)
    truncate(cache, 5)
    expect(same(lastRow(run(model, ids.slice(5), cache)), lastRow(run(model, ids)))).toBe(true)
    for (const n of [-1, 99, 1.5]) expect(() => truncate(cache, n)).toThrow('truncate')
  })

  it('is unchanged by a pass that is given up', () => {
    const model = variant(names[0]!)
    const cache = createCache(model.config, 8)
    run(model, [1, 2], cache)
    const steps = forward(model, [3], cache)
    steps.next()
    expect(cache.length).toBe(2)
    expect(same(run(model, [4], cache).logits.data, lastRow(run(model, [1, 2, 4])))).toBe(true)
  })

  it('has the bytes that octlm’s has', () => {
    const cases = (JSON.parse(text('test/fixtures/ops.json')) as { kv_bytes: { config: ModelConfig; length: number; bytes: number }[] }).kv_bytes
    expect(cases.length).toBeGreaterThan(2)
    for (const { config, length, bytes } of cases) expect(cacheBytes(config, length)).toBe(bytes)
  })
})

it('what comes later changes no logit before it, not by a bit', () => {
  for (const name of names) {
    const model = variant(name)
    const ids = variants.ids(`${name}.ids`)
    const width = model.config.vocab_size
    const before = run(model, ids).logits.data
    fc.assert(fc.property(fc.nat(ids.length - 1), fc.nat(width - 1), (at, id) => {
      const after = run(model, ids.map((old, i) => (i === at ? id : old))).logits.data
      for (let i = 0; i < at * width; i++) if (!Object.is(before[i], after[i])) throw new Error(`${name}: row ${Math.floor(i / width)} moved`)
    }), { seed: 5, numRuns: 10 })
  }
})

describe('what cannot be is refused', () => {
  const name = names[0]!
  it('tensors that are missing, left over, or of another shape', () => {
    const weights = weightsOf(name)
    const [first] = [...weights.keys()]
    expect(() => buildModel(configs[name]!, new Map([...weights].slice(1)))).toThrow(`no tensor ${first}`)
    expect(() => buildModel(configs[name]!, new Map([...weights, ['more', weights.get(first!)!]]))).toThrow('no place for the tensor more')
    expect(() => buildModel({ ...configs[name]!, vocab_size: 33 }, weights)).toThrow('shape')
  })

  it('ids that the model does not have, no ids, more than the cache or the positions hold', () => {
    const model = variant(name)
    for (const id of [-1, 32, 1.5, NaN]) expect(() => run(model, [id])).toThrow('ids from 0 to 31')
    expect(() => run(model, [])).toThrow('one token')
    expect(() => run(model, [1, 2], createCache(model.config, 1))).toThrow('the cache holds 1')
    const learned = names.find((one) => configs[one]!.positions === 'learned')!
    const many = new Array<number>(configs[learned]!.context_length + 1).fill(1)
    expect(() => run(variant(learned), many)).toThrow('learned positions end')
  })
})

it('erf knows its tables', () => {
  const table = [[0, 0], [0.5, 0.5204998778130465], [1, 0.8427007929497149], [2, 0.9953222650189527], [3.5, 0.9999992569016276], [7, 1]] as const
  for (const [x, value] of table) {
    expect(Math.abs(erf(x) - value)).toBeLessThan(1e-14)
    expect(Math.abs(erf(-x) + value)).toBeLessThan(1e-14)
  }
})

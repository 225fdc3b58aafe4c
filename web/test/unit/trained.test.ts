import { describe, expect, it } from 'vitest'
import { openModel } from '../../src/io/load'
import { createCache } from '../../src/math/kvcache'
import { run } from '../../src/math/model'
import { largestDifference } from '../../src/math/tensor'
import { file, read } from './fixtures'

const LOGITS = 1e-4
const ATTENTION = 1e-5

describe('the trained model', () => {
  const reference = read('test/fixtures/model-reference.safetensors')
  const { model, tokenizer } = openModel(file('public/data/model.safetensors'))
  const width = model.config.vocab_size

  it.each([0, 1, 2])('prompt %i: logits, attention, and 50 tokens as PyTorch’s', (n) => {
    const ids = reference.ids(`p${n}.ids`)
    const pass = run(model, ids)
    const logits = reference.get(`p${n}.logits`) // its last rows
    const shown = { shape: logits.shape, data: pass.logits.data.slice(-logits.data.length) }
    expect(largestDifference(shown, logits)).toBeLessThanOrEqual(LOGITS)
    const attention = reference.get(`p${n}.attention`) // (L, H, T, T)
    const joined = new Float32Array(attention.data.length)
    for (const [l, { data }] of pass.attention.entries()) joined.set(data, l * data.length)
    expect(largestDifference({ shape: attention.shape, data: joined }, attention)).toBeLessThanOrEqual(ATTENTION)

    const cache = createCache(model.config, ids.length + 50)
    const found: number[] = []
    for (let next = ids; found.length < 50; next = found.slice(-1)) {
      const row = run(model, next, cache).logits.data.slice(-width)
      found.push(row.indexOf(row.reduce((most, value) => Math.max(most, value), -Infinity)))
    }
    expect(found.slice(0, reference.ids(`p${n}.greedy`).length)).toEqual(reference.ids(`p${n}.greedy`))
  })

  it('has at most a million parameters, in at most 2.0 MB, and knows its prompts', () => {
    expect(model.parameters).toBeLessThanOrEqual(1_000_000)
    expect(file('public/data/model.safetensors').length).toBeLessThanOrEqual(2_000_000)
    for (const [n, prompt] of (reference.about['prompts'] as string[]).entries()) expect(tokenizer.encode(prompt)).toEqual(reference.ids(`p${n}.ids`))
  })
})

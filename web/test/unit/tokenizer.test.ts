import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { openModel } from '../../src/io/load'
import { buildTokenizer } from '../../src/math/tokenizer'
import { file, text } from './fixtures'

const { tokenizer } = openModel(file('public/data/model.safetensors'))
const cases = (JSON.parse(text('test/fixtures/ops.json')) as { tokenizer: readonly { text: string; ids: readonly number[] }[] }).tokenizer

it('gives the ids that octlm gives, for 150 texts and more', () => {
  expect(cases.length).toBeGreaterThanOrEqual(150)
  for (const { text: words, ids } of cases) expect(tokenizer.encode(words), JSON.stringify(words)).toEqual(ids)
})

describe('for any text', () => {
  const anything = fc.string({ unit: 'binary', maxLength: 60 }).filter((words) => !/\p{Surrogate}/u.test(words))

  it('decode(encode(text)) is the text', () => {
    fc.assert(fc.property(anything, (words) => {
      expect(tokenizer.decode(tokenizer.encode(words))).toBe(words)
    }), { seed: 5, numRuns: 500 })
  })

  it('what a reader sees of a token has no invisible character', () => {
    for (let id = 0; id < tokenizer.size; id++) expect(tokenizer.piece(id), String(id)).toMatch(/^[^\p{White_Space}\p{C}]+$/u)
  })
})

it('shows blanks, line ends, the end of a text, and parts of characters', () => {
  const shown = (words: string): string => tokenizer.encode(words).map(tokenizer.piece).join('')
  expect(shown(' a\n')).toBe('·a⏎')
  expect(shown('\u{1f98a}')).toMatch(/^(⟨[0-9A-F]{2}( [0-9A-F]{2})*⟩)+$/)
  expect(tokenizer.piece(tokenizer.eot)).toBe('⟨end⟩')
  expect(tokenizer.piece(99_999)).toBe('⟨none⟩')
  expect([tokenizer.has(0), tokenizer.has(tokenizer.eot), tokenizer.has(99_999)]).toEqual([true, true, false])
})

it('half a character is refused', () => {
  expect(() => tokenizer.encode('a\ud83e')).toThrow('half a character')
})

it('one id a character', () => {
  const letters = buildTokenizer({ name: 'char', vocab: { a: 0, é: 1, '\u{1f98a}': 2, '<|endoftext|>': 3 } })
  expect(letters.encode('é\u{1f98a}a')).toEqual([1, 2, 0])
  expect(letters.decode([2, 3, 0])).toBe('\u{1f98a}a')
  expect(() => letters.encode('ab')).toThrow('"b" does not occur')
})

it('a vocabulary that is none is refused', () => {
  const end = { '<|endoftext|>': 0 }
  expect(() => buildTokenizer({ name: 'bpe', vocab: {} })).toThrow('has no <|endoftext|>')
  expect(() => buildTokenizer({ name: 'bpe', vocab: end })).toThrow('lacks the byte')
  expect(() => buildTokenizer({ name: 'bpe', vocab: { ...end, '\n': 1 } })).toThrow('spells no bytes')
  expect(() => buildTokenizer({ name: 'cl100k_base', vocab: end })).toThrow('this page has')
})

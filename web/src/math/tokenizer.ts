/**
 * Text to ids and back, as octlm/tokenizer.py has it: a pattern cuts the text into pieces, each piece starts as single
 * bytes, and the adjacent pair whose joint bytes have the lowest id is merged until no pair has one (byte-pair
 * encoding). `char` has one id a character.
 */
export interface Tokenizer {
  readonly size: number
  readonly eot: number // the end of a text; no text spells it
  readonly encode: (text: string) => number[]
  readonly decode: (ids: readonly number[]) => string
  readonly has: (id: number) => boolean
  readonly piece: (id: number) => string // what a reader sees of one token: no invisible character
}

/** What an exported model says of its tokenizer: the vocabulary of tokenizer.json, bytes spelled as GPT-2 spells them. */
export interface Vocabulary {
  readonly name: string
  readonly vocab: Readonly<Record<string, number>>
}

const EOT = '<|endoftext|>'
// GPT-2's pattern; white space by its Unicode property, for \s also takes U+FEFF in JavaScript, and not U+0085
const PIECES = /'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+$|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}/gu

/** Printable Latin-1 stands for itself, other bytes for the characters from U+0100 on. */
const SPELLING: readonly string[] = (() => {
  let others = 0x100
  return Array.from({ length: 256 }, (_, byte) => {
    const printable = (byte >= 0x21 && byte < 0x7f) || (byte >= 0xa1 && byte !== 0xad)
    return String.fromCharCode(printable ? byte : others++)
  })
})()
const BYTE = new Map(SPELLING.map((character, byte) => [character, byte]))

/** Raises Error for a vocabulary that is none of octlm's, or of a tokenizer that this page does not have. */
export function buildTokenizer({ name, vocab }: Vocabulary): Tokenizer {
  const eot = vocab[EOT]
  if (typeof eot !== 'number') throw new Error(`the vocabulary has no ${EOT}`)
  const words = Object.entries(vocab).filter(([, id]) => id !== eot)
  const size = words.reduce((most, [, id]) => Math.max(most, id), eot) + 1
  const character = name === 'char'
  if (!character && !['bpe', 'byte', 'gpt2', 'r50k_base', 'p50k_base'].includes(name)) throw new Error(`tokenizer ${name}: this page has bpe, byte, char and GPT-2’s`)
  const bytes = new Map(words.map(([word, id]) => [id, character ? new TextEncoder().encode(word) : unspell(word)]))
  const decode = (ids: readonly number[]): string =>
    new TextDecoder('utf-8', { ignoreBOM: true }).decode(Uint8Array.from(ids.flatMap((id) => [...(bytes.get(id) ?? [])])))
  return {
    size, eot, decode,
    has: (id) => id === eot || bytes.has(id),
    encode: character ? characters(vocab) : merging(vocab),
    piece: (id) => (id === eot ? '⟨end⟩' : visible(bytes.get(id))),
  }
}

function unspell(word: string): Uint8Array {
  return Uint8Array.from([...word].map((character) => {
    const byte = BYTE.get(character)
    if (byte === undefined) throw new Error(`the vocabulary has ${JSON.stringify(word)}, which spells no bytes`)
    return byte
  }))
}

/** Merge within pieces; the vocabulary is asked in GPT-2's spelling, a character a byte. */
function merging(vocab: Readonly<Record<string, number>>): (text: string) => number[] {
  const id = (word: string): number | undefined => (Object.hasOwn(vocab, word) && word !== EOT ? vocab[word] : undefined)
  const missing = SPELLING.findIndex((word) => id(word) === undefined)
  if (missing >= 0) throw new Error(`the vocabulary lacks the byte ${missing}`)
  return (text) => pieces(text).flatMap((piece) => {
    let parts = [...new TextEncoder().encode(piece)].map((byte) => SPELLING[byte]!)
    if (id(parts.join('')) !== undefined) return [id(parts.join(''))!]
    for (;;) {
      let best = Infinity
      let at = -1
      for (let i = 0; i + 1 < parts.length; i++) {
        const rank = id(parts[i]! + parts[i + 1]!) ?? Infinity
        if (rank < best) [best, at] = [rank, i]
      }
      if (at < 0) return parts.map((part) => id(part)!)
      parts = [...parts.slice(0, at), parts[at]! + parts[at + 1]!, ...parts.slice(at + 2)]
    }
  })
}

function characters(vocab: Readonly<Record<string, number>>): (text: string) => number[] {
  return (text) => [...text].map((character) => {
    const id = Object.hasOwn(vocab, character) && character !== EOT ? vocab[character] : undefined
    if (id === undefined) throw new RangeError(`the character ${JSON.stringify(character)} does not occur in the text that this model was trained on`)
    return id
  })
}

function pieces(text: string): readonly string[] {
  if (/\p{Surrogate}/u.test(text)) throw new RangeError('the text holds half a character (a lone surrogate)')
  return text.match(PIECES) ?? []
}

const SIGNS: Readonly<Record<string, string>> = { ' ': '·', '\n': '⏎', '\r': '␍', '\t': '⇥' }

function visible(bytes: Uint8Array | undefined): string {
  if (!bytes) return '⟨none⟩'
  try {
    return seen(new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes))
  } catch {
    return `⟨${[...bytes].map((byte) => byte.toString(16).toUpperCase().padStart(2, '0')).join(' ')}⟩` // part of a character
  }
}

/** Text without an invisible character. */
export function seen(text: string): string {
  return text.replace(/[\p{White_Space}\p{C}]/gu, (character) =>
    SIGNS[character] ?? `⟨U+${character.codePointAt(0)!.toString(16).toUpperCase().padStart(4, '0')}⟩`)
}

import { afterEach, describe, expect, it, vi } from 'vitest'
import { readExample } from '../../src/io/example'
import { type Listing, loadModel, openModel } from '../../src/io/load'
import { readSafetensors } from '../../src/io/safetensors'
import { file, text } from './fixtures'

const bytes = file('public/data/model.safetensors')
const listing = JSON.parse(text('public/data/model.json')) as Listing
const headerOf = (from: Uint8Array): number => Number(new DataView(from.buffer, from.byteOffset).getBigUint64(0, true))

/** The same file with another JSON header. */
function altered(change: (header: string) => string, from = bytes): Uint8Array {
  const length = headerOf(from)
  const header = new TextEncoder().encode(change(new TextDecoder().decode(from.subarray(8, 8 + length))))
  const out = new Uint8Array(8 + header.length + from.length - 8 - length)
  new DataView(out.buffer).setBigUint64(0, BigInt(header.length), true)
  out.set(header, 8)
  out.set(from.subarray(8 + length), 8 + header.length)
  return out
}

/** A change of what the file says of itself. */
const said = (change: (about: Record<string, Record<string, unknown>>) => unknown): Uint8Array => altered((header) => {
  const parsed = JSON.parse(header) as { __metadata__: { octlm: string } }
  const about = JSON.parse(parsed.__metadata__.octlm) as Record<string, Record<string, unknown>>
  parsed.__metadata__.octlm = JSON.stringify(change(about) ?? about)
  return JSON.stringify(parsed)
})

it('opens what octlm exported, and says what it is', () => {
  const { model, tokenizer, run } = openModel(bytes)
  expect(model.parameters).toBe(listing.parameters)
  expect(tokenizer.size).toBe(model.config.vocab_size)
  expect(run).toEqual(listing.run)
  expect(model.config).toEqual(listing.config)
})

describe('a file that is not a model is refused in words', () => {
  const config = (key: string, value: unknown) => (): Uint8Array => said((about) => { about['config']![key] = value })
  it.each<[string, () => Uint8Array, RegExp]>([
    ['empty', () => new Uint8Array(), /ends before its header/],
    ['cut', () => bytes.slice(0, bytes.length - 1), /ends within/],
    ['cut in the header', () => bytes.slice(0, 100), /within its header/],
    ['a picture', () => Uint8Array.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a, 0, 0]), /is not one/],
    ['another schema', () => said((about) => { (about as Record<string, unknown>)['schema'] = 'octlm-web-model/9' }), /schema octlm-web-model\/9: this page reads/],
    ['no metadata', () => altered((header) => header.replace('"octlm":', '"other":')), /no export of octlm/],
    ['metadata that is no object', () => said(() => [1]), /no export of octlm/],
    ['bfloat16', () => altered((header) => header.replace('"F16"', '"BF16"')), /is BF16; this reader takes F32, F16, I32/],
    ['no tokenizer', () => said((about) => { delete about['tokenizer'] }), /which tokenizer/],
    ['no config', () => said((about) => { delete about['config'] }), /does not describe its model/],
    ['too many layers', config('n_layers', 5), /windows/],
    ['half a layer', config('n_layers', 1.5), /n_layers=1.5/],
    ['endless context', config('context_length', 1e12), /context_length=/],
    ['heads that do not share', config('n_kv_heads', 3), /n_kv_heads=3/],
    ['another MLP', config('mlp', 'moe'), /mlp="moe"/],
    ['an eps that is no number', config('norm_eps', null), /norm_eps=null/],
    ['a larger tokenizer', config('vocab_size', 1000), /shape/],
    ['a tensor too many', config('norm', 'layernorm'), /no tensor/],
  ])('%s', (_, make, message) => {
    expect(() => openModel(make())).toThrow(message)
  })

  it('a weight that is not finite', () => {
    const broken = bytes.slice()
    broken.set([0, 0x7c], broken.length - 2) // infinity in float16
    expect(() => openModel(broken)).toThrow('not finite')
  })
})

describe('fetching', () => {
  afterEach(() => vi.unstubAllGlobals())
  const answer = (body: Uint8Array | null, status = 200): void => {
    vi.stubGlobal('fetch', () => Promise.resolve(new Response(body ? body.slice() : null, { status })))
  }
  const load = (onProgress: (n: number) => void = () => undefined, signal = new AbortController().signal): Promise<unknown> => loadModel('x', listing, onProgress, signal)

  it('tells its progress up to the last byte', async () => {
    answer(bytes)
    const seen: number[] = []
    await load((n) => seen.push(n))
    expect(seen.at(-1)).toBe(bytes.length)
    expect(seen).toEqual([...seen].sort((a, b) => a - b))
  })

  it.each<[string, () => void, RegExp]>([
    ['a missing file', () => answer(null, 404), /answered 404: the file is not there/],
    ['a cut file', () => answer(bytes.slice(0, 1000)), /ended after 1,000 of/],
    ['a longer file', () => answer(Uint8Array.from([...bytes, 0])), /ended after/],
    ['a changed byte', () => answer(bytes.map((byte, i) => (i === bytes.length - 9 ? byte ^ 1 : byte))), /its sha256 is another/],
    ['no connection', () => vi.stubGlobal('fetch', () => Promise.reject(new TypeError('Failed to fetch'))), /connection failed/],
    ['a connection that breaks', () => vi.stubGlobal('fetch', () => Promise.resolve(new Response(new ReadableStream({
      start: (stream) => { stream.enqueue(bytes.slice(0, 500)); setTimeout(() => stream.error(new Error('reset')), 1) },
    })))), /failed after 500 of/],
  ])('%s', async (_, make, message) => {
    make()
    await expect(load()).rejects.toThrow(message)
  })

  it('given up by the reader, it says nothing else', async () => {
    const abort = new AbortController()
    vi.stubGlobal('fetch', () => { abort.abort(); return Promise.reject(abort.signal.reason as Error) })
    await expect(load(undefined, abort.signal)).rejects.toBe(abort.signal.reason)
  })
})

it('float16 is read to the last bit, subnormal and negative, too', () => {
  const header = new TextEncoder().encode(JSON.stringify({ x: { dtype: 'F16', shape: [7], data_offsets: [0, 14] } }))
  const bits = [0x3c00, 0xc000, 0x7bff, 0x0001, 0x03ff, 0x8000, 0x7c00]
  const made = new Uint8Array(8 + header.length + 14)
  const view = new DataView(made.buffer)
  view.setBigUint64(0, BigInt(header.length), true)
  made.set(header, 8)
  for (const [i, half] of bits.entries()) view.setUint16(8 + header.length + 2 * i, half, true)
  expect([...readSafetensors(made).tensors.get('x')!.data]).toEqual([1, -2, 65504, 2 ** -24, 1023 * 2 ** -24, -0, Infinity])
})

it('the example that is on screen first is the model’s', () => {
  const { pieces, attention, next } = readExample(Buffer.from(file('public/data/example.safetensors')).toString('base64'))
  expect(attention).toHaveLength(listing.config.n_layers)
  for (const { shape } of attention) expect(shape).toEqual([listing.config.n_heads, pieces.length, pieces.length])
  expect(next.map(({ probability }) => probability)).toEqual([...next.map(({ probability }) => probability)].sort((a, b) => b - a))
})

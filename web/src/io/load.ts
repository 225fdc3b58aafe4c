/** A model that `python scripts/export.py model RUN` wrote: fetched with its progress, or opened from the reader's disk. */
import { type Model, type ModelConfig, buildModel } from '../math/model'
import { sha256 } from '../math/sha256'
import { type Tokenizer, type Vocabulary, buildTokenizer } from '../math/tokenizer'
import type { Tensor } from '../math/tensor'
import { isRecord, readSafetensors } from './safetensors'

export const SCHEMA = 'octlm-web-model/1'

/** Where a model came from: figures of its training run. */
export interface Run {
  readonly name: string
  readonly step: number
  readonly data: string
  readonly torch: string
  readonly val_loss: number | null
  readonly bits_per_byte: number | null
  readonly oracle_bits_per_byte: number | null
}

/** What model.json says of model.safetensors, known when the page is built. */
export interface Listing {
  readonly schema: string
  readonly bytes: number
  readonly sha256: string
  readonly parameters: number
  readonly config: ModelConfig
  readonly run: Run
}

export interface Loaded {
  readonly model: Model
  readonly tokenizer: Tokenizer
  readonly run: Run
  readonly bytes: number
  readonly sha256: string
}

/** Rejects with an Error in plain words; with the signal's AbortError where the reader gave up. */
export async function loadModel(
  url: string, { bytes: size, sha256: sum }: Listing, onProgress: (received: number) => void, signal: AbortSignal,
): Promise<Loaded> {
  const bytes = await fetchBytes(url, size, onProgress, signal)
  if (bytes.length !== size) throw new Error(`the file ended after ${bytes.length.toLocaleString('en')} of ${size.toLocaleString('en')} bytes`)
  if (sha256(bytes) !== sum) throw new Error('the file is not the one that this page was built with (its sha256 is another)')
  return openModel(bytes)
}

/** Read a whole file, at most `size` bytes of it and one more. */
async function fetchBytes(url: string, size: number, onProgress: (received: number) => void, signal: AbortSignal): Promise<Uint8Array> {
  let response: Response
  try {
    response = await fetch(url, { signal })
  } catch (error) {
    if (signal.aborted) throw error
    throw new Error('the file could not be fetched: the connection failed')
  }
  if (!response.ok || !response.body) throw new Error(`the server answered ${response.status}: the file is not there`)
  const bytes = new Uint8Array(size + 1)
  let received = 0
  const reader = response.body.getReader()
  try {
    for (;;) {
      const { done, value } = await reader.read()
      if (done || received > size) break
      bytes.set(value.subarray(0, size + 1 - received), received)
      received += value.length
      onProgress(Math.min(received, size))
    }
  } catch (error) {
    if (signal.aborted) throw error
    throw new Error(`the connection failed after ${received.toLocaleString('en')} of ${size.toLocaleString('en')} bytes`)
  } finally {
    reader.cancel().catch(() => undefined) // it may have ended by itself
  }
  return bytes.subarray(0, Math.min(received, size + 1))
}

/** Open an exported model; raises Error that says what is wrong with it. */
export function openModel(bytes: Uint8Array): Loaded {
  const { tensors, metadata } = readSafetensors(bytes)
  const about = readMetadata(metadata)
  const config = checkConfig(about['config'])
  const model = buildModel(config, tensors)
  if (![...tensors.values()].every(finite)) throw new Error('a weight of the model is not finite')
  const { tokenizer: vocabulary, run } = about
  if (!isRecord(vocabulary) || !isRecord(vocabulary['vocab']) || !isRecord(run)) throw new Error('the file does not say which tokenizer and run it is of')
  const tokenizer = buildTokenizer(vocabulary as unknown as Vocabulary)
  if (tokenizer.size > config.vocab_size) throw new Error(`the tokenizer has ${tokenizer.size} ids, the model ${config.vocab_size}`)
  return { model, tokenizer, run: run as unknown as Run, bytes: bytes.length, sha256: sha256(bytes) }
}

/** The JSON that octlm's exports carry; raises Error for another schema. */
export function readMetadata(metadata: ReadonlyMap<string, string>, schema = SCHEMA): Record<string, unknown> {
  let about: unknown
  try {
    about = JSON.parse(metadata.get('octlm') ?? 'null')
  } catch {
    about = null
  }
  if (!isRecord(about)) throw new Error('this is no export of octlm: make one with `python scripts/export.py model RUN`')
  if (about['schema'] !== schema) throw new Error(`schema ${String(about['schema'])}: this page reads ${schema}`)
  return about
}

const finite = ({ data }: Tensor): boolean => data.every(Number.isFinite)

const COUNTS = ['vocab_size', 'context_length', 'dim', 'n_layers', 'n_heads', 'n_kv_heads', 'head_dim', 'hidden_dim'] as const
const NUMBERS = ['norm_eps', 'rope_theta', 'rope_scale', 'logit_softcap'] as const
const CHOICES = {
  norm: ['layernorm', 'rmsnorm'], norm_placement: ['pre', 'post'], mlp: ['gelu', 'swiglu', 'relu2'],
  positions: ['learned', 'sinusoidal', 'rope', 'none'],
} as const
const LIMIT = 1 << 16 // of any count: a model beyond it is none that a page can run

/** Raises Error where the model's description names a part that this page does not have, or a number that cannot be. */
function checkConfig(config: unknown): ModelConfig {
  if (!isRecord(config)) throw new Error('the file does not describe its model')
  const legal = (key: string, is: boolean): void => {
    if (!is) throw new Error(`${key}=${JSON.stringify(config[key])}: this page cannot run such a model`)
  }
  const count = (value: unknown, low: number): boolean => Number.isInteger(value) && (value as number) >= low && (value as number) <= LIMIT
  for (const key of COUNTS) legal(key, count(config[key], key === 'n_layers' ? 0 : 1))
  for (const key of NUMBERS) legal(key, Number.isFinite(config[key]) && (config[key] as number) >= 0)
  for (const [key, values] of Object.entries(CHOICES)) legal(key, (values as readonly unknown[]).includes(config[key]))
  for (const key of ['qk_norm', 'tie_head', 'bias']) legal(key, typeof config[key] === 'boolean')
  for (const key of ['windows', 'strides']) {
    legal(key, Array.isArray(config[key]) && config[key].length === config['n_layers'] && config[key].every((n) => count(n, 0)))
  }
  const found = config as unknown as ModelConfig
  legal('n_kv_heads', found.n_heads % found.n_kv_heads === 0)
  legal('head_dim', found.positions !== 'rope' || found.head_dim % 2 === 0)
  legal('rope_scale', found.rope_scale > 0)
  return found
}

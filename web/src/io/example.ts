/** What the trained model does with one text, computed by PyTorch beforehand: on screen before anything is loaded. */
import type { Tensor } from '../math/tensor'
import { bytesOf } from './fixture'
import { readMetadata } from './load'
import { seen } from '../math/tokenizer'
import { readSafetensors } from './safetensors'

export interface Example {
  readonly pieces: readonly string[] // the text of each token
  readonly ids: readonly number[]
  readonly attention: readonly Tensor[] // (H, T, T) a layer
  readonly next: readonly { readonly id: number; readonly piece: string; readonly probability: number }[]
}

/** Raises Error for a file that is not whole. */
export function readExample(base64: string): Example {
  const { tensors, metadata } = readSafetensors(bytesOf(base64))
  const about = readMetadata(metadata, 'octlm-web-example/1')
  const get = (name: string): Tensor => {
    const tensor = tensors.get(name)
    if (!tensor) throw new Error(`the example has no tensor ${name}`)
    return tensor
  }
  const all = get('attention') // (L, H, T, T)
  const [, ...shape] = all.shape
  const each = shape.reduce((product, size) => product * size, 1)
  const words = about['next_pieces'] as readonly string[]
  return {
    pieces: (about['pieces'] as readonly string[]).map(seen),
    ids: [...get('ids').data],
    attention: Array.from({ length: all.shape[0]! }, (_, l) => ({ shape, data: all.data.slice(l * each, (l + 1) * each) })),
    next: words.map((piece, i) => ({ piece: seen(piece), id: get('next.ids').data[i]!, probability: get('next.probabilities').data[i]! })),
  }
}
